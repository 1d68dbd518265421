"""Further fields: masks, captions and other files beside images, from the source to the user."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg, photo, png, write
from PIL import Image

import readers
from packer.cli import main
from packer.convert import Summary, convert
from packer.fields import Pattern
from packer.images.geometry import unchanged
from packer.images.inspect import Reject
from packer.images.pixels import PixelOptions
from packer.options import Options
from packer.values import Found, store
from packer.verify import verify
from readers import formats
from readers.errors import DamagedSample, DspackError, SourceError
from readers.manifest import Field
from readers.masks import nearest

LABELS = (0, 3, 7, 200, 255)  # what the masks hold
FIELDS = {"mask": "../masks/{stem}.png", "caption": "{stem}.txt", "data": "{stem}.bin"}


def numbers(seed: int = 0, width: int = 48, height: int = 32, dtype: str = "uint8") -> np.ndarray:
    """The numbers of a mask: regions of some labels."""
    coarse = np.random.default_rng(seed).integers(0, len(LABELS), (4, 6)).astype(np.uint8)
    regions = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_NEAREST)
    return np.array(LABELS, dtype)[regions]


def palette(mask: np.ndarray, **options: Any) -> bytes:
    """A palette PNG; every colour is another one than its index."""
    image = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
    image.putpalette(np.random.default_rng(1).bytes(768))
    return saved(image, "PNG", **options)


def saved(image: Image.Image | np.ndarray, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    image.save(file, kind, **options)
    return file.getvalue()


def turned(data: np.ndarray, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return png(data, exif=exif)


def add_sample(root: Path, name: str, seed: int, *, orientation: int | None = None) -> None:
    """imgs/NAME.jpg with a caption and bytes beside it, and masks/STEM.png, upright."""
    mask = numbers(seed)
    write(root / "imgs" / f"{name}.jpg", jpeg(photo(seed), orientation))
    write(root / "imgs" / f"{name}.txt", f"caption {seed} é".encode())
    write(root / "imgs" / f"{name}.bin", bytes(range(seed)))
    write(root / "masks" / f"{name}.png", png(mask.T if orientation == 6 else mask))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """imgs/ and masks/ of five flat samples; the second one is turned."""
    for i in range(5):
        add_sample(tmp_path, f"{i:02d}", i, orientation=6 if i == 1 else None)
    return tmp_path


def pack(
    source: Path,
    out: Path,
    format_name: str = "memmap",
    fields: dict[str, str] | None = None,
    **options: Any,
) -> Summary:
    patterns = tuple(Pattern(*field) for field in (fields or {}).items())
    pixels = PixelOptions(**options.pop("pixels", {}))
    overwrite = options.pop("overwrite", False)
    made = Options(format_name, fields=patterns, pixels=pixels, **options)
    return convert(source, out, made, threads=2, overwrite=overwrite)


def rejected(out: Path) -> dict[str, tuple[str, str]]:
    rows = map(json.loads, (out / "rejected.jsonl").read_text("ascii").splitlines())
    return {row["key"]: (row["reason"], row["detail"]) for row in rows}


def is_whole(out: Path) -> bool:
    return verify(out, decode_images=True, threads=1).findings == []


def as_tar(folder: Path) -> Path:
    return Path(shutil.make_archive(str(folder), "tar", folder))


# From the folder to the sample


def test_fields_come_through_every_format(root: Path, tmp_path: Path, format_name: str) -> None:
    summary = pack(root / "imgs", tmp_path / "pack", format_name, FIELDS, shard_bytes=6000)
    assert summary.num_samples == 5 and summary.num_shards > 1
    assert (summary.left_out, summary.rejected, summary.changed) == ({}, {}, {})
    with readers.open(tmp_path / "pack") as opened:
        for i, sample in enumerate(opened):
            mask = numbers(i).T if i == 1 else numbers(i)
            assert list(sample.fields) == ["mask", "caption", "data"]
            np.testing.assert_array_equal(sample.fields["mask"], mask)
            assert sample.fields["mask"].dtype == np.uint8
            assert sample.image.shape[:2] == mask.shape
            assert sample.fields["caption"] == f"caption {i} é"
            assert sample.fields["data"] == bytes(range(i))
            assert opened.read(i, "mask") == (root / "masks" / f"{i:02d}.png").read_bytes()
    assert is_whole(tmp_path / "pack")
    kinds = {name: field.kind for name, field in opened.manifest.fields.items()}
    assert kinds == {"image": "encoded", "mask": "mask", "caption": "text", "data": "bytes"}


def test_the_digest_is_the_same_in_every_format(root: Path, tmp_path: Path) -> None:
    made = [pack(root / "imgs", tmp_path / name, name, FIELDS) for name in formats.names()]
    assert len({summary.content_digest for summary in made}) == 1
    without = pack(root / "imgs", tmp_path / "without")
    assert without.content_digest != made[0].content_digest
    assert without.left_out == {"not an image: .bin": 5, "not an image: .txt": 5}


INSIDE = {"mask": "masks/{folder}/{stem}.png", "caption": "{stem}.txt"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Class folders and, beside them, masks/ in the same order; a caption for each image."""
    for i in range(6):
        name = f"{'ab'[i % 2]}/{i}"
        write(tmp_path / "tree" / f"{name}.jpg", jpeg(photo(i)))
        write(tmp_path / "tree" / f"{name}.txt", b"caption %d" % i)
        write(tmp_path / "tree" / "masks" / f"{name}.png", png(numbers(i)))
    return tmp_path / "tree"


