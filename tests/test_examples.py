"""The training examples run, at a tiny size, and a resumed run is the run that went through."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from packer.convert import convert
from packer.options import Options

torch = pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = ["--size", "32", "--width", "8", "--batch-size", "8", "--threads", "1"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """A pack of the example images: 24 to train, 6 to validate, 6 classes."""
    folder = tmp_path_factory.mktemp("examples")
    script = EXAMPLES / "make_shapes.py"
    subprocess.run(
        [sys.executable, script, folder / "shapes", "--per-class", "4"],
        check=True,
        capture_output=True,
    )
    convert(folder / "shapes", folder / "shapes.lmdb", Options("lmdb"), threads=2)
    return folder / "shapes.lmdb"


@pytest.fixture(autouse=True)
def examples_on_path(monkeypatch):
    """The examples import each other, as they do when Python is given one of them to run."""
    monkeypatch.syspath_prepend(EXAMPLES)


def run(*command: object) -> str:
    """The output of an example in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["train_resnet", "train_dali"])
def test_a_training_goes_on_exactly_where_it_was_stopped(shapes, tmp_path, capsys, name):
    if name == "train_dali":
        pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    example = importlib.import_module(name)

    def weights(file, *arguments):
        checkpoint = tmp_path / file
        options = [*SMALL, "--epochs", "2", "--save-every", "1", "--checkpoint", str(checkpoint)]
        example.main([str(shapes), *options, *arguments])
        return torch.load(checkpoint, weights_only=True)["model"]

    through = weights("through.pt")
    assert "epoch 2/2" in capsys.readouterr().out
    weights("stopped.pt", "--stop-after", "2")
    resumed = weights("stopped.pt", "--resume")
    out = capsys.readouterr().out
    assert "epoch 1/2" in out and "epoch 2/2" in out
    assert all(torch.equal(through[name], resumed[name]) for name in through)


def test_train_dali_without_dali_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    monkeypatch.delitem(sys.modules, "readers.dali", raising=False)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(EXAMPLES / "train_dali.py"))
    assert left.value.code == 7 and "pip install nvidia-dali-cuda120" in capsys.readouterr().err


def test_resnet_18_has_the_size_it_is_known_for():
    from train_resnet import resnet

    num = sum(weight.numel() for weight in resnet(1000).parameters())
    assert num == 11_689_512


def test_train_ddp_under_torchrun(shapes, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    script = [EXAMPLES / "train_ddp.py", shapes, "--epochs", "2", *SMALL]
    out = run(*torchrun, "--nproc-per-node", "2", *script)
    assert out.count("validation accuracy") == 2


def test_profile_input_says_what_the_limit_is(shapes, monkeypatch, capsys):
    script = str(EXAMPLES / "profile_input.py")
    monkeypatch.setattr(sys, "argv", [script, str(shapes), "--batches", "2", *SMALL])
    runpy.run_path(script, run_name="__main__")
    out = capsys.readouterr().out
    assert "the limit" in out and "images/s" in out
    assert "aten::" in out  # the profiler's table


@pytest.mark.parametrize("name", ["train_resnet.py", "train_dali.py", "profile_input.py"])
def test_a_path_that_is_no_pack_is_one_sentence(tmp_path, monkeypatch, capsys, name):
    script = str(EXAMPLES / name)
    monkeypatch.setattr(sys, "argv", [script, str(tmp_path / "none")])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(script, run_name="__main__")
    assert left.value.code == 7 and capsys.readouterr().err.count("\n") == 1
