"""Train a small ResNet from a pack through NVIDIA DALI: decoded, cut and normalised on the GPU.

    python examples/train_dali.py PACK [--epochs 10] [--checkpoint last.pt] [--resume]

The training is that of train_resnet.py, with the same order, crops and flips, and goes on with
--resume in the same way; only the loader is another one. Without a GPU, DALI works on the CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from train_resnet import MEAN, STD, Training, command, parse, train

from readers import MissingDependency

try:
    from readers.dali import DALILoader
except MissingDependency as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)

# isort: split
import torch


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse("Train a small ResNet from a pack through DALI.", arguments)
    on_gpu = torch.cuda.is_available()
    loader: dict[str, Any] = {
        "size": args.size,
        "threads": args.threads,
        "seed": args.seed,
        "device": "mixed" if on_gpu else "cpu",  # "mixed" gives batches on the GPU
        "dtype": "float32",
        "normalize": (MEAN, STD),
    }
    batches = DALILoader(args.pack, args.batch_size, "train", **loader)
    val = DALILoader(args.pack, args.batch_size, "val", train=False, **loader)
    device = torch.device("cuda" if on_gpu else "cpu")
    training = Training(args, batches, len(batches.pack.classes), device)
    train(args, training, val)


if __name__ == "__main__":
    command(main)