@pytest.mark.parametrize("kind", ["tar", "zip", "wrapped tar", "pack"])
def test_every_source_makes_the_same_pack(tree: Path, tmp_path: Path, kind: str) -> None:
    of_folder = pack(tree, tmp_path / "of folder", fields=INSIDE)
    assert of_folder.num_classes == 2, "masks/ is no class"
    assert of_folder.by_split == {} and of_folder.left_out == {}
    fields = INSIDE
    if kind == "pack":
        source, fields = tmp_path / "of folder", {}
    elif kind == "wrapped tar":
        (tmp_path / "around").mkdir()
        source = as_tar(tree.rename(tmp_path / "around" / "tree").parent)
    else:
        source = Path(shutil.make_archive(str(tree), kind, tree))
    made = pack(source, tmp_path / "pack", "lmdb", fields)
    assert made.content_digest == of_folder.content_digest
    assert made.left_out == {}
    ours, theirs = readers.open(tmp_path / "pack"), readers.open(tmp_path / "of folder")
    assert ours.manifest.fields == theirs.manifest.fields


def test_a_list_names_files_and_texts(root: Path, tmp_path: Path) -> None:
    lines = ["path,label,seg,note,Bad Name"]
    lines += [f"imgs/{i:02d}.jpg,{i % 2},masks/{i:02d}.png,note {i},x" for i in range(5)]
    source = write(root / "list.csv", "\n".join(lines).encode())
    fields = {"mask": "{seg}", "caption": "{stem}.txt"}
    summary = pack(source, tmp_path / "pack", fields=fields)
    assert summary.rejected == {} and summary.left_out == {"column bad name": 5}
    opened = readers.open(tmp_path / "pack")
    assert set(opened.manifest.fields) == {"image", "note", "mask", "caption"}
    for sample in opened:
        i = int(sample.key[-6:-4])
        assert sample.label == i % 2
        assert sample.fields["note"] == f"note {i}"
        assert sample.fields["caption"] == f"caption {i} é"
        np.testing.assert_array_equal(sample.fields["mask"], numbers(i).T if i == 1 else numbers(i))


def test_a_list_s_column_leads_nowhere_else(root: Path, tmp_path: Path) -> None:
    paths = ["../secret.png", str(root / "masks" / "01.png"), "", "a\0b", "masks/no.png"]
    rows = [{"path": f"imgs/{i:02d}.jpg", "seg": path} for i, path in enumerate(paths)]
    source = write(root / "list.jsonl", "\n".join(map(json.dumps, rows)).encode())
    pack(source, tmp_path / "pack", fields={"mask": "{seg}"})
    assert readers.open(tmp_path / "pack").keys[:] == ["imgs/01.jpg"]
    assert rejected(tmp_path / "pack") == {
        "imgs/00.jpg": ("mask: no path below the list's folder", "'../secret.png'"),
        "imgs/02.jpg": ("no mask", "the column seg is empty"),
        "imgs/03.jpg": ("mask: no path below the list's folder", r"'a\x00b'"),
        "imgs/04.jpg": ("no mask", "masks/no.png"),
    }


def webdataset(path: Path, members: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


def test_webdataset_members_are_fields(tmp_path: Path) -> None:
    members = {}
    for i in range(3):
        members[f"{i}.jpg"], members[f"{i}.cls"] = jpeg(photo(i)), b"%d" % i
        members[f"{i}.json"] = b'{"i": %d}' % i
        if i != 1:
            members[f"{i}.seg.png"], members[f"{i}.txt"] = palette(numbers(i)), b"text"
    source = webdataset(tmp_path / "0.tar", members)
    summary = pack(source, tmp_path / "pack", "hdf5", source_kind="webdataset")
    assert summary.warnings == {
        "no seg_png, an empty value is stored": 1,
        "no txt, an empty value is stored": 1,
    }
    opened = readers.open(tmp_path / "pack")
    for i, sample in enumerate(opened):
        assert json.loads(sample.fields["json"]) == {"i": i}
        assert sample.fields["txt"] == ("" if i == 1 else "text")
        if i == 1:
            assert sample.fields["seg_png"] is None
        else:
            np.testing.assert_array_equal(sample.fields["seg_png"], numbers(i))
    assert is_whole(tmp_path / "pack")
    again = pack(tmp_path / "pack", tmp_path / "again", "memmap")
    assert again.content_digest == summary.content_digest
    less = pack(source, tmp_path / "less", source_kind="webdataset", without_fields=("txt", "json"))
    assert less.left_out == {"field json": 3, "field txt": 3}
    assert list(readers.open(tmp_path / "less").manifest.fields) == ["image", "seg_png"]


@pytest.mark.parametrize("kind", ["webdataset", "pack"])
def test_a_source_without_files_takes_no_pattern(root: Path, tmp_path: Path, kind: str) -> None:
    source = webdataset(tmp_path / "0.tar", {"1.jpg": jpeg(photo()), "1.cls": b"0"})
    if kind == "pack":
        pack(source, tmp_path / "source", source_kind="webdataset")
        source = tmp_path / "source"
    with pytest.raises(SourceError, match="further fields come by themselves"):
        pack(source, tmp_path / "pack", fields={"mask": "{stem}.png"}, source_kind=kind)


def test_a_field_to_leave_out_must_be_there(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no field 'txt' to leave out; it has none"):
        pack(root / "imgs", tmp_path / "pack", without_fields=("txt",))


# Patterns


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("{stem}.txt", "train/cat/1.b.txt"),
        ("{name}.txt", "train/cat/1.b.jpg.txt"),
        ("masks/{stem}_m.png", "train/cat/masks/1.b_m.png"),
        ("../masks/{stem}.png", "train/masks/1.b.png"),
        ("../../../masks/{stem}.png", "../masks/1.b.png"),
        ("masks/{folder}/{stem}.png", "masks/train/cat/1.b.png"),
        ("../masks/{folder}/{stem}.png", "../masks/train/cat/1.b.png"),
        ("{{{stem}}}.txt", "train/cat/{1.b}.txt"),
        ("about.json", "train/cat/about.json"),
    ],
)
def test_a_pattern_leads_to_a_path(pattern: str, path: str) -> None:
    assert Pattern("field", pattern).path("train/cat/1.b.jpg", {}) == path


