"""All samples: prepared ahead of the writer and in order, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import cv2

from .images.pixels import PixelOptions
from .prepare import AS_THEY_ARE, Prepared, prepare
from .second_process import SecondProcess
from .sources import FieldSource, Source, folder

# Files go to a thread by the batch: the cost of handing one over is shared by many small files.
_BATCH_BYTES = 1 << 20
_BATCH_FILES_MAX = 256
_BATCH_FILES_START = 8  # until the mean size of a file is known
_READERS_MAX = 64  # more bring no more on the slowest mount measured (1 ms a call)
_BUSY_SHARE = 0.5  # of the processors' time: below that, reading waits for the disk or the mount
_SMALL_BYTES = 16 << 10  # below that, reading a file is mostly Python
_ELAPSED_SECONDS = 0.02  # before a judgement: in less, one other process on the machine decides it
_SHARED_FILES_MIN = 2000  # to begin a second process takes as long as some hundreds
_THEIRS_OF_5 = (1, 2, 4)  # batches; this process also writes
_SHARED_BATCH_FILES = 128  # what both processes hold of them stays in their processors' caches


def prepare_all(
    source: Source,
    paths: Sequence[str],
    entries: range,
    threads: int,
    *,
    decode: bool,
    pixels: PixelOptions = AS_THEY_ARE,
    io_threads: int | None = None,
    fields: Sequence[FieldSource] = (),
) -> Generator[list[Prepared], None, None]:
    """Prepare `entries` of `paths`, batch by batch and in order, several batches at once.

    `io_threads` is how many threads read, and look at what they have read. By default it is found
    while they do: `threads`, or more where reading takes long.
    """
    cv2.setNumThreads(0)  # one picture is too small to share
    # Decoding runs beside Python, so threads help; looking at headers is Python, and they do not.
    plain = (pixels == AS_THEY_ARE or pixels.copied is not None) and not fields
    looks_only = not decode and plain  # masks may be decoded
    readers = _Readers(io_threads or (1 if looks_only else threads), may_grow=io_threads is None)
    pending: deque[Future[list[Prepared]]] = deque()
    batch_files = _BATCH_FILES_START
    start = entries.start

    def work(batch: range) -> list[Prepared]:
        return [prepare(source, paths[i], i, decode, pixels, fields) for i in batch]

    def work_if_permitted(batch: range) -> list[Prepared]:
        with readers.permits:
            return work(batch)

    if looks_only and io_threads is None:
        two = threads > 1 and isinstance(source, folder.Source)
        for batch_done in _prepare_small(work, entries, readers, two=two):
            start, batch_files = batch_done[-1].entry + 1, _files_like(batch_done)
            yield batch_done

    num_threads = max(_READERS_MAX, readers.number) + 1
    with ThreadPoolExecutor(num_threads, thread_name_prefix="prepare") as pool:
        try:
            while pending or start < entries.stop:
                # One batch more than there are readers: none of them waits for the writer.
                while len(pending) <= readers.number and start < entries.stop:
                    batch = range(start, min(start + batch_files, entries.stop))
                    pending.append(pool.submit(work_if_permitted, batch))
                    start = batch.stop
                batch_done = readers.wait_for(pending.popleft())
                batch_files = _files_like(batch_done)
                yield batch_done
        finally:
            for future in pending:
                future.cancel()


def _prepare_small(
    work: Callable[[range], list[Prepared]], entries: range, readers: _Readers, *, two: bool
) -> Iterator[list[Prepared]]:
    """Prepare entries as long as files are small and nothing is waited for.

    All is Python then, and threads that take turns are a quarter slower than one that does not
    stop. With `two` processes, and many files, the second takes three batches of five.
    """
    start, batch_files = entries.start, _BATCH_FILES_START
    elapsed = busy = 0.0
    second: SecondProcess[list[Prepared]] | None = None
    try:
        while start < entries.stop:
            batch = range(start, min(start + batch_files, entries.stop))
            start = batch.stop
            batch_done = second.result(batch) if second else None
            if batch_done is not None:
                yield batch_done
                continue
            before, busy_before = time.perf_counter(), time.thread_time()
            batch_done = work(batch)
            elapsed += time.perf_counter() - before
            busy += time.thread_time() - busy_before
            yield batch_done
            if elapsed >= _ELAPSED_SECONDS:
                if busy < _BUSY_SHARE * elapsed:
                    return readers.grow(busy / elapsed)
                elapsed = busy = 0.0
            if _mean_bytes(batch_done) > _SMALL_BYTES:
                return None
            if second is None and two and entries.stop - start >= _SHARED_FILES_MIN:
                batch_files, two = _SHARED_BATCH_FILES, False
                second = _second_process(work, range(start, entries.stop))
            elif second is None:
                batch_files = _files_like(batch_done)
    finally:
        if second is not None:
            second.close()


def _second_process(
    work: Callable[[range], list[Prepared]], entries: range
) -> SecondProcess[list[Prepared]] | None:
    """One that does its share of `entries`, batch by batch; None where there may be none."""
    batches = [
        entries[i : i + _SHARED_BATCH_FILES] for i in range(0, len(entries), _SHARED_BATCH_FILES)
    ]
    theirs = [batch for number, batch in enumerate(batches) if number % 5 in _THEIRS_OF_5]
    try:
        return SecondProcess(work, theirs)
    except OSError:  # this user may have no more processes, or this process no more files
        return None


def _mean_bytes(batch: list[Prepared]) -> int:
    return max(sum([max(prepared.source_bytes, 0) for prepared in batch]) // len(batch), 1)


def _files_like(batch: list[Prepared]) -> int:
    """How many files of these sizes make a batch."""
    return min(max(_BATCH_BYTES // _mean_bytes(batch), 1), _BATCH_FILES_MAX)


class _Readers:
    """How many threads may read at once: as few as keep the processors busy, which on a warm cache
    is no more than there are processors, and many where reads take long (a slow mount, a cold
    disk). More than that only hurts."""

    _WINDOW_SECONDS = 0.1
    _WAIT_SHARE = 0.5  # of the writer's time: below that the writer is the limit

    def __init__(self, number: int, *, may_grow: bool) -> None:
        self.number = number
        self._may_grow = may_grow
        self.permits = threading.Semaphore(number)
        self._processors = min(number, len(os.sched_getaffinity(0)))
        self._begin_window()

    def _begin_window(self) -> None:
        self._started, self._cpu = time.perf_counter(), time.process_time()
        self._waited = 0.0

    def wait_for(self, future: Future[list[Prepared]]) -> list[Prepared]:
        """Wait for a batch, and learn from the wait."""
        before = time.perf_counter()
        result = future.result()
        if not self._may_grow:
            return result
        now = time.perf_counter()
        self._waited += now - before
        elapsed = now - self._started
        if elapsed >= self._WINDOW_SECONDS:
            busy = (time.process_time() - self._cpu) / elapsed / self._processors
            if busy < _BUSY_SHARE and self._waited > self._WAIT_SHARE * elapsed:
                self.grow(busy)
            self._begin_window()
        return result

    def grow(self, busy: float) -> None:
        """Take more readers, after these kept the processors busy for this share of the time: by
        Little's law as many more."""
        wanted = min(round(self.number / max(busy, 1 / _READERS_MAX)), _READERS_MAX)
        if wanted > self.number:
            self.permits.release(wanted - self.number)
            self.number = wanted
