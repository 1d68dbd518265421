"""From stored samples to the pixels of a batch: what to do is worked out for all samples at once,
and done for each on its own, by any thread, straight into the batch's memory.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Sequence
from itertools import groupby, repeat
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from .augment import center_crops, check_flip, flips, random_resized_crops, shorter_side
from .boxes import boxes_within
from .decode import FLIPPED_AXES, Pixels, UndecodableError, decode_region
from .errors import DspackError
from .normalization import Channels, in_levels
from .order import Picked
from .pack import Pack, Stored

Array = npt.NDArray[Any]
Transform = Callable[[Pixels, np.random.Generator], Array]
Layout = Literal["NHWC", "NCHW"]
Interpolation = Literal["linear", "area"]
Box = tuple[int, int, int, int]

_FILTERS = {"linear": cv2.INTER_LINEAR, "area": cv2.INTER_AREA}


class Task(NamedTuple):
    """What to do for one sample; boxes are left, top, width, height in upright pixels."""

    sample: int
    label: int
    stored: Stored
    image_size: tuple[int, int]  # width, height, upright
    orientation: int
    region: Box  # what has to be decoded
    window: tuple[float, float, float, float]  # what the result shows, within the region
    mirrored: bool
    draw: tuple[int, int]  # epoch and a number: they name the random draws
    fields: tuple[Stored, ...]  # further fields


class Renderer:
    """Turns samples of one pack into images of one shape."""

    def __init__(
        self,
        pack: Pack,
        *,
        fields: Sequence[str],
        seed: int,
        size: int,
        train: bool,
        scale: tuple[float, float] | None,
        ratio: tuple[float, float],
        flip: float,
        resize: int | None,
        exact: bool,
        interpolation: Interpolation,
        transform: Transform | None,
        layout: Layout,
        dtype: npt.DTypeLike | None,
        normalize: tuple[Sequence[float], Sequence[float]] | None,
    ) -> None:
        """See readers.loader.BatchLoader. Raises ValueError for options that contradict each
        other or the pack, DspackError for an unknown field."""
        self._pack = pack
        self.fields = tuple(dict.fromkeys(known_fields(pack, fields)))  # each once
        self._disk = _Disk()
        self._array = _array_type(pack, transform)
        self._pixel_dtype = pack.pixel_dtype
        self._seed, self._size, self._train = seed, size, train
        self._scale, self._ratio, self._flip = scale, ratio, flip
        self._resize = resize or shorter_side(size)
        # Half of twice the result's pixels is left to the antialiasing filter: what Pillow calls
        # a fair quality. Bilinear interpolation looks at no more than the result's pixels.
        least = size if train else 2 * size
        self._least = None if exact or transform else (least, least)
        self.transform = transform
        self.dtype = np.dtype(dtype or (np.float32 if normalize else self._pixel_dtype))
        if normalize and self.dtype.kind != "f":
            raise ValueError(f"normalize makes floats, which {self.dtype} cannot hold")
        if not (normalize or transform or np.can_cast(self._pixel_dtype, self.dtype)):
            raise ValueError(f"{self.dtype} cannot hold the pack's {self._pixel_dtype} pixels")
        if transform and (dtype or normalize or layout != "NHWC"):
            raise ValueError("dtype, layout and normalize are up to the transform")
        check_flip(flip)
        if layout not in ("NHWC", "NCHW") or interpolation not in _FILTERS:
            raise ValueError(f"{layout=}, {interpolation=}")
        self._filter = _FILTERS[interpolation]
        self.layout, self._normalize = layout, _normalization(normalize)
        self._in_place = layout == "NHWC" and self.dtype == self._pixel_dtype
        self.shape = (size, size, 3) if layout == "NHWC" else (3, size, size)
        self.copies = self._in_place and self._array is not None and self._shows_arrays_whole()
        one = np.ones(1, np.int64)
        self._boxes(0, Picked(one, one, one), one, one, one)  # refuses what does not fit together

    def announce(self, epoch: int, picked: Picked) -> None:
        """Tell the kernel what will be read, if this process has waited for the disk."""
        pack = self._pack
        if self._disk.has_waited(epoch):
            rows = pack.rows_at(picked.samples)
            for name in ("image", *self.fields):
                for value in pack.stored(rows, name):
                    pack.announce(value, name)

    def mirrored(self, epoch: int, picked: Picked) -> list[bool]:
        """Whether each sample of a batch is mirrored."""
        if not self._train:
            return [False] * len(picked.samples)
        mirrored: list[bool] = flips(self._seed, epoch, picked.draws, self._flip).tolist()
        return mirrored

    def tasks(self, epoch: int, picked: Picked) -> list[Task]:
        """What to do for each sample of a batch."""
        pack = self._pack
        rows = pack.rows_at(picked.samples)
        stored = {name: pack.stored(rows, name) for name in ("image", *self.fields)}
        index = pack.index
        widths, heights = index["width"][rows], index["height"][rows]
        orientations = index["orientation"][rows]
        regions, windows = self._boxes(epoch, picked, widths, heights, orientations)
        columns = (
            picked.samples.tolist(),
            index["label"][rows].tolist(),
            stored["image"],
            zip(widths.tolist(), heights.tolist(), strict=True),
            orientations.tolist(),
            map(tuple, regions.tolist()),
            map(tuple, windows.tolist()),
            self.mirrored(epoch, picked),
            zip(repeat(epoch), picked.draws.tolist()),
            zip(*(stored[name] for name in self.fields), strict=True)
            if self.fields
            else repeat(()),
        )
        return [*map(Task._make, zip(*columns, strict=False))]

    def _boxes(
        self, epoch: int, picked: Picked, widths: Array, heights: Array, orientations: Array
    ) -> tuple[Array, Array]:
        """For n samples the region to decode, (n, 4) integers, and the window within, (n, 4)."""
        sizes: Array = np.stack([widths, heights], axis=1)
        regions: Array
        if not self._train and self.transform is None:
            shown = center_crops(widths, heights, self._resize, self._size)
            return _around(shown, np.maximum(shown[:, 2:] / self._size, 1), sizes, orientations)
        if self._scale is None or self.transform is not None:
            regions = np.concatenate([np.zeros_like(sizes), sizes], axis=1)
        else:
            regions = random_resized_crops(
                widths, heights, self._seed, epoch, picked.draws, self._scale, self._ratio
            )
        return regions, regions * [0, 0, 1, 1]

    def _shows_arrays_whole(self) -> bool:
        """Whether the arrays that the pack stores are the result already, but for mirroring."""
        assert self._array is not None
        whole = self._train and self._scale is None and self.transform is None and not self.fields
        return whole and self._array[1] == (self._size, self._size, 3)

    # Samples; all raise DamagedSample.

    def copy(self, rows: Array, mirrored: list[bool], out: Array) -> None:
        """Make the images of several rows of the index, where `copies`, in `out`, an array of that
        many. One call copies them all, and one mirrors each run of neighbours."""
        row = 3 * self._size
        values = self._pack.values(rows)
        lengths = [*map(len, values)]
        if lengths.count(out[0].nbytes) != len(lengths):  # array() tells which, and why
            for value, number in zip(values, rows.tolist(), strict=True):
                self._pack.array(value, number)
        images = [np.ndarray((self._size, row), self.dtype, value) for value in values]
        cv2.vconcat(images, dst=out.reshape(-1, row))
        start = 0
        for is_mirrored, neighbours in groupby(mirrored):
            stop = start + len(list(neighbours))
            if is_mirrored:
                run = out[start:stop].reshape(-1, self._size, 3)
                cv2.flip(run, 1, dst=run)
            start = stop

    def transformed(self, task: Task) -> Array:
        """What the user's function makes of a sample."""
        assert self.transform is not None
        pixels = self._region(task)
        if not pixels.flags.writeable:  # a pack that stores arrays: this is the file itself
            pixels = pixels.copy()
        epoch, number = task.draw
        key = np.array([self._seed % 2**64, epoch], np.uint64)
        random = np.random.Philox(key=key, counter=np.array([0, 0, 1, number], np.uint64))
        return np.asarray(self.transform(pixels, np.random.Generator(random)))

    def field(self, task: Task, stored: Stored, name: str) -> Any:
        """A sample's value of a further field, decoded as by Pack.field; a mask shows what the
        image shows: (size, size), or (size, size, 3), and boxes are those in it, in its pixels.
        With a transform both come as they are stored."""
        pack = self._pack
        value = pack.decoded(pack.value(stored, name), stored.row, name)
        kind = pack.manifest.fields[name].kind
        if kind not in ("mask", "boxes") or self.transform is not None:
            return value
        (left, top, *_), (x, y, width, height) = task.region, task.window
        window, size = (left + x, top + y, width, height), (self._size, self._size)
        if kind == "boxes":
            return boxes_within(value, window, size, mirrored=task.mirrored)
        from .masks import nearest

        if value is None:
            raise DspackError(
                f"the sample has no {name}",
                path=pack.path,
                index=pack.number_of(stored.row),
                advice="choose the samples that have one with `subset`",
            )
        if value.shape[1::-1] != task.image_size:
            raise pack.damaged(stored.row, f"the {name} is not of the image's size")
        return nearest(value, window, size, mirrored=task.mirrored)

    def render(self, task: Task, out: Array) -> None:
        """Make a sample's image in `out`, an array of this renderer's shape and dtype."""
        shape = (self._size, self._size, 3)
        target = out if self._in_place else np.empty(shape, self._pixel_dtype)
        if self._train:
            self._resize_crop(self._region(task), task.mirrored, target)
        else:
            self._resize_antialiased(self._region(task), task, target)
        if not self._in_place:
            self._convert(target, out)

    def _resize_crop(self, pixels: Pixels, mirrored: bool, target: Pixels) -> None:
        # OpenCV copies where the size is right already. Flipping in the processor's cache, where
        # the result is now, is twice as fast as on the way from memory.
        cv2.resize(pixels, target.shape[1::-1], dst=target, interpolation=self._filter)
        if mirrored:
            cv2.flip(target, 1, dst=target)

    def _resize_antialiased(self, pixels: Pixels, task: Task, target: Pixels) -> None:
        left, top, width, height = task.window
        if width == height == self._size and left.is_integer() and top.is_integer():
            x, y = int(left), int(top)
            target[...] = pixels[y : y + self._size, x : x + self._size]
            return
        shrink = round(task.region[2] / pixels.shape[1])  # what the JPEG was decoded at
        right = min((left + width) / shrink, pixels.shape[1])  # rounding may lead a hair too far
        bottom = min((top + height) / shrink, pixels.shape[0])
        box = (left / shrink, top / shrink, right, bottom)
        if pixels.dtype == np.uint8:
            target[...] = _pillow_resized(pixels, self._size, box)
            return
        for channel in range(3):  # Pillow has no RGB of more bits; its floats hold all of them
            plane = pixels[..., channel].astype(np.float32)
            target[..., channel] = np.rint(_pillow_resized(plane, self._size, box))

    def _convert(self, pixels: Pixels, out: Array) -> None:
        source: Array = pixels
        if self._normalize is not None:
            factor, shift = self._normalize
            source = pixels * factor + shift
        out[...] = source if self.layout == "NHWC" else source.transpose(2, 0, 1)

    def _region(self, task: Task) -> Pixels:
        """The pixels of the task's region, or fewer where enough are left."""
        data = self._pack.value(task.stored)
        if self._array is not None:
            left, top, width, height = task.region
            array = self._pack.array(data, task.stored.row)
            return array[top : top + height, left : left + width]
        try:
            return decode_region(
                data,
                task.orientation,
                task.image_size,
                task.region,
                segments=self._pack.segments(task.stored.row),
                reduce_to=self._least,
                rule=self._pack.odd_rule(task.stored.row),
                dtype=self._pixel_dtype,
            )
        except UndecodableError as error:
            raise self._pack.damaged(
                task.stored.row, f"the image cannot be decoded: {error}"
            ) from None


