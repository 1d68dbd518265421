"""Batches for training: threads that decode, crop, flip and resize straight into batch buffers.

Decoding lets go of Python's lock, so threads scale as processes do, and share the page cache, the
index and the buffers without a copy. Torch is not needed here; `readers.torch.Loader` is the face
with tensors.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt

from .augment import center_crops, flips, random_resized_crops
from .decode import UndecodableError, decode, decode_region
from .errors import DamagedPack, DamagedSample, DspackError
from .order import Order, Picked, Shuffle
from .pack import Pack, Stored

Pixels = npt.NDArray[np.uint8]
Transform = Callable[[Pixels, np.random.Generator], npt.NDArray[Any]]

# A thread takes this many samples at a time: enough to share the cost of handing them over, few
# enough that the threads end a batch together.
_CHUNK_SAMPLES = 4


@dataclass
class Batch:
    """`images` (n, height, width, 3) or, with layout="NCHW", (n, 3, height, width); `labels` (n)
    int64; `samples` (n) int64, the samples' numbers in the pack or its split; `fields` the stored
    bytes of other fields, when asked for."""

    images: npt.NDArray[Any]
    labels: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    fields: dict[str, list[bytes]] = field(default_factory=dict)


class BatchLoader:
    """An endless supply of epochs: each `iter()` gives the batches of one.

    The order is a pure function of (seed, epoch), what is done to a sample of (seed, epoch,
    sample): the batches are the same with any number of threads. An epoch that was iterated to
    its end is followed by the next one; `set_epoch` chooses, `state_dict` and `load_state_dict`
    go on in the middle of one.
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
        transform: Transform | None = None,
        fields: Sequence[str] = (),
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: npt.DTypeLike = np.uint8,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        check: bool = True,
        prefetch_batches: int = 3,
    ) -> None:
        """Images come out `size` by `size`.

        train=True: a random crop as torchvision's RandomResizedCrop makes it (`scale`, `ratio`;
        scale=None takes the whole image), resized bilinearly, mirrored with probability `flip`;
        shuffled, and without the samples that fill no batch. train=False: the shorter side is
        resized to `resize` (by default size * 256 / 224), antialiased as Pillow and torchvision
        do, and the centre is cut out; in order, to the last sample.

        threads: default, the processors. exact=True never decodes a JPEG at reduced size.
        transform(pixels, random): does all of that itself; it gets upright uint8 RGB pixels and a
        generator that depends on (seed, epoch, sample) alone, and returns an array whose shape is
        the same for every sample. layout, dtype, normalize ((mean, std) a channel, in 0..255) make
        other batches than uint8 (n, height, width, 3). on_error="skip" takes the next sample of
        the epoch for a damaged one, and lists it in `skipped`. check compares checksums.
        rank, world_size, subset, weights: see readers.order. prefetch_batches: how many are ready
        or being made ahead of the one asked for.
        """
        self.pack = Pack(path, split, check=check)
        self.size, self.train = size, train
        self.threads = threads or len(os.sched_getaffinity(0))
        self.seed = seed
        self.scale, self.ratio, self.flip = scale, ratio, flip
        self.resize = resize or round(size * 256 / 224)
        self.exact, self.transform, self.fields = exact, transform, tuple(fields)
        self.layout, self.dtype = layout, np.dtype(dtype)
        self._normalize = _normalization(normalize)
        self.on_error = on_error
        self.prefetch_batches = prefetch_batches
        self.skipped: list[str] = []
        self.order = Order(
            len(self.pack),
            batch_size,
            seed=seed,
            shuffle=train if shuffle is None else shuffle,
            drop_last=train if drop_last is None else drop_last,
            rank=rank,
            world_size=world_size,
            subset=subset,
            weights=weights,
        )
        self.epoch = 0
        self._first_batch = self._batches_given = 0
        self._buffers = Buffers()

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iter() gives, from its start."""
        self.epoch = epoch
        self._first_batch = self._batches_given = 0

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is: call it between two batches."""
        return {
            "epoch": self.epoch,
            "batches": self._batches_given,
            "seed": self.seed,
            "content_digest": self.pack.content_digest,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state: the next iter() gives the batches that were to come.

        Raises DspackError for the state of another pack or seed: its batches cannot come again.
        """
        mine = self.state_dict()
        for name in ("seed", "content_digest"):
            if state[name] != mine[name]:
                raise DspackError(
                    f"the saved state has {name} {state[name]!r}, this loader {mine[name]!r}",
                    path=self.pack.path,
                )
        self.epoch = state["epoch"]
        self._first_batch = self._batches_given = state["batches"]

    def __iter__(self) -> Iterator[Batch]:
        first, self._first_batch = self._first_batch, 0
        self._batches_given = first
        run = _Run(self, self.epoch, first)
        try:
            for _ in range(first, len(self)):
                batch = run.next_batch()
                self._batches_given += 1
                yield batch
                del batch  # or its buffer could not be used again until the next one is there
        finally:
            run.stop()
        self.epoch, self._batches_given = self.epoch + 1, 0

    # What the threads do

    def allocate(self, num_samples: int) -> npt.NDArray[Any]:
        """Memory for the images of a batch: one that nobody looks at any more, or a new one."""
        shape: tuple[int, ...] = (self.size, self.size, 3)
        if self.transform is not None:
            shape = self._transformed_shape
        elif self.layout == "NCHW":
            shape = (3, self.size, self.size)
        return self.take_buffer((num_samples, *shape))

    def take_buffer(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        return self._buffers.take(shape, self.dtype)

    @property
    def _transformed_shape(self) -> tuple[int, ...]:
        if not hasattr(self, "_shape"):
            assert self.transform is not None
            first = self.transform(self.pack.image(0), np.random.default_rng(0))
            self._shape = np.asarray(first).shape
        return self._shape

    def plan(self, epoch: int, picked: Picked) -> _Plan:
        """Everything about a batch that can be worked out for all its samples at once."""
        pack, samples = self.pack, picked.samples
        rows = pack.rows_at(samples)
        stored = pack.stored(rows, "image")
        for value in stored:
            pack.announce(value, "image")
        widths, heights = pack.index["width"][rows], pack.index["height"][rows]
        boxes: list[Any]
        mirrored = [False] * len(samples)
        if not self.train:
            boxes = center_crops(widths, heights, self.resize, self.size).tolist()
        elif self.scale is None:
            boxes = [(0, 0, w, h) for w, h in zip(widths.tolist(), heights.tolist(), strict=True)]
        else:
            boxes = random_resized_crops(
                widths, heights, self.seed, epoch, picked.draws, self.scale, self.ratio
            ).tolist()
        if self.train and self.flip:
            mirrored = flips(self.seed, epoch, picked.draws, self.flip).tolist()
        return _Plan(
            epoch=epoch,
            picked=picked,
            rows=rows,
            stored=stored,
            sizes=list(zip(widths.tolist(), heights.tolist(), strict=True)),
            orientations=pack.index["orientation"][rows].tolist(),
            boxes=boxes,
            mirrored=mirrored,
            batch=Batch(
                self.allocate(len(samples)),
                pack.index["label"][rows],
                samples,
                {name: [b""] * len(samples) for name in self.fields},
            ),
        )

    def fill(self, plan: _Plan, i: int) -> None:
        """Make image `i` of a batch. Raises DamagedSample."""
        try:
            data = self.pack.value(plan.stored[i], "image")
            self._draw(plan, i, data)
            for name, values in plan.batch.fields.items():
                values[i] = self.pack.read(int(plan.picked.samples[i]), name)
        except (UndecodableError, DamagedPack) as error:
            if self.on_error == "raise" or plan.is_replacement:
                if isinstance(error, UndecodableError):
                    reason = f"the image cannot be decoded: {error}"
                    raise self.pack.damaged(int(plan.rows[i]), reason) from None
                raise
            self._replace(plan, i)

    def _draw(self, plan: _Plan, i: int, data: memoryview) -> None:
        out = plan.batch.images[i]
        if self.transform is not None:
            pixels = self._whole(data, plan.orientations[i])
            key = [self.seed % 2**64, (plan.epoch << 40) + int(plan.picked.draws[i])]
            random = np.random.Generator(np.random.Philox(key=np.array(key, np.uint64)))
            out[...] = self.transform(pixels, random)
            return
        target = out
        if self._normalize is not None or out.dtype != np.uint8 or self.layout == "NCHW":
            target = np.empty((self.size, self.size, 3), np.uint8)
        if self.train:
            self._draw_train(plan, i, data, target)
        else:
            self._draw_eval(plan, i, data, target)
        if target is not out:
            self._finish(target, out)

    def _draw_train(self, plan: _Plan, i: int, data: memoryview, target: Pixels) -> None:
        size, box = self.size, plan.boxes[i]
        pixels = self._region(plan, i, data, box, None if self.exact else (size, size))
        if plan.mirrored[i]:
            if pixels.shape == target.shape:
                cv2.flip(pixels, 1, dst=target)
                return
            cv2.resize(pixels, (size, size), dst=target, interpolation=cv2.INTER_LINEAR)
            cv2.flip(target, 1, dst=target)
        else:
            # OpenCV copies where the size is right already.
            cv2.resize(pixels, (size, size), dst=target, interpolation=cv2.INTER_LINEAR)

    def _draw_eval(self, plan: _Plan, i: int, data: memoryview, target: Pixels) -> None:
        from PIL import Image

        left, top, width, height = plan.boxes[i]
        # Pillow's filter reaches past the box by one target pixel, so it gets the whole image. A
        # JPEG may come at reduced size while twice the pixels are left: Pillow's own "fair" rule.
        whole = (0, 0, *plan.sizes[i])
        least = None if self.exact else (2 * self.resize, 2 * self.resize)
        pixels = self._region(plan, i, data, whole, least)
        shrink_x, shrink_y = plan.sizes[i][0] / pixels.shape[1], plan.sizes[i][1] / pixels.shape[0]
        if (width, height) == (self.size, self.size) and float(left).is_integer():
            x, y = round(left), round(top)
            target[...] = pixels[y : y + self.size, x : x + self.size]
            return
        box = (
            max(left / shrink_x, 0.0),
            max(top / shrink_y, 0.0),
            min((left + width) / shrink_x, pixels.shape[1]),
            min((top + height) / shrink_y, pixels.shape[0]),
        )
        image = Image.fromarray(pixels)
        shown = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        target[...] = np.asarray(shown)

    def _region(
        self,
        plan: _Plan,
        i: int,
        data: memoryview,
        box: tuple[int, int, int, int],
        least: tuple[int, int] | None,
    ) -> Pixels:
        about = self.pack.manifest.fields["image"]
        if about.kind == "array":
            left, top, width, height = box
            array = np.frombuffer(data, about.dtype).reshape(about.shape or ())
            return array[top : top + height, left : left + width]
        return decode_region(
            data,
            plan.orientations[i],
            plan.sizes[i],
            box,
            segments=self.pack.segments(int(plan.rows[i])),
            reduce_to=least,
        )

    def _whole(self, data: memoryview, orientation: int) -> Pixels:
        about = self.pack.manifest.fields["image"]
        if about.kind == "array":
            return np.frombuffer(data, about.dtype).reshape(about.shape or ())
        return decode(data, orientation)

    def _finish(self, pixels: Pixels, out: npt.NDArray[Any]) -> None:
        source = pixels if self.layout == "NHWC" else pixels.transpose(2, 0, 1)
        if self._normalize is None:
            out[...] = source
            return
        factor, shift = self._normalize
        if self.layout == "NCHW":
            factor, shift = factor[:, None, None], shift[:, None, None]
        np.add(source * factor, shift, out=out, casting="unsafe")

    def _replace(self, plan: _Plan, i: int) -> None:
        """Put the next sound sample of the epoch's order in the place of a damaged one."""
        self.skipped.append(self.pack.keys[int(plan.picked.samples[i])])
        for step in range(1, self.order.num_samples):
            picked = self.order.at(plan.epoch, int(plan.picked.places[i]) + step)
            substitute = self.plan(plan.epoch, picked)
            substitute.is_replacement = True
            try:
                self.fill(substitute, 0)
            except DamagedSample:
                continue
            plan.batch.images[i] = substitute.batch.images[0]
            plan.batch.labels[i] = substitute.batch.labels[0]
            plan.batch.samples[i] = substitute.batch.samples[0]
            for name, values in substitute.batch.fields.items():
                plan.batch.fields[name][i] = values[0]
            return
        raise DamagedPack("every sample is damaged", path=self.pack.path)


def _normalization(
    normalize: tuple[Sequence[float], Sequence[float]] | None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]] | None:
    """(mean, std) as the factor and shift of one multiplication and one addition."""
    if normalize is None:
        return None
    mean, std = (np.asarray(part, np.float32) for part in normalize)
    return (1 / std).astype(np.float32), (-mean / std).astype(np.float32)


