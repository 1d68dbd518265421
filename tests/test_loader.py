"""The batch loader: the right pixels in the right order, whoever makes them and when."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings

import cv2
import numpy as np
import pytest
from handmade import array_pack, handmade_pack
from images import jpeg, photo, png
from packs import Recipe, Row
from PIL import Image

import readers
from readers import formats
from readers.augment import flips, random_resized_crops
from readers.buffers import Buffers
from readers.errors import DamagedPack, DamagedSample, DspackError, NotAPack
from readers.loader import BatchLoader
from readers.render import _Disk
from readers.seekable import segment_offsets

SIZE = 16


def loader_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("loader-")]


@pytest.fixture(autouse=True)
def no_thread_left():
    yield
    assert loader_threads() == []


def loader(path, batch_size=4, **options):
    return BatchLoader(path, batch_size, **{"size": SIZE, "threads": 2, **options})


def epoch_of(path, batch_size=4, **options):
    """images, samples and labels of an epoch, joined."""
    batches = list(loader(path, batch_size, **options))
    return tuple(
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("images", "samples", "labels")
    )


def reference_crop(pack, sample, seed=0, epoch=0, size=SIZE):
    """Full decode, slice, cv2.resize, flip."""
    pixels = pack.image(sample)
    height, width = pixels.shape[:2]
    ((x, y, w, h),) = random_resized_crops([width], [height], seed, epoch, [sample]).tolist()
    resized = cv2.resize(pixels[y : y + h, x : x + w], (size, size))
    return resized[:, ::-1] if flips(seed, epoch, [sample])[0] else resized


def reference_eval(pixels, resize, size):
    """torchvision's Resize(resize), CenterCrop(size) of a PIL image."""
    height, width = pixels.shape[:2]
    short = min(width, height)
    new_width, new_height = width * resize // short, height * resize // short
    image = Image.fromarray(pixels).resize((new_width, new_height), Image.Resampling.BILINEAR)
    left, top = round((new_width - size) / 2), round((new_height - size) / 2)
    return np.asarray(image)[top : top + size, left : left + size]


def levels(a, b):
    """The mean and the largest difference."""
    difference = np.abs(a.astype(int) - b.astype(int))
    return difference.mean(), difference.max()


@pytest.fixture
def photos(tmp_path):
    """Two dozen photographs of one size in a pack, as JPEG."""
    images = [jpeg(photo(i, 64, 48)) for i in range(24)]
    return handmade_pack(tmp_path / "photos", "memmap", images, [(64, 48)] * 24)


# Pixels


def test_a_training_batch_is_the_reference_in_every_format(pack_path):
    pack = readers.open(pack_path)
    for seed, epoch in [(0, 0), (3, 2)]:
        batches = loader(pack_path, seed=seed, exact=True)
        batches.set_epoch(epoch)
        for batch in batches:
            assert batch.images.dtype == np.uint8 and batch.images.shape == (4, SIZE, SIZE, 3)
            assert batch.labels.dtype == batch.samples.dtype == np.int64
            assert batch.labels.tolist() == pack.labels[batch.samples].tolist()
            for image, sample in zip(batch.images, batch.samples.tolist(), strict=True):
                assert np.array_equal(image, reference_crop(pack, sample, seed, epoch))


@pytest.mark.parametrize("train", [True, False])
def test_the_number_of_threads_does_not_matter(pack_path, train):
    one, two, five = (epoch_of(pack_path, 5, train=train, threads=n) for n in (1, 2, 5))
    for first, *others in zip(one, two, five, strict=True):
        for other in others:
            assert np.array_equal(first, other)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("encode", [jpeg, png])
def test_crops_are_upright_and_right_in_every_orientation(tmp_path, orientation, encode):
    turned = orientation >= 5
    data = [encode(photo(i, 45, 30)) for i in range(6)]
    size = (30, 45) if turned else (45, 30)
    path = handmade_pack(
        tmp_path / "pack", "memmap", data, [size] * 6, orientations=[orientation] * 6
    )
    pack = readers.open(path)
    assert pack.image(0).shape[:2] == size[::-1]
    images, samples, _ = epoch_of(path, 6, exact=True)
    for image, sample in zip(images, samples.tolist(), strict=True):
        assert np.array_equal(image, reference_crop(pack, sample))
    images, _, _ = epoch_of(path, 6, train=False, resize=18)
    for image, sample in zip(images, range(6), strict=True):
        assert levels(image, reference_eval(pack.image(sample), 18, SIZE))[1] <= 1


