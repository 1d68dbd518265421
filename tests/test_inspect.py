"""What a file really is: every kind is accepted as it is, or rejected for the right reason."""

from __future__ import annotations

import contextlib
import struct
import zlib
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import (
    in_jpeg_header,
    in_png_header,
    jpeg,
    jpeg_segment,
    photo,
    png,
    png_chunk,
    tiff_block,
)
from one_file import OneFile
from PIL import Image as Pillow
from PIL import ImageOps

from packer.images import inspect as inspection
from packer.images.inspect import MAX_PIXELS, Image, Reject, exif_orientation, inspect
from packer.prepare import Prepared, prepare
from readers.decode import decode

PHOTO = photo()  # 48 x 32
GREY = np.ascontiguousarray(PHOTO[..., 0])
JFIF, EXIF, MPF, ADOBE, COMMENT = 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
ORIENTATION = 0x0112


def prepared(data: bytes, *, decode: bool = True) -> Prepared:
    """The file as convert prepares it, with --check decode or header."""
    return prepare(OneFile(data), "file", 0, decode)


def accepted(data: bytes) -> Image:
    """What an accepted file is; and its bytes are stored unchanged, and decode to its size."""
    result = prepared(data)
    assert result.reject is None
    assert result.data == data
    image = result.image
    assert image is not None
    assert decode(result.data, image.orientation).shape == (image.height, image.width, 3)
    assert prepared(data, decode=False).reject is None
    return image


def reason(data: bytes, *, decode: bool = True) -> str:
    """Why a file is rejected."""
    result = prepared(data, decode=decode)
    assert result.reject is not None, result.image
    return result.reject.reason


def oddity(data: bytes) -> str | None:
    """What a file is that decoders disagree on, by its header."""
    return inspect(data).odd


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def frame(data: bytes) -> int:
    """Where the frame header's marker starts: FF, SOF, length, precision, height, width."""
    return next(data.index(b"\xff" + sof) for sof in (b"\xc0", b"\xc2") if b"\xff" + sof in data)


def scan(data: bytes) -> int:
    """Where the coded data of a baseline JPEG of three components start."""
    return data.index(b"\xff\xda") + 14


def with_exif(tiff: bytes) -> bytes:
    return in_jpeg_header(jpeg(PHOTO), jpeg_segment(EXIF, b"Exif\0\0" + tiff))


def saved(image: Pillow.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


# JPEG


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(jpeg(PHOTO), id="baseline"),
        pytest.param(jpeg(PHOTO, progressive=True), id="progressive"),
        pytest.param(jpeg(GREY), id="grey"),
        pytest.param(jpeg(PHOTO, subsampling="4:4:4"), id="4:4:4"),
        pytest.param(jpeg(PHOTO, subsampling="4:2:2"), id="4:2:2"),
        pytest.param(jpeg(PHOTO, subsampling="4:2:0"), id="4:2:0"),
        pytest.param(jpeg(PHOTO, restart_marker_blocks=1), id="restart markers"),
        pytest.param(jpeg(PHOTO, quality=100, optimize=True), id="own Huffman tables"),
    ],
)
def test_an_ordinary_jpeg_is_packed_as_it_is(data: bytes) -> None:
    assert accepted(data) == Image("JPEG", 48, 32)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read_and_the_size_is_upright(
    orientation: int, kind: int, order: str
) -> None:
    data = with_exif(tiff_block((ORIENTATION, kind, orientation), order=order))
    image = accepted(data)
    turned = ImageOps.exif_transpose(Pillow.open(BytesIO(data)))
    assert image.orientation == orientation
    assert (image.width, image.height) == turned.size
    assert image.warnings == ()


