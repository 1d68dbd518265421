"""NVIDIA DALI's face of a pack: an external source, whole pipelines, and a loader with tensors.

What DALI leaves to chance or to its own readers is settled here as everywhere in dspack. The order
is a pure function of (seed, epoch, rank), crops and flips of (seed, epoch, sample): the source
hands them to decoders.image_slice, where image_random_crop would draw from a state of its own. So
they are those of readers.torch.Loader, and a resumed run goes on exactly. The orientation is the
index's: the decoder is told to ignore EXIF, for DALI obeys broken blocks that packing takes as
upright.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .augment import center_crops, flips, random_resized_crops
from .epochs import Epochs
from .errors import DspackError, MissingDependency
from .jpeg import stray_ranges, without
from .order import Order, Picked, Shuffle
from .pack import Pack

try:
    import nvidia.dali
    import nvidia.dali.backend
    from nvidia.dali import fn
    from nvidia.dali.pipeline import Pipeline, pipeline_def
    from nvidia.dali.types import DALIDataType, DALIImageType, DALIInterpType
except ImportError as _error:
    raise MissingDependency(
        f"readers.dali needs NVIDIA DALI ({_error})", advice="pip install 'dspack[dali]'"
    ) from _error

# Older ones gave the buffers of a parallel source to the next batch while they were still read.
OLDEST_DALI = (2, 3)
if tuple(int(part) for part in nvidia.dali.__version__.split(".")[:2]) < OLDEST_DALI:
    raise MissingDependency(
        f"readers.dali needs DALI 2.3 or newer, this is {nvidia.dali.__version__}",
        advice="pip install --upgrade 'dspack[dali]'",
    )

Column = npt.NDArray[Any] | list[npt.NDArray[np.uint8]]

# By EXIF orientation: exchange rows and columns, then flip left to right, then upside down.
_ORIENTATIONS = np.arange(9)
_TURNS = np.stack(
    [
        _ORIENTATIONS >= 5,
        np.isin(_ORIENTATIONS, (2, 3, 6, 7)),
        np.isin(_ORIENTATIONS, (3, 4, 7, 8)),
    ],
    axis=1,
).astype(np.int32)


@dataclass(frozen=True)
class Source:
    """What `external_source` returns. It keeps no state between calls, so DALI may call it in any
    order, from any number of processes, and pickle it."""

    pack: Pack
    order: Order
    fields: tuple[str, ...]
    per_sample: bool
    size: int
    resize: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float
    first_epoch: int = 0
    first_batch: int = 0

    def __call__(self, info: Any) -> tuple[Any, ...]:
        """The fields of one batch (`info` is DALI's BatchInfo) or of one sample (SampleInfo).

        Raises StopIteration at and past the end of the epoch, DamagedSample.
        """
        try:
            epoch = self.first_epoch + info.epoch_idx
        except AttributeError:
            raise TypeError(
                "a bare iteration number does not tell the epoch, and every epoch would be the "
                "same; pass batch_info=True to fn.external_source"
            ) from None
        number = info.idx_in_epoch if self.per_sample else info.iteration
        if info.epoch_idx == 0:
            number += self.first_batch
        if number >= len(self.order):
            raise StopIteration
        picked = self.order.batch(epoch, number)
        rows = self.pack.rows_at(picked.samples)
        columns = (self._column(name, epoch, picked, rows) for name in self.fields)
        if self.per_sample:
            return tuple(np.asarray(column[0]) for column in columns)
        return tuple(columns)

    def _column(self, name: str, epoch: int, picked: Picked, rows: npt.NDArray[np.int64]) -> Column:
        index = self.pack.index
        if name == "label":
            return index["label"][rows]
        if name == "sample":
            return picked.samples
        if name == "turn":
            return _TURNS[index["orientation"][rows]]
        if name == "mirror":
            return flips(self.order.seed, epoch, picked.draws, self.flip).astype(np.int32)
        if name == "window":
            return self._windows(epoch, picked, rows)
        if name == "center":
            boxes = center_crops(
                index["width"][rows], index["height"][rows], self.resize, self.size
            )
            left, top, width, height = boxes.T
            return np.stack([top, left, top + height, left + width], axis=1).astype(np.float32)
        return self._values(name, rows)

    def _windows(
        self, epoch: int, picked: Picked, rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        index = self.pack.index
        widths, heights = index["width"][rows], index["height"][rows]
        left, top, width, height = random_resized_crops(
            widths, heights, self.order.seed, epoch, picked.draws, self.scale, self.ratio
        ).T
        exchanged, left_right, upside_down = _TURNS[index["orientation"][rows]].T
        left = np.where(left_right, widths - left - width, left)
        top = np.where(upside_down, heights - top - height, top)
        windows = np.stack([top, left, height, width], axis=1)
        return np.where(exchanged[:, None], windows[:, [1, 0, 3, 2]], windows).astype(np.int32)

    def _values(self, name: str, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.uint8]]:
        stored = self.pack.stored(rows, name)
        for value in stored:
            self.pack.announce(value, name)
        about = self.pack.manifest.fields[name]
        dtype = np.dtype(about.dtype if about.kind == "array" else np.uint8)
        shape = about.shape or () if about.kind == "array" else -1
        values: Iterator[bytes | memoryview] = (self.pack.value(value, name) for value in stored)
        if about.kind == "encoded":
            values = map(_without_stray_bytes, values)
        return [np.frombuffer(value, dtype).reshape(shape) for value in values]


def _without_stray_bytes(data: bytes | memoryview) -> bytes | memoryview:
    """What DALI can decode: it refuses a JPEG with stray bytes in its header, which others skip."""
    ranges = stray_ranges(data)
    return without(data, ranges) if ranges else data


def external_source(
    path: str | os.PathLike[str],
    batch_size: int | None = None,
    split: str | None = None,
    *,
    train: bool,
    fields: Sequence[str] = ("image", "label"),
    seed: int = 0,
    shuffle: Shuffle | None = None,
    drop_last: bool | None = None,
    rank: int = 0,
    world_size: int = 1,
    subset: Sequence[int] | None = None,
    weights: npt.ArrayLike | None = None,
    size: int = 224,
    resize: int | None = None,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    check: bool = True,
    epoch: int = 0,
    batch: int = 0,
) -> Source:
    """A callable for `fn.external_source`, alone or with parallel=True, under fork and spawn.

        source = external_source("imgs.lmdb", 64, train=True)
        jpegs, labels = fn.external_source(source, num_outputs=2, batch_info=True, batch=True)

        source = external_source("imgs.lmdb", train=True)       # sample by sample
        jpegs, labels = fn.external_source(source, num_outputs=2, batch=False, parallel=True)

    With `batch_size` a call gives a batch, the last of an epoch may be short. Without, it gives a
    sample, and DALI leaves out the samples at the end that do not fill its batch. Either way there
    are as many batches on every rank.

    fields, one output each:
      a field of the pack: its stored bytes, 1-D uint8, less the stray bytes in a JPEG's header,
        which DALI refuses; or an array where the pack holds arrays
      "label": int64, -1 = unlabelled        "sample": int64, the number in the pack or its split
      "window": int32 top, left, height, width of the random crop (`scale`, `ratio`, as torchvision
        chooses them) in the image as it is stored, for decoders.image_slice
      "center": float32 top, left, bottom, right of the centre crop of `size` after resizing the
        shorter side to `resize` (default size * 256 / 224), in the upright image, for fn.resize
      "turn": int32 0 or 1, what makes the stored image upright: exchange rows and columns, then
        flip left to right, then upside down
      "mirror": int32, 1 with probability `flip`

    train says what `shuffle` and `drop_last` are by default; they, rank, world_size, subset and
    weights are those of readers.order.Order. check compares checksums, so that damage is told by
    the sample's name: DALI's decoder fails a whole batch without one. epoch, batch: where to
    begin. Raises NotAPack, DamagedPack, DspackError for an unknown split or field.
    """
    pack = Pack(path, split, check=check)
    computed = {"label", "sample", "window", "center", "turn", "mirror"}
    unknown = set(fields) - computed - set(pack.manifest.fields)
    if unknown:
        known = ", ".join(sorted({*computed, *pack.manifest.fields}))
        raise DspackError(f"no field {min(unknown)!r}; there are {known}", path=pack.path)
    order = Order(
        len(pack),
        batch_size or 1,
        seed=seed,
        shuffle=train if shuffle is None else shuffle,
        drop_last=train if drop_last is None else drop_last,
        rank=rank,
        world_size=world_size,
        subset=subset,
        weights=weights,
    )
    return Source(
        pack=pack,
        order=order,
        fields=tuple(fields),
        per_sample=batch_size is None,
        size=size,
        resize=resize or round(size * 256 / 224),
        scale=scale,
        ratio=ratio,
        flip=flip,
        first_epoch=epoch,
        first_batch=batch,
    )


_DTYPES = {
    "uint8": DALIDataType.UINT8,
    "float16": DALIDataType.FLOAT16,
    "float32": DALIDataType.FLOAT,
}


class Recipe:
    """How a pack becomes batches: makes pipelines that begin anywhere in the run."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int,
        split: str | None = None,
        *,
        size: int | None = 224,
        train: bool = True,
        device: Literal["mixed", "cpu"] = "mixed",
        scale: tuple[float, float] | None = (0.08, 1.0),
        flip: float = 0.5,
        antialias: bool = True,
        layout: Literal["NHWC", "NCHW"] = "NHWC",
        dtype: npt.DTypeLike = np.uint8,
        normalize: tuple[Sequence[float], Sequence[float]] | None = None,
        threads: int | None = None,
        device_id: int | None = None,
        hw_decoder_load: float = 0.65,
        prefetch_batches: int = 2,
        workers: int = 0,
        start_method: Literal["fork", "spawn"] = "spawn",
        **source_options: Any,
    ) -> None:
        """See `pipeline`."""
        if device not in ("mixed", "cpu"):
            raise ValueError(f"device {device!r}; it is 'mixed' or 'cpu'")
        if np.dtype(dtype).name not in _DTYPES or (normalize and np.dtype(dtype) == np.uint8):
            raise ValueError(f"dtype {np.dtype(dtype).name!r} cannot hold the pixels asked for")
        if device == "mixed":
            _require_gpu()
        self.size, self.device, self.antialias = size, device, antialias
        self.layout, self.dtype, self.normalize = layout, np.dtype(dtype).name, normalize
        self.threads = threads or len(os.sched_getaffinity(0))
        self.device_id = device_id
        self.hw_decoder_load = hw_decoder_load
        self.prefetch_batches = prefetch_batches
        self.workers, self.start_method = workers, start_method

        fields = ["image", "label", "sample"]
        if train and scale is not None:
            fields.append("window")
        if size is not None and not train:
            fields.append("center")
        if train and flip:
            fields.append("mirror")
        source = external_source(
            path,
            batch_size,
            split,
            train=train,
            fields=fields,
            size=size or 224,
            scale=scale or (0.08, 1.0),
            flip=flip,
            **source_options,
        )
        self.stored_pixels = _stored_pixels(source.pack)
        if not self.stored_pixels and (source.pack.index["orientation"] > 1).any():
            source = replace(source, fields=(*source.fields, "turn"))
        self.source = source

    def pipeline(self, epoch: int = 0, batch: int = 0) -> Pipeline:
        """A pipeline, not built yet, that begins with a batch of an epoch."""
        define = pipeline_def(enable_conditionals="turn" in self.source.fields)(_define)
        return define(
            self,
            replace(self.source, first_epoch=epoch, first_batch=batch),
            batch_size=self.source.order.batch_size,
            num_threads=self.threads,
            device_id=self.device_id,
            prefetch_queue_depth=self.prefetch_batches,
            py_num_workers=self.workers,
            py_start_method=self.start_method,
        )


