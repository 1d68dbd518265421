"""kill -9, Ctrl-C and their like at any moment: no half a pack, and the same command goes on."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from images import class_folder

from packer.convert import convert
from packer.options import Options
from packer.verify import verify
from readers import formats
from readers.manifest import Manifest

KILL_AT = Path(__file__).with_name("kill_at.py")


def state(out: Path) -> str | None:
    """The content digest of the pack `out`, which must be whole; None if there is none."""
    if not os.path.lexists(out):
        return None
    assert verify(out, decode_images=True, threads=1).findings == []
    return Manifest.load(out).content_digest


def shard_files(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (out / "shards").iterdir()}


# Every step


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: a hundred runs wait for no disk."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


@pytest.fixture
def killer(in_memory: Path, format_name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that packs imgs into pack, and is told at which step to be killed."""
    class_folder(in_memory / "imgs", num_classes=2, per_class=3)
    command = [sys.executable, KILL_AT, in_memory / "imgs", in_memory / "pack", format_name]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
    assert process.returncode == 0


def killed_at(killer: subprocess.Popen[str], step: int) -> bool:
    """Run convert up to this step; False if it ended before that."""
    assert killer.stdin is not None and killer.stdout is not None
    print(step, file=killer.stdin, flush=True)
    code = int(killer.stdout.readline())
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_killed_at_any_step_there_is_no_pack_or_the_old_one_or_the_new_one(
    killer: subprocess.Popen[str], in_memory: Path, format_name: str
) -> None:
    imgs, out = in_memory / "imgs", in_memory / "pack"
    options = Options(format_name, shard_bytes=3000)
    new = convert(imgs, in_memory / "unbroken", options, threads=1).content_digest
    others = class_folder(in_memory / "others", num_classes=1, per_class=1)
    old = convert(others, in_memory / "old", options, threads=1).content_digest
    seen = []
    # The steps are the same in all formats: each takes its share of them.
    names = formats.names()
    for step in itertools.count(1 + names.index(format_name), len(names)):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(in_memory / "old", out)
        if not killed_at(killer, step):
            break
        seen.append(state(out))
        # The same command goes on, and leaves nothing of the killed run.
        summary = convert(imgs, out, options, threads=1, overwrite=True)
        assert state(out) == summary.content_digest == new
        assert shard_files(out) == shard_files(in_memory / "unbroken")
        assert {path.name for path in in_memory.iterdir()} == {
            *("imgs", "others", "old", "unbroken", "pack")
        }
    assert len(seen) > 20
    assert {old, new} <= set(seen) <= {old, new, None}


KILL_BETWEEN_RENAMES = """
import os, sys
from packer.cli import main

def kill(event, arguments):
    if event == "os.rename" and str(arguments[0]).endswith(".partial/pack"):
        os.kill(os.getpid(), 9)

sys.addaudithook(kill)
main()
"""


def test_the_old_pack_outlives_a_run_killed_between_renames_whose_files_broke(
    in_memory: Path,
) -> None:
    out, imgs = in_memory / "pack", class_folder(in_memory / "imgs", num_classes=1)
    others = class_folder(in_memory / "others", seed=7)
    old = convert(others, out, Options("memmap"), threads=1).content_digest
    command = ["convert", imgs, "--to", "memmap", "-o", out, "--overwrite"]
    killed = subprocess.run(
        [sys.executable, "-c", KILL_BETWEEN_RENAMES, *command], capture_output=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    for path in imgs.rglob("*.*"):
        path.write_bytes(b"broken")
    again = subprocess.run(dspack(*command), capture_output=True, check=False)
    assert again.returncode == 4
    assert state(out) == old
    assert {path.name for path in in_memory.iterdir()} == {"imgs", "others", "pack"}


# Any moment


def dspack(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "packer.cli", *map(str, arguments)]


@pytest.fixture
def imgs(in_memory: Path) -> Path:
    return class_folder(in_memory / "imgs", num_classes=6, per_class=25)


def command(in_memory: Path, name: str, format_name: str) -> list[str]:
    out = in_memory / name
    return dspack("convert", in_memory / "imgs", "--to", format_name, "-o", out, *SHARDS)


SHARDS = ("--shard-size", "10kB")


@pytest.mark.usefixtures("imgs")
def test_killed_at_any_moment_the_same_command_goes_on(in_memory: Path, format_name: str) -> None:
    started = time.monotonic()
    subprocess.run(command(in_memory, "unbroken", format_name), check=True, capture_output=True)
    seconds = time.monotonic() - started
    digest = state(in_memory / "unbroken")
    out, partial = in_memory / "pack", in_memory / "pack.partial"
    moments = random.Random(format_name)
    for _ in range(4):
        with subprocess.Popen(
            command(in_memory, "pack", format_name), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            time.sleep(moments.uniform(0.3, 1) * seconds)
            process.kill()
        if state(out) is not None:
            assert state(out) == digest
            shutil.rmtree(out)
            shutil.rmtree(partial, ignore_errors=True)
    subprocess.run(command(in_memory, "pack", format_name), check=True, capture_output=True)
    assert state(out) == digest
    assert shard_files(out) == shard_files(in_memory / "unbroken")
    assert not partial.exists()


STOP_AFTER_SOME_SHARDS = """
import os, sys
from packer.cli import main

def stop(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("00003.npz"):
        os.kill(os.getpid(), {number})

sys.addaudithook(stop)
main()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_a_stopped_run_says_so_and_goes_on(
    imgs: Path, in_memory: Path, number: signal.Signals, code: int
) -> None:
    out = in_memory / "pack"
    script = STOP_AFTER_SOME_SHARDS.format(number=int(number))
    arguments = command(in_memory, "pack", "memmap")[3:]
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == code
    assert result.stdout == ""
    records = [np.load(path)["rows"] for path in (in_memory / "pack.partial" / "done").iterdir()]
    said = (
        f"\ndspack: interrupted; finished shards: {len(records)}, samples: "
        f"{sum(map(len, records))}; the same command goes on there\n"
    )
    assert len(records) >= 4
    assert result.stderr == (said if number == signal.SIGINT else "")
    assert not out.exists()
    options = Options("memmap", shard_bytes=10_000)
    summary = convert(imgs, out, options, threads=2)
    assert summary.num_resumed > 0
    assert state(out) == convert(imgs, in_memory / "unbroken", options, threads=2).content_digest