def test_without_a_folder_a_pattern_starts_at_the_top() -> None:
    assert Pattern("field", "masks/{folder}/{stem}.png").path("1.jpg", {}) == "masks/1.png"
    assert Pattern("field", "{stem}.txt").path("1", {}) == "1.txt"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("mask", "is not NAME=PATTERN"),
        ("image={stem}.png", "cannot be a field's name"),
        ("label={stem}.png", "cannot be a field's name"),
        ("Mask={stem}.png", "cannot be a field's name"),
        ("1st={stem}.png", "cannot be a field's name"),
        ("a.b={stem}.png", "cannot be a field's name"),
        ("mask=/masks/{stem}.png", "is not a relative path"),
        ("mask=", "is not a relative path"),
        ("mask={stem", "expected '}'"),
        ("mask={}.png", "braces hold a name and nothing else"),
        ("mask={stem!r}.png", "braces hold a name and nothing else"),
        ("mask={stem:>4}.png", "braces hold a name and nothing else"),
    ],
)
def test_a_wrong_pattern_is_wrong_use(root: Path, argument: str, message: str) -> None:
    command = ["convert", str(root / "imgs"), "--to", "memmap", "--field", argument]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_an_unknown_placeholder_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"\{id\}, .* there are \{stem\}, \{name\}, \{folder\}"):
        pack(root / "imgs", tmp_path / "pack", fields={"mask": "{id}.png"})
    with pytest.raises(SourceError, match="no such thing"):
        pack(root / "imgs", tmp_path / "pack", fields={"mask": "{stem.__class__}.png"})


