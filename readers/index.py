"""The index: one row a sample, kept as plain .npy columns that are mapped, never loaded.

Opening costs the same for a thousand samples and for ten million, and forked workers share the
pages. Integers are signed 64-bit wherever they count bytes: NumPy turns uint64 + int into float.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .checksum import CHECKSUM_BYTES
from .errors import DamagedPack, NoPermission, cannot_open
from .mapped import map_npy

Column = npt.NDArray[Any]

# name -> dtype; n rows unless said otherwise
SAMPLE_COLUMNS = {
    "label": "<i8",  # index into the manifest's classes, -1 = unlabelled
    "split": "<i2",  # index into the manifest's splits, -1 = the pack has no splits
    "shard": "<i4",  # index into the manifest's shards
    "position": "<i8",  # place of the sample in its shard, counted from 0
    "key_offset": "<i8",  # n+1 rows: key i is keys[key_offset[i]:key_offset[i+1]]
    "keys": "|u1",  # all keys one after another, UTF-8, undecodable bytes as they were
    "width": "<i4",  # pixels, upright
    "height": "<i4",  # pixels, upright
    "orientation": "|u1",  # EXIF orientation 1..8 that a decoder must apply to be upright
}
FIELD_COLUMNS = {
    "length": "<i8",  # bytes of the stored value
    "offset": "<i8",  # bytes of this field in the shard before this sample's
    "checksum": "|u1",  # n x 16 rows: xxh3-128 of the stored value, big-endian
}

# Of a field, too, but a pack has them only where they are needed; its manifest lists the files.
OPTIONAL_COLUMNS = {
    "odd": "|u1",  # 1 where the value is to be decoded by the field's rule for odd images
    "segment_offset": "<i8",  # n+1 rows: value i has segments[segment_offset[i]:…[i+1]]
    "segments": "<u4",  # the offsets of seekable JPEGs, see readers.seekable; other values: none
}


def column_names(fields: Sequence[str]) -> list[str]:
    """Every column of a pack with these fields, in the order they are written."""
    return [*SAMPLE_COLUMNS, *(f"{field}.{part}" for field in fields for part in FIELD_COLUMNS)]


def column_dtype(name: str) -> np.dtype[Any]:
    """The dtype of the column `name`."""
    if name in SAMPLE_COLUMNS:
        return np.dtype(SAMPLE_COLUMNS[name])
    part = name.rpartition(".")[2]
    return np.dtype(FIELD_COLUMNS.get(part) or OPTIONAL_COLUMNS[part])


def column_path(pack: Path, name: str) -> Path:
    """Where the column `name` lies."""
    return pack / "index" / f"{name}.npy"


def save_columns(pack: Path, columns: Mapping[str, Column]) -> list[str]:
    """Write the index of a pack; returns the names of its files below the pack."""
    (pack / "index").mkdir(exist_ok=True)
    for name, column in columns.items():
        column = np.ascontiguousarray(column, column_dtype(name))
        np.save(column_path(pack, name), column, allow_pickle=False)
    return [file_name(name) for name in columns]


def save_pieces(pack: Path, name: str, num_values: int, pieces: Iterable[Column]) -> str:
    """Write one 1-D column piece by piece, since it may be large; returns its file's name."""
    dtype = column_dtype(name)
    with column_path(pack, name).open("wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": dtype.str, "fortran_order": False, "shape": (num_values,)}
        )
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype).data)
    return file_name(name)


def file_name(name: str) -> str:
    """The file of the column `name`, below the pack."""
    return f"index/{name}.npy"


def map_columns(
    pack: Path, num_samples: int, fields: Sequence[str], files: Collection[str] = ()
) -> dict[str, Column]:
    """Map every column read-only, and the optional ones that are among a pack's `files`.

    Raises DamagedPack where one is missing or misshapen, NoPermission.
    """
    optional = [f"{field}.{part}" for field in fields for part in OPTIONAL_COLUMNS]
    names = column_names(fields) + [name for name in optional if file_name(name) in files]
    columns = {name: map_column(pack, name) for name in names}
    for name, column in columns.items():
        expected: tuple[int, ...] | None = (num_samples,)
        if name == "keys" or name.endswith(".segments"):
            expected = None
        elif name == "key_offset" or name.endswith(".segment_offset"):
            expected = (num_samples + 1,)
        elif name.endswith(".checksum"):
            expected = (num_samples, CHECKSUM_BYTES)
        if expected is not None and column.shape != expected:
            raise DamagedPack(
                f"the column has shape {column.shape}, the manifest's {num_samples} samples "
                f"need {expected}",
                path=column_path(pack, name),
            )
    return columns


def map_column(pack: Path, name: str) -> Column:
    """Map one column read-only; raises DamagedPack when it is missing or not the right
    dtype, NoPermission."""
    path = column_path(pack, name)
    try:
        column = map_npy(path)
    except FileNotFoundError:
        raise DamagedPack("the column is missing", path=path) from None
    except PermissionError:
        raise NoPermission(path) from None
    except OSError as error:
        raise cannot_open(f"the column cannot be read: {error.strerror}", path) from None
    if column.dtype != column_dtype(name):
        raise DamagedPack(f"the column is {column.dtype}, not {column_dtype(name)}", path=path)
    return column


def pack_keys(keys: Sequence[str]) -> tuple[Column, Column]:
    """The columns key_offset and keys for a list of keys."""
    encoded = [os.fsencode(key) for key in keys]
    offsets = np.zeros(len(keys) + 1, "<i8")
    np.cumsum([len(key) for key in encoded], out=offsets[1:])
    return offsets, np.frombuffer(b"".join(encoded), np.uint8)


class Keys(Sequence[str]):
    """The keys of some rows of an index, decoded one by one when asked for.

    Bytes that are not UTF-8 come as surrogate escapes, as in os.fsdecode.
    """

    def __init__(self, offsets: Column, blob: Column, rows: range | Column) -> None:
        self._offsets = offsets
        self._blob = blob
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self._key(row) for row in self._rows[i]]
        return self._key(self._rows[i])

    def _key(self, row: int) -> str:
        start, stop = int(self._offsets[row]), int(self._offsets[row + 1])
        return os.fsdecode(self._blob[start:stop].tobytes())

    def __repr__(self) -> str:
        return f"<{len(self)} keys>"
