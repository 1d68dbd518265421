"""What is stored of odd images, and of those that are resized or stored anew: the right pixels."""

from __future__ import annotations

import base64
import shutil
import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from click.testing import CliRunner
from images import class_folder, in_png_header, jpeg, photo, png, png_chunk, tiff_block, write
from PIL import Image as Pillow
from PIL import features

import readers
from packer import restart
from packer.cli import main
from packer.colour import foreign_profile
from packer.convert import Options, convert
from packer.inspect import MAX_PIXELS, Image, Reject, inspect
from packer.pixels import PixelOptions
from packer.prepare import Prepared, prepare
from packer.sources import File, Listing
from packer.transform import resize, transform
from packer.verify import verify
from readers import seekable
from readers.decode import UndecodableError, decode, decode_region, upright
from readers.errors import DspackError, MissingDependency, SourceError
from readers.loader import BatchLoader
from readers.odd import Rule, canonical, squeeze

PHOTO = photo()  # 48 x 32
GREY = np.ascontiguousarray(PHOTO[..., 0])
ALPHA = np.tile(np.linspace(0, 255, 48).astype(np.uint8), (32, 1))
WIDE = np.random.default_rng(0).integers(0, 65536, (32, 48, 4)).astype(np.uint16)
BACKGROUND = (16, 32, 48)
ORIENTATION = 0x0112
has_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="needs jpegtran (apt: libjpeg-turbo-progs)"
)


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


def handmade_png(rows: np.ndarray, width: int, bits: int, colour: int, *chunks: bytes) -> bytes:
    """A PNG of rows of bytes, for kinds that no encoder writes."""
    header = struct.pack(">IIBBBBB", width, len(rows), bits, colour, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = (png_chunk(b"IHDR", header), *chunks, png_chunk(b"IDAT", body))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks) + png_chunk(b"IEND", b"")


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


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
HOW: dict[str, Any] = {"background": BACKGROUND, "depth": "shift"}


@pytest.mark.parametrize("name", KINDS)
def test_an_odd_kind_becomes_the_right_pixels(name: str) -> None:
    data, expected = KINDS[name]
    how = {**HOW, "frame": 0} if "pages" in name else HOW
    result = prepared(data, **how)
    assert result.change is not None
    assert result.change.endswith("to RGB PNG")
    assert result.data.startswith(b"\x89PNG")
    difference = np.abs(pixels_of(data, **how).astype(int) - expected)
    assert difference.max() <= 1  # of rounding, where something was composited
    if "ransparent" not in name and "alpha" not in name and "RGBA" not in name:
        assert difference.max() == 0 or "CMYK" in name


@pytest.mark.parametrize("name", KINDS)
def test_what_keeps_its_bytes_gives_the_same_pixels(name: str) -> None:
    data, _ = KINDS[name]
    kept = prepared(data, keep_bytes=True, **HOW)
    assert kept.image is not None
    assert (kept.data, kept.is_odd, kept.change) == (data, True, None)
    rule = PixelOptions(**HOW).rule
    pixels = decode(kept.data, 1, rule)
    assert np.array_equal(pixels, pixels_of(data, **HOW))
    assert pixels.shape == (kept.image.height, kept.image.width, 3)
    box = (7, 5, 20, 11)
    region = decode_region(kept.data, 1, (48, 32), box, rule=rule)
    assert np.array_equal(region, pixels[5:16, 7:27])


