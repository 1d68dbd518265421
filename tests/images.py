"""Real images, made on the spot with real encoders; the tests need no file from elsewhere."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path

import cv2
import numpy as np
from PIL import Image


def photo(seed: int = 0, width: int = 48, height: int = 32) -> np.ndarray:
    """Like a photograph: smooth in places, rough in others. uint8 RGB (height, width, 3)."""
    rng = np.random.default_rng(seed)
    coarse = rng.uniform(0, 255, (4, 5, 3)).astype(np.float32)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, orientation: int | None = None, **options: object) -> bytes:
    """A JPEG by Pillow; `options` go to its encoder (quality, progressive, subsampling, …)."""
    file = BytesIO()
    if orientation is not None:
        exif = Image.Exif()
        exif[0x0112] = orientation
        options["exif"] = exif.tobytes()
    Image.fromarray(pixels).save(file, "JPEG", **{"quality": 90, **options})
    return file.getvalue()


def png(pixels: np.ndarray, **options: object) -> bytes:
    """A PNG by Pillow."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG", **options)
    return file.getvalue()


def write(path: Path, data: bytes) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def class_folder(root: Path, *, num_classes: int = 3, per_class: int = 4, seed: int = 0) -> Path:
    """A class folder of small JPEGs, some turned, and a PNG in every class."""
    for c in range(num_classes):
        for i in range(per_class):
            pixels = photo(seed + 100 * c + i, width=40 + 4 * i, height=24 + 2 * c)
            if i == per_class - 1:
                write(root / f"class_{c}" / f"{i}.png", png(pixels))
            else:
                turned = 6 if i == 1 else None
                write(root / f"class_{c}" / f"{i}.jpg", jpeg(pixels, turned))
    return root


def jpeg_segment(marker: int, body: bytes) -> bytes:
    """One segment of a JPEG's header."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def in_jpeg_header(data: bytes, *inserted: bytes) -> bytes:
    """`data` with bytes right behind its SOI marker."""
    return data[:2] + b"".join(inserted) + data[2:]


def tiff_block(*entries: tuple[int, int, int], order: str = "<") -> bytes:
    """A TIFF header with one directory of (tag, type, value) entries; types 3 (short), 4 (long)."""
    block = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8)
    block += struct.pack(order + "H", len(entries))
    for tag, kind, value in entries:
        value_format = "HH" if kind == 3 else "I"
        values = (value, 0) if kind == 3 else (value,)
        block += struct.pack(order + "HHI" + value_format, tag, kind, 1, *values)
    return block + bytes(4)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    """One chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def in_png_header(data: bytes, *inserted: bytes) -> bytes:
    """`data` with bytes right behind its IHDR chunk."""
    return data[:33] + b"".join(inserted) + data[33:]
