"""A tar archive, plain or compressed, or ImageNet's: a tar of one tar a class.

One pass over the headers finds every member's place; members are read there, many at once.
Formats: POSIX.1-1988 ustar, POSIX.1-2001 pax, GNU tar 1.x long names.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, NamedTuple

from readers.errors import MissingDependency, SourceError, printable

from ..archive import ArchiveFile, HardLink, Place, Symlink, Tree, join
from ..images.inspect import Reject
from . import NO_FILE, File, Listing, Scanning, junk_reason, unseen

_BLOCK = tarfile.BLOCKSIZE
_WINDOW_BYTES = 1 << 16  # holds several small members; a slow mount takes a millisecond for each
_PREFIX_BYTES_MAX = 1 << 20  # a long name or pax header beyond is damage
_GNU_SPARSE_EXTENDED = 482, 504  # where the header and its extensions say that one more follows


class Source:
    def __init__(
        self, root: Path, scratch: Path | None = None, scanning: Scanning = unseen
    ) -> None:
        """`scratch` is a folder with room for a compressed archive's content."""
        self.root = root
        self._scratch = scratch
        self._scanning = scanning

    @cached_property
    def _archive(self) -> ArchiveFile:
        return open_archive(self.root, self._scratch, self._scanning)

    @cached_property
    def _index(self) -> tuple[Listing, dict[str, Place]]:
        tree = Tree(self.root)
        what, num_total = f"listing {self.root.name}", self._archive.num_bytes
        for member in members(self._archive):
            self._scanning(what, member.start, num_total)
            folder = _nested_folder(member)
            if folder is None:
                _add(tree, member)
                continue
            tree.add_folder(folder)
            for inner in members(self._archive, member):
                _add(tree, inner, below=folder)
        self._scanning(what, num_total, num_total)
        listing, places = tree.finish()
        if "not an image: .cls" in listing.left_out:
            listing.warnings.append(
                "it has .cls files, which hold labels in WebDataset's shards: --from webdataset "
                "reads them"
            )
        return listing, places

    def scan(self) -> Listing:
        return self._index[0]

    def read(self, path: str) -> File:
        start, num_bytes = self._index[1][path]
        data = self._archive.read(start, num_bytes)
        self._archive.check_unchanged()
        return File(data, *self.stamp(path))

    def read_beside(self, path: str) -> File:
        if path not in self._index[1]:
            raise Reject(NO_FILE)
        return self.read(path)

    def stamp(self, path: str) -> tuple[int, int]:
        place = self._index[1].get(path)
        return (-1, -1) if place is None else (place[1], self._archive.modified_ns)


def _nested_folder(member: Member) -> str | None:
    """The class folder that an archive within the archive stands for; None for other members."""
    name = member.name.rpartition("/")[2]
    if member.kind in REGULAR and name.lower().endswith(".tar") and not junk_reason(name):
        return join("", member.name[: -len(".tar")])
    return None


def _add(tree: Tree, member: Member, below: str = "") -> None:
    if member.problem:
        tree.reject(member.name, member.problem, below)
    elif member.kind in REGULAR:
        tree.add(member.name, (member.start, member.num_bytes), below)
    elif member.is_folder:
        tree.add_folder(member.name, below)
    elif member.kind == tarfile.SYMTYPE:
        tree.add(member.name, Symlink(member.start, member.target), below)
    elif member.kind == tarfile.LNKTYPE:
        tree.add(member.name, HardLink(member.start, join(below, member.target)), below)
    elif member.kind != _VOLUME_LABEL:
        tree.reject(member.name, "not a regular file", below)


# Compression


def open_archive(
    path: Path, scratch: Path | None = None, scanning: Scanning = unseen
) -> ArchiveFile:
    """A tar archive ready to be read at any place, unpacked into `scratch` if compressed.

    Raises SourceError, DestinationError when there is no room to unpack, MissingDependency.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=path) from None
    for magic, decompress in COMPRESSIONS.items():
        if start.startswith(magic):
            return ArchiveFile(path, decompress, scratch, scanning)
    return ArchiveFile(path)


def _zstd(file: IO[bytes]) -> IO[bytes]:
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd

            return zstd.open(file)
        import zstandard
    except ImportError as error:
        raise MissingDependency(
            "a .zst archive needs the library zstandard", advice="pip install zstandard"
        ) from error
    stream: IO[bytes] = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    return stream


def _gzip(file: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile(fileobj=file)  # type: ignore[return-value]


COMPRESSIONS: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
    b"\x1f\x8b": _gzip,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x28\xb5\x2f\xfd": _zstd,
}


# Headers

REGULAR = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_LINKS_AND_DEVICES = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
    *(tarfile.DIRTYPE, tarfile.FIFOTYPE),
)
_PAX, _PAX_GLOBAL, _PAX_SOLARIS = tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE
_LONG_NAME, _LONG_TARGET = tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK
_VOLUME_LABEL, _GNU_FOLDER = b"V", b"D"


class Member(NamedTuple):
    """A member: its name and kind as in the header, and its content's place in the archive."""

    name: str
    kind: bytes
    start: int
    num_bytes: int
    target: str  # of a link
    problem: str | None = None

    @property
    def is_folder(self) -> bool:
        return self.kind in (tarfile.DIRTYPE, _GNU_FOLDER)


