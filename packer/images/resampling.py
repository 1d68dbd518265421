"""New sizes: antialiased where an image shrinks, bicubic where it grows."""

from __future__ import annotations

from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from readers.decode import Pixels

KERNEL = "triangle (sepFilter2D, INTER_LINEAR) to shrink, INTER_CUBIC to enlarge"
_ONE = 256  # OpenCV filters 8-bit pixels with kernels in steps of 1/256
_BLURRED_MAX = 4  # of the new size: a kernel for more is long, and averages of areas will do


def resize(pixels: Pixels, width: int, height: int) -> Pixels:
    """Resize uint8 or uint16 (height, width, 3): shrink as Pillow and torchvision do with
    antialiased bilinear, and then grow bicubically. In photographs most pixels are within a level
    or two of theirs; the rest lie at the border, or where neighbours differ as in noise and the
    scale is between 1.1 and 1.9."""
    least = min(width, pixels.shape[1]), min(height, pixels.shape[0])
    if least != pixels.shape[1::-1]:
        pixels = _shrink(pixels, *least)
    if least != (width, height):
        grown = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_CUBIC)
        pixels = cast(Pixels, grown)
    return pixels


def _shrink(pixels: Pixels, width: int, height: int) -> Pixels:
    """A triangle that reaches one new pixel to each side is the low-pass filter of bilinear
    interpolation. OpenCV interpolates with one that reaches one old pixel, at the speed of SIMD;
    blurring first makes it wider. That takes a third of the time of its INTER_AREA, which is a loop
    over single values, and of Pillow's resize.
    """
    old_height, old_width = pixels.shape[:2]
    coarse = [
        _BLURRED_MAX * new if old >= 2 * _BLURRED_MAX * new else old
        for old, new in ((old_width, width), (old_height, height))
    ]
    if coarse != [old_width, old_height]:
        pixels = cast(Pixels, cv2.resize(pixels, coarse, interpolation=cv2.INTER_AREA))
    across, down = _blur(coarse[0] / width), _blur(coarse[1] / height)
    if len(across) > 1 or len(down) > 1:
        blurred = cv2.sepFilter2D(pixels, -1, across, down)
        pixels = cast(Pixels, blurred)
    return cast(Pixels, cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR))


def _blur(scale: float) -> npt.NDArray[Any]:
    """The kernel that makes of a triangle that reaches one pixel one that reaches `scale`, >= 1.

    For a whole number that is exact, and the kernel a triangle itself; in between, the two nearest
    are mixed.
    """
    whole = int(scale)
    part = scale - whole
    kernel = (1 - part) * _triangle(whole, whole) + part * _triangle(whole + 1, whole)
    steps = np.rint(kernel * _ONE)
    steps[len(steps) // 2] += _ONE - steps.sum()  # or all would get a little darker or brighter
    steps = np.trim_zeros(steps)
    return (steps / _ONE).astype(np.float32)


def _triangle(reach: int, last: int) -> npt.NDArray[Any]:
    """A triangle that falls from its middle to nothing within `reach` steps, its sum 1: its values
    from -last to last."""
    distances = np.abs(np.arange(-last, last + 1))
    return np.asarray(np.maximum(reach - distances, 0) / reach**2)