@pytest.mark.parametrize(
    "tiff",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"II*\0", id="cut header"),
        pytest.param(b"XX*\0" + bytes(20), id="no TIFF"),
        pytest.param(b"II*\0" + b"\xff" * 20, id="directory outside"),
        pytest.param(b"II*\0\x08\0\0\0\xff\xff", id="directory cut"),
        pytest.param(tiff_block((ORIENTATION, 3, 9)), id="orientation 9"),
        pytest.param(tiff_block((ORIENTATION, 2, 6)), id="orientation as text"),
    ],
)
def test_broken_exif_means_upright_with_a_warning(tiff: bytes) -> None:
    image = accepted(with_exif(tiff))
    assert image == Image("JPEG", 48, 32, 1, ("broken EXIF, taken as upright",))


@pytest.mark.parametrize("tiff", [tiff_block((ORIENTATION, 3, 0)), tiff_block((0x0100, 4, 7))])
def test_exif_that_states_no_orientation_means_upright(tiff: bytes) -> None:
    assert accepted(with_exif(tiff)) == Image("JPEG", 48, 32)


def test_the_first_exif_block_counts() -> None:
    second = jpeg_segment(EXIF, b"Exif\0\0" + tiff_block((ORIENTATION, 3, 3)))
    data = jpeg(PHOTO, 6)
    at = data.index(b"\xff\xdb")
    assert accepted(data[:at] + second + data[at:]).orientation == 6


def test_exif_text_in_another_segment_is_no_exif() -> None:
    comment = jpeg_segment(COMMENT, b"Exif\0\0" + tiff_block((ORIENTATION, 3, 6)))
    assert accepted(in_jpeg_header(jpeg(PHOTO), comment)).orientation == 1


def test_fill_bytes_before_a_marker_are_no_damage() -> None:
    data = jpeg(PHOTO, 6)
    assert accepted(in_jpeg_header(data, b"\xff" * 5)) == accepted(data)


@pytest.mark.parametrize("junk", [b"\x01", b"junk", b"\0" * 30, b"\xff\0 \xff\xd0"])
def test_stray_bytes_between_headers_are_a_warning(junk: bytes) -> None:
    data = jpeg(PHOTO)
    at = data.index(b"\xff\xdb")
    image = accepted(data[:at] + junk + data[at:])
    assert image.warnings == ("stray bytes in a JPEG",)
    assert np.array_equal(decode(data[:at] + junk + data[at:]), decode(data))


def test_stray_bytes_do_not_hide_missing_data() -> None:
    data = jpeg(PHOTO)
    at = data.index(b"\xff\xdb")
    cut = data[:at] + b"junk" + data[at : scan(data) + 100] + b"\xff\xd9"
    assert reason(cut) == "image data missing"


def test_tables_lost_in_stray_bytes_are_damage_or_do_no_harm() -> None:
    data = jpeg(PHOTO)
    at = 2
    while data[at + 1] != 0xDA:
        only_rejects(patched(data, at, b"\0"))  # readers can decode it, or it is rejected
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    assert reason(patched(data, data.index(b"\xff\xdb"), b"\0")) == "damaged image data"


def test_padding_before_the_end_marker_is_a_warning() -> None:
    data = jpeg(PHOTO)
    image = accepted(data[:-2] + b"\0\0\0" + data[-2:])
    assert image.warnings == ("stray bytes in a JPEG",)


def test_bytes_after_the_end_are_kept() -> None:
    assert accepted(jpeg(PHOTO) + bytes(4096)).warnings == ()
    assert accepted(jpeg(PHOTO) + b"<html>").warnings == ("bytes after the end of a JPEG",)
    assert accepted(jpeg(PHOTO) + jpeg(GREY)).warnings == ()


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 1}])
def test_a_jpeg_without_its_end_marker_gets_one(options: dict[str, object]) -> None:
    whole = jpeg(PHOTO, **options)
    result = prepared(whole[:-2])
    assert result.data == whole
    assert result.image is not None
    assert result.image.warnings == ("a JPEG without its end marker, one was added",)


def test_a_jpeg_without_its_end_marker_needs_a_closer_look_than_its_header() -> None:
    assert reason(jpeg(PHOTO)[:-2], decode=False) == "image data missing"


