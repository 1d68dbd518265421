"""convert: what gets into a pack, and what an unfinished run leaves and goes on from."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import class_folder, in_jpeg_header, jpeg, jpeg_segment, photo, png, write
from PIL import Image, ImageOps

import readers
from packer import convert as convert_module
from packer import staging
from packer.convert import Summary, convert
from packer.estimate import estimate
from packer.images.pixels import PixelOptions
from packer.options import Options
from packer.verify import verify
from readers.errors import DestinationError, NotAPack, RejectsError, SourceError
from readers.manifest import Manifest

IMAGE = jpeg(photo())
SHARD_BYTES = 4000  # several shards for a dozen small images


def pack(source: Path, out: Path, format_name: str = "memmap", **options: Any) -> Summary:
    """convert with few words: `options` go to it or to its Options."""
    of_run = {"threads", "overwrite", "force", "strict", "progress"}
    run = {name: options.pop(name) for name in of_run & set(options)}
    plan = Options(format_name, **{"shard_bytes": SHARD_BYTES, **options})
    return convert(source, out, plan, **{"threads": 2, **run})


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def is_whole(out: Path) -> bool:
    return verify(out, decode_images=True, threads=1).ok


def rejected(out: Path) -> dict[str, str]:
    """Reasons by key, as in rejected.jsonl."""
    rows = map(json.loads, (out / "rejected.jsonl").read_text("ascii").splitlines())
    return {row["key"]: row["reason"] for row in rows}


class Stopped(BaseException):
    """As KeyboardInterrupt, whenever a test wants it."""


def stop_after(num_files: int) -> Callable[[int, int, int], None]:
    """A progress callback that interrupts the run."""

    def progress(num_done: int, num_bytes: int, num_total: int) -> None:
        if num_done >= num_files:
            raise Stopped

    return progress


def interrupted(source: Path, out: Path, num_files: int, **options: Any) -> Path:
    """The staging folder of a run that was stopped after so many files."""
    with pytest.raises(Stopped):
        pack(source, out, progress=stop_after(num_files), **options)
    assert not out.exists()
    return out.with_name(out.name + ".partial")


@pytest.fixture
def imgs(tmp_path: Path) -> Path:
    """A class folder that a test may change: 40 images."""
    return class_folder(tmp_path / "imgs", num_classes=4, per_class=10)


# What is in a pack


def test_the_digest_is_the_same_in_every_format_with_any_threads_and_shards(
    source: Path, tmp_path: Path
) -> None:
    digests = set()
    for format_name in readers.formats.names():
        for threads, shard_bytes in ((1, 1), (2, 4000), (7, 10_000), (2, 1 << 30)):
            out = tmp_path / f"{format_name}-{threads}-{shard_bytes}"
            summary = pack(source, out, format_name, threads=threads, shard_bytes=shard_bytes)
            assert summary.num_shards > 1 or shard_bytes > 4000
            assert summary.num_samples == 12
            digests.add(summary.content_digest)
    assert len(digests) == 1


def test_the_order_in_which_files_were_made_is_of_no_matter(
    source: Path, tmp_path: Path, format_name: str
) -> None:
    names = sorted(files(source))
    packs = []
    for i, order in enumerate((names, names[::-1], names[::2] + names[1::2])):
        copy = tmp_path / f"copy{i}"
        for name in order:
            write(copy / name, (source / name).read_bytes())
        pack(copy, tmp_path / f"pack{i}", format_name)
        packs.append(files(tmp_path / f"pack{i}"))
    for other in packs[1:]:
        assert {name for name in other if other[name] != packs[0][name]} == {"manifest.json"}


def test_the_time_is_of_no_matter(source: Path, tmp_path: Path) -> None:
    for format_name in readers.formats.names():
        pack(source, tmp_path / f"early.{format_name}", format_name)
    time.sleep(1.1)  # HDF5 would store it in seconds
    for format_name in readers.formats.names():
        pack(source, tmp_path / f"late.{format_name}", format_name)
        shards = [
            files(tmp_path / f"{when}.{format_name}" / "shards") for when in ("early", "late")
        ]
        assert shards[0] == shards[1]


def test_bytes_are_stored_unchanged(source: Path, pack_path: Path) -> None:
    opened = readers.open(pack_path)
    assert {key: opened.read(i) for i, key in enumerate(opened.keys)} == files(source)


def test_the_index_holds_the_upright_size_and_the_orientation(
    tmp_path: Path, format_name: str
) -> None:
    for orientation in range(1, 9):
        data = jpeg(photo(orientation, 40, 24), orientation)
        write(tmp_path / "imgs" / "a" / f"{orientation}.jpg", data)
    pack(tmp_path / "imgs", tmp_path / "pack", format_name)
    opened = readers.open(tmp_path / "pack")
    assert opened.index["orientation"].tolist() == [*range(1, 9)]
    for i in range(8):
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(opened.read(i))))
        stated = (int(opened.index["width"][i]), int(opened.index["height"][i]))
        assert stated == image.size
        assert np.array_equal(opened[i].image, np.asarray(image))


def test_names_of_any_bytes_are_kept(tmp_path: Path, format_name: str) -> None:
    names = [b"caf\xe9", "\u732b".encode(), b"a b", b"\xf0\x9f\x90\x88", b"new\nline", b'"quote"']
    for name in names:
        write(tmp_path / "imgs" / os.fsdecode(name) / os.fsdecode(name + b".jpg"), IMAGE)
    pack(tmp_path / "imgs", tmp_path / "pack", format_name)
    opened = readers.open(tmp_path / "pack")
    assert [os.fsencode(key) for key in opened.keys] == sorted(
        n + b"/" + n + b".jpg" for n in names
    )
    assert [os.fsencode(name) for name in opened.classes] == sorted(names)
    assert is_whole(tmp_path / "pack")


def test_a_missing_end_marker_is_added_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "a" / "1.jpg", IMAGE[:-2])
    summary = pack(tmp_path / "imgs", tmp_path / "pack")
    assert readers.open(tmp_path / "pack").read(0) == IMAGE
    assert summary.warnings == {"a JPEG without its end marker, one was added": 1}
    assert is_whole(tmp_path / "pack")
    with pytest.raises(RejectsError, match="image data missing"):
        pack(tmp_path / "imgs", tmp_path / "pack2", check="header")


def test_check_header_misses_what_only_decoding_finds(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "a" / "1.jpg", IMAGE)
    write(tmp_path / "imgs" / "a" / "2.jpg", IMAGE[:-400] + b"\xff\xd9")
    assert pack(tmp_path / "imgs", tmp_path / "decode").rejected == {"image data missing": 1}
    assert pack(tmp_path / "imgs", tmp_path / "header", check="header").rejected == {}


def test_more_than_99999_shards_keep_their_names(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = convert_module.ShardSequence

    def far_on(*args: Any, number: int, **options: Any) -> Any:
        return original(*args, number=number + 99_998, **options)

    monkeypatch.setattr(convert_module, "ShardSequence", far_on)
    pack(source, tmp_path / "pack", shard_bytes=1)
    names = [shard.name for shard in Manifest.load(tmp_path / "pack").shards]
    assert names[:4] == ["99998", "99999", "100000", "100001"]
    assert is_whole(tmp_path / "pack")


def test_a_pack_has_no_file_of_a_try_that_was_stopped_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index has a column of odd images, and its lists are of copies in two classes."""

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    for key in ("a/1.png", "b/1.png"):
        write(tmp_path / "imgs" / key, png(np.dstack([photo(), photo()[..., :1]])))
    how: dict[str, Any] = {"pixels": PixelOptions(keep_bytes=True)}
    with monkeypatch.context() as patch:
        patch.setattr(staging.Staging, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(tmp_path / "imgs", tmp_path / "pack", **how)
    left = files(tmp_path / "pack.partial" / "pack").keys()
    assert {"index/image.odd.npy", "duplicates.jsonl"} <= left
    for i, key in enumerate(("a/1.png", "b/1.png")):
        write(tmp_path / "imgs" / key, png(photo(i)))
    pack(tmp_path / "imgs", tmp_path / "pack", **how)
    manifest = Manifest.load(tmp_path / "pack")
    of_shards = [file for shard in manifest.shards for file in shard.files]
    listed = {file.name for file in (*manifest.files, *of_shards)} | {"manifest.json"}
    assert files(tmp_path / "pack").keys() == listed


# Rejects


@pytest.fixture
def with_rejects(imgs: Path) -> Path:
    """The class folder and five files that cannot be packed."""
    write(imgs / "class_0" / "cut.jpg", IMAGE[:-300])
    write(imgs / "class_0" / "empty.jpg", b"")
    write(imgs / "class_1" / "text.jpg", b"<html>")
    write(imgs / "class_3" / "zero.png", bytes(1000))
    (imgs / "class_3" / "link.jpg").symlink_to("nowhere.jpg")
    write(imgs / "class_3" / "notes.txt", b"not looked at")
    return imgs


REJECTED = {
    "class_0/cut.jpg": "image data missing",
    "class_0/empty.jpg": "empty file",
    "class_1/text.jpg": "not an image",
    "class_3/link.jpg": "link to nothing",
    "class_3/zero.png": "all bytes are zero",
}


def test_rejects_are_listed_and_counted(
    with_rejects: Path, tmp_path: Path, format_name: str
) -> None:
    summary = pack(with_rejects, tmp_path / "pack", format_name)
    assert rejected(tmp_path / "pack") == REJECTED
    assert summary.rejected == dict.fromkeys(sorted(REJECTED.values()), 1)
    assert sum(summary.rejected.values()) == Manifest.load(tmp_path / "pack").num_rejected == 5
    assert set(summary.rejected_files) == set(REJECTED)
    assert summary.left_out == {"not an image: .txt": 1}
    assert summary.num_samples == 40
    assert not set(readers.open(tmp_path / "pack").keys) & set(REJECTED)
    assert is_whole(tmp_path / "pack")


def test_strict_publishes_nothing(with_rejects: Path, tmp_path: Path) -> None:
    with pytest.raises(RejectsError, match="5 files were rejected and --strict was given"):
        pack(with_rejects, tmp_path / "pack", strict=True)
    assert not (tmp_path / "pack").exists()
    with pytest.raises(NotAPack, match="unfinished run"):
        readers.open(tmp_path / "pack.partial")
    summary = pack(with_rejects, tmp_path / "pack")
    assert summary.num_resumed == 40
    assert rejected(tmp_path / "pack") == REJECTED


def test_nothing_but_rejects_publishes_nothing(tmp_path: Path) -> None:
    for i in range(5):
        write(tmp_path / "imgs" / "a" / f"{i}.jpg", b"")
    with pytest.raises(RejectsError, match=r"every file was rejected .*a/0\.jpg: empty file.* 2 m"):
        pack(tmp_path / "imgs", tmp_path / "pack")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["imgs"]  # nor is in the way


@pytest.mark.parametrize("shard_bytes", [1, SHARD_BYTES, 1 << 30])
def test_rejects_at_any_place_belong_to_the_list(tmp_path: Path, shard_bytes: int) -> None:
    for i in range(9):
        write(tmp_path / "imgs" / "a" / f"{i}.jpg", b"" if i in (0, 1, 4, 8) else IMAGE)
    pack(tmp_path / "imgs", tmp_path / "pack", shard_bytes=shard_bytes)
    assert list(rejected(tmp_path / "pack")) == [f"a/{i}.jpg" for i in (0, 1, 4, 8)]


def test_a_mended_file_is_packed_when_the_run_goes_on(with_rejects: Path, tmp_path: Path) -> None:
    with pytest.raises(RejectsError):
        pack(with_rejects, tmp_path / "pack", strict=True)
    for key in REJECTED:
        (with_rejects / key).unlink()
        write(with_rejects / key, IMAGE)
    # The link is a file now, which makes another listing; the others alone are just mended.
    (with_rejects / "class_3" / "link.jpg").unlink()
    (with_rejects / "class_3" / "link.jpg").symlink_to("nowhere.jpg")
    summary = pack(with_rejects, tmp_path / "pack")
    assert summary.num_samples == 44
    assert rejected(tmp_path / "pack") == {"class_3/link.jpg": "link to nothing"}
    assert is_whole(tmp_path / "pack")


# The destination


def test_an_existing_destination_is_refused(imgs: Path, tmp_path: Path) -> None:
    pack(imgs, tmp_path / "pack")
    before = files(tmp_path / "pack")
    with pytest.raises(DestinationError, match=r"pack: exists; add --overwrite to replace it"):
        pack(imgs, tmp_path / "pack")
    assert files(tmp_path / "pack") == before


def test_overwrite_replaces_a_pack(imgs: Path, source: Path, tmp_path: Path) -> None:
    pack(imgs, tmp_path / "pack", "lmdb")
    summary = pack(source, tmp_path / "pack", "hdf5", overwrite=True)
    assert readers.open(tmp_path / "pack").content_digest == summary.content_digest
    assert is_whole(tmp_path / "pack")
    assert {path.name for path in tmp_path.iterdir()} == {"imgs", "pack"}


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"notes.txt": b"mine"},
        {"manifest.json": b'{"name": "a web extension"}', "icon.png": b""},
        {"manifest.json": b"", "icon.png": b""},
        {"1.jpg": IMAGE},
    ],
)
def test_a_folder_that_is_no_pack_is_never_touched(
    source: Path, tmp_path: Path, content: dict[str, bytes]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, data in content.items():
        write(out / name, data)
    with pytest.raises(DestinationError, match="exists and is not a pack"):
        pack(source, out, overwrite=True)
    assert files(out) == content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_or_a_link_is_never_overwritten(source: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "pack")
    write(tmp_path / "file", b"mine")
    (tmp_path / "link").symlink_to("pack")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = files(tmp_path)
    for name in ("file", "link", "dangling"):
        with pytest.raises(DestinationError, match="exists"):
            pack(source, tmp_path / name, overwrite=True)
    assert files(tmp_path) == before


def test_the_old_pack_stays_when_the_new_run_fails(
    imgs: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack(source, tmp_path / "pack")
    before = files(tmp_path / "pack")
    with pytest.raises(Stopped):
        pack(imgs, tmp_path / "pack", overwrite=True, progress=stop_after(20))
    assert files(tmp_path / "pack") == before
    write(imgs / "class_0" / "bad.jpg", b"")
    with pytest.raises(RejectsError):
        pack(imgs, tmp_path / "pack", overwrite=True, strict=True)
    assert files(tmp_path / "pack") == before


def test_a_backup_beside_the_pack_is_not_ours(source: Path, imgs: Path, tmp_path: Path) -> None:
    pack(source, tmp_path / "pack")
    shutil.copytree(tmp_path / "pack", tmp_path / "pack.old")
    write(tmp_path / "pack.new" / "notes.txt", b"mine")
    before = files(tmp_path / "pack.old")
    pack(imgs, tmp_path / "pack", overwrite=True)
    assert files(tmp_path / "pack.old") == before
    assert files(tmp_path / "pack.new") == {"notes.txt": b"mine"}


def test_a_destination_that_appears_during_the_run_is_not_replaced(
    source: Path, tmp_path: Path
) -> None:
    def progress(num_done: int, num_bytes: int, num_total: int) -> None:
        write(tmp_path / "pack" / "mine.txt", b"mine")

    with pytest.raises(DestinationError, match="exists"):
        pack(source, tmp_path / "pack", progress=progress)
    assert files(tmp_path / "pack") == {"mine.txt": b"mine"}
    shutil.rmtree(tmp_path / "pack")
    assert pack(source, tmp_path / "pack").num_resumed == 12


def test_a_pack_is_not_written_into_its_source(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(imgs)
    monkeypatch.chdir(imgs)
    for out in (Path("imgs.memmap"), imgs / "class_0" / "pack", tmp_path / "x" / ".." / "imgs/p"):
        with pytest.raises(DestinationError, match="lies inside the source"):
            pack(Path("."), out)
    assert files(imgs) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pack_does_not_replace_its_source(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    pack(source, Path("imgs.memmap"))
    write(Path("imgs.memmap/inside/cat/1.jpg"), IMAGE)
    Path("link").symlink_to("imgs.memmap")
    before = files(tmp_path)
    for again in (Path("imgs.memmap"), tmp_path / "imgs.memmap", Path("link")):
        with pytest.raises(DestinationError, match="is the source itself; choose another name"):
            pack(again, Path("imgs.memmap"), overwrite=overwrite)
    with pytest.raises(DestinationError, match="holds the source; choose another name"):
        pack(Path("imgs.memmap/inside"), Path("imgs.memmap"), overwrite=overwrite)
    with pytest.raises(DestinationError, match="lies inside the source"):
        pack(tmp_path, Path("imgs.memmap"), overwrite=overwrite)
    assert files(tmp_path) == before


@pytest.mark.parametrize("out", [".", "..", "/"])
def test_a_destination_needs_a_name(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    pack(source, tmp_path / "pack")
    monkeypatch.chdir(tmp_path / "pack")
    with pytest.raises(DestinationError):
        pack(source, Path(out), overwrite=True)


@pytest.mark.parametrize("out", ["file/pack", "x" * 300])
def test_a_destination_that_cannot_be_made_is_an_error(
    source: Path, tmp_path: Path, out: str
) -> None:
    write(tmp_path / "file", b"")
    with pytest.raises(DestinationError, match="cannot be written"):
        pack(source, tmp_path / out)


# Going on


@pytest.mark.parametrize("num_files", [0, 1, 9, 17, 39, 40])
def test_an_interrupted_run_goes_on_to_the_very_same_pack(
    imgs: Path, tmp_path: Path, format_name: str, num_files: int
) -> None:
    unbroken = pack(imgs, tmp_path / "unbroken", format_name)
    partial = interrupted(imgs, tmp_path / "pack", num_files, format_name=format_name)
    num_kept = len(list((partial / "done").iterdir()))
    summary = pack(imgs, tmp_path / "pack", format_name)
    assert summary.content_digest == unbroken.content_digest
    assert (summary.num_resumed > 0) == (num_kept > 0)
    assert num_kept > 0 or num_files < 39
    ours, theirs = files(tmp_path / "pack"), files(tmp_path / "unbroken")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] in ([], ["manifest.json"])
    assert not partial.exists()


def test_a_run_may_be_interrupted_again_and_again(imgs: Path, tmp_path: Path) -> None:
    unbroken = pack(imgs, tmp_path / "unbroken")
    for num_files in (10, 20, 20, 30, 35):
        interrupted(imgs, tmp_path / "pack", num_files)
    assert pack(imgs, tmp_path / "pack").content_digest == unbroken.content_digest


def test_an_unfinished_run_is_no_pack(imgs: Path, tmp_path: Path) -> None:
    partial = interrupted(imgs, tmp_path / "pack", 20)
    for path in (partial, tmp_path / "pack"):
        with pytest.raises(NotAPack):
            readers.open(path)


def test_finished_shards_are_not_read_again(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(imgs, tmp_path / "pack", 30)
    num_read = 0
    original = convert_module.prepare_all

    def counting(*args: Any, **options: Any) -> Iterator[Any]:
        nonlocal num_read
        for batch in original(*args, **options):
            num_read += len(batch)
            yield batch

    monkeypatch.setattr(convert_module, "prepare_all", counting)
    summary = pack(imgs, tmp_path / "pack")
    assert summary.num_resumed >= 20
    assert num_read == 40 - summary.num_resumed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format_name": "lmdb"}, "format 'memmap', not 'lmdb'"),
        ({"shard_bytes": 5000}, "shard_size 4000, not 5000"),
        ({"check": "header"}, "check 'decode', not 'header'"),
        ({"layout": "flat"}, "layout 'auto', not 'flat'"),
    ],
)
def test_going_on_with_other_options_is_refused(
    imgs: Path, tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    partial = interrupted(imgs, tmp_path / "pack", 20)
    before = files(partial)
    with pytest.raises(DestinationError, match="an unfinished run is here") as error:
        pack(imgs, tmp_path / "pack", **options)
    assert sentence in str(error.value)
    assert "--overwrite to start anew" in str(error.value)
    assert files(partial) == before
    assert pack(imgs, tmp_path / "pack").num_resumed > 0


def test_a_dry_run_refuses_what_the_run_would(imgs: Path, tmp_path: Path) -> None:
    def dry_run(out: str, format_name: str, overwrite: bool = False) -> int:
        options = Options(format_name, shard_bytes=4000)
        planned = estimate(
            imgs, tmp_path / out, options, threads=1, overwrite=overwrite, force=False
        )
        return planned.num_files

    partial = interrupted(imgs, tmp_path / "pack", 20)
    write(tmp_path / "other.partial" / "notes.txt", b"mine")
    before = files(tmp_path)
    with pytest.raises(DestinationError, match="an unfinished run is here that has format"):
        dry_run("pack", "lmdb")
    with pytest.raises(DestinationError, match=r"holds notes\.txt, and no dspack run"):
        dry_run("other", "memmap")
    assert dry_run("pack", "lmdb", overwrite=True) == dry_run("pack", "memmap") == 40
    assert files(tmp_path) == before
    assert partial.exists()


@pytest.mark.parametrize("change", ["added", "removed", "renamed"])
def test_going_on_with_another_listing_is_refused(imgs: Path, tmp_path: Path, change: str) -> None:
    interrupted(imgs, tmp_path / "pack", 20)
    path = imgs / "class_0" / "0.jpg"
    if change == "added":
        write(path.with_name("new.jpg"), IMAGE)
    elif change == "removed":
        path.unlink()
    else:
        path.rename(path.with_name("00.jpg"))
    with pytest.raises(DestinationError, match="packed another list of files"):
        pack(imgs, tmp_path / "pack")
    summary = pack(imgs, tmp_path / "pack", overwrite=True)
    assert summary.num_resumed == 0
    assert summary.content_digest == pack(imgs, tmp_path / "afresh").content_digest
    assert is_whole(tmp_path / "pack")


@pytest.mark.parametrize("change", ["content", "time"])
def test_a_file_that_changed_is_packed_again(imgs: Path, tmp_path: Path, change: str) -> None:
    partial = interrupted(imgs, tmp_path / "pack", 40)
    assert len(list((partial / "done").iterdir())) > 3
    path = imgs / "class_1" / "3.jpg"
    if change == "content":
        status = path.stat()
        write(path, IMAGE)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.utime(path, (0, 0))
    summary = pack(imgs, tmp_path / "pack")
    assert 0 < summary.num_resumed < 14  # what was finished before the file's own shard
    assert summary.content_digest == pack(imgs, tmp_path / "afresh").content_digest
    assert is_whole(tmp_path / "pack")


def test_nothing_of_dropped_shards_gets_into_the_pack(imgs: Path, tmp_path: Path) -> None:
    interrupted(imgs, tmp_path / "pack", 40)
    for path in imgs.rglob("*.*"):
        write(path, jpeg(photo(1, 8, 8)))
    summary = pack(imgs, tmp_path / "pack")
    pack(imgs, tmp_path / "afresh")
    assert summary.num_resumed == 0
    assert files(tmp_path / "pack").keys() == files(tmp_path / "afresh").keys()
    assert is_whole(tmp_path / "pack")


def test_a_record_does_not_outlive_its_shard(imgs: Path, tmp_path: Path) -> None:
    partial = interrupted(imgs, tmp_path / "pack", 40)
    for path in (partial / "pack" / "shards").glob("00001.*"):
        path.unlink()
    interrupted(imgs, tmp_path / "pack", 0)  # found out, and stopped at once
    assert [path.name for path in (partial / "done").iterdir()] == ["00000.npz"]
    assert pack(imgs, tmp_path / "pack").num_samples == 40
    assert is_whole(tmp_path / "pack")


@pytest.mark.parametrize("content", [b"", b"PK\3\4 junk", b"\x93NUMPY junk"])
def test_a_record_that_cannot_be_read_counts_as_not_finished(
    imgs: Path, tmp_path: Path, content: bytes
) -> None:
    partial = interrupted(imgs, tmp_path / "pack", 40)
    (partial / "done" / "00001.npz").write_bytes(content)
    summary = pack(imgs, tmp_path / "pack")
    assert 0 < summary.num_resumed < 40
    assert is_whole(tmp_path / "pack")


def test_a_second_run_is_refused_while_one_is_at_work(imgs: Path, tmp_path: Path) -> None:
    num_refused = 0

    def start_another(num_done: int, num_bytes: int, num_total: int) -> None:
        nonlocal num_refused
        for overwrite in (False, True):
            with pytest.raises(DestinationError, match="another dspack is writing this pack"):
                pack(imgs, tmp_path / "pack", overwrite=overwrite)
            num_refused += 1

    assert pack(imgs, tmp_path / "pack", progress=start_another).num_samples == 40
    assert num_refused > 2
    assert is_whole(tmp_path / "pack")


@pytest.mark.parametrize("name", ["notes.txt", "done/notes.txt", "old/notes.txt"])
def test_a_stranger_in_the_way_of_the_staging_folder_is_not_touched(
    source: Path, tmp_path: Path, name: str
) -> None:
    write(tmp_path / "pack.partial" / name, b"mine")
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match=r"pack\.partial: holds .*, and no dspack run"):
            pack(source, tmp_path / "pack", overwrite=overwrite)
    assert files(tmp_path / "pack.partial") == {name: b"mine"}


def test_a_source_that_fails_leaves_a_run_to_go_on_with(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = pack(imgs, tmp_path / "unbroken")
    original = os.open

    def vanished(path: Any, *args: Any, **options: Any) -> int:
        if str(path).endswith("class_3/5.jpg"):
            raise FileNotFoundError(errno.ENOENT, "gone")
        return original(path, *args, **options)

    monkeypatch.setattr(os, "open", vanished)
    with pytest.raises(SourceError, match=r"class_3/5\.jpg: the file vanished"):
        pack(imgs, tmp_path / "pack")
    monkeypatch.undo()
    summary = pack(imgs, tmp_path / "pack")
    assert summary.num_resumed > 0
    assert summary.content_digest == unbroken.content_digest


def test_whoever_does_not_take_the_progress_is_not_the_destination(
    imgs: Path, tmp_path: Path
) -> None:
    def broken(num_done: int, num_bytes: int, num_total: int) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    with pytest.raises(BrokenPipeError):
        pack(imgs, tmp_path / "pack", progress=broken)


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB, filled but for 128 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=2m") != 0:
        pytest.skip("only root may mount a small file system")
    try:
        (folder / "filler").write_bytes(bytes((2 << 20) - (128 << 10)))
        yield folder
    finally:
        libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH


@pytest.mark.parametrize("shard_bytes", [20_000, 1 << 30])
def test_a_full_disk_is_an_error_and_the_run_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, format_name: str, shard_bytes: int
) -> None:
    imgs = class_folder(tmp_path / "many", num_classes=8, per_class=10)
    with pytest.raises(DestinationError, match=r"cannot .*writ.*make room"):
        pack(imgs, small_disk / "pack", format_name, shard_bytes=shard_bytes)
    assert not (small_disk / "pack").exists()
    (small_disk / "filler").unlink()
    summary = pack(imgs, small_disk / "pack", format_name, shard_bytes=shard_bytes)
    assert (summary.num_resumed > 0) == (shard_bytes == 20_000)
    unbroken = pack(imgs, tmp_path / "unbroken", format_name, shard_bytes=shard_bytes)
    assert summary.content_digest == unbroken.content_digest
    assert is_whole(small_disk / "pack")


def test_no_full_disk_ends_the_process(small_disk: Path, tmp_path: Path, format_name: str) -> None:
    imgs = class_folder(tmp_path / "many", num_classes=2, per_class=10)
    for path in imgs.rglob("*.jpg"):
        path.with_suffix(".txt").write_bytes(bytes(3000))
    command = [sys.executable, "-m", "packer.cli", "convert", imgs, "--to", format_name]
    command += ["-o", small_disk / "pack", "--field", "t={stem}.txt", "--shard-size", "20kB"]
    for num_free in (30_000, 80_000):
        (small_disk / "filler").write_bytes(bytes((2 << 20) - num_free))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 6, done.stderr
        assert re.fullmatch("dspack: .*make room.*\n", done.stderr)


@pytest.mark.parametrize("num_good", [0, 1, 2, 5, 8, 11])
def test_a_disk_that_fills_up_at_any_sync_is_an_error_and_the_run_goes_on(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_good: int
) -> None:
    original = os.fsync
    num_left = num_good

    def full(descriptor: int) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DestinationError, match="No space left on device"):
        pack(imgs, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
    monkeypatch.undo()
    assert pack(imgs, tmp_path / "pack").num_samples == 40
    assert is_whole(tmp_path / "pack")


def test_everything_is_synced_before_the_pack_gets_its_name(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, Path.rename
    at_rename: set[str] = set()

    def note_fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    def note_rename(path: Path, target: Path) -> Path:
        at_rename.update(synced)
        synced.clear()
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    pack(imgs, tmp_path / "pack")
    folder = str(tmp_path / "pack.partial" / "pack")
    written = {f"{folder}/{name}" for name in files(tmp_path / "pack")}
    written = {name + ".new" if name.endswith("manifest.json") else name for name in written}
    assert {*written, folder, f"{folder}/index", f"{folder}/shards"} <= at_rename
    assert synced == [str(tmp_path)]  # and the new name itself, after it


def test_a_staging_folder_of_another_kind_of_file_system_may_not_lock(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*args: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(staging.fcntl, "flock", no_locks)
    with pytest.raises(DestinationError, match="No locks available"):
        pack(source, tmp_path / "pack")


def test_warnings_are_counted_and_survive_an_interruption(tmp_path: Path) -> None:
    for i in range(20):
        data = in_jpeg_header(IMAGE, jpeg_segment(0xE1, b"Exif\0\0broken"))
        write(tmp_path / "imgs" / "a" / f"{i:02}.jpg", data if i % 4 == 0 else IMAGE)
    write(tmp_path / "imgs" / "a" / "z.png", png(photo()))
    interrupted(tmp_path / "imgs", tmp_path / "pack", 16)
    summary = pack(tmp_path / "imgs", tmp_path / "pack")
    assert summary.num_resumed > 0
    assert summary.warnings == {"broken EXIF, taken as upright": 5}
    assert Manifest.load(tmp_path / "pack").made["warnings"] == summary.warnings


def test_a_failed_early_flush_fails_the_run(
    imgs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, prefix: str) -> None:
        raise OSError(errno.EIO, "lost")

    monkeypatch.setattr("packer.shards._FLUSH_BYTES", 1)
    monkeypatch.setattr("packer.shards.ShardSequence._flush_shard", fail)
    with pytest.raises(DestinationError, match="Input/output error"):
        pack(imgs, tmp_path / "pack")
    assert not (tmp_path / "pack").exists()
    monkeypatch.undo()
    assert pack(imgs, tmp_path / "pack").num_resumed == 0


def test_overwriting_leaves_what_is_no_part_of_a_pack(tmp_path: Path) -> None:
    source = class_folder(tmp_path / "imgs", num_classes=1, per_class=1)
    out = tmp_path / "out"
    convert(source, out, Options("memmap"), threads=1)
    for name in ("notes.txt", "shards/notes.txt"):
        mine = write(out / name, b"mine")
        with pytest.raises(DestinationError, match=f"holds {re.escape(name)}"):
            convert(source, out, Options("memmap"), threads=1, overwrite=True)
        assert mine.read_bytes() == b"mine"
        mine.unlink()
    convert(source, out, Options("memmap"), threads=1, overwrite=True)


def test_overwriting_a_pack_with_every_kind_of_file(tmp_path: Path) -> None:
    source = class_folder(tmp_path / "imgs", num_classes=2, per_class=1)
    (image,) = (source / "class_0").iterdir()
    write(source / "class_1" / f"copy{image.suffix}", image.read_bytes())
    write(source / "class_0" / "broken.jpg", b"")
    for format_name in ("lmdb", "hdf5", "memmap"):
        convert(source, tmp_path / "out", Options(format_name), threads=1, overwrite=True)
        assert (tmp_path / "out" / "duplicates.jsonl").stat().st_size > 0
    summary = convert(source, tmp_path / "out", Options("lmdb"), threads=1, overwrite=True)
    assert verify(tmp_path / "out", threads=1).findings == [] and summary.num_samples == 3


def test_a_destination_within_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    """As after a kill at the wrong moment, where one stands in what was the old pack."""
    source = class_folder(tmp_path / "imgs", num_classes=1, per_class=1)
    write(tmp_path / "out.partial" / "plan.json", b"{}")
    with pytest.raises(DestinationError, match="folder of an unfinished run"):
        convert(source, tmp_path / "out.partial" / "out", Options("memmap"), threads=1)


def test_overwriting_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = class_folder(tmp_path / "imgs", num_classes=1, per_class=2)
    out = tmp_path / "out"
    for path in (out, Path("../out"), out / ".." / "out"):
        convert(source, path, Options("memmap"), threads=1, overwrite=True)
        monkeypatch.chdir(out)
        assert len(readers.open(out)) == 2 and not (tmp_path / "out.partial").exists()
