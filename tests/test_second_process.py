"""The second process that takes a share of the small files."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from images import jpeg, photo, png

import readers
from packer import prepare_all as preparing
from packer import second_process
from packer.convert import convert
from packer.options import Options
from packer.prepare import Prepared
from packer.prepare_all import prepare_all
from packer.second_process import SecondProcess
from packer.sources.folder import Source
from readers.errors import SourceError

Start = Callable[[Callable[[range], list[int]]], SecondProcess[list[int]]]
BATCHES = [range(0, 3), range(6, 9), range(9, 10)]


def doubled(batch: range) -> list[int]:
    return [2 * i for i in batch]


@pytest.fixture
def start() -> Iterator[Start]:
    processes = []

    def make(work: Callable[[range], list[int]]) -> SecondProcess[list[int]]:
        processes.append(SecondProcess(work, BATCHES))
        return processes[-1]

    yield make
    for process in processes:
        process.close()


def test_it_does_its_batches_and_no_others(
    start: Start,
) -> None:
    second = start(doubled)
    assert second.result(range(3, 6)) is None
    assert second.result(range(0, 3)) == [0, 2, 4]
    assert second.result(range(0, 3)) is None
    assert second.result(range(6, 9)) == [12, 14, 16]
    assert second.result(range(9, 10)) == [18]
    assert second.result(range(10, 12)) is None


def test_what_fails_is_left_to_the_caller(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    def work(batch: range) -> list[int]:
        if batch.start == 6:
            raise ValueError("of the second batch")
        return doubled(batch)

    second = start(work)
    assert second.result(range(0, 3)) == [0, 2, 4]
    assert second.result(range(6, 9)) is None
    assert second.result(range(9, 10)) is None
    assert capfd.readouterr() == ("", "")


def test_half_a_result_is_none(start: Start) -> None:
    def work(batch: range) -> list[int]:
        if batch.start == 6:
            os.write(max(map(int, os.listdir("/proc/self/fd")[:-1])), b"\0\0\0\x09\x80\x05]")
            os._exit(1)
        return doubled(batch)

    second = start(work)
    assert second.result(range(0, 3)) == [0, 2, 4]
    assert second.result(range(6, 9)) is None


def test_it_holds_no_file_of_this_process(
    start: Start,
) -> None:
    def work(batch: range) -> list[int]:
        return [os.path.exists(f"/proc/self/fd/{held.fileno()}") for held in files]

    with open(__file__, "rb") as first, open(os.devnull, "rb") as other:
        files = [first, other]
        # Its pipe may have got the number of one that it closed, but of one at most.
        assert sum(start(work).result(range(0, 3)) or [True, True]) <= 1


def test_standard_streams_that_were_closed_are_files_like_others() -> None:
    code = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from packer.second_process import SecondProcess
with open({__file__!r}) as held:  # in the place of standard input
    second = SecondProcess(lambda batch: os.path.exists("/proc/self/fd/0"), [range(1)])
    assert held.fileno() == 0
    assert second.result(range(1)) is False
"""
    run = subprocess.run([sys.executable, "-c", code], preexec_fn=lambda: os.close(0))
    assert run.returncode == 0


