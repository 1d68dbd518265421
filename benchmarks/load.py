"""Reading packs for training, as ratios to what the machine can do in the same run.

    python benchmarks/load.py PHOTOS [--work DIR] [--rounds 5] [--only jpeg,raw,…]

PHOTOS is a folder of JPEGs; they are replicated to 5,000 files in the work folder and packed.
Everything uses two threads or worker processes, batches of 64, random crops of 224 pixels and a
warm page cache unless said. Every round runs the contenders one after another; the table has the
median ratio and its range. Peers run where they can be imported: torch, torchvision, grain, ffcv.
"""

from __future__ import annotations

import argparse
import importlib.util
import mmap
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pack import make_a_million, replicate, report

import readers
from readers import formats
from readers.augment import random_resized_crops
from readers.loader import BatchLoader

NUM_PHOTOS, BATCH, SIZE, THREADS = 5000, 64, 224, 2

Contender = Callable[[], float]  # images a second


def main() -> None:
    parts = {
        "jpeg": jpeg,
        "seekable": seekable,
        "ffcv": against_ffcv,
        "raw": raw,
        "reads": reads,
        "million": million,
        "threads": threads,
    }
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmark-data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(parts))
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    cv2.setNumThreads(0)
    photos = replicate(arguments.photos, arguments.work / "photos5000", NUM_PHOTOS)
    for name in arguments.only.split(","):
        parts[name](photos, arguments.work, arguments.rounds)


# Parts


def jpeg(photos: Path, work: Path, rounds: int) -> None:
    """JPEG packs of every format and their peers against one thread of bare cv2."""
    packs = {name: packed(photos, work / f"jpeg.{name}", name) for name in formats.names()}
    contenders = {f"Loader, {name}": loader(path) for name, path in packs.items()}
    goals = dict.fromkeys(contenders, 1.9)
    contenders |= torch_peers(photos, packs["memmap"]) | grain_peer(photos, work)
    ratios = compare(bare_cv2(packs["memmap"]), contenders, rounds)
    for name, values in ratios.items():
        report(f"JPEG, {name}: speed / one thread of bare cv2", values, at_least=goals.get(name))
    for name in contenders.keys() - goals.keys():
        against = [a / b for a, b in zip(ratios["Loader, memmap"], ratios[name], strict=True)]
        goal = 1.7 if name == "torchvision ImageFolder" else 1.0
        report(f"JPEG, Loader, memmap: speed / {name}", against, at_least=goal)


def seekable(photos: Path, work: Path, rounds: int) -> None:
    """Seekable JPEGs against one thread of bare cv2 that decodes the same stored bytes whole."""
    stored = {
        "--seekable": packed(photos, work / "seekable.memmap", "memmap", "--seekable"),
        "--encode jpeg --quality 95": packed(
            photos, work / "q95.memmap", "memmap", "--encode", "jpeg", "--quality", "95"
        ),
    }
    for name, path in stored.items():
        ratios = compare(bare_cv2(path), {name: loader(path)}, rounds)[name]
        report(f"{name}: Loader / one thread of bare full decode", ratios, at_least=2.7)


def against_ffcv(photos: Path, work: Path, rounds: int) -> None:
    """The same stored pictures and the same filter as FFCV, where it is installed."""
    if not importable("ffcv"):
        return
    cases = [
        ("JPEG q90, full size", "jpg", None, ["--encode", "jpeg"], 1.25),
        ("JPEG q90, longer side 256", "jpg", 256, LONGER_256, 1.4),
        ("raw 256", "raw", 256, RAW_256, 2),
    ]
    for title, mode, side, options, goal in cases:
        name = title.replace(" ", "").replace(",", "-")
        path = packed(photos, work / f"{name}.memmap", "memmap", *options)
        beton = ffcv_file(path, work / f"{name}.beton", mode, side)
        ours = {"Loader": loader(path, interpolation="area", check=False)}
        ratios = compare(ffcv_loader(beton), ours, rounds)["Loader"]
        report(f"{title}: Loader / FFCV", ratios, at_least=goal)


