"""Zip archives: the same pack as from the same tree in a folder, or a clear reject or error."""

from __future__ import annotations

import os
import stat
import warnings
import zipfile
from pathlib import Path

import pytest
from images import class_folder, jpeg, photo, write

from packer.convert import convert
from packer.images.inspect import Reject
from packer.options import Options
from packer.sources import Listing, open_source
from readers.errors import SourceError
from readers.pack import Pack

IMAGE = jpeg(photo())
UNIX, DOS = 3, 0


def entry(name: str, mode: int = stat.S_IFREG | 0o644, system: int = UNIX) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = system
    info.external_attr = mode << 16 if system == UNIX else 0
    return info


def zip_with(
    out: Path,
    *members: tuple[str | zipfile.ZipInfo, bytes],
    method: int = zipfile.ZIP_DEFLATED,
) -> Path:
    with zipfile.ZipFile(out, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are written twice
        for name, data in members:
            info = entry(name) if isinstance(name, str) else name
            archive.writestr(info, data, method)
    return out


def scan(path: Path) -> Listing:
    return open_source(path).scan()


def packed(source: Path, out: Path) -> Pack:
    convert(source, out, Options("memmap"), threads=2)
    return Pack(out)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("prefix", ["", "imgs/"])
def test_a_zip_packs_as_its_folder(tmp_path: Path, method: int, prefix: str) -> None:
    folder = class_folder(tmp_path / "imgs")
    (folder / "empty").mkdir()
    write(folder / "class_1" / "Ж.jpg", IMAGE)
    write(folder / "class_1" / "notes.txt", b"")
    write(folder / "__MACOSX" / "1.jpg", b"")
    archive = tmp_path / "imgs.zip"
    with zipfile.ZipFile(archive, "w", method) as file:
        for path in sorted(folder.rglob("*"), reverse=True):
            file.write(path, prefix + str(path.relative_to(folder)))
    ours, theirs = scan(archive), scan(folder)
    assert (sorted(ours.files), ours.folders) == (sorted(theirs.files), theirs.folders)
    assert ours.left_out == theirs.left_out
    pack = packed(archive, tmp_path / "a.pack")
    assert pack.content_digest == packed(folder, tmp_path / "b.pack").content_digest


def test_a_zip_behind_other_bytes(tmp_path: Path) -> None:
    """A self-extracting archive: offsets count from where the zip starts."""
    archive = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE))
    archive.write_bytes(b"#!/bin/sh\n" * 50 + archive.read_bytes())
    source = open_source(archive, "zip")
    assert source.scan().files == ["a/1.jpg"]
    assert source.read("a/1.jpg").data == IMAGE


def test_names(tmp_path: Path) -> None:
    """Bytes stay bytes from Unix; from DOS they are code page 437, and backslashes are slashes."""
    archive = zip_with(
        tmp_path / "a.zip",
        ("a/caf@.jpg", IMAGE),
        (entry("b\\caf#.jpg", system=DOS), IMAGE),
        ("c/Ж.jpg", IMAGE),
    )
    data = archive.read_bytes().replace(b"caf@", b"caf\xe9").replace(b"caf#", b"caf\x82")
    files = scan(write(archive, data)).files
    assert files == [os.fsdecode(b"a/caf\xe9.jpg"), "b/caf\u00e9.jpg", "c/Ж.jpg"]


@pytest.mark.parametrize(
    ("name", "reason"), [("../x.jpg", "name with .."), ("/x.jpg", "absolute name")]
)
def test_escaping_names_are_rejected(tmp_path: Path, name: str, reason: str) -> None:
    listing = scan(zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE), (name, IMAGE)))
    assert listing.files == ["a/1.jpg"]
    assert listing.rejected == [(name, reason)]


def test_symlinks(tmp_path: Path) -> None:
    mode = stat.S_IFLNK | 0o777
    archive = zip_with(
        tmp_path / "a.zip",
        ("store/blob", IMAGE),
        ("a/1.jpg", IMAGE),
        (entry("a/in.jpg", mode), b"../store/blob"),
        (entry("a/out.jpg", mode), b"../../x.jpg"),
        (entry("a/none.jpg", mode), b"2.jpg"),
        (entry("a/long.jpg", mode), b"x" * 5000),
        (entry("a/pipe.jpg", stat.S_IFIFO), b""),
    )
    source = open_source(archive)
    listing = source.scan()
    assert set(listing.files) == {"a/1.jpg", "a/in.jpg"}
    assert source.read("a/in.jpg").data == IMAGE
    assert dict(listing.rejected) == {
        "a/out.jpg": "link out of the source",
        "a/none.jpg": "link to nothing",
        "a/long.jpg": "link to nothing",
        "a/pipe.jpg": "not a regular file",
    }


def test_members_twice_are_an_error(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE), ("./a/1.jpg", b"other"))
    with pytest.raises(SourceError, match=r"a/1\.jpg.*twice, at byte 0 and at byte \d+"):
        scan(archive)


def patched(archive: Path, offset: int, value: bytes) -> Path:
    """Change bytes of the only entry in the directory, `offset` behind its signature."""
    data = bytearray(archive.read_bytes())
    place = data.index(b"PK\1\2") + offset
    data[place : place + len(value)] = value
    return write(archive, bytes(data))


def test_encrypted_and_unknown_methods_are_rejected(tmp_path: Path) -> None:
    archive = patched(zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE)), 8, b"\1\0")
    assert scan(archive).rejected == [("a/1.jpg", "encrypted")]
    archive = zip_with(tmp_path / "b.zip", ("a/1.jpg", IMAGE), method=zipfile.ZIP_LZMA)
    assert scan(archive).rejected == [("a/1.jpg", "zip compression method 14 is not supported")]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("offset", "value", "detail"),
    [
        (16, b"\0\0\0\0", "CRC"),
        (24, b"\1\0\0\0", "unpacks to"),
        (20, b"\xff\xff\xff\0", "beyond"),
        (42, b"\5\0\0\0", "no zip header"),
    ],
)
def test_damaged_members_are_rejects(
    tmp_path: Path, method: int, offset: int, value: bytes, detail: str
) -> None:
    archive = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE), method=method)
    source = open_source(patched(archive, offset, value))
    with pytest.raises(Reject, match=f"damaged in the archive.*{detail}"):
        source.read(source.scan().files[0])


def test_damage_inside_a_member_is_a_reject_and_the_rest_is_packed(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE), ("a/2.jpg", IMAGE))
    data = bytearray(archive.read_bytes())
    data[200] ^= 1
    archive.write_bytes(data)
    summary = convert(archive, tmp_path / "pack", Options("memmap"), threads=1)
    assert summary.rejected == {"damaged in the archive": 1}
    assert summary.num_samples == 1


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    data = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE), ("a/2.jpg", IMAGE)).read_bytes()
    for length in (0, 10, len(data) // 2, len(data) - 30, len(data) - 1):
        cut = write(tmp_path / "cut.zip", data[:length])
        with pytest.raises(SourceError, match="cut off"):
            open_source(cut, "zip").scan()


def test_an_archive_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    archive = zip_with(tmp_path / "a.zip", ("a/1.jpg", IMAGE))
    source = open_source(archive)
    path = source.scan().files[0]
    os.utime(archive, ns=(0, 0))
    with pytest.raises(SourceError, match="changed"):
        source.read(path)
