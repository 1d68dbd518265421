"""This process among those of a distributed training."""

from __future__ import annotations

import os


def rank_and_world_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Those given; without, those of torch.distributed, or 0 of 1 where it is not initialised.

    Raises ValueError where one is given without the other.
    """
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise ValueError(f"{rank=} and {world_size=}: give both or neither")
    import torch.distributed  # by who has imported torch already

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def threads_or_share(threads: int | None) -> int:
    """The number given; without, this process's share of the processors, where torchrun may have
    started several on this machine. Raises ValueError for less than one."""
    if threads is None:
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return max(1, len(os.sched_getaffinity(0)) // processes)
    if threads < 1:
        raise ValueError(f"{threads=}: at least one is needed")
    return threads
