"""Every kind of odd image that loses nothing, with its right pixels."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import cv2
import numpy as np
from images import in_png_header, photo, png, png_chunk
from one_file import saved
from PIL import Image as Pillow

PHOTO = photo()  # 48 x 32
GREY = np.ascontiguousarray(PHOTO[..., 0])
ALPHA = np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1))
WIDE = np.random.default_rng(0).integers(0, 65536, (32, 48, 4)).astype(np.uint16)
BACKGROUND = (16, 32, 48)
# How the pixels below were made.
HOW: dict[str, Any] = {"background": BACKGROUND, "depth": "shift"}


def handmade_png(rows: np.ndarray, width: int, bits: int, colour: int, *chunks: bytes) -> bytes:
    """A PNG of rows of bytes, for kinds that no encoder writes."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = (png_chunk(b"IHDR", header), *chunks, png_chunk(b"IDAT", body))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(b"IEND", b"")


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def several(kind: str, number: int) -> bytes:
    """A file of uniform 8 x 8 frames, of 0, 40, 80 …"""
    frames = [Pillow.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)) for i in range(number)]
    options = {"lossless": True} if kind == "WEBP" else {}
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, axis=2)


def on_background(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Composited on BACKGROUND, rounded."""
    share = alpha[..., None].astype(np.float64) / 255
    return np.rint(colour * share + np.array(BACKGROUND) * (1 - share)).astype(np.uint8)


def from_inks(cmyk: np.ndarray) -> np.ndarray:
    """RGB of CMYK where 255 is full ink."""
    cmyk = cmyk.astype(np.float64)
    return (255 - cmyk[..., :3]) * (255 - cmyk[..., 3:]) / 255


# Kinds that lose nothing: exactly these pixels


def kinds() -> dict[str, tuple[bytes, np.ndarray]]:
    """name -> (a file, its pixels on BACKGROUND with --depth shift), all of them 48 x 32."""
    palette = np.random.default_rng(1).integers(0, 256, (16, 3)).astype(np.uint8)
    indices = np.random.default_rng(2).integers(0, 16, (32, 48)).astype(np.uint8)
    indexed = Pillow.fromarray(indices).convert("P")
    indexed.putpalette(palette.tobytes())
    palette_alpha = np.linspace(0, 255, 16).astype(np.uint8)
    nibbles = indices[:, 0::2] << 4 | indices[:, 1::2]
    crumbs = sum((indices[:, i::4] & 3) << (6 - 2 * i) for i in range(4))
    bits = np.packbits(indices & 1, axis=1)
    big = WIDE.astype(">u2")
    colour16, alpha16 = (WIDE >> 8).astype(np.uint8)[..., :3], (WIDE >> 8).astype(np.uint8)[..., 3]
    rgba = np.dstack([PHOTO, ALPHA])
    key = PHOTO[3, 5]
    keyed = np.where((key == PHOTO).all(-1), 0, 255)
    pages = {"save_all": True, "append_images": [Pillow.fromarray(PHOTO[::-1])]}
    return {
        "palette": (saved(indexed, "PNG", bits=8), palette[indices]),
        "palette of 16": (saved(indexed, "PNG", bits=4), palette[indices]),
        "transparent palette": (
            saved(indexed, "PNG", transparency=palette_alpha.tobytes()),
            on_background(palette[indices], palette_alpha[indices]),
        ),
        "1 bit": (handmade_png(bits, 48, 1, 0), rgb((indices & 1) * 255)),
        "1 bit, 0 transparent": (
            handmade_png(bits, 48, 1, 0, png_chunk(b"tRNS", b"\0\0")),
            on_background(rgb((indices & 1) * 255), (indices & 1) * 255),
        ),
        "2 bits": (handmade_png(crumbs, 48, 2, 0), rgb((indices & 3) * 85)),
        "2 bits, 1 transparent": (
            handmade_png(crumbs, 48, 2, 0, png_chunk(b"tRNS", b"\0\1")),
            on_background(rgb((indices & 3) * 85), np.where(indices & 3 == 1, 0, 255)),
        ),
        "4 bits": (handmade_png(nibbles, 48, 4, 0), rgb(indices * 17)),
        "4 bits, 3 transparent": (
            handmade_png(nibbles, 48, 4, 0, png_chunk(b"tRNS", b"\0\3")),
            on_background(rgb(indices * 17), np.where(indices == 3, 0, 255)),
        ),
        "grey and alpha": (
            saved(np.dstack([GREY, ALPHA]), "PNG"),
            on_background(rgb(GREY), ALPHA),
        ),
        "RGBA": (saved(rgba, "PNG"), on_background(PHOTO, ALPHA)),
        "interlaced palette": (
            in_png_header(saved(indexed, "PNG"), png_chunk(b"tEXt", b"Comment\0hello")),
            palette[indices],
        ),
        "transparent colour": (
            in_png_header(png(PHOTO), png_chunk(b"tRNS", key.astype(">u2").tobytes())),
            on_background(PHOTO, keyed),
        ),
        "16-bit grey": (handmade_png(big[..., 0], 48, 16, 0), rgb(colour16[..., 0])),
        "16-bit grey, one transparent": (
            handmade_png(big[..., 0], 48, 16, 0, png_chunk(b"tRNS", big[2, 4, :1].tobytes())),
            on_background(rgb(colour16[..., 0]), np.where(WIDE[..., 0] == WIDE[2, 4, 0], 0, 255)),
        ),
        "16-bit RGB": (handmade_png(big[..., :3], 48, 16, 2), colour16),
        "16-bit RGB, one transparent": (
            handmade_png(big[..., :3], 48, 16, 2, png_chunk(b"tRNS", big[2, 4, :3].tobytes())),
            on_background(colour16, np.where((WIDE[..., :3] == WIDE[2, 4, :3]).all(-1), 0, 255)),
        ),
        "16-bit grey and alpha": (
            handmade_png(big[..., 2:], 48, 16, 4),
            on_background(rgb(colour16[..., 2]), alpha16),
        ),
        "16-bit RGBA": (handmade_png(big, 48, 16, 6), on_background(colour16, alpha16)),
        "APNG": (saved(PHOTO, "PNG", **pages), PHOTO),
        "TIFF": (saved(PHOTO, "TIFF"), PHOTO),
        "TIFF, compressed": (saved(PHOTO, "TIFF", compression="tiff_lzw"), PHOTO),
        "TIFF, 1 bit": (
            saved(Pillow.fromarray((indices & 1) * 255).convert("1"), "TIFF"),
            rgb((indices & 1) * 255),
        ),
        "TIFF, CMYK": (
            saved(Pillow.fromarray(rgba, "CMYK"), "TIFF"),
            np.rint(from_inks(rgba)).astype(np.uint8),
        ),
        "TIFF, 16-bit grey": (saved(WIDE[..., 0], "TIFF"), rgb(colour16[..., 0])),
        "TIFF, 16-bit, big-endian": (
            saved(Pillow.frombytes("I;16B", (48, 32), big[..., 0].tobytes()), "TIFF"),
            rgb(colour16[..., 0]),
        ),
        "TIFF, 16-bit, white is 0": (
            saved(WIDE[..., 0], "TIFF", tiffinfo={262: 0}),
            rgb(((65535 - WIDE[..., 0]) >> 8).astype(np.uint8)),
        ),
        "TIFF, 16-bit RGB": (
            cv2.imencode(".tif", WIDE[..., 2::-1].copy())[1].tobytes(),
            colour16,
        ),
        "BMP": (saved(PHOTO, "BMP"), PHOTO),
        "BMP of a palette": (saved(indexed, "BMP"), palette[indices]),
        "GIF": (saved(indexed, "GIF"), palette[indices]),
        "animated GIF": (
            saved(indexed, "GIF", save_all=True, append_images=[indexed.rotate(180)]),
            palette[indices],
        ),
        "WebP": (saved(PHOTO, "WEBP", lossless=True), PHOTO),
        "transparent WebP": (
            saved(rgba, "WEBP", lossless=True, exact=True),
            on_background(PHOTO, ALPHA),
        ),
        "animated WebP": (saved(PHOTO, "WEBP", lossless=True, **pages), PHOTO),
        "PBM": (
            saved(Pillow.fromarray((indices & 1) * 255).convert("1"), "PPM"),
            rgb((indices & 1) * 255),
        ),
        "PGM": (saved(GREY, "PPM"), rgb(GREY)),
        "PPM": (saved(PHOTO, "PPM"), PHOTO),
        "PGM, 16 bits": (
            b"P5\n48 32\n65535\n" + big[..., 0].tobytes(),
            rgb(colour16[..., 0]),
        ),
        "PPM, 16 bits": (b"P6\n48 32\n65535\n" + big[..., :3].tobytes(), colour16),
        "PGM, 12 bits": (
            b"P5\n48 32\n4095\n" + (WIDE[..., 0] >> 4).astype(">u2").tobytes(),
            rgb(colour16[..., 0]),
        ),
    }


KINDS = kinds()
