"""Values one after another, read in order through a buffer that stays in the processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .errors import DamagedPack

BLOCK_BYTES = 1 << 20

ReadInto = Callable[[int, memoryview], None]  # fills the buffer from this byte of the values on
Observe = Callable[[memoryview], None]  # is shown every byte once, in order


class Tiled(NamedTuple):
    """The values of one field: value i is bytes [offsets[i], offsets[i + 1]) of `num_bytes`."""

    offsets: npt.NDArray[Any]
    num_bytes: int
    read_into: ReadInto
    observe: Observe = lambda new: None


def read_in_order(fields: Mapping[str, Tiled], path: Path) -> Iterator[tuple[int, str, memoryview]]:
    """(position, field, value) of every value, fields sorted; a value is valid until the next.

    Raises DamagedPack, which names `path`, unless every field's offsets tile its values.
    """
    names = sorted(fields)
    for name in names:
        offsets, num_bytes = fields[name][:2]
        tile = (
            len(offsets) == len(fields[names[0]].offsets) > 0
            and offsets[0] == 0
            and offsets[-1] == num_bytes
            and bool(np.all(np.diff(offsets) >= 0))
        )
        if not tile:
            raise DamagedPack(f"the offsets of {name} do not tile its values", path=path)
    bounds = [fields[name].offsets.tolist() for name in names]
    blocks = [Blocks(*fields[name][1:]) for name in names]
    for position in range(len(bounds[0]) - 1):
        for name, of, block in zip(names, bounds, blocks, strict=True):
            yield position, name, block.read(of[position], of[position + 1])


class Blocks:
    """Reads slices of `num_bytes` bytes of values, a block at a time."""

    def __init__(self, num_bytes: int, read_into: ReadInto, observe: Observe) -> None:
        self._num_bytes = num_bytes
        self._read_into = read_into
        self._observe = observe
        self._buffer = memoryview(bytearray(BLOCK_BYTES))
        self._start = self._stop = 0

    def read(self, start: int, stop: int) -> memoryview:
        """The values' bytes [start, stop), valid until the next call; slices come in order."""
        if stop > self._stop:
            if stop - start > len(self._buffer):
                self._buffer = memoryview(bytearray(stop - start))
            seen = self._stop - start
            self._start, self._stop = start, min(start + len(self._buffer), self._num_bytes)
            self._read_into(start, self._buffer[: self._stop - start])
            self._observe(self._buffer[seen : self._stop - start])
        return self._buffer[start - self._start : stop - self._start]