@pytest.mark.parametrize(
    ("width", "height"), [(64, 48), (48, 64), (500, 375), (333, 500), (20, 30), (40, 1000)]
)
def test_eval_is_torchvisions_within_a_level(tmp_path, width, height):
    data = jpeg(photo(5, width, height))
    path = handmade_pack(tmp_path / "pack", "memmap", [data], [(width, height)])
    images, _, _ = epoch_of(path, 1, train=False, size=56)  # resize 64
    expected = reference_eval(readers.open(path).image(0), 64, 56)
    mean, largest = levels(images[0], expected)
    assert mean < 0.5 and largest <= (1 if min(width, height) < 4 * 64 else 4)
    images, _, _ = epoch_of(path, 1, train=False, size=56, exact=True)
    assert levels(images[0], expected)[1] <= 1


@pytest.mark.parametrize("orientation", range(1, 9))
def test_eval_of_a_large_jpeg_is_near_though_decoded_at_reduced_size(tmp_path, orientation):
    pixels = cv2.resize(photo(1, 240, 180), (2001, 1501), interpolation=cv2.INTER_CUBIC)
    size = (1501, 2001) if orientation >= 5 else (2001, 1501)
    path = handmade_pack(
        tmp_path / "pack", "memmap", [jpeg(pixels)], [size], orientations=[orientation]
    )
    images, _, _ = epoch_of(path, 1, train=False, size=224)
    mean, largest = levels(images[0], reference_eval(readers.open(path).image(0), 256, 224))
    assert mean < 0.3 and largest <= 4


def test_training_crops_of_a_large_jpeg_are_near_though_decoded_at_reduced_size(tmp_path):
    pixels = cv2.resize(photo(1, 60, 45), (1201, 901), interpolation=cv2.INTER_CUBIC)
    path = handmade_pack(tmp_path / "pack", "memmap", [jpeg(pixels)] * 8, [(1201, 901)] * 8)
    exact, _, _ = epoch_of(path, 8, exact=True)
    reduced, _, _ = epoch_of(path, 8)
    assert not np.array_equal(exact, reduced)
    assert levels(exact, reduced)[0] < 4


@pytest.mark.parametrize("orientation", [1, 2, 8])
def test_seekable_jpegs_give_the_same_pixels(tmp_path, monkeypatch, orientation):
    size = (128, 160) if orientation >= 5 else (160, 128)
    images = []
    for i in range(8):
        options = [cv2.IMWRITE_JPEG_RST_INTERVAL, 2]
        images.append(cv2.imencode(".jpg", photo(i, 160, 128), options)[1].tobytes())
    path = handmade_pack(
        tmp_path / "pack", "memmap", images, [size] * 8, orientations=[orientation] * 8
    )
    runs = [{"exact": True}, {"train": False, "resize": 20}, {"scale": None}]
    expected = [epoch_of(path, 8, **options) for options in runs]
    offsets = [segment_offsets(data) for data in images]
    assert all(len(part) > 10 for part in offsets)
    monkeypatch.setattr(readers.Pack, "segments", lambda pack, row: offsets[row])
    for options, (plain, _, _) in zip(runs, expected, strict=True):
        assert np.array_equal(epoch_of(path, 8, **options)[0], plain)
    offsets[5] = offsets[5][:7]
    with pytest.raises(DamagedSample, match="segments are misplaced"):
        epoch_of(path, 8, exact=True)


def test_interpolation_by_area_averages(photos):
    pack = readers.open(photos)
    images, samples, _ = epoch_of(photos, interpolation="area", exact=True)
    sizes = [64] * 24, [48] * 24
    crops = random_resized_crops(*sizes, 0, 0, samples).tolist()
    for image, sample, (x, y, w, h) in zip(images, samples.tolist(), crops, strict=True):
        pixels = pack.image(sample)[y : y + h, x : x + w]
        expected = cv2.resize(pixels, (SIZE, SIZE), interpolation=cv2.INTER_AREA)
        mirrored = flips(0, 0, [sample])[0]
        assert np.array_equal(image, expected[:, ::-1] if mirrored else expected)


def test_a_grey_jpeg_and_png_have_three_equal_channels(tmp_path):
    grey = photo(2, 40, 30)[:, :, 0]
    path = handmade_pack(tmp_path / "pack", "memmap", [jpeg(grey), png(grey)], [(40, 30)] * 2)
    for train in (True, False):
        images, _, _ = epoch_of(path, 2, train=train, resize=18)
        assert np.array_equal(images[..., 0], images[..., 1])
        assert np.array_equal(images[..., 0], images[..., 2])


