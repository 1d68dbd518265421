"""How many threads read at once: found while running, or as many as were asked for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from images import jpeg, photo
from one_file import OneFile

from packer import prepare_all as preparing
from packer.convert import convert
from packer.options import Options
from packer.prepare_all import prepare_all
from packer.sources import File
from readers.pack import Pack

IMAGE = jpeg(photo())


class SlowSource(OneFile):
    """A source whose reads take long; remembers how many there were at once."""

    def __init__(self, seconds: float) -> None:
        super().__init__(IMAGE)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._reading = self.most_at_once = 0

    def read(self, path: str) -> File:
        with self._lock:
            self._reading += 1
            self.most_at_once = max(self.most_at_once, self._reading)
        if self._seconds:
            time.sleep(self._seconds)
        with self._lock:
            self._reading -= 1
        return super().read(path)


def most_at_once(num_files: int, seconds: float, **options: int) -> int:
    source = SlowSource(seconds)
    paths = [str(i) for i in range(num_files)]
    batches = list(prepare_all(source, paths, range(num_files), 2, decode=False, **options))
    assert [p.entry for batch in batches for p in batch] == list(range(num_files))
    return source.most_at_once


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BATCH_FILES_START", "_BATCH_FILES_MAX"):
        monkeypatch.setattr(preparing, name, 2)


def test_reads_that_take_long_get_more_threads() -> None:
    assert most_at_once(400, 0.01) > 8


def test_headers_are_looked_at_by_one_thread_where_nothing_is_waited_for() -> None:
    assert most_at_once(400, 0) == 1


@pytest.mark.parametrize("number", [1, 3])
def test_a_number_that_was_asked_for_is_kept(number: int) -> None:
    assert most_at_once(60, 0.01, io_threads=number) == number


def test_more_may_be_asked_for_than_are_ever_found() -> None:
    assert preparing._READERS_MAX < most_at_once(400, 0.1, io_threads=100) <= 100


def test_a_pack_is_the_same_with_any_number(source: Path, tmp_path: Path) -> None:
    for number in (None, 1, 9):
        out = tmp_path / str(number)
        convert(source, out, Options("memmap"), threads=2, io_threads=number)
    assert len({Pack(tmp_path / str(n)).content_digest for n in (None, 1, 9)}) == 1
