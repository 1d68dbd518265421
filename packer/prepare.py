"""Read and check files in threads, ahead of the writer and in order, in bounded memory."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import cv2
import numpy.typing as npt

from readers.checksum import checksum
from readers.errors import SourceError

from . import repack
from .fields import fold_stamps
from .helper import Helper
from .images.geometry import Geometry, unchanged
from .images.inspect import Image, Reject, check_pixels, inspect
from .images.pixels import PixelOptions
from .images.restart import require_jpegtran
from .images.transform import Stored, is_plain, transform
from .sources import FieldSource, File, MadeFieldSource, Source, folder, pack
from .values import Found, Value, store

# Files go to a thread by the batch: the cost of handing one over is shared by many small files.
_BATCH_BYTES = 1 << 20
_BATCH_FILES_MAX = 256
_BATCH_FILES_START = 8  # until the mean size of a file is known
_READERS_MAX = 64  # more bring no more on the slowest mount measured (1 ms a call)
_BUSY_SHARE = 0.5  # of the processors' time: below that, reading waits for the disk or the mount
_SMALL_BYTES = 16 << 10  # below that, reading a file is mostly Python
_ELAPSED_SECONDS = 0.02  # before a judgement: in less, one other process on the machine decides it
_HELPED_FILES_MIN = 2000  # to begin a second process takes as long as some hundreds
_HELPED_BATCH_FILES = 128  # what both processes hold of them stays in their processors' caches
_PROBES_MAX = 64  # files to learn from whether all images are of one size
_AS_THEY_ARE = PixelOptions()


class Prepared(NamedTuple):
    """One file, read and checked: a sample, or a reject with its reason. `data` is what is stored;
    `change`, `segments`, `is_odd` and `geometry` as in packer.images.transform.Stored;
    `orientation` is that of the file, not of what is stored. `values` are those of the further
    fields, in their order, with their checksums. `source_bytes` and `source_ns` stand for all files
    of the sample."""

    entry: int
    source_bytes: int
    source_ns: int
    data: bytes
    checksum: bytes = b""
    image: Image | None = None
    reject: Reject | None = None
    change: str | None = None
    segments: npt.NDArray[Any] | None = None
    is_odd: bool = False
    geometry: Geometry | None = None
    orientation: int = 1
    values: tuple[tuple[Value, bytes], ...] = ()

    @property
    def num_bytes(self) -> int:
        """The bytes that are stored."""
        if not self.values:
            return len(self.data)
        return len(self.data) + sum([len(value.data) for value, _ in self.values])


def prepare(
    source: Source,
    path: str,
    entry: int,
    decode: bool,
    pixels: PixelOptions = _AS_THEY_ARE,
    fields: Sequence[FieldSource] = (),
) -> Prepared:
    """Read a sample's files and look at them, with `decode` at all pixels. Raises SourceError."""
    prepared = _prepare_image(source, path, entry, decode, pixels)
    return _with_fields(prepared, path, decode, pixels, fields) if fields else prepared


def _with_fields(
    prepared: Prepared,
    path: str,
    decode: bool,
    pixels: PixelOptions,
    fields: Sequence[FieldSource],
) -> Prepared:
    """The sample with its further fields, or a reject for the first that cannot be stored."""
    # All are read even if the first is a reject: resuming looks at the stamps of all.
    found = [_read_field(field, path) for field in fields]
    stamps = [f[1:3] if isinstance(f, File) else (-1, -1) for f in found]
    num_bytes, modified_ns = fold_stamps([(prepared.source_bytes, prepared.source_ns), *stamps])
    reject, values = prepared.reject, []
    if prepared.image is not None:
        geometry = prepared.geometry or unchanged(prepared.image.width, prepared.image.height)
        orientation = prepared.orientation
        try:
            for field, file in zip(fields, found, strict=True):
                value = _value(field, file, path, geometry, orientation, decode, pixels)
                values.append((value, checksum(value.data)))
        except Reject as problem:
            reject = problem
    if reject is not None:
        return Prepared(prepared.entry, num_bytes, modified_ns, b"", reject=reject)
    return prepared._replace(source_bytes=num_bytes, source_ns=modified_ns, values=tuple(values))


def _read_field(field: FieldSource, path: str) -> File | Reject | None:
    try:
        return field.read(path)
    except Reject as reject:
        return reject


def _value(
    field: FieldSource,
    file: File | Reject | None,
    path: str,
    geometry: Geometry,
    orientation: int,
    decode: bool,
    pixels: PixelOptions,
) -> Value:
    if isinstance(file, Reject):
        raise file
    if file is None:
        return Value(b"", (f"no {field.name}, an empty value is stored",))
    where = field.where(path)
    found = Found(file.data, field.name, where, path, geometry, orientation, decode, pixels)
    if isinstance(field, MadeFieldSource):
        return field.store(found)
    return store(field.about.kind, found)


