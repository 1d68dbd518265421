"""Sources: the contract of packer/sources/__init__.py, and all that a folder may hold."""

from __future__ import annotations

import errno
import os
import pkgutil
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from images import class_folder, jpeg, photo, write

from packer import sources
from packer.convert import Summary, convert
from packer.images.inspect import Reject
from packer.options import Options
from packer.sources import IMAGE_EXTENSIONS, Source, extension_reason, junk_reason, open_source
from readers.errors import SourceError

IMAGE = jpeg(photo())


def as_folder(tree: Path) -> Path:
    return tree


def as_tar(tree: Path) -> Path:
    return Path(shutil.make_archive(str(tree), "tar", tree))


def as_zip(tree: Path) -> Path:
    return Path(shutil.make_archive(str(tree), "zip", tree))


def as_pack(tree: Path) -> Path:
    out = tree.with_suffix(".pack")
    convert(tree, out, Options("memmap"), threads=1)
    return out


def as_list(tree: Path) -> Path:
    lines = [f"{path},{path.split('/')[0]}" for path in open_source(tree, "folder").scan().files]
    return write(tree / "list.csv", "\n".join(["path,label", *lines, ""]).encode())


def as_webdataset(tree: Path) -> Path:
    shards = tree.with_suffix(".shards")
    shards.mkdir()
    shutil.make_archive(str(shards / "0000"), "tar", tree)
    return shards


# For every module in packer/sources: its kind, and how to turn a tree of files into one.
MAKERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "folder": ("folder", as_folder),
    "tar": ("tar", as_tar),
    "zip_file": ("zip", as_zip),
    "pack": ("pack", as_pack),
    "list_file": ("list", as_list),
    "webdataset": ("webdataset", as_webdataset),
}
MODULES = sorted(module.name for module in pkgutil.iter_modules(sources.__path__))


@pytest.fixture(params=MODULES)
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of source there is: a new module is tested once it has an entry in MAKERS."""
    assert request.param in MAKERS, "a new kind of source needs an entry in MAKERS"
    return MAKERS[request.param][0]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The tree of files that the source holds."""
    tree = class_folder(tmp_path / "tree")
    write(tree / "class_0" / "café €.JPG", IMAGE)
    write(tree / "class_0" / "deep" / "er" / "1.jpg", IMAGE)
    write(tree / "class_0" / "0.txt", b"text")
    write(tree / ".hidden" / "1.jpg", IMAGE)
    write(tree / "class_1" / "Thumbs.db", b"junk")
    return tree


@pytest.fixture
def any_source(kind: str, tree: Path) -> Source:
    """A source of every kind that is the same as the tree."""
    maker = next(maker for name, maker in MAKERS.values() if name == kind)
    return open_source(maker(tree), kind)


def test_the_contract_a_scan_finds_everything(any_source: Source, kind: str, tree: Path) -> None:
    listing = any_source.scan()
    images = {str(path.relative_to(tree)) for path in tree.glob("class_*/**/*.*")}
    images -= {"class_0/0.txt", "class_1/Thumbs.db"}
    assert sorted(listing.files) == sorted(images)
    assert listing.rejected == []
    if listing.given is None:  # labels come from the folders
        folders = {"class_0", "class_0/deep", "class_0/deep/er", "class_1", "class_2"}
        assert set(listing.folders) == folders
    if kind in ("folder", "tar", "zip"):
        assert listing.left_out["not an image: .txt"] == 1
        assert listing.left_out.total() == 3


def test_the_contract_a_read_is_the_file_and_its_stamp(any_source: Source, tree: Path) -> None:
    for path in any_source.scan().files:
        file = any_source.read(path)
        assert file.data == (tree / path).read_bytes()
        assert file.num_bytes == len(file.data)
        assert any_source.stamp(path) == (file.num_bytes, file.modified_ns)


def test_the_contract_many_threads_may_read(any_source: Source, tree: Path) -> None:
    paths = any_source.scan().files * 20
    with ThreadPoolExecutor(8) as pool:
        files = list(pool.map(any_source.read, paths))
        stamps = list(pool.map(any_source.stamp, paths))
    assert [file.data for file in files] == [(tree / path).read_bytes() for path in paths]
    assert stamps == [(file.num_bytes, file.modified_ns) for file in files]


