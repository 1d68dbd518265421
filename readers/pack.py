"""open(path) -> Pack: manifest + index + shards -> bytes and samples."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from . import formats
from .checksum import checksum
from .errors import DamagedPack, DamagedSample, DspackError
from .index import Column, Keys, map_columns
from .manifest import Manifest, Shard

_shards_lock = threading.Lock()
_open_shards: weakref.WeakValueDictionary[tuple[str, str], formats.ShardReader] = (
    weakref.WeakValueDictionary()
)
_fork_generation = 0


@dataclass(frozen=True)
class Sample:
    """One decoded sample: `image` is uint8 RGB (height, width, 3), upright; `label` is an index
    into the pack's classes, -1 = unlabelled; `key` is its path in the source."""

    image: npt.NDArray[np.uint8] = field(repr=False)
    label: int
    key: str


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
        decoding takes. Raises NotAPack, DamagedPack, or DspackError for an unknown split.
        """
        self.path = Path(path).absolute()
        self.split = split
        self.check = check
        self.manifest = Manifest.load(self.path)
        self.index = map_columns(self.path, self.manifest.num_samples, list(self.manifest.fields))
        self.rows = self._rows_of(split)
        self._readers: dict[int, formats.ShardReader] = {}
        self._generation = _fork_generation

    def _rows_of(self, split: str | None) -> range | Column:
        """The rows of the index that belong to `split`, as a range where they lie together."""
        if split is None:
            return range(self.manifest.num_samples)
        if split not in self.manifest.splits:
            known = ", ".join(self.manifest.splits) or "none"
            raise DspackError(f"no split {split!r}; the pack's splits: {known}", path=self.path)
        rows = np.flatnonzero(self.index["split"] == self.manifest.splits.index(split))
        if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
            return range(int(rows[0]), int(rows[-1]) + 1)
        return rows if len(rows) else range(0)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: SupportsIndex) -> Sample:
        """Sample `i`, decoded; negative counts from the end. Raises IndexError, DamagedSample."""
        row = self._row(i)
        return Sample(self._decode(row), int(self.index["label"][row]), self._key(row))

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))

    def read(self, i: SupportsIndex, field: str = "image") -> bytes:
        """The stored bytes of one field of sample `i`. Raises IndexError, DamagedSample."""
        return bytes(self._view(self._row(i), field))

    def image(self, i: SupportsIndex) -> npt.NDArray[np.uint8]:
        """The pixels of sample `i`: uint8 RGB (height, width, 3), upright."""
        return self._decode(self._row(i))

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
        return self.index[name][slice(rows.start, rows.stop) if isinstance(rows, range) else rows]

    def _row(self, i: SupportsIndex) -> int:
        try:
            return int(self.rows[i.__index__()])
        except IndexError:
            raise IndexError(f"sample {i} of a pack of {len(self)}") from None
        except AttributeError:
            raise TypeError(f"a sample's number is an integer, not {type(i).__name__}") from None

    def _key(self, row: int) -> str:
        return Keys(self.index["key_offset"], self.index["keys"], range(row, row + 1))[0]

    def _view(self, row: int, field: str) -> memoryview:
        """One stored value without a copy; valid while the pack is open."""
        index = self.index
        try:
            length = int(index[f"{field}.length"][row])
        except KeyError:
            known = ", ".join(self.manifest.fields)
            raise DspackError(f"no field {field!r}; it has {known}", path=self.path) from None
        try:
            value = self._reader(int(index["shard"][row])).view(
                field, int(index["position"][row]), int(index[f"{field}.offset"][row]), length
            )
            if self.check and checksum(value) != index[f"{field}.checksum"][row].tobytes():
                raise DamagedPack("the stored bytes do not match their checksum")
        except DamagedPack as error:
            raise self._damaged(row, error.reason) from error
        return value

    def _decode(self, row: int) -> npt.NDArray[np.uint8]:
        stored = self.manifest.fields["image"]
        if stored.kind == "array":
            array = np.frombuffer(self._view(row, "image"), stored.dtype)
            return array.reshape(stored.shape or ()).copy()
        from .decode import UndecodableError, decode  # costs an import of cv2

        try:
            return decode(self._view(row, "image"), int(self.index["orientation"][row]))
        except UndecodableError as error:
            raise self._damaged(row, f"the image cannot be decoded: {error}") from None

    def _damaged(self, row: int, reason: str) -> DamagedSample:
        return DamagedSample(
            reason,
            path=self.path,
            index=row,
            key=self._key(row),
            advice="`dspack verify` lists all the damage of a pack",
        )

    def _reader(self, shard: int) -> formats.ShardReader:
        if self._generation != _fork_generation:
            self._readers, self._generation = {}, _fork_generation
        reader = self._readers.get(shard)
        if reader is None:
            reader = self._readers[shard] = _open_shard(
                self.path, self.manifest, self.manifest.shards[shard]
            )
        return reader

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
    """Raise DamagedPack unless the shard's files are there with their sizes.

    A mapped file that is shorter than it should be kills the process that reads past its end.
    """
    for file in shard.files:
        path = pack / file.name
        try:
            size = path.stat().st_size
        except OSError as error:
            raise DamagedPack(f"cannot be read: {error.strerror}", path=path) from None
        if size != file.num_bytes:
            raise DamagedPack(f"has {size} bytes, not {file.num_bytes}", path=path)


def _open_shard(pack: Path, manifest: Manifest, shard: Shard) -> formats.ShardReader:
    """The process's one reader of a shard: LMDB must not open a file twice."""
    key = (os.path.realpath(pack), shard.name)
    with _shards_lock:
        reader = _open_shards.get(key)
        if reader is None:
            check_files(pack, shard)
            reader = formats.load(manifest.format).ShardReader(
                pack / "shards", shard.name, list(manifest.fields)
            )
            _open_shards[key] = reader
        return reader


def _forget_shards_after_fork() -> None:
    # A fork inherits LMDB's environments, but must not use them; and LMDB refuses to open a
    # file that the process still holds open, so they are closed here.
    global _fork_generation, _shards_lock
    _shards_lock = threading.Lock()  # another thread of the parent may have held the old one
    _fork_generation += 1
    for reader in list(_open_shards.values()):
        reader.close()
    _open_shards.clear()


os.register_at_fork(after_in_child=_forget_shards_after_fork)