@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(jpeg(photo(3, 17, 19)), id="baseline"),
        pytest.param(jpeg(photo(3, 17, 19), 6, progressive=True), id="progressive"),
        pytest.param(jpeg(photo(3, 17, 19)[..., 0]), id="grey"),
        pytest.param(jpeg(photo(3, 17, 19), restart_marker_blocks=1), id="restart markers"),
        pytest.param(saved(Pillow.fromarray(PHOTO).convert("CMYK"), "JPEG"), id="Adobe"),
    ],
)
def test_a_jpeg_cut_anywhere_is_rejected(whole: bytes) -> None:
    for stop in {*range(len(whole))} - {len(whole) - 2}:
        expected = {"image data missing", "damaged image data"}
        if stop < 3:
            expected = {"empty file", "not an image"}
        assert reason(whole[:stop]) in expected, stop


@pytest.mark.parametrize("num_kept", [40, 400])
def test_a_cut_jpeg_filled_up_with_zeros_is_rejected(num_kept: int) -> None:
    whole = jpeg(PHOTO)
    stop = scan(whole) + num_kept
    assert reason(whole[:stop] + bytes(len(whole) - stop)) == "image data missing"


def test_a_jpeg_that_ends_early_is_rejected_though_it_has_its_end_marker() -> None:
    whole = jpeg(PHOTO)
    assert reason(whole[: scan(whole) + 100] + b"\xff\xd9") == "image data missing"


def test_a_second_picture_in_the_file_is_a_warning() -> None:
    data = in_jpeg_header(jpeg(PHOTO), jpeg_segment(MPF, b"MPF\0" + bytes(8)))
    assert accepted(data + jpeg(GREY)).warnings == (
        "more than one picture in the file, the first is packed",
    )


def test_cmyk_and_ycck_are_odd() -> None:
    cmyk = saved(Pillow.fromarray(PHOTO).convert("CMYK"), "JPEG")
    adobe = cmyk.index(b"Adobe")
    assert oddity(cmyk) == "CMYK JPEG"
    assert oddity(patched(cmyk, adobe + 11, b"\x02")) == "YCCK JPEG"
    without_marker = cmyk[: adobe - 4] + cmyk[adobe + 12 :]
    assert oddity(without_marker) == "CMYK JPEG"


def adobe_segment(transform: int) -> bytes:
    return jpeg_segment(ADOBE, b"Adobe\0\x64\0\0\0\0" + bytes([transform]))


def without_jfif(data: bytes) -> bytes:
    (length,) = struct.unpack_from(">H", data, 4)
    assert data[6:10] == b"JFIF"
    return data[:2] + data[4 + length :]


def named(data: bytes, names: bytes) -> bytes:
    """A JPEG whose three components have other names, in its frame and in its scan."""
    start, start_of_scan = frame(data) + 10, data.index(b"\xff\xda") + 5
    for i in range(3):
        data = patched(data, start + 3 * i, names[i : i + 1])
        data = patched(data, start_of_scan + 2 * i, names[i : i + 1])
    return data


def test_rgb_jpegs_are_odd() -> None:
    bare = without_jfif(jpeg(PHOTO, subsampling=0))
    assert oddity(saved(Pillow.fromarray(PHOTO), "JPEG", keep_rgb=True)) == "RGB JPEG"
    assert oddity(in_jpeg_header(bare, adobe_segment(0))) == "RGB JPEG"
    assert oddity(named(bare, b"RGB")) == "RGB JPEG"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(without_jfif(jpeg(PHOTO)), id="no marker"),
        pytest.param(in_jpeg_header(without_jfif(jpeg(PHOTO)), adobe_segment(1)), id="Adobe 1"),
        pytest.param(in_jpeg_header(jpeg(PHOTO), adobe_segment(0)), id="JFIF before Adobe 0"),
        pytest.param(named(jpeg(PHOTO), b"RGB"), id="JFIF before names"),
        pytest.param(
            in_jpeg_header(named(without_jfif(jpeg(PHOTO)), b"RGB"), adobe_segment(1)),
            id="Adobe before names",
        ),
    ],
)
def test_ycbcr_is_told_from_rgb_as_libjpeg_does(data: bytes) -> None:
    assert accepted(data) == Image("JPEG", 48, 32)
    assert np.array_equal(decode(data), np.asarray(Pillow.open(BytesIO(data))))
    assert np.array_equal(decode(data), decode(jpeg(PHOTO)))