@dataclass
class _Plan:
    """One batch on its way: what to do for each sample, and where the result goes."""

    epoch: int
    picked: Picked
    rows: npt.NDArray[np.int64]
    stored: list[Stored]
    sizes: list[tuple[int, int]]
    orientations: list[int]
    boxes: list[Any]
    mirrored: list[bool]
    batch: Batch
    is_replacement: bool = False


class _Slot(NamedTuple):
    plan: _Plan
    progress: list[int]  # samples taken by threads, samples finished
    errors: list[tuple[int, BaseException]]


class _Run:
    """The threads of one epoch, and the batches that they are working on."""

    def __init__(self, loader: BatchLoader, epoch: int, first: int) -> None:
        self._loader = loader
        self._epoch, self._next_number = epoch, first
        self._slots: deque[_Slot] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        cv2.setNumThreads(0)  # one picture is too small to share
        self._threads = [
            threading.Thread(target=self._work, name=f"loader-{i}", daemon=True)
            for i in range(loader.threads)
        ]
        for thread in self._threads:
            thread.start()

    def next_batch(self) -> Batch:
        """Wait for the next batch. Raises what went wrong while it was made."""
        with self._changed:
            self._changed.wait_for(self._is_ready)
            slot = self._slots.popleft()
            self._changed.notify_all()
        if slot.errors:
            raise min(slot.errors, key=lambda pair: pair[0])[1]
        return slot.plan.batch

    def _is_ready(self) -> bool:
        if not self._slots:
            return False
        slot = self._slots[0]
        return slot.progress[1] == len(slot.plan.stored)

    def stop(self) -> None:
        """End the threads; each finishes the few samples it has taken."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            slot, start, stop = taken
            for i in range(start, stop):
                try:
                    self._loader.fill(slot.plan, i)
                except BaseException as error:
                    slot.errors.append((i, error))
            with self._changed:
                slot.progress[1] += stop - start
                if slot.progress[1] == len(slot.plan.stored):
                    self._changed.notify_all()

    def _take(self) -> tuple[_Slot, int, int] | None:
        """The next few samples to work on, of the oldest batch that has some left."""
        with self._changed:
            while not self._stopped:
                for slot in self._slots:
                    start, size = slot.progress[0], len(slot.plan.stored)
                    if start < size:
                        slot.progress[0] = min(start + _CHUNK_SAMPLES, size)
                        return slot, start, slot.progress[0]
                if not self._begin_batch():
                    self._changed.wait()
            return None

    def _begin_batch(self) -> bool:
        """Plan one more batch, unless enough are on their way."""
        loader = self._loader
        if self._next_number >= len(loader) or len(self._slots) > loader.prefetch_batches:
            return False
        picked = loader.order.batch(self._epoch, self._next_number)
        self._next_number += 1
        self._slots.append(_Slot(loader.plan(self._epoch, picked), [0, 0], []))
        return True


class Buffers:
    """Batch-sized arrays that are used again when nothing refers to them any more.

    Fresh memory costs a page fault every 4 KiB, which is more than a copy of raw pixels takes.
    An array that was handed out, a slice of it, and a tensor made from either all refer to the
    buffer, so its reference count tells whether somebody still looks.
    """

    def __init__(self) -> None:
        self._buffers: list[npt.NDArray[Any]] = [np.empty(0, np.uint8)]
        for buffer in self._buffers:  # in the very way that take() looks: it differs by version
            self._unused = sys.getrefcount(buffer)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """An array of this shape with arbitrary content."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        for buffer in self._buffers:
            if buffer.nbytes >= num_bytes and sys.getrefcount(buffer) == self._unused:
                break
        else:
            buffer = np.empty(num_bytes, np.uint8)
            self._buffers.append(buffer)
        return buffer[:num_bytes].view(dtype).reshape(shape)
