"""A second process that does a share of the work, where the work is Python's alone."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")

_PIPE_BYTES = 1 << 20  # a few results ahead; the most that a user may ask for
_PATIENCE_SECONDS = 30.0  # many times what a batch takes, even from a mount that hiccups


class SecondProcess(Generic[T]):
    """A fork of this process that does `work(batch)` for all `batches` and sends the results back.

    Nothing depends on it: what it fails to do, for whatever reason, is left to the caller, who then
    meets the reason. `work` must need no thread and share no file offset. It holds no file of this
    process, so no lock either, and ends when nobody is there to read its results. Raises OSError
    where there may be no further process, or pipe.
    """

    def __init__(self, work: Callable[[range], T], batches: Iterable[range]) -> None:
        from multiprocessing.connection import Pipe  # costs an import, and most runs do without

        self._batches = deque(batches)
        parent = os.getpid()
        self._results, results = Pipe(duplex=False)
        try:
            with suppress(OSError):  # a user has a limit for all pipes together
                fcntl.fcntl(results.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            with warnings.catch_warnings():
                # Python warns of forks where there are threads, and NumPy's are always there.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._process = os.fork()
            if self._process == 0:
                _work(work, self._batches, results)
        except BaseException:
            self._results.close()
            raise
        finally:
            if os.getpid() != parent:
                # Whatever happened, a Ctrl-C before the first line of _work() included: without
                # Python's end of a process, which would write out buffers and end transactions
                # that are the parent's.
                os._exit(0)
            results.close()

    def result(self, batch: range) -> T | None:
        """The result of a batch; None for one that is not the next of its own, or that failed."""
        if not self._batches or self._batches[0] != batch:
            return None
        self._batches.popleft()
        try:
            # It never answers if another thread held a lock when it was forked, and it needs that.
            if self._results.poll(_PATIENCE_SECONDS):
                result: T = self._results.recv()
                return result
        except (EOFError, OSError):  # it ended, perhaps in the middle of a result
            pass
        self._batches.clear()
        return None

    def close(self) -> None:
        """End it."""
        self._results.close()
        # The program around may wait for all its children, or have the kernel do that.
        with suppress(ProcessLookupError, ChildProcessError):
            if os.waitpid(self._process, os.WNOHANG) == (0, 0):  # or its number may be another's
                os.kill(self._process, signal.SIGKILL)  # it has nothing to lose
                os.waitpid(self._process, 0)


def _work(
    work: Callable[[range], T], batches: Iterable[range], results: Connection[T, None]
) -> None:
    gc.disable()  # as it would run finalizers of the parent's objects
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        # Not even 0 to 2 are left: where they were closed they are files of the parent's.
        if descriptor != results.fileno():
            with suppress(OSError):  # the listing's own
                os.close(descriptor)
    for batch in batches:
        results.send(work(batch))