@pytest.mark.parametrize("sof", [0xC9, 0xCA])
def test_arithmetic_coding_is_odd(sof: int) -> None:
    data = jpeg(PHOTO)
    data = patched(data, frame(data) + 1, bytes([sof]))
    assert oddity(data) == "arithmetic-coded JPEG"


@pytest.mark.parametrize("sof", [0xC3, 0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF])
def test_processes_that_no_decoder_knows_are_rejected(sof: int) -> None:
    data = jpeg(PHOTO)
    data = patched(data, frame(data) + 1, bytes([sof]))
    assert reason(data) == "unsupported JPEG process"


def test_odd_frames_are_rejected() -> None:
    data = jpeg(PHOTO)
    at = frame(data)
    header = data[at : at + 19]
    assert reason(patched(data, at + 4, b"\x0c")) == "unsupported JPEG process"  # 12 bits
    assert reason(patched(data, at + 9, b"\x02")) == "unsupported JPEG process"  # components
    assert reason(data[:at] + header + data[at:]) == "unsupported JPEG process"  # twice
    assert reason(patched(data, at + 5, b"\0\0")) == "damaged image data"  # height 0
    assert reason(patched(data, at + 7, b"\0\0")) == "damaged image data"  # width 0
    assert reason(data[:at] + data[at + 19 :]) == "image data missing"  # none
    strange_sampling = patched(patched(data, at + 11, b"\x31"), at + 14, b"\x11")
    assert reason(strange_sampling) == "unsupported JPEG process"


def test_a_picture_without_a_scan_is_rejected() -> None:
    data = jpeg(PHOTO)
    assert reason(data[: data.index(b"\xff\xda")] + b"\xff\xd9") == "image data missing"


@pytest.mark.parametrize(("width", "height"), [(65535, 65535), (MAX_PIXELS // 3000 + 1, 3000)])
def test_huge_dimensions_are_rejected_by_the_header_alone(width: int, height: int) -> None:
    data = jpeg(PHOTO)
    data = patched(data, frame(data) + 5, struct.pack(">HH", height, width))
    with pytest.raises(Reject, match="too many pixels"):
        inspect(data)
    ihdr = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    with pytest.raises(Reject, match="too many pixels"):
        inspect(patched(png(PHOTO), 8, png_chunk(b"IHDR", ihdr)))


# PNG


def interlaced(pixels: np.ndarray) -> bytes:
    """An RGB PNG in Adam7 order."""
    height, width, _ = pixels.shape
    rows = b""
    for x, y, dx, dy in (
        *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
        *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
    ):
        rows += b"".join(b"\0" + row.tobytes() for row in pixels[y::dy, x::dx])
    ihdr = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 1)
    chunks = [(b"IHDR", ihdr), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def chunk_starts(data: bytes) -> list[int]:
    starts, at = [], 8
    while at < len(data):
        starts.append(at)
        at += 12 + int.from_bytes(data[at : at + 4], "big")
    return starts


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(png(PHOTO), id="RGB"),
        pytest.param(png(GREY), id="grey"),
        pytest.param(interlaced(PHOTO), id="interlaced"),
        pytest.param(png(PHOTO) + b"behind the end", id="bytes behind the end"),
        pytest.param(png(PHOTO, dpi=(72, 72)), id="with a size on paper"),
    ],
)
def test_a_plain_png_is_packed_as_it_is(data: bytes) -> None:
    assert accepted(data) == Image("PNG", 48, 32)
    grey = Pillow.open(BytesIO(data)).mode == "L"
    assert np.array_equal(decode(data), np.stack([GREY] * 3, -1) if grey else PHOTO)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (saved(Pillow.fromarray(PHOTO).convert("P"), "PNG"), "PNG palette"),
        (saved(Pillow.fromarray(PHOTO).quantize(4), "PNG"), "PNG palette, 2 bits"),
        (saved(Pillow.fromarray(PHOTO).convert("LA"), "PNG"), "PNG grey and alpha"),
        (saved(Pillow.fromarray(PHOTO).convert("RGBA"), "PNG"), "PNG RGBA"),
        (saved(Pillow.fromarray(PHOTO).convert("1"), "PNG"), "PNG grey, 1 bits"),
        (saved(Pillow.fromarray(GREY.astype("u2") << 8), "PNG"), "PNG grey, 16 bits"),
        (png(PHOTO, transparency=(1, 2, 3)), "PNG with a transparent colour"),
        (
            png(PHOTO, save_all=True, append_images=[Pillow.fromarray(PHOTO[::-1])]),
            "animated PNG",
        ),
    ],
)
def test_odd_pngs_are_told_by_their_header(data: bytes, expected: str) -> None:
    assert oddity(data) == expected


