"""open(path) -> Pack: manifest + index + shards -> bytes and samples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import formats
from .checksum import checksum
from .errors import DamagedPack, DamagedSample, DspackError, NoPermission
from .index import Column, Keys, map_columns
from .manifest import Manifest, Shard
from .open_files import allow_open_files, opened

if TYPE_CHECKING:
    from .decode import Pixels
    from .odd import Rule


@dataclass(frozen=True)
class Sample:
    """One decoded sample: `image` is RGB (height, width, 3), upright, uint8, or uint16 from a pack
    that keeps more than 8 bits; `label` is an index into the pack's classes, -1 = unlabelled;
    `key` is its path in the source; `fields` has the further fields by name, decoded as by
    Pack.field."""

    image: Pixels = field(repr=False)
    label: int
    key: str
    fields: dict[str, Any] = field(default_factory=dict, repr=False)


class Stored(NamedTuple):
    """Where one stored value lies, and the checksum it must have."""

    row: int
    shard: int
    position: int
    offset: int
    length: int
    checksum: bytes


class Pack:
    """A pack, or one split of it, as a sequence of samples.

    It is map-style and cheap: opening maps the index and opens no shard. It may be pickled,
    forked and used from many threads; each process opens the shards for itself.
    """

    def __init__(
        self, path: str | os.PathLike[str], split: str | None = None, *, check: bool = True
    ) -> None:
        """Open the pack in folder `path`, or its `split`.

        check=True compares every value read with its checksum: a hundredth of the time that
        decoding takes. Raises NotAPack, DamagedPack, NoPermission, TooManyOpenFiles, or DspackError
        for an unknown split.
        """
        self.path = Path(path).absolute()
        self.split = split
        self.check = check
        self.manifest = opened(lambda: Manifest.load(self.path), self.path)
        self.index = opened(self._map_index, self.path)
        self.rows = self._rows_of(split)
        self._readers: dict[int, formats.ShardReader] = {}

    def _map_index(self) -> dict[str, Column]:
        return map_columns(
            self.path,
            self.manifest.num_samples,
            list(self.manifest.fields),
            {file.name for file in self.manifest.files},
        )

    def _rows_of(self, split: str | None) -> range | Column:
        """The rows of the index that belong to `split`, as a range where they lie together."""
        if split is None:
            return range(self.manifest.num_samples)
        if split not in self.manifest.splits:
            known = ", ".join(self.manifest.splits) or "none"
            advice = "leave the split out, or pack with --split train=0.9,val=0.1"
            raise DspackError(
                f"no split {split!r}; the pack's splits: {known}",
                path=self.path,
                advice=None if self.manifest.splits else advice,
            )
        rows = np.flatnonzero(self.index["split"] == self.manifest.splits.index(split))
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            return range(int(rows[0]), int(rows[-1]) + 1)
        return rows if len(rows) else range(0)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: SupportsIndex) -> Sample:
        """Sample `i`, decoded; negative counts from the end. Raises IndexError, DamagedSample."""
        row = self._row(i)
        fields = {
            name: self.decoded(self._view(row, name), row, name)
            for name in self.manifest.fields
            if name != "image"
        }
        image = self._decode(self._stored(row))
        return Sample(image, int(self.index["label"][row]), self._key(row), fields)

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def read(self, i: SupportsIndex, field: str = "image") -> bytes:
        """The stored bytes of one field of sample `i`. Raises IndexError, DamagedSample."""
        return bytes(self._view(self._row(i), field))

    def image(self, i: SupportsIndex) -> Pixels:
        """The pixels of sample `i`: RGB (height, width, 3), upright, of `pixel_dtype`."""
        return self._decode(self._stored(self._row(i)))

    def labelled(self, samples: Sequence[SupportsIndex]) -> Iterator[tuple[Pixels, int]]:
        """(image, label) of several samples, one after another, with one look at the index."""
        rows = np.array([self._row(i) for i in samples], np.int64)
        labels = self.index["label"][rows].tolist()
        return zip(map(self._decode, self.stored(rows)), labels, strict=True)

    def field(self, i: SupportsIndex, name: str) -> Any:
        """The decoded value of a field of sample `i`; of "image", its pixels.

        A mask is an array, upright: uint8 or uint16 (height, width), or (height, width, 3) if it is
        RGB; None if the sample has none. A text is a str; an array is one; boxes are float32
        (k, 5) as in readers.boxes; all else is bytes.
        Raises IndexError, DspackError for an unknown field, DamagedSample.
        """
        if name == "image":
            return self.image(i)
        row = self._row(i)
        return self.decoded(self._view(row, name), row, name)

    @property
    def pixel_dtype(self) -> np.dtype[Any]:
        """The dtype of every image: uint8; uint16, of 0 to 65535, where the pack was made with
        --depth keep; or whatever a pack of arrays holds."""
        return np.dtype(self.manifest.fields["image"].dtype or np.uint8)

    @property
    def classes(self) -> list[str]:
        """Class names; a label is an index into them, whatever the split."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.manifest.classes)}

    @property
    def splits(self) -> list[str]:
        return list(self.manifest.splits)

    @property
    def content_digest(self) -> str:
        """SHA-256 in hex of the whole pack's content, the same in every format."""
        return self.manifest.content_digest

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of every sample, int64, read-only."""
        return self._column("label")

    @cached_property
    def keys(self) -> Sequence[str]:
        """The key of every sample, decoded when asked for."""
        return Keys(self.index["key_offset"], self.index["keys"], self.rows)

    def _column(self, name: str) -> Column:
        rows = self.rows
        column = self.index[name][slice(rows.start, rows.stop) if isinstance(rows, range) else rows]
        column.flags.writeable = False  # a selection of scattered rows is a copy
        return column

    def _row(self, i: SupportsIndex) -> int:
        try:
            return int(self.rows[i.__index__()])
        except IndexError:
            raise IndexError(f"sample {i} of a pack of {len(self)}") from None
        except AttributeError:
            raise TypeError(f"a sample's number is an integer, not {type(i).__name__}") from None

    def _key(self, row: int) -> str:
        return Keys(self.index["key_offset"], self.index["keys"], range(row, row + 1))[0]

    # For whole batches: the index is read once for all their samples.

    def rows_at(self, samples: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The rows of the index that belong to samples, given by number."""
        rows = self.rows
        return samples + rows.start if isinstance(rows, range) else rows[samples]

    def number_of(self, row: int) -> int:
        """The number of the sample that has a row of the index: pack[number] is it."""
        rows = self.rows
        return row - rows.start if isinstance(rows, range) else int(np.searchsorted(rows, row))

    def stored(self, rows: npt.NDArray[np.int64], field: str = "image") -> list[Stored]:
        """Where the values of a field lie for some rows."""
        return [*map(Stored._make, self._places(rows, field))]

    def _places(self, rows: npt.NDArray[np.int64], field: str) -> Iterator[tuple[Any, ...]]:
        """The members of Stored for some rows."""
        index = self.index
        columns = (
            rows,
            index["shard"][rows],
            index["position"][rows],
            index[f"{field}.offset"][rows],
            index[f"{field}.length"][rows],
            index[f"{field}.checksum"][rows].view("V16").ravel(),
        )
        return zip(*(column.tolist() for column in columns), strict=True)

    def value(self, stored: Stored, field: str = "image") -> memoryview:
        """One stored value without a copy; valid while the pack is open. Raises DamagedSample."""
        return self._views([stored], field)[0]

    def values(self, rows: npt.NDArray[np.int64], field: str = "image") -> list[memoryview]:
        """The stored values of some rows, as value() gives them."""
        return self._views(self._places(rows, field), field)

    def _views(self, places: Iterable[tuple[Any, ...]], field: str) -> list[memoryview]:
        views = []
        for row, shard, position, offset, length, expected in places:
            try:
                reader = self._readers.get(shard) or self._reader(shard)  # a call less
                view = reader.view(field, position, offset, length)
                if self.check and checksum(view) != expected:
                    raise DamagedPack("the stored bytes do not match their checksum")
            except DamagedPack as error:
                raise self.damaged(row, error.reason, field) from error
            views.append(view)
        return views

    def announce(self, stored: Stored, field: str = "image") -> None:
        """Tell the kernel that a value will be read soon; of damage value() tells."""
        with suppress(DspackError):
            self._reader(stored.shard).announce(field, stored.offset, stored.length)

    def segments(self, row: int) -> Column | None:
        """The segment offsets of a seekable JPEG (see readers.seekable); None where it is not."""
        bounds = self.index.get("image.segment_offset")
        if bounds is None:
            return None
        start, stop = bounds[row], bounds[row + 1]
        return self.index["image.segments"][start:stop] if start < stop else None

    def odd_rule(self, row: int) -> Rule | None:
        """How the image of a row is decoded if it is an odd one that is stored as it was."""
        odd, stated = self.index.get("image.odd"), self.manifest.fields["image"].odd
        if odd is None or stated is None or not odd[row]:
            return None
        from .odd import allow_pixels, stated_rule  # costs an import of cv2 and Pillow

        allow_pixels(self._num_pixels(row))
        return stated_rule(stated)

    def _num_pixels(self, row: int) -> int:
        return int(self.index["width"][row]) * int(self.index["height"][row])

    def decoded(self, value: memoryview, row: int, name: str) -> Any:
        """What field() gives for a row's stored value."""
        about = self.manifest.fields[name]
        if about.kind == "mask" and len(value):
            from .decode import UndecodableError  # costs an import of cv2
            from .masks import decode_mask

            odd_rows = self.index.get(f"{name}.odd")
            odd = odd_rows is not None and bool(odd_rows[row])
            if odd:
                from .odd import allow_pixels  # costs an import of Pillow

                allow_pixels(self._num_pixels(row))
            try:
                return decode_mask(value, odd=odd)
            except UndecodableError as error:
                raise self.damaged(row, f"the {name} cannot be decoded: {error}") from None
        if about.kind == "text":
            try:
                return str(value, "utf-8-sig")  # some editors of Windows put a mark in front
            except UnicodeDecodeError as error:
                raise self.damaged(row, f"the {name} is not UTF-8: {error.reason}") from None
        if about.kind == "boxes":
            return self._boxes(value, row, name)
        if about.kind == "array":
            return self.array(value, row, name).copy()
        return None if about.kind == "mask" else bytes(value)

    def _boxes(self, value: memoryview, row: int, name: str) -> npt.NDArray[np.float32]:
        from .boxes import decode_boxes

        try:
            return decode_boxes(value)
        except ValueError as error:
            raise self.damaged(row, f"the {name} are not rows of boxes: {error}") from None

    def array(self, value: memoryview, row: int, name: str = "image") -> npt.NDArray[Any]:
        """A row's stored value as the array that it is, without a copy. Raises DamagedSample."""
        about = self.manifest.fields[name]
        try:
            return np.frombuffer(value, about.dtype).reshape(about.shape or ())
        except ValueError as error:
            raise self.damaged(row, f"the {name} is not an array as stated: {error}") from None

    def _stored(self, row: int, field: str = "image") -> Stored:
        self.require_field(field)
        return self.stored(np.array([row]), field)[0]

    def _view(self, row: int, field: str) -> memoryview:
        return self.value(self._stored(row, field), field)

    def require_field(self, name: str) -> None:
        """Raise DspackError unless the pack has a field of this name."""
        if name not in self.manifest.fields:
            known = ", ".join(self.manifest.fields)
            raise DspackError(f"no field {name!r}; it has {known}", path=self.path)

    def _decode(self, stored: Stored) -> Pixels:
        row, value = stored.row, self.value(stored)
        if self.manifest.fields["image"].kind == "array":
            pixels: Pixels = self.array(value, row, "image").copy()
            return pixels
        from .decode import UndecodableError, decode  # costs an import of cv2

        try:
            orientation = int(self.index["orientation"][row])
            rule = self.odd_rule(row)
            return decode(value, orientation, rule, self.pixel_dtype)
        except UndecodableError as error:
            raise self.damaged(row, f"the image cannot be decoded: {error}") from None

    def damaged(self, row: int, reason: str, field: str = "image") -> DamagedSample:
        """The error that names a row's sample, and the file that holds its value of a field."""
        shard = int(self.index["shard"][row])
        if 0 <= shard < len(self.manifest.shards):
            names = [file.name for file in self.manifest.shards[shard].files]
            file = next((name for name in names if f".{field}." in name), names[0])
            reason = f"{reason} ({file})"
        return DamagedSample(
            reason,
            path=self.path,
            index=self.number_of(row),
            key=self._key(row),
            advice="`dspack verify` lists all the damage of a pack",
        )

    def _reader(self, shard: int) -> formats.ShardReader:
        reader = self._readers.get(shard)
        if reader is None:
            if not 0 <= shard < len(self.manifest.shards):
                raise DamagedPack(f"the index places it in shard {shard}, which does not exist")
            if not self._readers:
                allow_open_files(len(self.manifest.shards) * len(self.manifest.fields))
            reader = opened(lambda: self._open_shard(self.manifest.shards[shard]), self.path)
            reader = self._readers.setdefault(shard, reader)  # unless a thread was faster
        return reader

    def _open_shard(self, shard: Shard) -> formats.ShardReader:
        check_files(self.path, shard)
        reader_type = formats.load(self.manifest.format).ShardReader
        return reader_type(self.path / "shards", shard.name, list(self.manifest.fields))

    def close(self) -> None:
        """Let go of the shards; they are opened again when needed."""
        self._readers = {}

    def __enter__(self) -> Pack:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "split": self.split, "check": self.check}

    def __setstate__(self, state: dict[str, Any]) -> None:
        Pack.__init__(self, state["path"], state["split"], check=state["check"])

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split {self.split!r}"
        return f"<Pack {self.path}{split}: {len(self)} samples, {self.manifest.format}>"


def open(path: str | os.PathLike[str], split: str | None = None, *, check: bool = True) -> Pack:
    """Open a pack; see Pack."""
    return Pack(path, split, check=check)


def check_files(pack: Path, shard: Shard) -> None:
    """Raise DamagedPack unless the shard's files are there with their sizes, NoPermission where
    they may not be read.

    A mapped file that is shorter than it should be kills the process that reads past its end.
    """
    for file in shard.files:
        path = pack / file.name
        try:
            size = path.stat().st_size
        except PermissionError:
            raise NoPermission(path) from None
        except OSError as error:
            raise DamagedPack(f"cannot be read: {error.strerror}", path=path) from None
        if size != file.num_bytes:
            raise DamagedPack(f"has {size} bytes, not {file.num_bytes}", path=path)
        check_readable(path)


def check_readable(path: Path) -> None:
    """Raise NoPermission unless this process may read a file."""
    if not os.access(path, os.R_OK):
        raise NoPermission(path)