def pipeline(
    path: str | os.PathLike[str],
    batch_size: int,
    split: str | None = None,
    *,
    epoch: int = 0,
    batch: int = 0,
    **options: Any,
) -> Pipeline:
    """A DALI pipeline over a pack with three outputs: images, labels (int64), and the samples'
    numbers in the pack or its split (int64). `run()` raises StopIteration at the end of an epoch,
    then `reset()` goes on with the next.

    Options, by name; the others are those of `external_source`:

    size: images come out size by size, by default 224. None: as they are stored, cut and mirrored
      at most.
    train: True: a random crop (scale=None: the whole image), resized, mirrored with probability
      `flip`. False: the centre of the image after its shorter side was resized to `resize`.
    device: "mixed" decodes JPEG on the GPU and everything else on the CPU, and goes on with all of
      it on the GPU `device_id` (default: the current one); images and labels come out there.
      "cpu" needs no GPU and no driver; its decoded pixels are exactly those of readers.open.
    antialias: resize as Pillow and torchvision do, in training too; only at a random crop's edge
      the outermost pixels differ by a few levels.
    layout, dtype, normalize: "NHWC" or "NCHW"; uint8, float16 or float32, in 0..255; (mean, std) a
      channel in 0..255 for (pixels - mean) / std.
    threads: DALI's, by default the processors. hw_decoder_load: the share of JPEGs that the GPU's
      decoding engine takes where it has one (A100, Hopper, Ada, Blackwell).
    prefetch_batches: how many are made ahead.
    workers: processes that read the pack; 0 reads it in this one, at some 25 µs a sample.
      start_method "fork" is quick, but must come before CUDA is used: call `start_py_workers()`.

    Raises NotAPack, DamagedPack, DspackError; ValueError for options that contradict each other;
    `run()`, without workers, DamagedSample.
    """
    return Recipe(path, batch_size, split, **options).pipeline(epoch, batch)