def raw_profile(tiff: bytes) -> bytes:
    """EXIF as ImageMagick writes it into a PNG's text."""
    digits = (b"Exif\0\0" + tiff).hex().encode()
    return b"Raw profile type exif\0\nexif\n%8d\n" % (len(digits) // 2) + digits + b"\n"


def orientation_chunks(orientation: int) -> dict[str, bytes]:
    """All the ways in which tools write an orientation into a PNG."""
    tiff = tiff_block((ORIENTATION, 3, orientation), order=">")
    keyword, _, text = raw_profile(tiff).partition(b"\0")
    xmp = b'<rdf:Description tiff:Orientation="%d"/>' % orientation
    start = b"XML:com.adobe.xmp\0"
    return {
        "eXIf": png_chunk(b"eXIf", tiff),
        "tEXt": png_chunk(b"tEXt", keyword + b"\0" + text),
        "zTXt": png_chunk(b"zTXt", keyword + b"\0\0" + zlib.compress(text)),
        "XMP": png_chunk(b"iTXt", start + b"\0\0\0\0" + xmp),
        "XMP as element": png_chunk(
            b"iTXt", start + b"\0\0\0\0<tiff:Orientation>%d</tiff:Orientation>" % orientation
        ),
        "compressed XMP": png_chunk(b"iTXt", start + b"\1\0\0\0" + zlib.compress(xmp)),
    }


COMMENT_CHUNKS = [
    png_chunk(b"tEXt", b"date:create\0today"),
    png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"hello")),
    png_chunk(b"iTXt", b"Title\0\0\0\0\0hello"),
]


@pytest.mark.parametrize("where", orientation_chunks(1))
def test_a_png_that_is_not_upright_is_odd(where: str) -> None:
    # Behind and before other texts: every one of them is looked at.
    turned = orientation_chunks(6)[where]
    for chunks in ([turned, *COMMENT_CHUNKS], [*COMMENT_CHUNKS, turned]):
        data = in_png_header(png(PHOTO), *chunks)
        assert oddity(data) == "PNG with an orientation"
        image = inspect(data)
        assert (image.orientation, image.width, image.height) == (6, 32, 48)


@pytest.mark.parametrize("where", orientation_chunks(1))
def test_a_png_that_says_it_is_upright_is_plain(where: str) -> None:
    data = in_png_header(png(PHOTO), orientation_chunks(1)[where], *COMMENT_CHUNKS)
    assert accepted(data) == Image("PNG", 48, 32)


