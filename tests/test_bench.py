"""`dspack bench`: it measures what is there, says what is not, and its advice follows."""

from __future__ import annotations

import importlib.util
import itertools
import json
import mmap
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from handmade import array_pack
from images import photo

import packer.bench
import readers
from packer.bench import Contender, Report, advice, bench, evict, limit_of, table
from packer.cli import main
from packer.contenders import CONTENDERS, Measured, Task, measure, memory
from readers.errors import DamagedPack, DspackError

HAS_TORCH = importlib.util.find_spec("torch") is not None
FAST = Measured(1000.0, 0.1, 2.0, 50_000_000, 100_000_000)


@pytest.fixture
def task(source, tmp_path, make_pack):
    pack = make_pack(source, tmp_path / "pack", "memmap")
    return Task(str(pack), str(source), None, 4, 16, 1, 0.05, False)


@pytest.fixture
def few(monkeypatch):
    """Only the contenders that start at once."""
    for name in ("data_loader", "folder", "dali"):
        monkeypatch.delitem(packer.bench.CONTENDERS, name)


def report(**members):
    made = Report("p", 1000, 10**8, 10**10, 2, 0.1, 2, 224)
    made.warm = {"decode": FAST, "loader": replace(FAST, speed=1900.0)}
    for name, value in members.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("name", ["decode", "read", "loader"])
def test_a_contender_gives_the_numbers_of_images_for_ever(task, name):
    numbers = CONTENDERS[name](task)
    assert all(1 <= next(numbers) <= 4 for _ in range(40))
    numbers.close()


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_workers_count_as_one_with_their_process(task):
    with Contender("folder", task) as contender:
        contender.wait()
        measured = contender.measure()
    assert measured.speed > 0 and measured.private_bytes > 0


def test_decode_knows_packs_of_arrays(tmp_path):
    arrays = np.stack([photo(i, 20, 20) for i in range(3)])
    path = array_pack(tmp_path / "pack", "memmap", arrays)
    numbers = CONTENDERS["decode"](Task(str(path), None, None, 2, 16, 1, 0.01, False))
    assert sum(next(numbers) for _ in range(7)) == 7


@pytest.mark.parametrize("cold", [False, True])
def test_measuring_counts_images_over_time(task, cold):
    measured = measure(itertools.repeat(5), replace(task, cold=cold))
    assert measured.speed > 1000 and measured.first_batch < 1
    assert 0 < measured.processors < 2