RAW_256 = ["--resize", "256", "--resize-mode", "exact", "--enlarge", "--encode", "raw"]
LONGER_256 = ["--resize", "256", "--resize-mode", "longer", "--encode", "jpeg"]


def raw(photos: Path, work: Path, rounds: int) -> None:
    """Raw 224 pixels that are only mirrored, against a DataLoader and against copying by NumPy."""
    options = ["--resize", str(SIZE), "--resize-mode", "exact", "--enlarge", "--encode", "raw"]
    path = packed(photos, work / "raw.memmap", "memmap", *options)
    pack = readers.open(path, check=False)
    data = np.frombuffer(b"".join(pack.read(i) for i in range(len(pack))), np.uint8)
    pixels = data.reshape(len(pack), SIZE, SIZE, 3)

    def copying(mirror: bool = False) -> float:
        random = np.random.default_rng(0)
        order, mirrored = random.permutation(len(pixels)), random.random(len(pixels)) < 0.5
        out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
        started = time.perf_counter()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            np.take(pixels, order[start : start + BATCH], axis=0, out=out, mode="clip")
            if mirror:
                some = mirrored[start : start + BATCH]
                out[some] = out[some, :, ::-1]
        return len(order) // BATCH * BATCH / (time.perf_counter() - started)

    contenders = {"Loader": loader(path, scale=None, check=False)}
    contenders["NumPy, mirroring"] = lambda: copying(mirror=True)
    contenders["Loader, checksums compared"] = loader(path, scale=None)
    if importable("torch"):
        contenders["NumPy + DataLoader"] = numpy_data_loader(pixels, work / "raw.npy")
        contenders["pack + DataLoader"] = data_loader(path, mirror, check=False)
    ratios = compare(copying, contenders, rounds)
    report("raw 224, Loader: speed / NumPy copying in one thread", ratios["Loader"], at_least=0.5)
    pairs = zip(ratios["Loader"], ratios["NumPy, mirroring"], strict=True)
    report("raw 224, Loader: speed / NumPy that mirrors as well", [a / b for a, b in pairs])
    checked = ratios["Loader, checksums compared"]
    report("raw 224, Loader with checksums: speed / NumPy copying in one thread", checked)
    for name, goal in {"NumPy + DataLoader": 10, "pack + DataLoader": None}.items():
        if name in ratios:
            pairs = zip(ratios["Loader"], ratios[name], strict=True)
            report(f"raw 224, Loader: speed / {name}", [a / b for a, b in pairs], at_least=goal)


def reads(photos: Path, work: Path, rounds: int) -> None:
    """Random reads without decoding, copied into a buffer, against each format's best reader."""
    for name in formats.names():
        path = packed(photos, work / f"jpeg.{name}", name)
        pack = readers.open(path, check=False)
        order = np.random.default_rng(0).permutation(len(pack))
        stored = pack.stored(pack.rows_at(order))
        buffer = bytearray(max(value.length for value in stored))
        bare = BARE_READERS[name](path, pack, order)

        def ours(pack: readers.Pack = pack, order: Any = order, buffer: Any = buffer) -> float:
            started = time.perf_counter()
            for start in range(0, len(order), BATCH):
                for value in pack.stored(pack.rows_at(order[start : start + BATCH])):
                    buffer[: value.length] = pack.value(value)
            return len(order) / (time.perf_counter() - started)

        def best(bare: Any = bare, buffer: Any = buffer, num: int = len(order)) -> float:
            started = time.perf_counter()
            for view in bare():
                buffer[: len(view)] = view
            return num / (time.perf_counter() - started)

        ratios = compare(best, {"ours": ours}, rounds)["ours"]
        report(f"random reads, {name}: speed / bare reader", ratios, at_least=0.8)


