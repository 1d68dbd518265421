"""Another pack's images: copied as they are, unless the options ask for other pixels."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from readers.decode import UndecodableError, decode
from readers.errors import SourceError
from readers.manifest import Field

from .images.inspect import Image, Reject, check_pixels, inspect
from .images.pixels import PixelOptions
from .images.transform import Stored
from .sources import pack


def settle_for_pack(field: Field, root: Path, pixels: PixelOptions) -> PixelOptions:
    """The options for the images of a pack that stores them as `field` says.

    Without any option they are copied. With some, they are images like any others; only that
    pixels stay pixels, 16 bits stay 16 bits, and odd images become what the pack's readers show
    (by its background, frame, depth and icc), where the options do not say otherwise. Raises
    SourceError for options that go with no such images.
    """
    if pixels == PixelOptions():
        return replace(pixels, copied=field)
    taken_over: dict[str, Any] = {}
    if field.odd is not None:
        from readers.odd import stated_rule  # costs an import of OpenCV and Pillow

        rule = stated_rule(field.odd)._asdict()
        taken_over = {
            name: value
            for name, value in rule.items()
            if getattr(pixels, name) == getattr(PixelOptions, name)
        }
    if field.kind == "array":
        _check_rgb(field, root)
        if pixels.encode is None:
            taken_over["encode"] = "png" if pixels.resize else "raw"
    if pixels.depth is None and field.dtype is not None and np.dtype(field.dtype) == np.uint16:
        taken_over["depth"] = "keep"
    try:
        return replace(pixels, **taken_over)
    except ValueError as error:
        stated = ", ".join(f"--{name} {value}" for name, value in taken_over.items())
        raise SourceError(f"the pack's images are as by {stated}, and {error}", path=root) from None


def _check_rgb(field: Field, root: Path) -> None:
    shape = field.shape or ()
    if np.dtype(field.dtype) not in (np.uint8, np.uint16) or len(shape) != 3 or shape[2] != 3:
        raise SourceError(
            f"its images are arrays {shape} of {field.dtype}, which can only be copied as they are",
            path=root,
            advice="leave --resize, --encode and other options about pixels out",
        )


def copy(source: pack.Source, path: str, *, decode_image: bool) -> Stored:
    """A stored value as it is, with all that the index says of it. Raises Reject for damage."""
    value = source.copy(path)
    image = Image("copy", value.width, value.height, value.orientation)
    field = source.field
    if field.kind == "array":
        num_bytes = np.dtype(field.dtype).itemsize * math.prod(field.shape or ())
        if len(value.data) != num_bytes:
            raise Reject("damaged image data", f"{len(value.data)} bytes, not {num_bytes}")
    elif value.rule is not None and decode_image:
        try:
            decode(value.data, 1, value.rule)
        except UndecodableError as error:
            raise Reject("damaged image data", str(error)) from None
    elif value.rule is None and field.kind == "encoded":
        found = inspect(value.data, max_pixels=value.width * value.height)
        if decode_image:
            check_pixels(value.data, found)
        image.warnings, image.profile = found.warnings, found.profile
    return Stored(value.data, image, segments=value.segments, is_odd=value.rule is not None)
