"""Memory for batches that is used again once nobody looks at it any more."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt


class Buffers:
    """Arrays whose memory comes back when the last view of it is gone.

    Fresh memory costs a page fault every 4 KiB, which is more than a copy of raw pixels takes.
    """

    def __init__(self) -> None:
        self._unused: list[memoryview] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Buffers, ()  # memory stays in its process

    def take(self, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array of this shape with arbitrary content. May be called from many threads."""
        dtype = np.dtype(dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        memory = self._pop(num_bytes) or np.empty(num_bytes, np.uint8).data
        # Views of this array, tensors on it, and views of those all keep it alive; NumPy never
        # looks past an array on foreign memory for the owner. So its end is the end of them all.
        array = np.frombuffer(memory, np.uint8)
        weakref.finalize(array, self._unused.append, memory).atexit = False
        return array[:num_bytes].view(dtype).reshape(shape)

    def _pop(self, num_bytes: int) -> memoryview | None:
        """Unused memory that is large enough. What is too small makes way for larger."""
        while True:
            try:
                memory = self._unused.pop()
            except IndexError:
                return None
            if memory.nbytes >= num_bytes:
                return memory