@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"eXIf", b"II*\0" + b"\xff" * 20),
        png_chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 4\nno hex"),
        png_chunk(b"zTXt", b"Raw profile type exif\0\0not deflated"),
    ],
)
def test_broken_exif_in_a_png_means_upright_with_a_warning(chunk: bytes) -> None:
    image = accepted(in_png_header(png(PHOTO), chunk))
    assert image == Image("PNG", 48, 32, 1, ("broken EXIF, taken as upright",))


def test_a_wrong_checksum_in_any_png_chunk_is_damage() -> None:
    data = in_png_header(png(PHOTO), *COMMENT_CHUNKS)
    for start, stop in zip(chunk_starts(data), [*chunk_starts(data)[1:], len(data)], strict=True):
        flipped = patched(data, stop - 1, bytes([data[stop - 1] ^ 1]))
        assert reason(flipped) == "damaged image data", data[start + 4 : start + 8]
        assert reason(flipped, decode=False) == "damaged image data"


def test_a_png_cut_anywhere_is_rejected() -> None:
    data = png(photo(3, 9, 7))
    for stop in range(8, len(data)):
        assert reason(data[:stop], decode=False) == "image data missing"


@pytest.mark.parametrize("num_kept", [0, 1, 100, -4, -1])
def test_png_data_that_end_early_are_damage_though_all_checksums_are_right(num_kept: int) -> None:
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for row in PHOTO))
    whole = png(PHOTO)
    data = whole[:33] + png_chunk(b"IDAT", rows[:num_kept]) + whole[-12:]
    assert reason(data) == "damaged image data"


@pytest.mark.parametrize(
    "ihdr",
    [
        struct.pack(">IIBBBBB", 0, 32, 8, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 48, 0, 8, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 48, 32, 8, 5, 0, 0, 0),
        struct.pack(">IIBBBBB", 48, 32, 0, 2, 0, 0, 0),
        struct.pack(">IIBBBBB", 48, 32, 99, 2, 0, 0, 0),
    ],
)
def test_a_png_header_that_makes_no_sense_is_damage(ihdr: bytes) -> None:
    assert reason(patched(png(PHOTO), 8, png_chunk(b"IHDR", ihdr))) == "damaged image data"


def test_a_png_without_its_header_or_data_is_damage() -> None:
    data = png(PHOTO)
    assert reason(data[:8] + data[33:]) == "damaged image data"
    assert reason(data[:33] + data[-12:]) == "damaged image data"


# Anything else


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "empty file"),
        (bytes(16384), "all bytes are zero"),
        (b"<html>404 not found</html>", "not an image"),
        (b"\xff\xd8", "not an image"),
        (b"\0\5\x16\7\0\2\0\0Mac OS X        ", "not an image"),  # an AppleDouble file
        (saved(Pillow.fromarray(PHOTO), "ICO"), "unsupported kind of file: icon"),
        (saved(Pillow.fromarray(PHOTO), "PDF"), "unsupported kind of file: PDF"),
        (b"8BPS\0\1" + bytes(20), "unsupported kind of file: PSD"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "unsupported kind of file: HEIF"),
        (b"MM\0*" + bytes(8), "damaged image data"),
        (b"GIF89a", "damaged image data"),
    ],
)
def test_other_files_are_rejected_by_their_bytes(data: bytes, expected: str) -> None:
    assert reason(data) == expected
    assert reason(data, decode=False) == expected


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP", "PPM"])
def test_other_images_are_told_by_their_bytes(kind: str) -> None:
    expected = {"WEBP": "WebP", "PPM": "PNM"}.get(kind, kind)
    assert oddity(saved(Pillow.fromarray(PHOTO), kind)) == expected


def only_rejects(data: bytes) -> None:
    """Whatever the bytes are: an image that readers can decode, or a Reject, and nothing else."""
    result = prepared(data)
    if result.reject is None:
        image = result.image
        assert image is not None
        assert decode(result.data, image.orientation).shape == (image.height, image.width, 3)


