"""Which samples make up which batch: a pure function of (seed, epoch, rank).

Every rank sees the same order of the epoch and takes its own batches of it, so batch b of a rank
is known without the ones before: that is all that resuming needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from .augment import epoch_order, uniforms
from .checksum import checksum

Rows = npt.NDArray[np.int64]
Shuffle = Literal[True, False, "blocks"]

# shuffle="blocks": a window of rows that is read from a few dozen places. 64 blocks of 1024
# photographs are 7 GB, what a workstation's page cache holds.
BLOCK_ROWS = 1024
WINDOW_BLOCKS = 64


class Picked(NamedTuple):
    """One batch: `samples` are numbers within the dataset, `draws` name each sample's random
    draws (the sample itself, or its place in the epoch where a sample may come twice), `places` are
    places in the epoch's order."""

    samples: Rows
    draws: Rows
    places: Rows


class Order:
    """The batches of every epoch, for one rank."""

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = True,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
        subset: Sequence[int] | Rows | None = None,
        weights: npt.ArrayLike | None = None,
    ) -> None:
        """`subset` restricts to these samples. `weights`, one for each sample (of the subset),
        draws with replacement, as many as there are samples. With `drop_last` the samples that do
        not fill a batch on every rank are left for another epoch; without it the last batches are
        short, and at most world_size - 1 samples from the epoch's start pad them to equal length.
        shuffle="blocks" keeps reads local, for packs larger than memory. Raises ValueError for
        arguments that contradict each other, and where there is not one batch.
        """
        if batch_size < 1 or not 0 <= rank < world_size:
            raise ValueError(f"batch_size {batch_size}, rank {rank} of {world_size}")
        if shuffle not in (True, False, "blocks"):
            raise ValueError(f'shuffle is {shuffle!r}, not True, False or "blocks"')
        self._subset = None if subset is None else _checked(subset, num_samples)
        self.num_samples = num_samples if self._subset is None else len(self._subset)
        self._cumulative = _cumulative(weights, self.num_samples)
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self._cached: tuple[int, Rows] | None = None
        if len(self) == 0:
            short = (
                f"{self.num_samples} samples are no batch of {batch_size} on {world_size} rank(s)"
            )
            raise ValueError(f"{short}: use a smaller batch_size, or drop_last=False")

    @cached_property
    def selection(self) -> str | None:
        """A checksum of the subset and the weights; None where there are neither."""
        given = [array for array in (self._subset, self._cumulative) if array is not None]
        return checksum(b"".join(array.tobytes() for array in given)).hex() if given else None

    def __len__(self) -> int:
        """Batches in an epoch: the same on every rank."""
        step = self.batch_size * self.world_size
        return self.num_samples // step if self.drop_last else -(-self.num_samples // step)

    def batch(self, epoch: int, number: int) -> Picked:
        """Batch `number` of `epoch` for this rank."""
        start = number * self.batch_size * self.world_size
        left = self.num_samples - start
        size = self.batch_size
        if left < size * self.world_size:  # the last one: split evenly, padded from the start
            size = -(-left // self.world_size)
        start += self.rank * size
        return self._pick(epoch, np.arange(start, start + size))

    def at(self, epoch: int, place: int) -> Picked:
        """The sample at one place of an epoch's order, which begins anew behind its end."""
        return self._pick(epoch, np.array([place]))

    def _pick(self, epoch: int, places: Rows) -> Picked:
        order = self._order(epoch)
        places = places % len(order)
        samples = order[places] if self._subset is None else self._subset[order[places]]
        return Picked(samples, samples if self._cumulative is None else places, places)

    def _order(self, epoch: int) -> Rows:
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._make_order(epoch))
        return self._cached[1]

    def _make_order(self, epoch: int) -> Rows:
        n = self.num_samples
        if self._cumulative is not None:
            draws = uniforms(self.seed, epoch, np.arange(n))
            return np.searchsorted(self._cumulative, draws, side="right").clip(0, n - 1)
        if self.shuffle == "blocks":
            return _block_order(n, self.seed, epoch)
        return epoch_order(n, self.seed, epoch) if self.shuffle else np.arange(n)


def _checked(subset: Sequence[int] | Rows, num_samples: int) -> Rows:
    samples = np.asarray(subset)
    if len(samples) and samples.dtype.kind not in "iu":
        raise ValueError(f"subset holds the numbers of samples, not {samples.dtype}")
    if len(samples) and not 0 <= samples.min() <= samples.max() < num_samples:
        raise ValueError(
            f"subset has {samples.min()} to {samples.max()}, there are {num_samples} samples"
        )
    return samples.astype(np.int64)


def _cumulative(weights: npt.ArrayLike | None, num_samples: int) -> npt.NDArray[np.float64] | None:
    if weights is None:
        return None
    w = np.asarray(weights, np.float64)
    if w.shape != (num_samples,) or not np.all(np.isfinite(w)) or w.min() < 0 or w.sum() == 0:
        raise ValueError(f"weights must be {num_samples} numbers, none negative, not all zero")
    cumulative = np.cumsum(w)
    normalised: npt.NDArray[np.float64] = cumulative / cumulative[-1]
    return normalised


def balanced_weights(labels: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Weights that draw every class equally often; unlabelled samples (-1) are never drawn."""
    labels = np.asarray(labels)
    counts = np.bincount(labels + 1)
    counts[0] = 0
    weights: npt.NDArray[np.float64] = np.where(
        labels >= 0, 1 / np.maximum(counts, 1)[labels + 1], 0
    )
    return weights


def _block_order(num_samples: int, seed: int, epoch: int) -> Rows:
    """Blocks of consecutive rows in random order, and random order within each few of them.

    Reads stay within WINDOW_BLOCKS blocks for a while, so a pack larger than memory is read from
    disk once an epoch, in large pieces.
    """
    blocks = epoch_order(-(-num_samples // BLOCK_ROWS), seed, epoch)
    rows = (blocks[:, None] * BLOCK_ROWS + np.arange(BLOCK_ROWS)).ravel()
    rows = rows[rows < num_samples]
    window_rows = BLOCK_ROWS * WINDOW_BLOCKS
    for number, start in enumerate(range(0, num_samples, window_rows), 1):
        window = rows[start : start + window_rows]
        window[:] = window[epoch_order(len(window), seed + number, epoch)]
    return rows