def test_scale_none_only_flips(tmp_path, format_name):
    arrays = np.stack([photo(i, SIZE, SIZE) for i in range(8)])
    path = array_pack(tmp_path / "pack", format_name, arrays)
    images, samples, _ = epoch_of(path, scale=None)
    mirrored = flips(0, 0, samples)
    assert set(mirrored.tolist()) == {True, False}
    for image, sample, flipped in zip(images, samples, mirrored, strict=True):
        assert np.array_equal(image, arrays[sample][:, ::-1] if flipped else arrays[sample])
    images, samples, _ = epoch_of(path, scale=None, flip=0)
    assert np.array_equal(images, arrays[samples])


def test_whole_arrays_are_copied_many_at_once_and_damaged_ones_replaced(tmp_path, format_name):
    arrays = np.stack([photo(i, SIZE, SIZE) for i in range(90)])
    path = array_pack(tmp_path / "pack", format_name, arrays)
    checksums = np.load(path / "index" / "image.checksum.npy")
    checksums[[7, 8]] ^= 255
    np.save(path / "index" / "image.checksum.npy", checksums)
    with pytest.raises(DamagedSample):
        epoch_of(path, 45, scale=None)
    for threads in (1, 3):
        batches = loader(path, 45, scale=None, on_error="skip", threads=threads)
        seen = []
        for batch in batches:
            seen += batch.samples.tolist()
            mirrored = flips(0, 0, batch.samples)
            for image, sample, flipped in zip(batch.images, batch.samples, mirrored, strict=True):
                assert np.array_equal(image, arrays[sample][:, ::-1] if flipped else arrays[sample])
        assert len(seen) == 90 and set(seen) == set(range(90)) - {7, 8}
        assert len(batches.skipped) == 2


@pytest.mark.parametrize("change", [-3, 3])
@pytest.mark.parametrize("scale", [None, (0.08, 1.0)])
def test_an_array_of_another_length_is_damage(tmp_path, format_name, scale, change):
    """Without comparing checksums, too; the index and the shard agree on it."""
    path = array_pack(tmp_path / "pack", format_name, np.stack([photo(0, SIZE, SIZE)] * 8))
    values = [bytes(SIZE * SIZE * 3)] * 3 + [bytes(SIZE * SIZE * 3 + change)]
    pack = readers.open(path)
    rows = [Row(str(i), {"image": value}) for i, value in enumerate(values)]
    Recipe(rows, fields=pack.manifest.fields).write(tmp_path / "other", format_name)
    with pytest.raises(DamagedSample, match="not an array as stated") as caught:
        epoch_of(tmp_path / "other", scale=scale, check=False)
    assert caught.value.index == 3


def test_telling_the_kernel_of_damage_is_no_error(tmp_path, format_name, monkeypatch):
    path = array_pack(tmp_path / "pack", format_name, np.stack([photo(0, SIZE, SIZE)] * 8))
    offset = np.load(path / "index" / "image.offset.npy")
    offset[:2] = [2**62, -(2**20)]
    np.save(path / "index" / "image.offset.npy", offset)
    length = np.load(path / "index" / "image.length.npy")
    length[2] = 2**63 - 1
    np.save(path / "index" / "image.length.npy", length)
    monkeypatch.setattr(_Disk, "has_waited", lambda self, epoch: True)
    if format_name != "lmdb":  # which finds values by their keys
        with pytest.raises(DamagedSample):
            epoch_of(path, scale=None)
    (path / "shards").rename(path / "gone")
    with pytest.raises(DamagedPack) as caught:
        epoch_of(path, scale=None)
    assert isinstance(caught.value, DamagedSample)


def test_array_packs_are_cropped_and_resized_like_decoded_ones(tmp_path, format_name):
    arrays = np.stack([photo(i, 40, 30) for i in range(8)])
    path = array_pack(tmp_path / "pack", format_name, arrays)
    pack = readers.open(path)
    images, samples, _ = epoch_of(path)
    for image, sample in zip(images, samples.tolist(), strict=True):
        assert np.array_equal(image, reference_crop(pack, sample))
    images, _, _ = epoch_of(path, train=False, resize=18)
    for image, array in zip(images, arrays, strict=True):
        assert levels(image, reference_eval(array, 18, SIZE))[1] <= 1
    images, _, _ = epoch_of(path, train=False, size=30, resize=30)  # nothing to resize: a slice
    assert np.array_equal(images, arrays[:, :, 5:35])


def test_array_packs_of_another_type_need_a_transform(tmp_path):
    path = array_pack(
        tmp_path / "pack", "memmap", np.arange(96, dtype=np.uint16).reshape(2, 6, 8, 1)
    )
    with pytest.raises(ValueError, match="transform"):
        loader(path, 2)
    images, samples, _ = epoch_of(path, 2, transform=lambda pixels, random: pixels)
    assert images.dtype == np.uint16 and images.shape == (2, 6, 8, 1)
    assert images[samples == 1][0, 0, 0, 0] == 48


