"""COCO's instances JSON: one file for all images, or several.

Of every object in `annotations` its `bbox` is read: [x, y, width, height] in pixels from the
image's corner, so that its edges are x, y, x + width, y + height. Its `segmentation` is not.
Classes are the `categories` in the order of their ids. Regions with `iscrowd` are no objects.
Source: https://cocodataset.org/#format-data, "Object Detection".
"""

from __future__ import annotations

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
import numpy.typing as npt

from readers.boxes import NUM_COLUMNS
from readers.errors import SourceError, printable

from ..boxes import BROKEN, NO_SIZE, Annotated, Rows
from ..images.geometry import Size
from ..images.inspect import Reject
from ..json_stream import JsonStream
from ..plan.names import can_be_a_name, not_in_class_map
from ..sources import File

CROWD = "a crowd region, left out"
_MEMBERS = ("images", "annotations", "categories")
_ADVICE = "boxes come from COCO's instances JSON: an object with images, annotations and categories"
_NAMES_ADVICE = "make every file_name the path below the source"
_Object = Mapping[str, object]


class Annotations:
    """The boxes of all images of some files, in arrays: 40 bytes a box and 50 an image."""

    def __init__(
        self, paths: Sequence[Path], keys: Sequence[str], classes: Sequence[str] | None = None
    ) -> None:
        """Read the files, and find out which of their images the `keys` are. `classes` fixes the
        classes, by their names.

        An image's file_name is a key, or its end, or ends in it, or has the same last part: where
        that could be several keys it is an error, but for the first. Raises SourceError for that,
        for what is not COCO's JSON, and for a category that `classes` lacks.
        """
        readings = [_Reading(path) for path in paths]
        self.classes, class_of = _classes(readings, classes)
        self.notes: list[str] = []
        self._tables = [reading.table(class_of) for reading in readings]
        self._places = self._match([reading.file_names() for reading in readings], keys)
        for reading in readings:
            if reading.num_strays:
                self.notes.append(
                    f"{reading.num_strays} annotations in {reading.path.name} are of images that "
                    "it does not list"
                )

    def _match(
        self, file_names: Sequence[dict[int, str]], keys: Sequence[str]
    ) -> dict[str, tuple[int, int]]:
        """For every key that is annotated the table, and the image's number in it."""
        alike: defaultdict[str, list[str]] = defaultdict(list)
        for key in keys:
            alike[_last_part(key)].append(key)
        places: dict[str, tuple[int, int]] = {}
        missing: list[str] = []
        by_last_part: list[str] = []
        for t, names in enumerate(file_names):
            path = self._tables[t].path
            for number, name in names.items():
                chosen = _choose(name, alike.get(_last_part(_clean(name)), []), path)
                if chosen is None:
                    missing.append(name)
                    continue
                if chosen in places:
                    raise SourceError(
                        "two images of the annotations may be this file",
                        path=path,
                        key=chosen,
                        advice=_NAMES_ADVICE,
                    )
                places[chosen] = (t, number)
                if not _one_ends_in_other(_clean(name), chosen):
                    by_last_part.append(name)
        for names_of, text in (
            (missing, "annotated images are not in the source"),
            (by_last_part, "annotated images were found by the last part of their name alone"),
        ):
            if names_of:
                self.notes.append(f"{len(names_of)} {text} ({printable(names_of[0])} …)")
        return places

    def __contains__(self, key: object) -> bool:
        """Whether an image is annotated, be it with no object."""
        return key in self._places

    def read(self, key: str) -> File | None:
        """All is read already."""
        return File(b"", *self.stamp(key)) if key in self else None

    def stamp(self, key: str) -> tuple[int, int]:
        return (0, 0) if key in self else (-1, -1)

    def where(self, key: str) -> str:
        return f"the boxes of {key}"

    def find(self, key: str, data: bytes, size: Size) -> Annotated:
        """What is stated of an image that is annotated. Raises Reject for what cannot be a box."""
        t, number = self._places[key]
        return self._tables[t].find(number)


