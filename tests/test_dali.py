"""DALI on the CPU: same samples, same order and same pixels as every other reader."""

from __future__ import annotations

import gc
import pickle
import shutil
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from images import jpeg, photo, png, write
from PIL import Image

import readers
from readers import augment, formats
from readers.checksum import checksum
from readers.index import save_columns
from readers.manifest import Field, Manifest, PackFile, Shard

pytest.importorskip("nvidia.dali", reason="DALI is not installed")
from nvidia.dali import fn, pipeline_def
from nvidia.dali.backend import GetCUDADeviceCount

from readers import dali


def odd_folder(root: Path) -> Path:
    """All that packing stores as it is: orientations, subsamplings, grey, PNG, broken EXIF."""
    files = {f"{o}.jpg": jpeg(photo(o, 97, 61), o) for o in range(1, 9)}
    for subsampling in range(3):
        files[f"s{subsampling}.jpg"] = jpeg(photo(10, 133, 87), subsampling=subsampling)
    files["progressive.jpg"] = jpeg(photo(11, 133, 87), progressive=True)
    files["restarts.jpg"] = jpeg(photo(12, 133, 87), restart_marker_blocks=4)
    files["grey.jpg"] = jpeg(photo(13, 133, 87)[..., 0])
    files["one.jpg"] = jpeg(photo(14, 1, 1))
    files["rgb.png"] = png(photo(15, 133, 87))
    files["grey.png"] = png(photo(16, 133, 87)[..., 0])
    turned = jpeg(photo(17, 97, 61), 6)
    files["broken.jpg"] = turned.replace(b"Exif\0\0MM\0*", b"Exif\0\0MX\0*")
    files["long.jpg"] = jpeg(photo(18, 97, 61), 8)[:-2] + bytes(9) + b"\xff\xd9"
    files["trailing.jpg"] = turned + b"more"
    scan = turned.index(b"\xff\xda")
    files["stray.jpg"] = turned[:2] + bytes([255, 0]) + turned[2:scan] + b"abc" + turned[scan:]
    for name, data in files.items():
        write(root / "a" / name, data)
    return root


@pytest.fixture(scope="session")
def odd_pack(
    tmp_path_factory: pytest.TempPathFactory, make_pack: Callable[..., Path]
) -> readers.Pack:
    folder = tmp_path_factory.mktemp("odd")
    pack = readers.open(make_pack(odd_folder(folder / "in"), folder / "pack", "memmap"))
    assert len(pack) == 21 and pack.manifest.num_rejected == 0
    return pack


@pytest.fixture(scope="session")
def plain_path(tmp_path_factory: pytest.TempPathFactory, make_pack: Callable[..., Path]) -> Path:
    """21 photographs of three classes, none turned."""
    folder = tmp_path_factory.mktemp("plain")
    for i in range(21):
        data = jpeg(photo(i, 90 + 7 * i, 180 - 4 * i))
        write(folder / "in" / f"class_{i % 3}" / f"{i:02d}.jpg", data)
    return make_pack(folder / "in", folder / "pack", "memmap", shard_bytes=20_000)


@pytest.fixture(scope="session")
def array_pack(tmp_path_factory: pytest.TempPathFactory, plain_path: Path) -> readers.Pack:
    """The same samples as raw pixels, 64 by 48."""
    path = tmp_path_factory.mktemp("arrays") / "pack"
    shutil.copytree(plain_path, path, ignore=shutil.ignore_patterns("*.npy", "manifest.json"))
    old = readers.open(plain_path)
    pixels = [photo(i, 64, 48).tobytes() for i in range(len(old))]
    writer = formats.load("memmap").ShardWriter(path / "shards", "00000", ["image"])
    writer.append({"image": pixels})
    names = writer.seal(old.labels, list(old.keys))
    count = np.arange(len(old))
    columns = {
        **old.index,
        "shard": count * 0,
        "position": count,
        "width": count * 0 + 64,
        "height": count * 0 + 48,
        "image.length": count * 0 + len(pixels[0]),
        "image.offset": count * len(pixels[0]),
        "image.checksum": np.array([list(checksum(p)) for p in pixels], np.uint8),
    }
    save_columns(path, columns)
    files = tuple(
        PackFile(f"shards/{name}", (path / "shards" / name).stat().st_size, "") for name in names
    )
    manifest: Manifest = replace(
        old.manifest,
        fields={"image": Field("array", "uint8", (48, 64, 3))},
        shards=(Shard("00000", len(old), files),),
    )
    (path / "manifest.json").write_text(manifest.to_json(), "ascii")
    return readers.open(path)


