"""From the paths of a source to samples: keys, labels, splits, order.

Only folders make splits and labels, never a word inside a file's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.errors import SourceError, printable
from readers.manifest import Manifest

from .sources import Listing

SPLIT_NAMES = ("train", "training", "val", "valid", "validation", "test", "testing")
LAYOUTS = ("auto", "classes", "splits", "flat")
_FLAT, _CLASSES = "flat", "classes"


@dataclass(frozen=True)
class Plan:
    """The samples to be, in the order they will be packed."""

    keys: list[str]
    labels: npt.NDArray[np.int64]
    split_ids: npt.NDArray[np.int16]
    classes: list[str]
    splits: list[str]
    warnings: list[str]

    def __len__(self) -> int:
        return len(self.keys)


def plan(
    listing: Listing, root: Path, layout: str = "auto", classes: Sequence[str] | None = None
) -> Plan:
    """Decide splits and labels from folders, and the order of the samples.

    The order is torchvision's ImageFolder's: by split, class, folder, file name, each by code
    point, whatever order the file system listed. `classes` fixes the class map. Raises
    SourceError where the folders can be read in two ways, showing both, and for a class that a
    fixed map lacks.
    """
    if not listing.files:
        raise SourceError("no image found", path=root, advice=_left_out_advice(listing.left_out))
    has_splits, kind_of = _read_layout(listing, root, layout)
    rows = sorted(_row(path, has_splits, kind_of) for path in listing.files)
    splits = sorted({row[0] for row in rows}) if has_splits else []
    found = _class_names(listing, has_splits, kind_of)
    warnings = list(listing.warnings)
    class_names = list(classes) if classes is not None else found
    if unknown := sorted({row[1] for row in rows} - {"", *class_names}):
        raise SourceError(
            f"class {printable(unknown[0])!r} is not in the given class map", path=root
        )
    class_ids = {name: i for i, name in enumerate(class_names)} | {"": -1}
    split_ids = {name: i for i, name in enumerate(splits)} | {"": -1}
    if has_splits:
        empty = sorted(kind_of.keys() - set(splits))
        warnings += [f"split {printable(name)!r} has no image" for name in empty]
    warnings += class_warnings(rows, class_names, splits)
    return Plan(
        keys=["/".join(filter(None, (folder, name))) for _, _, folder, name in rows],
        labels=np.fromiter((class_ids[row[1]] for row in rows), np.int64, len(rows)),
        split_ids=np.fromiter((split_ids[row[0]] for row in rows), np.int16, len(rows)),
        classes=class_names,
        splits=splits,
        warnings=warnings,
    )


def load_classes(source: Path) -> list[str]:
    """The class map of `--classes-from`: a pack's, or a text file's with a name a line."""
    if source.is_dir():
        return list(Manifest.load(source).classes)
    try:
        text = source.read_text("utf-8-sig", "surrogateescape")  # Windows' editors add a BOM
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=source) from None
    classes = [line for line in text.split("\n") if line]
    if twice := [name for name, count in Counter(classes).items() if count > 1]:
        raise SourceError(f"class {twice[0]!r} is listed twice", path=source)
    return classes


def _row(path: str, has_splits: bool, kind_of: dict[str, str]) -> tuple[str, str, str, str]:
    """(split, class, folder, name) of a file: sorting these sorts as ImageFolder does."""
    folder, _, name = path.rpartition("/")
    split, _, below = folder.partition("/") if has_splits else ("", "", folder)
    class_name = below.partition("/")[0] if kind_of[split] == _CLASSES else ""
    return split, class_name, folder, name


def _read_layout(listing: Listing, root: Path, layout: str) -> tuple[bool, dict[str, str]]:
    """Whether the top folders are splits, and per split whether its folders are classes."""
    if layout == "flat":
        return False, {"": _FLAT}
    tops = {path.partition("/")[0] for path in listing.files if "/" in path}
    loose = sum("/" not in path for path in listing.files)
    known = sorted(top for top in tops if top.lower() in SPLIT_NAMES)
    others = sorted(tops.difference(known))
    if layout == "splits":
        has_splits = True
        if loose:
            raise SourceError(f"{loose} images lie beside the split folders", path=root)
    else:
        has_splits = layout == "auto" and bool(known)
    if has_splits and layout == "auto" and (others or loose):
        beside = f"{others[0]}/" if others else f"{loose} images"
        raise SourceError(
            f"two readings: {known[0]}/ is a split, and {printable(beside)} beside it belongs to "
            f"none; or {known[0]}/ is a class like any other folder",
            path=root,
            advice="choose with --layout splits (after moving the others away), classes or flat",
        )
    if has_splits:  # a split without an image may have class folders all the same
        tops |= {folder for folder in listing.folders if folder.lower() in SPLIT_NAMES}
    kind_of = {}
    for split in sorted(tops) if has_splits else [""]:
        prefix = f"{split}/" if has_splits else ""
        below = [path[len(prefix) :] for path in listing.files if path.startswith(prefix)]
        kind_of[split] = _kind(below, root / split, layout)
    return has_splits, kind_of


def _kind(paths: list[str], folder: Path, layout: str) -> str:
    """Whether the folders right below `folder` are classes or it is flat and unlabelled."""
    loose = [path for path in paths if "/" not in path]
    if not loose:
        return _CLASSES
    if len(loose) == len(paths):
        if layout == "classes":
            raise SourceError("no class folder, only images", path=folder)
        return _FLAT
    nested = next(path for path in paths if "/" in path)
    raise SourceError(
        f"two readings: {printable(nested.partition('/')[0])}/ is a class, and "
        f"{printable(loose[0])} ({len(loose)} such images) beside it has none; or the folder is "
        f"flat, and no image in it has a label",
        path=folder,
        advice="move the images into a class folder, or choose --layout flat",
    )


def _class_names(listing: Listing, has_splits: bool, kind_of: dict[str, str]) -> list[str]:
    """Every class folder of every split, in torchvision's order, empty ones too."""
    names = set()
    for path in listing.folders:
        split, _, below = path.partition("/") if has_splits else ("", "", path)
        if below and "/" not in below and kind_of.get(split) == _CLASSES:
            names.add(below)
    return sorted(names)


