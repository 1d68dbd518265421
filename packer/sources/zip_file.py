"""A zip archive: its directory tells every member's place; members are read there, many at once.

Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3 and 4.4.
"""

from __future__ import annotations

import os
import stat
import zipfile
import zlib
from functools import cached_property
from pathlib import Path
from struct import Struct

from readers.errors import SourceError

from ..archive import ArchiveFile, Place, Symlink, Tree
from ..images.inspect import Reject
from . import NO_FILE, File, Listing

_LOCAL_HEADER = Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_ENCRYPTED = 0x1
_UTF8_NAME = 0x800
_FROM_DOS = 0  # the system that made the entry
_LINK_BYTES_MAX = 4096  # PATH_MAX
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Source:
    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def _archive(self) -> ArchiveFile:
        return ArchiveFile(self.root)

    @cached_property
    def _index(self) -> tuple[Listing, dict[str, Place]]:
        """A file's place: its header's byte, its size packed and unpacked, CRC-32, method."""
        archive = self._archive
        tree = Tree(self.root)
        try:
            with zipfile.ZipFile(self.root) as directory:
                entries = directory.infolist()
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
            raise SourceError(
                f"the archive is cut off or damaged: {error}",
                path=self.root,
                advice="fetch or make it again",
            ) from None
        for entry in entries:
            self._add(tree, entry)
        archive.check_unchanged()
        return tree.finish()

    def _add(self, tree: Tree, entry: zipfile.ZipInfo) -> None:
        name = _name(entry)
        mode = 0 if entry.create_system == _FROM_DOS else entry.external_attr >> 16
        place = (
            entry.header_offset,
            entry.compress_size,
            entry.file_size,
            entry.CRC,
            entry.compress_type,
        )
        if name.endswith("/"):
            tree.add_folder(name)
        elif entry.flag_bits & _ENCRYPTED:
            tree.reject(name, "encrypted")
        elif entry.compress_type not in _METHODS:
            tree.reject(name, f"zip compression method {entry.compress_type} is not supported")
        elif stat.S_ISLNK(mode):
            self._add_symlink(tree, name, place)
        elif stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            tree.reject(name, "not a regular file")
        else:
            tree.add(name, place)

    def _add_symlink(self, tree: Tree, name: str, place: Place) -> None:
        if place[2] > _LINK_BYTES_MAX:
            tree.reject(name, "link to nothing")
            return
        try:
            target = os.fsdecode(self._content(place))
        except Reject as reject:
            tree.reject(name, reject.reason)
        else:
            tree.add(name, Symlink(place[0], target))

    def scan(self) -> Listing:
        return self._index[0]

    def read(self, path: str) -> File:
        data = self._content(self._index[1][path])
        self._archive.check_unchanged()
        return File(data, *self.stamp(path))

    def read_beside(self, path: str) -> File:
        if path not in self._index[1]:
            raise Reject(NO_FILE)
        return self.read(path)

    def stamp(self, path: str) -> tuple[int, int]:
        place = self._index[1].get(path)
        return (-1, -1) if place is None else (place[2], self._archive.modified_ns)

    def _content(self, place: Place) -> bytes:
        """A member's bytes; raises Reject where they are not what the directory states."""
        start, packed_bytes, num_bytes, crc, method = place
        header = self._archive.read_some(start, _LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\3\4":
            raise Reject("damaged in the archive", f"no zip header at byte {start}")
        _, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        start += _LOCAL_HEADER.size + name_bytes + extra_bytes
        if start + packed_bytes > self._archive.num_bytes:
            raise Reject("damaged in the archive", "it reaches beyond the archive's end")
        data = self._archive.read(start, packed_bytes)
        if method == zipfile.ZIP_DEFLATED:
            try:  # no more than is stated: a bomb states less than it holds
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, num_bytes + 1)
            except zlib.error as error:
                raise Reject("damaged in the archive", str(error)) from None
        if len(data) != num_bytes:
            raise Reject("damaged in the archive", f"it unpacks to {len(data)} bytes")
        if zlib.crc32(data) != crc:
            raise Reject("damaged in the archive", "its CRC differs")
        return data


def _name(entry: zipfile.ZipInfo) -> str:
    """The name as the file system that it came from had it.

    zipfile reads a name without the UTF-8 flag as code page 437, DOS's. Only DOS and Windows
    meant that; others stored their bytes.
    """
    name = entry.filename
    if entry.create_system == _FROM_DOS:
        return name.replace("\\", "/")  # wrong, but some programs write it; no name there has one
    if entry.flag_bits & _UTF8_NAME:
        return name
    try:
        return os.fsdecode(name.encode("cp437"))
    except UnicodeEncodeError:  # a newer zipfile found a Unicode name in the extra field
        return name