def test_the_command_line(root: Path, tmp_path: Path) -> None:
    command = ["convert", str(root / "imgs"), "--to", "lmdb", "-o", str(tmp_path / "pack")]
    command += [part for field in FIELDS.items() for part in ("--field", "=".join(field))]
    dry = CliRunner().invoke(main, [*command, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    num_bytes = sum(len(f"caption {i} é".encode()) for i in range(5))
    assert f"caption: 5 values, {num_bytes} B" in dry.output
    assert CliRunner().invoke(main, command).exit_code == 0
    told = CliRunner().invoke(main, ["info", str(tmp_path / "pack")]).output
    assert "fields image (encoded), mask (mask), caption (text), data (bytes)" in told
    assert readers.open(tmp_path / "pack").manifest.made["fields"] == FIELDS
    twice = CliRunner().invoke(main, [*command, "--field", "mask={stem}.gif"])
    assert twice.exit_code == 2 and "--field mask is given twice" in twice.output


# What is an image, and what a value


def test_values_are_no_samples_wherever_they_lie(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "imgs" / f"{i}.png", png(photo(i)))
        write(tmp_path / "imgs" / f"{i}_mask.png", png(numbers(i)))
    summary = pack(tmp_path / "imgs", tmp_path / "pack", fields={"mask": "{stem}_mask.png"})
    assert readers.open(tmp_path / "pack").keys[:] == ["0.png", "1.png", "2.png"]
    assert summary.rejected == {}


def test_an_image_that_would_be_its_own_mask_is_an_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"0[0-9]\.png: the image would be its own mask"):
        pack(root / "masks", tmp_path / "pack", fields={"mask": "{stem}.png"})


@pytest.mark.parametrize("make", [lambda path: path, as_tar])
def test_a_mask_without_an_image_is_a_reject(tree: Path, tmp_path: Path, make: Any) -> None:
    write(tree / "masks" / "a" / "99.png", png(numbers()))
    summary = pack(make(tree), tmp_path / "pack", fields=INSIDE)
    assert rejected(tmp_path / "pack") == {"masks/a/99.png": ("belongs to no image", "")}
    assert (summary.num_samples, summary.num_classes) == (6, 2)


def test_a_mask_beside_the_image_folder_without_an_image_is_a_reject(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "set" / "imgs" / f"{i}.jpg", jpeg(photo(i)))
        write(tmp_path / "set" / "masks" / f"{i}.png", png(numbers(i)))
    write(tmp_path / "set" / "masks" / "9.png", png(numbers()))
    summary = pack(tmp_path / "set", tmp_path / "pack", fields={"mask": "../masks/{stem}.png"})
    assert summary.num_samples == 3 and summary.num_classes == 1
    assert rejected(tmp_path / "pack") == {"masks/9.png": ("belongs to no image", "")}


def test_files_that_no_image_uses_are_left_out_as_ever(root: Path, tmp_path: Path) -> None:
    write(root / "imgs" / "read.txt", b"me")
    summary = pack(root / "imgs", tmp_path / "pack", fields={"caption": "{stem}.txt"})
    assert summary.left_out == {"not an image: .bin": 5, "not an image: .txt": 1}


# Rejects


def test_a_missing_value_is_a_reject(root: Path, tmp_path: Path) -> None:
    (root / "masks" / "00.png").unlink()
    (root / "imgs" / "02.txt").unlink()
    (root / "imgs" / "03.txt").unlink()
    (root / "imgs" / "03.txt").mkdir()
    os.mkfifo(root / "fifo")
    (root / "masks" / "04.png").unlink()
    (root / "fifo").rename(root / "masks" / "04.png")
    summary = pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    assert summary.num_samples == 1
    assert rejected(tmp_path / "pack") == {
        "00.jpg": ("no mask", "../masks/00.png"),
        "02.jpg": ("no caption", "02.txt"),
        "03.jpg": ("caption: not a regular file", "03.txt"),
        "04.jpg": ("mask: not a regular file", "../masks/04.png"),
    }


def test_an_archive_has_nothing_beside_it(root: Path, tmp_path: Path) -> None:
    source = as_tar(root / "imgs")
    write(root / "imgs" / "ok.jpg", jpeg(photo()))
    with pytest.raises(DspackError, match=r"every file was rejected .*no mask"):
        pack(source, tmp_path / "pack", fields={"mask": "../masks/{stem}.png"})


def test_a_size_that_differs_is_a_reject_that_names_both(root: Path, tmp_path: Path) -> None:
    write(root / "masks" / "00.png", png(numbers(0, 47, 32)))
    write(root / "masks" / "01.png", png(numbers(1)))  # as the turned image is stored
    summary = pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    assert summary.num_samples == 3
    reason = "mask: of another size than the image"
    assert rejected(tmp_path / "pack") == {
        "00.jpg": (reason, "../masks/00.png: 47 x 32, and 00.jpg 48 x 32"),
        "01.jpg": (reason, "../masks/01.png: 48 x 32, and 01.jpg 32 x 48"),
    }


@pytest.mark.parametrize("check", ["decode", "header"])
def test_damage_is_a_reject(root: Path, tmp_path: Path, check: str) -> None:
    for i, data in enumerate([b"", png(numbers(0))[:-20], b"no image", jpeg(numbers())[:-200]]):
        write(root / "masks" / f"{i:02d}.png", data)
    write(root / "imgs" / "04.txt", b"\xff")
    with pytest.raises(DspackError, match="every file was rejected"):
        pack(root / "imgs", tmp_path / "pack", fields=FIELDS, check=check)
    add_sample(root, "05", 5)
    pack(root / "imgs", tmp_path / "pack", fields=FIELDS, check=check, overwrite=True)
    reasons = rejected(tmp_path / "pack")
    assert [reasons[f"{i:02d}.jpg"][0].partition(":")[0] for i in range(5)] == [
        *("mask",) * 4,
        "caption",
    ]
    assert all("masks/" in reasons[f"{i:02d}.jpg"][1] for i in range(4))


def test_links_are_followed_only_where_the_user_pointed(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "x.png", png(numbers(0)))
    for i, target in enumerate(["../elsewhere/x.png", "02.png", "nowhere"]):
        if i != 1:
            (root / "masks" / f"{i:02d}.png").unlink()
            (root / "masks" / f"{i:02d}.png").symlink_to(target)
    (root / "masks" / "03.png").unlink()
    (root / "masks" / "03.png").symlink_to("04.png")
    summary = pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    assert summary.num_samples == 3
    assert rejected(tmp_path / "pack") == {
        "00.jpg": ("mask: link out of the source", "../masks/00.png"),
        "02.jpg": ("mask: link to nothing", "../masks/02.png"),
    }


def test_a_link_to_a_pipe_does_not_make_it_wait(root: Path, tmp_path: Path) -> None:
    os.mkfifo(root / "masks" / "pipe")
    (root / "masks" / "03.png").unlink()
    (root / "masks" / "03.png").symlink_to("pipe")
    pack(root / "imgs", tmp_path / "pack", fields={"mask": FIELDS["mask"]})
    why = ("mask: not a regular file", "../masks/03.png")
    assert rejected(tmp_path / "pack") == {"03.jpg": why}


def test_a_value_whose_name_would_be_too_long_is_missing(root: Path, tmp_path: Path) -> None:
    name = "x" * 250
    shutil.copy(root / "imgs" / "00.jpg", root / "imgs" / f"{name}.jpg")
    for i in range(5):
        (root / "masks" / f"{i:02d}.png").rename(root / "masks" / f"{i:02d}_mask.png")
    pack(root / "imgs", tmp_path / "pack", fields={"mask": "../masks/{stem}_mask.png"})
    ((key, (reason, detail)),) = rejected(tmp_path / "pack").items()
    assert (key, reason) == (f"{name}.jpg", "no mask")
    assert detail == f"../masks/{name}_mask.png the name is too long"


def test_a_folder_that_leads_out_is_not_followed(root: Path, tmp_path: Path) -> None:
    write(root / "imgs" / "ok.jpg", jpeg(photo(1)))
    (root / "imgs" / "texts").mkdir()
    (root / "secret").mkdir()
    (root / "imgs" / "m").symlink_to(root / "masks")
    with pytest.raises(DspackError, match="mask: link out of the source"):
        pack(root / "imgs", tmp_path / "pack", fields={"mask": "m/{stem}.png"})


# Masks


MASKS = {
    "grey": lambda: (png(numbers()), numbers()),
    "16 bits": lambda: (png(numbers(dtype="uint16") * 250), numbers(dtype="uint16") * 250),
    "RGB": lambda: (png(photo()), photo()),
    "palette": lambda: (palette(numbers()), numbers()),
    "palette, 4 bits": lambda: (palette(numbers() % 16, bits=4), numbers() % 16),
    "palette, transparent": lambda: (palette(numbers(), transparency=3), numbers()),
    "1 bit": lambda: (png(numbers() > 5), (numbers() > 5).astype(np.uint8)),
    "2 bits": lambda: (few_bits(numbers() % 4, 2), numbers() % 4),
    "4 bits": lambda: (few_bits(numbers() % 16, 4), numbers() % 16),
    "grey, one level transparent": lambda: (png(numbers(), transparency=3), numbers()),
    "grey and alpha": lambda: (png(np.dstack([numbers(), numbers(1)])), numbers()),
    "RGBA": lambda: (png(np.dstack([photo(), numbers(1)])), photo()),
    "TIFF palette": lambda: (as_kind("TIFF", numbers()), numbers()),
    "TIFF, 16 bits": lambda: (
        saved(numbers(dtype="uint16") * 250, "TIFF"),
        numbers(dtype="uint16") * 250,
    ),
    "BMP palette": lambda: (as_kind("BMP", numbers()), numbers()),
    "BMP, 1 bit": lambda: (
        saved(Image.fromarray(numbers() > 5), "BMP"),
        (numbers() > 5).astype(np.uint8),
    ),
    "GIF": lambda: (as_kind("GIF", numbers()), numbers()),
    "PGM": lambda: (saved(numbers(), "PPM"), numbers()),
    "lossless WebP": lambda: (saved(photo(), "WebP", lossless=True), photo()),
    "turned": lambda: (turned(numbers(0, 32, 48), 6), np.rot90(numbers(0, 32, 48), -1)),
}
UNCHANGED = ("grey", "16 bits", "RGB")


def few_bits(mask: np.ndarray, bits: int) -> bytes:
    """A grey PNG of 2 or 4 bits, which no library writes: a palette's with another header."""
    from images import png_chunk

    data = palette(mask, bits=bits)
    header = bytearray(data[16:29])
    header[9] = 0  # grey
    start = data.index(b"IDAT") - 4
    return data[:8] + png_chunk(b"IHDR", bytes(header)) + data[start:]


def as_kind(kind: str, mask: np.ndarray) -> bytes:
    image = Image.frombytes("P", mask.shape[::-1], mask.tobytes())
    image.putpalette(np.random.default_rng(1).bytes(768))
    return saved(image, kind, **({"optimize": False} if kind == "GIF" else {}))


@pytest.mark.parametrize("keep_bytes", [False, True])
@pytest.mark.parametrize("kind", MASKS)
def test_masks_keep_their_numbers(tmp_path: Path, kind: str, keep_bytes: bool) -> None:
    data, expected = MASKS[kind]()
    write(tmp_path / "imgs" / "1.jpg", jpeg(photo()))
    write(tmp_path / "masks" / "1.png", data)
    summary = pack(
        tmp_path / "imgs",
        tmp_path / "pack",
        fields={"mask": "../masks/{stem}.png"},
        pixels={"keep_bytes": keep_bytes},
    )
    assert rejected(tmp_path / "pack") == {}
    opened = readers.open(tmp_path / "pack")
    mask = opened[0].fields["mask"]
    np.testing.assert_array_equal(mask, expected)
    assert mask.dtype == expected.dtype
    mask[0] = 0  # it is the caller's
    stored = opened.read(0, "mask")
    if kind in UNCHANGED or keep_bytes:
        assert stored == data and summary.changed == {}
    else:
        assert sum(summary.changed.values()) == 1
    if not keep_bytes:  # any decoder gives the numbers
        assert (stored[:4], "mask.odd" in opened.index) == (b"\x89PNG", False)
        with Image.open(io.BytesIO(stored)) as image:
            np.testing.assert_array_equal(np.asarray(image), expected)
    assert is_whole(tmp_path / "pack")


def test_what_is_kept_is_kept_in_a_copy_and_plain_with_other_pixels(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "1.jpg", jpeg(photo()))
    write(tmp_path / "masks" / "1.png", palette(numbers()))
    fields = {"mask": "../masks/{stem}.png"}
    plain = pack(tmp_path / "imgs", tmp_path / "plain", fields=fields)
    kept = {"keep_bytes": True}
    first = pack(tmp_path / "imgs", tmp_path / "kept", fields=fields, pixels=kept)
    for name, options in (("copy", {}), ("kept again", kept)):
        again = pack(tmp_path / "kept", tmp_path / name, pixels=options)
        assert again.content_digest == first.content_digest
        np.testing.assert_array_equal(readers.open(tmp_path / name).field(0, "mask"), numbers())
    other = pack(tmp_path / "kept", tmp_path / "other", pixels={"background": (0, 0, 0)})
    assert other.content_digest == plain.content_digest


def test_a_jpeg_mask_is_kept_with_a_warning(root: Path, tmp_path: Path) -> None:
    data = jpeg(numbers(), quality=100, subsampling=0)
    write(root / "masks" / "00.png", data)
    summary = pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    assert summary.warnings == {"mask: JPEG, whose compression may change numbers": 1}
    opened = readers.open(tmp_path / "pack")
    assert opened.read(0, "mask") == data
    assert opened.field(0, "mask").shape == (32, 48)
    assert opened.field(2, "mask").tolist() == numbers(2).tolist()


@pytest.mark.parametrize("lossless", [True, False])
def test_a_lossy_webp_mask_is_warned_of(root: Path, tmp_path: Path, lossless: bool) -> None:
    write(root / "masks" / "00.png", saved(numbers(), "WEBP", lossless=lossless))
    summary = pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    lossy = {"mask: WebP, whose compression may change numbers": 1}
    assert summary.warnings == ({} if lossless else lossy)


@pytest.mark.parametrize(
    "data",
    [
        saved(np.full((32, 48), 70000, np.int32), "TIFF"),
        saved(np.zeros((32, 48), np.float32), "TIFF"),
        saved(Image.new("CMYK", (48, 32)), "TIFF"),
        b"P5 48 32 100\n" + bytes(48 * 32),
        saved(
            Image.fromarray(numbers()),
            "GIF",
            save_all=True,
            append_images=[Image.fromarray(numbers(1))],
        ),
    ],
    ids=["32 bits", "floats", "CMYK", "PGM of other levels", "animated"],
)
def test_what_holds_no_numbers_is_rejected(root: Path, tmp_path: Path, data: bytes) -> None:
    write(root / "masks" / "00.png", data)
    pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    assert list(rejected(tmp_path / "pack")) == ["00.jpg"]


@pytest.mark.parametrize(
    "options",
    [
        {"resize": 20},
        {"resize": 20, "resize_mode": "longer"},
        {"resize": 17, "resize_mode": "exact"},
        {"resize": 20, "resize_mode": "pad"},
        {"resize": 70, "enlarge": True},
        {"resize": 70},
        {"resize": 24, "resize_mode": "exact", "encode": "raw"},
    ],
)
def test_masks_are_resized_as_the_image_and_get_no_new_number(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    # The image shows its mask: where its colours are clear, they must say the same.
    mask = numbers(3, 64, 48)
    write(tmp_path / "imgs" / "1.png", png(np.dstack([mask] * 3)))
    write(tmp_path / "imgs" / "1.gif", as_kind("GIF", mask))
    pack(tmp_path / "imgs", tmp_path / "pack", fields={"mask": "{stem}.gif"}, pixels=options)
    sample = readers.open(tmp_path / "pack")[0]
    found = sample.fields["mask"]
    assert found.shape == sample.image.shape[:2]
    assert set(np.unique(found)) <= {0, *LABELS}
    if options.get("resize_mode") == "pad":
        assert found[0].tolist() == [0] * 20
        assert sample.image[0].min() == 255, "the image's border is white"
        found, image = found[3:-3], sample.image[3:-3, :, 0]
    else:
        image = sample.image[..., 0]
    alike = np.abs(found.astype(int) - image) < 20
    assert alike.mean() > 0.8


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1), (13, 7), (40, 30), (90, 100)])
def test_nearest_takes_what_lies_under_the_centres(size: tuple[int, int], channels: int) -> None:
    mask = np.arange(30 * 40 * channels, dtype=np.uint16).reshape(30, 40, -1).squeeze()
    box = (3, 5, 31, 22)
    expected = cv2.resize(mask[5:27, 3:34], size, interpolation=cv2.INTER_NEAREST_EXACT)
    np.testing.assert_array_equal(nearest(mask, box, size), expected)
    np.testing.assert_array_equal(nearest(mask, box, size, mirrored=True), expected[:, ::-1])