def _prepare_image(
    source: Source, path: str, entry: int, decode: bool, pixels: PixelOptions
) -> Prepared:
    if pixels.copied is not None:
        return _prepare_copy(source, path, entry, decode)
    try:
        data, num_bytes, modified_ns, kind = source.read(path)
    except Reject as reject:
        return Prepared(entry, -1, -1, b"", reject=reject)
    try:
        image = inspect(data, pixels.max_pixels)
        if kind is not None:
            image.kind, image.odd = kind, image.odd and kind
        if image.profile and pixels.icc is None:
            image.warnings += (_taken_as_srgb(image),)
        stored = _stored(data, image, decode, pixels)
    except Reject as reject:
        return Prepared(entry, num_bytes, modified_ns, b"", reject=reject)
    return _prepared(entry, num_bytes, modified_ns, stored, image.orientation)


def _stored(data: bytes, image: Image, decode: bool, pixels: PixelOptions) -> Stored:
    """What is stored of an inspected file. Raises Reject."""
    if not is_plain(image, pixels):
        return transform(data, image, pixels)
    if decode:
        data = check_pixels(data, image)
    elif image.missing_end:
        raise Reject("image data missing", "no end marker; --check decode looks closer")
    return Stored(data, image)


def _prepare_copy(source: Source, path: str, entry: int, decode: bool) -> Prepared:
    assert isinstance(source, pack.Source)
    num_bytes, modified_ns = source.stamp(path)
    try:
        stored = repack.copy(source, path, decode_image=decode)
    except Reject as reject:
        return Prepared(entry, num_bytes, modified_ns, b"", reject=reject)
    if stored.image.profile:
        stored.image.warnings += (_taken_as_srgb(stored.image),)
    return _prepared(entry, num_bytes, modified_ns, stored, stored.image.orientation)


def _taken_as_srgb(image: Image) -> str:
    return f"colour profile {image.profile}, taken as sRGB"


def _prepared(
    entry: int, num_bytes: int, modified_ns: int, stored: Stored, orientation: int
) -> Prepared:
    data, image, change, segments, is_odd, geometry = stored
    digest = checksum(data)
    return Prepared(  # without names: they cost as much as looking at a header
        entry, num_bytes, modified_ns, data, digest,
        image, None, change, segments, is_odd, geometry, orientation,
    )  # fmt: skip


def settle(source: Source, paths: Sequence[str], pixels: PixelOptions) -> PixelOptions:
    """The options with what has to be known of the source before the work starts.

    Raises MissingDependency where a program is missing, SourceError where images that would have
    to be of one size are not, or the options do not go with the images of a pack.
    """
    if isinstance(source, pack.Source):
        pixels = repack.settle_for_pack(source.field, source.root, pixels)
    if pixels.seekable:
        require_jpegtran()
    if pixels.encode != "raw" or pixels.resize is not None:
        return pixels
    chosen = [paths[i] for i in range(0, len(paths), -(-len(paths) // _PROBES_MAX))]
    with ThreadPoolExecutor(16) as pool:
        probes = list(pool.map(lambda path: prepare(source, path, 0, True, pixels).image, chosen))
    sizes = Counter((image.width, image.height) for image in probes if image is not None)
    if len(sizes) != 1:
        shown = ", ".join(f"{width} x {height}" for width, height in sorted(sizes)[:3])
        raise SourceError(
            f"the images are not of one size ({shown} …)" if sizes else "no image can be read",
            path=source.root,
            advice="--encode raw needs one: add --resize N --resize-mode exact or pad",
        )
    return replace(pixels, raw_size=next(iter(sizes)))


def prepare_all(
    source: Source,
    paths: Sequence[str],
    entries: range,
    threads: int,
    *,
    decode: bool,
    pixels: PixelOptions = _AS_THEY_ARE,
    io_threads: int | None = None,
    fields: Sequence[FieldSource] = (),
) -> Iterator[list[Prepared]]:
    """Prepare `entries` of `paths`, batch by batch and in order, several batches at once.

    `io_threads` is how many threads read, and look at what they have read. By default it is found
    while they do: `threads`, or more where reading takes long.
    """
    cv2.setNumThreads(0)  # one picture is too small to share
    # Decoding runs beside Python, so threads help; looking at headers is Python, and they do not.
    plain = (pixels == _AS_THEY_ARE or pixels.copied is not None) and not fields
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
        helped = threads > 1 and isinstance(source, folder.Source)
        for batch_done in _prepare_small(work, entries, readers, helped=helped):
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
    work: Callable[[range], list[Prepared]], entries: range, readers: _Readers, *, helped: bool
) -> Iterator[list[Prepared]]:
    """Prepare entries as long as files are small and nothing is waited for.

    All is Python then, and threads that take turns are a quarter slower than one that does not
    stop. If `helped`, and there are many, a second process takes every other batch.
    """
    start, batch_files = entries.start, _BATCH_FILES_START
    elapsed = busy = 0.0
    helper: Helper[list[Prepared]] | None = None
    try:
        while start < entries.stop:
            batch = range(start, min(start + batch_files, entries.stop))
            start = batch.stop
            batch_done = helper.result(batch) if helper else None
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
            if helper is None and helped and entries.stop - start >= _HELPED_FILES_MIN:
                batch_files = _HELPED_BATCH_FILES
                firsts = range(start + batch_files, entries.stop, 2 * batch_files)
                theirs = [range(i, min(i + batch_files, entries.stop)) for i in firsts]
                helper = Helper(work, theirs)
            elif helper is None:
                batch_files = _files_like(batch_done)
    finally:
        if helper is not None:
            helper.close()


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
        self._processors = min(number, os.cpu_count() or 1)
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