def million(photos: Path, work: Path, rounds: int) -> None:
    """The first batch after opening a pack of a million samples, beyond decoding it."""
    path = work / "million.memmap"
    if not path.exists():
        make_a_million(path)
    code = f"""
import time
from readers.loader import BatchLoader
import lmdb, h5py, PIL.Image  # imports are not what is measured
started = time.perf_counter()
loader = BatchLoader({str(path)!r}, {BATCH}, threads={THREADS})
batches = iter(loader)
next(batches)
first = time.perf_counter()
for i in range(200): next(batches)
print(first - started - (time.perf_counter() - first) / 200)
"""
    command = [sys.executable, "-c", code]
    runs = [subprocess.run(command, check=True, capture_output=True) for _ in range(rounds)]
    seconds = [float(run.stdout) for run in runs]
    report("first batch of a million samples, beyond decoding: seconds", seconds, at_most=0.3)


def threads(photos: Path, work: Path, rounds: int) -> None:
    """How throughput grows with threads where decoding waits without Python's lock, and how much
    Python itself takes: the decoder is replaced, everything else is the loader."""
    from readers import render

    path = packed(photos, work / "jpeg.memmap", "memmap")
    decode, resize, flip = render.decode_region, cv2.resize, cv2.flip
    pixels = np.zeros((SIZE, SIZE, 3), np.uint8)
    try:
        cv2.resize = cv2.flip = lambda *_, **__: None
        render.decode_region = lambda *_, **__: pixels
        micros = [1e6 * python_seconds(path) for _ in range(rounds)]
        report("Python, microseconds of a processor a sample", micros, at_most=30)
        render.decode_region = lambda *_, **__: (time.sleep(0.002), pixels)[1]
        counts = [1, 2, 4, 8, 16]
        speeds = {n: loader(path, threads=n, num_batches=8 * n) for n in counts}
        ratios = compare(speeds[1], {str(n): speeds[n] for n in counts}, min(rounds, 3))
        for name, values in ratios.items():
            report(f"{name} threads, decoding a 2 ms sleep: speed / one thread", values)
    finally:
        render.decode_region, cv2.resize, cv2.flip = decode, resize, flip


def python_seconds(path: Path) -> float:
    batches = BatchLoader(path, BATCH, threads=1, size=SIZE, check=False)
    started = time.process_time()
    num = sum(len(batch.labels) for batch in batches)
    return (time.process_time() - started) / num


# Contenders


def loader(path: Path, *, num_batches: int | None = None, **options: Any) -> Contender:
    batches = BatchLoader(path, BATCH, **{"size": SIZE, "threads": THREADS, **options})
    return lambda: speed(batches, num_batches)


def speed(batches: Iterable[Any], num_batches: int | None = None) -> float:
    """Images a second of an iterable of batches, its start included."""
    num = 0
    started = time.perf_counter()
    for number, batch in enumerate(batches, 1):
        num += len(batch.labels if hasattr(batch, "labels") else batch[1])
        if number == num_batches:
            break
    return num / (time.perf_counter() - started)


def bare_cv2(path: Path) -> Contender:
    """One thread: decode bytes in memory, slice the loader's crops, resize, in a plain loop."""
    pack = readers.open(path)
    blobs = [np.frombuffer(pack.read(i), np.uint8) for i in range(len(pack))]
    sizes = np.array(pack.index["width"]), np.array(pack.index["height"])
    out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION

    def run() -> float:
        crops = random_resized_crops(*sizes, 0, 0, np.arange(len(blobs))).tolist()
        started = time.perf_counter()
        for i, (blob, (x, y, w, h)) in enumerate(zip(blobs, crops, strict=True)):
            pixels = cv2.imdecode(blob, flags)
            cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE), dst=out[i % BATCH])
        return len(blobs) / (time.perf_counter() - started)

    return run


