"""Where the pixels of an upright image go when it is resized, and all that lies on them."""

from __future__ import annotations

from typing import NamedTuple

from .inspect import Reject
from .pixels import PixelOptions

Size = tuple[int, int]  # width, height


class Geometry(NamedTuple):
    """An upright image of the size `source` is resized to `inner`, and lies at `offset` (left, top)
    in what is stored, which has the size `size`: there is a border where `inner` is smaller.

    A point (x, y) of the source, pixel i covering [i, i + 1), comes to
    (x * scale[0] + offset[0], y * scale[1] + offset[1]).
    """

    source: Size
    inner: Size
    size: Size
    offset: tuple[int, int] = (0, 0)

    @property
    def scale(self) -> tuple[float, float]:
        return self.inner[0] / self.source[0], self.inner[1] / self.source[1]

    @property
    def region(self) -> tuple[slice, slice]:
        """The rows and columns of what is stored that are not border."""
        (left, top), (width, height) = self.offset, self.inner
        return slice(top, top + height), slice(left, left + width)

    @property
    def is_identity(self) -> bool:
        return self.source == self.inner == self.size


def unchanged(width: int, height: int) -> Geometry:
    """The geometry of an image that keeps its size."""
    return Geometry(*3 * ((width, height),))


def geometry_of(width: int, height: int, options: PixelOptions) -> Geometry:
    """The geometry that the options give an upright image of this size. Raises Reject."""
    source = width, height
    inner = size = _inner_size(width, height, options)
    if options.resize is not None and options.resize_mode == "pad":
        size = options.resize, options.resize
    if size != source and size[0] * size[1] > options.max_pixels:
        raise Reject("too many pixels", f"{size[0]} x {size[1]} after --resize")
    offset = (size[0] - inner[0]) // 2, (size[1] - inner[1]) // 2
    return Geometry(source, inner, size, offset)


def _inner_size(width: int, height: int, options: PixelOptions) -> Size:
    if options.resize is None:
        return width, height
    if options.resize_mode == "exact":
        if min(width, height) < options.resize and not options.enlarge:
            raise Reject("smaller than --resize", f"{width} x {height}; --enlarge would enlarge it")
        return options.resize, options.resize
    side = min(width, height) if options.resize_mode == "shorter" else max(width, height)
    if side <= options.resize and not options.enlarge:
        return width, height
    return (
        max(round(width * options.resize / side), 1),
        max(round(height * options.resize / side), 1),
    )
