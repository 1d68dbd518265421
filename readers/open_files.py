"""How many files this process may have open: a pack keeps every shard open that it has read from,
and shells allow a thousand files unless a process asks for more."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .errors import DspackError, TooManyOpenFiles

T = TypeVar("T")

_SPARE_FILES = 256  # for all else that the process may want to open
_PROBES = 8  # a shard needs fewer at once


def allow_open_files(number: int) -> None:
    """Let this process open so many files more, as far as the system allows it."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    _raise_limit(soft + number)


def _raise_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def opened(open_it: Callable[[], T], path: Path) -> T:
    """What `open_it` opens for the pack `path`; with more files allowed where that is its trouble.

    Raises TooManyOpenFiles where the system allows no more, and what `open_it` raises otherwise.
    """
    for is_last in (False, True):
        try:
            return open_it()
        except DspackError as error:
            if not (isinstance(error, TooManyOpenFiles) or _are_exhausted()):
                raise
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not is_last:
            _raise_limit(soft + _SPARE_FILES)
    raise TooManyOpenFiles(
        f"no more files can be opened: this process may have {soft}",
        path=path,
        advice="allow more (see `ulimit -Hn` and limits.conf), or pack into fewer shards, with "
        "a larger --shard-size",
    )


def _are_exhausted() -> bool:
    """Whether this process, or the system, can hardly open another file."""
    descriptors: list[int] = []
    try:
        for _ in range(_PROBES):
            descriptors.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return False
