"""LMDB shards: NAME.lmdb, one file; key `0000000012/image` -> stored bytes, in key order.

Facts used: values that do not fit about half a page take whole 4 KiB pages; append mode needs
sorted keys; a map must be opened once a process (lmdb.h, py-lmdb 3).
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy.typing as npt

from ..errors import DamagedPack, DestinationError

_PAGE_BYTES = 4096
# A transaction's dirty pages are held in memory until its commit, and its size bounds how much
# the map must still have room for. Commits fall on the same samples however append() was called,
# so the same input makes the same file.
_COMMIT_BYTES = 32 << 20
_COMMIT_VALUES = 4096
_CLOSING_SECONDS = 5


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.lmdb"


def _key(position: int, field: str) -> bytes:
    return b"%010d/%s" % (position, field.encode())


class ShardWriter:
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        self._path = _path(folder, name)
        self._fields = sorted(fields)
        self._num_samples = 0
        self._uncommitted_bytes = self._uncommitted_values = 0
        self._path.unlink(missing_ok=True)
        try:
            # sync=False: the shard is synced whole before it is published.
            # lock=False: nobody else knows this file yet, and no -lock file is left behind.
            self._environment = lmdb.open(str(self._path), subdir=False, sync=False, lock=False)
            self._begin(0)
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _begin(self, sample_bytes: int) -> None:
        """Start a transaction that has room for all that may come before the next commit."""
        # A value wastes less than a page, and takes less than a page of leaves and branches.
        room = max(_COMMIT_BYTES, sample_bytes) + 2 * _PAGE_BYTES * (_COMMIT_VALUES + 256)
        info = self._environment.info()
        needed = (info["last_pgno"] + 1) * _PAGE_BYTES + room
        if needed > info["map_size"]:  # address space, not disk: doubling keeps calls few
            self._environment.set_mapsize(max(needed, 2 * info["map_size"]))
        self._transaction = self._environment.begin(write=True)
        self._uncommitted_bytes = self._uncommitted_values = 0

    def append(self, values: Mapping[str, Sequence[bytes]]) -> None:
        batch: list[tuple[bytes, bytes]] = []
        for sample in zip(*(values[field] for field in self._fields), strict=True):
            sample_bytes = sum(map(len, sample))
            if (
                self._uncommitted_bytes + sample_bytes > _COMMIT_BYTES
                or self._uncommitted_values + len(sample) > _COMMIT_VALUES
            ):
                self._put(batch)
                batch = []
                self._commit_and_begin(sample_bytes)
            for field, value in zip(self._fields, sample, strict=True):
                batch.append((_key(self._num_samples, field), value))
            self._uncommitted_bytes += sample_bytes
            self._uncommitted_values += len(sample)
            self._num_samples += 1
        self._put(batch)

    def _put(self, batch: list[tuple[bytes, bytes]]) -> None:
        try:
            with self._transaction.cursor() as cursor:
                cursor.putmulti(batch, append=True)
        except lmdb.Error as error:
            raise self._failure(error) from error

    def _commit_and_begin(self, sample_bytes: int) -> None:
        try:
            self._transaction.commit()
            self._begin(sample_bytes)
        except lmdb.Error as error:
            raise self._failure(error) from error

    def seal(self, labels: npt.NDArray[Any], keys: Sequence[str]) -> list[str]:
        try:
            self._transaction.commit()
            self._environment.close()
        except lmdb.Error as error:
            raise self._failure(error) from error
        return [self._path.name]

    def abort(self) -> None:
        self._environment.close()

    def _failure(self, error: lmdb.Error) -> DestinationError:
        return DestinationError(f"LMDB cannot write: {error}", path=self._path)


class _Environment:
    """An open file, which all its readers in this process share; the last one closes it."""

    def __init__(self, path: Path) -> None:
        deadline = time.monotonic() + _CLOSING_SECONDS
        while True:
            try:
                # lock=False: sealed data needs no reader table, and a read-only mount has none.
                self.lmdb = lmdb.open(
                    str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=0
                )
                return
            except lmdb.Error as error:
                # The last reader is gone, but its thread has not come to closing the file.
                if "already open" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)


_opening = threading.Lock()
_environments: weakref.WeakValueDictionary[tuple[int, int], _Environment] = (
    weakref.WeakValueDictionary()
)


def _open(path: Path) -> _Environment:
    try:
        status = path.stat()
        identity = (status.st_dev, status.st_ino)  # one file may have several names
        with _opening:
            environment = _environments.get(identity)
            if environment is None:
                environment = _environments[identity] = _Environment(path)
            return environment
    except (OSError, lmdb.Error) as error:
        raise DamagedPack(f"LMDB cannot open the shard: {error}", path=path) from None


def _close_after_fork() -> None:
    # A child must not use what it inherited, and LMDB refuses to open a file still held open.
    global _opening
    _opening = threading.Lock()  # another thread of the parent may have held the old one
    for environment in list(_environments.values()):
        environment.lmdb.close()
    _environments.clear()


os.register_at_fork(after_in_child=_close_after_fork)


class ShardReader:
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        self._path = _path(folder, name)
        self._environment = _open(self._path)
        self._local = threading.local()  # a transaction belongs to one thread, and is kept open

    def view(self, field: str, position: int, offset: int, length: int) -> memoryview:
        try:
            try:
                transaction = self._local.transaction
            except AttributeError:
                transaction = self._environment.lmdb.begin(buffers=True)
                self._local.transaction = transaction
            value = transaction.get(_key(position, field))
        except lmdb.Error as error:
            raise DamagedPack(f"LMDB cannot read: {error}", path=self._path) from None
        # The length is checked before a byte is touched: a damaged one would lead off the map.
        if value is None or len(value) != length:
            found = "no value" if value is None else f"{len(value)} bytes"
            raise DamagedPack(
                f"the shard holds {found} where {length} bytes are due", path=self._path
            )
        return memoryview(value)

    def announce(self, field: str, offset: int, length: int) -> None:
        pass  # LMDB alone knows where a value lies

    def close(self) -> None:
        del self._local, self._environment


def scan(folder: Path, name: str, fields: Sequence[str]) -> Iterator[tuple[int, str, memoryview]]:
    path = _path(folder, name)
    names = sorted(fields)
    environment = _open(path)
    try:
        with environment.lmdb.begin(buffers=True) as transaction, transaction.cursor() as cursor:
            for i, (key, value) in enumerate(cursor):
                position, field = i // len(names), names[i % len(names)]
                if key != _key(position, field):
                    raise DamagedPack(
                        f"the shard holds key {bytes(key)!r} where "
                        f"{_key(position, field)!r} is due",
                        path=path,
                    )
                yield position, field, memoryview(value)
    except lmdb.Error as error:
        raise DamagedPack(f"LMDB cannot read: {error}", path=path) from None
