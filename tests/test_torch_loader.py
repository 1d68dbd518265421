"""Tensors from the batch loader: torch's face adds no copy and loses no memory."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys

import numpy as np
import pytest
from handmade import array_pack, handmade_pack
from images import jpeg, photo

torch = pytest.importorskip("torch")

import readers  # noqa: E402
from readers.loader import BatchLoader  # noqa: E402
from readers.torch import CUDAPrefetcher, Loader  # noqa: E402

SIZE = 16


@pytest.fixture
def photos(tmp_path):
    images = [jpeg(photo(i, 64, 48)) for i in range(20)]
    captions = [b"%d" % i for i in range(20)]
    return handmade_pack(
        tmp_path / "photos", "memmap", images, [(64, 48)] * 20, fields={"caption": captions}
    )


def loader(path, batch_size=4, **options):
    return Loader(path, batch_size, **{"size": SIZE, "threads": 2, **options})


def test_batches_are_channels_last_tensors_of_the_numpy_batches(photos):
    expected = list(BatchLoader(photos, 4, size=SIZE))
    batches = list(loader(photos))
    assert len(batches) == len(loader(photos)) == 5
    for (images, labels), numpy in zip(batches, expected, strict=True):
        assert images.dtype == torch.uint8 and images.shape == (4, 3, SIZE, SIZE)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64 and labels.shape == (4,)
        assert np.array_equal(images.permute(0, 2, 3, 1), numpy.images)
        assert labels.tolist() == numpy.labels.tolist()


def test_no_byte_is_copied(photos):
    for images, labels, batch in loader(photos, with_batch=True):
        assert images.data_ptr() == batch.images.ctypes.data
        assert labels.data_ptr() == batch.labels.ctypes.data
        assert labels.tolist() == batch.samples.tolist()  # this pack's labels are the numbers


def test_fields_bring_the_batch_along(photos):
    for _, labels, batch in loader(photos, fields=["caption"]):
        assert batch.fields["caption"] == [b"%d" % label for label in labels.tolist()]


@pytest.mark.parametrize(
    ("options", "dtype", "memory"),
    [
        ({"dtype": np.float32}, torch.float32, torch.channels_last),
        ({"dtype": "float16"}, torch.float16, torch.channels_last),
        ({"normalize": ([1, 2, 3], [4, 5, 6])}, torch.float32, torch.channels_last),
        ({"layout": "NCHW"}, torch.uint8, torch.contiguous_format),
    ],
)
def test_other_types_and_layouts(photos, options, dtype, memory):
    images, _ = next(iter(loader(photos, **options)))
    assert images.dtype == dtype and images.shape == (4, 3, SIZE, SIZE)
    assert images.is_contiguous(memory_format=memory)


def test_what_a_transform_returns_is_stacked_as_it_is(photos):
    def transform(pixels, random):
        return np.moveaxis(pixels, 2, 0).astype(np.float32)

    images, labels = next(iter(loader(photos, transform=transform)))
    assert images.shape == (4, 3, 48, 64) and images.dtype == torch.float32
    pixels = readers.open(photos).image(labels[0].item())
    assert np.array_equal(images[0], np.moveaxis(pixels, 2, 0))


@pytest.mark.parametrize("keep", [lambda t: t, lambda t: t[1:], lambda t: t.flatten(1), iter])
def test_tensors_that_are_kept_are_never_written_to_again(tmp_path, keep):
    arrays = np.stack([np.full((4, 4, 3), i, np.uint8) for i in range(32)])
    path = array_pack(tmp_path / "pack", "memmap", arrays)
    kept = [keep(images) for images, _ in loader(path, 2, train=False, size=4, resize=4)]
    for i, images in enumerate(kept):
        for image in images:
            assert int(image.min()) // 2 == int(image.max()) // 2 == i


def test_memory_that_was_dropped_is_used_again(photos):
    batches = loader(photos, 1, prefetch_batches=2)
    places = [images.data_ptr() for _ in range(3) for images, _ in batches]
    assert len(places) == 60 and len(set(places)) <= 5


def test_epochs_states_and_skipped_are_the_core_loaders(photos):
    batches = loader(photos, seed=3)
    whole = [labels.tolist() for _, labels in batches]
    batches.set_epoch(0)
    for number, (_, labels) in enumerate(batches):
        assert labels.tolist() == whole[number]
        if number == 2:
            break
    resumed = loader(photos, seed=3)
    resumed.load_state_dict(torch.load(saved(batches.state_dict())))
    assert [labels.tolist() for _, labels in resumed] == whole[3:]
    assert resumed.skipped == []


def saved(state):
    """A checkpoint as torch saves it; the loader's state needs no pickled classes."""
    from io import BytesIO

    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_threads_are_this_processs_share(photos, monkeypatch):
    import os

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert Loader(photos, 4).batches.threads == 12
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Loader(photos, 4).batches.threads == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "64")
    assert Loader(photos, 4).batches.threads == 1


RANK_PROGRAM = """
import json, sys
import torch.distributed as dist
from readers.torch import Loader
path, store, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
loader = Loader(path, 3, size=16, threads=1, drop_last=False)
print(json.dumps([labels.tolist() for _, labels in loader]))
dist.destroy_process_group()
"""


