"""Annotations, one module a kind: where the boxes of objects come from. Each has

class Annotations:
    classes: tuple[str, ...]
        The names of the classes; none where only numbers are known.
    notes: list[str]
        What a person should know of the annotations as a whole.
    def find(self, key: str, data: bytes, size: Size) -> Annotated
        What is stated of the image `key`, whose upright size is `size`; `data` is the content of
        its annotation file, if it has one. Called from many threads. Raises Reject.

`add_boxes` makes them the field `boxes` of a source's samples.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from readers.checksum import file_checksum
from readers.errors import SourceError
from readers.manifest import Field

from ..boxes import Annotated, fit
from ..fields import Pattern, PatternField, pattern_field, take_out, take_out_values
from ..images.geometry import Size
from ..images.inspect import Reject
from ..plan import class_names
from ..sources import Column, File, Listing, Source, SourceOfFiles
from ..values import Found, Value
from . import coco, voc, yolo

NAME = "boxes"
KINDS = ("coco", "yolo", "voc")
_IMAGE_FOLDERS = ("images", "JPEGImages")  # where images lie, and which say nothing else
_CLASS_FILES = ("data.yaml", "classes.txt", "labels/classes.txt")  # of YOLO, beside images/
_READ_THREADS = 64  # hides the latency of a slow mount


@dataclass(frozen=True)
class BoxesOption:
    """Which annotations are packed: of COCO the `files`; of YOLO and VOC what the `pattern` names,
    by default what is usual. `classes` are the names of all classes, where they are given."""

    kind: str
    files: tuple[Path, ...] = ()
    pattern: Pattern | None = None
    classes: tuple[str, ...] | None = None

    @property
    def columns(self) -> frozenset[str]:
        """Names of columns of a list that the pattern may have."""
        return self.pattern.placeholders if self.pattern else frozenset()

    def describe(self) -> dict[str, Any]:
        """As JSON has it, with the checksums of the files. Raises SourceError."""
        described: dict[str, Any] = {"annotations": self.kind}
        if self.pattern is not None:
            described["pattern"] = self.pattern.text
        for path in self.files:
            try:
                described[os.path.realpath(path)] = file_checksum(path)
            except OSError as error:
                raise SourceError(f"cannot be read: {error.strerror}", path=path) from None
        return described


class Annotations(Protocol):
    classes: tuple[str, ...]
    notes: list[str]

    def find(self, key: str, data: bytes, size: Size) -> Annotated: ...


class Values(Protocol):
    """Where annotations lie, image for image: as in packer.sources.FieldSource."""

    def read(self, image: str) -> File | None: ...
    def stamp(self, image: str) -> tuple[int, int]: ...
    def where(self, image: str) -> str: ...


@dataclass(frozen=True)
class BoxesField:
    """The field `boxes` of samples that are annotated."""

    annotations: Annotations
    values: Values
    about: Field
    name: str = NAME

    def read(self, image: str) -> File | None:
        return self.values.read(image)

    def stamp(self, image: str) -> tuple[int, int]:
        return self.values.stamp(image)

    def where(self, image: str) -> str:
        return self.values.where(image)

    def store(self, found: Found) -> Value:
        """The boxes of an image, given the content of its annotation file. Raises Reject."""
        try:
            annotated = self.annotations.find(found.image, found.data, found.geometry.source)
            rows, warnings = fit(annotated, found.orientation, found.geometry)
        except Reject as reject:
            raise Reject(reject.reason, f"{found.where}: {reject.detail}") from None
        return Value(rows.tobytes(), warnings)


@dataclass(frozen=True)
class _UsualLabels(Pattern):
    """Where YOLO's labels are by convention."""

    labels: str | None = None

    def path(self, image: str, columns: Mapping[str, Column]) -> str:
        return yolo.label_file(image, self.labels)


def add_boxes(source: Source, listing: Listing, option: BoxesOption | None) -> None:
    """Give the samples of a listing their field `boxes`, and take annotation files out of it.

    Raises SourceError.
    """
    if option is None:
        return
    if any(field.name == NAME for field in listing.fields):
        raise SourceError(
            "has boxes of its own", path=source.root, advice=f"add --without-field {NAME}"
        )
    field = (
        _of_coco(option, source, listing)
        if option.kind == "coco"
        else _of_files(option, source, listing)
    )
    listing.fields.append(field)
    listing.warnings += field.annotations.notes


