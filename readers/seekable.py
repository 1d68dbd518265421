"""Seekable JPEG: decode a region of a JPEG by handing a stock decoder only the bytes it needs.

A sequential JPEG with restart markers falls into segments that decode on their own. Where every
row of MCUs (minimum coded units, 8x8 to 32x32 pixels) holds a whole number of segments, they form
a grid. The header with a smaller size, the segments that cover a region, and their markers
numbered anew are a valid JPEG, and its pixels are exactly those of the whole image.

Source of the format: ITU-T T.81 | ISO/IEC 10918-1, annex B (syntax) and A.2 (MCUs).
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

_SOF0, _SOF1 = 0xC0, 0xC1  # baseline and extended sequential; at 8 bits decoders treat them alike
_DHT, _RST0, _SOI, _EOI, _SOS, _DRI = 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xDD
_PLAIN_SEGMENTS = frozenset({_DHT, 0xDB, 0xFE, *range(0xE0, 0xF0)})  # tables, comments, APPn
_RST_CODES = np.arange(_RST0, _RST0 + 8, dtype=np.uint8)


class Frame(NamedTuple):
    """What the frame header says: sizes in pixels, `width` and `height` of the image as stored
    (not upright), `mcu_width` and `mcu_height` of a minimum coded unit."""

    width: int
    height: int
    mcu_width: int
    mcu_height: int


def restart_interval(width: int, mcu_width: int, target_px: int = 64) -> int:
    """The restart interval, in MCUs, with which to write a JPEG that shall be seekable.

    It is the divisor of the MCUs of a row whose segments come nearest to `target_px` pixels, but
    not below a quarter of that: a segment costs about 3 bytes and an offset in the index, and
    what lies beside a region in its first and last segments is decoded for nothing.
    `width` and `mcu_width` (8 or 16 with the usual subsamplings) are in pixels.
    """
    num_mcus = -(-width // mcu_width)
    divisors = [d for d in range(1, num_mcus + 1) if num_mcus % d == 0]
    long_enough = [d for d in divisors if 4 * d * mcu_width >= target_px] or [num_mcus]
    return min(long_enough, key=lambda d: abs(d * mcu_width - target_px))


def segment_offsets(data: bytes | memoryview) -> npt.NDArray[np.int64] | None:
    """Where the parts of a seekable JPEG lie, or None where `data` is not one. Never raises.

    Returns int64 byte offsets: of the frame header's marker, of the first byte of each restart
    segment, in order, and of the first byte behind the end-of-image marker. A segment reaches to
    the next offset and so includes the marker that ends it. `crop` needs nothing more.

    A JPEG is seekable when it is sequential, Huffman coded, 8-bit, grey or of three components in
    one scan, with a restart interval that divides the MCUs of a row, and with every restart
    marker in its place. Bytes behind the end of the image do not matter.
    """
    try:
        header = _read_header(data)
    except (IndexError, struct.error):  # cut within the header
        return None
    if header is None:
        return None
    frame_offset, scan_offset, interval = header
    frame = read_frame(data, frame_offset)
    mcus_per_row = -(-frame.width // frame.mcu_width)
    if interval == 0 or mcus_per_row % interval:
        return None
    num_segments = mcus_per_row // interval * -(-frame.height // frame.mcu_height)

    # Within a scan, 0xFF is followed by 0 when it is data, and by a marker's code when it is not.
    scan = np.frombuffer(data, np.uint8)[scan_offset:]
    escapes = np.flatnonzero(scan[:-1] == 0xFF)
    markers = escapes[scan[escapes + 1] != 0][:num_segments]
    codes = scan[markers + 1]
    if len(codes) < num_segments or codes[-1] != _EOI:
        return None
    if (codes[:-1] != np.resize(_RST_CODES, num_segments - 1)).any():
        return None
    return np.concatenate([[frame_offset, scan_offset], scan_offset + markers + 2], dtype=np.int64)


def frame_of(data: bytes | memoryview) -> Frame | None:
    """The frame of a JPEG that only has to get restart markers to be seekable; else None."""
    try:
        header = _read_header(data)
    except (IndexError, struct.error):  # cut within the header
        return None
    return None if header is None else read_frame(data, header[0])


def read_frame(data: bytes | memoryview, frame_offset: int) -> Frame:
    """The frame header at `frame_offset`, the first of a seekable JPEG's offsets."""
    height, width, num_components = struct.unpack_from(">HHB", data, frame_offset + 5)
    if num_components == 1:  # a scan of one component has MCUs of one block (T.81, A.2.2)
        return Frame(width, height, 8, 8)
    factors = data[frame_offset + 11 : frame_offset + 10 + 3 * num_components : 3]
    return Frame(width, height, 8 * (max(factors) >> 4), 8 * max([f & 15 for f in factors]))


