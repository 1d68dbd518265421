"""Packing, verifying and opening, as ratios to what the machine can do in the same run.

    python benchmarks/pack.py PHOTOS [--work DIR] [--rounds 5] [--only header,cold,tiny,…]

PHOTOS is a folder of JPEGs; they are replicated to 20,000 files in the work folder, which should
lie on a disk, not in memory. Every round runs the peer and dspack one after another, as whole
processes, both synced to disk; the table has the median ratio and its range. `cold` needs root.
`resize` also runs the writers of FFCV and LitData where they can be imported.
"""

from __future__ import annotations

import argparse
import collections
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import xxhash

from readers import formats

NUM_PHOTOS, NUM_TINY, NUM_ARCHIVED = 20_000, 50_000, 5_000
MILLION = 1_000_000
SETTLING_SECONDS = 2  # a disk is busy for a while behind a sync, with what came before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("photos", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmark-data"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", default="header,cold,tiny,decode,verify,memory,open,archive,resize"
    )
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    work, rounds = arguments.work, arguments.rounds
    photos = replicate(arguments.photos, work / "photos")
    parts: dict[str, Callable[[], None]] = {
        "header": lambda: against_tar(photos, work, rounds, cold=False, limit=1.0),
        "cold": lambda: against_tar(photos, work, rounds, cold=True, limit=0.8),
        "tiny": lambda: against_tar(tiny(work / "tiny"), work, rounds, cold=False, limit=2.5),
        "decode": lambda: decode_against_limit(photos, work, rounds),
        "verify": lambda: verify_against_xxhash(photos, work, rounds),
        "memory": lambda: memory(tiny(work / "tiny"), photos, work),
        "open": lambda: open_a_million(work, rounds),
        "archive": lambda: archive_against_cat(arguments.photos, work, rounds),
        "resize": lambda: resize_against_cv2(arguments.photos, work, rounds),
    }
    for name in arguments.only.split(","):
        parts[name]()


# Data


def replicate(source: Path, target: Path, num: int = NUM_PHOTOS) -> Path:
    """The photographs over and over in class folders, up to `num` files."""
    if target.exists():
        return target
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    for i in range(num):
        path = files[i % len(files)]
        folder = target / path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:06d}.jpg").write_bytes(path.read_bytes())
    return target


def tiny(target: Path) -> Path:
    """NUM_TINY different-looking JPEGs of about 1 KB."""
    if target.exists():
        return target
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(200):
        noise = np.clip(rng.normal(128, 40, (6, 6, 3)), 0, 255).astype(np.uint8)
        pixels = cv2.resize(noise, (32, 32), interpolation=cv2.INTER_CUBIC)
        pictures.append(cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, 92])[1].tobytes())
    for i in range(NUM_TINY):
        folder = target / f"class_{i % 100:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:06d}.jpg").write_bytes(pictures[i % len(pictures)])
    return target


# Parts


def against_tar(folder: Path, work: Path, rounds: int, *, cold: bool, limit: float) -> None:
    """`dspack convert --check header` against `tar cf`, per format."""
    title = f"convert --check header, {folder.name}, {'cold' if cold else 'warm'} cache"
    ratios: dict[str, list[float]] = {name: [] for name in formats.names()}
    warm_up(folder)
    for number in range(rounds):
        tar = timed(["tar", "cf", str(work / "out.tar"), str(folder)], work / "out.tar", cold)
        names = list(ratios)
        first = number % len(names)  # another one behind tar each round: that one is at a loss
        for name in names[first:] + names[:first]:
            out = work / f"out.{name}"
            ratios[name].append(timed(convert(folder, out, name, "header"), out, cold) / tar)
    for name, values in ratios.items():
        report(f"{title}, {name}: time / tar", values, at_most=limit)


def decode_against_limit(folder: Path, work: Path, rounds: int) -> None:
    """`dspack convert` with its decode check against bare cv2 in two threads on bytes in memory."""
    blobs = [np.fromfile(path, np.uint8) for path in sorted(folder.rglob("*.jpg"))]
    ratios = []
    for _ in range(rounds):
        limit = bare(lambda blob: cv2.imdecode(blob, cv2.IMREAD_COLOR), blobs)
        out = work / "out.memmap"
        command = [*convert(folder, out, "memmap", "decode"), "--threads", "2"]
        ratios.append(limit / timed(command, out, False))
    report("convert --check decode: speed / two threads of bare cv2.imdecode", ratios, at_least=0.9)


