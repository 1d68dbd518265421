"""A JPEG's header: stray bytes between its segments, which libjpeg skips and DALI refuses.

Source of the format: ITU-T T.81 | ISO/IEC 10918-1, annex B.1.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

JPEG_MAGIC = b"\xff\xd8\xff"
SEGMENT = Struct(">BBH")  # 0xFF, the marker's code, the segment's length from here on
_SOI, _SOS, _FILL = 0xD8, 0xDA, 0xFF
# Not the codes of a segment: stuffing, TEM, RST0-7, SOI.
NO_SEGMENT = frozenset({0x00, 0x01, *range(0xD0, _SOI + 1)})

Range = tuple[int, int]


def stray_ranges(data: bytes | memoryview) -> list[Range]:
    """Where a JPEG's header, up to its first scan, has bytes that belong to no segment: (start,
    stop) offsets. Never raises: a header that is cut is looked at as far as it goes, and nothing
    but a JPEG has any."""
    ranges: list[Range] = []
    if data[:3] != JPEG_MAGIC:
        return ranges
    at, last = 2, len(data) - SEGMENT.size
    while at <= last:
        prefix, code, length = SEGMENT.unpack_from(data, at)
        if prefix != 0xFF or code in NO_SEGMENT:
            stop = bytes(data).find(b"\xff", at + 1)
            if stop < 0:
                break
            ranges.append((at, stop))
            at = stop
        elif code == _SOS:
            break
        elif code == _FILL:  # any number of them may come before a marker's code
            at += 1
        else:
            at += 2 + length
    return ranges


def without(data: bytes | memoryview, ranges: Sequence[Range]) -> bytes:
    """`data` without these parts of it."""
    starts = [0, *(stop for _, stop in ranges)]
    stops = [*(start for start, _ in ranges), len(data)]
    return b"".join(data[start:stop] for start, stop in zip(starts, stops, strict=True))
