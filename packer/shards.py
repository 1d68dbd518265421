"""Prepared files into shards: one fills while the one before it goes to disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from readers import formats
from readers.checksum import file_checksum
from readers.manifest import IMAGE, PackFile

from .plan.layout import Plan
from .prepare import Prepared
from .staging import Done, Rejected, Staging, row_dtype, sync

_UNRECORDED_MAX = 2  # sealed shards that wait for the disk; an interruption loses their work
_FLUSH_BYTES = 64 << 20  # send a shard to disk while it fills: the last sync then has little left


class ShardSequence:
    """Fills one shard after another; each is synced and recorded while the next one fills."""

    def __init__(
        self,
        staging: Staging,
        plan: Plan,
        format_name: str,
        shard_bytes: int,
        *,
        number: int,
        start: int,
        fields: Sequence[str] = (),
    ) -> None:
        """Go on with shard `number` at the plan's entry `start`. `fields` are further ones."""
        self._staging = staging
        self._plan = plan
        self._shard_bytes = shard_bytes
        self._format = formats.load(format_name)
        self._number = number
        self._start = start
        self._fields = [IMAGE, *fields]
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._sealed: list[Future[Done]] = []
        self._open_shard()

    def _open_shard(self) -> None:
        self._writer: formats.ShardWriter | None = None
        self._rows: list[tuple[Any, ...]] = []
        self._rejected: list[Rejected] = []
        self._warnings: list[tuple[int, str]] = []
        self._changes: Counter[str] = Counter()
        self._segments: list[npt.NDArray[Any] | None] = []
        self._flushes: list[Future[None]] = []
        self._num_bytes = self._flushed_bytes = 0

    def append(self, batch: list[Prepared]) -> None:
        """Add prepared files in order, starting a new shard where one is full."""
        values: list[tuple[bytes, ...]] = []
        for prepared in batch:
            if prepared.reject is not None:
                self._rejected.append(
                    Rejected(
                        prepared.entry,
                        prepared.reject.reason,
                        prepared.reject.detail,
                        prepared.source_bytes,
                        prepared.source_ns,
                    )
                )
                continue
            image, num_bytes = prepared.image, prepared.num_bytes
            assert image is not None
            if self._rows and self._num_bytes + num_bytes > self._shard_bytes:
                self._write(values)
                values = []
                self._seal(stop=prepared.entry)
            if image.warnings:
                self._warnings += [(prepared.entry, warning) for warning in image.warnings]
            self._rows.append(
                (
                    prepared.entry,
                    image.width,
                    image.height,
                    image.orientation,
                    prepared.source_bytes,
                    prepared.source_ns,
                    len(prepared.data),
                    prepared.checksum,
                    prepared.is_odd,
                    *(self._note_values(prepared) if prepared.values else ()),
                )
            )
            self._segments.append(prepared.segments)
            if prepared.change is not None:
                self._changes[prepared.change] += 1
            values.append((prepared.data, *[value.data for value, _ in prepared.values]))
            self._num_bytes += num_bytes
        self._write(values)

    def _note_values(self, prepared: Prepared) -> Iterator[Any]:
        """The columns of the further fields; what is to be told of them is noted."""
        for value, value_checksum in prepared.values:
            self._warnings += [(prepared.entry, warning) for warning in value.warnings]
            if value.change is not None:
                self._changes[value.change] += 1
            yield from (len(value.data), value_checksum, value.is_odd)

    def _write(self, values: list[tuple[bytes, ...]]) -> None:
        if not values:
            return
        if self._writer is None:
            self._writer = self._format.ShardWriter(
                self._staging.pack / "shards", f"{self._number:05d}", self._fields
            )
        self._writer.append(dict(zip(self._fields, zip(*values, strict=True), strict=True)))
        idle = not self._flushes or self._flushes[-1].done()
        if idle and self._num_bytes - self._flushed_bytes >= _FLUSH_BYTES:
            self._flushed_bytes = self._num_bytes
            self._flushes.append(self._disk.submit(self._flush_shard, f"{self._number:05d}."))

    def _flush_shard(self, prefix: str) -> None:
        for path in (self._staging.pack / "shards").iterdir():
            if path.name.startswith(prefix):
                with suppress(FileNotFoundError):  # it held values until they got to their place
                    sync(path)

    def _seal(self, stop: int) -> None:
        rows = np.array(self._rows, row_dtype(self._fields))
        entries = rows["entry"]
        names = []
        if self._writer is not None:
            keys = [self._plan.keys[entry] for entry in entries]
            names = self._writer.seal(self._plan.labels[entries], keys)
        if len(self._sealed) >= _UNRECORDED_MAX:
            self._sealed[-_UNRECORDED_MAX].result()
        self._sealed.append(
            self._disk.submit(
                self._record,
                self._number,
                self._start,
                stop,
                names,
                rows,
                self._rejected,
                self._warnings,
                self._changes,
                self._segments,
                self._flushes,
            )
        )
        self._number += 1
        self._start = stop
        self._open_shard()

    def _record(
        self,
        number: int,
        start: int,
        stop: int,
        names: list[str],
        rows: npt.NDArray[Any],
        rejected: list[Rejected],
        warnings: list[tuple[int, str]],
        changes: dict[str, int],
        segments: list[npt.NDArray[Any] | None],
        flushes: list[Future[None]],
    ) -> Done:
        for flush in flushes:
            flush.result()  # the kernel tells of a failed write once, and a later sync succeeds
        files = tuple(pack_file(self._staging.pack, f"shards/{name}") for name in names)
        done = Done(start, stop, files, rows, rejected, warnings, changes)
        self._staging.record(number, done, segments)
        return done

    def finish(self) -> list[Done]:
        """Seal the last shard and wait until all are on disk."""
        if self._rows or self._rejected:
            self._seal(stop=len(self._plan))
        self._disk.shutdown()
        return [future.result() for future in self._sealed]

    def abort(self) -> None:
        """Leave the unfinished shard; what was sealed is still recorded."""
        if self._writer is not None:
            self._writer.abort()
        self._disk.shutdown()


def pack_file(pack: Path, name: str) -> PackFile:
    path = pack / name
    return PackFile(name, path.stat().st_size, file_checksum(path))