def _define(recipe: Recipe, source: Source) -> tuple[Any, ...]:
    """The graph. Every name in `columns` is an output of the source."""
    options: dict[str, Any] = {}
    if recipe.workers:
        options = {"parallel": True, "prefetch_queue_depth": recipe.prefetch_batches}
    outputs = fn.external_source(
        source,
        num_outputs=len(source.fields),
        layout=["HWC" if recipe.stored_pixels else ""],
        batch=True,
        batch_info=True,
        **options,
    )
    columns = {name: outputs[i] for i, name in enumerate(source.fields)}
    images, labels = _pixels(recipe, columns), columns["label"]
    if recipe.device == "mixed":
        images, labels = images.gpu(), labels.gpu()
    if "turn" in columns:
        images = _upright(images, columns["turn"])
    if recipe.size is not None:
        images = _resized(recipe, images, columns)
    mean, std = recipe.normalize or ([0.0], [1.0])
    images = fn.crop_mirror_normalize(
        images,
        mirror=columns.get("mirror", 0),
        dtype=_DTYPES[recipe.dtype],
        mean=list(mean),
        std=list(std),
        output_layout=recipe.layout[1:],
    )
    return images, labels, columns["sample"]


def _pixels(recipe: Recipe, columns: Mapping[str, Any]) -> Any:
    """Decoded, cut to the window, and not turned yet."""
    window = {}
    if "window" in columns:
        top_left, shape = columns["window"][:2], columns["window"][2:]
        window = {"start": top_left, "shape": shape, "axis_names": "HW"}
    if recipe.stored_pixels:
        return fn.slice(columns["image"], **window) if window else columns["image"]
    decoder = fn.decoders.image_slice if window else fn.decoders.image
    return decoder(
        columns["image"],
        device=recipe.device,
        output_type=DALIImageType.RGB,
        adjust_orientation=False,
        jpeg_fancy_upsampling=True,  # libjpeg-turbo's, so that the GPU's pixels are near the CPU's
        hw_decoder_load=recipe.hw_decoder_load,
        **window,
    )


