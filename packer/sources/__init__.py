"""Sources, one module each: what samples come from. `tests/test_sources.py` holds each to this:

class Source:
    def __init__(self, root: Path, …) -> None
    def scan(self) -> Listing
        All that the source holds, in any order, found in one pass.
    def read(self, path: str) -> File
        One listed file. Called from many threads. Raises Reject for a file that will never be
        readable, SourceError when the source itself fails or has changed.
    def stamp(self, path: str) -> tuple[int, int]
        Size in bytes and modification time in ns, to notice a change. Called from many threads.

A source of files also has, for the files that a field's pattern names:

    def read_beside(self, path: str) -> File
        A file that need not be listed, and may be missing: then it raises Reject(NO_FILE).

and a source that has further fields lists a FieldSource for each.

`open_source` is the one place that tells the kinds apart and makes a source.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from readers.errors import SourceError
from readers.manifest import MANIFEST_NAME, Field

if TYPE_CHECKING:
    from ..values import Found, Value

NO_FILE = "no such file"  # a reason of a Reject


@dataclass
class Listing:
    """Paths are relative to the source, `/`-separated, undecodable bytes as surrogate escapes."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # by reason
    rejected: list[tuple[str, str]] = field(default_factory=list)  # (path, reason)
    warnings: list[str] = field(default_factory=list)
    given: Given | None = None  # where labels and splits are not read from folders
    others: list[str] = field(default_factory=list)  # counted in left_out: no image by their names
    columns: dict[str, Column] = field(default_factory=dict)  # further columns of a list
    fields: list[FieldSource] = field(default_factory=list)  # further fields of the samples


@dataclass(frozen=True)
class Given:
    """Labels and splits that a source states itself, one row a file.

    `Listing.files` are then in the order to pack them. `numbered`: the labels were stated as
    numbers, and `classes` are just those. -1 is for no label, and no split.
    """

    classes: Sequence[str]
    labels: npt.NDArray[np.int64]
    splits: Sequence[str]
    split_ids: npt.NDArray[np.int16]
    numbered: bool


class File(NamedTuple):
    data: bytes
    num_bytes: int
    modified_ns: int
    kind: str | None = None  # what it was, if its bytes do not say that


# What is being done with an archive, how many of its bytes that has come to, and how many it has.
Scanning = Callable[[str, int, int], None]


def unseen(what: str, num_bytes: int, num_total: int) -> None:
    """Nobody watches."""


class Source(Protocol):
    root: Path

    def scan(self) -> Listing: ...
    def read(self, path: str) -> File: ...
    def stamp(self, path: str) -> tuple[int, int]: ...


@runtime_checkable
class SourceOfFiles(Source, Protocol):
    def read_beside(self, path: str) -> File: ...


class FieldSource(Protocol):
    """A further field: where its values come from. Everything is asked by an image's path.

    `about` is what the manifest says of the field, and decides what becomes of a value.
    """

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> Field: ...

    def read(self, image: str) -> File | None:
        """A value; None where a sample has none and need not have one. Called from many threads.
        Raises Reject, whose reason names the field, and SourceError."""

    def stamp(self, image: str) -> tuple[int, int]:
        """As Source.stamp; (-1, -1) for what read() rejects or has not."""

    def where(self, image: str) -> str:
        """What a value is called in messages: its path, where it has one."""


@runtime_checkable
class MadeFieldSource(FieldSource, Protocol):
    """A further field whose values are not those that read() gives, but made of them."""

    def store(self, found: Found) -> Value:
        """What is stored. Called from many threads. Raises Reject."""


class Column(NamedTuple):
    """A column of a list: how many rows have it, and what it says of an image, as text or as the
    path of a file below the source (None for nothing; `path` raises Reject for one outside)."""

    num_rows: int
    text: Callable[[str], str | None]
    path: Callable[[str], str | None]


