"""A second process that does every other piece of work, where the work is Python's alone."""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import BinaryIO, Generic, TypeVar

T = TypeVar("T")

_PIPE_BYTES = 1 << 20  # a few results ahead; the most that a user may ask for


class SecondProcess(Generic[T]):
    """A fork of this process that does `work(batch)` for all `batches` and sends the results back.

    Nothing depends on it: what it fails to do, for whatever reason, is left to the caller, who then
    meets the reason. `work` must need no thread and share no file offset. It holds no file of this
    process, so no lock either, and ends when nobody is there to read its results.
    """

    def __init__(self, work: Callable[[range], T], batches: Iterable[range]) -> None:
        self._batches = deque(batches)
        read_end, write_end = os.pipe()
        with suppress(OSError):  # a user has a limit for all pipes together
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        with warnings.catch_warnings():
            # Python warns of forks where there are threads, and NumPy's are always there.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = os.fork()
        if self._process == 0:
            _work_and_exit(work, self._batches, write_end)
        os.close(write_end)
        self._results: BinaryIO = os.fdopen(read_end, "rb")

    def result(self, batch: range) -> T | None:
        """The result of a batch; None for one that is not the next of its own, or that failed."""
        if not self._batches or self._batches[0] != batch:
            return None
        self._batches.popleft()
        try:
            result: T = pickle.load(self._results)
        except (EOFError, pickle.UnpicklingError):  # it ended, perhaps in the middle of a result
            self._batches.clear()
            return None
        return result

    def close(self) -> None:
        """End it."""
        self._results.close()
        os.kill(self._process, signal.SIGKILL)  # it has nothing to lose
        os.waitpid(self._process, 0)


def _work_and_exit(work: Callable[[range], T], batches: Iterable[range], write_end: int) -> None:
    # Leaves without Python's end of a process, which would write out buffers and end transactions
    # that are the parent's.
    try:
        gc.disable()  # as it would run finalizers of the parent's objects
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != write_end:
                with suppress(OSError):  # the listing's own
                    os.close(descriptor)
        with os.fdopen(write_end, "wb") as results:
            for batch in batches:
                pickle.dump(work(batch), results, pickle.HIGHEST_PROTOCOL)
                results.flush()
    finally:
        os._exit(0)