def _upright(images: Any, turn: Any) -> Any:
    """Turned where it has to be; the conditions are DALI's, decided sample by sample."""
    if fn.reductions.max(turn) > 0:
        if turn[0] > 0:
            images = fn.transpose(images, perm=[1, 0, 2], output_layout="HWC")
        images = fn.flip(images, horizontal=turn[1], vertical=turn[2])
    return images


def _resized(recipe: Recipe, images: Any, columns: Mapping[str, Any]) -> Any:
    part = {}
    if "center" in columns:
        part = {"roi_start": columns["center"][:2], "roi_end": columns["center"][2:]}
    return fn.resize(
        images,
        size=[recipe.size, recipe.size],
        interp_type=DALIInterpType.INTERP_LINEAR,
        antialias=recipe.antialias,
        **part,
    )


def _stored_pixels(pack: Pack) -> bool:
    """Whether the pack holds pixels and not files. Raises DspackError for what is no image."""
    about = pack.manifest.fields["image"]
    if about.odd is not None:
        raise DspackError(
            "it keeps odd images (CMYK, transparent, TIFF …) as they were, which DALI would decode "
            "to other pixels",
            path=pack.path,
            advice="pack without --keep-bytes, or use readers.torch.Loader",
        )
    if about.kind == "encoded" and pack.pixel_dtype != np.uint8:
        raise DspackError(
            "it keeps more than 8 bits a channel, which DALI's decoders would drop",
            path=pack.path,
            advice="pack with --depth shift or scale, or use readers.torch.Loader",
        )
    if about.kind == "encoded":
        return False
    shape = about.shape or ()
    is_uint8 = about.kind == "array" and np.dtype(about.dtype) == np.uint8
    if is_uint8 and len(shape) == 3 and shape[2] == 3:
        return True
    raise DspackError(
        f"its images are {about.kind} {about.dtype} {shape}; DALI is fed encoded images, or uint8 "
        "arrays (height, width, 3)",
        path=pack.path,
    )