KINDS = ("folder", "tar", "zip", "webdataset", "list", "pack")
_TAR_NAME = re.compile(r"\.(tar|tgz)(\.(gz|bz2|xz|zst))?$", re.IGNORECASE)
_ZIP_MAGIC = b"PK\3\4", b"PK\5\6"  # a member, or the directory of an empty archive


def open_source(
    path: Path,
    kind: str | None = None,
    *,
    scratch: Path | None = None,
    base: Path | None = None,
    scanning: Scanning = unseen,
) -> Source:
    """The source at `path`, of the kind that it looks like unless `kind` is given.

    `scratch` is a folder with room for a compressed tar's content, `base` the folder that the
    paths of a list are relative to. `scanning` is told how far the unpacking and listing of a tar
    or of WebDataset shards is. Raises SourceError.
    """
    from . import folder, list_file, pack, tar, webdataset, zip_file

    kind = detect(path) if kind is None else kind
    if kind == "tar":
        return tar.Source(path, scratch, scanning)
    if kind == "zip":
        return zip_file.Source(path)
    if kind == "webdataset":
        return webdataset.Source(path, scratch, scanning)
    if kind == "list":
        return list_file.Source(path, base)
    if kind == "pack":
        return pack.Source(path)
    return folder.Source(path)


def detect(path: Path) -> str:
    """The kind of source at `path`, by what is there. Raises SourceError for none."""
    from .list_file import EXTENSIONS
    from .tar import COMPRESSIONS
    from .webdataset import is_shards

    if os.path.isfile(path / MANIFEST_NAME) and os.path.isdir(path / "index"):  # others have one
        return "pack"
    if os.path.isdir(path):
        return "webdataset" if is_shards(path) else "folder"
    try:
        with path.open("rb") as file:
            start = file.read(tarfile.BLOCKSIZE)
    except (FileNotFoundError, ValueError):  # the latter for a name with a zero byte
        if is_shards(path):
            return "webdataset"
        raise SourceError("no such file or folder", path=path) from None
    except OSError as error:
        raise SourceError(f"cannot be read: {error.strerror}", path=path) from None
    if start.startswith(tuple(COMPRESSIONS)) or _is_tar(start):
        return "webdataset" if is_shards(path) else "tar"
    if start.startswith(_ZIP_MAGIC):
        return "zip"
    if path.suffix.lower() in EXTENSIONS:
        return "list"
    raise SourceError(
        "neither a folder nor an archive or list that dspack knows",
        path=path,
        advice=f"if it is one, say which with --from ({', '.join(KINDS)})",
    )


def _is_tar(start: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return len(start) == tarfile.BLOCKSIZE and not any(start)  # an archive of nothing
    return True


def folders_above(paths: Iterable[str]) -> set[str]:
    """All folders that some of the paths lie in, at any depth."""
    folders: set[str] = set()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return folders


# torchvision's IMG_EXTENSIONS, so that the same files are found, and others that hold pictures.
IMAGE_EXTENSIONS = {
    *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "ppm", "pgm", "bmp", "tif", "tiff", "webp"),
    *("gif", "avif", "heic", "heif", "jp2", "jxl"),
}

_JUNK = {
    "__macosx": "system junk",
    "thumbs.db": "system junk",
    "desktop.ini": "system junk",
    "$recycle.bin": "system junk",
    "system volume information": "system junk",
    "lost+found": "system junk",
    "@eadir": "system junk",
}


def junk_reason(name: str) -> str | None:
    """Why a file or folder of this name is never a sample or a class; None if it may be one."""
    if name.startswith("."):
        return "hidden"
    return _JUNK.get(name.lower())


def is_tar(name: str) -> bool:
    """Whether a file is a tar by its name, compressed or not."""
    return _TAR_NAME.search(name) is not None


def extension_reason(name: str) -> str | None:
    """Why a file of this name is not looked into; None for an image's extension, in any case."""
    _, dot, extension = name.rpartition(".")
    if not dot:
        return "no extension"
    return None if extension.lower() in IMAGE_EXTENSIONS else f"not an image: .{extension.lower()}"
