"""Archives: one file that holds a tree of files, read at given places and never extracted."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple

from readers.errors import DestinationError, SourceError

from .plan.layout import SPLIT_NAMES
from .retry import retry
from .sources import Listing, Scanning, extension_reason, folders_above, junk_reason, unseen

_BLOCK_BYTES = 1 << 20
_LINKS_MAX = 40  # as the kernel: more are a loop
_CHANGED_ADVICE = "it was changed meanwhile; run the same command again"

Place = tuple[int, ...]  # where a member lies; the first number is its byte in the archive


class ArchiveFile:
    """A file read at any place from many threads, without a file position that they would share.

    `decompress` makes a readable stream of the open file; the stream is then unpacked once into
    a nameless file in the folder `scratch`, which is read instead. It takes the disk space of
    the unpacked archive and no memory, and vanishes with this process however that ends. A
    compressed stream cannot be read at random, and packing needs its samples in sorted order.
    """

    def __init__(
        self,
        path: Path,
        decompress: Callable[[IO[bytes]], IO[bytes]] | None = None,
        scratch: Path | None = None,
        scanning: Scanning = unseen,
    ) -> None:
        """`scanning` is told how much is unpacked. Raises SourceError for a file that cannot be
        read or is damaged, DestinationError when `scratch` has no room."""
        self.path = path
        try:
            self._archive = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._archive)
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path=path) from None
        status = os.fstat(self._archive)
        self.modified_ns = status.st_mtime_ns
        self._stamp = (status.st_size, status.st_mtime_ns)
        self._descriptor = self._archive
        if decompress is not None:
            self._descriptor = _nameless_file(scratch or Path(tempfile.gettempdir()))
            weakref.finalize(self, os.close, self._descriptor)
            self._unpack(decompress, scanning)
        self.num_bytes = os.fstat(self._descriptor).st_size

    def _unpack(self, decompress: Callable[[IO[bytes]], IO[bytes]], scanning: Scanning) -> None:
        what, num_total = f"unpacking {self.path.name}", self._stamp[0]
        with open(self._archive, "rb", closefd=False) as packed, decompress(packed) as stream:
            while block := self._next_block(stream):
                try:
                    while block:
                        block = block[os.write(self._descriptor, block) :]
                except OSError as error:
                    raise DestinationError(
                        f"no room to unpack {self.path}: {error.strerror}",
                        advice="it is unpacked beside the destination; make room there",
                    ) from None
                scanning(what, packed.tell(), num_total)
        scanning(what, num_total, num_total)

    def _next_block(self, stream: IO[bytes]) -> bytes:
        try:
            return stream.read(_BLOCK_BYTES)
        except Exception as error:  # every decompressor has its own
            if isinstance(error, OSError) and error.errno is not None:  # not the decompressor's
                raise SourceError(f"cannot be read: {error.strerror}", path=self.path) from None
            raise SourceError(
                f"the compressed archive is cut or damaged ({error})",
                path=self.path,
                advice="fetch it again",
            ) from None

    def read(self, start: int, num_bytes: int) -> bytes:
        """Exactly these bytes. Called from many threads; raises SourceError."""
        data = self.read_some(start, num_bytes)
        if len(data) < num_bytes:
            raise SourceError(
                f"the archive ended at byte {start + len(data)} of {self.num_bytes}",
                path=self.path,
                advice=_CHANGED_ADVICE,
            )
        return data

    def read_some(self, start: int, num_bytes: int) -> bytes:
        """These bytes, or fewer where the file ends."""
        data = b""
        while len(data) < num_bytes:  # Linux reads 2 GiB at most, and mounts may do less
            place, left = start + len(data), num_bytes - len(data)
            more = retry(partial(os.pread, self._descriptor, left, place), self.path)
            if not more:
                break
            data = data + more if data else more
        return data

    def check_unchanged(self) -> None:
        """Raise SourceError if the archive was written to since it was opened."""
        status = os.fstat(self._archive)
        if (status.st_size, status.st_mtime_ns) != self._stamp:
            raise SourceError(
                "the archive changed after it was listed", path=self.path, advice=_CHANGED_ADVICE
            )


def _nameless_file(folder: Path) -> int:
    """A descriptor of a file without a name: the system frees it whenever this process ends."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # this file system cannot, or the folder is not to be written: the next tells
        try:
            descriptor, name = tempfile.mkstemp(dir=folder)
            os.unlink(name)
        except OSError as error:
            raise DestinationError(f"cannot be written: {error.strerror}", path=folder) from None
        return descriptor


class Symlink(NamedTuple):
    place: int
    target: str  # as it stands in the archive


class HardLink(NamedTuple):
    place: int
    target: str | None  # as a path from the archive's top; None if it leads out


