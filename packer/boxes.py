"""Boxes around objects, whatever annotations they come from, in the form of readers.boxes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from readers.boxes import DTYPE, NUM_COLUMNS, Boxes
from readers.decode import FLIPPED_AXES

from .images.geometry import Geometry, Size
from .images.inspect import Reject

CLASSES_MAX = 1 << 24  # float32 holds every whole number below
BROKEN = "broken annotation"  # the reason of rejects
# Texts of warnings.
NO_SIZE = "annotated without the image's size, taken as upright"
TURNED = "boxes of a turned image, taken as upright: its size does not tell"
WITHOUT_AREA = "a box without area, left out"
OUTSIDE = "a box outside of its image, left out"
CLIPPED = "a box that reaches out of its image, clipped"
_REACH = 1.0  # pixels that a box may reach out of its image by rounding

Rows = npt.NDArray[np.float64]  # (k, 5)
NO_ROWS: Rows = np.zeros((0, NUM_COLUMNS))


class Annotated(NamedTuple):
    """What annotations state of one image: float64 rows as in readers.boxes, but in
    pixels of an image of `size`, (width, height); None where they do not say, or mean the upright
    one. `warnings` has a text for every object that was left out, or taken with a doubt."""

    rows: Rows = NO_ROWS
    size: Size | None = None
    warnings: tuple[str, ...] = ()


def fit(
    annotated: Annotated, orientation: int, geometry: Geometry
) -> tuple[Boxes, tuple[str, ...]]:
    """The boxes of an image as they are stored, float32 (k, 5), and warnings, one an object.

    Boxes that were drawn on the file's pixels are turned by its EXIF `orientation`, where their
    size tells that they were. Then all are clipped to the image, and follow the `geometry` of what
    is stored. Those without area are left out. Raises Reject when the annotations are of an image
    of another size.
    """
    rows = _upright(annotated, orientation, geometry.source)
    warnings = annotated.warnings
    if len(rows) and not _says_what_it_was_drawn_on(annotated.size, orientation):
        warnings += (TURNED,)
    limits = np.array(2 * geometry.source)
    edges = np.minimum(np.maximum(rows[:, :4], 0), limits)
    stored = np.empty(rows.shape, DTYPE)
    stored[:, :4] = edges * (2 * geometry.scale) + 2 * geometry.offset
    stored[:, 4] = rows[:, 4]
    has_area = (stored[:, :2] < stored[:, 2:4]).all(axis=1)
    if has_area.all() and (edges == rows[:, :4]).all():
        return stored, warnings

    had_area = (rows[:, :2] < rows[:, 2:4]).all(axis=1)
    left_out = np.where(had_area, OUTSIDE, WITHOUT_AREA)[~has_area].tolist()
    is_cut = (np.abs(rows[:, :4] - edges) > _REACH).any(axis=1)
    cut = [CLIPPED] * int(np.sum(has_area & is_cut))
    return stored[has_area], (*warnings, *left_out, *cut)


def _upright(annotated: Annotated, orientation: int, size: Size) -> Rows:
    """The rows in pixels of the upright image, which has this size. Raises Reject."""
    if annotated.size is None or annotated.size == size:
        return annotated.rows
    if orientation >= 5 and annotated.size == size[::-1]:
        return turned(annotated.rows, annotated.size, orientation)
    stated = f"{annotated.size[0]} x {annotated.size[1]}"
    raise Reject(
        "annotated in another size",
        f"the annotation is of an image of {stated}, and this one has {size[0]} x {size[1]}",
    )


def _says_what_it_was_drawn_on(size: Size | None, orientation: int) -> bool:
    """Whether a stated size is another one for the file's pixels than for the upright image, or
    these are the same pixels."""
    return orientation == 1 or (orientation >= 5 and size is not None and size[0] != size[1])


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
