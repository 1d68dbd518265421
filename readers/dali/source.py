"""What DALI's external source calls: stored bytes and all that is known about them, by the batch or
the sample. No DALI is needed here, and none of it runs on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..augment import center_crops, check_flip, flips, random_resized_crops, shorter_side
from ..decode import FLIPPED_AXES
from ..errors import DspackError
from ..jpeg import stray_ranges, without
from ..order import Order, Picked, Shuffle
from ..pack import Pack

Column = npt.NDArray[Any] | list[npt.NDArray[np.uint8]]

# By EXIF orientation: exchange rows and columns, then flip left to right, then upside down.
_ORIENTATIONS = np.arange(9)
_TURNS = np.stack(
    [
        _ORIENTATIONS >= 5,
        *(np.isin(_ORIENTATIONS, axis) for axis in FLIPPED_AXES),
    ],
    axis=1,
).astype(np.int32)


@dataclass(frozen=True)
class Source:
    """What `external_source` returns. It keeps no state between calls, so DALI may call it in any
    order, from any number of processes, and pickle it."""

    pack: Pack
    order: Order
    fields: tuple[str, ...]
    per_sample: bool
    size: int
    resize: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    first_epoch: int = 0
    first_batch: int = 0

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """The fields of one batch (`info` is DALI's BatchInfo) or of one sample (SampleInfo).

        Raises StopIteration at and past the end of the epoch, DamagedSample.
        """
        try:
            epoch = self.first_epoch + info.epoch_idx
        except AttributeError:
            raise TypeError(
                "a bare iteration number does not tell the epoch, and every epoch would be the "
                "same; pass batch_info=True to fn.external_source"
            ) from None
        number = info.idx_in_epoch if self.per_sample else info.iteration
        if info.epoch_idx == 0:
            number += self.first_batch
        if number >= len(self.order):
            raise StopIteration
        picked = self.order.batch(epoch, number)
        rows = self.pack.rows_at(picked.samples)
        columns = (self._column(name, epoch, picked, rows) for name in self.fields)
        if self.per_sample:
            return tuple(np.asarray(column[0]) for column in columns)
        return tuple(columns)

    def _column(self, name: str, epoch: int, picked: Picked, rows: npt.NDArray[np.int64]) -> Column:
        index = self.pack.index
        if name == "label":
            return index["label"][rows]
        if name == "sample":
            return picked.samples
        if name == "turn":
            return _TURNS[index["orientation"][rows]]
        if name == "mirror":
            return flips(self.order.seed, epoch, picked.draws, self.flip).astype(np.int32)
        if name == "window":
            return self._windows(epoch, picked, rows)
        if name == "center":
            boxes = center_crops(
                index["width"][rows], index["height"][rows], self.resize, self.size
            )
            left, top, width, height = boxes.T
            return np.stack([top, left, top + height, left + width], axis=1).astype(np.float32)
        return self.values(name, rows)

    def _windows(
        self, epoch: int, picked: Picked, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        index = self.pack.index
        widths, heights = index["width"][rows], index["height"][rows]
        left, top, width, height = random_resized_crops(
            widths, heights, self.order.seed, epoch, picked.draws, self.scale, self.ratio
        ).T
        exchanged, left_right, upside_down = _TURNS[index["orientation"][rows]].T
        left = np.where(left_right, widths - left - width, left)
        top = np.where(upside_down, heights - top - height, top)
        windows = np.stack([top, left, height, width], axis=1)
        return np.where(exchanged[:, None], windows[:, [1, 0, 3, 2]], windows).astype(np.int32)

    def values(self, name: str, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        """A field of the pack, as DALI is fed it. Raises DamagedSample."""
        stored = self.pack.stored(rows, name)
        for value in stored:
            self.pack.announce(value, name)
        about = self.pack.manifest.fields[name]
        if about.kind == "boxes":
            return [self.pack.decoded(self.pack.value(v, name), v.row, name) for v in stored]
        dtype = np.dtype(about.dtype if about.kind == "array" else np.uint8)
        shape = about.shape or () if about.kind == "array" else -1
        values: Iterator[bytes | memoryview] = (self.pack.value(value, name) for value in stored)
        if about.kind == "encoded":
            values = map(_without_stray_bytes, values)
        return [np.frombuffer(value, dtype).reshape(shape) for value in values]


def _without_stray_bytes(data: bytes | memoryview) -> bytes | memoryview:
    """What DALI can decode: it refuses a JPEG with stray bytes in its header, which others skip."""
    ranges = stray_ranges(data)
    return without(data, ranges) if ranges else data


def external_source(
    path: str | os.PathLike[str],
    batch_size: int | None = None,
    split: str | None = None,
    *,
    train: bool,
    fields: Sequence[str] = ("image", "label"),
    seed: int = 0,
    shuffle: Shuffle | None = None,
    drop_last: bool | None = None,
    rank: int = 0,
    world_size: int = 1,
    subset: Sequence[int] | None = None,
    weights: npt.ArrayLike | None = None,
    size: int = 224,
    resize: int | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    check: bool = True,
    epoch: int = 0,
    batch: int = 0,
) -> Source:
    """A callable for `fn.external_source`, alone or with parallel=True, under fork and spawn.

        source = external_source("imgs.lmdb", 64, train=True)
        jpegs, labels = fn.external_source(source, num_outputs=2, batch_info=True, batch=True)

        source = external_source("imgs.lmdb", train=True)       # sample by sample
        jpegs, labels = fn.external_source(source, num_outputs=2, batch=False, parallel=True)

    With `batch_size` a call gives a batch, the last of an epoch may be short. Without, it gives a
    sample, and DALI leaves out the samples at the end that do not fill its batch. Either way there
    are as many batches on every rank.

    fields, one output each:
      a field of the pack: its stored bytes, 1-D uint8, less the stray bytes in a JPEG's header,
        which DALI refuses; or an array where the pack holds arrays; or boxes, float32 (k, 5), in
        pixels of the whole upright image
      "label": int64, -1 = unlabelled        "sample": int64, the number in the pack or its split
      "window": int32 top, left, height, width of the random crop (`scale`, `ratio`, as torchvision
        chooses them) in the image as it is stored, for decoders.image_slice
      "center": float32 top, left, bottom, right of the centre crop of `size` after resizing the
        shorter side to `resize` (default size * 256 / 224), in the upright image, for fn.resize
      "turn": int32 0 or 1, what makes the stored image upright: exchange rows and columns, then
        flip left to right, then upside down
      "mirror": int32, 1 with probability `flip`

    train says what `shuffle` and `drop_last` are by default; they, rank, world_size, subset and
    weights are those of readers.order.Order. check compares checksums, so that damage is told by
    the sample's name: DALI's decoder fails a whole batch without one. epoch, batch: where to
    begin. Raises NotAPack, DamagedPack, DspackError for an unknown split or field.
    """
    check_flip(flip)
    pack = Pack(path, split, check=check)
    computed = {"label", "sample", "window", "center", "turn", "mirror"}
    unknown = set(fields) - computed - set(pack.manifest.fields)
    if unknown:
        known = ", ".join(sorted({*computed, *pack.manifest.fields}))
        raise DspackError(f"no field {min(unknown)!r}; there are {known}", path=pack.path)
    order = Order(
        len(pack),
        batch_size or 1,
        seed=seed,
        shuffle=train if shuffle is None else shuffle,
        drop_last=train if drop_last is None else drop_last,
        rank=rank,
        world_size=world_size,
        subset=subset,
        weights=weights,
    )
    return Source(
        pack=pack,
        order=order,
        fields=tuple(fields),
        per_sample=batch_size is None,
        size=size,
        resize=resize or shorter_side(size),
        scale=scale,
        ratio=ratio,
        flip=flip,
        first_epoch=epoch,
        first_batch=batch,
    )