MAGICS = (
    b"",
    b"\xff\xd8\xff",
    b"\xff\xd8\xff\xee\0\x0eAdobe",
    b"\x89PNG\r\n\x1a\n",
    b"RIFF",
    b"BM",
)


@settings(deadline=None)
@given(st.sampled_from(MAGICS), st.binary(max_size=200))
def test_arbitrary_bytes_are_a_reject(magic: bytes, data: bytes) -> None:
    only_rejects(magic + data)


WHOLE = [
    jpeg(PHOTO, 6),
    jpeg(PHOTO, progressive=True),
    jpeg(GREY, restart_marker_blocks=1),
    saved(Pillow.fromarray(PHOTO).convert("CMYK"), "JPEG"),
    in_png_header(png(PHOTO), *orientation_chunks(1).values()),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A JPEG or a PNG with a few bytes changed, added or removed; checksums are mended or not."""
    data = draw(st.sampled_from(WHOLE))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, min(len(data), draw(st.sampled_from([40, 700, 4000])))))
        new = draw(st.binary(max_size=3))
        data = data[:at] + new + data[at + draw(st.sampled_from([len(new), 0, 1, 20])) :]
    if data.startswith(b"\x89PNG") and draw(st.booleans()):
        data = with_mended_checksums(data)
    return data


def with_mended_checksums(data: bytes) -> bytes:
    mended, at = data[:8], 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        mended += png_chunk(data[at + 4 : at + 8], data[at + 8 : at + 8 + length])
        at += 12 + length
    return mended


@settings(deadline=None)
@given(mutated())
def test_a_damaged_image_is_a_reject_or_decodes(data: bytes) -> None:
    only_rejects(data)


# EXIF


@settings(deadline=None)
@given(st.binary(max_size=80) | st.binary(max_size=80).map(lambda tail: b"II*\0" + tail))
def test_arbitrary_exif_is_an_orientation_or_a_value_error(block: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert 1 <= exif_orientation(block) <= 8


@settings(deadline=None)
@given(
    st.dictionaries(
        st.integers(0x0100, 0x0131) | st.just(ORIENTATION),
        st.tuples(st.sampled_from([3, 4]), st.integers(0, 12)),
        max_size=6,
    ),
    st.sampled_from("<>"),
)
def test_exif_orientation_is_the_one_pillow_finds(
    entries: dict[int, tuple[int, int]], order: str
) -> None:
    block = tiff_block(*((tag, *entry) for tag, entry in sorted(entries.items())), order=order)
    exif = Pillow.Exif()
    exif.load(b"Exif\0\0" + block)
    expected = exif.get(ORIENTATION, 1)
    if expected > 8:
        with pytest.raises(ValueError, match="orientation"):
            exif_orientation(block)
    else:
        assert exif_orientation(block) == (expected or 1)


HEADERS = [
    jpeg(photo(1)),
    jpeg(photo(2, 90, 70)),
    jpeg(photo(2, 90, 70), quality=91),
    jpeg(photo(3), 6),
    jpeg(photo(3), progressive=True),
    jpeg(photo(4)[..., 0]),
    jpeg(photo(5), subsampling=0, icc_profile=b"no profile"),
]


def seen(data: bytes) -> object:
    try:
        return inspect(data)
    except Reject as reject:
        return str(reject)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(HEADERS),
            st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=2),
            st.integers(0, 800),
        ),
        min_size=2,
        max_size=6,
    )
)
def test_what_was_seen_before_makes_no_difference(
    files: list[tuple[bytes, list[tuple[int, int]], int]],
) -> None:
    """Headers that were read are remembered; each file is what it would be alone."""
    for whole, changes, cut in files:
        data = bytearray(whole)
        for place, value in changes:
            data[min(place, len(data) - 1)] = value
        stored = bytes(data if cut > 700 else data[: len(data) - cut])
        told = seen(stored)
        again = seen(stored)
        inspection._last_header = None
        assert told == again == seen(stored)
