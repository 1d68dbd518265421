"""Sources, one module each: what samples come from. `tests/test_sources.py` holds each to this:

class Source:
    def __init__(self, root: Path) -> None
    def scan(self) -> Listing
        All that the source holds, in any order, found in one pass.
    def read(self, path: str) -> File
        One listed file. Called from many threads. Raises Reject for a file that will never be
        readable, SourceError when the source itself fails or has changed.
    def stamp(self, path: str) -> tuple[int, int]
        Size in bytes and modification time in ns, to notice a change. Called from many threads.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol


@dataclass
class Listing:
    """Paths are relative to the source, `/`-separated, undecodable bytes as surrogate escapes."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)  # by reason
    rejected: list[tuple[str, str]] = field(default_factory=list)  # (path, reason)
    warnings: list[str] = field(default_factory=list)


class File(NamedTuple):
    data: bytes
    num_bytes: int
    modified_ns: int


class Source(Protocol):
    root: Path

    def scan(self) -> Listing: ...
    def read(self, path: str) -> File: ...
    def stamp(self, path: str) -> tuple[int, int]: ...


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


def extension_reason(name: str) -> str | None:
    """Why a file of this name is not looked into; None for an image's extension, in any case."""
    _, dot, extension = name.rpartition(".")
    if not dot:
        return "no extension"
    return None if extension.lower() in IMAGE_EXTENSIONS else f"not an image: .{extension.lower()}"
