"""Is the loader or the model the limit of a training? Timers, then torch's profiler.

    python examples/profile_input.py PACK [--batches 50]

Three timings: batches without a model, the model without loading, and both together. Put your own
model in the place of the ResNet to know about yours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

from train_resnet import autocast, command, options, prefetched, resnet

from readers.torch import CUDAPrefetcher, Loader

# isort: split
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

Batches = Iterator[tuple[Tensor, Tensor]]


def endless(batches: CUDAPrefetcher) -> Batches:
    while True:
        yield from batches


def trainer(model: nn.Module, lr: float, device: torch.device) -> Callable[[Tensor, Tensor], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr)

    def train(images: Tensor, labels: Tensor) -> None:
        with autocast(device):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def seconds(batches: Batches, num: int, step: Callable[[Tensor, Tensor], None]) -> float:
    """Seconds a batch, the GPU's work included; the first two batches do not count."""
    for images, labels in islice(batches, 2):
        step(images, labels)
    synchronize()
    started = time.perf_counter()
    for images, labels in islice(batches, num):
        step(images, labels)
    synchronize()
    return (time.perf_counter() - started) / num


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def verdict(loading: float, training: float, together: float) -> str:
    """What the three timings, in seconds a batch, say."""
    if loading > 1.1 * training:
        return (
            f"the loader is the limit: a batch takes {loading / training:.1f} times as long to "
            "load as to train. `dspack bench` says what would make it faster"
        )
    if together > 1.2 * max(loading, training):
        return (
            "neither alone is the limit: loading and training disturb each other. On a CPU they "
            "share the processors: give the loader fewer threads"
        )
    return "the model is the limit: the next batch is there before it is asked for"


def main() -> None:
    parser = options("Is the loader or the model the limit?")
    parser.add_argument("--split", default="train")
    parser.add_argument("--batches", type=int, default=50, help="for each timing")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = Loader(
        args.pack,
        args.batch_size,
        args.split,
        size=args.size,
        threads=args.threads,
        seed=args.seed,
    )
    batches = endless(prefetched(loader, device))
    num_classes = len(loader.batches.pack.classes)
    model = resnet(num_classes, args.width).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    step = trainer(model, args.lr, device)
    images, labels = next(batches)
    same = iter(lambda: (images, labels), None)

    loading = seconds(batches, args.batches, lambda images, labels: None)
    training = seconds(same, args.batches, step)
    together = seconds(batches, args.batches, step)
    for what, value in (("loading", loading), ("training", training), ("together", together)):
        print(f"{what:<10}{1000 * value:8.1f} ms a batch {args.batch_size / value:10,.0f} images/s")
    print(verdict(loading, training, together))

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        seconds(batches, min(args.batches, 10), step)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=12))


if __name__ == "__main__":
    command(main)
