"""Labels and splits that a source states itself: a pack, a list, files beside images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from readers.errors import SourceError, printable

from ..sources import Given, Listing
from .layout import Plan, class_warnings, totals_of
from .names import not_in_class_map

_NUMBER = re.compile(r"-1|0|[1-9][0-9]*")  # 007 is a name
_LABEL_MAX = 1 << 20  # more classes than any set of images has: such numbers are something else


class Stated(NamedTuple):
    """What a source states of one file: a label, by name or number, and a split; "" for none."""

    path: str
    label: str
    split: str


def give(
    stated: Iterable[Stated], root: Path, *, names_only: bool = False
) -> tuple[list[str], Given]:
    """The files in the order to pack them, and what is given for them.

    Labels that are all numbers are the labels themselves, -1 for none; others are the names of
    classes, in sorted order. `names_only` takes numbers for names, too. The order is that of a
    folder: by split, label, folder and name. Raises SourceError for a number that is no label.
    """
    rows = list(stated)
    labels = {row.label for row in rows} - {""}
    numbered = bool(labels) and not names_only and all(map(_NUMBER.fullmatch, labels))
    if numbered:
        num_classes = max(map(int, labels)) + 1
        if num_classes > _LABEL_MAX:
            raise SourceError(
                f"the label {num_classes - 1} is too large for the number of a class",
                path=root,
                advice="if these numbers are the classes' names, call the column `class`",
            )
        classes = [str(i) for i in range(num_classes)]
    else:
        classes = sorted(labels)
    splits = sorted({row.split for row in rows} - {""})
    class_ids = {name: i for i, name in enumerate(classes)} | {"": -1}
    if numbered:
        class_ids["-1"] = -1
    split_ids = {name: i for i, name in enumerate(splits)} | {"": -1}

    def order(row: Stated) -> tuple[str, int, str, str]:
        folder, _, name = row.path.rpartition("/")
        return row.split, class_ids[row.label], folder, name

    rows.sort(key=order)
    return [row.path for row in rows], Given(
        classes=classes,
        labels=np.fromiter((class_ids[row.label] for row in rows), np.int64, len(rows)),
        splits=splits,
        split_ids=np.fromiter((split_ids[row.split] for row in rows), np.int16, len(rows)),
        numbered=numbered,
    )


def plan(listing: Listing, given: Given, root: Path, classes: Sequence[str] | None) -> Plan:
    """The samples to be of a source that states labels and splits. `classes` fixes the class map.

    Raises SourceError for labels that a fixed map lacks, or reads in two ways.
    """
    if not listing.files:
        raise SourceError("no image found", path=root)
    labels, names = given.labels, list(given.classes)
    if classes is not None and given.numbered:
        _check_numbers(given, classes, root)
        names = list(classes)
    elif classes is not None:
        labels, names = _by_name(given, classes, root), list(classes)
    splits = list(given.splits)
    totals = totals_of(labels, given.split_ids, names, splits)
    return Plan(
        keys=listing.files,
        labels=labels,
        split_ids=given.split_ids,
        classes=names,
        splits=splits,
        warnings=[*listing.warnings, *class_warnings(totals, names)],
    )


def _check_numbers(given: Given, classes: Sequence[str], root: Path) -> None:
    used = [given.classes[i] for i in np.unique(given.labels[given.labels >= 0])]
    if used and int(used[-1]) >= len(classes):
        raise SourceError(
            f"label {used[-1]} is not in the given class map of {len(classes)} classes", path=root
        )
    if set(used) <= set(classes) and (other := [n for n in used if classes[int(n)] != n]):
        raise SourceError(
            f"two readings: label {other[0]} is class {printable(classes[int(other[0])])!r} by its "
            f"number, and class {other[0]!r} by its name",
            path=root,
            advice="call the column `class` if these are names, or give a class map of words",
        )


def _by_name(given: Given, classes: Sequence[str], root: Path) -> npt.NDArray[np.int64]:
    class_ids = {name: i for i, name in enumerate(classes)}
    used = {int(i) for i in np.unique(given.labels) if i >= 0}
    new = np.full(len(given.classes) + 1, -1, np.int64)  # the last one is for label -1
    for i in used:
        name = given.classes[i]
        if name not in class_ids:
            raise SourceError(not_in_class_map("class", name, classes), path=root)
        new[i] = class_ids[name]
    return new[given.labels]