@pytest.mark.parametrize("name", KINDS)
def test_an_odd_kind_cut_short_is_rejected(name: str) -> None:
    data, _ = KINDS[name]
    for keep_bytes in (False, True):
        cut = data[: len(data) * 4 // 10]  # of an animation, within the first frame
        assert reason(cut, keep_bytes=keep_bytes, **HOW) in (
            "damaged image data",
            "image data missing",
        )


# More than 8 bits


DEEP = [name for name in KINDS if "bits" in name and name[0] == "P"] + [
    name for name in KINDS if "16-bit" in name
]


@pytest.mark.parametrize("name", DEEP)
def test_more_than_8_bits_need_a_word(name: str) -> None:
    assert reason(KINDS[name][0]) == "more than 8 bits a channel, needs --depth"


@pytest.mark.parametrize("name", ["16-bit grey", "16-bit RGB", "TIFF, 16-bit RGB", "PPM, 16 bits"])
def test_depth_scale_rounds(name: str) -> None:
    channels = slice(0, 1) if "grey" in name else slice(0, 3)
    expected = np.rint(WIDE[..., channels] * (255 / 65535)).astype(np.uint8)
    assert np.array_equal(
        pixels_of(KINDS[name][0], depth="scale"), expected + np.zeros(3, np.uint8)
    )


@pytest.mark.parametrize("maximum", [511, 1023, 4095, 65535])
def test_every_level_of_8_bits_comes_out_in_order(maximum: int) -> None:
    values = np.arange(maximum + 1, dtype=np.uint16)
    for depth in ("shift", "scale"):
        levels = squeeze(values, maximum, depth).astype(int)
        assert (levels[0], levels[-1]) == (0, 255)
        assert set(np.diff(levels)) == {0, 1}


def test_values_that_fill_only_a_few_of_the_bits_are_warned_about() -> None:
    ramp = np.arange(48 * 32, dtype=np.uint16).reshape(32, 48)
    (warning,) = warnings_of(saved(ramp, "TIFF"), depth="shift")
    assert "nearly black" in warning


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_32_bits_are_rejected(mode: str) -> None:
    data = saved(Pillow.fromarray(GREY).convert(mode), "TIFF")
    assert reason(data, depth="shift") == "unsupported pixels"


# JPEG


CMYK = np.dstack([PHOTO, ALPHA])


def cmyk_jpeg(*, adobe: bool = True, transform: int = 0) -> bytes:
    data = saved(Pillow.fromarray(CMYK, "CMYK"), "JPEG", quality=95, subsampling=0)
    at = data.index(b"Adobe")
    if not adobe:
        return data[: at - 4] + data[at + 12 :]
    return data[: at + 11] + bytes([transform]) + data[at + 12 :]


@pytest.mark.parametrize("transform", [0, 2])
def test_cmyk_is_inverted_with_adobes_marker_and_ycck_is_converted_first(transform: int) -> None:
    data = cmyk_jpeg(transform=transform)
    raw = simplejpeg.decode_jpeg(data, "CMYK", strict=True)
    shown = pixels_of(data)
    assert np.abs(shown - from_inks(255 - raw)).max() <= 1
    if transform == 0:  # and it is what was saved
        assert np.abs(shown - from_inks(CMYK)).mean() < 6
    assert prepared(data).change == f"{'YCCK' if transform else 'CMYK'} JPEG to RGB PNG"


def test_cmyk_without_adobes_marker_is_not_inverted() -> None:
    data = cmyk_jpeg(adobe=False)
    raw = simplejpeg.decode_jpeg(data, "CMYK", strict=True)
    assert np.abs(pixels_of(data) - from_inks(raw)).max() <= 1
    assert warnings_of(data) == ("CMYK JPEG without Adobe's marker, taken as not inverted",)


def test_a_cut_cmyk_jpeg_is_rejected_and_a_lost_end_marker_is_not() -> None:
    data = cmyk_jpeg()
    assert reason(data[: len(data) // 2] + b"\xff\xd9") == "image data missing"
    assert np.array_equal(pixels_of(data[:-2]), pixels_of(data))
    kept = prepared(data[:-2], keep_bytes=True)
    assert kept.data == data


def test_rgb_jpeg_is_taken_as_rgb() -> None:
    data = saved(PHOTO, "JPEG", keep_rgb=True, quality=100)
    assert np.abs(pixels_of(data).astype(int) - PHOTO).max() <= 3
    assert np.array_equal(pixels_of(data), simplejpeg.decode_jpeg(data, "RGB"))


# jpegtran -arithmetic of a ramp to the right in red and downwards in green, blue 90, at 4:4:4.
ARITHMETIC = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAMCAgMCAgMDAwMEAwMEBQgFBQQEBQoHBwYIDAoMDAsKCwsNDhIQDQ4RDgsL"
    "EBYQERMUFRUVDA8XGBYUGBIUFRT/2wBDAQMEBAUEBQkFBQkUDQsNFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQU"
    "FBQUFBQUFBQUFBQUFBQUFBQUFBT/yQARCAAQABADAREAAhEBAxEB/8wACgAQEAUBEBEF/9oADAMBAAIRAxEAPwD/AN4m"
    "qsuZKm+ccnjlsjg/YZb6fwGAzSorKbw7Ci4teZ/GHfACa80hbJ7/AGP9PZFLhjqPI1nDxgQAbbbZ8O7rGdoDA58iG4wO"
    "wP/Z"
)


def test_arithmetic_coding_is_decoded() -> None:
    ramp = np.linspace(0, 255, 16).astype(np.uint8)
    expected = np.dstack(
        [np.tile(ramp, (16, 1)), np.tile(ramp[:, None], (1, 16)), np.full((16, 16), 90)]
    )
    assert np.abs(pixels_of(ARITHMETIC).astype(int) - expected).max() <= 5
    # What its decoder makes of a lack of data is an image, without a word.
    assert reason(ARITHMETIC[:-40]) == "image data missing"


# Orientation


def turned_exif(orientation: int) -> bytes:
    exif = Pillow.Exif()
    exif[ORIENTATION] = orientation
    return exif.tobytes()


def turned_files(orientation: int) -> dict[str, bytes]:
    block = turned_exif(orientation)
    digits = (b"Exif\0\0" + tiff_block((ORIENTATION, 3, orientation))).hex().encode()
    profile = b"Raw profile type exif\0\nexif\n%8d\n" % (len(digits) // 2) + digits + b"\n"
    xmp = b'XML:com.adobe.xmp\0\0\0\0\0<rdf:Description tiff:Orientation="%d"/>' % orientation
    files = {
        "PNG, eXIf": saved(PHOTO, "PNG", exif=block),
        "PNG, raw profile": in_png_header(png(PHOTO), png_chunk(b"tEXt", profile)),
        "PNG, XMP": in_png_header(png(PHOTO), png_chunk(b"iTXt", xmp)),
        "RGBA PNG": saved(np.dstack([PHOTO, ALPHA * 0 + 255]), "PNG", exif=block),
        "WebP": saved(PHOTO, "WEBP", lossless=True, exif=block),
        "TIFF": saved(PHOTO, "TIFF", tiffinfo={ORIENTATION: orientation}),
        "TIFF, 16-bit": saved(
            PHOTO[..., 0].astype(np.uint16) << 8, "TIFF", tiffinfo={ORIENTATION: orientation}
        ),
    }
    deep = cv2.imencode(".tif", PHOTO[..., ::-1].astype(np.uint16) << 8)[1].tobytes()
    at = deep.index(struct.pack("<HHI", 284, 3, 1))  # PlanarConfiguration, which is 1 anyway
    files["TIFF, 16-bit RGB"] = (
        deep[:at] + struct.pack("<HHIHH", 274, 3, 1, orientation, 0) + deep[at + 12 :]
    )
    return files


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("name", turned_files(1))
def test_orientation_outside_jpeg_is_applied_once(name: str, orientation: int) -> None:
    expected = upright(PHOTO, orientation)
    if "16-bit" in name and "RGB" not in name:
        expected = rgb(expected[..., 0])
    data = turned_files(orientation)[name]
    assert np.array_equal(pixels_of(data, depth="shift"), expected)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_avif_is_decoded_upright(orientation: int) -> None:
    exif = turned_exif(orientation)
    data = saved(PHOTO, "AVIF", quality=100, subsampling="4:4:4", exif=exif)
    shown = pixels_of(data).astype(int)
    assert np.abs(shown - upright(PHOTO, orientation)).max() <= 4


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_of_10_bits_needs_a_word() -> None:
    ten = WIDE[..., :3] >> 6
    options = [cv2.IMWRITE_AVIF_DEPTH, 10, cv2.IMWRITE_AVIF_QUALITY, 100]
    data = cv2.imencode(".avif", ten[..., ::-1], options)[1].tobytes()
    assert reason(data) == "more than 8 bits a channel, needs --depth"
    assert np.abs(pixels_of(data, depth="scale") - ten * (255 / 1023)).max() <= 3


def test_broken_exif_outside_jpeg_does_not_lose_the_picture() -> None:
    data = saved(PHOTO, "WEBP", lossless=True, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert np.array_equal(pixels_of(data), PHOTO)


# Several frames


def pages(kind: str, number: int) -> bytes:
    frames = [Pillow.fromarray(np.full((8, 8, 3), 40 * i, np.uint8)) for i in range(number)]
    options = {"lossless": True} if kind == "WEBP" else {}
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)


@pytest.mark.parametrize("frame", range(3))
@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "PNG"])
def test_a_frame_can_be_asked_for(kind: str, frame: int) -> None:
    assert (pixels_of(pages(kind, 3), frame=frame) == 40 * frame).all()
    assert reason(pages(kind, 3), frame=3) == "has no such frame"
    assert (pixels_of(pages(kind, 1), frame=frame) == 0).all()  # it has no other


def test_a_multi_page_tiff_is_rejected_with_the_number_of_its_pages() -> None:
    reject = prepared(pages("TIFF", 5)).reject
    assert reject is not None
    assert str(reject) == "several pages, needs --frame (5 pages)"


@pytest.mark.parametrize(("kind", "name"), [("GIF", "GIF"), ("WEBP", "WebP"), ("PNG", "PNG")])
def test_the_first_frame_of_an_animation_is_packed_with_a_warning(kind: str, name: str) -> None:
    assert (pixels_of(pages(kind, 3)) == 0).all()
    assert warnings_of(pages(kind, 3)) == (f"animated {name}, its first frame is packed",)
    assert prepared(pages(kind, 3)).change == f"animated {name} to RGB PNG"


# Colour profiles

SRGB_IN_D50 = [(0.4360, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7139)]
P3_IN_D50 = [(0.5151, 0.2412, -0.0011), (0.2919, 0.6922, 0.0419), (0.1572, 0.0666, 0.7841)]


def icc_profile(primaries: list[tuple[float, float, float]], name: bytes) -> bytes:
    """A display profile with sRGB's own curve (ICC.1:2001-04)."""
    x = np.linspace(0, 1, 1024)
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    curve = b"curv\0\0\0\0" + struct.pack(">I", 1024)
    curve += np.rint(linear * 65535).astype(">u2").tobytes()

    def xyz(values: tuple[float, float, float]) -> bytes:
        return b"XYZ \0\0\0\0" + struct.pack(">3i", *(round(v * 65536) for v in values))

    text = name + b"\0"
    tags = {
        b"desc": b"desc\0\0\0\0" + struct.pack(">I", len(text)) + text + bytes(78),
        b"wtpt": xyz((0.9642, 1.0, 0.8249)),
        **dict(zip((b"rXYZ", b"gXYZ", b"bXYZ"), map(xyz, primaries), strict=True)),
        **dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve),
    }
    table, body, at = b"", b"", 128 + 4 + 12 * len(tags)
    for tag, value in tags.items():
        value += bytes(-len(value) % 4)
        table += tag + struct.pack(">II", at + len(body), len(value))
        body += value
    header = struct.pack(
        ">I4sI4s4s4s", at + len(body), bytes(4), 0x02400000, b"mntr", b"RGB ", b"XYZ "
    )
    header = header.ljust(36, b"\0") + b"acsp" + bytes(28)
    header += struct.pack(">3i", 63190, 65536, 54061)
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