def crop(
    data: bytes | memoryview,
    offsets: npt.NDArray[np.integer[Any]],
    left: int,
    top: int,
    width: int,
    height: int,
) -> tuple[bytearray, int, int]:
    """The smallest JPEG that shows a region of a seekable one exactly.

    `offsets` are those that segment_offsets gave for `data`, of any integer dtype. The region is
    in pixels of the image as stored. Returns (jpeg, x, y): pixels[y : y + height, x : x + width]
    of the decoded `jpeg` equal the region of the decoded `data`, bit by bit, in decoders that
    upsample as libjpeg does. Its header is that of `data`, EXIF included, but for the size.
    Raises ValueError for a region that is empty or not inside the image.
    """
    places: npt.NDArray[np.int64] = offsets.astype(np.int64, copy=False)
    frame_offset, header_bytes = places[:2].tolist()
    frame = read_frame(data, frame_offset)
    if not (0 <= left < left + width <= frame.width and 0 <= top < top + height <= frame.height):
        raise ValueError(
            f"the region {(left, top, width, height)} is not inside {frame.width}x{frame.height}"
        )
    num_rows = -(-frame.height // frame.mcu_height)
    num_columns = (len(places) - 2) // num_rows
    segment_width = -(-frame.width // frame.mcu_width) // num_columns * frame.mcu_width

    # Smooth ("fancy") upsampling of chroma makes a pixel depend on its neighbours: one pixel more
    # on each side. libjpeg leaves it out below five pixels of width: never cut that narrow.
    first_column = max(min(left - 1, frame.width - 5), 0) // segment_width
    last_column = min((left + width) // segment_width, num_columns - 1)
    first_row = max(top - 1, 0) // frame.mcu_height
    last_row = min((top + height) // frame.mcu_height, num_rows - 1)
    x, y = first_column * segment_width, first_row * frame.mcu_height
    new_width = min((last_column + 1) * segment_width, frame.width) - x
    new_height = min((last_row + 1) * frame.mcu_height, frame.height) - y

    covered = slice(first_row, last_row + 1), slice(first_column, last_column + 1)
    starts = places[1:-1].reshape(num_rows, num_columns)[covered]
    ends = places[2:].reshape(num_rows, num_columns)[covered]
    jpeg = _join(memoryview(data), header_bytes, starts, ends)
    struct.pack_into(">HH", jpeg, frame_offset + 5, new_height, new_width)
    return jpeg, left - x, top - y


def _join(
    data: memoryview,
    header_bytes: int,
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
) -> bytearray:
    """The header and some segments, their markers numbered anew. starts, ends: (num_rows,
    num_columns); the segments of a row lie together in `data`."""
    rows = zip(starts[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    jpeg = bytearray().join([data[:header_bytes], *[data[a:b] for a, b in rows]])
    # A marker's code is its last byte, and so its segment's; put() repeats the eight codes.
    codes = np.frombuffer(jpeg, np.uint8, offset=header_bytes - 1)
    codes.put((ends - starts).cumsum(), _RST_CODES)
    jpeg[-1] = _EOI
    return jpeg


def _read_header(data: bytes | memoryview) -> tuple[int, int, int] | None:
    """(offset of the frame header's marker, offset of the scan's data, restart interval), or None
    where the header is not a seekable JPEG's. May raise IndexError or struct.error on cut data."""
    if data[:2] != bytes([0xFF, _SOI]):
        return None
    offset, interval, frame_offset, num_components = 2, 0, 0, 0
    while True:
        prefix, marker, length = struct.unpack_from(">BBH", data, offset)
        if prefix != 0xFF or length < 2:
            return None
        if marker == _SOS:
            scan_components = data[offset + 4]
            spectrum = bytes(data[offset + 5 + 2 * scan_components : offset + 2 + length])
            whole = num_components == scan_components and spectrum == bytes([0, 63, 0])
            return (frame_offset, offset + 2 + length, interval) if whole and frame_offset else None
        if marker == _DRI:
            (interval,) = struct.unpack_from(">H", data, offset + 4)
        elif marker in (_SOF0, _SOF1):
            if frame_offset or not _is_cuttable(bytes(data[offset + 4 : offset + 2 + length])):
                return None
            frame_offset, num_components = offset, data[offset + 9]
        elif marker not in _PLAIN_SEGMENTS:
            return None
        offset += 2 + length


def _is_cuttable(frame: bytes) -> bool:
    """Whether a frame header, less its marker and length, is 8-bit, not empty, and of 1 or 3
    components with legal sampling factors (T.81, B.2.2)."""
    precision, height, width, num_components = struct.unpack_from(">BHHB", frame)
    return (
        precision == 8
        and height > 0  # 0 announces that a DNL marker will say it
        and width > 0
        and num_components in (1, 3)
        and len(frame) == 6 + 3 * num_components
        and all(1 <= f >> 4 <= 4 and 1 <= f & 15 <= 4 for f in frame[7::3])
    )
