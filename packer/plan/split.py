"""Split samples by shares: the same for the same keys and seed, everywhere and for ever."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.checksum import checksum
from readers.errors import SourceError

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
    """The split of every sample, a number below len(shares). `groups` stay together."""
    if groups is not None:
        return _deal(groups, labels, shares, seed)
    return _cut(keys, labels, np.array(shares), seed)


def _hash(seed: int, name: str) -> bytes:
    return checksum(f"{seed}/{name}".encode("utf-8", "surrogateescape"))


def _cut(
    keys: Sequence[str],
    labels: npt.NDArray[np.int64],
    shares: npt.NDArray[np.float64],
    seed: int,
) -> npt.NDArray[np.int16]:
    """Each class, in the order of a hash of seed and key, is cut into a piece for each split: a
    sample that comes or goes moves at most one other at each cut, and none of other classes; a
    class that does may move one at each cut of the classes behind it.

    The places of the cuts are rounded up or down. Which, is up to a sequence that spreads evenly
    (multiples of the golden ratio), so that all classes together have the shares, too, but for a
    few samples.
    """
    split_ids = np.zeros(len(keys), np.int16)
    by_class = np.argsort(labels, kind="stable")
    bounds = np.flatnonzero(np.diff(labels[by_class])) + 1
    for rows in np.split(by_class, bounds):
        if not len(rows):
            continue
        rounding = (0.5 + int(labels[rows[0]]) * _GOLDEN) % 1
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows) + rounding + _TIE)
        in_order = sorted(rows.tolist(), key=lambda row: _hash(seed, keys[row]))
        split_ids[in_order] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    return split_ids


def _deal(
    groups: Sequence[str],
    labels: npt.NDArray[np.int64],
    shares: Sequence[float],
    seed: int,
) -> npt.NDArray[np.int16]:
    """Groups are dealt out one by one, large ones first and otherwise in the order of a hash of
    seed and name: each to the split that lacks most of its classes, and of the whole if it is a
    tie."""
    rows_of: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(groups):
        rows_of[name].append(row)
    classes, class_of = np.unique(labels, return_inverse=True)
    sizes = np.bincount(class_of, minlength=len(classes))
    lacking = [[share * size for size in sizes.tolist()] for share in shares]
    lacking_in_all = [share * len(groups) for share in shares]
    of_class = class_of.tolist()
    split_ids = np.zeros(len(groups), np.int16)
    for name in sorted(rows_of, key=lambda name: (-len(rows_of[name]), _hash(seed, name))):
        rows = rows_of[name]
        need = [sum(lack[of_class[row]] for row in rows) for lack in lacking]
        most = max(need)
        ties = [i for i, lack in enumerate(need) if lack >= most - _TIE]
        chosen = max(ties, key=lambda i: lacking_in_all[i])
        split_ids[rows] = chosen
        for row in rows:
            lacking[chosen][of_class[row]] -= 1
        lacking_in_all[chosen] -= len(rows)
    return split_ids


def _groups(keys: Sequence[str], pattern: str, root: Path) -> list[str]:
    groups = []
    for key in keys:
        found = re.search(pattern, key)
        if found is None:
            raise SourceError(f"--group-by {pattern!r} finds no group in it", path=root, key=key)
        groups.append(found[1] if found.re.groups and found[1] is not None else found[0])
    return groups
