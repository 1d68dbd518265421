"""One file as convert prepares it, without a folder around it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from packer.images.pixels import PixelOptions
from packer.prepare import Prepared, prepare
from packer.sources import File, Listing
from readers.decode import decode


class OneFile:
    """A source of one file."""

    root = Path()

    def __init__(self, data: bytes) -> None:
        self.data = data

    def scan(self) -> Listing:
        return Listing(["file"])

    def read(self, path: str) -> File:
        return File(self.data, len(self.data), 0)

    def stamp(self, path: str) -> tuple[int, int]:
        return len(self.data), 0


def prepared(data: bytes, **options: Any) -> Prepared:
    """The file as convert prepares it."""
    return prepare(OneFile(data), "file", 0, True, PixelOptions(**options))


def pixels_of(data: bytes, **options: Any) -> np.ndarray:
    """The pixels that readers get, which the index describes."""
    result = prepared(data, **options)
    assert result.reject is None, result.reject
    assert result.image is not None
    assert result.image.orientation == 1
    pixels = decode(result.data)
    assert pixels.shape == (result.image.height, result.image.width, 3)
    return pixels


def reason(data: bytes, **options: Any) -> str:
    result = prepared(data, **options)
    assert result.reject is not None, result.image
    return result.reject.reason


def warnings_of(data: bytes, **options: Any) -> tuple[str, ...]:
    result = prepared(data, **options)
    assert result.image is not None, result.reject
    return result.image.warnings


def saved(pixels: np.ndarray | Pillow.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image = Pillow.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    image.save(file, kind, **options)
    return file.getvalue()
