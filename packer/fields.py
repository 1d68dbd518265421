"""Further fields of the samples: masks, captions and whatever else lies beside the images.

A source states its own (packer.sources.FieldSource); those of folders, archives and lists are named
by patterns: `--field mask=../masks/{stem}.png`.
"""

from __future__ import annotations

import posixpath
import re
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from readers.checksum import checksum
from readers.errors import SourceError, printable
from readers.manifest import IMAGE, Field

from .images.inspect import Reject
from .sources import (
    IMAGE_EXTENSIONS,
    NO_FILE,
    Column,
    FieldSource,
    File,
    Listing,
    Source,
    SourceOfFiles,
    extension_reason,
    folders_above,
)

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = (IMAGE, "label", "key")  # names that the formats use for something else
_PLACEHOLDERS = ("stem", "name", "folder")  # others are columns of a list
_TEXT_EXTENSIONS = ("txt", "json")


def is_field_name(name: str) -> bool:
    """Whether a further field may have this name."""
    return _NAME.fullmatch(name) is not None and name not in _TAKEN


def kind_of(path: str) -> str:
    """The kind of the field whose values lie in files of such a name: by the extension."""
    extension = re.split("[._]", path.lower())[-1]
    if extension in IMAGE_EXTENSIONS:
        return "mask"
    return "text" if extension in _TEXT_EXTENSIONS else "bytes"


@dataclass(frozen=True)
class Pattern:
    """`NAME=PATTERN`: where the value of a further field lies, told from the image's path.

    {stem} is the image's file name without its extension, {name} with it, {folder} its folder
    below the source; in a list any column may be named, too. With {folder} or a column the path is
    relative to the source (a list's --root), else to the image's folder. Raises ValueError.
    """

    name: str
    text: str

    def __post_init__(self) -> None:
        if not is_field_name(self.name):
            raise ValueError(
                f"{self.name!r} cannot be a field's name: small letters, digits and _, and not "
                f"{', '.join(_TAKEN)}"
            )
        if not self.text or self.text.startswith("/"):
            raise ValueError(f"{self.text!r} is not a relative path like ../masks/{{stem}}.png")
        parsed = list(string.Formatter().parse(self.text))  # raises ValueError for a lone brace
        if any(
            spec or conversion or placeholder == "" for _, placeholder, spec, conversion in parsed
        ):
            raise ValueError(f"{self.text!r}: braces hold a name and nothing else, as in {{stem}}")

    @cached_property
    def placeholders(self) -> frozenset[str]:
        return frozenset(
            placeholder
            for _, placeholder, _, _ in string.Formatter().parse(self.text)
            if placeholder
        )

    @cached_property
    def _of_columns(self) -> frozenset[str]:
        return self.placeholders.difference(_PLACEHOLDERS)

    @cached_property
    def _is_relative(self) -> bool:
        return self.placeholders <= {"stem", "name"}

    def path(self, image: str, columns: Mapping[str, Column]) -> str:
        """The path below the source of an image's value. Raises Reject where a column is empty."""
        folder, _, name = image.rpartition("/")
        values = {"stem": name.rpartition(".")[0] or name, "name": name, "folder": folder}
        for placeholder in self._of_columns:
            value = columns[placeholder].path(image)
            if value is None:
                raise Reject(NO_FILE, f"the column {placeholder} is empty")
            values[placeholder] = value
        path = self.text.format_map(values)
        if folder and self._is_relative:
            path = f"{folder}/{path}"
        return posixpath.normpath(path.lstrip("/"))


@dataclass(frozen=True)
class PatternField:
    """A field whose values are files of the source, or beside it. A sample without its file is a
    reject unless that `may_be_missing`."""

    name: str
    about: Field
    source: SourceOfFiles
    pattern: Pattern
    columns: Mapping[str, Column]
    may_be_missing: bool = False

    def path(self, image: str) -> str:
        return self.pattern.path(image, self.columns)

    def read(self, image: str) -> File | None:
        path = ""
        try:
            path = self.path(image)
            if path == image:
                raise Reject("the image itself")
            return self.source.read_beside(path)
        except Reject as reject:
            if self.may_be_missing and reject.reason == NO_FILE:
                return None
            reason = (
                f"no {self.name}" if reject.reason == NO_FILE else f"{self.name}: {reject.reason}"
            )
            raise Reject(reason, " ".join(filter(None, (path, reject.detail)))) from None

    def stamp(self, image: str) -> tuple[int, int]:
        try:
            return self.source.stamp(self.path(image))
        except Reject:
            return (-1, -1)

    def where(self, image: str) -> str:
        return self.path(image)


@dataclass(frozen=True)
class ColumnField:
    """A text field that is a column of a list."""

    name: str
    about: Field
    column: Column

    def read(self, image: str) -> File | None:
        text = self.column.text(image)
        if text is None:
            return None
        try:
            data = text.encode("utf-8", "surrogateescape")  # bytes that are not UTF-8, as they were
        except UnicodeEncodeError:
            raise Reject(f"{self.name}: not UTF-8", "half a character") from None  # JSON can say so
        return File(data, len(data), int.from_bytes(checksum(data)[:7], "big"))

    def stamp(self, image: str) -> tuple[int, int]:
        """Instead of a time, a number that is another one for every text."""
        try:
            file = self.read(image)
        except Reject:
            file = None
        return (-1, -1) if file is None else file[1:3]

    def where(self, image: str) -> str:
        return f"the {self.name} of {image}"