class _Table:
    """One file's objects, in the order of their images."""

    def __init__(
        self,
        path: Path,
        sizes: npt.NDArray[np.int32],
        owners: npt.NDArray[np.int64],
        rows: Rows,
        crowds: Counter[int],
        broken: dict[int, str],
    ) -> None:
        """sizes: (n, 2), 0 where unknown. owners: (m,), the image of each of `rows`. crowds,
        broken: of an image's number."""
        order = np.argsort(owners, kind="stable")
        self.path = path
        self._sizes = sizes
        self._rows = rows[order]
        self._starts = np.searchsorted(owners[order], np.arange(len(sizes) + 1))
        self._crowds = dict(crowds)
        self._broken = broken

    def find(self, number: int) -> Annotated:
        if number in self._broken:
            raise Reject(BROKEN, f"{self.path.name}, {self._broken[number]}")
        width, height = self._sizes[number].tolist()
        warnings = (CROWD,) * self._crowds.get(number, 0)
        if not width:
            return Annotated(self._of(number), None, (*warnings, NO_SIZE))
        return Annotated(self._of(number), (width, height), warnings)

    def _of(self, number: int) -> Rows:
        return self._rows[self._starts[number] : self._starts[number + 1]]


class _Reading:
    """One file while it is read. An image's number tells which one was mentioned before others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.categories: dict[float, str] = {}
        self._numbers: dict[object, int] = {}  # by id
        self._images: dict[int, tuple[str, int, int]] = {}  # file_name, width, height
        self._owners, self._values = array("q"), array("d")
        self._crowds: Counter[int] = Counter()
        self._broken: dict[int, str] = {}
        add = {
            "images": self._add_image,
            "annotations": self._add_object,
            "categories": self._add_category,
        }
        for member, i, element in _elements(path):
            if not isinstance(element, dict):
                raise self._error(f"{member}[{i}] is not an object")
            add[member](f"{member}[{i}]", element)

    def _add_image(self, where: str, image: _Object) -> None:
        image_id, name = image.get("id"), image.get("file_name")
        if not isinstance(image_id, int | float | str) or not isinstance(name, str) or not name:
            raise self._error(f"{where} lacks its id or file_name")
        if not can_be_a_name(name):
            raise self._error(f"{where}: its file_name {name!r:.100} cannot be one")
        number = self._numbers.setdefault(image_id, len(self._numbers))
        if number in self._images:
            raise self._error(f"{where} has the id {image_id!r}, which an image before it has")
        width, height = _size(image.get("width")), _size(image.get("height"))
        self._images[number] = (name, width, height) if width and height else (name, 0, 0)

    def _add_object(self, where: str, annotation: _Object) -> None:
        image_id, category = annotation.get("image_id"), annotation.get("category_id")
        if not isinstance(image_id, int | float | str):
            raise self._error(f"{where} lacks its image_id")
        number = self._numbers.setdefault(image_id, len(self._numbers))
        edges = _edges(annotation.get("bbox"))
        if annotation.get("iscrowd"):
            self._crowds[number] += 1
        elif edges is None:
            text = f"{where}: its bbox is {annotation.get('bbox')!r:.100}, not four numbers"
            self._broken.setdefault(number, text)
        elif not _is_whole(category):
            self._broken.setdefault(number, f"{where}: its category_id is {category!r:.100}")
        else:
            self._owners.append(number)
            self._values.extend([*edges, category])

    def _add_category(self, where: str, category: _Object) -> None:
        category_id, name = category.get("id"), category.get("name")
        if not _is_whole(category_id) or not isinstance(name, str):
            raise self._error(f"{where} lacks its id, a whole number, or its name")
        if not can_be_a_name(name):
            raise self._error(f"{where}: its name {name!r:.100} cannot be one")
        if self.categories.setdefault(category_id, name) != name:
            raise self._error(f"{where} has the id {category_id}, which one before it has")

    def _error(self, reason: str) -> SourceError:
        return SourceError(reason, path=self.path, advice=_ADVICE)

    def file_names(self) -> dict[int, str]:
        """Of every image's number."""
        return {number: name for number, (name, _, _) in self._images.items()}

    @property
    def num_strays(self) -> int:
        """Objects of images that are not listed."""
        strays = [number for number in self._numbers.values() if number not in self._images]
        num_crowds = sum(self._crowds[number] for number in strays)
        return num_crowds + int(np.isin(np.array(self._owners), strays).sum())

    def table(self, class_of: Mapping[float, int]) -> _Table:
        """What was read, with classes instead of categories."""
        sizes = np.zeros((len(self._numbers), 2), np.int32)
        for number, (_, width, height) in self._images.items():
            sizes[number] = width, height
        owners = np.array(self._owners, np.int64)
        rows = np.array(self._values, np.float64).reshape(-1, NUM_COLUMNS)
        found, places = np.unique(rows[:, 4], return_inverse=True)
        rows[:, 4] = np.array([class_of.get(c, -1) for c in found.tolist()])[places.ravel()]
        for i in np.flatnonzero(rows[:, 4] < 0).tolist():
            category = found[places.ravel()[i]]
            text = f"an object of category {category:g}, which is not in categories"
            self._broken.setdefault(int(owners[i]), text)
        return _Table(self.path, sizes, owners, rows, self._crowds, self._broken)


