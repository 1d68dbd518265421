"""Feeding a GPU: decoding there, by DALI, against decoding on the CPU and copying.

    python benchmarks/gpu.py imgs.lmdb [--batch-size 256] [--seconds 5]

Everything delivers the same thing: random crops of 224, mirrored half the time, in random order,
as normalized float16 on the GPU, channels-last; the rows that say so stay on the CPU. Prints
images a second (median of the rounds, and their range), each also as a ratio to the first row; then
how far GPU-decoded pixels are from the pack's. Without a GPU the rows that need one are left out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import nvidia.dali
import torch

import readers
from readers.dali import DALILoader, pipeline
from readers.torch import CUDAPrefetcher, Loader

MEAN, STD = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]  # ImageNet's
WARM_UP_SECONDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=None, help="default: the processors")
    parser.add_argument("--seconds", type=float, default=5, help="for each row and round")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    print(f"DALI {nvidia.dali.__version__}, torch {torch.__version__}, {readers.open(args.pack)}")
    print(torch.cuda.get_device_name() if on_gpu else "no GPU: only what runs on the CPU")
    compare_rates(rows(args.pack, args.batch_size, args.threads, on_gpu), args.seconds, args.rounds)
    if on_gpu:
        compare_pixels(args.pack)


def rows(
    pack: str, batch_size: int, threads: int | None, on_gpu: bool
) -> dict[str, Callable[[], Iterable[Any]]]:
    """What to measure: name -> a function that makes a loader."""

    def loader(**options: Any) -> Loader:
        return Loader(pack, batch_size, threads=threads, **options)

    def dali(**options: Any) -> DALILoader:
        normalized = {"dtype": "float16", "normalize": (MEAN, STD)}
        return DALILoader(pack, batch_size, threads=threads, **{**normalized, **options})

    as_bytes = {"dtype": "uint8", "normalize": None}
    found: dict[str, Callable[[], Iterable[Any]]] = {
        "Loader, uint8 on the CPU": loader,
        "Loader(exact=True), uint8 on the CPU": lambda: loader(exact=True),
        "DALI cpu, uint8 on the CPU": lambda: dali(device="cpu", **as_bytes),
    }
    if on_gpu:
        found |= {
            "Loader + CUDAPrefetcher": lambda: prefetched(loader()),
            "DALI cpu + CUDAPrefetcher": lambda: prefetched(dali(device="cpu", **as_bytes)),
            "DALI mixed, hw_decoder_load 0": lambda: dali(hw_decoder_load=0.0),
            "DALI mixed, hw_decoder_load 0.65": lambda: dali(hw_decoder_load=0.65),
            "DALI mixed, hw_decoder_load 1": lambda: dali(hw_decoder_load=1.0),
            "DALI mixed, 1 worker": lambda: dali(workers=1),
            "DALI mixed, 2 workers, 4 batches ahead": lambda: dali(workers=2, prefetch_batches=4),
        }
    return found


def prefetched(loader: Any) -> CUDAPrefetcher:
    return CUDAPrefetcher(loader, "cuda", mean=MEAN, std=STD, dtype=torch.float16)


def compare_rates(
    rows: dict[str, Callable[[], Iterable[Any]]], seconds: float, rounds: int
) -> None:
    """Measure the rows in turn, `rounds` times, and print a table."""
    rates: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(rounds):
        for name, make in rows.items():
            rates[name].append(rate(make(), seconds))
    first = statistics.median(next(iter(rates.values())))
    width = max(map(len, rates))
    print(f"\n{'':{width}}  images/s        range  ratio")
    for name, values in rates.items():
        median = statistics.median(values)
        spread = f"{min(values):.0f}-{max(values):.0f}"
        print(f"{name:{width}}  {median:8.0f}  {spread:>11}  {median / first:5.2f}")


def rate(loader: Iterable[Any], seconds: float) -> float:
    """Images a second, once the loader has warmed up."""
    batches = endless(loader)
    take(batches, WARM_UP_SECONDS)
    num_images, elapsed = take(batches, seconds)
    return num_images / elapsed


def endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def take(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Take batches for so long: how many images came, and the seconds until they were there."""
    started = time.perf_counter()
    num_images = 0
    while time.perf_counter() - started < seconds:
        num_images += len(next(batches)[0])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return num_images, time.perf_counter() - started


def compare_pixels(path: str, most: int = 500) -> None:
    """Print how far pixels decoded on the GPU are from readers.open's, before any resizing."""
    pack = readers.open(path)
    subset = range(min(most, len(pack)))
    pipe = pipeline(path, 32, size=None, train=False, subset=subset)
    means, worst, exact = [], 0, 0
    for _ in range(-(-len(subset) // 32)):
        images, _, samples = (output.as_cpu() for output in pipe.run())
        for i in range(len(images)):
            expected = pack.image(int(np.array(samples.at(i))))
            difference = np.abs(np.array(images.at(i)).astype(int) - expected)
            means.append(difference.mean())
            worst, exact = max(worst, int(difference.max())), exact + (not difference.any())
    print(
        f"\npixels decoded on the GPU against the pack's, {len(subset)} images: {exact} equal, "
        f"mean difference {statistics.mean(means):.3f} levels (worst image {max(means):.3f}), "
        f"largest {worst}"
    )


if __name__ == "__main__":
    main()