def test_rank_and_world_size_come_from_torch_distributed(photos, tmp_path):
    command = [sys.executable, "-c", RANK_PROGRAM, str(photos), str(tmp_path / "store")]
    ranks = [
        subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    first, second = (json.loads(out) for out, _ in outputs)
    assert [len(b) for b in first] == [len(b) for b in second] == [3, 3, 3, 1]
    assert sorted(itertools.chain(*first, *second)) == list(range(20))


def test_given_ranks_win(photos):
    halves = [
        [labels.tolist() for _, labels in loader(photos, 5, rank=rank, world_size=2)]
        for rank in range(2)
    ]
    assert sorted(itertools.chain(*halves[0], *halves[1])) == list(range(20))


def test_half_a_place_and_no_threads_are_refused(photos):
    for options in ({"rank": 1}, {"world_size": 2}):
        with pytest.raises(ValueError, match="give both or neither"):
            loader(photos, **options)
    with pytest.raises(ValueError, match="threads=0"):
        loader(photos, threads=0)


# The prefetcher, on a CPU; tests/test_gpu.py has the rest


def test_the_prefetcher_normalises(photos):
    mean, std = [124.0, 116.0, 104.0], [58.0, 57.0, 56.0]
    plain = [images for images, _ in loader(photos)]
    prefetched = list(CUDAPrefetcher(loader(photos), "cpu", mean=mean, std=std))
    for (images, labels), expected in zip(prefetched, plain, strict=True):
        assert images.dtype == torch.float32 and labels.dtype == torch.int64
        assert images.is_contiguous(memory_format=torch.channels_last)
        shape = (1, 3, 1, 1)
        scaled = (expected - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
        assert torch.allclose(images, scaled, atol=1e-6)


def test_the_prefetcher_refuses_numbers_for_other_pixels(photos):
    """Those that are printed everywhere are for pixels of 0 to 1, which a transform may make."""
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    with pytest.raises(ValueError, match="multiply by 255"):
        next(iter(CUDAPrefetcher(loader(photos), "cpu", mean=mean, std=std)))
    halves = loader(photos, transform=lambda pixels, random: np.full((2, 2, 3), 0.5, np.float32))
    images, _ = next(iter(CUDAPrefetcher(_Planes(halves), "cpu", mean=mean, std=std)))
    assert images.max() < 1
    for options in ({"std": std}, {"mean": (0, 0, 0), "std": std}):
        with pytest.raises(ValueError, match="multiply by 255"):
            next(iter(CUDAPrefetcher(loader(photos, dtype=np.float32), "cpu", **options)))
    for wrong in ({"std": (1, 0, 1)}, {"mean": (120,)}, {"mean": (1, 2, float("nan"))}):
        with pytest.raises(ValueError, match="mean"):
            CUDAPrefetcher(loader(photos), "cpu", **wrong)


class _Planes:
    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return ((images.permute(0, 3, 1, 2), labels) for images, labels in self._batches)


def test_the_prefetcher_passes_pixels_through_without_a_copy(photos):
    source = loader(photos, with_batch=True)
    plain = [images.clone() for images, *_ in source]
    source.set_epoch(0)
    prefetcher = CUDAPrefetcher(source, "cpu", dtype=torch.uint8)
    assert len(prefetcher) == 5
    for (images, labels, _), expected in zip(prefetcher, plain, strict=True):
        assert torch.equal(images, expected) and labels.shape == (4,)
    floats, _ = next(iter(CUDAPrefetcher(loader(photos), "cpu", dtype=torch.bfloat16)))
    assert floats.dtype == torch.bfloat16 and torch.equal(floats, plain[0].to(torch.bfloat16))


def test_the_prefetchers_state_is_that_of_the_batch_in_hand(photos):
    whole = [labels.tolist() for _, labels in loader(photos)]
    prefetcher = CUDAPrefetcher(loader(photos), "cpu")
    for number, _ in enumerate(prefetcher):
        if number == 1:
            break
    state = prefetcher.state_dict()
    assert state["batches"] == 2
    resumed = CUDAPrefetcher(loader(photos), "cpu")
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert [labels.tolist() for _, labels in resumed] == whole[2:]


def test_eval_pixels_are_those_of_torchs_antialiased_resize(tmp_path):
    # What torchvision's Resize does with a tensor.
    path = handmade_pack(tmp_path / "pack", "memmap", [jpeg(photo(3, 320, 240))], [(320, 240)])
    pixels = torch.from_numpy(readers.open(path).image(0)).permute(2, 0, 1)[None].float()
    resized = torch.nn.functional.interpolate(
        pixels, (64, 85), mode="bilinear", antialias=True, align_corners=False
    )
    expected = resized[:, :, 4:60, 14:70].round().clamp(0, 255)  # round(14.5) is 14
    for exact, most in [(True, 1), (False, 3)]:
        images, _ = next(iter(loader(path, 1, train=False, size=56, exact=exact)))
        assert (images - expected).abs().max() <= most