def test_the_contract_every_kind_makes_the_same_pack(
    any_source: Source, kind: str, tree: Path, tmp_path: Path
) -> None:
    without = ("txt",) if kind == "webdataset" else ()  # there it is a field by itself
    options = Options("memmap", source_kind=kind, without_fields=without)
    made = convert(any_source.root, tmp_path / "pack", options, threads=2)
    of_folder = convert(tree, tmp_path / "of folder", Options("memmap"), threads=2)
    assert made.content_digest == of_folder.content_digest


# What is left out


@pytest.mark.parametrize(
    "name",
    [
        *(".git", ".ipynb_checkpoints", "._1.jpg", ".DS_Store", ".1.jpg"),
        *("__MACOSX", "Thumbs.db", "THUMBS.DB", "desktop.ini", "$RECYCLE.BIN", "@eaDir"),
    ],
)
def test_junk_is_counted_and_never_a_class_or_a_sample(tmp_path: Path, name: str) -> None:
    write(tmp_path / "cat" / "1.jpg", IMAGE)
    write(tmp_path / "cat" / name, IMAGE)
    write(tmp_path / f"{name}.d" / "x" / "1.jpg", IMAGE).parent.parent.rename(tmp_path / name)
    listing = open_source(tmp_path).scan()
    assert listing.files == ["cat/1.jpg"]
    assert listing.folders == ["cat"]
    kind = "hidden" if name.startswith(".") else "system junk"
    assert listing.left_out == {f"{kind} file": 1, f"{kind} folder": 1}


def test_names_that_only_resemble_junk_are_not_junk() -> None:
    for name in ("__MACOSX2", "thumbs.db.jpg", "desktop", "a.DS_Store", "_x.jpg"):
        assert junk_reason(name) is None


@pytest.mark.parametrize("extension", sorted(IMAGE_EXTENSIONS))
def test_extensions_are_matched_without_case(extension: str) -> None:
    for name in (f"a.{extension}", f"a.{extension.upper()}", f"a.b.{extension.title()}"):
        assert extension_reason(name) is None


def test_what_is_no_image_is_counted_by_extension(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.JPEG", "c.Png", "1.txt", "2.TXT", "3.xml", "README", "x.jpg.part"):
        write(tmp_path / "cat" / name, IMAGE)
    listing = open_source(tmp_path).scan()
    assert sorted(listing.files) == ["cat/a.jpg", "cat/b.JPEG", "cat/c.Png"]
    assert listing.left_out == {
        "not an image: .txt": 2,
        "not an image: .xml": 1,
        "not an image: .part": 1,
        "no extension": 1,
    }


def test_somebody_elses_manifest_makes_no_pack(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.jpg", IMAGE)
    write(tmp_path / "manifest.json", b'{"name": "an app"}')
    listing = open_source(tmp_path).scan()
    assert (listing.files, listing.folders) == (["cat/1.jpg"], ["cat"])
    assert listing.left_out == {"not an image: .json": 1}


def test_a_fifo_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.jpg", IMAGE)
    os.mkfifo(tmp_path / "cat" / "2.jpg")
    listing = open_source(tmp_path).scan()
    assert listing.files == ["cat/1.jpg"]
    assert listing.left_out == {"not a regular file": 1}


# Links


def test_links_inside_the_source_are_read(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "cat" / "1.jpg", IMAGE)
    (tmp_path / "imgs" / "cat" / "2.jpg").symlink_to("1.jpg")
    (tmp_path / "imgs" / "cat" / "3.jpg").symlink_to(tmp_path / "imgs" / "cat" / "2.jpg")
    source = open_source(tmp_path / "imgs")
    listing = source.scan()
    assert sorted(listing.files) == ["cat/1.jpg", "cat/2.jpg", "cat/3.jpg"]
    assert source.read("cat/3.jpg").data == IMAGE
    assert listing.rejected == []


def test_a_source_may_itself_be_a_link(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "cat" / "1.jpg", IMAGE)
    (tmp_path / "imgs" / "cat" / "2.jpg").symlink_to("1.jpg")
    (tmp_path / "link").symlink_to("imgs")
    source = open_source(tmp_path / "link")
    assert sorted(source.scan().files) == ["cat/1.jpg", "cat/2.jpg"]
    assert source.read("cat/2.jpg").data == IMAGE


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("../../outside.jpg", "link out of the source"),
        ("/dev/zero", "link out of the source"),
        ("../../imgs2/1.jpg", "link out of the source"),  # the name only starts the same
        ("nothing.jpg", "link to nothing"),
        ("odd.jpg", "link to nothing"),  # to itself
        ("x" * 300, "link to nothing"),
        ("../dog", "link to a folder"),
        (".", "link to a folder"),
    ],
)
def test_other_links_are_rejects(tmp_path: Path, target: str, reason: str) -> None:
    write(tmp_path / "imgs" / "cat" / "1.jpg", IMAGE)
    write(tmp_path / "imgs" / "dog" / "1.jpg", IMAGE)
    write(tmp_path / "imgs2" / "1.jpg", IMAGE)
    write(tmp_path / "outside.jpg", IMAGE)
    (tmp_path / "imgs" / "cat" / "odd.jpg").symlink_to(target)
    listing = open_source(tmp_path / "imgs").scan()
    assert sorted(listing.files) == ["cat/1.jpg", "dog/1.jpg"]
    assert sorted(listing.folders) == ["cat", "dog"]
    assert listing.rejected == [("cat/odd.jpg", reason)]


