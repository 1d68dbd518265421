"""Split samples by shares: the same for the same keys and seed, everywhere and for ever."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.checksum import checksum
from readers.errors import SourceError, printable

from .layout import Plan, class_warnings, totals_of

_GOLDEN = (5**0.5 - 1) / 2
_TIE = 1e-9  # shares are floating point: 0.1 * 30 and 3 are equal


@dataclass(frozen=True)
class NewSplits:
    """Splits to make: their names and shares, which add up to 1.

    Samples for which the regular expression `group_by` finds the same in their keys stay in one
    split: its first group, or all of its match.
    """

    shares: tuple[tuple[str, float], ...]
    seed: int = 0
    group_by: str | None = None


def split(plan: Plan, new: NewSplits, root: Path, *, mix: bool = False) -> Plan:
    """Give every sample one of the new splits, which come in the order stated.

    Each class is divided by the shares as evenly as its number allows. Raises SourceError for a
    key in which `group_by` finds nothing, and unless `mix` when the samples have several splits.
    """
    if len(plan.splits) > 1 and not mix:
        raise SourceError(
            f"it has splits already ({', '.join(plan.splits)}), which new ones would mix",
            path=root,
            advice="name those to divide, too: --split NAME --split NAME=SHARE,…",
        )
    groups = None if new.group_by is None else _groups(plan.keys, new.group_by, root)
    names = [name for name, _ in new.shares]
    shares = [share for _, share in new.shares]
    split_ids = assign(plan.keys, plan.labels, shares, new.seed, groups)
    order = np.argsort(split_ids, kind="stable")
    totals = totals_of(plan.labels, split_ids, plan.classes, names)
    return replace(
        plan,
        keys=[plan.keys[i] for i in order],
        labels=plan.labels[order],
        split_ids=split_ids[order],
        splits=names,
        warnings=[
            *plan.warnings,
            *(
                f"split {printable(name)!r} has no image: there are too few, or too few groups"
                for i, name in enumerate(names)
                if not (split_ids == i).any()
            ),
            *(w for w in class_warnings(totals, plan.classes) if w not in plan.warnings),
        ],
    )


def assign(
    keys: Sequence[str],
    labels: npt.NDArray[np.int64],
    shares: Sequence[float],
    seed: int,
    groups: Sequence[str] | None = None,
) -> npt.NDArray[np.int16]:
    """The split of every sample, a number below len(shares). `groups` stay together.

    Each class is laid out in the order of a hash of seed and key, or of the group's name, and cut
    where the shares say. A sample that comes or goes moves at most one other at each cut, and none
    of other classes. A group counts to the class that most of its samples have.

    A group, or sample, goes to the split in which one point of it lies. How far into it the point
    is, goes by a sequence that spreads evenly over the classes (multiples of the golden ratio): so
    all of them together have the shares, too, even if each is but one group.
    """
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(keys if groups is None else groups):
        rows_of[name].append(row)
    of_row, members = labels.tolist(), defaultdict(list)
    for name, rows in rows_of.items():
        members[_most_common([of_row[row] for row in rows])].append(name)
    cuts = np.cumsum(shares)[:-1] - _TIE
    split_ids = [0] * len(keys)
    for label, names in members.items():
        names.sort(key=lambda name: checksum(f"{seed}/{name}".encode("utf-8", "surrogatepass")))
        sizes = np.array([len(rows_of[name]) for name in names])
        points = np.cumsum(sizes) - sizes + sizes * ((0.5 + label * _GOLDEN) % 1)
        chosen = np.searchsorted(cuts, points / sizes.sum(), side="right")
        for name, number in zip(names, chosen.tolist(), strict=True):
            for row in rows_of[name]:
                split_ids[row] = number
    return np.array(split_ids, np.int16)


def _most_common(labels: list[int]) -> int:
    """Of those that are, the smallest."""
    if len(labels) == 1:
        return labels[0]
    return min(Counter(labels).items(), key=lambda item: (-item[1], item[0]))[0]


def _groups(keys: Sequence[str], pattern: str, root: Path) -> list[str]:
    groups = []
    for key in keys:
        found = re.search(pattern, key)
        if found is None:
            raise SourceError(f"--group-by {pattern!r} finds no group in it", path=root, key=key)
        groups.append(found[1] if found.re.groups and found[1] is not None else found[0])
    return groups