def shown_folders(listing: Listing) -> tuple[Listing, dict[str, str]]:
    """The listing without folders that only say that images are in them, which are neither classes
    nor splits; and the real path of each file. As it is where two files would be one."""
    path_of = {_shown(path): path for path in listing.files}
    if len(path_of) < len(listing.files):
        return listing, {}
    folders = {_shown(f"{folder}/")[:-1] for folder in listing.folders} - {""}
    return replace(listing, files=list(path_of), folders=sorted(folders)), path_of


def _shown(path: str) -> str:
    *folders, name = path.split("/")
    return "/".join([*(folder for folder in folders if folder not in _IMAGE_FOLDERS), name])


def _of_coco(option: BoxesOption, source: Source, listing: Listing) -> BoxesField:
    annotations = coco.Annotations(option.files, listing.files, option.classes)
    folder = os.path.realpath(source.root)
    inside = [os.path.relpath(os.path.realpath(path), folder) for path in option.files]
    take_out(listing, set(inside))
    return _field(annotations, annotations)


def _of_files(option: BoxesOption, source: Source, listing: Listing) -> BoxesField:
    if not isinstance(source, SourceOfFiles):
        raise SourceError(
            "has no files that could be annotations", path=source.root, advice="use COCO's JSON"
        )
    labels = _yolo_labels(source.root) if option.kind == "yolo" else None
    usual = {
        "yolo": _UsualLabels(NAME, "labels/{stem}.txt", labels),
        "voc": Pattern(NAME, "../Annotations/{stem}.xml"),
    }
    files = pattern_field(option.pattern or usual[option.kind], source, listing)
    if option.kind == "yolo":  # an image without objects needs no label file
        files = replace(files, may_be_missing=True)
    if not listing.columns and listing.given is None:  # a list's rows are all images
        take_out_values(listing, [files], source.root)
    classes = option.classes
    if option.kind == "yolo":
        classes = _yolo_classes(source, listing, labels) if classes is None else classes
        return _field(yolo.Annotations(classes), files)
    return _field(
        voc.Annotations(_voc_classes(files, listing) if classes is None else classes), files
    )


def _yolo_labels(root: Path) -> str | None:
    """The folder `labels` that belongs to a source in, or below, a folder `images`, seen from it:
    `../labels`, `../../labels/train`; None where there is none."""
    parts = root.absolute().parts  # of `.`, too
    if "images" not in parts:
        return None
    below = parts[len(parts) - parts[::-1].index("images") :]
    labels = "/".join([*[".."] * (len(below) + 1), "labels", *below])
    return labels if not below or any((root / labels).rglob("*.txt")) else None


def _field(annotations: Annotations, values: Values) -> BoxesField:
    return BoxesField(annotations, values, Field("boxes", classes=annotations.classes))


def _yolo_classes(source: SourceOfFiles, listing: Listing, labels: str | None) -> tuple[str, ...]:
    """The names in the first of the usual files that is there, beside the folder `labels`, too;
    none without one."""
    above = [] if labels is None else [labels.partition("labels")[0] + n for n in _CLASS_FILES]
    for name in (*_CLASS_FILES, *above):
        try:
            data = source.read_beside(name).data
        except Reject:
            continue
        take_out(listing, {name})
        listing.warnings.append(f"the names of the boxes' classes are those in {name}")
        return tuple(class_names.parse(data, PurePosixPath(name)))
    listing.warnings.append("the boxes' classes have no names; --boxes-classes gives them")
    return ()


def _voc_classes(files: PatternField, listing: Listing) -> tuple[str, ...]:
    """Every name in all the annotations, sorted by code point. What is broken is rejected later."""

    def names_of(image: str) -> set[str]:
        try:
            file = files.read(image)
            return set() if file is None else voc.names_in(file.data)
        except Reject:
            return set()

    with ThreadPoolExecutor(_READ_THREADS) as pool:
        return tuple(sorted(set().union(*pool.map(names_of, listing.files))))
