"""What is stored of a file: its own bytes, or new ones where it is odd or a re-encode is asked for.

Pure functions of a file's bytes, what inspect() found in them, and the options.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

from readers import seekable
from readers.decode import Pixels, UndecodableError, as_dtype, decode, upright

from .geometry import Geometry, geometry_of
from .inspect import JPEG_END, MORE_PICTURES, Image, Reject, check_pixels
from .pixels import WHITE, PixelOptions
from .resampling import resize
from .restart import with_restart_markers

_NAMES = {"jpeg": "JPEG", "png": "RGB PNG", "webp": "WebP", "raw": "raw pixels"}
_DEEP_NAMES = {"png": "16-bit RGB PNG", "raw": "raw 16-bit pixels"}
# The fastest level; with run lengths it is faster still, and smaller for photographs.
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, 1, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_RLE]


class Stored(NamedTuple):
    """What is stored for a file. `image` describes it; `change` says what was done, if anything;
    `segments` are a seekable JPEG's offsets; `is_odd`: readers must decode it by the rule;
    `geometry`: where the pixels went, if not to where they were."""

    data: bytes
    image: Image
    change: str | None = None
    segments: npt.NDArray[np.int64] | None = None
    is_odd: bool = False
    geometry: Geometry | None = None


def is_plain(image: Image, options: PixelOptions) -> bool:
    """Whether a file is stored as it is, with nothing to do but to check its pixels."""
    return not (
        _is_odd(image, options)
        or options.encode
        or options.seekable
        or (options.icc and image.profile)
        or (options.resize and not geometry_of(image.width, image.height, options).is_identity)
    )


def transform(data: bytes, image: Image, options: PixelOptions) -> Stored:
    """What is stored of a file that is not plain; all its pixels are checked. Raises Reject."""
    if _is_odd(image, options) or (options.icc and image.profile):
        return _transform_odd(data, image, options)
    geometry = geometry_of(image.width, image.height, options)
    if geometry.is_identity and options.encode is None:
        return _seekable(check_pixels(data, image), image)
    encoding = options.encode or ("jpeg" if image.kind == "JPEG" else "png")
    pixels = _plain_pixels(data, image, geometry.inner, options)
    found = image.odd or image.kind
    return _encoded(pixels, geometry, encoding, image.warnings, found, options)


# Odd images


def _is_odd(image: Image, options: PixelOptions) -> bool:
    return bool(image.odd) and not (options.depth == "keep" and image.plain_if_deep)


def _transform_odd(data: bytes, image: Image, options: PixelOptions) -> Stored:
    from readers.odd import allow_pixels, canonical  # costs an import of Pillow

    _settle(image, options)
    allow_pixels(options.max_pixels)
    if image.kind == "JPEG":
        data = check_pixels(data, image)  # it hears libjpeg's warnings, which Pillow does not tell
    warnings = list(image.warnings)
    try:
        pixels = upright(canonical(data, options.rule, warnings.append), image.orientation)
    except UndecodableError as error:
        raise Reject("damaged image data", str(error)) from None
    height, width, _ = pixels.shape
    if options.keep_bytes:
        kept = Image(image.kind, width, height, image.orientation, tuple(warnings))
        return Stored(data, kept, is_odd=True)
    geometry = geometry_of(width, height, options)
    resized = not geometry.is_identity
    encoding = options.encode or ("jpeg" if resized and image.kind == "JPEG" else "png")
    found = image.odd or image.kind
    if options.icc and image.profile:
        found += f" in {image.profile}"
    return _encoded(pixels, geometry, encoding, tuple(warnings), found, options)


def _settle(image: Image, options: PixelOptions) -> None:
    """Raise Reject where the options leave open what to do, and say which one is needed."""
    if image.bits > 16:
        raise Reject("unsupported pixels", f"{image.bits} bits a channel")
    if image.bits > 8 and options.depth is None:
        raise Reject("more than 8 bits a channel, needs --depth", f"{image.bits} bits")
    if image.num_frames == 1:
        return
    if options.frame is None and image.kind == "TIFF":
        raise Reject("several pages, needs --frame", f"{image.num_frames} pages")
    if options.frame is None:
        image.warnings += (f"{image.odd}, its first frame is packed",)
    elif options.frame >= image.num_frames:
        raise Reject("has no such frame", f"{image.num_frames} frames, counted from 0")


# Plain images


def _plain_pixels(
    data: bytes, image: Image, size: tuple[int, int], options: PixelOptions
) -> Pixels:
    """Upright pixels to be resized to `size`: of a JPEG no more than are needed for that."""
    if image.kind == "JPEG" and not image.missing_end and not image.stray:
        # Twice the pixels in each direction leave the antialiasing filter all that it can show.
        ratio = min(image.width / size[0], image.height / size[1]) / 2
        shrink = next((s for s in (8, 4, 2) if ratio >= s), 1)
        width, height = image.width, image.height
        if image.orientation >= 5:
            width, height = height, width
        least = {"min_width": -(-width // shrink), "min_height": -(-height // shrink)}
        try:
            pixels: Pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True, **least)
            return upright(pixels, image.orientation)
        except ValueError:
            pass  # libjpeg has something to say: look closer
    data = check_pixels(data, image)
    return decode(data, image.orientation, dtype=np.uint8 if image.bits == 8 else options.dtype)


def _seekable(data: bytes, image: Image) -> Stored:
    """A JPEG with restart markers, the same pixels; others, and odd ones, stay as they are."""
    has_more = not data.endswith(JPEG_END) or MORE_PICTURES in image.warnings  # which would be lost
    if image.kind != "JPEG" or image.stray or has_more:
        return Stored(data, image)
    segments = seekable.segment_offsets(data)
    if segments is not None:
        return Stored(data, image, segments=segments)
    marked = with_restart_markers(data)
    if marked is None:
        return Stored(data, image, "JPEG that cannot have restart markers, stored whole")
    return Stored(
        marked, image, "JPEG with restart markers added", seekable.segment_offsets(marked)
    )


# New sizes


def _fit(pixels: Pixels, geometry: Geometry, background: tuple[int, int, int]) -> Pixels:
    """Resized, with a border of the background if the geometry has one."""
    pixels = resize(pixels, *geometry.inner)
    if geometry.size == geometry.inner:
        return pixels
    canvas = np.empty((*geometry.size[::-1], 3), pixels.dtype)
    canvas[:] = as_dtype(np.array(background, np.uint8), pixels.dtype)
    canvas[geometry.region] = pixels
    return canvas


# New bytes


def _encoded(
    pixels: Pixels,
    geometry: Geometry,
    encoding: str,
    warnings: tuple[str, ...],
    found: str,
    options: PixelOptions,
) -> Stored:
    """Upright pixels of what was `found` as what is stored. Raises Reject."""
    pixels = _fit(pixels, geometry, options.background or WHITE)
    width, height = geometry.size
    if encoding == "raw":
        pixels = as_dtype(pixels, options.dtype)
    name = (_NAMES if pixels.dtype == np.uint8 else _DEEP_NAMES)[encoding]
    image = Image(name, width, height, warnings=warnings)
    change = f"{found} to {name}" + ", resized" * (not geometry.is_identity)
    if encoding == "raw":
        if options.raw_size not in (None, (width, height)):
            raise Reject("not of the size of the others", f"{width} x {height}")
        data = pixels.astype(options.dtype, copy=False).tobytes()
        return Stored(data, image, change, geometry=geometry)
    if encoding == "jpeg":
        data = _encode_jpeg(pixels, options.quality)
        return Stored(data, image, change, seekable.segment_offsets(data), geometry=geometry)
    parameters = _PNG if encoding == "png" else [cv2.IMWRITE_WEBP_QUALITY, options.quality]
    data = _imencode(f".{encoding}", pixels, parameters)
    return Stored(data, image, change, geometry=geometry)


def _encode_jpeg(pixels: Pixels, quality: int) -> bytes:
    """A baseline JPEG at 4:2:0 with restart markers."""
    interval = seekable.restart_interval(pixels.shape[1], mcu_width=16)
    parameters = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    return _imencode(".jpeg", pixels, parameters)


def _imencode(suffix: str, pixels: Pixels, parameters: list[int]) -> bytes:
    try:
        done, data = cv2.imencode(suffix, cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), parameters)
    except cv2.error as error:
        raise Reject("cannot be encoded", str(error)) from None
    if not done:  # a JPEG has at most 65,535 pixels a side, a WebP 16,383
        raise Reject("cannot be encoded", f"{pixels.shape[1]} x {pixels.shape[0]} as {suffix[1:]}")
    return data.tobytes()
