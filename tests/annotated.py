"""Annotations of the same boxes as COCO, YOLO and Pascal VOC write them."""

from __future__ import annotations

import json
import xml.sax.saxutils
from collections.abc import Mapping, Sequence
from typing import Any

Box = tuple[float, float, float, float, int]  # as it is stored


def coco_text(
    boxes: Mapping[str, Sequence[Box]],
    size: tuple[int, int] = (60, 40),
    names: Sequence[str] = ("cat", "dog", "owl"),
    **members: Any,
) -> bytes:
    """An instances JSON of images; class i is the category 10 * i + 1."""
    images, annotations = [], []
    for i, (file_name, of_image) in enumerate(boxes.items()):
        images.append({"id": 100 + i, "file_name": file_name, "width": size[0], "height": size[1]})
        for x_min, y_min, x_max, y_max, c in of_image:
            bbox = [x_min, y_min, x_max - x_min, y_max - y_min]
            annotation = {"image_id": 100 + i, "category_id": 10 * c + 1, "bbox": bbox}
            annotations.append({"id": len(annotations), "iscrowd": 0, **annotation})
    categories = [{"id": 10 * c + 1, "name": name} for c, name in enumerate(names)]
    body = {"images": images, "annotations": annotations, "categories": categories[::-1]}
    return json.dumps({"info": {"year": 2017}, **body, **members}).encode()


def yolo_text(boxes: Sequence[Box], size: tuple[int, int] = (60, 40)) -> bytes:
    lines = []
    for x_min, y_min, x_max, y_max, c in boxes:
        parts = (x_min + x_max) / 2 / size[0], (y_min + y_max) / 2 / size[1]
        parts += (x_max - x_min) / size[0], (y_max - y_min) / size[1]
        lines.append(" ".join([str(c), *(f"{part:.17g}" for part in parts)]) + "\n")
    return "".join(lines).encode()


def voc_text(
    boxes: Sequence[Box],
    size: tuple[int, int] = (60, 40),
    names: Sequence[str] = ("cat", "dog", "owl"),
    more: str = "",
) -> bytes:
    objects = "".join(
        f"<object><name>{xml.sax.saxutils.escape(names[c])}</name><bndbox><xmax>{x_max}</xmax>"
        f"<xmin>{x_min + 1}</xmin><ymin>{y_min + 1}</ymin><ymax>{y_max}</ymax></bndbox></object>\n"
        for x_min, y_min, x_max, y_max, c in boxes
    )
    stated = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    return f"<annotation>{stated}{objects}{more}</annotation>".encode()
