"""Mean and standard deviation of the channels, which each of the loaders takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Channels = npt.NDArray[np.float32]  # (3,): of R, G, B

NOT_IN_LEVELS = "mean and std are in the pixels' own levels, not in 0 to 1: multiply by 255"


def of_channels(
    mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[Channels, Channels]:
    """`mean` (by default 0) and `std` (by default 1) of R, G and B. Raises ValueError unless these
    are three finite numbers, and every std is above 0."""
    means = np.zeros(3, np.float32) if mean is None else np.asarray(mean, np.float32)
    stds = np.ones(3, np.float32) if std is None else np.asarray(std, np.float32)
    if means.shape != (3,) or stds.shape != (3,):
        raise ValueError(f"mean and std have a number for each of R, G, B: {mean}, {std}")
    if not (np.isfinite(means).all() and np.isfinite(stds).all() and stds.min() > 0):
        raise ValueError(f"mean {mean}, std {std}: every std must be above 0")
    return means, stds


def are_in_levels(mean: Channels, std: Channels) -> bool:
    """Whether they can be meant for pixels of 0 to 255, and not of 0 to 1, as most are that one
    finds."""
    is_given = mean.max() > 0 or std.max() < 1
    return not (is_given and mean.max() <= 1 and std.max() <= 1)


def in_levels(mean: Sequence[float], std: Sequence[float]) -> tuple[Channels, Channels]:
    """Mean and std of integer pixels; raises ValueError for what would make nonsense of them."""
    means, stds = of_channels(mean, std)
    if not are_in_levels(means, stds):
        raise ValueError(NOT_IN_LEVELS)
    return means, stds
