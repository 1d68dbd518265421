"""A region of a seekable JPEG decodes to exactly the slice of the whole one."""

from __future__ import annotations

import io
import struct
from functools import lru_cache

import cv2
import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from readers.seekable import Frame, crop, read_frame, restart_interval, segment_offsets

SAMPLINGS = {  # name: cv2's factor, width and height of an MCU
    "444": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444, 8, 8),
    "422": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422, 16, 8),
    "420": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420, 16, 16),
    "440": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, 8, 16),
    "411": (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411, 32, 8),
    "grey": (None, 8, 8),
}
RST = [bytes([0xFF, 0xD0 + i]) for i in range(8)]


def encode(pixels, sampling="420", interval=1, quality=90, **more):
    options = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_RST_INTERVAL, interval]
    if sampling == "grey":
        pixels = pixels[:, :, 0]
    else:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, SAMPLINGS[sampling][0]]
    for name, value in more.items():
        options += [getattr(cv2, f"IMWRITE_JPEG_{name.upper()}"), value]
    ok, data = cv2.imencode(".jpg", pixels, options)
    assert ok
    return data.tobytes()


@lru_cache(maxsize=64)
def noise(width, height):
    """Noise at full contrast, the hardest case: every neighbour of a pixel shows."""
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def decode(data):
    """Decoded by simplejpeg, to which a warning of libjpeg is an error, and by cv2."""
    pixels = simplejpeg.decode_jpeg(data, "RGB", strict=True)
    by_cv2 = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert np.array_equal(pixels, by_cv2)
    return pixels


def check(data, region):
    """The crop's pixels are the slice's, and the crop is itself seekable; returns its pixels."""
    left, top, width, height = region
    offsets = segment_offsets(data)
    jpeg, x, y = crop(data, offsets, *region)
    pixels = decode(jpeg)
    expected = decode(data)[top : top + height, left : left + width]
    assert np.array_equal(pixels[y : y + height, x : x + width], expected)
    assert segment_offsets(jpeg) is not None
    assert len(jpeg) <= len(data)
    return pixels


@st.composite
def images(draw):
    """A sampling, a size and a restart interval that divides the MCUs of a row."""
    sampling = draw(st.sampled_from(sorted(SAMPLINGS)))
    width, height = draw(st.integers(1, 200)), draw(st.integers(1, 100))
    target_px = draw(st.sampled_from([8, 16, 32, 64, 128]))
    return sampling, width, height, restart_interval(width, SAMPLINGS[sampling][1], target_px)


@st.composite
def regions(draw, width, height):
    """A region of an image; hypothesis likes its bounds, so it often touches a border."""
    left, top = draw(st.integers(0, width - 1)), draw(st.integers(0, height - 1))
    return left, top, draw(st.integers(1, width - left)), draw(st.integers(1, height - top))


@settings(max_examples=300, deadline=None)
@given(images(), st.integers(30, 100), st.data())
def test_a_region_is_bit_identical_to_the_slice(image, quality, data):
    sampling, width, height, interval = image
    jpeg = encode(noise(width, height), sampling, interval, quality)
    check(jpeg, data.draw(regions(width, height)))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_border_and_corner(sampling):
    width, height = 150, 85  # no multiple of any MCU
    interval = restart_interval(width, SAMPLINGS[sampling][1], 32)
    data = encode(noise(width, height), sampling, interval)
    for left, across in ((0, 20), (70, 20), (width - 20, 20), (0, width)):
        for top, down in ((0, 15), (40, 15), (height - 15, 15), (0, height)):
            check(data, (left, top, across, down))


@pytest.mark.parametrize("sampling", ["422", "420", "440"])
@pytest.mark.parametrize("width", range(31, 40))
def test_every_cut_near_the_narrow_last_column(sampling, width):
    """libjpeg upsamples an image that is at most four pixels wide in another way."""
    height = 20
    data = encode(noise(width, height), sampling)
    offsets, whole = segment_offsets(data), decode(data)
    for left in range(width):
        for top in (0, 7, 8, 9, 15, 16, 17):
            for across in {1, 2, width - left}:
                if left + across <= width:
                    jpeg, x, y = crop(data, offsets, left, top, across, 2)
                    pixels = simplejpeg.decode_jpeg(jpeg, "RGB")[y : y + 2, x : x + across]
                    assert np.array_equal(pixels, whole[top : top + 2, left : left + across])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("size", [(1, 1), (3, 40), (40, 3), (8, 8), (16, 17)])
