"""What only a GPU can show: pinned memory, streams, the prefetcher. Skipped without one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from handmade import array_pack
from images import png, write

from packer.convert import convert
from packer.fields import Pattern
from packer.options import Options

torch = pytest.importorskip("torch")

from readers.torch import CUDAPrefetcher, Loader  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA is not available"),
]

NUM, SIZE = 64, 64


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (NUM, SIZE, SIZE, 3), np.uint8)


@pytest.fixture
def loader(tmp_path, pixels):
    path = array_pack(tmp_path / "pack", "memmap", pixels)
    return Loader(path, 4, size=SIZE, scale=None, flip=0, threads=2, with_batch=True)


def expected(pixels, labels):
    """The images of samples, whose labels are their numbers in this pack."""
    return torch.from_numpy(pixels[labels.cpu().numpy()]).permute(0, 3, 1, 2)


def test_batches_are_pinned_and_not_copied(loader, pixels):
    for images, labels, batch in loader:
        assert images.is_pinned() and images.data_ptr() == batch.images.ctypes.data
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(images, expected(pixels, labels))


def test_a_kept_batch_is_not_overwritten_while_copies_are_under_way(loader, pixels):
    """An asynchronous copy outlives the host tensor; its memory must not be used meanwhile."""
    copies = []
    stream = torch.cuda.Stream()
    for images, labels, _ in loader:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(20_000_000)  # the copy waits for about 10 ms
            copies.append((images.to("cuda", non_blocking=True), labels))
        del images
    torch.cuda.synchronize()
    for images, labels in copies:
        assert torch.equal(images.cpu(), expected(pixels, labels))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_prefetcher_normalises_on_the_gpu(loader, pixels, dtype):
    mean, std = [124.0, 116.0, 104.0], [58.0, 57.0, 56.0]
    seen = []
    for images, labels, _ in CUDAPrefetcher(loader, "cuda", mean=mean, std=std, dtype=dtype):
        assert images.is_cuda and labels.is_cuda and images.dtype == dtype
        assert images.is_contiguous(memory_format=torch.channels_last)
        scale = torch.tensor(std).view(1, 3, 1, 1)
        scaled = (expected(pixels, labels) - torch.tensor(mean).view(1, 3, 1, 1)) / scale
        assert torch.allclose(images.cpu(), scaled.to(dtype), atol=1e-5, rtol=2e-2)
        seen += labels.tolist()
    assert sorted(seen) == list(range(NUM))


def test_prefetched_batches_are_right_while_the_training_stream_is_behind(loader, pixels):
    """The prefetcher's copies run ahead of a slow training stream, and must not hurt each other."""
    results = []
    for images, labels, _ in CUDAPrefetcher(loader, "cuda", dtype=torch.uint8):
        torch.cuda._sleep(20_000_000)
        results.append((images + 0, labels))
        del images
    torch.cuda.synchronize()
    assert len(results) == NUM // 4
    for images, labels in results:
        assert torch.equal(images.cpu(), expected(pixels, labels))


def test_the_prefetcher_brings_fields_along(tmp_path, pixels):
    for i, image in enumerate(pixels):
        write(tmp_path / "imgs" / f"{i:02d}.png", png(image))
        write(tmp_path / "masks" / f"{i:02d}.png", png(image[..., 0]))
    options = Options("memmap", fields=(Pattern("mask", "../masks/{stem}.png"),))
    convert(tmp_path / "imgs", tmp_path / "pack", options, threads=2)
    loader = Loader(tmp_path / "pack", 4, size=SIZE, scale=None, threads=2, fields=["mask"])
    for images, _, batch in CUDAPrefetcher(loader, "cuda", dtype=torch.uint8):
        assert batch.fields["mask"].is_cuda
        assert torch.equal(batch.fields["mask"], images[:, 0])


def test_the_prefetchers_state_leaves_out_the_batch_that_was_fetched_ahead(loader):
    prefetcher = CUDAPrefetcher(loader, "cuda")
    given = []
    for _, labels, _ in prefetcher:
        given.append(labels.tolist())
        if len(given) == 3:
            break
    state = prefetcher.state_dict()
    assert state["batches"] == 3
    prefetcher.load_state_dict(state)
    rest = [labels.tolist() for _, labels, _ in prefetcher]
    assert len(rest) == NUM // 4 - 3
    assert sorted(itertools.chain(*given, *rest)) == list(range(NUM))
    assert prefetcher.state_dict()["epoch"] == 1
