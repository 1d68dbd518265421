"""Train a small ResNet from a pack: Loader, CUDAPrefetcher, mixed precision, checkpoints.

    python examples/train_resnet.py PACK [--epochs 10] [--checkpoint last.pt] [--resume]

PACK has the splits train and val. A run that was stopped goes on with --resume at the very batch
where its last checkpoint was made. On a GPU it computes in bfloat16, on a CPU in float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from readers import DspackError, MissingDependency

try:
    from readers.torch import CUDAPrefetcher, Loader
except MissingDependency as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)

import torch
from torch import Tensor, nn

MEAN, STD = [123.7, 116.3, 103.5], [58.4, 57.1, 57.4]  # of ImageNet, in 0..255


class Block(nn.Module):
    """Two convolutions and a way around them (K. He et al., "Deep residual learning", 2016)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            self.around = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.main(x) + self.around(x))


def resnet(num_classes: int, width: int = 64, depth: Sequence[int] = (2, 2, 2, 2)) -> nn.Module:
    """A ResNet; width 64 and depth (2, 2, 2, 2) is ResNet-18."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = width
    for stage, num_blocks in enumerate(depth):
        for number in range(num_blocks):
            stride = 2 if stage and number == 0 else 1
            layers.append(Block(channels, width << stage, stride))
            channels = width << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)]
    return nn.Sequential(*layers)


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def prefetched(loader: Loader, device: torch.device) -> CUDAPrefetcher:
    """Normalised batches on the device; on a GPU copied while the batch before trains."""
    return CUDAPrefetcher(loader, device, mean=MEAN, std=STD)


class Training:
    """A model, its optimizer, its data, and all of that in a file."""

    def __init__(
        self, args: argparse.Namespace, batches: Any, num_classes: int, device: torch.device
    ) -> None:
        """`batches` gives normalised images and labels on the device, and has a state."""
        self.device, self.batches = device, batches
        torch.manual_seed(args.seed)
        model = resnet(num_classes, args.width)
        self.model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), args.lr, momentum=0.9, nesterov=True, weight_decay=5e-5
        )
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, args.epochs * len(batches)
        )

    def epoch(self) -> Iterator[Tensor]:
        """Train for an epoch, or what is left of it; the loss after each step."""
        self.model.train()
        for images, labels in self.batches:
            with autocast(self.device):
                loss = nn.functional.cross_entropy(self.model(images), labels)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.schedule.step()
            yield loss.detach()

    def save(self, path: Path) -> None:
        """Write a checkpoint; call it between two batches."""
        parts: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "batches": self.batches.state_dict(),
        }
        partial = path.with_name(path.name + ".partial")
        torch.save(parts, partial)
        partial.replace(path)  # a crash leaves the old one

    def load(self, path: Path) -> int:
        """Go on from a checkpoint; returns the epoch it was made in."""
        parts = torch.load(path, self.device, weights_only=True)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        self.schedule.load_state_dict(parts["schedule"])
        self.batches.load_state_dict(parts["batches"])
        epoch: int = parts["batches"]["epoch"]
        return epoch


@torch.inference_mode()
def accuracy(model: nn.Module, batches: Any, device: torch.device) -> float:
    """The share of samples whose most likely class is the right one."""
    model.eval()
    right = total = 0
    for images, labels in batches:
        with autocast(device):
            guesses = model(images).argmax(1)
        right += int((guesses == labels).sum())
        total += len(labels)
    return right / total


def train(args: argparse.Namespace, training: Training, val: Any) -> None:
    """All the epochs, or those that are left; `val` gives batches as those of the training."""
    first = training.load(args.checkpoint) if args.resume else 0
    num_batches = 0
    for epoch in range(first, args.epochs):
        started, losses = time.perf_counter(), []
        for loss in training.epoch():
            losses.append(loss)
            num_batches += 1
            if num_batches % args.save_every == 0:
                training.save(args.checkpoint)
            if num_batches == args.stop_after:
                return
        mean = torch.stack(losses).mean().item() if losses else float("nan")
        speed = len(losses) * args.batch_size / (time.perf_counter() - started)
        reached = accuracy(training.model, val, training.device)
        print(f"epoch {epoch + 1}/{args.epochs}: loss {mean:.3f}, {speed:,.0f} images/s,", end=" ")
        print(f"validation accuracy {100 * reached:.1f} %", flush=True)
        training.save(args.checkpoint)


def options(description: str) -> argparse.ArgumentParser:
    """What every example that feeds this model can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("pack", metavar="PACK")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224, help="pixels a side")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, help="that decode; default: the processors")
    return parser


def parse(description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    """What a training with checkpoints can be told, too."""
    parser = options(description)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--checkpoint", type=Path, default=Path("last.pt"))
    parser.add_argument("--save-every", type=int, default=500, help="batches")
    parser.add_argument("--stop-after", type=int, help="batches, as if the run had been killed")
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args(arguments)


def command(main: Callable[[], None]) -> None:
    """Run an example: no pack, no such split and damage are one sentence, not a traceback."""
    try:
        main()
    except DspackError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse("Train a small ResNet from a pack.", arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = {"size": args.size, "threads": args.threads, "seed": args.seed}
    batches = Loader(args.pack, args.batch_size, "train", **loader)
    val = Loader(args.pack, args.batch_size, "val", train=False, **loader)
    classes = batches.batches.pack.classes
    training = Training(args, prefetched(batches, device), len(classes), device)
    train(args, training, prefetched(val, device))


if __name__ == "__main__":
    command(main)