# Going on


def test_a_changed_value_is_packed_again(root: Path, tmp_path: Path) -> None:
    for i in range(5, 30):
        add_sample(root, f"{i:02d}", i)

    class Stopped(BaseException):
        pass

    def stop(num_done: int, num_bytes: int, num_total: int) -> None:
        if num_done > 15:
            raise Stopped

    options = Options("memmap", shard_bytes=4000, fields=tuple(Pattern(*f) for f in FIELDS.items()))

    def go_on(out: Path, **more: Any) -> Summary:
        return convert(root / "imgs", out, options, threads=2, **more)

    with pytest.raises(Stopped):
        go_on(tmp_path / "pack", progress=stop)
    with pytest.raises(Stopped):
        go_on(tmp_path / "same", progress=stop)
    assert go_on(tmp_path / "same").num_resumed > 5
    write(root / "masks" / "04.png", png(numbers(77)))
    summary = go_on(tmp_path / "pack")
    assert summary.num_resumed <= 4
    assert summary.content_digest == go_on(tmp_path / "anew").content_digest
    np.testing.assert_array_equal(readers.open(tmp_path / "pack").field(4, "mask"), numbers(77))


def test_rejects_do_not_spoil_going_on(root: Path, tmp_path: Path) -> None:
    (root / "masks" / "00.png").unlink()
    write(root / "imgs" / "02.jpg", b"damaged")
    options = Options("memmap", fields=tuple(Pattern(*f) for f in FIELDS.items()))
    with pytest.raises(DspackError, match="--strict"):
        convert(root / "imgs", tmp_path / "pack", options, threads=1, strict=True)
    assert convert(root / "imgs", tmp_path / "pack", options, threads=1).num_resumed == 3


