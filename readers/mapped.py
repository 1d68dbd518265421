"""Values one after another in a file, mapped read-only: HDF5 and memmap shards come down to it."""

from __future__ import annotations

import mmap
from pathlib import Path

from .errors import DamagedPack


class MappedValues:
    """`num_bytes` bytes of values that begin at byte `start` of a file."""

    def __init__(self, path: Path, start: int, num_bytes: int) -> None:
        """Raises DamagedPack when the file is shorter than that, or cannot be mapped."""
        self._path = path
        self._start = start
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise DamagedPack(f"cannot be mapped: {error}", path=path) from None
        if start + num_bytes > len(self._map):
            raise DamagedPack("the file ends before its values do", path=path)
        self._values = memoryview(self._map)[start : start + num_bytes]

    def view(self, offset: int, length: int) -> memoryview:
        """`length` bytes from `offset` on, without a copy. Raises DamagedPack past the end."""
        value = self._values[offset : offset + length]
        if len(value) != length:
            raise DamagedPack("the shard ends inside a value", path=self._path)
        return value

    def announce(self, offset: int, length: int) -> None:
        """Let the kernel fetch these bytes in the background."""
        first = self._start + offset
        page = first - first % mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, page, first + length - page)