def archive_against_cat(source: Path, work: Path, rounds: int) -> None:
    """A tar, and a tar.gz, of photographs to LMDB against writing the unpacked archive to a file
    and decoding its pictures in two threads."""
    folder = replicate(source, work / "photos5000", NUM_ARCHIVED)
    archive, zipped = work / "photos.tar", work / "photos.tar.gz"
    if not zipped.exists():
        subprocess.run(["tar", "cf", str(archive), "-C", str(folder), "."], check=True)
        subprocess.run(["gzip", "-1", "-k", "-f", str(archive)], check=True)
    blobs = [np.fromfile(path, np.uint8) for path in sorted(folder.rglob("*.jpg"))]
    for path, unpack in ((archive, "cat"), (zipped, "gzip -dc")):
        ratios = []
        for _ in range(rounds):
            copy, out = work / "copy.tar", work / "out.lmdb"
            limit = timed(["sh", "-c", f"{unpack} '{path}' > '{copy}'"], copy, False)
            limit += bare(lambda blob: cv2.imdecode(blob, cv2.IMREAD_COLOR), blobs)
            ratios.append(timed(convert(path, out, "lmdb", "decode"), out, False) / limit)
        name = f"{path.name} to lmdb: time / ({unpack} to a file + bare decoding)"
        report(name, ratios, at_most=1.1)


RESIZE = ["--resize", "256", "--encode", "jpeg", "--quality", "90"]


def resize_against_cv2(source: Path, work: Path, rounds: int) -> None:
    """Packing at 256 pixels as JPEG against two threads of bare cv2, and against other writers."""
    folder = replicate(source, work / "photos5000", NUM_ARCHIVED)
    files = sorted(folder.rglob("*.jpg"))
    blobs = [np.fromfile(path, np.uint8) for path in files]
    writers = {"ffcv": ffcv_writer, "litdata": litdata_writer}
    peers = {name: writers[name] for name in writers if importlib.util.find_spec(name)}
    against: dict[str, list[float]] = {"cv2": [], **{name: [] for name in peers}}
    for _ in range(rounds):
        out = work / "out.memmap"
        command = [*convert(folder, out, "memmap", "decode"), *RESIZE, "--threads", "2"]
        ours = timed(command, out, False)
        against["cv2"].append(bare(shrink, blobs) / ours)
        for name, writer in peers.items():
            remove(out) if (out := work / f"out.{name}").exists() else None
            started = time.perf_counter()
            writer(files, out)
            against[name].append((time.perf_counter() - started) / ours)
    for name, ratios in against.items():
        goal = 0.9 if name == "cv2" else 1.0
        report(f"convert {' '.join(RESIZE)}: speed / {name}", ratios, at_least=goal)


