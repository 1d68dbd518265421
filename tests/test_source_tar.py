"""Tar archives: the same pack as from the same tree in a folder, or a clear error."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from images import class_folder, jpeg, photo, write

from packer.convert import convert
from packer.options import Options
from packer.sources import File, Listing, open_source
from packer.sources import tar as module
from readers.errors import DestinationError, MissingDependency, SourceError
from readers.pack import Pack

IMAGE = jpeg(photo())
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def tar_of(folder: Path, out: Path, prefix: str = "", **options: object) -> Path:
    """A tar of a tree; its members' names start with `prefix`."""
    with tarfile.open(out, "w", **options) as tar:
        for path in sorted(folder.rglob("*"), reverse=True):  # not in a pack's order
            tar.add(path, prefix + str(path.relative_to(folder)), recursive=False)
    return out


def tar_with(out: Path, *members: tuple[str, bytes] | tarfile.TarInfo, **options: object) -> Path:
    """A tar of files given as (name, content) and of bare headers, in order."""
    with tarfile.open(out, "w", **options) as tar:
        for member in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member[0])
            data = b"" if isinstance(member, tarfile.TarInfo) else member[1]
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data))
    return out


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def scan(path: Path) -> Listing:
    return open_source(path).scan()


def packed(source: Path, out: Path) -> Pack:
    convert(source, out, Options("memmap"), threads=2)
    return Pack(out)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Splits of classes, with an empty class, junk, a long and a non-UTF-8 name."""
    root = tmp_path_factory.mktemp("tree") / "imgs"
    for split in ("train", "val"):
        class_folder(root / split, num_classes=2, per_class=2)
    (root / "val" / "empty").mkdir()
    write(root / "train" / "class_0" / ("long" * 40) / "a.jpg", IMAGE)
    write(root / "train" / "class_0" / os.fsdecode(b"caf\xe9.jpg"), IMAGE)
    write(root / "train" / "class_0" / "Ж.JPG", IMAGE)
    write(root / ".git" / "a.jpg", b"")
    write(root / "train" / "class_1" / "Thumbs.db", b"")
    write(root / "train" / "class_1" / "notes.txt", b"")
    return root


@pytest.fixture(scope="module")
def digest(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return packed(tree, tmp_path_factory.mktemp("digest") / "pack").content_digest


# The same as a folder


@pytest.mark.parametrize("prefix", ["", "./", "imgs/", "./imgs/"])
@pytest.mark.parametrize("header", ["gnu", "pax"])
def test_a_tar_packs_as_its_folder(
    tree: Path, digest: str, tmp_path: Path, header: str, prefix: str
) -> None:
    tar = tar_of(tree, tmp_path / "imgs.tar", prefix, format=FORMATS[header])
    pack = packed(tar, tmp_path / "pack")
    assert pack.content_digest == digest
    assert "train/class_0/caf\udce9.jpg" in list(pack.keys)


def test_the_listing_is_the_folders(tree: Path, tmp_path: Path) -> None:
    ours, theirs = scan(tar_of(tree, tmp_path / "imgs.tar")), scan(tree)
    assert sorted(ours.files) == sorted(theirs.files)
    assert ours.folders == theirs.folders
    assert ours.left_out == theirs.left_out
    assert ours.rejected == theirs.rejected == []


def test_an_archive_without_folder_members_has_their_classes(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", ("a/1.jpg", IMAGE), ("b/c/2.jpg", IMAGE))
    listing = scan(tar)
    assert listing.files == ["a/1.jpg", "b/c/2.jpg"]
    assert listing.folders == ["a", "b", "b/c"]


def test_ustar_prefixes(tmp_path: Path) -> None:
    name = f"{'d' * 90}/{'e' * 60}/1.jpg"
    tar = tar_with(tmp_path / "a.tar", (name, IMAGE), ("b/1.jpg", IMAGE), format=FORMATS["ustar"])
    assert name in scan(tar).files


def _gzip_in_two(data: bytes) -> bytes:
    return gzip.compress(data[:1000], 1) + gzip.compress(data[1000:], 1) + bytes(512)


def _zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    return zstandard.compress(data[:1000]) + zstandard.compress(data[1000:])


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        ("gz", gzip.compress),
        ("gz", _gzip_in_two),
        ("bz2", bz2.compress),
        ("xz", lzma.compress),
        ("zst", _zstd),
    ],
)
def test_compressed(
    tree: Path, digest: str, tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    plain = tar_of(tree, tmp_path / "plain.tar").read_bytes()
    tar = write(tmp_path / f"imgs.tar.{suffix}", compress(plain))
    assert packed(tar, tmp_path / "pack").content_digest == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == [tar.name, "pack", "plain.tar"]


def test_detection_is_by_content(tree: Path, digest: str, tmp_path: Path) -> None:
    plain = tar_of(tree, tmp_path / "plain.tar").read_bytes()
    for name, data in (("download", plain), ("imgs.tar", gzip.compress(plain))):
        assert sorted(scan(write(tmp_path / name, data)).files) == sorted(scan(tree).files)


def test_tar_of_one_tar_a_class(tmp_path: Path) -> None:
    """ImageNet's training set."""
    folder = class_folder(tmp_path / "imgs")
    inner = []
    for class_folder_ in sorted(folder.iterdir()):
        tar = tar_of(class_folder_, tmp_path / f"{class_folder_.name}.tar")
        inner.append((tar.name, tar.read_bytes()))
    outer = tar_with(tmp_path / "outer.tar", *inner, ("._class_0.tar", b"\0\5\26\7"))
    pack = packed(outer, tmp_path / "a.pack")
    assert pack.content_digest == packed(folder, tmp_path / "b.pack").content_digest
    assert scan(outer).left_out == {"hidden file": 1}