# Other batches


def test_layout_dtype_and_normalize(photos):
    plain, _, _ = epoch_of(photos)
    turned, _, _ = epoch_of(photos, layout="NCHW")
    assert np.array_equal(turned, plain.transpose(0, 3, 1, 2)) and turned.flags.c_contiguous
    floats, _, _ = epoch_of(photos, dtype=np.float32)
    assert floats.dtype == np.float32 and np.array_equal(floats, plain)
    mean, std = [124, 116, 104], [58, 57, 57]
    expected = (plain - np.array(mean)) / np.array(std)
    for options, dtype, tolerance in [
        ({}, np.float32, 1e-6),
        ({"dtype": np.float16}, np.float16, 2e-3),
        ({"layout": "NCHW"}, np.float32, 1e-6),
    ]:
        images, _, _ = epoch_of(photos, normalize=(mean, std), **options)
        assert images.dtype == dtype
        if "layout" in options:
            images = images.transpose(0, 2, 3, 1)
        assert np.abs(images - expected).max() < tolerance


@pytest.mark.parametrize(
    "options",
    [
        {"normalize": ([0] * 3, [1] * 3), "dtype": np.uint8},
        {"normalize": ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])},
        {"normalize": ([120.0] * 3, [60.0, 0.0, 60.0])},
        {"normalize": ([120.0], [60.0])},
        {"flip": 3},
        {"shuffle": "block"},
        {"fields": "image"},
        {"transform": lambda pixels, random: pixels, "dtype": np.float32},
        {"transform": lambda pixels, random: pixels, "layout": "NCHW"},
        {"train": False, "resize": SIZE - 1},
        {"scale": (0, 1)},
        {"ratio": (2, 1)},
        {"layout": "HWC"},
        {"interpolation": "cubic"},
        {"on_error": "ignore"},
        {"size": 0, "train": False},
        {"threads": -1},
        {"prefetch_batches": -1},
    ],
)
def test_options_that_contradict_each_other_are_refused_at_once(photos, options):
    with pytest.raises(ValueError):  # noqa: PT011  what it says is up to its origin
        loader(photos, **options)


def test_transform_is_given_upright_pixels_and_a_generator_of_its_own(pack_path):
    pack = readers.open(pack_path)
    seen = {}

    def transform(pixels, random):
        seen[pixels.tobytes()] = pixels.shape
        pixels[0, 0] = 0  # they are the transform's to change
        return np.append(random.integers(0, 2**31, 3), pixels.shape[1]).astype(np.float64)

    runs = [epoch_of(pack_path, 5, transform=transform, threads=n) for n in (1, 4)]
    assert np.array_equal(runs[0][0], runs[1][0])
    images, samples, _ = runs[0]
    assert images.dtype == np.float64 and images.shape == (10, 4)
    assert len(np.unique(images[:, :3])) == 30
    for sample, image in zip(samples.tolist(), images, strict=True):
        assert pack.image(sample).shape[1] == image[3]
        assert seen[pack.image(sample).tobytes()] == pack.image(sample).shape
    batches = loader(pack_path, 5, transform=transform)
    batches.set_epoch(1)
    other = np.concatenate([batch.images for batch in batches])
    assert not np.isin(other[:, :3], images[:, :3]).any()
    in_eval, samples, _ = epoch_of(pack_path, 5, transform=transform, train=False)
    assert [image[3] for image in in_eval] == [pack.image(s).shape[1] for s in samples]


def test_transform_may_change_the_pixels_of_an_array_pack(tmp_path):
    arrays = np.full((2, 4, 4, 3), 7, np.uint8)
    path = array_pack(tmp_path / "pack", "memmap", arrays)

    def transform(pixels, random):
        pixels += 1
        return pixels

    for _ in range(2):
        assert (epoch_of(path, 2, transform=transform)[0] == 8).all()


def test_transform_results_that_fit_into_no_batch_are_an_error(pack_path):
    with pytest.raises(ValueError, match="do not fit into one batch"):
        list(loader(pack_path, 12, transform=lambda pixels, random: pixels))


def test_an_exception_of_the_transform_reaches_the_caller(photos):
    def transform(pixels, random):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        list(loader(photos, transform=transform))


def test_fields_come_with_their_samples(tmp_path, format_name):
    captions = [f"caption {i}".encode() * i for i in range(6)]
    images = [jpeg(photo(i)) for i in range(6)]
    path = handmade_pack(
        tmp_path / "pack", format_name, images, [(48, 32)] * 6, fields={"caption": captions}
    )
    for batch in loader(path, 3, fields=["caption", "image"]):
        assert batch.fields["caption"] == [captions[i] for i in batch.samples]
        assert batch.fields["image"] == [images[i] for i in batch.samples]
    assert next(iter(loader(path, 3))).fields == {}
    with pytest.raises(DspackError, match="no field 'masks'; it has image, caption"):
        loader(path, 3, fields=["masks"])


