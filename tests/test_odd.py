"""Odd images become the right pixels, whether they are stored as RGB or as they are."""

from __future__ import annotations

import base64
import struct

import cv2
import numpy as np
import pytest
import simplejpeg
from images import in_png_header, jpeg, png, png_chunk, tiff_block
from odd_kinds import ALPHA, GREY, HOW, KINDS, PHOTO, WIDE, from_inks, patched, rgb, several
from one_file import pixels_of, prepared, reason, saved, warnings_of
from PIL import Image as Pillow
from PIL import features

from packer.images.colour import foreign_profile
from packer.images.inspect import inspect
from packer.images.pixels import MAX_PIXELS, PixelOptions
from readers.decode import UndecodableError, decode, decode_region, upright
from readers.odd import Rule, canonical, squeeze

ORIENTATION = 0x0112


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
    assert pixels.flags.writeable  # as those of plain images: a transform may change them
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
        "PNG, raw APP1 profile": in_png_header(
            png(PHOTO), png_chunk(b"tEXt", profile.replace(b"exif\0", b"APP1\0"))
        ),
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
    kept = prepared(data, depth="shift", keep_bytes=True)
    assert kept.image is not None
    rule = PixelOptions(depth="shift").rule
    assert np.array_equal(decode(data, kept.image.orientation, rule), expected)
    height, width, _ = expected.shape
    assert (kept.image.width, kept.image.height) == (width, height)
    region = decode_region(data, kept.image.orientation, (width, height), (3, 5, 20, 9), rule=rule)
    assert np.array_equal(region, expected[5:14, 3:23])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_odd_jpegs_are_turned_by_exif(orientation: int) -> None:
    data = saved(PHOTO, "JPEG", keep_rgb=True, quality=100, exif=turned_exif(orientation))
    expected = upright(simplejpeg.decode_jpeg(data, "RGB"), orientation)
    assert np.array_equal(pixels_of(data), expected)
    kept = prepared(data, keep_bytes=True)
    assert kept.image is not None
    assert kept.image.orientation == orientation
    assert np.array_equal(decode(data, orientation, PixelOptions().rule), expected)


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


@pytest.mark.parametrize("frame", range(3))
@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "PNG"])
def test_a_frame_can_be_asked_for(kind: str, frame: int) -> None:
    assert (pixels_of(several(kind, 3), frame=frame) == 40 * frame).all()
    assert reason(several(kind, 3), frame=3) == "has no such frame"
    assert (pixels_of(several(kind, 1), frame=frame) == 0).all()  # it has no other


def test_a_multi_page_tiff_is_rejected_with_the_number_of_its_several() -> None:
    reject = prepared(several("TIFF", 5)).reject
    assert reject is not None
    assert str(reject) == "several pages, needs --frame (5 pages)"


@pytest.mark.parametrize(("kind", "name"), [("GIF", "GIF"), ("WEBP", "WebP"), ("PNG", "PNG")])
def test_the_first_frame_of_an_animation_is_packed_with_a_warning(kind: str, name: str) -> None:
    assert (pixels_of(several(kind, 3)) == 0).all()
    assert warnings_of(several(kind, 3)) == (f"animated {name}, its first frame is packed",)
    assert prepared(several(kind, 3)).change == f"animated {name} to RGB PNG"


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
    assert warnings_of(data) == ("colour profile Display P3, taken as sRGB; --icc srgb converts",)
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


@pytest.mark.parametrize("name", ["palette", "TIFF", "WebP", "GIF", "BMP"])
def test_the_limit_reaches_pillow_and_only_grows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow has one for the whole process, and threads that look at images of many sizes."""
    data, _ = KINDS[name]
    for keep_bytes in (False, True):
        monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 48 * 32 // 3)
        found = prepared(data, max_pixels=48 * 32, keep_bytes=keep_bytes)
        assert found.reject is None
        assert Pillow.MAX_IMAGE_PIXELS == 48 * 32
        prepared(data, max_pixels=10)
        assert Pillow.MAX_IMAGE_PIXELS == 48 * 32


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
