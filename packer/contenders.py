"""What `dspack bench` measures: ways of reading images for training, each in a process of its own.

    python -m packer.contenders NAME JSON     JSON: the members of Task; prints those of Measured

A process of its own has its own memory to look at, and leaves nothing behind in the others'. It
prints a line when it has imported and opened what it needs, and begins when it is sent one: so
several may start together, which takes seconds with torch, and be measured one after another.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

import readers
from readers.augment import random_resized_crops

READY = "ready"
_BLOBS_MAX = 256  # images that are decoded from memory over and over


@dataclass(frozen=True)
class Task:
    """What is measured, and for how long; `folder` is the class folder to compare with."""

    pack: str
    folder: str | None
    split: str | None
    batch_size: int
    size: int
    threads: int
    seconds: float
    cold: bool


@dataclass(frozen=True)
class Measured:
    """`speed` in images a second after the first batch, which took `first_batch` seconds, imports
    not counted;
    `processors` busy on average; memory in bytes, of all the processes: `private_bytes` is theirs
    alone, `shared_bytes` (a share of the page cache, mostly) is others', too."""

    speed: float
    first_batch: float
    processors: float
    private_bytes: int
    shared_bytes: int


Numbers = Iterator[int]  # how many images came, batch for batch, for as long as one asks


def decode(task: Task) -> Numbers:
    """One thread: decode bytes in memory, crop, resize; no reading, no checksums, no loader."""
    import cv2

    from readers.decode import decode_region

    pack = readers.open(task.pack, task.split, check=False)
    rows = pack.rows_at(np.arange(min(len(pack), _BLOBS_MAX)))
    stored = pack.manifest.fields["image"]
    blobs = [bytes(pack.value(value)) for value in pack.stored(rows)]
    widths, heights = pack.index["width"][rows], pack.index["height"][rows]
    sizes = list(zip(widths.tolist(), heights.tolist(), strict=True))
    orientations = pack.index["orientation"][rows].tolist()
    out = np.empty((task.size, task.size, 3), pack.pixel_dtype)
    cv2.setNumThreads(0)
    for epoch in range(2**31):
        crops = random_resized_crops(widths, heights, 0, epoch, rows).tolist()
        for i, (left, top, width, height) in enumerate(crops):
            if stored.kind == "array":
                pixels = np.frombuffer(blobs[i], stored.dtype).reshape(stored.shape or ())
                pixels = pixels[top : top + height, left : left + width]
            else:
                box = (left, top, width, height)
                rule = pack.odd_rule(int(rows[i]))
                pixels = decode_region(
                    blobs[i], orientations[i], sizes[i], box, rule=rule, dtype=out.dtype
                )
            cv2.resize(pixels, (task.size, task.size), dst=out)
            yield 1


def read(task: Task) -> Numbers:
    """One thread: random reads of stored values into a buffer, checksums compared, no decoding."""
    pack = readers.open(task.pack, task.split)
    buffer = bytearray(int(pack.index["image.length"].max()))
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(len(pack))
        for start in range(0, len(order), task.batch_size):
            values = pack.stored(pack.rows_at(order[start : start + task.batch_size]))
            for value in values:
                buffer[: value.length] = pack.value(value)
            yield len(values)


def loader(task: Task) -> Numbers:
    """readers.loader.BatchLoader, threads."""
    from readers.loader import BatchLoader

    return _sizes(BatchLoader(**_options(task)), attrgetter("labels"))


def data_loader(task: Task) -> Numbers:
    """The pack through torch's DataLoader, a worker process where others have a thread."""
    from readers.torch import ImageDataset

    dataset = ImageDataset(task.pack, task.split, _Crop(task.size), arrays=True)
    return _data_loader(dataset, task)


def folder(task: Task) -> Numbers:
    """The class folder through torch's DataLoader: torchvision's ImageFolder, or its like."""
    assert task.folder is not None
    dataset: Any
    try:
        from torchvision import datasets
        from torchvision.transforms import v2

        crop = v2.Compose([v2.RandomResizedCrop(task.size), v2.PILToTensor()])
        dataset = datasets.ImageFolder(task.folder, crop)
    except ImportError:
        dataset = _Folder(task.folder, task.size)
    return _data_loader(dataset, task)