def test_values_that_changed_places_are_packed_again(root: Path, tmp_path: Path) -> None:
    write(root / "imgs" / "02.jpg", b"damaged")
    options = Options("memmap", fields=tuple(Pattern(*f) for f in FIELDS.items()))
    text, data, aside = (root / "imgs" / name for name in ("01.txt", "01.bin", "aside"))
    data.write_bytes(b"01")
    with pytest.raises(DspackError, match="--strict"):
        convert(root / "imgs", tmp_path / "pack", options, threads=1, strict=True)
    text.rename(aside), data.rename(text), aside.rename(data)  # sizes and times go with them
    assert convert(root / "imgs", tmp_path / "pack", options, threads=1).num_resumed == 0
    assert readers.open(tmp_path / "pack").field(1, "caption") == "01"


def test_a_changed_text_of_a_list_is_packed_again(root: Path, tmp_path: Path) -> None:
    for note in ("before", "after"):
        rows = [{"path": f"imgs/{i:02d}.jpg", "note": note} for i in range(5)]
        rows += [{"path": "imgs/no.jpg", "note": "\udcff\ud800"}]  # no text in UTF-8 either
        source = write(root / "list.jsonl", "\n".join(map(json.dumps, rows)).encode())
        with pytest.raises(DspackError, match="--strict"):
            convert(source, tmp_path / "pack", Options("memmap"), threads=1, strict=True)
    assert convert(source, tmp_path / "pack", Options("memmap"), threads=1).num_resumed == 5
    assert readers.open(tmp_path / "pack").field(0, "note") == "after"


