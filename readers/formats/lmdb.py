"""LMDB shards: NAME.lmdb, one file; key `0000000012/image` -> stored bytes, in key order.

Facts used: values that do not fit about half a page take whole 4 KiB pages; append mode needs
sorted keys; a map must be opened once a process (lmdb.h, py-lmdb 3).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy.typing as npt

from ..errors import DamagedPack, DestinationError, cannot_open
from . import Observe, ignore

_PAGE_BYTES = 4096
# A transaction's dirty pages are held in memory until its commit: few of them are written while the
# processor still has them in its cache, which takes half the time that 32 MiB of them take. Its
# size also bounds how much the map must still have room for. Commits fall on the same samples
# however append() was called, so the same input makes the same file.
_COMMIT_BYTES = 2 << 20
_COMMIT_VALUES = 4096


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
    """An open file. All its users in this process share it: LMDB must not open a file twice."""

    def __init__(self, path: Path, identity: tuple[int, int]) -> None:
        # lock=False: sealed data needs no reader table, and a read-only mount could not hold one.
        self.lmdb = lmdb.open(
            str(path), subdir=False, readonly=True, lock=False, create=False, max_dbs=0
        )
        self.identity = identity
        self.num_users = 0
        self.is_inherited = False  # from a process that forked


_lock = threading.Lock()  # held wherever an environment is opened or closed
_environments: dict[tuple[int, int], _Environment] = {}
_released: deque[_Environment] = deque()


def _open(path: Path) -> _Environment:
    """The environment of a file, to be handed to _release."""
    try:
        status = path.stat()
        identity = (status.st_dev, status.st_ino)  # one file may have several names
        with _lock:
            environment = _environments.get(identity)
            if environment is None:
                environment = _environments[identity] = _Environment(path, identity)
            environment.num_users += 1
            return environment
    except (OSError, lmdb.Error) as error:
        raise cannot_open(f"LMDB cannot open the shard: {error}", path) from None
    finally:
        _close_unused()


def _release(environment: _Environment) -> None:
    _released.append(environment)
    _close_unused()


def _close_unused() -> None:
    # Never waits: the garbage collector may come here in a thread that holds the lock. Whoever
    # holds it comes here after letting go of it.
    while _released and _lock.acquire(blocking=False):
        try:
            environment = _released.popleft() if _released else None
            if environment is not None:
                environment.num_users -= 1
                if environment.num_users == 0 and not environment.is_inherited:
                    del _environments[environment.identity]
                    environment.lmdb.close()
        finally:
            _lock.release()


def _inherit() -> None:
    # A child goes on with its parent's environments: read-only and without locks, they are memory
    # and no more. py-lmdb lets it neither open such a file anew nor close it: closing waits for
    # the reads that the parent's threads were at when it forked, and here they never end.
    for environment in _environments.values():
        environment.is_inherited = True
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(environment.lmdb))  # not even at the exit
    _go_on()


def _go_on() -> None:
    _lock.release()
    _close_unused()


# A fork waits until no thread is opening or closing a file: the child could not finish that.
os.register_at_fork(before=_lock.acquire, after_in_parent=_go_on, after_in_child=_inherit)


class ShardReader:
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None:
        self._path = _path(folder, name)
        self._environment: Any = None
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
        environment, self._environment = self._environment, None
        if environment is not None:
            del self._local
            _release(environment)

    def __del__(self) -> None:
        self.close()


READS_WHOLE_FILES = False


def scan(
    folder: Path, name: str, fields: Sequence[str], observe: Observe = ignore
) -> Iterator[tuple[int, str, memoryview]]:
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
    finally:
        _release(environment)