def test_memory_is_that_of_the_process():
    private, shared = memory()
    with mmap.mmap(-1, 256 << 20) as block:
        block[:: mmap.PAGESIZE] = bytes(len(block) // mmap.PAGESIZE)
        grown, _ = memory()
    assert abs(grown - private - (256 << 20)) < 64 << 20 and shared > 0


def test_bench_measures_warm_and_cold(task, few):
    measured = []
    result = bench(Path(task.pack), seconds=0.05, size=16, cold=True, progress=measured.append)
    assert list(result.warm) == ["decode", "read", "loader"]
    assert list(result.cold) == ["read", "loader"]
    assert result.skipped == {}
    assert result.num_samples == 12 and result.stored_bytes > 0
    assert result.limit in ("decoder", "disk", "memory", "Python", "unclear") and result.reason
    assert result.advice
    assert measured[0] == "starting 3 processes" and "measuring 3 of 3: Loader" in measured
    assert measured[-1] == "measuring from the disk: Loader"
    text = "\n".join(table(result))
    assert "Loader, cold" in text and f"limit: {result.limit}".replace("limit: d", "the d") in text


def test_the_command_prints_a_table_or_json(task, few):
    command = ["bench", task.pack, "--seconds", "0.02", "--size", "16", "--threads", "1"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "advice:" in result.stdout and "images/s" in result.stdout
    result = CliRunner().invoke(main, [*command, "--json"])
    about = json.loads(result.stdout)
    assert about["warm"]["loader"]["speed"] > 0 and about["threads"] == 1


def test_the_plot_is_drawn_or_its_library_is_named(task, few, tmp_path):
    out = tmp_path / "speeds.png"
    command = ["bench", task.pack, "--seconds", "0.02", "--size", "16", "--plot", str(out)]
    result = CliRunner().invoke(main, command)
    if importlib.util.find_spec("matplotlib") is None:
        assert result.exit_code == 7 and "pip install matplotlib" in result.stderr
        assert "…" not in result.stderr  # nothing was measured in vain
    else:
        assert result.exit_code == 0 and out.read_bytes()[:4] == b"\x89PNG"


def test_a_plot_that_cannot_be_written_is_an_error_before_anything_is_measured(task, tmp_path):
    command = ["bench", task.pack, "--plot", str(tmp_path / "none" / "speeds.png")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 6
    assert "speeds.png: its folder is missing" in result.stderr
    assert "…" not in result.stderr  # nothing was measured in vain


def test_what_cannot_be_measured_is_said(task, monkeypatch):
    monkeypatch.setattr(packer.bench, "_importable", lambda module: False)
    monkeypatch.setattr(Contender, "__init__", lambda self, name, task: None)
    monkeypatch.setattr(Contender, "__exit__", lambda self, *exception: None)
    monkeypatch.setattr(Contender, "wait", lambda self: None)
    monkeypatch.setattr(Contender, "measure", lambda self: FAST)
    result = bench(Path(task.pack))
    assert result.skipped == {
        "data_loader": "torch is not installed",
        "folder": "pass --against FOLDER, the images that were packed",
        "dali": "torch is not installed",
    }
    assert "left out: torch is not installed" in "\n".join(table(result))


def test_a_contender_that_fails_at_its_start_is_an_error_with_its_last_words(task, tmp_path):
    nowhere = replace(task, pack=str(tmp_path / "none"))
    with (
        Contender("loader", nowhere) as contender,
        pytest.raises(DspackError, match=r"Loader failed: .*no such file"),
    ):
        contender.wait()


def test_a_contender_that_fails_later_is_an_error_with_its_last_words(task, tmp_path):
    path = shutil.copytree(task.pack, tmp_path / "copy")
    with Contender("loader", replace(task, pack=str(path))) as contender:
        contender.wait()
        next(path.glob("shards/*.image.npy")).unlink()
        with pytest.raises(DamagedPack, match=r"Loader failed: .*cannot be read"):
            contender.measure()


def test_a_contender_that_is_not_wanted_any_more_ends(task):
    with Contender("loader", task) as contender:
        contender.wait()
    assert contender._process.returncode is not None


def test_evicting_keeps_the_data(task):
    before = readers.open(task.pack).read(3)
    evict([Path(task.pack)])
    assert readers.open(task.pack).read(3) == before


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({}, "decoder"),
        ({"stored_bytes": 10**11}, "memory"),
        ({"cold": {"loader": replace(FAST, speed=300.0)}}, "disk"),
        ({"warm": {"decode": FAST, "loader": FAST}}, "Python"),
        ({"warm": {"decode": FAST, "loader": replace(FAST, processors=0.3)}}, "unclear"),
    ],
)
def test_the_limit_follows_from_the_figures(members, limit):
    assert limit_of(report(**members))[0] == limit


def test_the_advice_follows_from_the_figures(task):
    def given(**members):
        return "\n".join(advice(report(limit="decoder", **members), pack))

    pack = readers.open(task.pack)
    assert "--encode raw" in given() and "--seekable" in given()
    assert "threads: 2 of 8" in given(processors=8) and "threads:" not in given()
    assert "measure again" in given(load=5.0) and "measure again" not in given()
    assert "--encode raw" not in given(num_samples=10**6)
    assert "--resize" not in given(num_samples=10**6)  # these images are small
    assert "--resize 18: the images' shorter side" not in given(size=16)
    assert "--resize 9: the images' shorter side" in given(size=8)
    peers = {"decode": FAST, "loader": FAST, "folder": replace(FAST, speed=500.0)}
    assert "2.0 times folder + DataLoader" in given(warm=peers)