def test_other_fields_are_not_taken_for_the_same_run(root: Path, tmp_path: Path) -> None:
    (root / "masks" / "00.png").unlink()
    options = Options("memmap", fields=tuple(Pattern(*f) for f in FIELDS.items()))
    with pytest.raises(DspackError, match="--strict"):
        convert(root / "imgs", tmp_path / "pack", options, threads=1, strict=True)
    with pytest.raises(DspackError, match="an unfinished run is here"):
        pack(root / "imgs", tmp_path / "pack", fields={"caption": "{stem}.txt"})


# Reading


def scenes(root: Path) -> Path:
    """Images that show their own masks, as palette colours of equal R, G and B."""
    for i in range(12):
        width, height = 40 + 8 * i, 100 - 5 * i
        mask = np.kron(np.random.default_rng(i).integers(0, 4, (5, 5)), np.ones((40, 40))) * 60
        mask = mask[:height, :width].astype(np.uint8)
        shown = np.rot90(mask, 1) if i % 3 == 1 else mask  # orientation 6: turned by 90 degrees
        orientation = 6 if i % 3 == 1 else None
        write(
            root / "imgs" / f"{i:02d}.jpg",
            jpeg(np.dstack([shown] * 3), orientation, quality=100, subsampling=0),
        )
        write(root / "masks" / f"{i:02d}.png", png(mask))
    pack(root / "imgs", root / "scenes", "hdf5", {"mask": "../masks/{stem}.png"})
    return root / "scenes"


