"""Every error dspack raises, and the exit code the command line gives for it.

Exit codes: 0 fine · 1 damage found · 2 wrong use · 3 packed, but with rejects · 4 rejects, and
nothing published · 5 the source cannot be packed · 6 the destination cannot be written · 7 not a
pack that can be read here and by this version, or no memory or threads for it · 130 interrupted ·
141 whoever read the output left (130 and 141 are what a shell reports for SIGINT and SIGPIPE).
"""

from __future__ import annotations

import errno
import os
import re


class DspackError(Exception):
    """What went wrong, where, and what to do next, in one sentence.

    `path` is the file or folder concerned, `index` and `key` name the sample, `advice` is the
    next step. All of them survive pickling; torch's DataLoader keeps only the sentence. The class
    itself is wrong use: a split, a field or an option that this pack does not have.
    """

    exit_code = 2

    def __init__(
        self,
        reason: str,
        *,
        path: str | os.PathLike[str] | None = None,
        index: int | None = None,
        key: str | None = None,
        advice: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = None if path is None else os.fspath(path)
        self.index = index
        self.key = key
        self.advice = advice

    def __str__(self) -> str:
        where = [] if self.path is None else [printable(self.path)]
        if self.index is not None:
            where.append(f"sample {self.index}")
        if self.key is not None:
            where.append(f"key {printable(self.key)!r}")
        sentence = f"{', '.join(where)}: {self.reason}" if where else self.reason
        return f"{sentence}; {self.advice}" if self.advice else sentence

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.reason, self.__dict__.copy())


def _rebuild(cls: type[DspackError], reason: str, fields: dict[str, object]) -> DspackError:
    error = cls.__new__(cls, reason)
    error.__dict__.update(fields)
    return error


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(name: str) -> str:
    """`name` with control characters, and bytes that are not UTF-8, shown as `\\xNN`, and with half
    characters, which JSON can spell, as `\\uNNNN`."""
    return _UNPRINTABLE.sub(_shown, name)


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte, as os.fsdecode gives it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class DamagedPack(DspackError):
    """A part of a pack is missing, cut, changed or contradicts another part."""

    exit_code = 1


class DamagedSample(DamagedPack):
    """One sample's stored bytes are not the ones that were packed, or cannot be decoded."""


class RejectsError(DspackError):
    """Rejects were not allowed, or nothing but rejects was left; nothing was published."""

    exit_code = 4


class SourceError(DspackError):
    """The source is missing, ambiguous, changed under the run, or cannot be read."""

    exit_code = 5


class DestinationError(DspackError):
    """The destination exists, is full, is refused, or belongs to another run."""

    exit_code = 6


class NotAPack(DspackError):
    """The path is not a pack, or one that this version cannot read."""

    exit_code = 7


class TooManyOpenFiles(DspackError):
    """The system lets this process open no more files; a pack needs one or more a shard."""

    exit_code = 7


class OutOfMemory(DspackError, MemoryError):
    """The system lets this process have, or map, no more memory."""

    exit_code = 7


def cannot_open(reason: str, path: str | os.PathLike[str]) -> DspackError:
    """The error for a file of a pack that a library cannot open, for this reason."""
    # Whatever the library, these are the system's words.
    if os.strerror(errno.ENOMEM) in reason:
        advice = "this process may map no more memory, see `ulimit -v`"
        return OutOfMemory(reason, path=path, advice=advice)
    if os.strerror(errno.EMFILE) in reason or os.strerror(errno.ENFILE) in reason:
        return TooManyOpenFiles(reason, path=path, advice="allow more, see `ulimit -Hn`")
    return DamagedPack(reason, path=path)


class NoPermission(DspackError):
    """A file of the pack belongs to another user, who does not let this one read it."""

    exit_code = 7

    def __init__(self, path: str | os.PathLike[str]) -> None:
        advice = "ask its owner, or `chmod a+r` it"
        super().__init__("may not be read by this user", path=path, advice=advice)


class MissingDependency(DspackError, ImportError):
    """A library that this part needs is not installed; the message names what to install."""

    exit_code = 7
