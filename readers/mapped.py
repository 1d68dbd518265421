"""Values one after another in a file, mapped read-only: HDF5 and memmap shards come down to it."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DamagedPack, cannot_open

_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<|][iu][1248])', 'fortran_order': False, "
    rb"'shape': \(([0-9]{1,18}),(?: ([0-9]{1,18}))?\), \} *\n"
)
_NPY_HEADER_BYTES_MAX = 256


class MappedValues:
    """`num_bytes` bytes of values that begin at byte `start` of a file."""

    def __init__(self, path: Path, start: int, num_bytes: int) -> None:
        """Raises DamagedPack when the file is shorter than that, or cannot be mapped."""
        self._start = start
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except (OSError, ValueError) as error:
            raise cannot_open(f"cannot be mapped: {error}", path) from None
        if start + num_bytes > len(self._map):
            raise DamagedPack("the file ends before its values do", path=path)
        self.memory = memoryview(self._map)[start : start + num_bytes]

    def announce(self, offset: int, length: int) -> None:
        """Let the kernel fetch these bytes in the background."""
        first = self._start + offset
        page = first - first % mmap.PAGESIZE
        if length > 0 and 0 <= page < len(self._map):  # else view() says what is wrong
            stop = min(first + length, len(self._map))
            self._map.madvise(mmap.MADV_WILLNEED, page, stop - page)


class MappedShard:
    """How HDF5 and memmap shards are read: every field's values are mapped."""

    def __init__(self, values: Mapping[str, MappedValues]) -> None:
        self._values = values

    def view(self, field: str, position: int, offset: int, length: int) -> memoryview:
        value = self._values[field].memory[offset : offset + length]
        if len(value) != length:
            raise DamagedPack("the shard ends inside a value")
        return value

    def announce(self, field: str, offset: int, length: int) -> None:
        self._values[field].announce(offset, length)

    def close(self) -> None:
        self._values = {}


def read_npy_header(path: Path) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """(dtype, shape, where the data begin) of a .npy file of integers as np.save writes it.

    NumPy's own reader is not used: it runs Python's parser over the header, which fails in many
    ways on a damaged one, and in Python 3.11 at times when two threads parse at once. Raises
    OSError, DamagedPack.
    """
    with path.open("rb") as file:
        head = file.read(_NPY_HEADER_BYTES_MAX)
    start = len(_NPY_MAGIC) + 2
    stop = start + int.from_bytes(head[len(_NPY_MAGIC) : start], "little")
    found = _NPY_HEADER.fullmatch(head[start:stop])
    if not head.startswith(_NPY_MAGIC) or found is None:
        raise DamagedPack("it has no .npy header, or a damaged one", path=path)
    dtype, *sizes = found.groups()
    return np.dtype(dtype.decode()), tuple(int(size) for size in sizes if size is not None), stop


def map_npy(path: Path) -> npt.NDArray[Any]:
    """Map a .npy file of integers read-only. Raises OSError, DamagedPack."""
    dtype, shape, start = read_npy_header(path)
    num_bytes = math.prod(shape) * dtype.itemsize
    values = MappedValues(path, start, num_bytes).memory
    return np.frombuffer(values, dtype).reshape(shape)