def test_a_split_counts_its_own_samples(tmp_path):
    images = [jpeg(photo(i)) for i in range(9)]
    path = handmade_pack(
        tmp_path / "pack", "memmap", images, [(48, 32)] * 9, splits=[("train", 6), ("val", 3)]
    )
    batches = list(loader(path, 2, split="val", train=False))
    assert [batch.samples.tolist() for batch in batches] == [[0, 1], [2]]
    assert [batch.labels.tolist() for batch in batches] == [[6, 7], [8]]
    assert len(loader(path, 2, split="train")) == 3


# Damage


def damage(path, sample):
    """Make a sample's checksum wrong."""
    column = path / "index" / "image.checksum.npy"
    checksums = np.load(column)
    checksums[sample, 3] ^= 1
    np.save(column, checksums)


@pytest.fixture
def damaged(tmp_path):
    """A pack of eight captioned samples: 2 and 3 are no images, 7's checksum is wrong."""
    images = [jpeg(photo(i)) for i in range(8)]
    images[2], images[3] = b"no image", images[3][:100]
    captions = [b"%d" % i for i in range(8)]
    path = handmade_pack(
        tmp_path / "pack", "lmdb", images, [(48, 32)] * 8, fields={"caption": captions}
    )
    damage(path, 7)
    return path


def test_a_damaged_sample_stops_with_its_key(damaged):
    batches = iter(loader(damaged, 2, train=False))
    assert next(batches).samples.tolist() == [0, 1]
    with pytest.raises(DamagedSample, match="cannot be decoded") as raised:
        next(batches)
    assert (raised.value.index, raised.value.key) == (2, "002")
    with pytest.raises(DamagedSample, match="checksum") as raised:
        list(loader(damaged, 2, subset=[6, 7]))
    assert raised.value.key == "007"
    assert epoch_of(damaged, 2, subset=[6, 7], check=False)[1].tolist() in ([6, 7], [7, 6])


def test_a_damaged_sample_is_replaced_by_the_next_sound_one_of_the_order(damaged):
    batches = loader(damaged, 4, train=False, on_error="skip", fields=["caption"])
    first, second = list(batches)
    assert first.samples.tolist() == [0, 1, 4, 4]
    assert second.samples.tolist() == [4, 5, 6, 0]
    assert sorted(batches.skipped) == ["002", "003", "007"]
    assert first.labels.tolist() == [0, 1, 4, 4]
    assert first.fields["caption"] == [b"0", b"1", b"4", b"4"]
    assert np.array_equal(first.images[2], second.images[0])


@pytest.mark.parametrize("threads", [1, 5])
def test_a_replacement_comes_from_the_epochs_permutation(damaged, threads):
    order = np.concatenate(
        [loader(damaged, 8).order.batch(0, 0).samples for _ in range(2)]
    ).tolist()
    images, samples, _ = epoch_of(damaged, 8, on_error="skip", threads=threads, exact=True)
    sound = set(range(8)) - {2, 3, 7}
    expected = [next(s for s in order[place:] if s in sound) for place in range(8)]
    assert samples.tolist() == expected
    pack = readers.open(damaged)
    for image, sample in zip(images, expected, strict=True):
        assert np.array_equal(image, reference_crop(pack, sample))


def test_a_transform_meets_only_sound_samples(damaged):
    images, samples, labels = epoch_of(
        damaged, 4, on_error="skip", train=False, transform=lambda pixels, random: pixels[0, 0]
    )
    assert samples.tolist() == labels.tolist() == [0, 1, 4, 4, 4, 5, 6, 0]
    assert np.array_equal(images[2], readers.open(damaged).image(4)[0, 0])


def test_only_damaged_samples_are_an_error_even_when_skipping(damaged):
    with pytest.raises(DamagedPack, match="every sample is damaged"):
        list(loader(damaged, 2, subset=[2, 3], on_error="skip"))


def test_a_size_in_the_index_that_is_not_the_images_is_damage(tmp_path):
    data = [jpeg(photo(0)), png(photo(0))]
    path = handmade_pack(tmp_path / "pack", "memmap", data, [(96, 64)] * 2)
    for train in (True, False):
        with pytest.raises(DamagedSample, match="48x32"):
            list(loader(path, 2, train=train, scale=None, exact=True))


