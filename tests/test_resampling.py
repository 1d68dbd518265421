"""New sizes: the pixels of Pillow's antialiased bilinear resize, and no alias."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import photo
from PIL import Image

from packer.images.resampling import resize

PHOTO = photo(0, 401, 300)


def pillows(width: int, height: int) -> np.ndarray:
    image = Image.fromarray(PHOTO).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


@pytest.mark.parametrize("scale", [1.01, 1.2, 1.46, 1.7, 2, 2.3, 3, 3.9, 4, 6.5, 7.9, 8, 17, 40])
def test_shrinking_is_pillows_antialiased_bilinear(scale: float) -> None:
    width, height = round(401 / scale), round(300 / scale)
    difference = resize(PHOTO, width, height).astype(float) - pillows(width, height)
    assert np.sqrt((difference**2).mean()) < 1.5
    assert abs(difference.mean()) < 0.5


@pytest.mark.parametrize(("width", "height"), [(200, 300), (401, 77), (31, 299), (400, 12)])
def test_each_side_has_its_own_scale(width: int, height: int) -> None:
    difference = resize(PHOTO, width, height).astype(float) - pillows(width, height)
    assert np.sqrt((difference**2).mean()) < 1.5


def test_what_cannot_be_shown_is_grey_and_not_a_pattern() -> None:
    checker = np.repeat((np.indices((128, 128)).sum(0) % 2 * 255)[..., None], 3, 2).astype(np.uint8)
    for size, amplitude in ((90, 48), (80, 32), (64, 1), (50, 8), (40, 8), (32, 2), (12, 2)):
        assert np.abs(resize(checker, size, size).astype(int) - 127).max() <= amplitude
    # Where one side grows and the other shrinks, the latter does not alias either.
    assert np.abs(resize(checker, 200, 32).astype(int) - 127).max() <= 2


@given(
    value=st.integers(0, 255),
    old=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    new=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_one_colour_stays_that_colour(
    value: int, old: tuple[int, int], new: tuple[int, int]
) -> None:
    pixels = np.full((*old, 3), value, np.uint8)
    resized = resize(pixels, *new)
    assert resized.shape == (new[1], new[0], 3)
    assert (resized == value).all()


def test_16_bits_keep_their_precision() -> None:
    deep = PHOTO.astype(np.uint16) * 257
    for width, height in ((100, 75), (200, 150)):
        shrunk = resize(deep, width, height)
        assert shrunk.dtype == np.uint16
        for channel in range(3):
            precise = Image.fromarray(deep[..., channel].astype(np.float32))
            expected = precise.resize((width, height), Image.Resampling.BILINEAR)
            difference = (shrunk[..., channel] - np.asarray(expected))[2:-2, 2:-2]
            assert np.abs(difference).max() < 100  # of 65,535: less than half of an 8-bit level