def _require_gpu() -> None:
    backend: Any = nvidia.dali.backend  # its stubs leave this out
    if backend.GetCUDADeviceCount() > 0:
        return
    advice = "device='cpu' works without"
    if _is_wsl():
        advice += "; under WSL2 the driver is the one installed in Windows, see /usr/lib/wsl/lib"
    raise DspackError("device='mixed' needs an NVIDIA GPU and its driver", advice=advice)


def _is_wsl() -> bool:
    return "microsoft" in platform.release().lower()


class DALILoader(Epochs):
    """Batches of tensors through DALI, as readers.torch.Loader gives them: `(images, labels)`, or
    `(images, labels, samples)` with `with_samples`.

    images: (n, 3, size, size), channels-last in memory with layout "NHWC"; labels, samples: (n)
    int64. With device="mixed" images and labels are on the GPU. A batch stays valid until it is
    dropped. Order, crops and flips are those of Loader; the last batch is short, not filled.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int,
        split: str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        device: Literal["mixed", "cpu"] = "mixed",
        device_id: int | None = None,
        with_samples: bool = False,
        **options: Any,
    ) -> None:
        """The options are those of `pipeline`; rank and world_size come from torch.distributed
        when it is initialised, the GPU is torch's current one. Raises what `pipeline` raises, and
        MissingDependency without torch; while iterating, DamagedSample."""
        self._torch = torch = _import_torch()
        if rank is None or world_size is None:
            rank, world_size = self._rank_and_world_size()
        if device == "mixed" and device_id is None and torch.cuda.is_available():
            device_id = torch.cuda.current_device()
        self._recipe = Recipe(
            path,
            batch_size,
            split,
            rank=rank,
            world_size=world_size,
            device=device,
            device_id=device_id,
            **options,
        )
        self._with_samples = with_samples
        super().__init__(self._recipe.source.pack, self._recipe.source.order)
        # A pipeline that has ended one epoch and may go on with the next: (that epoch, it).
        self._waiting: tuple[int, Any] | None = None

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        epoch, numbers = self._begin()
        # An iteration that is broken off drops its pipeline, and what is prefetched in it.
        waiting, self._waiting = self._waiting, None
        if waiting is not None and waiting[0] == epoch and numbers.start == 0:
            pipe = waiting[1]
        else:
            pipe = self._recipe.pipeline(epoch, numbers.start)
        batches = (self._tensors(self._run(pipe, epoch, number)) for number in numbers)
        yield from self._counted(batches)
        _end_epoch(pipe)
        self._waiting = (epoch + 1, pipe)
        self._end(epoch)

    def _run(self, pipe: Any, epoch: int, number: int) -> tuple[Any, ...]:
        on_gpu = self._recipe.device == "mixed"
        stream = self._torch.cuda.current_stream(self._recipe.device_id) if on_gpu else None
        try:
            outputs: tuple[Any, ...] = pipe.run(stream)
        except DspackError:
            raise
        except Exception as error:
            self._name_culprit(epoch, number)
            if on_gpu and _is_wsl():
                raise DspackError(
                    f"DALI: {error}",
                    advice="under WSL2, DALI_DISABLE_NVML=1 and DALI_RESTRICT_PINNED_MEM=1 in the "
                    "environment help with errors of NVML and of pinned memory",
                ) from error
            raise
        return outputs

    def _name_culprit(self, epoch: int, number: int) -> None:
        """Raise the error of the sample behind an error of DALI's, which does not name it."""
        last = min(number + self._recipe.prefetch_batches, len(self) - 1)
        numbers = range(number, last + 1)
        samples = np.concatenate([self.order.batch(epoch, n).samples for n in numbers])
        for sample in samples.tolist():
            self.pack.image(sample)
        refused = None if self._recipe.stored_pixels else _first_refused(self.pack, samples)
        if refused is not None:
            raise DspackError(
                "DALI's decoder refuses the image, which others decode",
                path=self.pack.path,
                index=int(self.pack.rows_at(samples[refused : refused + 1])[0]),
                key=self.pack.keys[int(samples[refused])],
                advice="readers.torch.Loader reads it; `subset` leaves it out",
            )

    def _tensors(self, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        images, labels, samples = (
            self._torch.from_dlpack(output.as_tensor()) for output in outputs
        )
        if self._recipe.layout == "NHWC":
            images = images.permute(0, 3, 1, 2)
        return (images, labels, samples) if self._with_samples else (images, labels)

    def _rank_and_world_size(self) -> tuple[int, int]:
        distributed = self._torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1


def _first_refused(pack: Pack, samples: npt.NDArray[np.int64]) -> int | None:
    """The place in `samples` of the first one that DALI cannot decode, given to it alone."""
    files = (np.frombuffer(pack.read(sample), np.uint8) for sample in samples)
    alone = pipeline_def(_decode_each)(
        files, batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    for place in range(len(samples)):
        try:
            alone.run()
        except RuntimeError:
            return place
    return None


def _decode_each(files: Iterator[Any]) -> Any:
    return fn.decoders.image(fn.external_source(lambda: [next(files)]))


def _end_epoch(pipe: Any) -> None:
    try:
        pipe.run()
    except StopIteration:
        pipe.reset()
        return
    raise AssertionError("DALI gave more batches than an epoch has")


def _import_torch() -> Any:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise MissingDependency(
            f"DALILoader needs PyTorch ({error})", advice="pip install 'dspack[torch]'"
        ) from error
    return torch