def random_crop(pixels: Any) -> Any:
    """What a careful user writes for a DataLoader: cv2, and uint8 until the GPU."""
    import torch

    height, width = pixels.shape[:2]
    number = int(torch.randint(2**31, ()))
    ((x, y, w, h),) = random_resized_crops([width], [height], 0, 0, [number]).tolist()
    resized = cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE))
    return torch.from_numpy(cv2.flip(resized, 1) if number % 2 else resized).permute(2, 0, 1)


def mirror(pixels: Any) -> Any:
    import torch

    return torch.from_numpy(cv2.flip(pixels, 1) if torch.rand(()) < 0.5 else pixels)


def numpy_data_loader(pixels: Any, path: Path) -> Contender:
    """What one writes without a pack: an array in a file, mapped, through torch's DataLoader."""
    import torch.utils.data

    if not path.exists():
        np.save(path, pixels)
    mapped = np.load(path, mmap_mode="r")

    class Mapped(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(mapped)

        def __getitem__(self, i: int) -> Any:
            mirrored = torch.rand(()) < 0.5
            return torch.from_numpy(cv2.flip(mapped[i], 1) if mirrored else mapped[i].copy()), i

    return in_data_loader(Mapped())


def in_data_loader(dataset: Any) -> Contender:
    import torch.utils.data

    batches = torch.utils.data.DataLoader(
        dataset, BATCH, shuffle=True, num_workers=THREADS, drop_last=True
    )
    return lambda: speed(batches)


def data_loader(path: Path, transform: Callable[[Any], Any], *, check: bool = True) -> Contender:
    from readers.torch import ImageDataset

    return in_data_loader(ImageDataset(path, transform=transform, arrays=True, check=check))


def torch_peers(photos: Path, path: Path) -> dict[str, Contender]:
    """torchvision's ImageFolder with uint8 output, and a pack through torch's DataLoader."""
    if not importable("torch"):
        return {}
    peers = {"pack + DataLoader, cv2": data_loader(path, random_crop)}
    if importable("torchvision"):
        from torchvision import datasets
        from torchvision.transforms import v2

        crop = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()])
        peers["torchvision ImageFolder"] = in_data_loader(datasets.ImageFolder(photos, crop))
    return peers


def grain_peer(photos: Path, work: Path) -> dict[str, Contender]:
    """ArrayRecord read by Grain's threads, decoded and cropped with cv2."""
    if not (importable("grain") and importable("array_record")):
        return {}
    import grain.python as grain
    from array_record.python import array_record_module

    path = work / "photos.array_record"
    if not path.exists():
        writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
        for file in sorted(photos.rglob("*.jpg")):
            writer.write(file.read_bytes())
        writer.close()

    def crop(data: bytes, rng: np.random.Generator) -> tuple[Any, int]:
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        height, width = pixels.shape[:2]
        number = int(rng.integers(2**31))
        ((x, y, w, h),) = random_resized_crops([width], [height], 0, 0, [number]).tolist()
        resized = cv2.resize(pixels[y : y + h, x : x + w], (SIZE, SIZE))
        return (cv2.flip(resized, 1) if number % 2 else resized), 0

    dataset = (
        grain.MapDataset.source(grain.ArrayRecordDataSource(str(path)))
        .shuffle(seed=0)
        .seed(0)
        .random_map(crop)
        .to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=256))
        .batch(BATCH, drop_remainder=True)
    )
    return {"Grain, cv2": lambda: speed(dataset)}


def ffcv_file(path: Path, out: Path, mode: str, side: int | None) -> Path:
    """The pictures of a pack as FFCV stores them."""
    if not out.exists():
        from ffcv.fields import IntField, RGBImageField
        from ffcv.writer import DatasetWriter
        from PIL import Image

        pack = readers.open(path)

        class Pictures:
            def __len__(self) -> int:
                return len(pack)

            def __getitem__(self, i: int) -> tuple[Any, int]:
                return Image.fromarray(pack.image(i)), int(pack.labels[i])

        field = RGBImageField(write_mode=mode, max_resolution=side, jpeg_quality=90)
        writer = DatasetWriter(str(out), {"image": field, "label": IntField()}, num_workers=1)
        writer.from_indexed_dataset(Pictures(), shuffle_indices=False)
    return out