def dali(task: Task) -> Numbers:
    """readers.dali.DALILoader, on the GPU where there is one."""
    import torch

    from readers.dali import DALILoader

    device: Any = "mixed" if torch.cuda.is_available() else "cpu"
    return _sizes(DALILoader(**_options(task), device=device), itemgetter(1))


CONTENDERS: dict[str, Callable[[Task], Numbers]] = {
    "decode": decode,
    "read": read,
    "loader": loader,
    "data_loader": data_loader,
    "folder": folder,
    "dali": dali,
}
NEEDS = {"data_loader": ["torch"], "folder": ["torch"], "dali": ["torch", "nvidia.dali"]}


class _Crop:
    """A random crop with cv2, uint8 (size, size, 3); a class, so that workers can be given it."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, pixels: Any) -> Any:
        import cv2
        import torch

        height, width = pixels.shape[:2]
        number = int(torch.randint(2**31, ()))
        ((x, y, w, h),) = random_resized_crops([width], [height], 0, 0, [number]).tolist()
        return torch.from_numpy(cv2.resize(pixels[y : y + h, x : x + w], (self._size, self._size)))


class _Folder:
    """ImageFolder for who has no torchvision: files of class folders, decoded by Pillow."""

    def __init__(self, root: str, size: int) -> None:
        self._crop = _Crop(size)
        self._files = sorted(path for path in Path(root).rglob("*.*") if path.is_file())

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        from PIL import Image

        with Image.open(self._files[i]) as image:
            return self._crop(np.asarray(image.convert("RGB"))), 0


def _data_loader(dataset: Any, task: Task) -> Numbers:
    from torch.utils.data import DataLoader

    batches: Iterable[Any] = DataLoader(
        dataset, task.batch_size, shuffle=True, num_workers=task.threads, persistent_workers=True
    )
    return _sizes(batches, itemgetter(1))


def _options(task: Task) -> dict[str, Any]:
    """A task for a loader of dspack's."""
    return {
        "path": task.pack,
        "batch_size": task.batch_size,
        "split": task.split,
        "size": task.size,
        "threads": task.threads,
        "drop_last": False,
    }


def _sizes(batches: Iterable[Any], labels: Callable[[Any], Any]) -> Numbers:
    """The sizes of the batches of one epoch after another."""
    while True:
        for batch in batches:
            yield len(labels(batch))


# Measuring


def measure(numbers: Numbers, task: Task) -> Measured:
    """Ask for batches: `seconds` long, after half as long for warming up unless it is cold."""
    started = time.perf_counter()
    num = next(numbers)
    first_batch = time.perf_counter() - started
    if not task.cold:
        _count(numbers, task.seconds / 2)
        num = 0
    started, busy = time.perf_counter(), _busy_seconds()
    num += _count(numbers, task.seconds)
    seconds = time.perf_counter() - started + (first_batch if task.cold else 0)
    private, shared = memory()
    processors = (_busy_seconds() - busy) / (time.perf_counter() - started)
    return Measured(num / seconds, first_batch, processors, private, shared)


def _count(numbers: Numbers, seconds: float) -> int:
    stop = time.perf_counter() + seconds
    num = 0
    while time.perf_counter() < stop:
        num += sum(islice(numbers, 1))
    return num


def _family() -> list[int]:
    """This process and its children, DataLoader's workers."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [os.getpid(), *map(int, children)]


def _busy_seconds() -> float:
    """Processor time of this process and its living children."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    ticks = 0
    for pid in _family()[1:]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return usage.ru_utime + usage.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


def memory() -> tuple[int, int]:
    """Bytes of memory of this process and its children: private, and their shares of shared."""
    private = shared = 0
    for pid in _family():
        sizes = re.findall(r"^(\w+):\s+(\d+) kB", _rollup(pid), re.MULTILINE)
        alone = sum(int(kb) for name, kb in sizes if name.startswith("Private_"))
        private += alone * 1024
        shared += sum(int(kb) - alone for name, kb in sizes if name == "Pss") * 1024
    return private, max(shared, 0)


def _rollup(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:  # it ended, or the kernel keeps no such file
        return ""


def main() -> None:
    name, members = sys.argv[1:]
    task = Task(**json.loads(members))
    numbers = CONTENDERS[name](task)
    print(READY, flush=True)
    if sys.stdin.readline():
        print(json.dumps(asdict(measure(numbers, task))), flush=True)
    os._exit(0)  # nothing is worth waiting for: workers end with their pipes


if __name__ == "__main__":
    main()