def p3_to_srgb(pixels: np.ndarray) -> np.ndarray:
    """By the matrices, with sRGB's curve both ways."""
    x = pixels / 255.0
    linear = np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)
    matrix = np.array(P3_IN_D50) @ np.linalg.inv(np.array(SRGB_IN_D50))
    y = np.clip(linear @ matrix, 0, 1)
    return 255 * np.where(y <= 0.0031308, 12.92 * y, 1.055 * y ** (1 / 2.4) - 0.055)


P3 = icc_profile(P3_IN_D50, b"Display P3")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_a_foreign_profile_is_counted_and_followed_on_demand(kind: str) -> None:
    options = {"quality": 100, "lossless": True} if kind == "WEBP" else {}
    data = saved(PHOTO, kind, icc_profile=P3, **options)
    assert inspect(data).profile == "Display P3"
    assert warnings_of(data) == ("colour profile Display P3, taken as sRGB",)
    before = pixels_of(data)
    after = pixels_of(data, icc="srgb")
    assert np.abs(after - p3_to_srgb(before)).max() <= 2
    assert warnings_of(data, icc="srgb") == ()
    change = prepared(data, icc="srgb").change
    assert change is not None
    assert change.endswith("in Display P3 to RGB PNG")


def test_srgb_profiles_are_nothing_to_mention() -> None:
    from PIL import ImageCms

    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for profile in (own, icc_profile(SRGB_IN_D50, b"c2")):
        assert foreign_profile(profile) is None
        data = saved(PHOTO, "JPEG", icc_profile=profile)
        assert prepared(data, icc="srgb") == prepared(data)
        assert prepared(data).data == data