def test_a_damaged_inner_tar_is_named(tmp_path: Path) -> None:
    inner = tar_with(tmp_path / "n01.tar", ("1.jpg", IMAGE)).read_bytes()
    for data, problem in ((inner[:600], "cut off"), (b"x" * 600, "not a tar")):
        outer = tar_with(tmp_path / "outer.tar", ("n01.tar", data))
        with pytest.raises(SourceError, match=rf"n01\.tar in it .*{problem}"):
            scan(outer)


# The top folder


def test_a_top_folder_with_images_is_a_class(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", ("cat/1.jpg", IMAGE), ("cat/more/2.jpg", IMAGE))
    assert scan(tar).files == ["cat/1.jpg", "cat/more/2.jpg"]


def test_a_lone_split_folder_stays(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", ("train/cat/1.jpg", IMAGE))
    assert packed(tar, tmp_path / "pack").splits == ["train"]


def test_a_readme_does_not_make_the_top_folder_a_class(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", ("imgs/README", b"x"), ("imgs/cat/1.jpg", IMAGE))
    listing = scan(tar)
    assert (listing.files, listing.folders) == (["cat/1.jpg"], ["cat"])


def test_an_empty_folder_beside_it_keeps_the_top_folder(tmp_path: Path) -> None:
    other = tarfile.TarInfo("other")
    other.type = tarfile.DIRTYPE
    tar = tar_with(tmp_path / "a.tar", ("imgs/cat/1.jpg", IMAGE), other)
    assert scan(tar).folders == ["imgs", "imgs/cat", "other"]


# Links


def test_links_inside_the_archive_are_followed(tmp_path: Path) -> None:
    tar = tar_with(
        tmp_path / "a.tar",
        ("store/blob", IMAGE),
        ("a/1.jpg", IMAGE),
        link("b/hard.jpg", "./a/1.jpg", tarfile.LNKTYPE),
        link("b/twice.jpg", "b/hard.jpg", tarfile.LNKTYPE),
        link("b/soft.jpg", "../store/blob"),
        link("b/chain.jpg", "soft.jpg"),
        link("d", "a"),
        link("b/through.jpg", "../d/1.jpg"),
    )
    listing = scan(tar)
    names = ("hard", "twice", "soft", "chain", "through")
    assert set(listing.files) == {"a/1.jpg", *(f"b/{name}.jpg" for name in names)}
    assert listing.rejected == [("d", "link to a folder")]
    source = open_source(tar)
    assert all(source.read(path).data == IMAGE for path in listing.files)


@pytest.mark.parametrize(
    ("target", "kind", "reason"),
    [
        ("../../etc/passwd", tarfile.SYMTYPE, "link out of the source"),
        ("/etc/passwd", tarfile.SYMTYPE, "link out of the source"),
        ("/etc/passwd", tarfile.LNKTYPE, "link out of the source"),
        ("../x.jpg", tarfile.LNKTYPE, "link out of the source"),
        ("gone.jpg", tarfile.SYMTYPE, "link to nothing"),
        ("a/gone.jpg", tarfile.LNKTYPE, "link to nothing"),
        ("../a", tarfile.SYMTYPE, "link to a folder"),
        ("bad.jpg", tarfile.SYMTYPE, "link to itself"),
        ("a/bad.jpg", tarfile.LNKTYPE, "link to itself"),
    ],
)
def test_other_links_are_rejected(tmp_path: Path, target: str, kind: bytes, reason: str) -> None:
    tar = tar_with(tmp_path / "a.tar", ("a/1.jpg", IMAGE), link("a/bad.jpg", target, kind))
    listing = scan(tar)
    assert listing.files == ["a/1.jpg"]
    assert listing.rejected == [("a/bad.jpg", reason)]


# Hostile and odd members


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../x.jpg", "name with .."),
        ("a/../../x.jpg", "name with .."),
        ("/a/x.jpg", "absolute name"),
    ],
)
def test_escaping_names_are_rejected(tmp_path: Path, name: str, reason: str) -> None:
    listing = scan(tar_with(tmp_path / "a.tar", ("a/1.jpg", IMAGE), (name, IMAGE)))
    assert listing.files == ["a/1.jpg"]
    assert listing.rejected == [(name, reason)]


def test_devices_are_rejected(tmp_path: Path) -> None:
    kinds = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
    members = [link(f"a/{i}.jpg", "", kind) for i, kind in enumerate(kinds)]
    listing = scan(tar_with(tmp_path / "a.tar", *members, ("a/9.jpg", IMAGE)))
    assert listing.files == ["a/9.jpg"]
    assert [reason for _, reason in listing.rejected] == ["not a regular file"] * 3


def test_sparse_files_are_rejected(tmp_path: Path) -> None:
    holes = tmp_path / "holes"
    with write(holes / "a" / "1.jpg", b"").open("r+b") as file:
        for i in range(20):
            file.seek(i << 20)
            file.write(IMAGE)
    write(holes / "a" / "2.jpg", IMAGE)
    for header in ("gnu", "posix"):
        tar = tmp_path / f"{header}.tar"
        command = ["tar", "-C", holes, "--sparse", f"--format={header}", "-cf", tar, "a"]
        subprocess.run(command, check=True)
        listing = scan(tar)
        assert listing.files == ["a/2.jpg"]
        assert [reason for _, reason in listing.rejected] == ["sparse file"]
        assert listing.rejected[0][0].endswith("1.jpg")


def test_members_twice_are_an_error_that_names_both(tmp_path: Path) -> None:
    tar = tar_with(tmp_path / "a.tar", ("a/1.jpg", IMAGE), ("./a/1.jpg", b"other"))
    second = 512 + -(-len(IMAGE) // 512) * 512 + 512
    with pytest.raises(SourceError, match=rf"a/1\.jpg.*twice, at byte 512 and at byte {second}"):
        scan(tar)


def test_a_negative_size_is_an_error(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a/1.jpg")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    block[124:136] = tarfile.itn(-1024, 12, tarfile.GNU_FORMAT)
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(SourceError, match="negative size"):
        scan(write(tmp_path / "a.tar", bytes(block) + bytes(1024)))


@pytest.mark.parametrize("size", ["-5", "1e3", "x", "9" * 30])
def test_a_strange_pax_size_is_an_error(tmp_path: Path, size: str) -> None:
    info = tarfile.TarInfo("a/1.jpg")
    info.pax_headers = {"size": size}
    tar = tar_with(tmp_path / "a.tar", info, format=tarfile.PAX_FORMAT)
    with pytest.raises(SourceError, match="the size at byte"):
        scan(tar)


def test_a_size_beyond_the_archive_is_an_error(tmp_path: Path) -> None:
    info = tarfile.TarInfo("a/1.jpg")
    info.size = 1 << 50
    tar = write(tmp_path / "a.tar", info.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    with pytest.raises(SourceError, match="cut off"):
        scan(tar)


# Cut and damaged archives


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    tar = tar_with(tmp_path / "small.tar", ("a/1.jpg", IMAGE), ("a/2.jpg", IMAGE))
    return tar.read_bytes().rstrip(b"\0")


def test_every_cut_is_an_error(small: bytes, tmp_path: Path) -> None:
    """At every block, and within: none gives a shorter dataset. The end is a block of zeros."""
    whole = -(-len(small) // 512) * 512
    for length in (*range(0, whole + 1, 512), 100, 700, whole - 1, whole + 511):
        tar = write(tmp_path / "cut.tar", small.ljust(whole + 1024, b"\0")[:length])
        with pytest.raises(SourceError, match="cut off"):
            open_source(tar, "tar").scan()
    assert len(scan(write(tmp_path / "cut.tar", small.ljust(whole + 512, b"\0"))).files) == 2


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, _zstd])
def test_a_cut_compressed_archive_is_an_error(
    small: bytes, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    data = compress(small.ljust(20480, b"\0"))
    for length in (len(data) // 4, len(data) // 2, len(data) * 3 // 4):
        with pytest.raises(SourceError, match="cut"):
            scan(write(tmp_path / "cut.tar.x", data[:length]))


def test_joined_archives_are_an_error(small: bytes, tmp_path: Path) -> None:
    joined = small.ljust(10240, b"\0") + small.ljust(10240, b"\0")
    with pytest.raises(SourceError, match="goes on behind its end"):
        scan(write(tmp_path / "a.tar", joined))


def test_a_damaged_header_is_an_error(small: bytes, tmp_path: Path) -> None:
    second = small.index(b"a/2.jpg")
    broken = small[:second] + b"?" + small[second + 1 :]
    with pytest.raises(SourceError, match=rf"no header at byte {second}, behind 'a/1\.jpg'"):
        scan(write(tmp_path / "a.tar", broken.ljust(20480, b"\0")))


def test_other_files_are_no_archive(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="neither a folder nor"):
        open_source(write(tmp_path / "a.tar", b"x" * 10240))
    with pytest.raises(SourceError, match="not a tar"):
        open_source(write(tmp_path / "a.jpg.gz", gzip.compress(IMAGE))).scan()
    with pytest.raises(SourceError, match="no such file"):
        open_source(tmp_path / "gone.tar")


def test_a_tar_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no image found"):
        packed(tar_with(tmp_path / "a.tar"), tmp_path / "pack")


def test_an_archive_that_changes_meanwhile_is_an_error(small: bytes, tmp_path: Path) -> None:
    tar = write(tmp_path / "a.tar", small.ljust(10240, b"\0"))
    source = open_source(tar)
    path = source.scan().files[0]
    tar.write_bytes(b"x" * 10240)
    os.utime(tar, ns=(0, 0))
    with pytest.raises(SourceError, match="changed"):
        source.read(path)


def test_a_resumed_run_ends_the_same(
    tree: Path, digest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tar_of(tree, tmp_path / "plain.tar").read_bytes()
    tar = write(tmp_path / "imgs.tar.gz", gzip.compress(data))
    read = module.Source.read

    def fail_late(self: module.Source, path: str) -> File:
        if path == "val/class_1/1.png":
            raise KeyboardInterrupt
        return read(self, path)

    options = Options("memmap", shard_bytes=3000)
    monkeypatch.setattr(module.Source, "read", fail_late)
    with pytest.raises(KeyboardInterrupt):
        convert(tar, tmp_path / "pack", options, threads=1)
    monkeypatch.undo()
    summary = convert(tar, tmp_path / "pack", options, threads=1)
    assert summary.num_resumed > 0
    assert summary.content_digest == digest


# Trouble on the way


def test_reads_are_tried_again(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(write(tmp_path / "a.tar", small.ljust(10240, b"\0")))
    path = source.scan().files[0]
    pread, errors = os.pread, [errno.EIO, errno.EINVAL]

    def hiccup(*place: int) -> bytes:
        if errors:
            raise OSError(errors.pop(), "hiccup")
        return pread(*place)[:100]  # and short reads are continued

    monkeypatch.setattr("packer.retry._SECONDS", 0.0)
    monkeypatch.setattr(os, "pread", hiccup)
    assert source.read(path).data == IMAGE
    errors += [errno.EIO] * 9
    with pytest.raises(SourceError, match=r"a\.tar: the file cannot be read"):
        source.read(path)


def test_no_room_to_unpack(small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tar = write(tmp_path / "a.tar.gz", gzip.compress(small.ljust(10240, b"\0")))

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DestinationError, match=r"no room to unpack .*a\.tar\.gz: No space left"):
        scan(tar)


def test_a_file_system_without_nameless_files(
    small: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = write(tmp_path / "a.tar.gz", gzip.compress(small.ljust(10240, b"\0")))
    monkeypatch.setattr(os, "O_TMPFILE", 0)
    scratch = tmp_path / "scratch"
    with pytest.raises(DestinationError, match="scratch: cannot be written"):
        open_source(tar, scratch=scratch).scan()
    scratch.mkdir()
    source = open_source(tar, scratch=scratch)
    assert source.read(source.scan().files[0]).data == IMAGE
    assert not list(scratch.iterdir())


def test_zstd_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    tar = write(tmp_path / "a.tar.zst", b"\x28\xb5\x2f\xfd" + bytes(100))
    with pytest.raises(MissingDependency, match=r"pip install zstandard"):
        scan(tar)
