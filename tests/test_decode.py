"""Stored bytes to pixels: uint8, RGB, upright, and the same as other decoders'."""

from __future__ import annotations

from io import BytesIO

import cv2
import numpy as np
import pytest
from images import in_jpeg_header, jpeg, jpeg_segment, photo, png
from PIL import Image, ImageOps

from readers.decode import UndecodableError, decode, upright


def by_pillow(data: bytes) -> np.ndarray:
    """Upright RGB by Pillow's own rules."""
    with Image.open(BytesIO(data)) as image:
        return np.asarray(ImageOps.exif_transpose(image).convert("RGB"))


def by_opencv(data: bytes) -> np.ndarray:
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    return cv2.imdecode(np.frombuffer(data, np.uint8), flags)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_is_applied_as_pillow_does(orientation: int) -> None:
    data = jpeg(photo(width=40, height=24), orientation)
    pixels = decode(data, orientation)
    assert np.array_equal(pixels, by_pillow(data))
    assert pixels.shape == ((24, 40, 3) if orientation <= 4 else (40, 24, 3))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_orientation_moves_the_corners_as_exif_says(orientation: int) -> None:
    """EXIF 2.3, tag 0x0112: which corner of the upright image the stored 0th row and 0th column
    are at."""
    stored = np.arange(6, dtype=np.uint8).reshape(2, 3)[:, :, None].repeat(3, axis=2)
    first_row = ["top", "top", "bottom", "bottom", "left", "right", "right", "left"]
    first_column = ["left", "right", "right", "left", "top", "top", "bottom", "bottom"]
    side = {
        "top": lambda image: image[0],
        "bottom": lambda image: image[-1],
        "left": lambda image: image[:, 0],
        "right": lambda image: image[:, -1],
    }
    turned = upright(stored, orientation)[:, :, 0]
    assert set(side[first_row[orientation - 1]](turned)) == {0, 1, 2}
    assert set(side[first_column[orientation - 1]](turned)) == {0, 3}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pixels_are_contiguous_and_the_caller_s_own(orientation: int) -> None:
    for data in (jpeg(photo()), png(photo())):
        pixels = decode(data, orientation)
        assert pixels.dtype == np.uint8
        assert pixels.flags.c_contiguous and pixels.flags.writeable
        pixels[:] = 0
        assert decode(data, orientation).any()


def test_the_orientation_comes_from_the_caller_alone() -> None:
    """The index has the one that packing found; a decoder that looks too would turn it twice."""
    turned, plain = jpeg(photo(), 6), jpeg(photo())
    assert np.array_equal(decode(turned), decode(plain))
    assert np.array_equal(decode(plain, 6), by_pillow(turned))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quality": 40},
        {"subsampling": 0},
        {"subsampling": 1},
        {"progressive": True},
        {"optimize": True, "quality": 100},
        {"restart_marker_blocks": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(48, 32), (33, 17), (1, 1)], ids=str)
def test_a_jpeg_has_pillow_s_and_opencv_s_pixels(
    options: dict[str, object], size: tuple[int, int]
) -> None:
    data = jpeg(photo(3, *size), **options)
    pixels = decode(data)
    assert np.array_equal(pixels, by_pillow(data))
    assert np.array_equal(pixels, by_opencv(data))


def test_a_png_has_its_very_pixels() -> None:
    assert np.array_equal(decode(png(photo())), photo())
    assert np.array_equal(decode(memoryview(png(photo()))), photo())


@pytest.mark.parametrize("encode", [jpeg, png])
def test_grey_becomes_three_channels(encode: object) -> None:
    data = encode(photo()[:, :, 1])  # type: ignore[operator]
    pixels = decode(data)
    assert pixels.shape == (32, 48, 3)
    assert np.array_equal(pixels, by_pillow(data))
    assert (pixels == pixels[:, :, :1]).all()


def test_red_stays_red() -> None:
    red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
    assert (decode(png(red)) == (255, 0, 0)).all()
    difference = np.abs(decode(jpeg(red, quality=100, subsampling=0)).astype(int) - (255, 0, 0))
    assert difference.max() <= 1


def test_stray_bytes_between_headers_do_no_harm() -> None:
    data = in_jpeg_header(jpeg(photo()), jpeg_segment(0xFE, b"comment"), b"\0\0stray")
    assert np.array_equal(decode(data), decode(jpeg(photo())))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"no image at all",
        b"\xff\xd8\xff",
        jpeg(photo())[:100],
        b"\x89PNG\r\n\x1a\n",
        png(photo())[:40],
        b"GIF89a",
        bytes(5000),
    ],
    ids=lambda data: repr(data[:10]),
)
def test_what_cannot_be_decoded_is_told(data: bytes) -> None:
    with pytest.raises(UndecodableError) as caught:
        decode(data)
    assert str(caught.value)
