"""memmap shards: for every field NAME.FIELD.npy, all values one after another as 1-D uint8, and
NAME.FIELD.offsets.npy, int64, one more than there are samples: value i is
values[offsets[i]:offsets[i+1]].
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..blocks import Tiled, read_in_order
from ..errors import DamagedPack, cannot_open
from ..mapped import MappedShard, MappedValues, map_npy, read_npy_header
from . import Observe, ignore

_HEADER_BYTES = 128  # what a .npy header of a 1-D uint8 array takes for any length below 2**63
_BUFFER_BYTES = 1 << 20  # one system call for many small values


def _values_path(folder: Path, name: str, field: str) -> Path:
    return folder / f"{name}.{field}.npy"


def _offsets_path(folder: Path, name: str, field: str) -> Path:
    return folder / f"{name}.{field}.offsets.npy"


def _header(num_bytes: int) -> bytes:
    header = BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
    )
    assert len(header.getvalue()) == _HEADER_BYTES
    return header.getvalue()


class ShardWriter:
    # Plain write(): an array mapped for writing dies of SIGBUS when the disk is full.

    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        self._folder, self._name = folder, name
        self._lengths: dict[str, list[int]] = {field: [] for field in fields}
        self._files = {}
        for field in fields:
            file = _values_path(folder, name, field).open("wb", buffering=_BUFFER_BYTES)
            file.write(bytes(_HEADER_BYTES))  # filled in by seal(), when the length is known
            self._files[field] = file

    def append(self, values: Mapping[str, Sequence[bytes]]) -> None:
        for field, file in self._files.items():
            file.writelines(values[field])
            self._lengths[field].extend(map(len, values[field]))

    def seal(self, labels: npt.NDArray[Any], keys: Sequence[str]) -> list[str]:
        names = []
        for field, file in self._files.items():
            offsets = np.zeros(len(self._lengths[field]) + 1, "<i8")
            np.cumsum(self._lengths[field], out=offsets[1:])
            offsets_path = _offsets_path(self._folder, self._name, field)
            np.save(offsets_path, offsets, allow_pickle=False)
            file.seek(0)
            file.write(_header(int(offsets[-1])))
            file.close()
            names += [_values_path(self._folder, self._name, field).name, offsets_path.name]
        return names

    def abort(self) -> None:
        for file in self._files.values():
            file.close()


def _map(path: Path, dtype: str) -> npt.NDArray[Any]:
    try:
        array = map_npy(path)
    except OSError as error:
        raise cannot_open(f"cannot be read: {error.strerror}", path) from None
    if array.dtype != dtype or array.ndim != 1:
        raise DamagedPack(f"is {array.ndim}-D {array.dtype}, not 1-D {dtype}", path=path)
    return array


class ShardReader(MappedShard):
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        super().__init__(
            {field: _map_values(_values_path(folder, name, field)) for field in fields}
        )


def _map_values(path: Path) -> MappedValues:
    try:
        dtype, shape, start = read_npy_header(path)
    except OSError as error:
        raise cannot_open(f"cannot be read: {error.strerror}", path) from None
    if dtype != np.uint8 or len(shape) != 1:
        raise DamagedPack(f"is {len(shape)}-D {dtype}, not 1-D uint8", path=path)
    return MappedValues(path, start, shape[0])


READS_WHOLE_FILES = True


def scan(
    folder: Path, name: str, fields: Sequence[str], observe: Observe = ignore
) -> Iterator[tuple[int, str, memoryview]]:
    with ExitStack() as files:
        tiled = {field: _tiled(folder, name, field, files, observe) for field in fields}
        yield from read_in_order(tiled, _offsets_path(folder, name, min(fields)))


def _tiled(folder: Path, name: str, field: str, files: ExitStack, observe: Observe) -> Tiled:
    path = _values_path(folder, name, field)
    values = _map(path, "|u1")  # NumPy's word on what is in the file, and where
    file = files.enter_context(path.open("rb"))
    start_of_values = file.seek(0, os.SEEK_END) - len(values)

    def read_into(start: int, buffer: memoryview) -> None:
        # Not through the map: page faults cost more than this copy, and do not run in parallel.
        if os.preadv(file.fileno(), [buffer], start_of_values + start) != len(buffer):
            raise DamagedPack("the file ends before its values do", path=path)

    offsets = _map(_offsets_path(folder, name, field), "<i8")
    observe(path.name, memoryview(os.pread(file.fileno(), start_of_values, 0)))
    return Tiled(offsets, len(values), read_into, partial(observe, path.name))
