"""Stray bytes in a JPEG's header: found wherever they are, and nothing is lost without them."""

from __future__ import annotations

from io import BytesIO

import pytest
from images import jpeg, photo, png
from PIL import Image

from packer.images.inspect import inspect
from readers.jpeg import JPEG_MAGIC, SEGMENT, stray_ranges, without


def segments(data):
    """Offsets of the header's segments, that of the scan the last one."""
    at, offsets = 2, []
    while not offsets or data[offsets[-1] + 1] != 0xDA:
        offsets.append(at)
        at += 2 + SEGMENT.unpack_from(data, at)[2]
    return offsets


def with_profile():
    file = BytesIO()
    Image.fromarray(photo(2)).save(file, "JPEG", icc_profile=bytes(100_000))
    return file.getvalue()


@pytest.mark.parametrize(
    "whole", [jpeg(photo(0)), jpeg(photo(1), 6), jpeg(photo(3), progressive=True), with_profile()]
)
@pytest.mark.parametrize("junk", [b"\0", b"abc", bytes(9), b"\xff\0", b"\xff\xd8", b"\xff\1", b""])
def test_stray_bytes_are_found_before_every_segment(whole, junk):
    assert stray_ranges(whole) == []
    for at in segments(whole):
        data = whole[:at] + junk + whole[at:]
        if not data.startswith(JPEG_MAGIC):
            continue
        ranges = stray_ranges(memoryview(data))
        assert without(data, ranges) == whole
        assert bool(ranges) == bool(junk)
        assert tuple(ranges) == inspect(data).stray


def test_padding_before_a_marker_is_not_stray():
    whole = jpeg(photo(0))
    at = segments(whole)[-1]
    assert stray_ranges(whole[:at] + b"\xff\xff\xff" + whole[at:]) == []


def test_cut_files_and_others_have_none():
    whole = jpeg(photo(0))
    header_bytes = segments(whole)[-1]
    for stop in range(header_bytes + 4):
        assert stray_ranges(whole[:stop]) == []
    assert stray_ranges(whole[:2] + b"\xffabcdef") == []  # a segment longer than the file
    assert stray_ranges(whole[:20] + bytes(8)) == []  # no marker behind them
    assert stray_ranges(png(photo(0))) == [] == stray_ranges(b"")
