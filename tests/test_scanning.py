"""How far the unpacking and listing of an archive is, before packing starts."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import tarfile
import termios
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from images import class_folder

from packer import progress
from packer.cli import main
from packer.sources import open_source

Calls = list[tuple[str, int, int]]


def archive(path: Path, mode: str = "w:gz") -> Path:
    """A tar of some classes, and of 3 MB that no compression makes smaller."""
    with tarfile.open(path, mode) as tar:
        tar.add(class_folder(path.parent / f"{path.name}.folder"), "imgs")
        notes = tarfile.TarInfo("imgs/notes.txt")
        notes.size = 3 << 20
        tar.addfile(notes, io.BytesIO(os.urandom(notes.size)))
    return path


def scanned(path: Path, kind: str) -> Calls:
    calls: Calls = []
    open_source(path, kind, scanning=lambda *call: calls.append(call)).scan()
    return calls


def check_complete(calls: Calls) -> None:
    done = [num_bytes for _, num_bytes, _ in calls]
    (total,) = {num_total for _, _, num_total in calls}
    assert done == sorted(done)
    assert done[0] < done[-1] == total


def test_unpacking_counts_the_bytes_of_the_file_and_listing_those_unpacked(tmp_path: Path) -> None:
    path = archive(tmp_path / "imgs.tar.gz")
    calls = scanned(path, "tar")
    unpacking = [call for call in calls if call[0] == "unpacking imgs.tar.gz"]
    listing = calls[len(unpacking) :]
    assert {what for what, _, _ in listing} == {"listing imgs.tar.gz"}
    assert unpacking[-1][2] == path.stat().st_size
    assert listing[-1][2] > 3 << 20
    check_complete(unpacking)
    check_complete(listing)


def test_shards_are_listed_as_one(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    for i in range(3):
        with tarfile.open(tmp_path / "shards" / f"{i}.tar", "w") as tar:
            for path in sorted((class_folder(tmp_path / str(i))).rglob("*.*")):
                tar.add(path, f"{i}/{path.parent.name}{path.name}")
    calls = scanned(tmp_path / "shards", "webdataset")
    assert {what for what, _, _ in calls} == {"listing shards"}
    check_complete(calls)


def convert(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments)])
    return result.exit_code, result.stderr


def test_in_a_log_it_is_plain_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(tmp_path / "imgs.tar.gz")
    command = (path, "--to", "memmap", "-o", tmp_path / "pack")
    assert convert(*command, "--dry-run") == (0, "")  # too short for a line
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    for option in ("--dry-run", "--strict"):
        exit_code, said = convert(*command, option)
        assert exit_code == 0
        lines = [line for line in said.splitlines() if "samples" not in line]
        pattern = r"(unpacking|listing) imgs\.tar\.gz: \d+ of 3 MB, \d+ MB/s, (\d+|inf) s left"
        assert all(re.fullmatch(pattern, line) for line in lines), lines
        assert {line.split()[0] for line in lines} == {"unpacking", "listing"}
    assert convert(*command, "--overwrite", "--json") == (0, "")


def test_on_a_terminal_it_is_a_bar(tmp_path: Path) -> None:
    path = archive(tmp_path / "imgs.tar.gz")
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    command = [sys.executable, "-m", "packer.cli", "convert", str(path), "--to", "memmap"]
    shown = b""
    with (
        os.fdopen(terminal, "rb", buffering=0) as screen,
        subprocess.Popen(
            [*command, "--dry-run"], stdout=subprocess.DEVNULL, stderr=its_end, cwd=tmp_path
        ) as process,
    ):
        os.close(its_end)
        try:
            while block := screen.read(4096):
                shown += block
        except OSError:  # EIO: the other end is closed
            pass
    assert process.returncode == 0
    assert re.search(rb"unpacking imgs\.tar\.gz: +\d+%", shown)


@pytest.mark.parametrize("when", ["unpacking", "listing"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, when: str) -> None:
    path = archive(tmp_path / "imgs.tar.gz")
    program = f"""
import os, signal
from packer import cli, progress
def interrupt(self, what, num_bytes, num_total):
    if what.startswith({when!r}):
        os.kill(os.getpid(), signal.SIGINT)
progress.ScanningBar.__call__ = interrupt
cli.main(["convert", {str(path)!r}, "--to", "memmap"])
"""
    before = sorted(tmp_path.rglob("*"))
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1].startswith("dspack: interrupted")
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What bars take for the time: `now`, in seconds."""
    time = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress.time, "monotonic", lambda: time.now)
    return time


def test_a_second_count_has_its_own_clock(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = progress.ProgressBar("verify")
    bar(0, 0, 100)
    clock.now = 50.0
    bar(100, 60_000_000, 100)  # the checksums
    capsys.readouterr()
    bar(0, 0, 100)  # the images
    clock.now = 70.0
    bar(40, 0, 100)
    assert "40 of 100 samples, 2 samples/s, 0 MB/s, 30 s left" in capsys.readouterr().err


def test_unpacking_before_does_not_count_as_packing(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = progress.ProgressBar("convert")
    clock.now = 100.0  # an archive was unpacked meanwhile
    bar(0, 0, 100)
    assert capsys.readouterr().err == ""
    clock.now = 120.0
    bar(40, 60_000_000, 100)
    assert "40 of 100 samples, 2 samples/s, 3 MB/s, 30 s left" in capsys.readouterr().err
