"""Stored bytes to pixels: the one rule every reader follows.

The result is RGB, (height, width, 3), upright; uint8, or uint16 of 0 to 65535 in a pack that keeps
more than 8 bits, where images of 8 bits are widened: v becomes 257 v, and white stays white. The
orientation comes from the index, where packing put it, never from the decoder: decoders disagree
about broken EXIF and about PNG.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from . import seekable
from .errors import MissingDependency
from .jpeg import JPEG_MAGIC

try:
    import cv2
    import simplejpeg
except ImportError as _error:
    raise MissingDependency(
        f"a decoder cannot be imported ({_error})",
        advice="pip install opencv-python-headless simplejpeg (opencv-python needs libGL)",
    ) from _error

if TYPE_CHECKING:
    from .odd import Rule

Pixels = npt.NDArray[np.uint8 | np.uint16]


class UndecodableError(ValueError):
    """The bytes are not an image that can be decoded; the text says why."""


def decode(
    data: bytes | memoryview,
    orientation: int = 1,
    rule: Rule | None = None,
    dtype: npt.DTypeLike = np.uint8,
) -> Pixels:
    """Decode a stored image to upright RGB, (height, width, 3), `dtype`: uint8 or uint16.

    `orientation` is EXIF's, 1 to 8. `rule` is for odd images that are stored as they were. Raises
    UndecodableError.
    """
    pixels = None
    if rule is not None:
        pixels = _decode_odd(data, rule)
    elif data[:3] == JPEG_MAGIC:
        pixels = _decode_jpeg(data)
    if pixels is None:
        pixels = _decode_any(data, dtype)
    return as_dtype(upright(pixels, orientation), dtype)


def as_dtype(pixels: Pixels, dtype: npt.DTypeLike) -> Pixels:
    """Pixels of 8 bits as `dtype`, uint8 or uint16; those of 16 bits stay what they are."""
    if pixels.dtype == dtype or pixels.dtype == np.uint16:
        return pixels
    return np.multiply(pixels, 257, dtype=np.uint16)


def _decode_jpeg(data: bytes | bytearray | memoryview, shrink: int = 1) -> Pixels | None:
    """libjpeg-turbo's pixels, a tenth faster than through OpenCV, and the same ones."""
    try:
        least_width = least_height = 0
        if shrink > 1:
            stored_height, stored_width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
            least_width, least_height = -(-stored_width // shrink), -(-stored_height // shrink)
        # strict=False: packing has looked at libjpeg's warnings; stray bytes are no damage.
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, "RGB", strict=False, min_width=least_width, min_height=least_height
        )
    except ValueError:
        return None  # it refuses stray bytes between headers, strict or not; OpenCV skips them
    return pixels


def _decode_odd(data: bytes | memoryview, rule: Rule) -> Pixels:
    from .odd import canonical  # costs an import of Pillow

    return canonical(data, rule)


def _decode_any(data: bytes | bytearray | memoryview, dtype: npt.DTypeLike) -> Pixels:
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    if dtype != np.uint8:
        flags |= cv2.IMREAD_ANYDEPTH
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error as error:
        raise UndecodableError(str(error)) from None
    if pixels is None:
        raise UndecodableError("OpenCV cannot decode it")
    return cast(Pixels, pixels)


def decode_region(
    data: bytes | memoryview,
    orientation: int,
    image_size: tuple[int, int],
    box: tuple[int, int, int, int],
    *,
    segments: npt.NDArray[Any] | None = None,
    reduce_to: tuple[int, int] | None = None,
    rule: Rule | None = None,
    dtype: npt.DTypeLike = np.uint8,
) -> Pixels:
    """Decode the part `box` of an image: left, top, width and height in upright pixels.

    `image_size` is the upright (width, height) of the whole. With `segments` (the offsets of a
    seekable JPEG) only the restart segments that cover the box are decoded. With `reduce_to`, a
    (width, height), a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the box then still has
    that many pixels; the result is the smaller. Otherwise the pixels are those of `decode`, which
    also has `rule` and `dtype`.
    Raises UndecodableError.
    """
    left, top, width, height = _as_stored(box, image_size, orientation)
    pixels, shrink = None, 1
    if rule is not None:
        pixels = _decode_odd(data, rule)
    elif data[:3] == JPEG_MAGIC:
        if reduce_to is not None:
            shrink = _shrink(box[2], box[3], reduce_to)
        if segments is not None and len(segments) and box[2:] != image_size:
            try:
                part, left, top = seekable.crop(data, segments, left, top, width, height)
            except (ValueError, IndexError, ZeroDivisionError, struct.error) as error:
                raise UndecodableError(f"its segments are misplaced: {error}") from None
            data = memoryview(part)
        pixels = _decode_jpeg(data, shrink)
    if pixels is None:
        pixels, shrink = _decode_any(data, dtype), 1
    if shrink > 1:
        left, top = left // shrink, top // shrink
        width, height = -(-width // shrink), -(-height // shrink)
    region = pixels[top : top + height, left : left + width]
    if region.shape[:2] != (height, width):
        raise UndecodableError(f"the decoder gives {pixels.shape[1]}x{pixels.shape[0]} pixels")
    return as_dtype(upright(region, orientation), dtype)


def _shrink(width: int, height: int, least: tuple[int, int]) -> int:
    """The largest of 8, 4, 2, 1 by which a width and height may be divided."""
    ratio = min(width / least[0], height / least[1])
    return 8 if ratio >= 8 else 4 if ratio >= 4 else 2 if ratio >= 2 else 1


def _as_stored(
    box: tuple[int, int, int, int], image_size: tuple[int, int], orientation: int
) -> tuple[int, int, int, int]:
    """A box of the upright image as left, top, width, height in the image as it is stored."""
    if orientation == 1:
        return box
    left, top, width, height = box
    if orientation in _FLIPPED_COLUMNS:
        left = image_size[0] - left - width
    if orientation in _FLIPPED_ROWS:
        top = image_size[1] - top - height
    return (top, left, height, width) if orientation >= 5 else (left, top, width, height)


# Orientations that store the upright image's columns (the x axis), rows (y), in reverse.
FLIPPED_AXES = _FLIPPED_COLUMNS, _FLIPPED_ROWS = (2, 3, 6, 7), (3, 4, 7, 8)


def upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Turn an image as stored, (height, width) or with channels, into the upright one (EXIF 2.3,
    tag 0x0112)."""
    if orientation == 1:
        return pixels
    if orientation >= 5:  # rows and columns are exchanged
        pixels = pixels.swapaxes(0, 1)
    flip_rows, flip_columns = orientation in _FLIPPED_ROWS, orientation in _FLIPPED_COLUMNS
    return np.ascontiguousarray(pixels[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1])