def shrink(blob: npt.NDArray[np.uint8]) -> bytes:
    """What two threads of bare cv2 do: whole decode, shorter side 256 by area, JPEG at 90."""
    pixels = cv2.imdecode(blob, cv2.IMREAD_COLOR)
    height, width = pixels.shape[:2]
    scale = min(256 / min(height, width), 1)
    size = round(width * scale), round(height * scale)
    resized = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return cv2.imencode(".jpg", resized, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()


class Pictures:
    """The files for FFCV's writer."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return PIL.Image.open(self.files[i]).convert("RGB"), 0


def ffcv_writer(files: list[Path], out: Path) -> None:
    """It bounds the longer side, so that its pictures are the smaller ones."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    field = RGBImageField(write_mode="jpg", max_resolution=256, jpeg_quality=90)
    writer = DatasetWriter(str(out), {"image": field, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(Pictures(files), shuffle_indices=False)


def litdata_writer(files: list[Path], out: Path) -> None:
    import litdata

    litdata.optimize(litdata_sample, files, str(out), num_workers=2, chunk_bytes="64MB")


def litdata_sample(path: Path) -> dict[str, Any]:
    return {"image": shrink(np.fromfile(path, np.uint8)), "label": 0}


def verify_against_xxhash(folder: Path, work: Path, rounds: int) -> None:
    """`dspack verify` of a memmap pack against xxhash over the same bytes in memory."""
    out = work / "verify.memmap"
    if not out.exists():
        subprocess.run(convert(folder, out, "memmap", "header"), check=True, capture_output=True)
    values = [path.read_bytes() for path in sorted((out / "shards").glob("*.image.npy"))]
    ratios, inside = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        for value in values:
            xxhash.xxh3_128_digest(value)
        bare = time.perf_counter() - started
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "packer.cli", "verify", out], check=True, capture_output=True
        )
        ratios.append(bare / (time.perf_counter() - started))
        code = (
            "import time; from pathlib import Path; from packer.verify import verify;"
            f"t = time.perf_counter(); assert verify(Path({str(out)!r}), threads=2).ok;"
            "print(time.perf_counter() - t)"
        )
        seconds = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        inside.append(bare / float(seconds.stdout))
    report("verify of a memmap pack: speed / one thread of xxhash in memory", inside, at_least=0.5)
    report("  the same with the start of Python", ratios)


def memory(tiny_folder: Path, photos: Path, work: Path) -> None:
    """Peak memory of convert: photographs, and 5,000 against 50,000 samples."""
    few = work / "few"
    for path in sorted(tiny_folder.rglob("*.jpg"))[::10] if not few.exists() else []:
        target = few / path.relative_to(tiny_folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in formats.names():
        for folder in (photos, few, tiny_folder):
            out = work / f"out.{name}"
            command = ["/usr/bin/env", "time", "-f", "%M", *convert(folder, out, name, "decode")]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            kilobytes = int(result.stderr.strip().splitlines()[-1])
            remove(out)
            print(f"convert {folder.name} to {name}: peak memory {kilobytes / 1000:.0f} MB")


def open_a_million(work: Path, rounds: int) -> None:
    """Opening a pack of a million samples, and what it costs in private memory."""
    out = work / "million.memmap"
    if not out.exists():
        make_a_million(out)
    code = f"""
import os, re, time
import readers, numpy
def private():
    text = open("/proc/self/smaps_rollup").read()
    return sum(map(int, re.findall(r"Private_\\w+: +(\\d+)", text)))
readers.open({str(work / "open.memmap")!r})
before = private(); started = time.perf_counter()
pack = readers.open({str(out)!r})
print(time.perf_counter() - started, private() - before)
grown = []
for _ in range(8):
    receive, send = os.pipe()
    if os.fork() == 0:
        mine = private(); len(pack); int(pack.labels[123456]); pack.keys[999999]
        os.write(send, b"%d" % (private() - mine)); os._exit(0)
    os.wait(); grown.append(int(os.read(receive, 20)))
print(max(grown))
"""
    small = work / "open.memmap"
    if not small.exists():
        one = work / "one" / "a"
        one.mkdir(parents=True, exist_ok=True)
        (one / "0.jpg").write_bytes(next((work / "photos").rglob("*.jpg")).read_bytes())
        subprocess.run(
            convert(one.parent, small, "memmap", "header"), check=True, capture_output=True
        )
    milliseconds, kilobytes, grown = [], [], []
    for _ in range(rounds):
        lines = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
        milliseconds.append(float(lines[0]) * 1e3)
        kilobytes.append(float(lines[1]))
        grown.append(float(lines[2]))
    report("open a pack of 1,000,000 samples: ms", milliseconds, at_most=50)
    report("open a pack of 1,000,000 samples: kB of private memory", kilobytes, at_most=5000)
    report("  kB that a forked worker adds when it reads labels and keys", grown)


def make_a_million(out: Path) -> None:
    """A memmap pack of a million samples, all hard links to one tiny image."""
    source = out.with_name("million")
    if not source.exists():
        picture = cv2.imencode(".jpg", np.full((8, 8, 3), 127, np.uint8))[1].tobytes()
        for c in range(1000):
            folder = source / f"class_{c:04d}"
            folder.mkdir(parents=True)
            first = folder / "0000.jpg"
            first.write_bytes(picture)
            for i in range(1, MILLION // 1000):
                os.link(first, folder / f"{i:04d}.jpg")
    subprocess.run(convert(source, out, "memmap", "header"), check=True, capture_output=True)
    shutil.rmtree(source)


# Measuring


def convert(folder: Path, out: Path, name: str, check: str) -> list[str]:
    command = [sys.executable, "-m", "packer.cli", "convert", str(folder), "--to", name]
    return [*command, "--check", check, "-o", str(out)]


def timed(command: list[str], out: Path, cold: bool) -> float:
    """Seconds that the command takes until its output is on disk; removes the output."""
    if out.exists():  # of a run that was interrupted
        remove(out)
    os.sync()
    time.sleep(SETTLING_SECONDS)
    if cold:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    started = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    files = [out] if out.is_file() else [path for path in out.rglob("*") if path.is_file()]
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    seconds = time.perf_counter() - started
    remove(out)
    return seconds


def bare(work: Callable[[Any], object], blobs: list[Any]) -> float:
    """Seconds that two threads take for bytes in memory."""
    cv2.setNumThreads(0)
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        collections.deque(pool.map(work, blobs), 0)
    return time.perf_counter() - started


def warm_up(folder: Path) -> None:
    for path in folder.rglob("*.jpg"):
        path.read_bytes()


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def report(
    what: str, values: list[float], *, at_most: float | None = None, at_least: float | None = None
) -> None:
    goal = f"  (goal: at most {at_most:g})" if at_most is not None else ""
    goal = f"  (goal: at least {at_least:g})" if at_least is not None else goal
    median = statistics.median(values)
    print(f"{what}: {median:.3g} [{min(values):.3g} to {max(values):.3g}]{goal}", flush=True)


if __name__ == "__main__":
    main()
