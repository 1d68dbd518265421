"""A folder of image files."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from readers.errors import SourceError

from ..images.inspect import Reject
from ..retry import retry
from . import IMAGE_EXTENSIONS, NO_FILE, File, Listing, extension_reason, junk_reason

_LISTING_THREADS = 16  # hides the latency of a slow mount; folders are few


class Source:
    def __init__(self, root: Path) -> None:
        self.root = root
        self._real_root = os.path.realpath(root)
        self._folder_problems: dict[str, str | None] = {}

    def scan(self) -> Listing:
        """One scandir of every folder, several at a time, and no stat of a file."""
        listing = Listing()
        level = [""]
        with ThreadPoolExecutor(_LISTING_THREADS) as pool:
            while level:
                below = []
                for folder, entries in zip(level, pool.map(self._list_folder, level), strict=True):
                    below += self._sort_all_in(f"{folder}/" if folder else "", entries, listing)
                level = below
        listing.folders.sort()
        return listing

    def _list_folder(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as entries:
                return list(entries)
        except OSError as error:
            raise SourceError(
                f"the folder cannot be listed: {error.strerror}", path=self.root / folder
            ) from None

    def _sort_all_in(
        self, prefix: str, entries: Iterable[os.DirEntry[str]], listing: Listing
    ) -> list[str]:
        """Put a folder's entries where they belong; returns the folders to go down into."""
        files, below = [], []
        for entry in entries:
            name = entry.name
            _, dot, extension = name.rpartition(".")
            is_image = dot and extension.lower() in IMAGE_EXTENSIONS and name[0] != "."
            if is_image and entry.is_file(follow_symlinks=False):
                files.append(prefix + name)  # as most do: the other questions take time
            elif self._sort_in(prefix + name, entry, listing):
                below.append(prefix + name)
        listing.files += files
        return below

    def _sort_in(self, path: str, entry: os.DirEntry[str], listing: Listing) -> bool:
        """Put a directory entry where it belongs; True for a folder to go down into."""
        if reason := junk_reason(entry.name):
            folder = entry.is_dir(follow_symlinks=False)
            listing.left_out[f"{reason} {'folder' if folder else 'file'}"] += 1
        elif entry.is_dir(follow_symlinks=False):
            listing.folders.append(path)
            return True
        elif entry.is_symlink() and (problem := self.link_problem(path)):
            listing.rejected.append((path, problem))
        elif reason := extension_reason(entry.name):
            listing.left_out[reason] += 1
            listing.others.append(path)
        elif entry.is_file():
            listing.files.append(path)
        else:
            listing.left_out["not a regular file"] += 1
        return False

    def link_problem(self, path: str) -> str | None:
        """Why a link is not followed; None if it leads to a file in the source, or in the folder
        beside it that `path` itself names (`../masks`)."""
        target = os.path.realpath(f"{self._real_root}/{path}")
        if not any(_is_within(target, root) for root in self._roots_of(path)):
            return "link out of the source"
        if not os.path.exists(target):
            return "link to nothing"
        return "link to a folder" if os.path.isdir(target) else None

    def _roots_of(self, path: str) -> list[str]:
        """The folders that links in a path may lead into."""
        above = path[: path.rfind("../") + 3] if path.startswith("../") else ""
        if not above:
            return [self._real_root]
        named = above + path[len(above) :].partition("/")[0] if "/" in path[len(above) :] else above
        return [self._real_root, os.path.realpath(f"{self._real_root}/{named}")]

    def _folder_problem(self, folder: str) -> str | None:
        """Why files are not read from a folder that need not be listed."""
        if folder not in self._folder_problems:
            real = os.path.realpath(f"{self._real_root}/{folder}")
            inside = any(_is_within(real, root) for root in self._roots_of(f"{folder}/"))
            self._folder_problems[folder] = None if inside else "link out of the source"
        return self._folder_problems[folder]

    def read_beside(self, path: str) -> File:
        if problem := self._folder_problem(posixpath.dirname(path)):
            raise Reject(problem)
        try:
            return self._read_once(path, listed=False)
        except (FileNotFoundError, NotADirectoryError):
            raise Reject(NO_FILE) from None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # by a pattern: {stem}_mask.png
                raise Reject(NO_FILE, "the name is too long") from None
            if error.errno == errno.ELOOP and (problem := self._problem_beside(path)):
                raise Reject(problem) from None
            return self._read_again(path)

    def _problem_beside(self, path: str) -> str | None:
        """Why a link that need not be listed is not read."""
        if problem := self.link_problem(path):
            return problem
        return None if os.path.isfile(f"{self._real_root}/{path}") else "not a regular file"

    def read(self, path: str) -> File:
        try:
            return self._read_once(path)  # what follows costs more than reading a small file
        except OSError:
            return self._read_again(path)

    def _read_again(self, path: str) -> File:
        try:
            return retry(lambda: self._read_once(path), self.root / path)
        except FileNotFoundError:
            raise SourceError(
                "the file vanished after the folder was listed",
                path=self.root / path,
                advice="run again, with --overwrite if it is gone for good",
            ) from None
        except PermissionError:
            raise Reject("no permission to read it") from None

    def _read_once(self, path: str, *, listed: bool = True) -> File:
        # Without O_NONBLOCK, opening a pipe would wait for somebody to write to it.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if not listed:
            flags |= os.O_NOFOLLOW
        descriptor = os.open(f"{self._real_root}/{path}", flags)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                if not listed:
                    raise Reject("not a regular file")
                raise SourceError(
                    "the file cannot be read: it became something else after the folder was listed",
                    path=self.root / path,
                    advice="run again, with --overwrite if that is meant",
                )
            data = os.read(descriptor, status.st_size)
            if len(data) < status.st_size:
                os.set_blocking(descriptor, True)  # or 9p, WSL's Windows drives, reads by the piece
            while len(data) < status.st_size:  # Linux reads 2 GiB at most, and mounts may do less
                more = os.read(descriptor, status.st_size - len(data))
                if not more:
                    raise SourceError(
                        f"the file ended after {len(data)} of {status.st_size} bytes",
                        path=self.root / path,
                        advice="it was changed meanwhile, or the mount cuts it; run again",
                    )
                data += more
        finally:
            os.close(descriptor)
        return File(data, status.st_size, status.st_mtime_ns)

    def stamp(self, path: str) -> tuple[int, int]:
        try:
            status = os.stat(f"{self._real_root}/{path}")
        except OSError:
            return (-1, -1)  # unlike any packed file's: it is read again, and that tells the reason
        if not stat.S_ISREG(status.st_mode):
            return (-1, -1)
        return (status.st_size, status.st_mtime_ns)


def _is_within(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
