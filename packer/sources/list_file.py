"""A list of images: CSV, TSV or JSON lines with the columns path (or file_name), label (or class)
and split.

A label is a class's name, or its number if all labels are numbers; a `class` is always a name.
Further columns hold texts, or paths of further files.
"""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn, TextIO

from readers.errors import SourceError, printable

from ..archive import join
from ..images.inspect import Reject
from ..plan.labels import Stated, give
from ..plan.names import can_be_a_name
from . import NO_FILE, Column, File, Listing, folder, folders_above

EXTENSIONS = (".csv", ".tsv", ".jsonl")
_COLUMNS = ("path", "label", "class", "split")
_PATH_TOO = "file_name"  # in the lists of Hugging Face's imagefolder
_HEADER_ADVICE = "name the columns in the first line: path,label,split"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")

Row = tuple[int, dict[str, object]]  # the line it is on, and its columns


@dataclass
class _Table:
    """What a list says, row for row, and how many rows have which column."""

    lines: dict[str, int] = field(default_factory=dict)  # of every path
    further: dict[str, dict[str, object]] = field(default_factory=dict)  # columns, by path
    labels: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    columns: Counter[str] = field(default_factory=Counter)
    names_only: bool = False  # labels that look like numbers are names


class Source:
    def __init__(self, root: Path, base: Path | None = None) -> None:
        """`base` is the folder that paths are relative to; the list's own if not given."""
        self.root = root
        self._base = Path(os.path.abspath(root.parent if base is None else base))
        self._folder = folder.Source(self._base)
        self._is_json = root.suffix.lower() == ".jsonl"

    def scan(self) -> Listing:
        table, listing = self._table, Listing()
        for name, values in table.further.items():
            text, path = partial(self._column_text, values), partial(self._column_path, values)
            listing.columns[name] = Column(table.columns[name], text, path)
        if table.columns.keys().isdisjoint(_COLUMNS[1:]):
            listing.files = list(table.lines)
            listing.folders = sorted(folders_above(listing.files))
            return listing
        stated = map(Stated, table.lines, table.labels, table.splits)
        listing.files, listing.given = give(stated, self.root, names_only=table.names_only)
        if num_unlabelled := table.labels.count(""):
            listing.warnings.append(f"{num_unlabelled} images have no label in the list")
        return listing

    @cached_property
    def _table(self) -> _Table:
        table = _Table()
        for line, row in self._rows():
            path = self._path(line, row)
            if path in table.lines:
                first = table.lines[path]
                self._fail(line, f"{printable(path)!r} is listed twice, first on line {first}")
            table.lines[path] = line
            table.columns.update(row.keys())
            for name in row.keys() - set(_COLUMNS):
                table.further.setdefault(name, {})[path] = row[name]
            table.labels.append(self._label(line, row))
            table.splits.append(self._text(line, row, "split"))
            if bool(table.splits[0]) != bool(table.splits[-1]):
                self._fail(line, "some lines have a split and some have none")
            table.names_only |= bool(row.get("class"))
            table.names_only |= self._is_json and isinstance(row.get("label"), str)
        return table

    # Rows

    def _rows(self) -> Iterator[Row]:
        try:
            with self.root.open("rb") as raw:
                if raw.read(2) in _UTF16:
                    self._fail(1, "the list is UTF-16", "save it as UTF-8")
            with self.root.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
                yield from self._json_rows(file) if self._is_json else self._csv_rows(file)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path=self.root) from None

    def _csv_rows(self, file: TextIO) -> Iterator[Row]:
        first = file.readline()
        file.seek(0)
        delimiter = max("\t,;", key=first.count)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        line = 1
        try:
            names = [name.strip().lower() for name in next(reader, [])]
            if len(set(names)) < len(names):
                self._fail(1, "two columns have the same name")
            if "path" not in names:
                names = ["path" if name == _PATH_TOO else name for name in names]
            if names and "path" not in names:
                self._fail(
                    1, f"no column `path`, nor `file_name`, but {', '.join(names)}", _HEADER_ADVICE
                )
            for values in reader:
                if values and len(values) != len(names):
                    self._fail(line + 1, f"{len(values)} columns, the first line {len(names)}")
                if values:
                    yield line + 1, dict(zip(names, values, strict=True))
                line = reader.line_num
        except csv.Error as error:
            self._fail(line + 1, str(error))

    def _json_rows(self, file: TextIO) -> Iterator[Row]:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                self._fail(line, f"not JSON: {error}")
            if not isinstance(row, dict):
                self._fail(line, "not a JSON object")
            if wrong := [name for name in row if not can_be_a_name(name)]:
                self._fail(line, f"{wrong[0]!r} cannot be the name of a column")
            if "path" not in row and _PATH_TOO in row:
                row["path"] = row.pop(_PATH_TOO)
            yield line, row

    def _label(self, line: int, row: dict[str, object]) -> str:
        label, name = self._text(line, row, "label"), self._text(line, row, "class")
        if label and name and label != name:
            self._fail(line, f"both a label ({label}) and a class ({name})", "keep one of them")
        return label or name

    def _text(self, line: int, row: dict[str, object], column: str) -> str:
        value = row.get(column)
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int):
            self._fail(line, f"the {column} {value!r} is neither a word nor a whole number")
        text = str(value).strip()
        if not can_be_a_name(text):
            self._fail(line, f"the {column} {text!r} cannot be a name")
        return text

    def _path(self, line: int, row: dict[str, object]) -> str:
        """The path below the base that a row names."""
        value = row.get("path")
        if not isinstance(value, str) or not value:
            self._fail(line, "no `path`, nor `file_name`")
        clean = self._below_base(value)
        if clean is None:
            self._fail(
                line,
                f"{printable(value)!r} is not below {self._base}",
                "say what the paths are relative to with --root FOLDER",
            )
        if not can_be_a_name(clean):
            self._fail(line, f"{value!r} cannot be the name of a file")
        return clean

    def _below_base(self, path: str) -> str | None:
        """A path as it stands in the list, below the base; None if it is not."""
        path = path if "/" in path else path.replace("\\", "/")  # a list made on Windows
        return join("", path.removeprefix(f"{self._base}/".replace("//", "/")))

    def _column_text(self, values: dict[str, object], image: str) -> str | None:
        value = values.get(image)
        if value is None or isinstance(value, str):
            return value
        return json.dumps(value, ensure_ascii=False)

    def _column_path(self, values: dict[str, object], image: str) -> str | None:
        text = self._column_text(values, image)
        if not text:
            return None
        path = self._below_base(text)
        if path is None or not can_be_a_name(path):
            raise Reject("no path below the list's folder", repr(text))
        return path

    def _fail(self, line: int, problem: str, advice: str | None = None) -> NoReturn:
        raise SourceError(f"line {line}: {problem}", path=self.root, advice=advice)

    # Files

    def read(self, path: str) -> File:
        try:
            return self._folder.read_beside(path)
        except Reject as reject:
            if reject.reason != NO_FILE:
                raise
            raise Reject(NO_FILE, f"line {self._table.lines[path]} of the list") from None

    def read_beside(self, path: str) -> File:
        return self._folder.read_beside(path)

    def stamp(self, path: str) -> tuple[int, int]:
        return self._folder.stamp(path)
