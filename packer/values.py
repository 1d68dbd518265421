"""What is stored of the further fields of a sample. Pure functions of a value's bytes, where the
image's pixels went, and the options; a field's kind decides which one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np

from readers.boxes import decode_boxes
from readers.decode import UndecodableError
from readers.masks import Mask, decode_mask, nearest

from .boxes import Annotated, fit
from .images.geometry import Geometry
from .images.inspect import Image, Reject, check_pixels, inspect
from .images.pixels import PixelOptions


class Found(NamedTuple):
    """A value as its source has it, and what is to be known to store it: `name` of the field,
    `where` it is and of which `image`, for messages; `geometry` of the image, and the EXIF
    `orientation` of its file; `decode` to look at all pixels, and the options for pixels."""

    data: bytes
    name: str
    where: str
    image: str
    geometry: Geometry
    orientation: int
    decode: bool
    options: PixelOptions

    @property
    def max_pixels(self) -> int:
        """How large a mask may be: what was packed once may be copied whatever its size."""
        is_copy = self.options.copied is not None
        return math.prod(self.geometry.source) if is_copy else self.options.max_pixels


class Value(NamedTuple):
    """What is stored of a field; `change` says what was done, if anything; `is_odd`: readers must
    decode it by the rule."""

    data: bytes
    warnings: tuple[str, ...] = ()
    change: str | None = None
    is_odd: bool = False


def store(kind: str, found: Found) -> Value:
    """What is stored of a value of a field of this kind. Raises Reject."""
    return _STORE.get(kind, _store_bytes)(found)


def _store_bytes(found: Found) -> Value:
    return Value(found.data)


def _store_text(found: Found) -> Value:
    try:
        found.data.decode()
    except UnicodeDecodeError as error:
        raise Reject(f"{found.name}: not UTF-8", f"{found.where}: {error.reason}") from None
    return Value(found.data)


def _store_boxes(found: Found) -> Value:
    """Boxes that are in the form of a pack already."""
    try:
        rows = decode_boxes(found.data).astype(np.float64)
    except ValueError as error:
        raise Reject(f"{found.name}: not rows of boxes", f"{found.where}: {error}") from None
    fitted, warnings = fit(Annotated(rows), 1, found.geometry)
    return Value(fitted.tobytes(), warnings)


# Masks

_PNG_GREY, _PNG_RGB = 0, 2
_DEPTH_AT, _COLOUR_TYPE_AT = 24, 25  # in a PNG
_LOSSY = ("JPEG", "AVIF")  # and WebP without a VP8L chunk


def _store_mask(found: Found) -> Value:
    try:
        image = inspect(found.data, found.max_pixels)
        if image.num_frames > 1:
            raise Reject("several pages or frames", str(image.num_frames))
        return _store_inspected_mask(found, image)
    except Reject as reject:
        detail = f"{found.where}: {reject.detail}" if reject.detail else found.where
        raise Reject(f"{found.name}: {reject.reason}", detail) from None


def _store_inspected_mask(found: Found, image: Image) -> Value:
    name, geometry = found.name, found.geometry
    plain, data = _is_plain_mask(found.data, image), found.data
    if image.kind == "JPEG":
        data = check_pixels(data, image)
    mask = None
    size = image.width, image.height
    if found.decode or not plain or not geometry.is_identity:
        mask = _decoded(data, found.max_pixels, odd=not plain)
        size = mask.shape[1], mask.shape[0]
    if size != geometry.source:
        raise Reject(
            "of another size than the image",
            f"{size[0]} x {size[1]}, and {found.image} {geometry.source[0]} x {geometry.source[1]}",
        )
    warnings = [f"{name}: {warning}" for warning in image.warnings]
    if image.kind in _LOSSY or (image.kind == "WebP" and b"VP8L" not in found.data):
        warnings.append(f"{name}: {image.kind}, whose compression may change numbers")
    resized = not geometry.is_identity
    kept = found.options.keep_bytes or found.options.copied is not None
    if not resized and (plain or image.kind == "JPEG" or kept):
        return Value(data, tuple(warnings), is_odd=not plain)
    assert mask is not None
    change = f"{name}: {image.odd or image.kind} to {_png_name(mask)}" + ", resized" * resized
    return Value(_encode_mask(_fit(mask, geometry)), tuple(warnings), change)


def _is_plain_mask(data: bytes, image: Image) -> bool:
    """Whether any decoder that leaves pixels alone gives the numbers of a file."""
    return (
        image.kind == "PNG"
        and image.orientation == 1
        and data[_DEPTH_AT] in (8, 16)
        and data[_COLOUR_TYPE_AT] in (_PNG_GREY, _PNG_RGB)
        and b"tRNS" not in data[: data.find(b"IDAT")]  # decoders may make alpha of it
    )


def _decoded(data: bytes, max_pixels: int, *, odd: bool) -> Mask:
    if odd:
        from readers.odd import allow_pixels  # costs an import of Pillow

        allow_pixels(max_pixels)
    try:
        return decode_mask(data, odd=odd)
    except UndecodableError as error:
        raise Reject("damaged, or no mask", str(error)) from None


def _fit(mask: Mask, geometry: Geometry) -> Mask:
    """Resized as the image, with 0 in its border."""
    width, height = geometry.source
    inner = nearest(mask, (0, 0, width, height), geometry.inner)
    if geometry.inner == geometry.size:
        return inner
    canvas = np.zeros((*geometry.size[::-1], *mask.shape[2:]), mask.dtype)
    canvas[geometry.region] = inner
    return canvas


def _encode_mask(mask: Mask) -> bytes:
    stored = mask if mask.ndim == 2 else mask[..., ::-1]
    done, data = cv2.imencode(".png", np.ascontiguousarray(stored))
    assert done  # PNG holds every size that a PNG, TIFF or BMP has
    return data.tobytes()


def _png_name(mask: Mask) -> str:
    return f"{'grey' if mask.ndim == 2 else 'RGB'} PNG of {8 * mask.itemsize} bits"


_STORE: dict[str, Callable[[Found], Value]] = {
    "boxes": _store_boxes,
    "mask": _store_mask,
    "text": _store_text,
}