def test_a_broken_profile_is_a_warning() -> None:
    data = saved(PHOTO, "JPEG", icc_profile=b"no profile at all")
    for options in ({}, {"icc": "srgb"}):
        assert warnings_of(data, **options) == ("broken colour profile, ignored",)
        assert prepared(data, **options).data == data


def test_a_profile_in_several_parts_is_joined_in_order() -> None:
    padded = P3 + bytes(100_000)
    padded = struct.pack(">I", len(padded)) + padded[4:]
    assert inspect(saved(PHOTO, "JPEG", icc_profile=padded)).profile == "Display P3"


# Refused before anything is allotted


def gif_of(width: int, height: int) -> bytes:
    data = bytearray(saved(GREY, "GIF"))
    struct.pack_into("<HH", data, 6, width, height)
    return bytes(data)


def webp_of(width: int, height: int) -> bytes:
    data = saved(np.dstack([PHOTO, ALPHA]), "WEBP", lossless=True, exif=turned_exif(6))
    assert data[12:16] == b"VP8X"
    return (
        data[:24]
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little")
        + data[30:]
    )


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(gif_of(65535, 65535), id="GIF"),
        pytest.param(webp_of(1 << 24, 200), id="WebP"),
        pytest.param(patched(saved(PHOTO, "BMP"), 18, struct.pack("<ii", 60000, 60000)), id="BMP"),
        pytest.param(b"P6 60000 60000 255\n" + bytes(100), id="PPM"),
        pytest.param(b"P5 16000 16000 255\n" + bytes(100), id="a little too large"),
        pytest.param(
            saved(PHOTO, "TIFF").replace(
                struct.pack("<HHIHH", 256, 4, 1, 48, 0), struct.pack("<HHII", 256, 4, 1, 1 << 27)
            ),
            id="TIFF",
        ),
    ],
)
def test_a_bomb_is_rejected_by_its_header(data: bytes) -> None:
    assert reason(data) == "too many pixels"