def _classes(
    readings: Sequence[_Reading], given: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[float, int]]:
    """The names of the classes, and the class of every category's id."""
    names: dict[float, str] = {}
    for reading in readings:
        for category, name in reading.categories.items():
            if names.setdefault(category, name) != name:
                raise SourceError(
                    f"category {category} is {printable(name)!r}, and "
                    f"{printable(names[category])!r} in {readings[0].path.name}",
                    path=reading.path,
                    advice="files that belong together have the same categories",
                )
    order = sorted(names)
    if given is None:
        return tuple(names[category] for category in order), {c: i for i, c in enumerate(order)}
    if unknown := [name for name in names.values() if name not in given]:
        raise SourceError(not_in_class_map("category", unknown[0], given), path=readings[0].path)
    return tuple(given), {category: given.index(names[category]) for category in order}


def _elements(path: Path) -> Iterator[tuple[str, int, object]]:
    """(member, number, element) of the three arrays. Raises SourceError."""
    missing, where = list(_MEMBERS), "the file"
    try:
        with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
            stream = JsonStream(file)
            for member in stream.members():
                if member not in missing:
                    stream.value()
                    continue
                missing.remove(member)
                for i, element in enumerate(stream.elements()):
                    where = f"behind {member}[{i}]"
                    yield member, i, element
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=path) from None
    except ValueError as error:
        raise SourceError(f"is broken {where}: {error}", path=path, advice=_ADVICE) from None
    if missing:
        raise SourceError(f"has no {missing[0]}", path=path, advice=_ADVICE)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> TypeGuard[float]:
    return _is_number(value) and abs(value) < 1 << 53 and value == int(value)


def _size(value: object) -> int:
    """A width or height in pixels; 0 for anything else."""
    return int(value) if _is_whole(value) and 1 <= value < 1 << 31 else 0


def _edges(bbox: object) -> tuple[float, float, float, float] | None:
    """x_min, y_min, x_max, y_max of COCO's x, y, width, height; None if it is not that."""
    if not isinstance(bbox, list) or len(bbox) != 4 or not all(map(_is_number, bbox)):
        return None
    try:
        x, y, width, height = map(float, bbox)
    except OverflowError:  # an integer of hundreds of digits
        return None
    edges = (x, y, x + width, y + height)
    return edges if all(map(math.isfinite, edges)) else None


# Names


def _clean(file_name: str) -> str:
    """A file_name as keys are written; some tools write it as Windows does."""
    return file_name.replace("\\", "/").removeprefix("./").lstrip("/")


def _last_part(path: str) -> str:
    return path.rpartition("/")[2]


def _one_ends_in_other(one: str, other: str) -> bool:
    return f"/{one}".endswith(f"/{other}") or f"/{other}".endswith(f"/{one}")


def _choose(file_name: str, alike: Sequence[str], path: Path) -> str | None:
    """The key that a file_name means, of those with the same last part; None if there is none."""
    name = _clean(file_name)
    if name in alike:
        return name
    chosen = [key for key in alike if _one_ends_in_other(name, key)] or alike
    if len(chosen) > 1:
        raise SourceError(
            f"the file_name {printable(file_name)!r} may be {printable(chosen[0])} or "
            f"{printable(chosen[1])}",
            path=path,
            advice=_NAMES_ADVICE,
        )
    return chosen[0] if chosen else None
