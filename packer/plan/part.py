"""A part of a source: some splits, some classes, a number of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.errors import SourceError, printable

from .layout import Plan
from .names import but_for_spaces


@dataclass(frozen=True)
class Part:
    """Names of splits and classes to take, and how many samples; empty and None for all.

    What is not the name of a class is names of classes with commas between them: a name may have
    commas, too.
    """

    splits: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    limit: int | None = None


def take(plan: Plan, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Plan:
    """These rows of a plan: a mask, or indices. Classes and splits stay, and so labels do."""
    indices = np.arange(len(plan))[rows]
    return replace(
        plan,
        keys=[plan.keys[i] for i in indices],
        labels=plan.labels[indices],
        split_ids=plan.split_ids[indices],
    )


def take_splits_and_classes(plan: Plan, part: Part, root: Path) -> Plan:
    """The samples of the part's splits and classes. Raises SourceError, also if there are none."""
    if part.splits:
        plan = take_splits(plan, part.splits, root)
    if part.classes:
        plan = take_classes(plan, part.classes, root)
    if not len(plan):
        raise SourceError("no sample is in these splits and classes", path=root)
    return plan


def take_splits(plan: Plan, names: Sequence[str], root: Path) -> Plan:
    """The samples of these splits, which become the plan's only splits. Raises SourceError."""
    _check_known("split", names, plan.splits, root)
    kept = [name for name in plan.splits if name in names]
    new_ids = np.full(len(plan.splits) + 1, -1, np.int16)  # the last one is for id -1
    for i, name in enumerate(kept):
        new_ids[plan.splits.index(name)] = i
    split_ids = new_ids[plan.split_ids]
    return take(replace(plan, splits=kept, split_ids=split_ids), split_ids >= 0)


def take_classes(plan: Plan, names: Sequence[str], root: Path) -> Plan:
    """The samples of these classes; labels stay what they are. Raises SourceError."""
    parts = [[name] if name in plan.classes else name.split(",") for name in names]
    names = list(chain.from_iterable(parts))
    _check_known("class", names, plan.classes, root)
    return take(plan, np.isin(plan.labels, [plan.classes.index(name) for name in names]))


def take_number(plan: Plan, num_samples: int | None) -> Plan:
    """So many samples at even distances, so that all splits and classes keep their share."""
    if num_samples is None or num_samples >= len(plan):
        return plan
    return take(plan, np.arange(num_samples, dtype=np.int64) * len(plan) // num_samples)


def _check_known(what: str, names: Sequence[str], known: Sequence[str], root: Path) -> None:
    if unknown := [name for name in names if name not in known]:
        near = but_for_spaces(unknown[0], known)
        but = "" if near is None else f", but {printable(near)!r}"
        shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        raise SourceError(
            f"no {what} {printable(unknown[0])!r}{but}; it has {printable(shown) or 'none'}",
            path=root,
        )