def test_a_shard_that_is_gone_is_reported_by_the_iteration(pack_path):
    batches = loader(pack_path)
    for shard in (pack_path / "shards").iterdir():
        shard.unlink()
    with pytest.raises(DamagedPack):
        next(iter(batches))


# Threads and memory


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_an_early_break_leaves_no_thread(photos, threads):
    for _ in loader(photos, 2, threads=threads):
        assert len(loader_threads()) == threads
        break
    assert loader_threads() == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_loop_leaves_no_thread(photos, error):
    def train():
        for _ in loader(photos, 2):
            raise error

    with pytest.raises(error):
        train()
    assert loader_threads() == []


def test_ctrl_c_while_waiting_for_a_batch_leaves_no_thread(photos):
    def transform(pixels, random):
        time.sleep(0.05)
        return pixels

    def train():
        endless = loader(photos, 24, transform=transform)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            list(endless)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert loader_threads() == []


@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_threads_that_cannot_all_be_started_end(photos, monkeypatch, allowed):
    start, started = threading.Thread.start, []

    def limited(self):
        if len(started) == allowed:
            raise KeyboardInterrupt
        started.append(self)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(KeyboardInterrupt):
        next(iter(loader(photos, threads=4)))
    assert loader_threads() == []


def test_a_worker_that_collects_its_own_iterator_as_garbage_does_not_wait_for_itself(photos):
    """In a process of its own, since it hangs where that goes wrong. Garbage is collected in the
    thread that happens to allocate, and may be the iterator whose lock it holds."""
    script = f"""
import gc, threading, time
from readers.loader import BatchLoader
gc.set_threshold(50, 2, 2)
for _ in range(60):
    batches = iter(BatchLoader({str(photos)!r}, 4, size={SIZE}, threads=4))
    next(batches)
    cycle = [batches]
    cycle.append(cycle)
    del batches, cycle
    time.sleep(0.002)
gc.collect()
deadline = time.monotonic() + 20
while threading.active_count() > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(threading.active_count())
"""
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert (run.stdout, run.stderr) == ("1\n", "")


def test_a_loader_that_has_given_batches_can_be_pickled(photos):
    batches = loader(photos)
    first = [batch.samples for batch in batches]
    copied = pickle.loads(pickle.dumps(batches))
    copied.set_epoch(0)
    again = [batch.samples for batch in copied]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))


