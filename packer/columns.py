"""What the numbers in a pack's index can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from readers.errors import DamagedPack
from readers.index import Column, column_path
from readers.manifest import Manifest
from readers.pack import Pack


def check_numbers(pack: Pack) -> None:
    """Raise DamagedPack where a column of the index holds numbers that it cannot have."""
    broken = next(broken_ranges(pack.manifest, pack.index), None)
    if broken is not None:
        name, problem = broken
        raise DamagedPack(problem, path=column_path(pack.path, name))


def broken_ranges(manifest: Manifest, columns: Mapping[str, Column]) -> Iterator[tuple[str, str]]:
    """(column, what is wrong) where one holds numbers that it cannot have."""
    no_split = -1 if not manifest.splits else 0
    for name, low, high in (
        ("label", -1, len(manifest.classes) - 1),
        ("split", no_split, len(manifest.splits) - 1),
        ("width", 1, None),
        ("height", 1, None),
        ("orientation", 1, 8),
    ):
        column = columns[name]
        wrong = (column < low) | (column > high) if high is not None else column < low
        if np.any(wrong):
            i = int(np.argmax(wrong))
            yield name, f"sample {i} has {int(column[i])}"