@pytest.mark.parametrize("name", ["palette", "TIFF", "WebP", "GIF", "BMP"])
def test_the_limit_of_pixels_can_be_set(name: str) -> None:
    data, _ = KINDS[name]
    assert reason(data, max_pixels=48 * 32 - 1) == "too many pixels"
    assert prepared(data, max_pixels=48 * 32).reject is None
    assert reason(jpeg(PHOTO), max_pixels=48 * 32 - 1) == "too many pixels"
    assert PixelOptions().max_pixels == MAX_PIXELS


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\0\0\0\x1cftypheic" + bytes(16), "unsupported kind of file: HEIF"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "unsupported kind of file: JPEG 2000"),
        (b"8BPS" + bytes(40), "unsupported kind of file: PSD"),
        (b"II*\0" + bytes(40), "damaged image data"),
        (b"GIF89a", "damaged image data"),
        (b"RIFF\0\0\0\0WEBPVP8X", "damaged image data"),
        (b"P6", "damaged image data"),
    ],
)
def test_what_cannot_be_read_is_rejected(data: bytes, expected: str) -> None:
    assert reason(data) == expected


def test_a_rule_is_needed_for_what_it_settles() -> None:
    with pytest.raises(UndecodableError, match="8 bits"):
        canonical(KINDS["16-bit grey"][0], Rule())


# Resizing


LARGE = photo(7, 200, 120)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("shorter", (100, 60)), ("longer", (60, 36)), ("exact", (60, 60)), ("pad", (60, 60))],
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_sizes_of_the_modes(mode: str, expected: tuple[int, int], orientation: int) -> None:
    data = jpeg(LARGE, orientation)
    image = prepared(data, resize=60, resize_mode=mode).image
    assert image is not None
    assert image.orientation == 1
    width, height = expected if orientation == 1 else expected[::-1]
    assert (image.width, image.height) == (width, height)


def test_nothing_is_enlarged_unless_asked_for() -> None:
    for mode in ("shorter", "longer"):
        assert prepared(jpeg(LARGE), resize=300, resize_mode=mode).data == jpeg(LARGE)
        larger = prepared(jpeg(LARGE), resize=300, resize_mode=mode, enlarge=True).image
        assert larger is not None
        assert (larger.width, larger.height) == ((500, 300) if mode == "shorter" else (300, 180))
    assert reason(jpeg(LARGE), resize=150, resize_mode="exact") == "smaller than --resize"
    square = pixels_of(jpeg(LARGE), resize=150, resize_mode="exact", enlarge=True)
    assert square.shape == (150, 150, 3)


def test_padding_has_the_background_and_the_picture_is_in_the_middle() -> None:
    how = {"resize": 256, "resize_mode": "pad", "background": BACKGROUND, "encode": "png"}
    shown = pixels_of(png(LARGE), **how)
    assert shown.shape == (256, 256, 3)
    assert np.array_equal(shown[68:188, 28:228], LARGE)
    shown[68:188, 28:228] = BACKGROUND
    assert (shown == BACKGROUND).all()


