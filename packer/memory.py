"""The habits of the C library and of Python's garbage collector."""

from __future__ import annotations

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


def keep_freed_memory() -> None:
    """Let the process keep a few freed megabytes instead of giving them back at once.

    Packing takes and frees the same sizes over and over, LMDB above all. Given back to the kernel
    each time, they come back as page faults, ten times as many, and an LMDB pack took up to twice
    as long.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # not glibc
    mallopt(_M_TRIM_THRESHOLD, 256 << 20)
    mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest that glibc takes


def collect_less() -> None:
    """Let Python look for cyclic garbage less often: packing makes hardly any, and the search goes
    through the names of all files again and again, a tenth of the time that tiny files take."""
    gc.freeze()  # what was imported stays
    gc.set_threshold(100_000, 50, 50)
