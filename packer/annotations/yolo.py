"""YOLO's labels: a text file an image, a line an object.

A line is `class x_centre y_centre width height`, the class a number and the others in parts of the
width and height of the upright image. Longer lines, of polygons, key points or turned boxes, are
not converted.
Source: https://docs.ultralytics.com/datasets/detect, "Ultralytics YOLO format".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from readers.boxes import NUM_COLUMNS

from ..boxes import BROKEN, CLASSES_MAX, Annotated
from ..images.geometry import Size
from ..images.inspect import Reject

_ROUNDING = 0.01  # parts of the image: more above 1, or below 0, is no rounding but another unit


def label_file(key: str, labels: str | None = None) -> str:
    """Where the label file of an image lies by convention, below the source: the last folder
    `images` in its path is `labels`. Without one it lies as the image, in the folder `labels`, if
    the source itself is in a folder `images`; else beside the image."""
    folder, slash, name = key.rpartition("/")
    parts = folder.split("/")
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        parts[last] = "labels"
    elif labels is not None:
        parts = [labels, *filter(None, parts)]
        slash = "/"
    return "/".join(parts) + slash + (name.rpartition(".")[0] or name) + ".txt"


class Annotations:
    def __init__(self, classes: Sequence[str] = ()) -> None:
        """`classes` are the names of the numbers, if they are known."""
        self.classes = tuple(classes)
        self.notes: list[str] = []

    def find(self, key: str, data: bytes, size: Size) -> Annotated:
        """What the label file states of the image. Raises Reject."""
        try:
            lines = data.decode("utf-8-sig").split("\n")
        except UnicodeDecodeError:
            raise Reject(BROKEN, "it is not text in UTF-8") from None
        objects = [self._object(i, line.split()) for i, line in enumerate(lines, 1) if line.strip()]
        stated = np.array(objects, np.float64).reshape(-1, NUM_COLUMNS)
        centres, halves = stated[:, 1:3] * size, stated[:, 3:5] * size / 2
        return Annotated(np.column_stack([centres - halves, centres + halves, stated[:, 0]]))

    def _object(self, line: int, words: list[str]) -> list[float]:
        if len(words) != NUM_COLUMNS:
            raise Reject(
                BROKEN,
                f"line {line}: {len(words)} values, not the 5 of a box (class x_centre y_centre "
                "width height)",
            )
        try:
            number, *parts = values = [float(word) for word in words]
        except ValueError:
            raise Reject(BROKEN, f"line {line}: {' '.join(words):.100} are not 5 numbers") from None
        limit = len(self.classes) or CLASSES_MAX
        if not (0 <= number < limit and number.is_integer()):
            raise Reject(BROKEN, f"line {line}: class {words[0]:.20} is not in 0 … {limit - 1}")
        if not all(-_ROUNDING <= part <= 1 + _ROUNDING for part in parts):  # nor NaN
            raise Reject(
                BROKEN,
                f"line {line}: {' '.join(words[1:]):.100} are not parts of the image, 0 to 1",
            )
        return values