def run_epochs(pipe: Any, num_epochs: int = 1) -> list[list[list[np.ndarray]]]:
    """Epochs of batches of outputs; an output as one array where the samples' shapes agree."""
    epochs = []
    for _ in range(num_epochs):
        batches = []
        while True:
            try:
                outputs = pipe.run()
            except StopIteration:
                break
            batches.append([[np.array(o.at(i)) for i in range(len(o))] for o in outputs])
        epochs.append(batches)
        pipe.reset()
    return epochs


def by_sample(batches: list[list[list[np.ndarray]]]) -> dict[int, np.ndarray]:
    """The images of a pipeline's batches by the samples' numbers; no sample comes twice."""
    found: dict[int, np.ndarray] = {}
    for images, _, samples in batches:
        for image, sample in zip(images, samples, strict=True):
            assert int(sample) not in found
            found[int(sample)] = image
    return found


# Pixels


def test_decoded_pixels_are_exactly_those_of_the_pack(odd_pack: readers.Pack) -> None:
    pipe = dali.pipeline(odd_pack.path, 8, size=None, train=False, device="cpu", threads=2)
    images = by_sample(run_epochs(pipe)[0])
    assert len(images) == len(odd_pack)
    for number, image in images.items():
        np.testing.assert_array_equal(image, odd_pack.image(number), odd_pack.keys[number])


def test_decoded_windows_are_exactly_cuts_of_the_upright_image(odd_pack: readers.Pack) -> None:
    pipe = dali.pipeline(
        odd_pack.path, 21, size=None, device="cpu", threads=2, seed=5, drop_last=False
    )
    samples = np.arange(len(odd_pack))
    widths, heights = odd_pack.index["width"], odd_pack.index["height"]
    for epoch, batches in enumerate(run_epochs(pipe, 3)):
        boxes = augment.random_resized_crops(widths, heights, 5, epoch, samples)
        mirrored = augment.flips(5, epoch, samples)
        for number, image in by_sample(batches).items():
            left, top, width, height = boxes[number]
            expected = odd_pack.image(number)[top : top + height, left : left + width]
            expected = expected[:, ::-1] if mirrored[number] else expected
            np.testing.assert_array_equal(image, expected, odd_pack.keys[number])


def test_every_format_gives_the_same_pixels(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    pipe = dali.pipeline(pack_path, 5, size=None, train=False, device="cpu", threads=1)
    images = by_sample(run_epochs(pipe)[0])
    assert sorted(images) == list(range(len(pack)))
    for number, image in images.items():
        np.testing.assert_array_equal(image, pack.image(number))


def resized(pixels: np.ndarray, box: Any, size: int) -> np.ndarray:
    """The part (left, top, width, height) of an image resized to size by size with a triangle
    filter as wide as a target pixel, in float64: Pillow's and torchvision's antialiased bilinear
    resize without their rounding in between."""

    def weights(length: int, start: float, extent: float) -> np.ndarray:
        step = extent / size
        centres = start + (np.arange(size) + 0.5) * step
        distances = np.abs(np.arange(length) + 0.5 - centres[:, None]) / max(step, 1)
        triangle = np.maximum(0, 1 - distances)
        return triangle / triangle.sum(1, keepdims=True)

    left, top, width, height = box
    rows = weights(pixels.shape[0], top, height)
    columns = weights(pixels.shape[1], left, width)
    return np.einsum("yj,jkc,xk->yxc", rows, pixels.astype(float), columns, optimize=True)


ROUNDED = 0.51  # half a level, and what 32-bit floats add


def test_eval_is_torchvisions_transform(plain_path: Path) -> None:
    pack = readers.open(plain_path)
    boxes = augment.center_crops(pack.index["width"], pack.index["height"], 64, 56)
    pipe = dali.pipeline(plain_path, 8, size=56, train=False, device="cpu", threads=2)
    images = by_sample(run_epochs(pipe)[0])
    assert len(images) == len(pack)
    for number, image in images.items():
        pixels = pack.image(number)
        assert np.abs(image - resized(pixels, boxes[number], 56)).max() <= ROUNDED

        height, width = pixels.shape[:2]
        width, height = width * 64 // min(width, height), height * 64 // min(width, height)
        whole = Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - 56) / 2), round((height - 56) / 2)
        shown = np.asarray(whole)[top : top + 56, left : left + 56]
        difference = np.abs(image.astype(int) - shown)
        assert difference.max() <= 2 and difference.mean() < 0.3