class Tree:
    """The tree that an archive's members make: their keys, links, and what is left out."""

    def __init__(self, archive: Path) -> None:
        self._archive = archive
        self._members: dict[str, Place | Symlink | HardLink] = {}
        self._folders: set[str] = set()
        self._junk_folders: set[str] = set()
        self._listing = Listing()
        self._places: dict[str, Place] = {}  # of images
        self._other_places: dict[str, Place] = {}

    def add(self, name: str, member: Place | Symlink | HardLink, below: str = "") -> None:
        """Add a member that is not a folder. `below` is the folder that a nested archive makes.

        Raises SourceError if its name is taken.
        """
        path = self._path(name, below)
        if path and path in self._members:
            raise SourceError(
                f"the archive holds it twice, at byte {self._members[path][0]} and at byte "
                f"{member[0]}",
                path=self._archive,
                key=path,
                advice="unpacking would keep the last one; do that, and pack the folder",
            )
        if path:
            self._members[path] = member

    def add_folder(self, name: str, below: str = "") -> None:
        if path := self._path(name, below):
            self._folders.add(path)

    def reject(self, name: str, reason: str, below: str = "") -> None:
        if path := self._path(name, below):
            self._listing.rejected.append((path, reason))

    def _path(self, name: str, below: str) -> str | None:
        path = join(below, name)
        if path is None:
            reason = "absolute name" if name.startswith("/") else "name with .."
            self._listing.rejected.append((f"{below}/{name}" if below else name, reason))
        return path

    def finish(self) -> tuple[Listing, dict[str, Place]]:
        """All that was added as a listing, and the place of every file that it lists.

        A file that is not below the folder around all images has a path like `../read.me`.
        """
        listing = self._listing
        self._folders |= folders_above([*self._members, *self._folders])
        for path in self._members:
            self._sort_in(path)
        listing.folders = sorted(f for f in self._folders if not self._is_junk(f, folder=True))
        top = _wrapping_folder(listing.folders, self._places)
        listing.folders = [path[len(top) :] for path in listing.folders if len(path) >= len(top)]
        listing.folders = [path for path in listing.folders if path]
        listing.rejected = [(path.removeprefix(top), reason) for path, reason in listing.rejected]
        places = {path[len(top) :]: place for path, place in self._places.items()}
        listing.files = list(places)
        others = {
            path[len(top) :] if path.startswith(top) else f"../{path}": place
            for path, place in self._other_places.items()
        }
        listing.others = list(others)
        return listing, places | others

    def _sort_in(self, path: str) -> None:
        """Put a member where it belongs, as packer.sources.folder does."""
        if self._is_junk(path):
            return
        member = self._members[path]
        place = self._follow(path) if isinstance(member, Symlink | HardLink) else member
        if isinstance(place, str):
            self._listing.rejected.append((path, place))
        elif reason := extension_reason(path.rpartition("/")[2]):
            self._listing.left_out[reason] += 1
            self._other_places[path] = place
        else:
            self._places[path] = place

    def _follow(self, path: str) -> Place | str:
        """The place that a path leads to when every link is followed, or what is wrong with it."""
        followed: list[str] = []
        left = path.split("/")[::-1]
        num_links = 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == ".." and not followed:
                return "link out of the source"
            if part == "..":
                followed.pop()
                continue
            followed.append(part)
            link = self._members.get("/".join(followed))
            if not isinstance(link, Symlink | HardLink):
                continue
            num_links += 1
            if link.target is None or link.target.startswith("/"):
                return "link out of the source"
            if num_links > _LINKS_MAX:
                return "link to itself"
            followed = followed[:-1] if isinstance(link, Symlink) else []
            left += link.target.split("/")[::-1]
        target = "/".join(followed)
        place = self._members.get(target)
        if place is None:
            return "link to a folder" if target in self._folders else "link to nothing"
        assert not isinstance(place, Symlink | HardLink)
        return place

    def _is_junk(self, path: str, *, folder: bool = False) -> bool:
        """Whether the path, or a folder above it, is junk; counts it once, as in a folder."""
        parts = path.split("/")
        for i, part in enumerate(parts):
            if reason := junk_reason(part):
                junk = "/".join(parts[: i + 1])
                if i == len(parts) - 1 and not folder:
                    self._listing.left_out[f"{reason} file"] += 1
                elif junk not in self._junk_folders:
                    self._junk_folders.add(junk)
                    self._listing.left_out[f"{reason} folder"] += 1
                return True
        return False


def join(below: str, name: str) -> str | None:
    """A member's name as a clean path below a folder; None if it is absolute or has `..`."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        return None
    return "/".join([below, *parts] if below else parts)


def _wrapping_folder(folders: list[str], places: dict[str, Place]) -> str:
    """`NAME/` if all lies below one top folder that holds only folders, and is no split."""
    tops = {path.partition("/")[0] for path in folders}
    if len(tops) != 1 or not places:
        return ""
    top = tops.pop() + "/"
    if top[:-1].lower() in SPLIT_NAMES:
        return ""
    return top if all(path.startswith(top) and "/" in path[len(top) :] for path in places) else ""
