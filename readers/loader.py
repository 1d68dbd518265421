"""Batches for training: threads that decode, crop, flip and resize straight into batch buffers.

Decoding lets go of Python's lock, so threads scale as processes do, and share the page cache, the
index and the buffers without a copy. Torch is not needed here; `readers.torch.Loader` is the face
with tensors.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import methodcaller
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from .buffers import Buffers
from .epochs import Epochs
from .errors import DamagedPack, DamagedSample, DspackError
from .order import Order, Picked, Shuffle
from .pack import Pack
from .pipeline import Pipeline
from .ranks import threads_or_share
from .render import Interpolation, Layout, Renderer, Task, Transform

Allocate = Callable[[tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


@dataclass
class Batch:
    """n samples: `images` (n, height, width, 3) or, with layout="NCHW", (n, 3, height, width);
    `labels` (n,) int64; `samples` (n,) int64, their numbers in the pack or its split; `fields`
    name -> the n values of a further field: masks as one array (n, height, width), or with three
    channels, uint8 or, if one of them is, uint16; boxes as a list of n arrays (k, 5), in pixels of
    `images`; other values as a list, as Pack.field gives them."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    fields: dict[str, Any]


class BatchLoader(Epochs):
    """An endless supply of epochs: each `iter()` gives the batches of one.

    The order is a pure function of (seed, epoch), what is done to a sample of (seed, epoch,
    sample): the batches are the same with any number of threads. Each iter() gives the next epoch,
    whether the one before it was iterated to its end or not; `set_epoch` chooses, `state_dict` and
    `load_state_dict` go on in the middle of one. A batch stays valid until the last view of it is
    dropped; then its memory is used again. OpenCV's own threads are turned off for the whole
    process: a picture is too small to share.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int,
        split: str | None = None,
        *,
        size: int = 224,
        train: bool = True,
        threads: int | None = None,
        seed: int = 0,
        shuffle: Shuffle | None = None,
        drop_last: bool | None = None,
        rank: int = 0,
        world_size: int = 1,
        subset: Sequence[int] | None = None,
        weights: npt.ArrayLike | None = None,
        scale: tuple[float, float] | None = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
        resize: int | None = None,
        exact: bool = False,
        interpolation: Interpolation = "linear",
        transform: Transform | None = None,
        fields: Sequence[str] = (),
        layout: Layout = "NHWC",
        dtype: npt.DTypeLike | None = None,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        check: bool = True,
        prefetch_batches: int = 3,
        allocate: Allocate | None = None,
    ) -> None:
        """Images come out `size` by `size`, RGB, of the pack's `pixel_dtype`: uint8, or uint16
        where it keeps more than 8 bits.

        train=True: a random crop as torchvision's RandomResizedCrop makes it (`scale`, `ratio`;
        scale=None takes the whole image), resized bilinearly without antialiasing, or with
        interpolation="area" by averaging (OpenCV's INTER_AREA, three times as slow), mirrored
        with probability `flip`; shuffled, and without the samples that fill no batch.
        train=False: the shorter side is resized to `resize` (by default size * 256 / 224),
        antialiased as Pillow and torchvision do, and the centre is cut out; in order, to the last
        sample. It differs from Pillow's result by at most a level, and without `exact` from that
        of a large JPEG by about 0.2 levels on average.

        threads: default, this process's share of the processors, where torchrun started several on
        this machine. exact=True never decodes a JPEG at reduced size, which is otherwise done where
        at least the result's pixels (train) or twice as many in each direction (eval) are left.
        transform(pixels, random) does all of that itself: it gets upright RGB (height, width, 3)
        that it may change, and a generator that depends on (seed, epoch, sample) alone; it returns
        an array, whose shape and dtype are the same for every sample. layout, dtype and normalize
        ((mean, std) a channel, in the pixels' own units: 0..255, or 0..65535 where they are uint16;
        makes float32 unless dtype says otherwise) give other batches than pixels (n, height,
        width, 3).

        fields names further fields to read. Masks are cropped, mirrored and resized exactly as the
        images, each pixel taking the number under its centre. Boxes are in pixels of the images
        that come out, cut off at their edges, and those outside left out. With a transform, which
        alone knows what it does, masks and boxes come as they are stored, in lists.

        on_error="skip" takes the next sound sample of the epoch's order for a damaged one, and
        adds its key to `skipped`. check compares checksums. rank, world_size, subset, weights,
        shuffle, drop_last: see readers.order.Order. prefetch_batches: how many are ready or being
        made ahead of the one asked for. allocate(shape, dtype) makes the memory of a batch.

        Raises NotAPack, DamagedPack, DspackError for an unknown split or field, ValueError for
        options that contradict each other and where there is no batch; while iterating,
        DamagedSample and what `transform` raises.
        """
        pack = Pack(path, split, check=check)
        self.threads = threads_or_share(threads)
        if prefetch_batches < 0 or size < 1:
            raise ValueError(f"{prefetch_batches=}, {size=}")
        if on_error not in ("raise", "skip"):
            raise ValueError(f'on_error is {on_error!r}, not "raise" or "skip"')
        self.on_error = on_error
        self.prefetch_batches = prefetch_batches
        self.skipped: list[str] = []
        order = Order(
            len(pack),
            batch_size,
            seed=seed,
            shuffle=train if shuffle is None else shuffle,
            drop_last=train if drop_last is None else drop_last,
            rank=rank,
            world_size=world_size,
            subset=subset,
            weights=weights,
        )
        super().__init__(pack, order)
        self.renderer = Renderer(
            self.pack,
            fields=fields,
            seed=seed,
            size=size,
            train=train,
            scale=scale,
            ratio=ratio,
            flip=flip,
            resize=resize,
            exact=exact,
            interpolation=interpolation,
            transform=transform,
            layout=layout,
            dtype=dtype,
            normalize=normalize,
        )
        self.allocate = allocate or Buffers().take
        cv2.setNumThreads(0)

    def __iter__(self) -> Iterator[Batch]:
        epoch, numbers = self._begin()
        planned = self._planned(epoch, numbers)
        with Pipeline(
            lambda number: next(planned),  # called one by one, in order
            numbers,
            num_threads=self.threads,
            ahead=self.prefetch_batches,
        ) as jobs:
            # map() keeps no job, and so no batch that the caller has dropped already.
            yield from self._counted(map(methodcaller("batch"), jobs))
        self._end(epoch)

    def _planned(self, epoch: int, numbers: range) -> Iterator[_Copying | _Rendering]:
        """The jobs of some batches, worked out for several of them at once, for much of the cost
        is by the call and not by the sample."""
        renderer = self.renderer
        size = 1  # all threads wait for the first one
        while numbers:
            some, numbers = numbers[:size], numbers[size:]
            size = max(_PLANNED_TOGETHER // self.order.batch_size, 1)
            picked = [self.order.batch(epoch, number) for number in some]
            joined = Picked(*map(np.concatenate, zip(*picked, strict=True)))
            kind, work = (
                (_Copying, renderer.mirrored) if renderer.copies else (_Rendering, renderer.tasks)
            )
            plan: Iterator[Any] = iter(work(epoch, joined))
            for batch in picked:
                renderer.announce(epoch, batch)
                yield kind(self, epoch, batch, list(islice(plan, len(batch.samples))))


_PLANNED_TOGETHER = 2048  # samples; a few milliseconds of work
_RENDERED_TOGETHER = 4  # samples; enough to share the cost of handing them to a thread, and few
# enough that the threads end a batch together
_COPIED_TOGETHER = 32  # samples; with more, mirroring finds them no longer in the cache


class _Copying:
    """A batch of stored pixels that are only copied and mirrored; a part is many samples: a
    thread that asks for Python's lock after every picture waits for it longer than it copies."""

    def __init__(
        self, loader: BatchLoader, epoch: int, picked: Picked, mirrored: list[bool]
    ) -> None:
        self._loader, self._epoch = loader, epoch
        self._picked, self._mirrored = picked, mirrored
        self._samples = picked.samples.copy()  # a damaged one makes way for another
        self._rows = loader.pack.rows_at(picked.samples)
        self.num_parts = -(-len(mirrored) // _COPIED_TOGETHER)
        shape = (len(mirrored), *loader.renderer.shape)
        self._images = loader.allocate(shape, loader.renderer.dtype)

    def batch(self) -> Batch:
        """The batch, when all its parts are done."""
        labels = self._loader.pack.labels[self._samples]
        return Batch(self._images, labels, self._samples, {})

    def do(self, part: int) -> None:
        places = slice(part * _COPIED_TOGETHER, (part + 1) * _COPIED_TOGETHER)
        try:
            self._loader.renderer.copy(
                self._rows[places], self._mirrored[places], self._images[places]
            )
        except DamagedSample:
            self._render(places)

    def _render(self, places: slice) -> None:
        """Make samples one by one, since one of them is damaged."""
        picked = Picked(*(column[places] for column in self._picked))
        tasks = self._loader.renderer.tasks(self._epoch, picked)
        job = _Rendering(self._loader, self._epoch, picked, tasks, self._images[places])
        for part in range(job.num_parts):
            job.do(part)
        self._samples[places] = job.batch().samples


class _Rendering:
    """A batch of which each sample is decoded, cropped and so on by itself; a part is a few."""

    def __init__(
        self,
        loader: BatchLoader,
        epoch: int,
        picked: Picked,
        tasks: list[Task],
        images: npt.NDArray[Any] | None = None,
    ) -> None:
        """`images` is the memory for the images; by default the loader allocates it."""
        self._loader, self._epoch = loader, epoch
        self._places, self._tasks = picked.places, tasks
        self.num_parts = -(-len(tasks) // _RENDERED_TOGETHER)
        self._values: dict[str, list[Any]] = {
            name: [None] * len(tasks) for name in loader.renderer.fields
        }
        self._images = images
        self._lock = threading.Lock()
        if images is None and loader.renderer.transform is None:
            shape = (len(tasks), *loader.renderer.shape)
            self._images = loader.allocate(shape, loader.renderer.dtype)

    def batch(self) -> Batch:
        """The batch, when all its parts are done."""
        assert self._images is not None
        return Batch(
            self._images,
            np.array([task.label for task in self._tasks]),
            np.array([task.sample for task in self._tasks]),
            {name: self._joined(name, values) for name, values in self._values.items()},
        )

    def _joined(self, name: str, values: list[Any]) -> Any:
        """The masks of a batch as one array."""
        loader = self._loader
        is_mask = loader.pack.manifest.fields[name].kind == "mask"
        if not is_mask or loader.renderer.transform is not None:
            return values
        if len({value.ndim for value in values}) > 1:
            raise DspackError(f"{name}: a batch has grey and RGB ones", path=loader.pack.path)
        return np.stack(values)

    def do(self, part: int) -> None:
        start = part * _RENDERED_TOGETHER
        for place in range(start, min(start + _RENDERED_TOGETHER, len(self._tasks))):
            self._make_or_skip(place)

    def _make_or_skip(self, place: int) -> None:
        """Make a sample, or, where it is damaged and that is wanted, the next sound one."""
        try:
            self._make(place)
        except DamagedSample:
            if self._loader.on_error == "raise":
                raise
            self._loader.skipped.append(self._loader.pack.keys[self._tasks[place].sample])
            self._make_another(place)

    def _make(self, place: int) -> None:
        renderer, task = self._loader.renderer, self._tasks[place]
        if renderer.transform is None:
            assert self._images is not None
            renderer.render(task, self._images[place])
        else:
            self._put(place, renderer.transformed(task))
        self._take_fields(place)

    def _take_fields(self, place: int) -> None:
        renderer, task = self._loader.renderer, self._tasks[place]
        for (name, values), value in zip(self._values.items(), task.fields, strict=True):
            values[place] = renderer.field(task, value, name)

    def _put(self, place: int, image: npt.NDArray[Any]) -> None:
        with self._lock:
            if self._images is None:  # what a transform returns is known from its first result
                shape = (len(self._tasks), *image.shape)
                self._images = self._loader.allocate(shape, image.dtype)
        expected = self._images
        if (image.shape, image.dtype) != (expected.shape[1:], expected.dtype):
            raise ValueError(
                f"the transform returned {image.dtype} {image.shape}, and {expected.dtype} "
                f"{expected.shape[1:]} for another sample: they do not fit into one batch"
            )
        expected[place] = image

    def _make_another(self, place: int) -> None:
        loader, first = self._loader, int(self._places[place])
        for step in range(1, loader.order.num_samples):
            picked = loader.order.at(self._epoch, first + step)
            (self._tasks[place],) = loader.renderer.tasks(self._epoch, picked)
            try:
                return self._make(place)
            except DamagedSample:
                continue
        raise DamagedPack("every sample is damaged", path=loader.pack.path)