def test_train_is_crop_antialiased_resize_and_flip(plain_path: Path) -> None:
    pack = readers.open(plain_path)
    pipe = dali.pipeline(plain_path, 7, size=32, device="cpu", threads=2, seed=1)
    check_train(pack, by_sample(run_epochs(pipe)[0]), seed=1)


def check_train(pack: readers.Pack, images: dict[int, np.ndarray], seed: int) -> None:
    widths, heights, samples = pack.index["width"], pack.index["height"], np.arange(len(pack))
    boxes = augment.random_resized_crops(widths, heights, seed, 0, samples)
    mirrored = augment.flips(seed, 0, samples)
    assert len(images) == len(pack)
    for number, image in images.items():
        left, top, width, height = boxes[number].tolist()
        cut = pack.image(number)[top : top + height, left : left + width]
        expected = resized(cut, (0, 0, width, height), 32)
        expected = expected[:, ::-1] if mirrored[number] else expected
        difference = np.abs(image - expected)
        # Past a crop's edge DALI repeats its pixels, where Pillow makes the filter narrower.
        assert difference[1:-1, 1:-1].max() <= ROUNDED and difference.max() < 5


def test_normalized_planes(plain_path: Path) -> None:
    mean, std = (120.0, 110.0, 100.0), (60.0, 61.0, 62.0)
    options: dict[str, Any] = {"size": 32, "train": False, "device": "cpu", "threads": 1}
    pixels = by_sample(run_epochs(dali.pipeline(plain_path, 4, **options))[0])
    options |= {"layout": "NCHW", "dtype": "float32", "normalize": (mean, std)}
    planes = by_sample(run_epochs(dali.pipeline(plain_path, 4, **options))[0])
    for number, image in planes.items():
        assert image.dtype == np.float32
        expected = (pixels[number] - np.array(mean)) / np.array(std)
        np.testing.assert_allclose(image, expected.transpose(2, 0, 1), atol=1e-5)
    options["normalize"] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    with pytest.raises(ValueError, match="multiply by 255"):
        dali.pipeline(plain_path, 4, **options)


def test_raw_pixels_need_no_decoder(array_pack: readers.Pack) -> None:
    options: dict[str, Any] = {"device": "cpu", "threads": 1, "drop_last": False}
    for train in (False, True):
        pipe = dali.pipeline(array_pack.path, 4, size=None, scale=None, train=train, **options)
        mirrored = augment.flips(0, 0, np.arange(21)) & train
        images = by_sample(run_epochs(pipe)[0])
        assert len(images) == 21
        for number, image in images.items():
            step = -1 if mirrored[number] else 1
            np.testing.assert_array_equal(image, array_pack.image(number)[:, ::step])
    pipe = dali.pipeline(array_pack.path, 21, size=32, seed=3, **options)
    check_train(array_pack, by_sample(run_epochs(pipe)[0]), seed=3)


def test_images_that_are_neither_files_nor_rgb_are_refused(
    array_pack: readers.Pack, tmp_path: Path
) -> None:
    path = shutil.copytree(array_pack.path, tmp_path / "pack")
    for field in (Field("bytes"), Field("array", "uint16", (48, 64, 3)), Field("array", "uint8")):
        manifest = replace(array_pack.manifest, fields={"image": field})
        (path / "manifest.json").write_text(manifest.to_json(), "ascii")
        with pytest.raises(readers.DspackError, match="DALI is fed encoded images, or uint8"):
            dali.pipeline(path, 4, device="cpu")


# The source


def batch_info(iteration: int, epoch: int = 0) -> Any:
    return SimpleNamespace(iteration=iteration, epoch_idx=epoch)


def sample_info(number: int, epoch: int = 0) -> Any:
    return SimpleNamespace(idx_in_epoch=number, iteration=0, idx_in_batch=0, epoch_idx=epoch)


def test_a_source_is_a_pure_function(plain_path: Path) -> None:
    source = dali.external_source(plain_path, 4, train=True, fields=("image", "label", "sample"))
    pack = readers.open(plain_path)
    other = pickle.loads(pickle.dumps(source))
    for epoch, iteration in [(1, 4), (0, 0), (1, 0), (0, 2)]:
        images, labels, samples = source(batch_info(iteration, epoch))
        again = other(batch_info(iteration, epoch))
        np.testing.assert_array_equal(samples, again[2])
        np.testing.assert_array_equal(labels, pack.labels[samples])
        assert labels.dtype == samples.dtype == np.int64
        for image, copy, number in zip(images, again[0], samples, strict=True):
            assert image.dtype == np.uint8 and image.ndim == 1
            assert image.tobytes() == copy.tobytes() == pack.read(number)


