"""Masks: images whose pixels are numbers (classes, instances, depths), never colours to look at.

What packing stores is a PNG, grey or RGB, of 8 or 16 bits a channel, upright, whose plain values
are the numbers: any decoder that leaves pixels alone gives them. Files that are kept as they were,
which the column FIELD.odd marks, are read through Pillow by the rules of `_numbers`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt

from .decode import UndecodableError, upright

if TYPE_CHECKING:
    import PIL.Image

Mask = npt.NDArray[Any]  # uint8 or uint16, (height, width) or (height, width, 3)


def decode_mask(data: bytes | memoryview, *, odd: bool = False) -> Mask:
    """The numbers of a mask, upright: uint8 or uint16, (height, width), or (height, width, 3) of an
    RGB one. `odd`: it is a file of any kind. Raises UndecodableError."""
    if odd:
        return _decode_any_kind(data)
    try:
        values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise UndecodableError(str(error)) from None
    if values is None:
        raise UndecodableError("OpenCV cannot decode it")
    return values if values.ndim == 2 else np.ascontiguousarray(values[..., 2::-1])


def nearest(
    values: Mask,
    box: tuple[float, float, float, float],
    size: tuple[int, int],
    *,
    mirrored: bool = False,
) -> Mask:
    """The part `box` (left, top, width, height, not necessarily whole) of a mask at another size
    (width, height): every pixel gets the number under its centre, so no new number appears."""
    columns, rows = (
        np.clip(
            np.floor(box[axis] + (np.arange(size[axis]) + 0.5) * (box[axis + 2] / size[axis])),
            0,
            values.shape[1 - axis] - 1,
        ).astype(np.intp)
        for axis in (0, 1)
    )
    if mirrored:
        columns = columns[::-1]
    resized: Mask = values.take(rows, axis=0).take(columns, axis=1)
    return resized


def _decode_any_kind(data: bytes | memoryview) -> Mask:
    from .odd import largest_stored, num_frames, open_image, orientation_of  # imports Pillow

    try:
        with open_image(data) as image:
            if num_frames(image) > 1:
                raise UndecodableError(f"it has {num_frames(image)} pages or frames")
            maximum = largest_stored(image, data)  # a PNM tells before load() alone
            image.load()
            return np.array(upright(_numbers(image, data, maximum), orientation_of(image)))
    except (MemoryError, UndecodableError):
        raise
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise UndecodableError(str(error) or type(error).__name__) from None


def _numbers(image: PIL.Image.Image, data: bytes | memoryview, maximum: int) -> Mask:
    """Indices of palettes, levels of grey, 0 and 1 of two-level images, R, G, B as they are; alpha
    is left away, and nothing is composited. `maximum` is the largest number the file can hold."""
    mode = image.mode
    if image.format == "PNG" and maximum == 65535:  # Pillow drops low bits of all but plain grey
        values = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if values is None:
            raise UndecodableError("OpenCV cannot decode it")
        is_grey = mode in ("L", "LA", "I") or mode.startswith("I;16")
        return values if values.ndim == 2 else values[..., 0] if is_grey else values[..., 2::-1]
    scaled = image.format == "PPM" and mode != "1" and maximum not in (255, 65535)
    if scaled or (image.format == "AVIF" and maximum > 255):
        raise UndecodableError(f"numbers up to {maximum} cannot be read from a {image.format}")
    values = np.asarray(image)
    if mode == "1":
        return values.astype(np.uint8)
    if mode == "L" and maximum < 255:
        return values // (255 // maximum)
    if mode in ("L", "P"):
        return values
    if mode in ("LA", "PA"):
        return values[..., 0]
    if mode in ("RGB", "RGBA", "RGBX"):
        return values[..., :3]
    if mode.startswith("I;16") or (mode == "I" and 0 <= values.min() <= values.max() <= 65535):
        return values.astype(np.uint16)
    raise UndecodableError(f"its pixels ({mode}) are neither numbers up to 65535 nor RGB")
