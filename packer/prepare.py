"""Read and check files in threads, ahead of the writer and in order, in bounded memory."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from readers.checksum import checksum

from .inspect import Image, Reject, check_pixels, inspect
from .sources import Source

# Files go to a thread by the batch: the cost of handing one over is shared by many small files.
_BATCH_BYTES = 1 << 20
_BATCH_FILES_MAX = 256
_BATCH_FILES_START = 8  # until the mean size of a file is known
_READERS_MAX = 64  # more bring no more on the slowest mount measured (1 ms a call)


class Prepared(NamedTuple):
    """One file, read and checked: a sample, or a reject with its reason."""

    entry: int
    source_bytes: int
    source_ns: int
    data: bytes
    checksum: bytes = b""
    image: Image | None = None
    reject: Reject | None = None


def prepare(source: Source, path: str, entry: int, decode: bool) -> Prepared:
    """Read one file and look at it, with `decode` at all its pixels. Raises SourceError."""
    try:
        data, num_bytes, modified_ns = source.read(path)
    except Reject as reject:
        return Prepared(entry, -1, -1, b"", reject=reject)
    try:
        image = inspect(data)
        if decode:
            data = check_pixels(data, image)
        elif image.missing_end:
            raise Reject("image data missing", "no end marker; --check decode looks closer")
    except Reject as reject:
        return Prepared(entry, num_bytes, modified_ns, b"", reject=reject)
    return Prepared(entry, num_bytes, modified_ns, data, checksum(data), image)


def prepare_all(
    source: Source, paths: Sequence[str], entries: range, threads: int, *, decode: bool
) -> Iterator[list[Prepared]]:
    """Prepare `entries` of `paths`, batch by batch and in order, several batches at once."""
    depth = _Depth(threads)
    pending: deque[Future[list[Prepared]]] = deque()
    batch_files = _BATCH_FILES_START
    start = entries.start

    def work(batch: range) -> list[Prepared]:
        return [prepare(source, paths[entry], entry, decode) for entry in batch]

    # The pool starts a thread only when none is idle: `depth` batches under way are as many.
    with ThreadPoolExecutor(_READERS_MAX, thread_name_prefix="prepare") as pool:
        try:
            while pending or start < entries.stop:
                while len(pending) < depth.now and start < entries.stop:
                    batch = range(start, min(start + batch_files, entries.stop))
                    pending.append(pool.submit(work, batch))
                    start = batch.stop
                batch_done = depth.measure(pending.popleft())
                num_bytes = sum(max(p.source_bytes, 0) for p in batch_done)
                mean_bytes = max(num_bytes // len(batch_done), 1)
                batch_files = min(max(_BATCH_BYTES // mean_bytes, 1), _BATCH_FILES_MAX)
                yield batch_done
        finally:
            for future in pending:
                future.cancel()


class _Depth:
    """How many batches to have under way: as many as there are threads while processors are the
    limit, and more while they idle because reads take long (a slow mount, a cold disk)."""

    _WINDOW_SECONDS = 0.2
    _IDLE_SHARE = 0.5  # of the processors; a warm cache and Python's lock leave less than that
    _WAIT_SHARE = 0.5  # of the writer's time

    def __init__(self, threads: int) -> None:
        self.now = threads + 1  # one more than there are threads at work, so none waits
        self._processors = min(threads, os.cpu_count() or 1)
        self._begin()

    def _begin(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._waited = 0.0

    def measure(self, future: Future[list[Prepared]]) -> list[Prepared]:
        """Wait for a batch, and learn from the wait."""
        before = time.perf_counter()
        result = future.result()
        now = time.perf_counter()
        self._waited += now - before
        elapsed = now - self._started
        if elapsed >= self._WINDOW_SECONDS:
            busy = (time.process_time() - self._cpu) / elapsed / self._processors
            if busy < 1 - self._IDLE_SHARE and self._waited > self._WAIT_SHARE * elapsed:
                self.now = min(2 * self.now, _READERS_MAX)
            self._begin()
        return result
