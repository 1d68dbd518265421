"""This process among those of a distributed training."""

from __future__ import annotations

import os


def rank_and_world_size() -> tuple[int, int]:
    """Those of torch.distributed, or 0 of 1 where it is not initialised."""
    import torch.distributed  # by who has imported torch already

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def share_of_processors() -> int:
    """Threads for this process, where torchrun may have started several on this machine."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
