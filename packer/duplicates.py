"""Samples whose images are the very same bytes: counted, listed where they cross splits or classes,
dropped. Further fields do not count: another caption makes no other picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from readers.errors import printable
from readers.index import Column
from readers.manifest import IMAGE

from .images.inspect import Reject
from .plan.layout import Plan
from .prepare import Prepared
from .staging import Done

DUPLICATES_NAME = "duplicates.jsonl"  # copies that lie in several splits or classes
DUPLICATE = "duplicate"  # the reason of what --drop-duplicates leaves out


class Copies(NamedTuple):
    """The rows of samples with the same bytes, and whether they cross splits, or classes."""

    rows: list[int]
    splits: bool
    classes: bool


def find(columns: Mapping[str, Column]) -> list[Copies]:
    """All sets of two samples or more whose images are the same."""
    checksums = np.ascontiguousarray(columns[f"{IMAGE}.checksum"]).view("<u8")
    order = np.lexsort(checksums.T)
    same = np.all(checksums[order[1:]] == checksums[order[:-1]], axis=1)
    starts = np.flatnonzero(np.diff(same, prepend=False, append=False)).reshape(-1, 2)
    copies = []
    for start, stop in starts.tolist():
        rows = np.sort(order[start : stop + 1])
        crosses = [len(np.unique(columns[name][rows])) > 1 for name in ("split", "label")]
        copies.append(Copies(rows.tolist(), *crosses))
    return copies


def notes(copies: Sequence[Copies], keys: Sequence[str]) -> list[str]:
    """The copies, for a person."""
    if not copies:
        return []
    number = sum(len(c.rows) - 1 for c in copies)
    texts = [f"{number} samples are exact copies of others; --drop-duplicates keeps one of each"]
    for what, crossing in (
        ("several splits", [c for c in copies if c.splits]),
        ("several classes", [c for c in copies if c.classes]),
    ):
        if crossing:
            shown = ", ".join(printable(keys[row]) for row in crossing[0].rows[:3])
            texts.append(
                f"{len(crossing)} sets of copies lie in {what}: see {DUPLICATES_NAME} ({shown} …)"
            )
    return texts


def write(path: Path, copies: Sequence[Copies], keys: Sequence[str]) -> None:
    """List the copies that cross splits or classes, a set a line."""
    with path.open("w", encoding="ascii") as file:
        for c in copies:
            row = {
                "keys": [keys[row] for row in c.rows],
                "crosses_splits": c.splits,
                "crosses_classes": c.classes,
            }
            file.write(json.dumps(row) + "\n")


class FirstOfEach:
    """Turns every sample that is an exact copy of one before it into a reject."""

    def __init__(self, plan: Plan, done: Sequence[Done]) -> None:
        self._keys = plan.keys
        self._first: dict[bytes, int] = {}
        for shard in done:
            for entry, checksum in shard.rows[["entry", f"{IMAGE}.checksum"]].tolist():
                self._first[checksum] = entry

    def of(self, batches: Iterator[list[Prepared]]) -> Iterator[list[Prepared]]:
        for batch in batches:
            yield [self._unless_seen(prepared) for prepared in batch]

    def _unless_seen(self, prepared: Prepared) -> Prepared:
        if prepared.reject is not None:
            return prepared
        first = self._first.setdefault(prepared.checksum, prepared.entry)
        if first == prepared.entry:
            return prepared
        reject = Reject(DUPLICATE, f"the same bytes as {printable(self._keys[first])}")
        return prepared._replace(data=b"", image=None, values=(), reject=reject)