def test_an_iterator_that_is_still_alive_at_the_end_of_the_program_is_no_trouble(photos):
    code = (
        "from readers.loader import BatchLoader\n"
        f"batches = iter(BatchLoader({str(photos)!r}, 2, threads=4))\n"
        "batch = next(batches)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


def test_nothing_is_made_too_far_ahead(photos):
    made = []

    def transform(pixels, random):
        made.append(1)
        return pixels

    batches = iter(loader(photos, 2, transform=transform, prefetch_batches=2))
    next(batches)
    time.sleep(0.2)
    assert len(made) == 2 * (1 + 3)  # the batch handed out, two ahead, and the one asked for next
    batches.close()


def test_a_batch_that_is_kept_is_never_written_to_again(photos):
    expected = [batch.images.copy() for batch in loader(photos, 2)]
    batches = list(loader(photos, 2))  # whole batches
    slices = [batch.images[1:, ::2] for batch in loader(photos, 2)]
    buffers = [memoryview(batch.images) for batch in loader(photos, 2)]
    endless = loader(photos, 2)
    several = [batch.images for _ in range(3) for batch in endless]
    for i, images in enumerate(expected):
        assert np.array_equal(batches[i].images, images)
        assert np.array_equal(slices[i], images[1:, ::2])
        assert np.array_equal(buffers[i], images)
        assert np.array_equal(several[i], images)
    assert len({images.ctypes.data for images in several}) == len(several)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_batch_that_was_dropped_makes_room_for_the_next(photos, ahead):
    batches, places = iter(loader(photos, prefetch_batches=ahead, threads=1)), set()
    while (batch := next(batches, None)) is not None:
        places.add(batch.images.ctypes.data)
        del batch
    assert len(places) == 1 + ahead


def test_memory_that_was_dropped_is_used_again(photos):
    batches = loader(photos, 1, prefetch_batches=2)
    places = [batch.images.ctypes.data for _ in range(4) for batch in batches]
    assert len(places) == 96
    # Two ahead, the next one, one in the caller's hands, and one that is being let go of.
    assert len(set(places)) <= 5


def test_buffers_serve_short_batches_and_replace_what_is_too_small():
    buffers = Buffers()
    small = buffers.take((2, 3), np.uint8)
    del small
    large = buffers.take((4, 3), np.float32)
    place = large.ctypes.data
    del large
    short = buffers.take((3, 3), np.float32)
    assert short.ctypes.data == place and short.shape == (3, 3)
    view = short[1:]
    del short
    assert buffers.take((3, 3), np.float32).ctypes.data != place
    del view
    assert buffers.take((3, 3), np.float32).ctypes.data == place


def test_the_memory_may_come_from_elsewhere(photos):
    given = []

    def allocate(shape, dtype):
        given.append(np.full(shape, 255, dtype))
        return given[-1]

    batches = list(loader(photos, 8, allocate=allocate))
    assert all(a is b.images for a, b in zip(given, batches, strict=True))
    assert np.array_equal(batches[0].images, next(iter(loader(photos, 8))).images)


@pytest.mark.parametrize("name", formats.names())
def test_a_fork_in_the_middle_of_an_epoch_iterates_anew(source, tmp_path, make_pack, name):
    path = make_pack(source, tmp_path / "pack", name)
    batches = loader(path)
    expected = [batch.images.tobytes() for batch in batches]
    batches.set_epoch(0)
    going_on = iter(batches)
    next(going_on)
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do exist
        child = os.fork()
    if child == 0:
        try:
            batches.set_epoch(0)
            again = [batch.images.tobytes() for batch in batches]
            try:
                next(going_on)
            except RuntimeError as error:
                lost = "lost in a fork" in str(error)
            del going_on
            os.write(send, b"same" if again == expected and lost else b"other")
        finally:
            os._exit(0)
    os.close(send)
    assert os.read(receive, 10) == b"same"
    os.waitpid(child, 0)
    os.close(receive)
    assert next(going_on).images.tobytes() == expected[1]
    going_on.close()


def test_threads_are_gone_when_an_epoch_ends(photos):
    # Not only Python's: what is left of a thread may hold locks that a fork would copy.
    before = len(os.listdir("/proc/self/task"))
    for _ in range(20):
        list(loader(photos, 12, threads=4))
        assert len(os.listdir("/proc/self/task")) <= before


def test_two_iterators_at_once_do_not_disturb_each_other(photos):
    batches = loader(photos, 2, train=False)
    for one, other in zip(batches, batches, strict=True):
        assert np.array_equal(one.images, other.images)


# Order, epochs and resuming


def test_every_epoch_is_followed_by_the_next(photos):
    batches = loader(photos, 4)
    epochs = [np.concatenate([b.samples for b in batches]).tolist() for _ in range(2)]
    assert batches.epoch == 2
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(24))
    batches.set_epoch(1)
    assert np.concatenate([b.samples for b in batches]).tolist() == epochs[1]
    for _ in batches:
        break
    batches.set_epoch(0)
    assert np.concatenate([b.samples for b in batches]).tolist() == epochs[0]


def test_an_epoch_that_was_left_early_is_followed_by_the_next(photos):
    batches, firsts = loader(photos, 4), []
    for epoch in range(3):
        for batch in batches:
            assert batches.state_dict()["epoch"] == epoch
            firsts.append(batch.samples.tolist())
            break
    assert firsts == [batches.order.batch(epoch, 0).samples.tolist() for epoch in range(3)]
    assert batches.state_dict()["epoch"] == 2 and batches.state_dict()["batches"] == 1
    batches.load_state_dict(batches.state_dict())
    assert next(iter(batches)).samples.tolist() == batches.order.batch(2, 1).samples.tolist()
    batches.set_epoch(2)
    assert next(iter(batches)).samples.tolist() == firsts[2]