def test_a_source_ends_at_the_end_and_stays_there(plain_path: Path) -> None:
    for source, info, last in (
        (dali.external_source(plain_path, 4, train=True), batch_info, 4),
        (dali.external_source(plain_path, 4, train=False), batch_info, 5),
        (dali.external_source(plain_path, train=True), sample_info, 20),
    ):
        assert len(source(info(last))) == 2
        for number in (last + 1, last + 2, last + 100):
            with pytest.raises(StopIteration):
                source(info(number))
            with pytest.raises(StopIteration):
                source(info(number, 3))


def test_a_source_begins_where_it_is_told(plain_path: Path) -> None:
    whole = dali.external_source(plain_path, 4, train=True, fields=["sample"])
    later = dali.external_source(plain_path, 4, train=True, fields=["sample"], epoch=2, batch=3)
    for mine, theirs in [((0, 0), (3, 2)), ((1, 0), (4, 2)), ((0, 1), (0, 3))]:
        (samples,), (expected,) = later(batch_info(*mine)), whole(batch_info(*theirs))
        np.testing.assert_array_equal(samples, expected)


def test_ranks_share_an_epoch_evenly(plain_path: Path) -> None:
    for batch_size, train in [(4, True), (4, False), (6, False), (None, True)]:
        shares = []
        for rank in range(4):
            source = dali.external_source(
                plain_path, batch_size, train=train, fields=["sample"], rank=rank, world_size=4
            )
            info = batch_info if batch_size else sample_info
            calls = [source(info(i))[0] for i in range(len(source.order))]
            shares.append([np.atleast_1d(samples) for samples in calls])
        assert len({len(share) for share in shares}) == 1
        for batches in zip(*shares, strict=True):
            assert len({len(batch) for batch in batches}) == 1 and len(batches[0]) > 0
        numbers = np.concatenate([batch for share in shares for batch in share])
        if train:
            assert len(set(numbers)) == len(numbers)
        else:
            assert set(numbers) == set(range(21)) and len(numbers) < 21 + 4


def test_a_bare_iteration_number_is_refused(plain_path: Path) -> None:
    source = dali.external_source(plain_path, 4, train=True)
    with pytest.raises(TypeError, match="batch_info=True"):
        source(3)


def test_unknown_fields_are_named(plain_path: Path) -> None:
    with pytest.raises(readers.DspackError, match=r"no field 'mask'; there are .*image, label"):
        dali.external_source(plain_path, 4, train=True, fields=["image", "mask"])


def own_pipeline(source: dali.Source, parallel: bool, start_method: str = "fork") -> Any:
    """A user's pipeline, that is: without readers.dali.pipeline."""
    batch = {"batch": False} if source.per_sample else {"batch": True, "batch_info": True}

    @pipeline_def(batch_size=5, num_threads=1, device_id=None)
    def define() -> Any:
        return tuple(fn.external_source(source, num_outputs=3, parallel=parallel, **batch))

    return define(py_num_workers=2, py_start_method=start_method)


@pytest.mark.parametrize("per_sample", [False, True])
def test_forked_workers_give_the_same_as_none(pack_path: Path, per_sample: bool) -> None:
    check_workers(pack_path, per_sample, "fork")


# DALI leaves the sockets of spawned workers to garbage collection.
@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket.socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("per_sample", [False, True])
def test_spawned_workers_give_the_same_as_none(plain_path: Path, per_sample: bool) -> None:
    check_workers(plain_path, per_sample, "spawn")


def test_no_worker_inherits_an_old_pipeline(plain_path: Path) -> None:
    pipe = dali.pipeline(plain_path, 4, device="cpu", threads=1)
    pipe.run()
    pipe.itself, gone = pipe, weakref.ref(pipe)
    gc.disable()
    try:
        del pipe
        assert gone() is not None
        dali.pipeline(plain_path, 4, device="cpu", threads=1, workers=1, start_method="fork")
        assert gone() is None
    finally:
        gc.enable()