@pytest.mark.parametrize("options", [{"train": True}, {"train": False}, {"scale": None}])
def test_masks_follow_their_images_through_the_loader(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    from readers.loader import BatchLoader

    loader = BatchLoader(scenes(tmp_path), 4, size=32, threads=2, fields=["mask"], **options)
    for _ in range(3):
        for batch in loader:
            masks = batch.fields["mask"]
            assert (masks.shape, masks.dtype) == ((4, 32, 32), np.uint8)
            assert set(np.unique(masks)) <= {0, 60, 120, 180}
            # Only at the borders of regions does interpolation make something between.
            differ = np.abs(masks.astype(int) - batch.images[..., 0]) > 12
            assert differ.mean(axis=(1, 2)).max() < 0.25
            around = np.ones((5, 5))
            flat = [cv2.erode(mask, around) == cv2.dilate(mask, around) for mask in masks]
            assert not (differ & flat)[:, 2:-2, 2:-2].any()


def test_the_torch_loader_and_the_prefetcher_give_tensors(root: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from readers.loader import BatchLoader
    from readers.torch import CUDAPrefetcher, Loader

    write(root / "masks" / "00.png", png(numbers(dtype="uint16") * 250))
    pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    options: dict[str, Any] = {"size": 16, "threads": 1, "fields": ["mask", "caption"]}
    (expected,) = BatchLoader(tmp_path / "pack", 5, train=False, **options)
    loader = Loader(tmp_path / "pack", 5, train=False, **options)
    for ((_, _, batch),) in (loader, CUDAPrefetcher(loader, "cpu")):
        assert isinstance(batch.fields["mask"], torch.Tensor)
        np.testing.assert_array_equal(batch.fields["mask"].numpy(), expected.fields["mask"])
        assert batch.fields["caption"] == expected.fields["caption"]
    ((images, labels, batch),) = CUDAPrefetcher(loader, "meta")
    assert {t.device.type for t in (images, labels, batch.fields["mask"])} == {"meta"}
    assert batch.fields["mask"].shape == (5, 16, 16)


def test_masks_of_other_forms_in_the_loader(root: Path, tmp_path: Path) -> None:
    from readers.loader import BatchLoader

    write(root / "masks" / "00.png", png(numbers(dtype="uint16") * 250))
    pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    options: dict[str, Any] = {"size": 16, "threads": 1, "fields": ["mask", "caption", "data"]}
    (batch,) = BatchLoader(tmp_path / "pack", 5, train=False, **options)
    assert batch.fields["mask"].dtype == np.uint16
    assert batch.fields["caption"] == [f"caption {i} é" for i in range(5)]
    assert batch.fields["data"] == [bytes(range(i)) for i in range(5)]
    whole = BatchLoader(
        tmp_path / "pack", 5, shuffle=False, transform=lambda pixels, _: pixels[:8, :8], **options
    )
    (batch,) = whole
    assert [mask.shape for mask in batch.fields["mask"]] == [(32, 48), (48, 32), *[(32, 48)] * 3]

    write(root / "masks" / "00.png", png(photo()))
    pack(root / "imgs", tmp_path / "mixed", fields=FIELDS)
    with pytest.raises(DspackError, match="grey and RGB"):
        list(BatchLoader(tmp_path / "mixed", 5, train=False, **options))
    options["fields"] = ["mask", "mask"]  # is asked for once
    (one,) = BatchLoader(tmp_path / "mixed", 1, train=False, subset=[0], **options)
    assert one.fields["mask"].shape == (1, 16, 16, 3)


def test_a_sample_without_a_mask_is_named_by_the_loader(tmp_path: Path) -> None:
    from readers.loader import BatchLoader

    members = {"0.jpg": jpeg(photo()), "1.jpg": jpeg(photo(1)), "1.png": png(numbers())}
    members |= {"0.cls": b"0", "1.cls": b"0"}
    source = webdataset(tmp_path / "0.tar", members)
    pack(source, tmp_path / "pack", source_kind="webdataset")
    with pytest.raises(DspackError, match="the sample has no png"):
        list(BatchLoader(tmp_path / "pack", 2, train=False, fields=["png"]))
    (batch,) = BatchLoader(tmp_path / "pack", 1, train=False, fields=["png"], subset=[1])
    assert batch.fields["png"].shape == (1, 224, 224)


def test_the_torch_dataset_has_fields(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from readers.torch import ImageDataset, Loader

    pack(root / "imgs", tmp_path / "pack", fields=FIELDS)
    dataset = ImageDataset(tmp_path / "pack", fields=("mask", "caption"), arrays=True)
    image, label, mask, caption = dataset[2]
    assert (image.shape, label, caption) == ((32, 48, 3), -1, "caption 2 é")
    np.testing.assert_array_equal(mask, numbers(2))
    assert len(ImageDataset(tmp_path / "pack")[0]) == 2
    with pytest.raises(DspackError, match="no field 'masks'"):
        ImageDataset(tmp_path / "pack", fields=("masks",))
    for _, _, batch in Loader(tmp_path / "pack", 2, size=16, fields=["mask"], threads=1):
        assert batch.fields["mask"].shape == (2, 16, 16)


def test_damage_to_a_value_is_found(root: Path, tmp_path: Path, format_name: str) -> None:
    from packs import damage_value

    out = tmp_path / "pack"
    pack(root / "imgs", out, format_name, FIELDS)
    damage_value(out, "caption 3 é".encode())
    assert readers.open(out).image(3) is not None
    with pytest.raises(DamagedSample, match=r"03\.jpg"):
        readers.open(out)[3]
    report = verify(out, threads=1)
    assert [finding.key for finding in report.findings if finding.index is not None] == ["03.jpg"]


def test_verify_compares_the_sizes_of_masks(root: Path, tmp_path: Path) -> None:
    from packs import Recipe, Row

    from readers.manifest import Field

    values = {"image": png(photo()), "mask": png(numbers(0, 20, 20)), "text": b"\xff"}
    out = Recipe(
        [Row("a", values, width=48, height=32), Row("b", values | {"mask": b"", "text": b""})],
        fields={"image": Field(), "mask": Field("mask"), "text": Field("text")},
    ).write(tmp_path / "pack", "memmap")
    findings = [str(finding) for finding in verify(out, decode_images=True, threads=1).findings]
    assert any("the text is not UTF-8" in finding for finding in findings)
    good = {"image": png(photo()), "mask": png(numbers(0, 20, 20))}
    out = Recipe(
        [Row("a", good, width=48, height=32)], fields={"image": Field(), "mask": Field("mask")}
    ).write(tmp_path / "other", "memmap")
    (finding,) = verify(out, decode_images=True, threads=1).findings
    assert "the mask decodes to (20, 20), the index states (32, 48)" in str(finding)


# Any bytes

ragged = st.lists(st.binary(max_size=300), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(values=ragged, name=st.sampled_from(formats.names()), shard_bytes=st.integers(1, 2000))
def test_any_bytes_come_back(values: list[bytes], name: str, shard_bytes: int) -> None:
    image = jpeg(photo(0, 8, 8))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for i, value in enumerate(values):
            write(root / "imgs" / f"{i}.jpg", image)
            write(root / "imgs" / f"{i}.dat", value)
        out = root / "pack"
        pack(root / "imgs", out, name, {"data": "{stem}.dat"}, shard_bytes=shard_bytes)
        with readers.open(out) as opened:
            assert [opened.field(i, "data") for i in range(len(values))] == values
        assert is_whole(out)


@pytest.mark.parametrize("keep", [False, True])
def test_a_mask_of_any_size_is_copied_from_a_pack(
    keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of pixels was for packing it the first time."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    two_levels = io.BytesIO()
    Image.new("1", (60, 40), 1).save(two_levels, "TIFF" if keep else "PNG")
    limited = PixelOptions(max_pixels=100)
    data, geometry = two_levels.getvalue(), unchanged(60, 40)
    found = Found(data, "mask", "m", "i", geometry, 1, decode=True, options=limited)
    with pytest.raises(Reject, match="too many pixels"):
        store("mask", found)
    copied = replace(limited, copied=Field())
    assert store("mask", found._replace(options=copied)).data == found.data