def test_a_cycle_of_links_ends(tmp_path: Path) -> None:
    write(tmp_path / "cat" / "1.jpg", IMAGE)
    (tmp_path / "cat" / "a.jpg").symlink_to("b.jpg")
    (tmp_path / "cat" / "b.jpg").symlink_to("a.jpg")
    (tmp_path / "cat" / "up").symlink_to("..")
    listing = open_source(tmp_path).scan()
    assert listing.files == ["cat/1.jpg"]
    assert sorted(listing.rejected) == [
        ("cat/a.jpg", "link to nothing"),
        ("cat/b.jpg", "link to nothing"),
        ("cat/up", "link to a folder"),
    ]


# Trouble on the way


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packer.retry._SECONDS", 0.0)


@pytest.fixture
def one_file(tmp_path: Path) -> Source:
    write(tmp_path / "imgs" / "cat" / "1.jpg", IMAGE)
    return open_source(tmp_path / "imgs")


def failing(function: Callable[..., Any], errors: Iterator[OSError | None]) -> Callable[..., Any]:
    """`function`, but each call first raises the next of `errors` that is one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        error = next(errors, None)
        if error is not None:
            raise error
        return function(*args, **kwargs)

    return call


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.ESTALE])
@pytest.mark.usefixtures("quick_retries")
def test_a_mount_that_hiccups_is_read_again(
    one_file: Source, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    errors = iter([os_error(number), os_error(number)])
    monkeypatch.setattr(os, call, failing(getattr(os, call), errors))
    assert one_file.read("cat/1.jpg").data == IMAGE


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.usefixtures("quick_retries")
def test_a_mount_that_stays_broken_is_an_error_that_names_the_file(
    one_file: Source, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    errors = iter([os_error(errno.EIO)] * 100)
    monkeypatch.setattr(os, call, failing(getattr(os, call), errors))
    with pytest.raises(SourceError, match=r"cat/1\.jpg: the file cannot be read: Input/output"):
        one_file.read("cat/1.jpg")


def test_an_unreadable_file_is_a_reject(one_file: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([PermissionError(errno.EACCES, "Permission denied")] * 100)
    monkeypatch.setattr(os, "open", failing(os.open, errors))
    with pytest.raises(Reject, match="no permission to read it"):
        one_file.read("cat/1.jpg")


def test_a_file_that_vanished_is_an_error_that_names_it(one_file: Source) -> None:
    (one_file.root / "cat" / "1.jpg").unlink()
    with pytest.raises(SourceError, match=r"cat/1\.jpg: the file vanished"):
        one_file.read("cat/1.jpg")
    assert one_file.stamp("cat/1.jpg") == (-1, -1)


def test_a_file_that_became_a_folder_is_an_error_that_names_it(one_file: Source) -> None:
    (one_file.root / "cat" / "1.jpg").unlink()
    (one_file.root / "cat" / "1.jpg").mkdir()
    with pytest.raises(SourceError, match=r"cat/1\.jpg: the file cannot be read"):
        one_file.read("cat/1.jpg")
    assert one_file.stamp("cat/1.jpg") == (-1, -1)


def test_a_file_that_became_a_pipe_is_an_error_that_names_it(one_file: Source) -> None:
    (one_file.root / "cat" / "1.jpg").unlink()
    os.mkfifo(one_file.root / "cat" / "1.jpg")
    with pytest.raises(SourceError, match=r"cat/1\.jpg: the file cannot be read: it became"):
        one_file.read("cat/1.jpg")  # and nobody writes to it
    assert one_file.stamp("cat/1.jpg") == (-1, -1)


def test_a_read_that_comes_short_is_an_error_and_never_a_cut_sample(
    one_file: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.read
    position = 0

    def short(descriptor: int, size: int) -> bytes:
        nonlocal position
        data = read(descriptor, min(size, max(100 - position, 0)))
        position += len(data)
        return data

    monkeypatch.setattr(os, "read", short)
    with pytest.raises(SourceError, match=rf"ended after 100 of {len(IMAGE)} bytes"):
        one_file.read("cat/1.jpg")


def test_a_read_in_pieces_is_whole(one_file: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 100)))
    assert one_file.read("cat/1.jpg").data == IMAGE


@pytest.mark.parametrize("call", ["read", "read_beside"])
def test_a_mount_that_gives_pieces_without_waiting_is_waited_for(
    one_file: Source, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """As 9p does, in which WSL has Windows' drives."""
    read, sizes = os.read, []

    def piece(descriptor: int, size: int) -> bytes:
        sizes.append(size)
        return read(descriptor, size if os.get_blocking(descriptor) else min(size, 100))

    monkeypatch.setattr(os, "read", piece)
    assert getattr(one_file, call)("cat/1.jpg").data == IMAGE
    assert sizes == [len(IMAGE), len(IMAGE) - 100]


