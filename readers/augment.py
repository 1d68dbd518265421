"""Crop, flip and order as pure functions of (seed, epoch, sample): geometry only, no pixels.

Nothing here keeps a state, so a sample meets the same crop whatever batch it is in, however many
threads or ranks there are, and after a resume. Every function takes a whole batch.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

NUM_TRIES = 10  # as in torchvision
_CROP, _FLIP, _PICK = 0, 1, 2  # streams of draws that are independent of each other

Integers = npt.NDArray[np.int64]


def random_resized_crops(
    widths: npt.ArrayLike,
    heights: npt.ArrayLike,
    seed: int,
    epoch: int,
    samples: npt.ArrayLike,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> npt.NDArray[np.int32]:
    """Where to crop each image before it is resized, distributed as torchvision's
    RandomResizedCrop: ten tries of an area in `scale` and an aspect ratio (width / height) whose
    logarithm is uniform in `ratio`, then the largest centred crop that `ratio` allows.

    widths, heights: n image sizes in pixels, at least 1. samples: n integers that name the
    samples; the same name draws the same crop. Returns (n, 4) int32: left, top, width, height,
    always inside the image. Raises ValueError for a range that is not 0 < low <= high.
    """
    for name, (low, high) in {"scale": scale, "ratio": ratio}.items():
        if not 0 < low <= high:
            raise ValueError(f"{name} is {(low, high)}; it needs 0 < low <= high")
    image_widths, image_heights = np.asarray(widths, np.int64), np.asarray(heights, np.int64)
    words = _random_words(seed, epoch, samples, _CROP, NUM_TRIES)
    areas = image_widths * image_heights * _uniform(words[0], *scale)
    aspects = np.exp(_uniform(words[1], math.log(ratio[0]), math.log(ratio[1])))
    tried_widths = np.rint(np.sqrt(areas * aspects)).astype(np.int64)
    tried_heights = np.rint(np.sqrt(areas / aspects)).astype(np.int64)
    fits = (tried_widths > 0) & (tried_widths <= image_widths)
    fits &= (tried_heights > 0) & (tried_heights <= image_heights)

    first = fits.argmax(axis=0), np.arange(fits.shape[1])  # the first try that fits
    crop_widths, crop_heights = tried_widths[first], tried_heights[first]
    lefts = _integers_below(image_widths - crop_widths + 1, words[2][first])
    tops = _integers_below(image_heights - crop_heights + 1, words[3][first])
    crops = np.stack([lefts, tops, crop_widths, crop_heights], axis=1)
    missed = ~fits[first]
    if missed.any():
        crops[missed] = _centred_crops(image_widths[missed], image_heights[missed], ratio)
    return crops.astype(np.int32)


def _centred_crops(widths: Integers, heights: Integers, ratio: tuple[float, float]) -> Integers:
    """The largest crops in the middle whose aspect ratio lies in `ratio`, (n, 4)."""
    aspects = widths / heights
    wide, tall = aspects > ratio[1], aspects < ratio[0]
    crop_widths = np.where(wide, np.rint(heights * ratio[1]).astype(np.int64), widths)
    crop_heights = np.where(tall, np.rint(widths / ratio[0]).astype(np.int64), heights)
    # torchvision rounds a sliver's crop to nothing where `ratio` does not contain 1.
    crop_widths, crop_heights = np.maximum(crop_widths, 1), np.maximum(crop_heights, 1)
    lefts, tops = (widths - crop_widths) // 2, (heights - crop_heights) // 2
    return np.stack([lefts, tops, crop_widths, crop_heights], axis=1)


def flips(
    seed: int, epoch: int, samples: npt.ArrayLike, probability: float = 0.5
) -> npt.NDArray[np.bool_]:
    """Whether to mirror each of n samples left to right: (n,) bool, True with `probability`."""
    words = _random_words(seed, epoch, samples, _FLIP, 1)[0, 0]
    return _uniform(words, 0, 1) < probability


def uniforms(seed: int, epoch: int, places: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """A uniform number in [0, 1) for each of n places in an epoch: (n,) float64."""
    return _uniform(_random_words(seed, epoch, places, _PICK, 1)[0, 0], 0, 1)


def check_flip(probability: float) -> None:
    """Raise ValueError unless a number is a probability."""
    if not 0 <= probability <= 1:
        raise ValueError(f"flip is {probability}, which is no probability")


def shorter_side(size: int) -> int:
    """What an image's shorter side is resized to before the `size` pixels in its centre are cut
    out, if nobody says: ImageNet's 256 for 224."""
    return round(size * 256 / 224)


def resized_sizes(
    widths: npt.ArrayLike, heights: npt.ArrayLike, resize: int = 256
) -> npt.NDArray[np.int32]:
    """The sizes after torchvision's Resize(resize): the shorter side is `resize` pixels, the
    longer one keeps the aspect ratio, rounded down. Returns (n, 2) int32: width, height."""
    sizes = _sizes(widths, heights)
    resized: Integers = sizes * resize // sizes.min(axis=1, keepdims=True)
    return resized.astype(np.int32)


