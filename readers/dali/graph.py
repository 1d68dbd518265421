"""DALI's graph from stored bytes to batches of pixels."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import nvidia.dali.backend
from nvidia.dali import fn
from nvidia.dali.pipeline import Pipeline, pipeline_def
from nvidia.dali.types import DALIDataType, DALIImageType, DALIInterpType

from ..errors import DspackError
from ..normalization import in_levels
from ..pack import Pack
from ..ranks import threads_or_share
from .source import Source, external_source

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
        if normalize:
            in_levels(*normalize)
        if device == "mixed":
            _require_gpu()
        self.size, self.device, self.antialias = size, device, antialias
        self.layout, self.dtype, self.normalize = layout, np.dtype(dtype).name, normalize
        self.threads = threads_or_share(threads)
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
        if self.workers and self.start_method == "fork":
            # A forked worker that finds an old pipeline to destroy waits for ever for its threads.
            gc.collect()
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

    Options, by name. seed, shuffle, drop_last, rank, world_size, subset, weights, resize, ratio and
    check are those of `external_source`; the others:

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
    threads: DALI's, by default this process's share of the processors, where torchrun started
      several on this machine. hw_decoder_load: the share of JPEGs that the GPU's
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
    if is_wsl():
        advice += "; under WSL2 the driver is the one installed in Windows, see /usr/lib/wsl/lib"
    raise DspackError("device='mixed' needs an NVIDIA GPU and its driver", advice=advice)


def is_wsl() -> bool:
    return "microsoft" in platform.release().lower()