def test_a_folder_that_cannot_be_listed_is_an_error_that_names_it(
    one_file: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([None, os_error(errno.EACCES)])
    monkeypatch.setattr(os, "scandir", failing(os.scandir, errors))
    with pytest.raises(SourceError, match="imgs/cat: the folder cannot be listed: Permission"):
        one_file.scan()


def test_a_scan_costs_no_stat_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folder(tmp_path / "imgs", num_classes=3, per_class=20)
    source = open_source(tmp_path / "imgs")
    calls: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        function = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    for name in ("stat", "lstat", "open", "readlink", "scandir"):
        monkeypatch.setattr(os, name, counted(name))
    assert len(source.scan().files) == 60
    assert calls == {"scandir": 4}


def test_folders_are_listed_several_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(32):
        write(tmp_path / f"{i}" / "1.jpg", IMAGE)
    scandir = os.scandir

    def slow(path: Any) -> Any:
        time.sleep(0.02)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", slow)
    started = time.monotonic()
    assert len(open_source(tmp_path).scan().files) == 32
    assert time.monotonic() - started < 32 * 0.02 * 0.6


def test_one_reject_by_permission_does_not_stop_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folder(tmp_path / "imgs")
    read = os.open

    def forbidding(path: Any, *args: Any, **kwargs: Any) -> int:
        if str(path).endswith("class_1/2.jpg"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", forbidding)
    summary: Summary = convert(tmp_path / "imgs", tmp_path / "pack", Options("memmap"), threads=2)
    assert summary.rejected == {"no permission to read it": 1}
    assert summary.rejected_files == ["class_1/2.jpg"]
    assert summary.num_samples == 11


@pytest.mark.parametrize("path", ["missing", "x" * 300, "file.txt"])
def test_what_is_no_source_is_an_error(tmp_path: Path, path: str) -> None:
    write(tmp_path / "file.txt", b"text")
    with pytest.raises(SourceError):
        open_source(tmp_path / path)