def check_workers(path: Path, per_sample: bool, start_method: str) -> None:
    size = None if per_sample else 5
    source = dali.external_source(path, size, train=True, fields=("image", "label", "sample"))
    source.pack.read(0)  # the shards are open when the workers fork
    gc.collect()  # or a forked worker may find an old pipeline to destroy, and hang
    epochs = run_epochs(own_pipeline(source, True, start_method), 2)
    expected = run_epochs(own_pipeline(source, False), 2)
    assert [len(batches) for batches in epochs] == [len(source.pack) // 5] * 2
    for batches, expected_batches in zip(epochs, expected, strict=True):
        for outputs, expected_outputs in zip(batches, expected_batches, strict=True):
            for values, expected_values in zip(outputs, expected_outputs, strict=True):
                for value, expected_value in zip(values, expected_values, strict=True):
                    np.testing.assert_array_equal(value, expected_value)
    assert [int(n) for n in epochs[0][0][2]] != [int(n) for n in epochs[1][0][2]]


# Damage


def damage(pack: readers.Pack, number: int) -> None:
    """Overwrite the first marker of a sample's JPEG (memmap packs)."""
    row = int(pack.rows[number])
    shard = pack.manifest.shards[int(pack.index["shard"][row])].name
    with (pack.path / "shards" / f"{shard}.image.npy").open("r+b") as file:
        file.seek(128 + int(pack.index["image.offset"][row]) + 2)
        file.write(bytes(4))


def test_damage_names_the_sample(plain_path: Path, tmp_path: Path) -> None:
    pack = readers.open(shutil.copytree(plain_path, tmp_path / "pack"))
    damage(pack, 9)
    pipe = dali.pipeline(pack.path, 4, train=False, device="cpu", threads=1)
    with pytest.raises(readers.DamagedSample, match="checksum") as caught:
        run_epochs(pipe)
    assert caught.value.key == pack.keys[9]


# Without a GPU, under WSL


no_gpu = pytest.mark.skipif(GetCUDADeviceCount() > 0, reason="there is a GPU")


@no_gpu
def test_mixed_without_a_driver_says_what_works(plain_path: Path) -> None:
    with pytest.raises(readers.DspackError, match="needs an NVIDIA GPU and its driver; device='c"):
        dali.pipeline(plain_path, 4)


@no_gpu
def test_under_wsl_the_driver_is_that_of_windows(
    plain_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.release", lambda: "6.6.87.2-microsoft-standard-WSL2")
    with pytest.raises(readers.DspackError, match="installed in Windows"):
        dali.pipeline(plain_path, 4)


def test_contradictions_are_refused(plain_path: Path) -> None:
    for options in ({"device": "gpu"}, {"dtype": "int64"}, {"normalize": ([0.0], [1.0])}):
        with pytest.raises(ValueError, match=r"device 'gpu'|cannot hold"):
            dali.pipeline(plain_path, 4, **{"device": "cpu", **options})


# The loader


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def make_loader(path: Path, batch_size: int = 4, **options: Any) -> dali.DALILoader:
    options = {"size": 32, "device": "cpu", "threads": 1, "with_samples": True, **options}
    return dali.DALILoader(path, batch_size, **options)


def numbers_of(batches: Any) -> list[list[int]]:
    return [samples.tolist() for _, _, samples in batches]


def test_loader_gives_what_torchs_loader_gives(torch: Any, plain_path: Path) -> None:
    from readers.torch import Loader

    for train in (True, False):
        mine = dali.DALILoader(plain_path, 4, size=32, train=train, device="cpu", antialias=False)
        theirs = Loader(plain_path, 4, size=32, train=train, exact=True, threads=1)
        assert len(mine) == len(theirs)
        for (images, labels), (their_images, their_labels) in zip(mine, theirs, strict=True):
            assert images.dtype == torch.uint8 and labels.dtype == torch.int64
            assert images.shape == their_images.shape and images.stride() == their_images.stride()
            assert labels.tolist() == their_labels.tolist()
            if train:  # in eval, Loader always antialiases
                assert (images.int() - their_images.int()).abs().max() <= 1


def test_loader_epochs(torch: Any, plain_path: Path) -> None:
    loader = make_loader(plain_path)
    epochs = [numbers_of(loader) for _ in range(3)]
    assert [len(epoch) for epoch in epochs] == [len(loader)] * 3 == [5] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert numbers_of(loader) == epochs[1]
    assert numbers_of(loader) == epochs[2]


def test_loader_ends_with_a_short_batch(torch: Any, plain_path: Path) -> None:
    loader = make_loader(plain_path, 4, train=False, subset=range(7))
    for _ in range(2):
        batches = list(loader)
        assert numbers_of(batches) == [[0, 1, 2, 3], [4, 5, 6]]
        assert [tuple(images.shape) for images, _, _ in batches] == [(4, 3, 32, 32), (3, 3, 32, 32)]
    assert len(loader) == 2


def test_loader_resumes_in_the_middle(torch: Any, plain_path: Path) -> None:
    loader = make_loader(plain_path)
    loader.set_epoch(3)
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == 2:
            state = loader.state_dict()
    assert loader.state_dict()["epoch"] == 4 and loader.state_dict()["batches"] == 0
    next_epoch = numbers_of(loader)

    resumed = make_loader(plain_path)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest = list(resumed)
    assert len(rest) == 3
    for mine, theirs in zip(rest, batches[2:], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert numbers_of(resumed) == next_epoch


def test_loader_refuses_the_state_of_another_run(torch: Any, plain_path: Path) -> None:
    state = make_loader(plain_path, seed=1).state_dict()
    with pytest.raises(readers.DspackError, match="seed 1, this loader 0"):
        make_loader(plain_path).load_state_dict(state)


def test_loader_may_be_broken_off(torch: Any, plain_path: Path) -> None:
    loader = make_loader(plain_path)
    whole = numbers_of(loader)
    loader.set_epoch(0)
    for i, (_, _, samples) in enumerate(loader):
        assert samples.tolist() == whole[i]
        if i == 1:
            break
    assert loader.state_dict()["batches"] == 2
    assert numbers_of(loader) != whole
    loader.set_epoch(0)
    assert numbers_of(loader) == whole


def test_batches_stay_valid(torch: Any, plain_path: Path) -> None:
    kept, copies = [], []
    for images, labels, samples in make_loader(plain_path, 2):
        kept.append((images, labels, samples))
        copies.append((images.clone(), labels.clone(), samples.clone()))
    for batch, copied in zip(kept, copies, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, copied, strict=True))


@no_gpu
def test_loader_without_a_driver_says_what_works(torch: Any, plain_path: Path) -> None:
    with pytest.raises(readers.DspackError, match="device='cpu' works"):
        dali.DALILoader(plain_path, 4)


def test_loader_takes_its_rank_from_torch(
    torch: Any, plain_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 2)
    shares = []
    for rank in range(2):
        monkeypatch.setattr("torch.distributed.get_rank", lambda rank=rank: rank)
        loader = make_loader(plain_path)
        shares.append([n for numbers in numbers_of(loader) for n in numbers])
        assert len(loader) == 2 and len(shares[-1]) == 8
    assert not set(shares[0]) & set(shares[1])


def test_threads_are_this_processs_share(plain_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(12)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert dali.pipeline(plain_path, 4, device="cpu").num_threads == 3


def test_loader_needs_torch(plain_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(readers.MissingDependency, match=r"pip install torch"):
        make_loader(plain_path)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("check", [True, False])
def test_loader_names_the_damaged_sample(
    torch: Any, plain_path: Path, tmp_path: Path, workers: int, check: bool
) -> None:
    pack = readers.open(shutil.copytree(plain_path, tmp_path / "pack"))
    damage(pack, 13)
    loader = make_loader(pack.path, train=False, check=check, workers=workers, start_method="fork")
    with pytest.raises(readers.DspackError) as caught:
        list(loader)
    assert caught.value.key == pack.keys[13] and caught.value.index == pack.rows[13]


def test_loader_names_an_image_that_only_dali_refuses(
    torch: Any, odd_pack: readers.Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dali.source, "_without_stray_bytes", lambda data: data)
    number = list(odd_pack.keys).index("a/stray.jpg")
    with pytest.raises(readers.DspackError, match="DALI's decoder refuses the image") as caught:
        list(make_loader(odd_pack.path, train=False))
    assert caught.value.key == "a/stray.jpg" and caught.value.index == number
    subset = [i for i in range(len(odd_pack)) if i != number]
    assert len(list(make_loader(odd_pack.path, train=False, subset=subset))) == 5


def test_errors_of_dalis_come_with_a_hint_under_wsl(
    torch: Any, plain_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = make_loader(plain_path)
    monkeypatch.setattr("platform.release", lambda: "5.15.0-microsoft-standard-WSL2")
    monkeypatch.setattr(loader._recipe, "device", "mixed")
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: None)

    def fails(stream: object) -> None:
        raise RuntimeError("nvml error (3)")

    with pytest.raises(readers.DspackError, match=r"nvml error \(3\); .*DALI_DISABLE_NVML=1"):
        loader._run(SimpleNamespace(run=fails), 0, 0)