def members(archive: ArchiveFile, within: Member | None = None) -> Iterator[Member]:
    """The members of a tar archive, or of one that is a member of it, in its order.

    Raises SourceError for anything but a whole archive with its end: a part that ends between
    two members looks like a smaller archive.
    """
    start, stop = 0, archive.num_bytes
    where = ""
    if within is not None:
        start, stop = within.start, within.start + within.num_bytes
        where = f" {printable(within.name)} in it"
    return _Headers(archive, start, stop, where).members()


class _Headers:
    def __init__(self, archive: ArchiveFile, start: int, stop: int, where: str) -> None:
        self._archive = archive
        self._start = start
        self._stop = stop
        self._where = where
        self._window, self._window_start = b"", 0

    def members(self) -> Iterator[Member]:
        place = self._start
        extra: dict[str, str] = {}  # what long names and pax say of the next member
        of_all: dict[str, str] = {}
        name = ""
        while True:
            header = self._header(place, name)
            if header is None:
                self._check_end(place)
                return
            content, kind, num_bytes = place + _BLOCK, header.type, header.size
            if kind in (_PAX, _PAX_GLOBAL, _PAX_SOLARIS, _LONG_NAME, _LONG_TARGET):
                text = self._prefix(content, num_bytes, place)
                if kind in (_LONG_NAME, _LONG_TARGET):
                    text = text.partition(b"\0")[0]
                    key = "path" if kind == _LONG_NAME else "linkpath"
                    extra[key] = text.decode("utf-8", "surrogateescape")
                else:
                    (of_all if kind == _PAX_GLOBAL else extra).update(self._pax(text, place))
            else:
                about = of_all | extra
                extra = {}
                name = about.get("path", header.name)
                problem = None
                if kind == tarfile.GNUTYPE_SPARSE or any(k.startswith("GNU.sparse") for k in about):
                    problem = "sparse file"
                    name = about.get("GNU.sparse.name", name)
                if kind == tarfile.GNUTYPE_SPARSE:
                    content = self._behind_sparse_map(place)
                num_bytes = self._size(about, num_bytes, place)
                if kind in _LINKS_AND_DEVICES:
                    num_bytes = 0  # some writers state the size of what a link leads to
                target = about.get("linkpath", header.linkname)
                if kind in REGULAR and name.endswith("/"):
                    kind = tarfile.DIRTYPE  # as the first tar wrote them
                yield Member(name, kind, content, num_bytes, target, problem)
            place = content + -(-num_bytes // _BLOCK) * _BLOCK

    def _header(self, place: int, after: str) -> tarfile.TarInfo | None:
        """The header at `place`, or None for the end of the archive."""
        block = self._read(place, _BLOCK)
        if len(block) < _BLOCK:
            raise self._error(
                "is cut off: it ends " + (f"in or behind {after!r}" if after else "at its start"),
            )
        if not any(block):
            return None
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            if place == self._start:
                raise self._error("is not a tar archive") from None
            raise self._error(f"is damaged: no header at byte {place}, behind {after!r}") from None
        if header.size < 0:
            raise self._error(f"is damaged: {header.name!r} has a negative size")
        return header

    def _check_end(self, place: int) -> None:
        """Raise if something follows the block of zeros that ends the archive."""
        while place < self._stop:
            block = self._read(place, _WINDOW_BYTES)
            if any(block):
                raise self._error(
                    f"goes on behind its end, at byte {place}: archives that were joined, or "
                    "damage; nothing there would be packed"
                )
            place += len(block) or _WINDOW_BYTES

    def _prefix(self, place: int, num_bytes: int, header: int) -> bytes:
        text = self._read(place, num_bytes) if num_bytes <= _PREFIX_BYTES_MAX else b""
        if len(text) < num_bytes:
            raise self._error(f"is cut off or damaged in the header at byte {header}")
        return text

    def _pax(self, text: bytes, header: int) -> dict[str, str]:
        """The records of a pax header: `LENGTH KEY=VALUE\\n`, the length counting all of it."""
        records = {}
        while text:
            digits, _, _ = text.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 8 else 0
            key, equals, value = text[len(digits) + 1 : length - 1].partition(b"=")
            if not equals or text[length - 1 : length] != b"\n":
                raise self._error(f"is damaged in the pax header at byte {header}")
            records[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
            text = text[length:]
        return records

    def _size(self, about: dict[str, str], num_bytes: int, header: int) -> int:
        size = about.get("size", str(num_bytes))
        if not (size.isascii() and size.isdigit() and len(size) < 20):
            raise self._error(f"is damaged: the size at byte {header} is {size!r}")
        return int(size)

    def _behind_sparse_map(self, place: int) -> int:
        flag, extension_flag = _GNU_SPARSE_EXTENDED
        block, place = self._read(place, _BLOCK), place + _BLOCK
        while len(block) == _BLOCK and block[flag]:
            block, place, flag = self._read(place, _BLOCK), place + _BLOCK, extension_flag
        return place

    def _read(self, place: int, num_bytes: int) -> bytes:
        """Bytes of the archive, fewer at its end, through a window: headers are often near."""
        num_bytes = max(min(num_bytes, self._stop - place), 0)
        at = place - self._window_start
        if at < 0 or at + num_bytes > len(self._window):
            wanted = min(max(num_bytes, _WINDOW_BYTES), self._stop - place)
            self._window = self._archive.read_some(place, max(wanted, 0))
            self._window_start, at = place, 0
        return self._window[at : at + num_bytes]

    def _error(self, problem: str) -> SourceError:
        return SourceError(
            f"the archive{self._where} {printable(problem)}",
            path=self._archive.path,
            advice="fetch or make it again",
        )