@pytest.mark.parametrize("options", [{"shuffle": False}, {"drop_last": False}, {"seed": 1}])
def test_a_state_of_other_batches_is_refused(photos, options):
    state = loader(photos, 4).state_dict()
    with pytest.raises(DspackError, match=next(iter(options))):
        loader(photos, 4, **options).load_state_dict(state)
    with pytest.raises(DspackError, match="no loader's state: it lacks batch_size"):
        loader(photos, 4).load_state_dict({"epoch": 1, "batches": 0})


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("drop_last", [True, False])
def test_a_resumed_run_goes_on_with_the_batches_that_were_to_come(photos, rank, drop_last):
    options = {"rank": rank, "world_size": 2, "drop_last": drop_last, "seed": 3}
    through = loader(photos, 5, **options)
    states, expected = [through.state_dict()], []
    for _ in range(2):
        for batch in through:
            states.append(through.state_dict())
            expected.append((batch.images.tobytes(), batch.samples.tolist()))
    per_epoch = len(through)
    for done, state in enumerate(states):
        resumed = loader(photos, 5, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        resumed.set_epoch(state["epoch"])  # as training loops do
        rest = [(batch.images.tobytes(), batch.samples.tolist()) for batch in resumed]
        epoch_end = max(-(-done // per_epoch), 1) * per_epoch
        assert rest == expected[done:epoch_end]
        rest = [(batch.images.tobytes(), batch.samples.tolist()) for batch in resumed]
        assert rest == expected[epoch_end : epoch_end + per_epoch] or epoch_end == 2 * per_epoch


def test_a_state_after_the_end_of_an_epoch_begins_the_next(photos):
    batches = loader(photos, 4)
    epochs = [[b.samples.tolist() for b in batches] for _ in range(2)]
    batches.set_epoch(0)
    list(batches)
    resumed = loader(photos, 4)
    resumed.load_state_dict(batches.state_dict())
    assert [b.samples.tolist() for b in resumed] == epochs[1]


def test_another_epoch_forgets_a_loaded_state(photos):
    batches = loader(photos, 4)
    batches.load_state_dict({**batches.state_dict(), "batches": 3})
    batches.set_epoch(5)
    assert batches.state_dict()["batches"] == 0
    assert len(list(batches)) == 6


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"batch_size": 3}, {"subset": range(20)}, {"world_size": 2}]
)
def test_a_state_of_a_loader_that_gives_other_batches_is_refused(photos, options):
    state = loader(photos, 4).state_dict()
    with pytest.raises(DspackError, match="the saved state has"):
        loader(photos, **{"batch_size": 4, **options}).load_state_dict(state)


def test_a_state_of_other_samples_is_refused(tmp_path):
    images, sizes = [jpeg(photo(i, 20, 16)) for i in range(24)], [(20, 16)] * 24
    path = handmade_pack(
        tmp_path / "pack", "memmap", images, sizes, splits=[("train", 12), ("val", 12)]
    )
    ways = [
        {"split": "train"},
        {"split": "val"},
        {"subset": range(12)},
        {"subset": range(1, 13)},
        {"subset": range(12), "weights": [1.0] * 12},
        {"subset": range(12), "weights": [1.0] * 11 + [2.0]},
    ]
    for mine, theirs in itertools.product(ways, ways):
        state = loader(path, 4, **mine).state_dict()
        if mine is theirs:
            loader(path, 4, **theirs).load_state_dict(state)
        else:
            with pytest.raises(DspackError, match=r"has split|has selection"):
                loader(path, 4, **theirs).load_state_dict(state)


def test_a_damaged_sample_of_a_split_is_named_by_its_number_there(tmp_path):
    images = [jpeg(photo(i, 20, 16)) for i in range(6)]
    images[4] = b"no image"
    splits = [("train", 3), ("val", 3)]
    path = handmade_pack(tmp_path / "pack", "memmap", images, [(20, 16)] * 6, splits=splits)
    for read in (
        lambda: readers.open(path, "val")[1],
        lambda: list(loader(path, 1, split="val", train=False)),
    ):
        with pytest.raises(DamagedSample, match="sample 1, key '004'") as error:
            read()
        assert error.value.index == 1
    with pytest.raises(DamagedSample, match="sample 4, key '004'"):
        readers.open(path)[4]


def test_a_state_of_another_pack_is_refused(photos, source, tmp_path, make_pack):
    state = loader(photos, 4).state_dict()
    other = make_pack(source, tmp_path / "other", "memmap")
    with pytest.raises(DspackError, match="content_digest"):
        loader(other, 4).load_state_dict(state)


def test_a_pack_or_split_too_small_for_a_batch_says_so(photos, tmp_path):
    with pytest.raises(ValueError, match="24 samples are no batch of 25"):
        loader(photos, 25)
    assert [len(b.samples) for b in loader(photos, 25, drop_last=False)] == [24]
    empty = handmade_pack(tmp_path / "none", "memmap", [], [])
    for train in (True, False):
        with pytest.raises(ValueError, match="0 samples are no batch"):
            loader(empty, 4, train=train)
    with pytest.raises(DspackError, match="no split 'val'"):
        loader(photos, 4, split="val")
    with pytest.raises(NotAPack):
        loader(tmp_path / "nothing", 4)


def test_subset_weights_and_blocks_reach_the_order(photos):
    _, samples, _ = epoch_of(photos, 2, subset=[3, 1, 4, 15], shuffle=False)
    assert samples.tolist() == [3, 1, 4, 15]
    images, samples, _ = epoch_of(photos, 4, weights=[0] * 20 + [1] * 4)
    assert set(samples.tolist()) <= {20, 21, 22, 23}
    # A sample that is drawn twice is cropped in two ways.
    assert len({image.tobytes() for image in images}) == 24
    _, samples, _ = epoch_of(photos, 4, shuffle="blocks")
    assert sorted(samples.tolist()) == list(range(24))
