"""Train on several GPUs, or several CPU processes, with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/train_ddp.py PACK [--epochs 10]

The Loader asks torch.distributed for its rank: every process gets its own part of each epoch and
the same number of batches. The validation's accuracy is exact: no sample counts twice.
"""

from __future__ import annotations

import os

from train_resnet import autocast, command, options, prefetched, resnet

from readers.torch import Loader

# isort: split
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@torch.inference_mode()
def accuracy(model: nn.Module, loader: Loader, num_samples: int, device: torch.device) -> float:
    """The share of the split's samples that are classified right, over all ranks.

    The last batch repeats a few samples where the ranks do not divide them evenly, so each rank
    notes its results by the samples' numbers.
    """
    model.eval()
    right = torch.zeros(num_samples, dtype=torch.uint8, device=device)
    for images, labels, batch in prefetched(loader, device):
        with autocast(device):
            guesses = model(images).argmax(1)
        right[torch.from_numpy(batch.samples).to(device)] = (guesses == labels).to(torch.uint8)
    dist.all_reduce(right, dist.ReduceOp.MAX)
    return right.float().mean().item()


def main() -> None:
    parser = options("Train a small ResNet in several processes.")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")

    loader = {"size": args.size, "threads": args.threads, "seed": args.seed}
    train = Loader(args.pack, args.batch_size, "train", **loader)
    val = Loader(args.pack, args.batch_size, "val", train=False, with_batch=True, **loader)
    torch.manual_seed(args.seed)  # the same weights on every rank
    num_classes = len(train.batches.pack.classes)
    model = resnet(num_classes, args.width).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(train))

    for epoch in range(args.epochs):
        model.train()
        train.set_epoch(epoch)
        for images, labels in prefetched(train, device):
            with autocast(device):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        reached = accuracy(model, val, len(val.batches.pack), device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}/{args.epochs}: loss {loss.item():.3f}, ", end="")
            print(f"validation accuracy {100 * reached:.1f} %", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    command(main)
