"""From the paths of a source to samples: keys, labels, splits, order.

Only folders make splits and labels, never a word inside a file's name.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from readers.errors import SourceError, printable
from readers.manifest import Manifest

from ..sources import Listing, is_tar
from . import class_names
from .names import not_in_class_map

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
        raise SourceError("no image found", path=root, advice=_left_out_advice(listing, root))
    names = _by_folder(listing.files)
    has_splits, kind_of = _read_layout(names, listing.folders, root, layout)
    places = sorted(_place(folder, has_splits, kind_of) for folder in names)
    num_files = [len(names[folder]) for _, _, folder in places]
    splits = sorted({split for split, _, _ in places}) if has_splits else []
    found = _class_names(listing, has_splits, kind_of)
    class_names = list(classes) if classes is not None else found
    if unknown := sorted({name for _, name, _ in places} - {"", *class_names}):
        raise SourceError(not_in_class_map("class", unknown[0], class_names), path=root)
    class_ids = {name: i for i, name in enumerate(class_names)} | {"": -1}
    split_ids = {name: i for i, name in enumerate(splits)} | {"": -1}
    labels = np.repeat([class_ids[name] for _, name, _ in places], num_files)
    splits_of = np.repeat(np.array([split_ids[s] for s, _, _ in places], np.int16), num_files)
    totals = totals_of(labels, splits_of, class_names, splits)
    return Plan(
        keys=[path for *_, folder in places for path in _paths(folder, sorted(names[folder]))],
        labels=labels,
        split_ids=splits_of,
        classes=class_names,
        splits=splits,
        warnings=[
            *listing.warnings,
            *_split_warnings(kind_of, splits),
            *class_warnings(totals, class_names),
            *_depth_warnings(places, class_names),
            *_name_warnings(class_names, {name for _, name in totals}),
        ],
    )


def load_classes(source: Path) -> list[str]:
    """The class map of `--classes-from`: a pack's, or a file's as in packer.plan.class_names."""
    if source.is_dir():
        return list(Manifest.load(source).classes)
    try:
        return class_names.parse(source.read_bytes(), source)
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=source) from None


Place = tuple[str, str, str]  # the split, the class and the folder of files


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    """The names of the files in each folder: what there is to decide is decided by folder."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        folder, _, name = path.rpartition("/")
        names[folder].append(name)
    return names


def _paths(folder: str, names: Iterable[str]) -> Iterable[str]:
    return [f"{folder}/{name}" for name in names] if folder else names


def _place(folder: str, has_splits: bool, kind_of: dict[str, str]) -> Place:
    """Sorting these, and the names in each folder, sorts files as ImageFolder does."""
    split, _, below = folder.partition("/") if has_splits else ("", "", folder)
    return split, below.partition("/")[0] if kind_of[split] == _CLASSES else "", folder


def _read_layout(
    names: Mapping[str, list[str]], folders: Iterable[str], root: Path, layout: str
) -> tuple[bool, dict[str, str]]:
    """Whether the top folders are splits, and per split whether its folders are classes."""
    if layout == "flat":
        return False, {"": _FLAT}
    tops = {folder.partition("/")[0] for folder in names if folder}
    num_loose = len(names.get("", ()))
    known = sorted(top for top in tops if top.lower() in SPLIT_NAMES)
    others = sorted(tops.difference(known))
    if layout == "splits":
        has_splits = True
        if num_loose:
            raise SourceError(f"{num_loose} images lie beside the split folders", path=root)
    else:
        has_splits = layout == "auto" and bool(known)
    if has_splits and layout == "auto" and (others or num_loose):
        beside = f"{others[0]}/" if others else f"{num_loose} images"
        raise SourceError(
            f"two readings: {known[0]}/ is a split, and {printable(beside)} beside it belongs to "
            f"none; or {known[0]}/ is a class like any other folder",
            path=root,
            advice="choose with --layout splits (after moving the others away), classes or flat",
        )
    if not has_splits:
        return False, {"": _kind("", names, root, layout)}
    # A split without an image may have class folders all the same.
    tops |= {folder for folder in folders if folder.lower() in SPLIT_NAMES}
    return True, {split: _kind(split, names, root / split, layout) for split in sorted(tops)}


