"""HDF5 shards: NAME.h5, one file. For every field FIELD/bytes, all values one after another as
contiguous 1-D uint8, and FIELD/offsets; for the plain h5py user also label, key/bytes, key/offsets.

Contiguous data has one place in the file (H5Dget_offset), so values are streamed to it while the
shard fills and a reader maps it, past the library's global lock and its trouble with forks.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from ..blocks import Tiled, read_in_order
from ..errors import DamagedPack, DestinationError, cannot_open
from ..index import pack_keys
from ..mapped import MappedShard, MappedValues
from . import Observe, ignore

_VALUES_START = 64 << 10  # the library's own structures fit before it; the rest lies behind
_HEADER_BYTES = 4 << 10  # of a dataset and its group, at most
_BUFFER_BYTES = 1 << 20  # one system call for many small values


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.h5"


class ShardWriter:
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        self._path = _path(folder, name)
        self._lengths: dict[str, list[int]] = {field: [] for field in fields}
        empty = io.BytesIO()
        with h5py.File(empty, "w", libver="earliest"):
            pass  # the values go where seal() will declare a dataset
        self._path.write_bytes(empty.getvalue())
        # One field can be streamed to its final place; others wait in a file beside it.
        self._files = {}
        for i, field in enumerate(sorted(fields, key=lambda field: field != "image")):
            path = self._path if i == 0 else self._spool_path(field)
            file = path.open("r+b" if i == 0 else "w+b", buffering=_BUFFER_BYTES)
            if i == 0:
                file.seek(_VALUES_START)
            self._files[field] = file

    def _spool_path(self, field: str) -> Path:
        return self._path.with_name(f"{self._path.name}.{field}")

    def append(self, values: Mapping[str, Sequence[bytes]]) -> None:
        for field, file in self._files.items():
            file.writelines(values[field])
            self._lengths[field].extend(map(len, values[field]))

    def seal(self, labels: npt.NDArray[Any], keys: Sequence[str]) -> list[str]:
        (streamed, *spooled) = self._files
        key_offsets, key_bytes = pack_keys(keys)
        num_bytes = sum(self._lengths[streamed])
        with self._files[streamed] as file:
            # Data this small are not aligned by the library, so they are handed to it instead.
            small = None
            if num_bytes < _VALUES_START:
                file.seek(_VALUES_START)
                small = file.read()
                file.truncate(_VALUES_START)
        try:
            self._reserve(len(keys), key_bytes.nbytes)
            # locking=False: nobody else knows this file yet, and a process that is just being
            # started by another thread may hold on to a lock for a moment.
            with h5py.File(
                self._path,
                "r+",
                alignment_threshold=max(num_bytes, _VALUES_START),
                alignment_interval=_VALUES_START,
                locking=False,
            ) as h5:
                values = _create_contiguous(h5, f"{streamed}/bytes", num_bytes)
                if small is not None:
                    values[...] = np.frombuffer(small, np.uint8)
                elif values.id.get_offset() != _VALUES_START:
                    raise DestinationError("HDF5 placed the values elsewhere", path=self._path)
                for field in spooled:
                    self._copy_spooled(h5, field)
                for field, lengths in self._lengths.items():
                    offsets = np.zeros(len(lengths) + 1, "<i8")
                    np.cumsum(lengths, out=offsets[1:])
                    h5[f"{field}/offsets"] = offsets
                h5["label"] = np.asarray(labels, "<i8")
                h5["key/bytes"] = key_bytes
                h5["key/offsets"] = key_offsets
        except (OSError, RuntimeError, ValueError) as error:
            number = getattr(error, "errno", None)
            reason = os.strerror(number) if number else str(error)
            raise DestinationError(f"HDF5 cannot write: {reason}", path=self._path) from error
        return [self._path.name]

    def _reserve(self, num_rows: int, key_bytes: int) -> None:
        """Take room for all that seal() writes: on a full disk HDF5 1.14 ends the process when it
        closes the file. It cuts off what is too much."""
        sizes = [sum(lengths) for lengths in self._lengths.values()]
        sizes += [8 * (num_rows + 1)] * (len(sizes) + 2) + [key_bytes]  # offsets, label, key
        aligned = [_VALUES_START for size in sizes if size >= _VALUES_START]
        num_bytes = _VALUES_START + sum(sizes) + sum(aligned) + len(sizes) * _HEADER_BYTES
        with self._path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)

    def _copy_spooled(self, h5: h5py.File, field: str) -> None:
        dataset = _create_contiguous(h5, f"{field}/bytes", sum(self._lengths[field]))
        with self._files[field] as file:
            file.seek(0)
            start = 0
            while block := file.read(_BUFFER_BYTES):
                dataset[start : start + len(block)] = np.frombuffer(block, np.uint8)
                start += len(block)
        self._spool_path(field).unlink()

    def abort(self) -> None:
        for file in self._files.values():
            file.close()


def _create_contiguous(h5: h5py.File, name: str, num_bytes: int) -> h5py.Dataset:
    """A 1-D uint8 dataset whose space is allotted now and never filled."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    properties.set_obj_track_times(False)  # the same input makes the same file
    group, _, leaf = name.rpartition("/")
    space = h5py.h5s.create_simple((num_bytes,))
    parent = h5.require_group(group)
    return h5py.Dataset(
        h5py.h5d.create(parent.id, leaf.encode(), h5py.h5t.STD_U8LE, space, properties)
    )


def _open(path: Path) -> h5py.File:
    try:
        # locking=False: sealed data needs no lock, and network file systems refuse one.
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        raise cannot_open(f"HDF5 cannot open the shard: {error}", path) from None


class ShardReader(MappedShard):
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        path = _path(folder, name)
        with _open(path) as h5:
            places = {field: _place(h5, field, path) for field in fields}
        super().__init__({field: MappedValues(path, *place) for field, place in places.items()})


def _place(h5: h5py.File, field: str, path: Path) -> tuple[int, int]:
    """Where in the file a field's values begin, and how many bytes they have."""
    try:
        dataset = h5[f"{field}/bytes"]
        start, num_bytes = dataset.id.get_offset(), dataset.shape[0]
    except (KeyError, OSError, RuntimeError, AttributeError, IndexError) as error:
        raise DamagedPack(f"HDF5 cannot read {field}/bytes: {error}", path=path) from None
    if num_bytes == 0:
        return 0, 0  # it takes no place in the file
    if start is None:
        raise DamagedPack(f"{field}/bytes is not contiguous", path=path)
    return start, num_bytes


READS_WHOLE_FILES = False


def scan(
    folder: Path, name: str, fields: Sequence[str], observe: Observe = ignore
) -> Iterator[tuple[int, str, memoryview]]:
    path = _path(folder, name)
    with _open(path) as h5:
        try:
            yield from read_in_order({field: _tiled(h5, field) for field in fields}, path)
        except (KeyError, OSError, RuntimeError, ValueError, IndexError, AttributeError) as error:
            raise DamagedPack(f"HDF5 cannot read the shard: {error}", path=path) from None


def _tiled(h5: h5py.File, field: str) -> Tiled:
    dataset = h5[f"{field}/bytes"]

    def read_into(start: int, buffer: memoryview) -> None:
        dataset.read_direct(np.frombuffer(buffer, np.uint8), np.s_[start : start + len(buffer)])

    return Tiled(h5[f"{field}/offsets"][...], dataset.shape[0], read_into)