def _pillow_resized(pixels: Array, size: int, box: tuple[float, float, float, float]) -> Array:
    from PIL import Image

    image = Image.fromarray(pixels)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box))


class _Disk:
    """Knows whether this process has waited for the disk since an epoch began. Only then is it
    worth telling the kernel what will be read: of data in memory that costs more than a copy."""

    _epoch, _faults = -1, 0

    def has_waited(self, epoch: int) -> bool:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        if epoch != self._epoch:
            self._epoch, self._faults = epoch, faults
        return faults > self._faults


def _around(shown: Array, reach: Array, sizes: Array, orientations: Array) -> tuple[Array, Array]:
    """The regions to decode for boxes that are shown through Pillow's filter, which looks `reach`
    beyond them, one pixel of the result and at least one of the source; and the boxes within.

    All are in upright pixels; `sizes` are the images' (n, 2). A region begins and ends on pixels
    that a decoder can give at 1/8 of the size too, counted from the stored image's corner.
    """
    flipped = np.stack([np.isin(orientations, axis) for axis in FLIPPED_AXES], axis=1)
    corner = np.where(flipped, sizes, 0)
    start = corner + np.floor((shown[:, :2] - reach - corner) / 8) * 8
    stop = corner + np.ceil((shown[:, :2] + shown[:, 2:] + reach - corner) / 8) * 8
    start, stop = np.maximum(start, 0), np.minimum(stop, sizes)
    regions = np.concatenate([start, stop - start], axis=1).astype(np.int64)
    return regions, np.concatenate([shown[:, :2] - start, shown[:, 2:]], axis=1)


def known_fields(pack: Pack, fields: Sequence[str]) -> tuple[str, ...]:
    """The names of fields that a pack has. Raises DspackError for one that it has not."""
    if isinstance(fields, str):
        raise ValueError(f"fields is {fields!r}: give a list, [{fields!r}]")
    for name in fields:
        pack.require_field(name)
    return tuple(fields)


def _array_type(
    pack: Pack, transform: Transform | None
) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """dtype and shape of the images of a pack that stores arrays."""
    stored = pack.manifest.fields["image"]
    if stored.kind != "array":
        return None
    dtype, shape = np.dtype(stored.dtype), stored.shape or ()
    known = dtype in (np.uint8, np.uint16) and len(shape) == 3 and shape[2] == 3
    if transform is None and not known:
        raise ValueError(f"{pack.path} holds arrays {shape} of {dtype}: pass a transform for them")
    return dtype, shape


def _normalization(
    normalize: tuple[Sequence[float], Sequence[float]] | None,
) -> tuple[Channels, Channels] | None:
    """(mean, std) as the factor and shift of one multiplication and one addition."""
    if normalize is None:
        return None
    mean, std = in_levels(*normalize)
    return (1 / std).astype(np.float32), (-mean / std).astype(np.float32)