def ffcv_loader(path: Path) -> Contender:
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    pipelines = {
        "image": [
            RandomResizedCropRGBImageDecoder((SIZE, SIZE)),
            RandomHorizontalFlip(),
            ToTensor(),
        ],
        "label": [IntDecoder(), ToTensor()],
    }
    batches = Loader(
        str(path),
        batch_size=BATCH,
        num_workers=THREADS,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines=pipelines,
    )
    return lambda: speed(batches)


# The best bare reader of each format: views of the stored values in an order


def _ranges(pack: readers.Pack, order: Any) -> list[tuple[int, int, int]]:
    return [(v.shard, v.offset, v.length) for v in pack.stored(pack.rows_at(order))]


def bare_memmap(path: Path, pack: readers.Pack, order: Any) -> Callable[[], Iterator[Any]]:
    maps = []
    for file in sorted((path / "shards").glob("*.image.npy")):
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        maps.append(memoryview(mapped)[128:])  # behind the header
    places = _ranges(pack, order)
    return lambda: (maps[shard][start : start + length] for shard, start, length in places)


def bare_hdf5(path: Path, pack: readers.Pack, order: Any) -> Callable[[], Iterator[Any]]:
    import h5py

    maps = []
    for file in sorted((path / "shards").glob("*.h5")):
        with h5py.File(file, "r") as h5:
            start = h5["image/bytes"].id.get_offset()
        with file.open("rb") as opened:
            mapped = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
        maps.append(memoryview(mapped)[start:])
    places = _ranges(pack, order)
    return lambda: (maps[shard][start : start + length] for shard, start, length in places)


def bare_lmdb(path: Path, pack: readers.Pack, order: Any) -> Callable[[], Iterator[Any]]:
    import lmdb

    pack.close()
    transactions = [
        # Copies of the files' names: a file may be open only once in a process.
        lmdb.open(str(linked(file)), subdir=False, readonly=True, lock=False).begin(buffers=True)
        for file in sorted((path / "shards").glob("*.lmdb"))
    ]
    places = [
        (value.shard, b"%010d/image" % value.position) for value in pack.stored(pack.rows_at(order))
    ]
    return lambda: (transactions[shard].get(key) for shard, key in places)


def linked(file: Path) -> Path:
    """A copy of a file, which LMDB takes for another one."""
    copy = file.parent.parent.with_name(f"bare-{file.name}")
    if not copy.exists():
        copy.write_bytes(file.read_bytes())
    return copy


BARE_READERS = {"memmap": bare_memmap, "hdf5": bare_hdf5, "lmdb": bare_lmdb}


# Measuring


def packed(photos: Path, out: Path, name: str, *options: str) -> Path:
    """The photographs as a pack, made once."""
    if not out.exists():
        command = [sys.executable, "-m", "packer.cli", "convert", str(photos), "--to", name]
        done = subprocess.run([*command, "-o", str(out), *options], capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr or done.stdout)
    return out


def compare(
    reference: Contender, contenders: dict[str, Contender], rounds: int
) -> dict[str, list[float]]:
    """Each contender's speed / the reference's in the same round, a list of rounds a contender."""
    for contender in contenders.values():
        contender()  # warms the page cache, starts what starts once
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        bare = reference()
        for name, contender in contenders.items():
            speeds[name].append(contender() / bare)
    slowest = min(speeds, key=lambda name: statistics.median(speeds[name]))
    print(f"(the reference made {bare:.0f} a second in the last round; slowest: {slowest})")
    return speeds


def importable(name: str) -> bool:
    found = importlib.util.find_spec(name) is not None
    if not found:
        print(f"({name} is not installed: left out)")
    return found


if __name__ == "__main__":
    main()