def center_crops(
    widths: npt.ArrayLike, heights: npt.ArrayLike, resize: int = 256, size: int = 224
) -> npt.NDArray[np.float64]:
    """The part of each source image that torchvision's Resize(resize) and CenterCrop(size) show.

    Returns (n, 4) float64: left, top, width, height in source pixels, pixel i covering [i, i+1).
    They are not rounded: a pixel of the resized image is seldom a whole number of source pixels,
    and a rounded rectangle would shift and stretch the result by up to half a source pixel. An
    antialiased resize also looks at pixels outside, as far as its filter reaches.
    Raises ValueError where size > resize, which torchvision pads with black.
    """
    if size > resize:
        raise ValueError(f"a crop of {size} does not fit into a shorter side of {resize}")
    resized = resized_sizes(widths, heights, resize)
    corners = np.rint((resized - size) / 2)  # torchvision: Python's round, halves to even
    step = _sizes(widths, heights) / resized  # source pixels a resized one: x and y differ a bit
    return np.concatenate([corners * step, size * step], axis=1)


def _sizes(widths: npt.ArrayLike, heights: npt.ArrayLike) -> Integers:
    return np.stack([np.asarray(widths, np.int64), np.asarray(heights, np.int64)], axis=1)


def epoch_order(num_samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """A random permutation of range(num_samples), (num_samples,) int64.

    Sorts by random keys from NumPy's Philox bit generator, whose stream is promised never to
    change, while that of Generator.permutation may (NEP 19): an epoch resumes after an upgrade.
    The low bits of a key are the sample's number: no two keys are equal, so any sort gives the
    same order, and they carry the number along. Enough random bits are left: of ten million
    samples some fifty pairs tie in them and keep their order.
    """
    key = np.array([seed % 2**64, epoch % 2**64], np.uint64)
    keys: npt.NDArray[np.uint64] = np.random.Philox(key=key).random_raw(num_samples)
    number_mask = np.uint64(2 ** max(num_samples - 1, 0).bit_length() - 1)
    keys &= ~number_mask
    keys |= np.arange(num_samples, dtype=np.uint64)
    keys.sort()
    keys &= number_mask
    return keys.astype(np.int64)


def _uniform(words: npt.NDArray[np.uint64], low: float, high: float) -> npt.NDArray[np.float64]:
    return low + (high - low) * 2.0**-32 * words.astype(np.float64)


def _integers_below(limits: Integers, words: npt.NDArray[np.uint64]) -> Integers:
    """Uniform integers in [0, limits): the fixed-point product of a 32-bit fraction and the limit
    (D. Lemire, "Fast Random Integer Generation in an Interval", 2019, without its rejection: the
    bias is below limit / 2**32)."""
    return np.multiply(limits, words.view(np.int64)) >> 32


def _random_words(
    seed: int, epoch: int, samples: npt.ArrayLike, stream: int, num_blocks: int
) -> npt.NDArray[np.uint64]:
    """32 random bits in each of 4 words, `num_blocks` times a sample: (4, num_blocks, n) uint64."""
    numbers = np.asarray(samples, np.int64).view(np.uint64)
    counters = np.empty((4, num_blocks, len(numbers)), np.uint64)
    counters[0], counters[1] = numbers & _LOW, numbers >> _HALF
    counters[2] = epoch % 2**32
    counters[3] = (np.arange(num_blocks) + (stream << 16))[:, None]
    return philox4x32(counters.reshape(4, -1), seed % 2**64).reshape(counters.shape)


_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_KEY_STEPS = np.arange(10, dtype=np.uint64)[:, None, None] * np.array(
    [[0x9E3779B9], [0xBB67AE85]], np.uint64
)


def philox4x32(counters: npt.NDArray[np.uint64], key: int) -> npt.NDArray[np.uint64]:
    """Philox4x32-10: a keyed bijection of 128-bit counters whose values are random numbers.

    counters: (4, n) uint64, 4 words below 2**32 each. key: below 2**64. Returns the like of
    `counters`. Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy
    as 1, 2, 3", SC 2011, section 4.3; the constants are those of its library, Random123.
    """
    keys = (np.array([[key & 0xFFFFFFFF], [key >> 32]], np.uint64) + _KEY_STEPS) & _LOW
    # Words 0 and 2 are multiplied, words 1 and 3 are mixed in; then the pairs change places.
    multiplied, mixed = counters[::2], counters[1::2]
    for round_key in keys:
        products = (multiplied * _MULTIPLIERS)[::-1]
        multiplied = products >> _HALF
        multiplied ^= mixed
        multiplied ^= round_key
        mixed = products & _LOW
    return np.stack([multiplied[0], mixed[0], multiplied[1], mixed[1]])