def test_images_smaller_than_a_segment(sampling, size):
    width, height = size
    data = encode(noise(width, height), sampling, restart_interval(width, SAMPLINGS[sampling][1]))
    check(data, (0, 0, width, height))
    check(data, (width - 1, height - 1, 1, 1))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_only_what_a_region_needs_is_decoded(sampling):
    mcu_width, mcu_height = SAMPLINGS[sampling][1:]
    data = encode(noise(320, 160), sampling, 32 // mcu_width)
    pixels = check(data, (65, 33, 62, 30))  # a pixel away from the cuts on every side
    assert pixels.shape == (32, 64, 3)
    pixels = check(data, (64, 32, 64, 32))
    assert pixels.shape == (32 + 2 * mcu_height, 64 + 2 * 32, 3)


def test_the_whole_region_is_the_whole_file():
    data = encode(noise(100, 60), "420", 1)
    jpeg, x, y = crop(data, segment_offsets(data), 0, 0, 100, 60)
    assert (bytes(jpeg), x, y) == (data, 0, 0)


def test_a_crop_of_a_crop():
    data = encode(noise(256, 128), "420", 4)
    jpeg, x, y = crop(data, segment_offsets(data), 70, 40, 120, 60)
    inner, x2, y2 = crop(bytes(jpeg), segment_offsets(bytes(jpeg)), x + 10, y + 10, 50, 20)
    expected = decode(data)[50:70, 80:130]
    assert np.array_equal(decode(inner)[y2 : y2 + 20, x2 : x2 + 50], expected)


@pytest.mark.parametrize("dtype", ["<u4", "<i4", ">i8"])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_offsets_of_any_integer_dtype_and_data_of_any_kind(dtype, kind):
    data = encode(noise(192, 90), "422", 2)
    offsets = segment_offsets(kind(data))
    expected = crop(data, segment_offsets(data), 50, 20, 99, 40)
    assert crop(kind(data), offsets.astype(dtype), 50, 20, 99, 40) == expected
    assert bytes(data) == encode(noise(192, 90), "422", 2)  # the source is left alone


def test_offsets_are_the_frame_the_segments_and_the_end():
    data = encode(noise(128, 50), "420", 2)
    offsets = segment_offsets(data)
    assert offsets.dtype == np.int64
    frame_offset, *starts, end = offsets.tolist()
    assert data[frame_offset : frame_offset + 2] == b"\xff\xc0"
    assert read_frame(data, frame_offset) == Frame(128, 50, 16, 16)
    assert len(starts) == 4 * 4
    assert [data[i - 2 : i] for i in starts[1:]] == [RST[i % 8] for i in range(15)]
    assert end == len(data)
    assert data[end - 2 :] == b"\xff\xd9"


def test_bytes_behind_the_image_do_not_matter():
    data = encode(noise(64, 50), "420", 2)
    longer = data + b"\xff\xd8 behind \xff\xd0"
    assert np.array_equal(segment_offsets(longer), segment_offsets(data))
    assert crop(longer, segment_offsets(longer), 5, 5, 9, 9) == crop(
        data, segment_offsets(data), 5, 5, 9, 9
    )


def test_markers_in_metadata_are_not_taken_for_the_images_own():
    exif = Image.Exif()
    exif[0x010E] = "\xff\xda\xff\xc0\xff\xd0" * 50
    file = io.BytesIO()
    thumbnail = encode(noise(16, 16))
    Image.fromarray(noise(128, 64)).save(
        file, "JPEG", quality=90, restart_marker_blocks=2, exif=exif, comment=thumbnail
    )
    check(file.getvalue(), (40, 20, 30, 30))


def test_a_grey_image_has_one_block_in_an_mcu_whatever_its_factors_say():
    data = bytearray(encode(noise(64, 40), "grey", 2))
    frame_offset = int(segment_offsets(data)[0])
    assert data[frame_offset + 11] == 0x11
    expected = decode(bytes(data))
    data[frame_offset + 11] = 0x22
    assert np.array_equal(decode(bytes(data)), expected)
    check(bytes(data), (20, 10, 30, 17))


@pytest.mark.parametrize(
    "region",
    [(-1, 0, 5, 5), (0, -1, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (60, 0, 5, 5), (0, 46, 5, 5)],
)
def test_a_region_that_is_not_inside_is_refused(region):
    data = encode(noise(64, 50), "420", 2)
    with pytest.raises(ValueError, match="not inside 64x50"):
        crop(data, segment_offsets(data), *region)


# What is not seekable


def patched(data, offset, *values):
    return data[:offset] + bytes(values) + data[offset + len(values) :]


def odd_files():
    pixels = noise(96, 48)
    data = encode(pixels, "420", 2)
    frame, scan, second = segment_offsets(data)[:3].tolist()
    interval = data.index(b"\xff\xdd")
    scan_header = data.index(b"\xff\xda")
    cmyk = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(cmyk, "JPEG", restart_marker_blocks=1)
    return {
        "nothing": b"",
        "PNG": cv2.imencode(".png", pixels)[1].tobytes(),
        "no restart markers": encode(pixels, "420", 0),
        "progressive": encode(pixels, "420", 2, progressive=1),
        "interval that does not divide a row": encode(pixels, "420", 4),
        "interval of several rows": encode(pixels, "420", 12),
        "CMYK": cmyk.getvalue(),
        "interval that lies": patched(data, interval + 5, 3),
        "interval 0": patched(data, interval + 5, 0),
        "arithmetic coding": patched(data, frame + 1, 0xC9),
        "12 bits": patched(data, frame + 4, 12),
        "height to come later": patched(data, frame + 5, 0, 0),
        "no width": patched(data, frame + 7, 0, 0),
        "no sampling factor": patched(data, frame + 11, 0x02),
        "sampling factor 5": patched(data, frame + 14, 0x51),
        "two frames": data[:frame] + data[frame:interval] + data[frame:],
        "frame after the scan": data[:frame] + data[frame + 19 :],
        "one component of three in the scan": patched(data, scan_header + 4, 1),
        "part of the spectrum": patched(data, scan - 2, 5),
        "fill bytes in the header": data[:frame] + b"\xff" + data[frame:],
        "fill bytes in the scan": data[: second - 2] + b"\xff" + data[second - 2 :],
        "marker missing": data[: second - 2] + data[second:],
        "marker too many": data[:second] + b"\xff\xd1" + data[second:],
        "marker out of turn": patched(data, second - 1, 0xD1),
        "another scan": data[:-2] + data[scan_header:],
        "no end": data[:-2],
        "taller than it is": patched(data, frame + 5, 0, 49),
        "larger than memory": patched(data, frame + 5, 0xFF, 0xFF, 0xFF, 0xE0),
    }


@pytest.mark.parametrize("name", odd_files())
def test_an_odd_file_is_not_seekable(name):
    assert segment_offsets(odd_files()[name]) is None


def test_a_cut_file_is_not_seekable():
    data = encode(noise(48, 24), "444", 2)
    assert all(segment_offsets(data[:length]) is None for length in range(len(data)))


@given(st.binary(max_size=200))
def test_any_bytes_are_none_and_no_error(data):
    assert segment_offsets(data) is None
    assert segment_offsets(b"\xff\xd8\xff" + data) is None


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=5))
def test_damage_is_none_or_offsets_that_crop(damage):
    data = bytearray(encode(noise(48, 24), "444", 2))
    for position, value in damage:
        data[position % 650] = value  # the header, and a little more
    offsets = segment_offsets(data)
    if offsets is not None:
        frame = read_frame(data, int(offsets[0]))
        jpeg, x, y = crop(data, offsets, frame.width - 1, frame.height - 1, 1, 1)
        assert x >= 0
        assert y >= 0
        assert struct.pack(">BB", 0xFF, 0xD8) == jpeg[:2]


# Writing


@given(st.integers(1, 65_500), st.sampled_from([8, 16, 32]), st.integers(1, 1000))
def test_the_restart_interval_divides_the_mcus_of_a_row(width, mcu_width, target_px):
    assert -(-width // mcu_width) % restart_interval(width, mcu_width, target_px) == 0


@pytest.mark.parametrize(
    ("width", "mcu_width", "expected"),
    [(500, 16, 4), (375, 16, 4), (333, 16, 3), (500, 8, 7), (496, 16, 1), (488, 8, 61), (5, 8, 1)],
)
def test_the_restart_interval_is_near_64_pixels_where_it_can(width, mcu_width, expected):
    assert restart_interval(width, mcu_width) == expected