def add_fields(
    source: Source,
    listing: Listing,
    patterns: Sequence[Pattern],
    without: Collection[str],
    used: Collection[str] = (),
) -> None:
    """Complete the fields of a listing, and take the files that are values out of its images.

    `without` names fields to leave out that a source brings by itself, `used` columns of a list
    that are no fields. Raises SourceError.
    """
    _leave_out(listing, without, source.root)
    if not patterns and not listing.columns:
        return
    if not isinstance(source, SourceOfFiles):
        raise SourceError(
            "has no files that a pattern could name; its further fields come by themselves",
            path=source.root,
            advice="leave out --field",
        )
    fields = [pattern_field(pattern, source, listing) for pattern in patterns]
    used = set(used).union(*(field.pattern.placeholders for field in fields))
    for name, column in listing.columns.items():
        if name in used:
            continue
        if is_field_name(name) and all(name != field.name for field in fields):
            listing.fields.append(ColumnField(name, Field("text"), column))
        else:
            listing.left_out[f"column {name}"] += column.num_rows
    listing.fields += fields
    if fields and not listing.columns and listing.given is None:  # a list's rows are all images
        take_out_values(listing, fields, source.root)


def _leave_out(listing: Listing, without: Collection[str], root: Path) -> None:
    there = [field.name for field in listing.fields] + list(listing.columns)
    for name in without:
        if name not in there:
            raise SourceError(
                f"no field {printable(name)!r} to leave out; it has {', '.join(there) or 'none'}",
                path=root,
            )
        listing.columns.pop(name, None)
        listing.left_out[f"field {name}"] = len(listing.files)
    listing.fields = [field for field in listing.fields if field.name not in without]


def pattern_field(pattern: Pattern, source: SourceOfFiles, listing: Listing) -> PatternField:
    known = [*_PLACEHOLDERS, *listing.columns]
    if unknown := sorted(pattern.placeholders - set(known)):
        raise SourceError(
            f"the pattern {pattern.text!r} of the field {pattern.name} has "
            f"{{{printable(unknown[0])}}}, and there is no such thing",
            path=source.root,
            advice=f"there are {', '.join(f'{{{name}}}' for name in known)}",
        )
    kind = "bytes"  # told by one value's extension: a pattern gives all the same, most often
    for image in listing.files if listing.columns else [min(listing.files, default="")]:
        try:
            kind = kind_of(posixpath.basename(pattern.path(image, listing.columns)))
            break
        except Reject:
            continue
    return PatternField(pattern.name, Field(kind), source, pattern, listing.columns)


def take_out_values(listing: Listing, fields: Sequence[PatternField], root: Path) -> None:
    """Values of fields are neither images nor left out, and folders of them are no classes."""
    values = _values(listing.files, fields)
    values = _values([path for path in listing.files if path not in values], fields)
    images = [path for path in listing.files if path not in values]
    stray = _stray(listing, images, fields)
    listing.files = [path for path in images if path not in stray]
    for path in listing.files:
        if own := [field.name for field in fields if field.path(path) == path]:
            raise SourceError(
                f"the image would be its own {own[0]}",
                path=root / path,
                advice="give a pattern that leads to another file",
            )
    listing.rejected = [(path, why) for path, why in listing.rejected if path not in values]
    listing.rejected += [(path, "belongs to no image") for path in sorted(stray)]
    take_out(listing, values | stray)


def take_out(listing: Listing, paths: set[str]) -> None:
    """Files that are of use, though no images, are not left out, and folders of them no classes."""
    for path in paths.intersection(listing.others):
        listing.left_out[str(extension_reason(posixpath.basename(path)))] -= 1
    listing.left_out = +listing.left_out
    emptied = folders_above(paths) - folders_above(listing.files)
    listing.folders = [path for path in listing.folders if path not in emptied]


def _values(images: Iterable[str], fields: Sequence[PatternField]) -> set[str]:
    return {path for image in images for field in fields if (path := field.path(image)) != image}


def _stray(listing: Listing, images: Sequence[str], fields: Sequence[PatternField]) -> set[str]:
    """Files that look like values and belong to no image: they lie in a folder that holds values of
    a field, and no image with such a value."""
    there = {*listing.files, *listing.others}
    stray: set[str] = set()
    for field in fields:
        of_values, of_images = set(), set()
        for image in images:
            path = field.path(image)
            if path != image and path in there:
                of_values.add(posixpath.dirname(path))
                of_images.add(posixpath.dirname(image))
        stray.update(p for p in images if posixpath.dirname(p) in of_values - of_images)
    return stray


def fold_stamps(stamps: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Sizes and times of all a sample's files as one: they change when one of them does, and when
    two of them change places."""
    return sum(size for size, _ in stamps), int.from_bytes(
        checksum(repr(stamps).encode())[:7], "big"
    )


def stamper(source: Source, fields: Sequence[FieldSource]) -> Callable[[str], tuple[int, int]]:
    """What gives the stamp of a sample, all its files'."""
    if not fields:
        return source.stamp
    stamps = [source.stamp, *(field.stamp for field in fields)]
    return lambda image: fold_stamps([stamp(image) for stamp in stamps])
