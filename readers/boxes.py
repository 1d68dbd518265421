"""Boxes around the objects in an image, in the one form that packs have.

A value is a C-ordered, little-endian float32 array (k, 5): for every object x_min, y_min, x_max,
y_max and its class, an index into the field's `classes` in the manifest. Coordinates are pixels of
the upright image as it is stored, and mean edges: pixel i covers [i, i + 1), a box around the whole
image is 0, 0, width, height, and 0 <= x_min < x_max <= width. An image without objects has no rows,
and its value no bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

DTYPE = "<f4"
NUM_COLUMNS = 5

Boxes = npt.NDArray[np.float32]


def decode_boxes(value: bytes | memoryview) -> Boxes:
    """The boxes of a stored value, (k, 5). Raises ValueError where it is not rows of five."""
    rows = np.frombuffer(value, DTYPE).reshape(-1, NUM_COLUMNS)
    return rows.astype(np.float32)  # a copy, in the machine's own order of bytes


def boxes_within(
    boxes: Boxes,
    window: tuple[float, float, float, float],
    size: tuple[int, int],
    *,
    mirrored: bool = False,
) -> Boxes:
    """The boxes, (k, 5), in the part `window` (left, top, width, height) of their image when that
    is shown at another size (width, height): cut off at its edges, and those outside left out."""
    edges = boxes[:, :4].astype(np.float64).reshape(-1, 2, 2)  # (k, corner, axis)
    edges = (edges - window[:2]) * (np.array(size) / window[2:])
    if mirrored:
        edges[..., 0] = size[0] - edges[:, ::-1, 0]
    shown: Boxes = boxes.copy()
    shown[:, :4] = np.clip(edges, 0, size).reshape(-1, 4)
    left: Boxes = shown[(shown[:, :2] < shown[:, 2:4]).all(axis=1)]
    return left
