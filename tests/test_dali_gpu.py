"""What only a GPU can confirm about DALI: pixels, streams, memory that stays valid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("nvidia.dali", reason="DALI is not installed")
import torch
from nvidia.dali.backend import GetCUDADeviceCount
from test_dali import by_sample, odd_folder

import readers
from readers import augment, dali

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        GetCUDADeviceCount() == 0 or not torch.cuda.is_available(), reason="no NVIDIA GPU"
    ),
    # DALI's word on CUDA libraries that it is not shipped with; nothing here uses them.
    pytest.mark.filterwarnings("ignore:nvidia-dali-cuda.* is no longer shipped with CUDA runtime"),
    # DALI leaves the sockets of spawned workers to garbage collection.
    pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory, make_pack: Callable[..., Path]) -> readers.Pack:
    folder = tmp_path_factory.mktemp("gpu")
    return readers.open(make_pack(odd_folder(folder / "in"), folder / "pack", "lmdb"))


def run_epoch(pipe: Any) -> dict[int, np.ndarray]:
    """The images of one epoch by the samples' numbers."""
    batches = []
    while True:
        try:
            outputs = [output.as_cpu() for output in pipe.run()]
        except StopIteration:
            return by_sample(batches)
        batches.append([[np.array(o.at(i)) for i in range(len(o))] for o in outputs])


def assert_near(image: np.ndarray, expected: np.ndarray, key: str) -> None:
    """Within the stated tolerance of GPU decoding."""
    assert image.shape == expected.shape, key
    difference = np.abs(image.astype(int) - expected)
    assert difference.mean() < 1 and np.quantile(difference, 0.999) <= 4, key


@pytest.mark.parametrize("hw_decoder_load", [0.0, 0.65, 1.0])
def test_mixed_pixels_are_near_the_packs(pack: readers.Pack, hw_decoder_load: float) -> None:
    pipe = dali.pipeline(
        pack.path, 8, size=None, train=False, threads=2, hw_decoder_load=hw_decoder_load
    )
    images = run_epoch(pipe)
    assert len(images) == len(pack)
    for number, image in images.items():
        key = pack.keys[number]
        if key.endswith(".png"):
            np.testing.assert_array_equal(image, pack.image(number), key)
        else:
            assert_near(image, pack.image(number), key)


def test_mixed_windows_are_cuts_of_the_upright_image(pack: readers.Pack) -> None:
    pipe = dali.pipeline(pack.path, 8, size=None, threads=2, seed=5, drop_last=False)
    samples = np.arange(len(pack))
    boxes = augment.random_resized_crops(pack.index["width"], pack.index["height"], 5, 0, samples)
    mirrored = augment.flips(5, 0, samples)
    for number, image in run_epoch(pipe).items():
        left, top, width, height = boxes[number]
        expected = pack.image(number)[top : top + height, left : left + width]
        expected = expected[:, ::-1] if mirrored[number] else expected
        assert_near(image, expected, pack.keys[number])


@pytest.mark.parametrize("train", [False, True])
def test_mixed_batches_are_near_those_of_the_cpu(pack: readers.Pack, train: bool) -> None:
    options: dict[str, Any] = {"size": 64, "train": train, "threads": 2, "drop_last": False}
    expected = run_epoch(dali.pipeline(pack.path, 8, device="cpu", **options))
    for number, image in run_epoch(dali.pipeline(pack.path, 8, **options)).items():
        assert_near(image, expected[number], pack.keys[number])


def make_loader(pack: readers.Pack, **options: Any) -> dali.DALILoader:
    options = {"size": 64, "threads": 2, "with_samples": True, "drop_last": False, **options}
    return dali.DALILoader(pack.path, 4, **options)


def test_loader_gives_tensors_on_the_gpu(pack: readers.Pack) -> None:
    for layout in ("NHWC", "NCHW"):
        mean_and_std = ([120.0] * 3, [60.0] * 3)
        options = {"layout": layout, "dtype": "float16", "normalize": mean_and_std}
        on_cpu = make_loader(pack, device="cpu", **options)
        for batch, cpu_batch in zip(make_loader(pack, **options), on_cpu, strict=True):
            images, labels, samples = batch
            assert images.is_cuda and labels.is_cuda and not samples.is_cuda
            assert images.dtype == torch.float16
            assert images.shape == cpu_batch[0].shape and images.stride() == cpu_batch[0].stride()
            assert labels.tolist() == cpu_batch[1].tolist()
            assert samples.tolist() == cpu_batch[2].tolist()
            assert (images.cpu().float() - cpu_batch[0].float()).abs().mean() < 1 / 60


def test_batches_stay_valid_and_may_be_dropped_while_the_gpu_works(pack: readers.Pack) -> None:
    def sums(slowly: bool) -> list[float]:
        busy = torch.rand(2048, 2048, device="cuda")
        found, kept = [], []
        for images, _, _ in make_loader(pack):
            if slowly:
                torch.cuda.synchronize()
                kept.append(images)
            else:
                for _ in range(20):  # the sum starts long after `images` has been dropped
                    busy = (busy @ busy).clamp(0, 1)
            found.append(images.double().sum())
            del images
        if slowly:
            assert [float(images.double().sum()) for images in kept] == [float(s) for s in found]
        return [float(s) for s in found]

    expected = sums(slowly=True)
    for _ in range(3):
        assert sums(slowly=False) == expected


def test_loader_resumes_with_spawned_workers_after_cuda_has_begun(pack: readers.Pack) -> None:
    torch.zeros(1, device="cuda")
    loader = make_loader(pack, workers=1)
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 2:
            state = loader.state_dict()
    resumed = make_loader(pack)
    resumed.load_state_dict(state)
    for mine, theirs in zip(resumed, batches[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_a_side_stream(pack: readers.Pack) -> None:
    expected = [images.cpu() for images, _, _ in make_loader(pack)]
    with torch.cuda.stream(torch.cuda.Stream()):
        for (images, _, _), value in zip(make_loader(pack), expected, strict=True):
            assert torch.equal(images.cpu(), value)