def _kind(top: str, names: Mapping[str, list[str]], path: Path, layout: str) -> str:
    """Whether the folders right below `top` are classes or it is flat and unlabelled."""
    loose = names.get(top, [])
    if not loose:
        return _CLASSES
    prefix = f"{top}/" if top else ""
    below = (folder[len(prefix) :] for folder in names if folder.startswith(prefix))
    nested = next(filter(None, below), None)
    if nested is None:
        if layout == "classes":
            raise SourceError("no class folder, only images", path=path)
        return _FLAT
    raise SourceError(
        f"two readings: {printable(nested.partition('/')[0])}/ is a class, and "
        f"{printable(loose[0])} ({len(loose)} such images) beside it has none; or the folder is "
        f"flat, and no image in it has a label",
        path=path,
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


def _split_warnings(kind_of: Mapping[str, str], splits: Sequence[str]) -> list[str]:
    empty = sorted(set(kind_of) - {"", *splits})
    return [f"split {printable(name)!r} has no image" for name in empty]


def _depth_warnings(places: Iterable[Place], classes: Sequence[str]) -> list[str]:
    if len(classes) != 1 or any("/" not in f.removeprefix(f"{split}/") for split, _, f in places):
        return []
    return [
        f"all images lie below the one class {printable(classes[0])!r}; if its folders are the "
        "classes, pack that folder instead"
    ]


def _name_warnings(classes: Sequence[str], with_images: Collection[str]) -> list[str]:
    """A note on folders that hold images and what goes with them, and are hardly classes."""
    images = [name for name in classes if name.lower() in ("images", "imgs", "jpegimages")]
    masks = [name for name in classes if name.lower() in ("masks", "annotations", "labels")]
    if len(images) != 1 or len(classes) > 1 + len(masks):
        return []
    folders = " and ".join(f"{printable(name)}/" for name in [*images, *masks])
    if not masks:
        return [f"{folders} is taken as a class; if it is none, pack that folder itself"]
    if masks[0] in with_images:
        advice = f"pack {images[0]}/ with --field 'mask=../{printable(masks[0])}/{{stem}}.png'"
    else:
        advice = f"add --boxes {'voc' if masks[0].lower() == 'annotations' else 'yolo'}"
    return [f"{folders} are taken as classes; if they are none, {advice}"]


def totals_of(
    labels: npt.NDArray[np.int64],
    split_ids: npt.NDArray[np.int16],
    classes: Sequence[str],
    splits: Sequence[str],
) -> Counter[tuple[str, str]]:
    """How many samples each (split, class) has, "" for none."""
    width = len(classes) + 1
    counts = np.bincount((split_ids.astype(np.int64) + 1) * width + labels + 1)
    split_names, class_names = ["", *splits], ["", *classes]
    return Counter(
        {
            (split_names[cell // width], class_names[cell % width]): int(counts[cell])
            for cell in np.flatnonzero(counts)
        }
    )


_LISTED = 20  # classes without images; a wrong folder can have any number of them


def class_warnings(totals: Mapping[tuple[str, str], int], classes: Sequence[str]) -> list[str]:
    """What is strange about classes; see `totals_of` for `totals`."""
    warnings = []
    labelled_splits = sorted({split for split, name in totals if name})
    for name in classes:
        lacking = [split for split in labelled_splits if not totals.get((split, name))]
        if len(lacking) == len(labelled_splits):
            warnings.append(f"class {printable(name)!r} has no image; it keeps its label")
        elif lacking:
            warnings.append(
                f"class {printable(name)!r} has no image in {', '.join(lacking)}; "
                "it keeps its label there"
            )
    if len(warnings) > _LISTED:
        more = f"{len(warnings) - _LISTED} more classes have no image, or none in some splits"
        warnings[_LISTED:] = [more]
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


def _left_out_advice(listing: Listing, root: Path) -> str:
    left_out = listing.left_out + Counter(reason for _, reason in listing.rejected)
    if not left_out:
        return "the folder is empty"
    advice = "left out: " + ", ".join(f"{reason} ({n})" for reason, n in left_out.most_common(5))
    if root.is_dir() and any("/" not in path and is_tar(path) for path in listing.others):
        advice += "; if the archives are WebDataset's shards, add --from webdataset"
    return advice