def test_shrinking_averages_areas_and_does_not_alias() -> None:
    checker = (np.indices((128, 128)).sum(0) % 2 * 255).astype(np.uint8)
    shown = pixels_of(png(rgb(checker)), resize=50)
    assert np.abs(shown.astype(int) - 127).max() <= 3
    blocks = LARGE.reshape(30, 4, 50, 4, 3).mean((1, 3))
    assert np.abs(resize(LARGE, 50, 30) - blocks).max() <= 0.5 + 1e-9
    # Where one side grows and the other shrinks, the latter does not alias either.
    assert np.abs(resize(rgb(checker), 200, 50).astype(int) - 127).max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_when_pixels_are_stored_anew(orientation: int) -> None:
    data = jpeg(LARGE, orientation, quality=100, subsampling=0)
    whole = decode(data, orientation)
    shown = pixels_of(data, resize=40, encode="png")
    size = (shown.shape[1], shown.shape[0])
    assert size == ((67, 40) if orientation < 5 else (40, 67))
    expected = cv2.resize(whole, size, interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(shown.astype(int) - expected).max() <= 12  # 1/1 or 1/2 of the size decoded
    assert np.abs(shown.astype(int) - expected).mean() < 1
    assert np.array_equal(pixels_of(data, encode="png"), whole)


def test_a_jpeg_decoded_at_reduced_size_looks_the_same() -> None:
    data = jpeg(cv2.resize(LARGE, (1600, 960), interpolation=cv2.INTER_CUBIC), quality=95)
    for size in (479, 240, 120, 60):
        full = resize(decode(data), *((size * 5 + 1) // 3, size)).astype(float)
        shown = pixels_of(data, resize=size, encode="png")
        assert np.abs(shown - full).mean() < 0.6


@pytest.mark.parametrize(
    ("data", "stored_as"),
    [(jpeg(LARGE), b"\xff\xd8"), (png(LARGE), b"\x89PNG"), (saved(LARGE, "WEBP"), b"\x89PNG")],
)
def test_without_encode_jpeg_stays_jpeg_and_others_become_png(
    data: bytes, stored_as: bytes
) -> None:
    assert prepared(data, resize=60).data.startswith(stored_as)


@pytest.mark.parametrize("options", [{"resize": 60}, {"encode": "png"}, {"encode": "raw"}])
@pytest.mark.parametrize("check", [True, False])
def test_damage_is_found_when_pixels_are_stored_anew(options: dict[str, Any], check: bool) -> None:
    data = jpeg(LARGE)
    cut = data[: len(data) // 2] + b"\xff\xd9"
    result = prepare(OneFile(cut), "file", 0, check, PixelOptions(**options))
    assert result.reject is not None
    assert result.reject.reason == "image data missing"
    without_end = prepare(OneFile(data[:-2]), "file", 0, check, PixelOptions(**options))
    assert without_end.image is not None
    assert without_end.data == prepared(data, **options).data


# Encodings


def test_jpeg_has_the_quality_asked_for_and_is_seekable() -> None:
    sizes = []
    for quality in (50, 90, 98):
        result = prepared(png(LARGE), encode="jpeg", quality=quality)
        assert result.change == "PNG to JPEG"
        assert result.segments is not None
        assert np.array_equal(result.segments, seekable.segment_offsets(result.data))
        sizes.append(len(result.data))
        error = np.square(decode(result.data).astype(float) - LARGE).mean()
        assert error < {50: 80, 90: 40, 98: 30}[quality]
    assert sizes == sorted(sizes)


def test_webp_png_and_raw() -> None:
    webp = prepared(png(LARGE), encode="webp")
    assert webp.data[8:12] == b"WEBP"
    assert np.abs(decode(webp.data).astype(int) - LARGE).mean() < 6
    assert np.array_equal(pixels_of(jpeg(LARGE), encode="png"), decode(jpeg(LARGE)))
    raw = prepared(jpeg(LARGE, 6), encode="raw")
    assert raw.image is not None
    assert (raw.image.width, raw.image.height, raw.image.orientation) == (120, 200, 1)
    assert raw.data == decode(jpeg(LARGE, 6), 6).tobytes()
    assert reason(png(LARGE), encode="raw", raw_size=(120, 200)) == "not of the size of the others"


def test_what_an_encoder_cannot_hold_is_rejected() -> None:
    assert reason(png(np.zeros((1, 16_500, 3), np.uint8)), encode="webp") == "cannot be encoded"


@pytest.mark.parametrize(
    "options",
    [
        {"keep_bytes": True, "resize": 10},
        {"keep_bytes": True, "encode": "png"},
        {"resize_mode": "pad"},
        {"enlarge": True},
        {"encode": "raw", "resize": 10},
        {"encode": "png", "seekable": True},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--"):
        PixelOptions(**options)


# Restart markers for what is passed through


@has_jpegtran
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", None])
def test_restart_markers_are_added_without_touching_a_pixel(subsampling: str | None) -> None:
    pixels = LARGE if subsampling else LARGE[..., 0]
    options = {"subsampling": subsampling} if subsampling else {}
    data = jpeg(pixels, 6, **options)
    result = prepared(data, seekable=True)
    assert result.change == "JPEG with restart markers added"
    assert result.image == inspect(data)
    assert result.segments is not None
    assert len(result.segments) > 10
    assert np.array_equal(decode(result.data), decode(data))
    again = prepared(result.data, seekable=True)
    assert (again.data, again.change) == (result.data, None)
    assert np.array_equal(again.segments, result.segments)


@has_jpegtran
@pytest.mark.parametrize(
    ("data", "change"),
    [
        (jpeg(LARGE, progressive=True), "JPEG that cannot have restart markers, stored whole"),
        (jpeg(LARGE) + b"trailer", None),  # stays as it is, with its warning
        (png(LARGE), None),
    ],
)
def test_what_cannot_have_restart_markers_is_stored_as_it_is(
    data: bytes, change: str | None
) -> None:
    result = prepared(data, seekable=True)
    assert (result.data, result.change, result.segments) == (data, change, None)


def test_a_missing_jpegtran_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="apt install libjpeg-turbo-progs"):
        restart.require_jpegtran()


def test_markers_that_are_not_proven_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.jpg"
    other.write_bytes(jpeg(LARGE[::-1].copy(), restart_marker_blocks=1, subsampling=0))
    tool = write(tmp_path / "jpegtran", f"#!/bin/sh\ncat {other}\n".encode())
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert seekable.segment_offsets(other.read_bytes()) is not None
    assert restart.with_restart_markers(jpeg(LARGE)) is None


# Whole packs


@pytest.fixture(scope="module")
def odd_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder of odd and plain files, some large."""
    root = tmp_path_factory.mktemp("odd") / "imgs"
    for i, name in enumerate(KINDS):
        write(root / f"class_{i % 3}" / f"{i:02d}.png", KINDS[name][0])
    for i in range(4):
        write(root / "class_1" / f"photo_{i}.jpg", jpeg(photo(i, 150 + i, 100), 6 if i else None))
    write(root / "class_2" / "deep.tif", pages("TIFF", 2))
    return root


def pack(source: Path, out: Path, format_name: str, **options: Any) -> Path:
    convert(source, out, Options(format_name, pixels=PixelOptions(**options)), threads=2)
    return out


def test_odd_images_through_every_format(
    odd_source: Path, tmp_path: Path, format_name: str
) -> None:
    canonical_pack = readers.open(pack(odd_source, tmp_path / "a", format_name, **HOW))
    kept = readers.open(pack(odd_source, tmp_path / "b", format_name, keep_bytes=True, **HOW))
    assert list(kept.keys) == list(canonical_pack.keys)
    assert len(kept) == len(KINDS) + 4
    for i, key in enumerate(kept.keys):
        assert np.array_equal(kept.image(i), canonical_pack.image(i)), key
        assert kept.read(i) == (odd_source / key).read_bytes()
    made = canonical_pack.manifest.made
    assert made["changed"]["PNG RGBA to RGB PNG"] == 1
    assert sum(made["changed"].values()) == len(KINDS)
    assert made["rejected"] == {"several pages, needs --frame": 1}
    assert made["pixels"] == {"background": list(BACKGROUND), "depth": "shift"}
    assert kept.manifest.made["changed"] == {}
    for path in (canonical_pack.path, kept.path):
        assert verify(path, decode_images=True, threads=2).ok
    options: dict[str, Any] = {"size": 32, "train": False, "seed": 3, "exact": True}
    pairs = zip(
        BatchLoader(kept.path, 5, **options),
        BatchLoader(canonical_pack.path, 5, **options),
        strict=True,
    )
    for a, b in pairs:
        assert np.array_equal(a.images, b.images)


def test_raw_packs(odd_source: Path, tmp_path: Path, format_name: str) -> None:
    how = {"resize": 40, "resize_mode": "pad", "encode": "raw", **HOW}
    opened = readers.open(pack(odd_source, tmp_path / "raw", format_name, **how))
    field = opened.manifest.fields["image"]
    assert (field.kind, field.dtype, field.shape) == ("array", "|u1", (40, 40, 3))
    assert "INTER_AREA" in opened.manifest.made["pixels"]["kernel"]
    assert opened.manifest.made["pixels"]["library"] == f"OpenCV {cv2.__version__}"
    for i, key in enumerate(opened.keys):
        data = (odd_source / key).read_bytes()
        assert np.array_equal(opened.image(i), pixels_of(data, **{**how, "encode": "png"}))
    assert verify(opened.path, decode_images=True, threads=2).ok
    (batch, *_) = BatchLoader(opened.path, 4, size=40, train=False, resize=40)
    assert np.array_equal(batch.images[0], opened.image(0))


def test_raw_packs_of_images_of_one_size(tmp_path: Path) -> None:
    for i in range(100):
        write(tmp_path / "imgs" / f"{i:03d}.png", png(photo(i, 12, 8)))
    opened = readers.open(pack(tmp_path / "imgs", tmp_path / "a", "memmap", encode="raw"))
    assert opened.manifest.fields["image"].shape == (8, 12, 3)
    # One that nobody looked at before the work began is a reject.
    write(tmp_path / "imgs" / "033.png", png(photo(0, 12, 9)))
    summary = convert(
        tmp_path / "imgs",
        tmp_path / "b",
        Options("memmap", pixels=PixelOptions(encode="raw")),
        threads=2,
    )
    assert summary.rejected == {"not of the size of the others": 1}
    write(tmp_path / "imgs" / "000.png", png(photo(0, 12, 9)))
    with pytest.raises(SourceError, match=r"not of one size .*--resize-mode"):
        pack(tmp_path / "imgs", tmp_path / "c", "memmap", encode="raw")
    assert not (tmp_path / "c.partial").exists()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of some size, two of them turned, one progressive, and a PNG."""
    root = tmp_path_factory.mktemp("photos") / "imgs"
    for i in range(6):
        pixels = photo(i, 300 + 17 * i, 220)
        write(root / "a" / f"{i}.jpg", jpeg(pixels, [None, 3, 6][i % 3], progressive=i == 5))
    write(root / "a" / "9.png", png(photo(9, 90, 70)))
    return root


@pytest.mark.parametrize("options", [{"encode": "jpeg"}, {"resize": 150}, {"seekable": True}])
def test_crops_of_a_seekable_pack_are_those_of_the_whole_image(
    photos: Path,
    tmp_path: Path,
    format_name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "seekable" in options and shutil.which("jpegtran") is None:
        pytest.skip("needs jpegtran (apt: libjpeg-turbo-progs)")
    opened = readers.open(pack(photos, tmp_path / "pack", format_name, **options))
    found = [opened.segments(row) for row in range(len(opened))]
    assert sum(segments is not None for segments in found) == (
        5 if "seekable" in options else 7 - ("resize" in options)
    )
    for row, segments in enumerate(found):
        if segments is not None:
            assert np.array_equal(segments, seekable.segment_offsets(opened.read(row)))
    assert verify(opened.path, decode_images=True, threads=2).ok
    loader = BatchLoader(opened.path, 3, size=64, seed=5, exact=True, drop_last=False)
    with_segments = [batch.images.copy() for _ in range(2) for batch in loader]
    monkeypatch.setattr(type(opened), "segments", lambda self, row: None)
    loader = BatchLoader(opened.path, 3, size=64, seed=5, exact=True, drop_last=False)
    without = [batch.images.copy() for _ in range(2) for batch in loader]
    assert all(np.array_equal(a, b) for a, b in zip(with_segments, without, strict=True))


def test_an_ordinary_pack_has_no_further_columns(pack_path: Path) -> None:
    names = {path.name for path in (pack_path / "index").iterdir()}
    assert not any("segment" in name or "odd" in name for name in names)
    assert readers.open(pack_path).segments(0) is None
    assert readers.open(pack_path).odd_rule(0) is None


def test_verify_finds_segments_that_are_not_the_images(photos: Path, tmp_path: Path) -> None:
    path = pack(photos, tmp_path / "pack", "memmap", encode="jpeg")
    column = np.load(path / "index" / "image.segments.npy")
    bounds = np.load(path / "index" / "image.segment_offset.npy")
    column[bounds[2] + 3] += 1
    np.save(path / "index" / "image.segments.npy", column)
    findings = verify(path, decode_images=True, threads=2).findings
    assert {finding.index for finding in findings} == {None, 2}
    np.save(path / "index" / "image.segments.npy", column[:-1])
    assert any("segment" in str(f) for f in verify(path, quick=True, threads=2).findings)


def test_an_interrupted_run_keeps_its_segments_and_changes(photos: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop_late(done: int, num_bytes: int, total: int) -> None:
        if done > 4:
            raise Stop

    options = Options("memmap", 20_000, pixels=PixelOptions(encode="jpeg"))
    whole = convert(photos, tmp_path / "whole", options, threads=2)
    with pytest.raises(Stop):
        convert(photos, tmp_path / "pack", options, threads=1, progress=stop_late)
    other = Options("memmap", 20_000, pixels=PixelOptions(encode="jpeg", quality=80))
    with pytest.raises(DspackError, match="pixels"):
        convert(photos, tmp_path / "pack", other, threads=2)
    summary = convert(photos, tmp_path / "pack", options, threads=2)
    assert summary.num_resumed > 0
    assert (summary.content_digest, summary.changed) == (whole.content_digest, whole.changed)
    for name in ("segments", "segment_offset"):
        a, b = (tmp_path / p / "index" / f"image.{name}.npy" for p in ("pack", "whole"))
        assert a.read_bytes() == b.read_bytes()


# The command line


@pytest.fixture
def dspack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    class_folder(tmp_path / "imgs")
    write(tmp_path / "imgs" / "class_0" / "x.png", KINDS["RGBA"][0])
    return lambda *arguments: CliRunner().invoke(main, ["convert", "imgs", *arguments])


def test_the_summary_tells_what_was_changed(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "memmap", "--background", "#102030")
    assert result.exit_code == 0
    assert "1 x PNG RGBA to RGB PNG" in result.output
    opened = readers.open("imgs.memmap")
    assert np.abs(opened.image(4).astype(int) - KINDS["RGBA"][1]).max() <= 1
    info = CliRunner().invoke(main, ["info", "imgs.memmap"])
    assert "1 x PNG RGBA to RGB PNG" in info.output


def test_resize_and_encode_from_the_command_line(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "lmdb", "--resize", "20", "--encode", "jpeg", "--quality", "80")
    assert result.exit_code == 0, result.output
    opened = readers.open("imgs.lmdb")
    assert min(opened.index["width"].min(), opened.index["height"].min()) == 20
    assert opened.manifest.made["pixels"]["quality"] == 80
    assert dspack("--to", "hdf5", "--resize", "20", "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--encode", "raw", "--resize", "20"],
        ["--keep-bytes", "--resize", "20"],
        ["--background", "mauvish"],
        ["--background", "#10203040"],
        ["--resize-mode", "pad"],
    ],
)
def test_wrong_use_is_exit_code_2(dspack: Callable[..., Any], arguments: list[str]) -> None:
    result = dspack("--to", "memmap", *arguments)
    assert result.exit_code == 2, result.output


def test_raw_without_one_size_is_an_error_before_work_starts(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "memmap", "--encode", "raw")
    assert result.exit_code == 5
    assert "--resize-mode exact" in result.output
    assert not Path("imgs.memmap.partial").exists()


def test_transform_is_never_asked_about_plain_files() -> None:
    image = inspect(jpeg(PHOTO))
    assert image == Image("JPEG", 48, 32)
    with pytest.raises(Reject):
        transform(KINDS["16-bit grey"][0], inspect(KINDS["16-bit grey"][0]), PixelOptions())
