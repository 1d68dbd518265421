"""WebDataset shards: samples of several members, labels from .cls, keys cut at the first dot."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from images import class_folder, jpeg, photo, png

from packer.cli import main
from packer.convert import convert
from packer.destination import default_destination
from packer.fields import Pattern
from packer.options import Options
from packer.sources import Listing, open_source
from readers.errors import SourceError
from readers.pack import Pack

IMAGE = jpeg(photo())


def shard(path: Path, members: dict[str, bytes] | list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def labelled(number: int, label: object) -> dict[str, bytes]:
    return {f"{number:04d}.jpg": jpeg(photo(number)), f"{number:04d}.cls": str(label).encode()}


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """Two shards of three samples with the labels 0 to 5, modulo 3."""
    for s in range(2):
        members: dict[str, bytes] = {}
        for i in range(3 * s, 3 * s + 3):
            members |= labelled(i, i % 3) | {f"{i:04d}.json": b"{}"}
        shard(tmp_path / "shards" / f"imgs-{s:03d}.tar", members)
    return tmp_path / "shards"


def scan(*members: tuple[str, bytes], path: Path) -> Listing:
    return open_source(shard(path, list(members)), "webdataset").scan()


def packed(source: Path, out: Path, **options: object) -> Pack:
    convert(source, out, Options("memmap", **options), threads=2)  # type: ignore[arg-type]
    return Pack(out)


# What is packed


def test_a_folder_a_pattern_and_parts_of_it(shards: Path, tmp_path: Path) -> None:
    pack = packed(shards, tmp_path / "a.pack")
    assert pack.classes == ["0", "1", "2"]
    labels = dict(zip(pack.keys, pack.labels.tolist(), strict=True))
    assert labels == {f"{i:04d}.jpg": i % 3 for i in range(6)}
    assert pack.read(0) == jpeg(photo(0))
    for pattern in ("imgs-{000..001}.tar", "imgs-{000,001}.tar", "imgs-00{0..1}.tar"):
        again = packed(shards / pattern, tmp_path / f"{pattern}.pack")
        assert again.content_digest == pack.content_digest
    assert len(packed(shards / "imgs-{001..001}.tar", tmp_path / "b.pack")) == 3


def test_one_shard_with_labels_is_known(shards: Path, tmp_path: Path) -> None:
    assert packed(shards / "imgs-001.tar", tmp_path / "pack").labels.tolist() == [0, 1, 2]


def test_compressed_shards(shards: Path, tmp_path: Path) -> None:
    digest = packed(shards, tmp_path / "a.pack").content_digest
    for path in list(shards.iterdir()):
        path.with_suffix(".tar.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    with pytest.raises(SourceError, match=r"left out: .*shards, add --from webdataset$"):
        packed(shards, tmp_path / "as_a_folder")
    as_shards = packed(shards, tmp_path / "as_shards", source_kind="webdataset")
    assert as_shards.content_digest == digest
    pattern = shards / "imgs-{000..001}.tar.gz"
    assert packed(pattern, tmp_path / "b.pack").content_digest == digest


def test_other_members_are_further_fields(shards: Path) -> None:
    (field,) = open_source(shards).scan().fields
    assert (field.name, field.about.kind) == ("json", "text")


def test_members_that_cannot_be_a_field_are_counted(tmp_path: Path) -> None:
    members = [("1.jpg", IMAGE), ("1.7z", b""), ("1.key", b""), ("1.a_b", b""), ("1.a.b", b"")]
    listing = scan(*members, path=tmp_path / "imgs.tar")
    assert [field.name for field in listing.fields] == ["a_b"]
    assert listing.left_out == {"field 7z": 1, "field key": 1, "field a.b": 1}


def test_names_as_labels(tmp_path: Path) -> None:
    members = labelled(0, "dog") | labelled(1, "cat\n") | labelled(2, "dog") | {"3.jpg": IMAGE}
    source = shard(tmp_path / "imgs.tar", members)
    pack = packed(source, tmp_path / "pack")
    assert pack.classes == ["cat", "dog"]
    assert [(k, label) for k, label in zip(pack.keys, pack.labels.tolist(), strict=True)] == [
        ("3.jpg", -1),
        ("0001.jpg", 0),
        ("0000.jpg", 1),
        ("0002.jpg", 1),
    ]
    assert open_source(source).scan().warnings == ["1 samples have no .cls file"]


def test_without_labels_folders_are_classes(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "imgs")
    paths = sorted(folder.rglob("*.*"))
    for s in range(2):
        members = {str(p.relative_to(folder)): p.read_bytes() for p in paths[s::2]}
        captions = {f"{name.partition('.')[0]}.txt": b"text" for name in members}
        shard(tmp_path / "shards" / f"{s}.tar", members | captions)
        for name, caption in captions.items():
            (folder / name).write_bytes(caption)
    pack = packed(tmp_path / "shards", tmp_path / "a.pack")
    of_folder = packed(folder, tmp_path / "b.pack", fields=(Pattern("txt", "{stem}.txt"),))
    assert pack.content_digest == of_folder.content_digest


def test_members_of_a_sample_need_not_be_neighbours(tmp_path: Path) -> None:
    members = [("1.jpg", IMAGE), ("2.cls", b"1"), ("2.jpg", IMAGE), ("1.cls", b"0")]
    pack = packed(shard(tmp_path / "imgs.tar", members), tmp_path / "pack")
    assert dict(zip(pack.keys, pack.labels.tolist(), strict=True)) == {"1.jpg": 0, "2.jpg": 1}


# Keys


def test_dots_in_folders_are_no_fields(tmp_path: Path) -> None:
    members = [("v1.5/a/1.jpg", IMAGE), ("v1.5/a/1.cls", b"7")]
    listing = scan(*members, path=tmp_path / "imgs.tar")
    assert listing.files == ["v1.5/a/1.jpg"]
    assert listing.given is not None
    assert listing.given.labels.tolist() == [7]


def test_dots_in_names_are_explained(tmp_path: Path) -> None:
    listing = scan(("22.05.png", IMAGE), ("22.05.txt", b""), path=tmp_path / "imgs.tar")
    assert listing.files == []
    assert listing.rejected == [
        ("22.05.png", "no image field: a key ends at the first dot of the file's name")
    ]


def test_a_compound_field_beside_the_image(tmp_path: Path) -> None:
    listing = scan(("1.jpg", IMAGE), ("1.seg.png", IMAGE), path=tmp_path / "imgs.tar")
    assert listing.files == ["1.jpg"]
    assert [(field.name, field.about.kind) for field in listing.fields] == [("seg_png", "mask")]


def test_upper_case(tmp_path: Path) -> None:
    assert scan(("1.JPG", IMAGE), path=tmp_path / "imgs.tar").files == ["1.JPG"]


def test_a_png_beside_a_jpeg_is_no_image_anywhere(tmp_path: Path) -> None:
    mask = png(photo())
    members = [("1.jpg", IMAGE), ("1.png", mask), ("2.png", mask), ("3.webp", IMAGE)]
    listing = scan(*members, path=tmp_path / "imgs.tar")
    assert listing.files == ["1.jpg", "3.webp"]
    assert [field.name for field in listing.fields] == ["png"]
    assert listing.rejected == [("2.png", "no image field: elsewhere this one is beside a JPEG")]


def test_samples_without_one_image_are_rejected(tmp_path: Path) -> None:
    members = [("1.cls", b"0"), ("2.png", IMAGE), ("2.webp", IMAGE), ("3.jpg", IMAGE)]
    listing = scan(*members, path=tmp_path / "imgs.tar")
    assert listing.files == ["3.jpg"]
    assert listing.rejected == [("1.cls", "no image field"), ("2.png", "several image fields")]


def test_junk_and_odd_members(tmp_path: Path) -> None:
    members = [("._1.jpg", b""), ("../2.jpg", IMAGE), ("/3.jpg", IMAGE), ("4.jpg", IMAGE)]
    listing = scan(*members, ("README", b""), path=tmp_path / "imgs.tar")
    assert listing.files == ["4.jpg"]
    assert listing.left_out == {"hidden file": 1, "no extension": 1}
    assert listing.rejected == [("../2.jpg", "name with .."), ("/3.jpg", "absolute name")]


# Errors


def test_a_key_in_two_shards_is_an_error(tmp_path: Path) -> None:
    for s, members in enumerate((labelled(1, 0), labelled(1, 1))):
        shard(tmp_path / "shards" / f"{s}.tar", members)
    with pytest.raises(SourceError, match=r"0001.*in two shards, 0\.tar and 1\.tar"):
        open_source(tmp_path / "shards").scan()


def test_a_field_twice_is_an_error(tmp_path: Path) -> None:
    members = [("1.jpg", IMAGE), ("1.cls", b"0"), ("1.jpg", IMAGE)]
    with pytest.raises(SourceError, match=r"'jpg' is there twice, at byte 512 and at byte \d+"):
        scan(*members, path=tmp_path / "imgs.tar")


def test_missing_shards_are_named(shards: Path) -> None:
    with pytest.raises(SourceError, match=r"2 of 4 shards are missing, .*imgs-002\.tar"):
        open_source(shards / "imgs-{000..003}.tar").scan()


def test_a_pattern_of_too_many_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="names more than 100000 shards"):
        open_source(tmp_path / "imgs-{0..99}-{0..9999999999}.tar").scan()


def test_a_cut_shard_is_named(shards: Path) -> None:
    path = shards / "imgs-001.tar"
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(SourceError, match=r"imgs-001\.tar.*cut off"):
        open_source(shards).scan()


@pytest.mark.parametrize("data", [b"\x80\0\1", b"x" * 2000])
def test_a_cls_that_is_no_label(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SourceError, match="neither a number nor a name"):
        scan(("1.jpg", IMAGE), ("1.cls", data), path=tmp_path / "imgs.tar")


# Detection


def test_a_folder_of_class_archives_is_not_taken_for_shards(tmp_path: Path) -> None:
    """They would lose their labels; --from webdataset says that they are shards."""
    for name in ("cat", "dog"):
        shard(tmp_path / "imgs" / f"{name}.tar", {f"{name}_1.jpg": IMAGE, f"{name}_2.jpg": IMAGE})
    with pytest.raises(SourceError, match=r"no image found; .*\.tar"):
        packed(tmp_path / "imgs", tmp_path / "pack")
    assert len(open_source(tmp_path / "imgs", "webdataset").scan().files) == 4


def test_a_folder_with_archives_beside_images_is_a_folder(shards: Path) -> None:
    (shards / "cat").mkdir()
    (shards / "cat" / "1.jpg").write_bytes(IMAGE)
    assert open_source(shards).scan().files == ["cat/1.jpg"]


def test_a_tar_read_as_a_tree_tells_of_labels(shards: Path) -> None:
    (warning,) = open_source(shards / "imgs-000.tar", "tar").scan().warnings
    assert "--from webdataset" in warning


def test_the_command_line(shards: Path, tmp_path: Path) -> None:
    source = shards / "imgs-{000..001}.tar"
    out = tmp_path / "pack"
    command = ["convert", source, "--to", "lmdb", "-o", out, "--from", "webdataset"]
    result = CliRunner().invoke(main, [*map(str, command), "--split", "train=0.5,val=0.5"])
    assert result.exit_code == 0, result.output
    assert "train 3, val 3" in result.output


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("x/imgs-{000..099}.tar", "imgs.lmdb"),
        ("x/{000..099}.tar", "x.lmdb"),
        ("/{000..099}.tar", "pack.lmdb"),
        ("imgs.tar.gz", "imgs.lmdb"),
        ("imgs.TGZ", "imgs.lmdb"),
        ("v1.5.zip", "v1.5.lmdb"),
        ("train.csv", "train.lmdb"),
        ("imgs.hdf5", "imgs.lmdb"),
        ("imgs.v2", "imgs.v2.lmdb"),
    ],
)
def test_default_names(source: str, name: str) -> None:
    assert default_destination(Path(source), "lmdb").name == name


def test_a_shard_that_changes_meanwhile_is_an_error(shards: Path) -> None:
    source = open_source(shards)
    path = source.scan().files[0]
    os.utime(shards / "imgs-000.tar", ns=(0, 0))
    with pytest.raises(SourceError, match="changed"):
        source.read(path)
