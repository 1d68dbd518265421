"""Boxes around objects, in the one form that packs hold, whatever annotations they came from.

A value of the field `boxes` is a C-ordered, little-endian float32 array (k, 5): a row an object,
x_min, y_min, x_max, y_max, class. The first four are in pixels of the upright image as it is
stored, and mean edges: pixel i covers [i, i+1), a box around the whole image is 0, 0, width,
height, and 0 <= x_min < x_max <= width. The class is an index into the field's `classes`. An image
without objects has no rows, and its value no bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from readers.decode import FLIPPED_AXES

from .inspect import Reject

NUM_COLUMNS = 5
DTYPE = "<f4"
CLASSES_MAX = 1 << 24  # float32 holds every whole number below
BROKEN = "broken annotation"  # the reason of rejects
NO_SIZE = "annotated without the image's size, taken as upright"
_REACH = 1.0  # pixels that a box may reach out of its image by rounding

Rows = npt.NDArray[np.float64]  # (k, 5), the columns as above
NO_ROWS: Rows = np.zeros((0, NUM_COLUMNS))


class Picture(NamedTuple):
    """An image as its boxes have to know it: the upright size in pixels, and the orientation
    (EXIF's, 1 to 8) that makes the file's pixels upright."""

    width: int
    height: int
    orientation: int = 1


class Found(NamedTuple):
    """What annotations state of one image: float64 rows as in the module's docstring, but in
    pixels of an image of `size`, (width, height); None where they do not say, or mean the upright
    one. `warnings` has a text for every object that was left out, or taken with a doubt."""

    rows: Rows = NO_ROWS
    size: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()


class Placement(NamedTuple):
    """Where the upright image lies in the stored one: x becomes x * scale_x + left."""

    scale_x: float = 1.0
    scale_y: float = 1.0
    left: int = 0
    top: int = 0


AS_IT_IS = Placement()


def fit(
    found: Found, picture: Picture, placement: Placement = AS_IT_IS
) -> tuple[npt.NDArray[np.float32], tuple[str, ...]]:
    """The boxes of an image as they are stored, float32 (k, 5), and warnings, one an object.

    Boxes are turned upright where they were drawn on the file's pixels, clipped to the image, and
    then placed where it lies in the stored one. Those without area are left out. Raises Reject
    when the annotations are of an image of another size.
    """
    rows = _upright(found, picture)
    edges = np.array([picture.width, picture.height] * 2)
    warnings = list(found.warnings)
    clipped = np.clip(rows[:, :4], 0, edges)
    reach = np.abs(rows[:, :4] - clipped).max(axis=1, initial=0)
    scale_and_shift = np.array(
        [placement.scale_x, placement.scale_y, placement.left, placement.top]
    )
    stored = np.empty(rows.shape, DTYPE)
    stored[:, :4] = clipped * np.tile(scale_and_shift[:2], 2) + np.tile(scale_and_shift[2:], 2)
    stored[:, 4] = rows[:, 4]

    had_area = (rows[:, :2] < rows[:, 2:4]).all(axis=1)
    has_area = (stored[:, :2] < stored[:, 2:4]).all(axis=1)
    warnings += ["a box without area, left out"] * int(np.sum(~had_area))
    warnings += ["a box outside of its image, left out"] * int(np.sum(had_area & ~has_area))
    warnings += ["a box reaches out of its image, clipped"] * int(
        np.sum(has_area & (reach > _REACH))
    )
    return stored[had_area & has_area], tuple(warnings)


def _upright(found: Found, picture: Picture) -> Rows:
    """The rows in pixels of the upright image. Raises Reject."""
    upright = (picture.width, picture.height)
    if found.size in (None, upright):
        return found.rows
    if picture.orientation >= 5 and found.size == upright[::-1]:
        return turned(found.rows, found.size, picture.orientation)
    width, height = found.size or upright
    raise Reject(
        "annotated in another size",
        f"the annotation says {width} x {height}, the image has {upright[0]} x {upright[1]}",
    )


def turned(rows: Rows, size: tuple[int, int], orientation: int) -> Rows:
    """Boxes in an image's pixels as stored, of `size` (width, height), in those of the upright one:
    what readers.decode.upright does to pixels."""
    (width, height), x, y = size, rows[:, [0, 2]], rows[:, [1, 3]]
    if orientation >= 5:  # rows and columns are exchanged
        width, height, x, y = height, width, y, x
    if orientation in FLIPPED_AXES[0]:
        x = width - x[:, ::-1]
    if orientation in FLIPPED_AXES[1]:
        y = height - y[:, ::-1]
    return np.column_stack([x[:, 0], y[:, 0], x[:, 1], y[:, 1], rows[:, 4]])