def class_warnings(
    rows: list[tuple[str, str, str, str]], classes: list[str], splits: list[str]
) -> list[str]:
    """What is strange about classes; `rows` are (split, class, folder, name), "" for none."""
    warnings = []
    counts = Counter((row[0], row[1]) for row in rows)
    labelled_splits = sorted({split for split, name in counts if name})
    for name in classes:
        lacking = [split for split in labelled_splits if not counts[split, name]]
        if len(lacking) == len(labelled_splits):
            warnings.append(f"class {printable(name)!r} has no image; it keeps its label")
        elif lacking:
            warnings.append(
                f"class {printable(name)!r} has no image in {', '.join(lacking)}; "
                "it keeps its label there"
            )
    if len(classes) == 1 and all("/" in row[2].removeprefix(f"{row[0]}/") for row in rows):
        warnings.append(
            f"all images lie below the one class {printable(classes[0])!r}; if its folders are "
            "the classes, pack that folder instead"
        )
    if classes and all(name.isdecimal() for name in classes):
        by_value = sorted(classes, key=int)
        if by_value != classes:
            i = next(i for i, name in enumerate(classes) if name != by_value[i])
            warnings.append(
                f"class names are numbers but not in numeric order: label {i} is class "
                f"{classes[i]!r}; use pack.classes, or --classes-from a list in your order"
            )
        elif any(int(name) != i for i, name in enumerate(classes)):
            warnings.append("class names are numbers, and not equal to the labels 0, 1, 2, …")
    return warnings


def _left_out_advice(left_out: Counter[str]) -> str:
    if not left_out:
        return "the folder is empty"
    return "left out: " + ", ".join(f"{reason} ({n})" for reason, n in left_out.most_common(5))


def count(reasons: Iterable[str]) -> dict[str, int]:
    """How often each text occurs, by text."""
    return dict(sorted(Counter(reasons).items()))