def test_a_lock_that_is_held_for_ever_is_not_waited_for(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(second_process, "_PATIENCE_SECONDS", 0.2)
    lock = threading.Lock()

    def work(batch: range) -> list[int]:
        with lock:
            return doubled(batch)

    with lock:  # as another thread might, when the process is forked
        second = start(work)
    assert second.result(range(0, 3)) is None
    assert second.result(range(6, 9)) is None


def test_what_stops_it_before_its_work_does_not_bring_it_into_its_parents_code(
    start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fork = os.fork

    def interrupted() -> int:
        if process := fork():
            return process
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fork", interrupted)
    test = os.getpid()
    try:
        second = start(doubled)
    finally:
        if os.getpid() != test:
            (tmp_path / "here").touch()
            os._exit(1)
    assert second.result(range(0, 3)) is None
    assert not (tmp_path / "here").exists()


def test_no_further_process_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", no_further_process)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        SecondProcess(doubled, BATCHES)
    assert os.listdir("/proc/self/fd") == before


def no_further_process() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


@pytest.mark.parametrize("is_ended", [False, True])
def test_somebody_else_may_wait_for_all_children(is_ended: bool) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel does
    try:
        second = SecondProcess(doubled, BATCHES if is_ended else [range(1)] * 10**6)
        while is_ended and os.path.exists(f"/proc/{second._process}"):
            time.sleep(0.01)
        second.close()
        assert not os.path.exists(f"/proc/{second._process}")
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_closing_does_not_wait_for_it() -> None:
    def work(batch: range) -> list[int]:
        time.sleep(60)
        return []

    second = SecondProcess(work, BATCHES)
    started = time.monotonic()
    second.close()
    assert time.monotonic() - started < 10


# What convert makes of it


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """700 small files, with a reject and an odd one in each batch of 64."""
    folder = tmp_path / "small"
    (folder / "a").mkdir(parents=True)
    whole, odd = (
        jpeg(photo(1, 32, 24)),
        png(np.dstack([photo(2, 20, 10), photo(3, 20, 10)[..., 0]])),
    )
    for i in range(700):
        data = {5: whole[:60], 6: odd}.get(i % 64, whole + bytes(i % 7))
        (folder / "a" / f"{i:04d}.jpg").write_bytes(data)
    return folder


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing, "_SHARED_FILES_MIN", 100)
    monkeypatch.setattr(preparing, "_SHARED_BATCH_FILES", 32)
    monkeypatch.setattr(preparing, "_BUSY_SHARE", 0.0)  # whatever else this machine does


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were started."""
    processes: list[int] = []

    class Watched(SecondProcess[list[Prepared]]):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            processes.append(self._process)

    monkeypatch.setattr(preparing, "SecondProcess", Watched)
    return processes


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_pack_is_the_same_with_it(small: Path, tmp_path: Path, started: list[int]) -> None:
    options = Options(format="memmap", check="header")
    alone = convert(small, tmp_path / "alone", options, threads=1)
    assert not started
    shared = convert(small, tmp_path / "shared", options, threads=2)
    assert len(started) == 1
    assert not is_running(started[0])
    assert shared.content_digest == alone.content_digest
    assert shared.rejected == alone.rejected == {"image data missing": 11}
    assert shared.changed == alone.changed == {"PNG RGBA to RGB PNG": 11}
    assert shared.warnings == alone.warnings
    manifests = [readers.open(tmp_path / name).manifest for name in ("alone", "shared")]
    assert manifests[0].fields == manifests[1].fields
    lists = [(tmp_path / name / "rejected.jsonl").read_bytes() for name in ("alone", "shared")]
    assert lists[0] == lists[1]


@pytest.mark.parametrize("num_batches", [1, 5])
def test_its_end_changes_nothing(small: Path, started: list[int], num_batches: int) -> None:
    paths = sorted(Source(small).scan().files)
    entries = range(len(paths))
    expected = [p for b in prepare_all(Source(small), paths, entries, 1, decode=False) for p in b]
    assert not started
    found = []
    for number, batch in enumerate(prepare_all(Source(small), paths, entries, 2, decode=False)):
        if started and number == num_batches:
            os.kill(started[0], signal.SIGKILL)
        found += batch
    assert started
    assert [p._replace(reject=None) for p in found] == [p._replace(reject=None) for p in expected]
    assert [str(p.reject) for p in found] == [str(p.reject) for p in expected]


def test_a_file_that_vanished_is_named(small: Path, started: list[int]) -> None:
    paths = sorted(Source(small).scan().files)
    for gone in (300, 340):  # whichever process comes to it
        lost = small / paths[gone]
        data = lost.read_bytes()
        lost.unlink()
        with pytest.raises(SourceError, match=f"vanished.*{gone:04d}|{gone:04d}.*vanished"):
            list(prepare_all(Source(small), paths, range(len(paths)), 2, decode=False))
        lost.write_bytes(data)
    assert len(started) == 2
    assert not any(map(is_running, started))


def test_it_is_not_needed(
    small: Path, tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fork", no_further_process)
    options = Options(format="memmap", check="header")
    assert convert(small, tmp_path / "out", options, threads=2).num_samples == 689
    assert not started


@pytest.mark.parametrize("drop_duplicates", [False, True])
def test_it_ends_with_a_run_that_fails(
    small: Path, tmp_path: Path, started: list[int], drop_duplicates: bool
) -> None:
    def stop(num_done: int, num_bytes: int, num_total: int) -> None:
        if started:
            raise KeyboardInterrupt

    options = Options(format="memmap", check="header", drop_duplicates=drop_duplicates)
    with pytest.raises(KeyboardInterrupt) as kept:  # with all its frames, as a notebook does
        convert(small, tmp_path / "out", options, threads=2, progress=stop)
    assert not is_running(started[0])
    del kept


def test_larger_files_go_to_threads(small: Path, started: list[int]) -> None:
    large = jpeg(photo(3, 700, 500), quality=95)
    assert len(large) > preparing._SMALL_BYTES
    for i in range(300, 400):
        (small / "a" / f"{i:04d}.jpg").write_bytes(large)
    paths = sorted(Source(small).scan().files)
    found = [
        prepared
        for batch in prepare_all(Source(small), paths, range(len(paths)), 2, decode=False)
        for prepared in batch
    ]
    assert [prepared.entry for prepared in found] == list(range(700))
    assert len(started) == 1
    assert not is_running(started[0])


def test_it_ends_when_its_parent_is_killed_and_leaves_no_lock(small: Path, tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from packer import prepare_all as preparing
from packer.convert import convert
from packer.options import Options
preparing._SHARED_FILES_MIN, preparing._SHARED_BATCH_FILES, preparing._BUSY_SHARE = 100, 4, 0.0
real = preparing.SecondProcess
class Told(real):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        print(self._process, flush=True)
    def result(self, batch):
        if batch.start > 300:
            os.kill(os.getpid(), 9)
        return super().result(batch)
preparing.SecondProcess = Told
convert(Path({str(small)!r}), Path({str(tmp_path / "out")!r}),
        Options(format="memmap", check="header", shard_bytes=100_000), threads=2)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL
    second = int(run.stdout)
    deadline = time.monotonic() + 10
    while is_running(second) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(second)
    options = Options(format="memmap", check="header", shard_bytes=100_000)
    summary = convert(small, tmp_path / "out", options, threads=2)
    assert summary.num_samples == 689
