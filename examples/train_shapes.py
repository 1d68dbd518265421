"""Learn the shapes of examples/make_shapes.py from a pack, with PyTorch.

    python examples/train_shapes.py PACK [--epochs 10]

It prints the validation accuracy against chance, and exits with 1 when nothing was learnt.
"""

from __future__ import annotations

import argparse
import sys
import time

import cv2
import numpy as np
import numpy.typing as npt

from readers import DspackError, MissingDependency

try:
    from readers.torch import ImageDataset
except MissingDependency as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

Batches = DataLoader[tuple[Tensor, Tensor]]

SIDE = 48  # pixels
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def to_tensor(image: npt.NDArray[np.uint8]) -> Tensor:
    """An image as a tensor (SIDE, SIDE, 3), still uint8: a quarter of the bytes to hand over.

    A function of the module, not a lambda, so that worker processes can be given it.
    """
    return torch.from_numpy(cv2.resize(image, (SIDE, SIDE), interpolation=cv2.INTER_AREA))


def batches(dataset: ImageDataset, workers: int, *, shuffle: bool) -> Batches:
    return DataLoader(
        dataset,
        batch_size=16,
        shuffle=shuffle,
        num_workers=workers,
        persistent_workers=workers > 0,
        generator=torch.Generator().manual_seed(0),
    )


def make_model(num_classes: int) -> nn.Module:
    """A small convolutional network: four halvings, then the strongest answer anywhere."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64, 64):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = width
    return nn.Sequential(
        *layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )


def pixels(images: Tensor) -> Tensor:
    """uint8 to what the network takes: floats about zero, (n, 3, SIDE, SIDE).

    The channels stay last in memory, which convolutions on a CPU like best.
    """
    return images.to(DEVICE).permute(0, 3, 1, 2).float() / 127.5 - 1


def train_epoch(
    model: nn.Module,
    loader: Batches,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    """One pass over the training split; returns the mean loss."""
    model.train()
    losses = []
    for images, labels in loader:
        images = torch.rot90(images, int(torch.randint(4, ())), (1, 2))  # a turned star is a star
        loss = nn.functional.cross_entropy(model(pixels(images)), labels.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.inference_mode()
def accuracy(model: nn.Module, loader: Batches) -> float:
    """The share of samples whose most likely class is the right one."""
    model.eval()
    right = total = 0
    for images, labels in loader:
        guesses = model(pixels(images)).argmax(1).cpu()
        right += int((guesses == labels).sum())
        total += len(labels)
    return right / total


def main() -> int:
    parser = argparse.ArgumentParser(description="Learn the example shapes from a pack.")
    parser.add_argument("pack", metavar="PACK", help="what `dspack convert` made of the shapes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="processes that read and decode")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)  # so small a network gains little from more; the other cores decode
    train_set = ImageDataset(args.pack, "train", to_tensor, arrays=True)
    train = batches(train_set, args.workers, shuffle=True)
    val = batches(
        ImageDataset(args.pack, "val", to_tensor, arrays=True), args.workers, shuffle=False
    )
    model = make_model(len(train_set.classes)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.01, total_steps=args.epochs * len(train)
    )
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss = train_epoch(model, train, optimizer, schedule)
        speed = len(train_set) / (time.perf_counter() - start)
        print(f"epoch {epoch + 1:2}/{args.epochs}: loss {loss:.3f}, {speed:.0f} samples/s")

    reached, chance = accuracy(model, val), 1 / len(train_set.classes)
    print(f"validation accuracy {reached:.1%} (chance {chance:.1%})".replace("%", " %"))
    return 0 if reached >= 3 * chance else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DspackError as error:  # no pack, no such split, damage: one sentence says it all
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
