"""ICC profiles: which of them are anything but sRGB."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO

import numpy as np

_MODES = {b"RGB ": "RGB", b"GRAY": "L"}  # colour spaces of ICC.1, 7.2.6; others are not sRGB
_LEVELS_MAX = 3  # the published sRGB profiles differ from each other by rounding


@lru_cache(maxsize=64)  # a camera or a program puts the same profile into all its files
def foreign_profile(profile: bytes) -> str | None:
    """The name of an ICC profile whose colours are not those of sRGB; None for sRGB.

    Raises ValueError when it is broken.
    """
    from PIL import Image, ImageCms

    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        name = ImageCms.getProfileDescription(source).strip() or "without a name"
        mode = _MODES.get(profile[16:20])
        if mode is None:
            return name
        steps = np.arange(0, 256, 51, dtype=np.uint8)
        cube = np.stack(np.meshgrid(steps, steps, steps), axis=-1).reshape(1, -1, 3)
        shown = Image.fromarray(cube if mode == "RGB" else cube[..., 0])
        target = ImageCms.createProfile("sRGB")
        intent = ImageCms.Intent.RELATIVE_COLORIMETRIC
        converted = ImageCms.profileToProfile(shown, source, target, intent, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError) as error:
        raise ValueError(f"not an ICC profile: {error}") from None
    difference = np.asarray(converted, np.int16) - np.asarray(shown.convert("RGB"), np.int16)
    return name if np.abs(difference).max() > _LEVELS_MAX else None
