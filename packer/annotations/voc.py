"""Pascal VOC's XML: a file an image.

Of every `object` right below `annotation` its `name` is the class and its `bndbox` the box: pixels
from xmin to xmax, counted from 1 and both inside, whose edges are xmin - 1 and xmax. `part`s are no
objects of their own; `difficult` and `truncated` objects are taken like all others.
Source: M. Everingham, J. Winn, "The PASCAL Visual Object Classes Challenge 2012 (VOC2012)
Development Kit", section 4.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np

from readers.boxes import NUM_COLUMNS

from ..boxes import BROKEN, NO_SIZE, Annotated
from ..images.geometry import Size
from ..images.inspect import Reject

PART = "a part of an object, left out"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_ENCODING = re.compile(rb"""<\?xml[^>]*?encoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


class Annotations:
    def __init__(self, classes: Sequence[str]) -> None:
        """`classes` are all names that there are: see names_in."""
        self.classes = tuple(classes)
        self.notes: list[str] = []
        self._class_of = {name: i for i, name in enumerate(self.classes)}

    def find(self, key: str, data: bytes, size: Size) -> Annotated:
        """What the XML states of the image. Raises Reject."""
        root = _parse(data)
        rows, num_parts = [], 0
        for number, element in enumerate(root.findall("object"), 1):
            name = _name(number, element)
            if name not in self._class_of:
                raise Reject(BROKEN, f"object {number}: {name!r:.100} is not among the classes")
            rows.append([*_edges(number, element), self._class_of[name]])
            num_parts += len(element.findall("part"))
        found = Annotated(np.array(rows, np.float64).reshape(-1, NUM_COLUMNS), _size(root))
        return found._replace(
            warnings=(PART,) * num_parts + (NO_SIZE,) * (found.size is None),
        )


def names_in(data: bytes) -> set[str]:
    """The names of the objects in an XML. Raises Reject."""
    elements = enumerate(_parse(data).findall("object"), 1)
    return {_name(number, element) for number, element in elements}


def _parse(data: bytes) -> ElementTree.Element:
    """The element `annotation`. No entity is declared in it, so that none can grow."""
    declared = _ENCODING.match(data.removeprefix(b"\xef\xbb\xbf"))
    encoding = declared[1].decode("ascii") if declared else "utf-8"
    if data.startswith(_UTF16):
        encoding = "utf-16"
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except (UnicodeError, LookupError) as error:
        raise Reject(BROKEN, f"it is not text in {encoding}: {error}") from None
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise Reject(BROKEN, "it declares entities or a document type, which is refused")
    try:
        root = ElementTree.fromstring(text)  # of a text, whatever encoding it declares
    except (ElementTree.ParseError, ValueError) as error:
        raise Reject(BROKEN, f"it is not XML: {error}") from None
    if root.tag != "annotation":
        raise Reject(BROKEN, f"it is <{root.tag:.50}>, not Pascal VOC's <annotation>")
    return root


def _name(number: int, element: ElementTree.Element) -> str:
    name = (element.findtext("name") or "").strip()
    if not name:
        raise Reject(BROKEN, f"object {number} has no name")
    return name


def _edges(number: int, element: ElementTree.Element) -> tuple[float, float, float, float]:
    """x_min, y_min, x_max, y_max."""
    texts = [element.findtext(f"bndbox/{corner}") or "missing" for corner in _CORNERS]
    try:
        x_min, y_min, x_max, y_max = map(float, texts)
        if math.isfinite(x_min + y_min + x_max + y_max):
            return x_min - 1, y_min - 1, x_max, y_max
    except ValueError:
        pass
    stated = ", ".join(f"{c} {text}" for c, text in zip(_CORNERS, texts, strict=True))
    raise Reject(BROKEN, f"object {number}: its bndbox is {stated:.100}, not four numbers")


def _size(root: ElementTree.Element) -> tuple[int, int] | None:
    """Width and height; None where they are missing, or 0 as some tools write them."""
    try:
        width, height = (int(root.findtext(f"size/{side}") or 0) for side in ("width", "height"))
    except ValueError:
        raise Reject(BROKEN, "its size is not two whole numbers") from None
    return (width, height) if width > 0 and height > 0 else None
