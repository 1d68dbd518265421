"""Batches of tensors out of DALI's pipelines, epoch after epoch, resumable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn
from nvidia.dali.pipeline import pipeline_def

from ..epochs import Epochs
from ..errors import DspackError, MissingDependency
from ..ranks import rank_and_world_size
from .graph import Recipe, is_wsl


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
        rank, world_size = rank_and_world_size(rank, world_size)
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
            if on_gpu and is_wsl():
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
        if self._recipe.stored_pixels:
            return
        rows = self.pack.rows_at(samples)
        refused = _first_refused(self._recipe.source.values("image", rows))
        if refused is not None:
            raise DspackError(
                "DALI's decoder refuses the image, which others decode",
                path=self.pack.path,
                index=int(samples[refused]),
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


def _first_refused(files: Sequence[npt.NDArray[np.uint8]]) -> int | None:
    """The place of the first one that DALI cannot decode, given to it alone."""
    alone = pipeline_def(_decode_each)(
        iter(files), batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1
    )
    for place in range(len(files)):
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
            f"DALILoader needs PyTorch ({error})", advice="pip install torch"
        ) from error
    return torch
