"""PyTorch's face of a pack: a dataset, a batch loader, and the way to the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from .errors import MissingDependency
from .loader import Batch, BatchLoader
from .pack import Pack

try:
    import torch
    import torch.distributed
    from torch.utils.data import Dataset
except ImportError as _error:
    raise MissingDependency(
        f"readers.torch needs PyTorch ({_error})", advice="pip install 'dspack[torch]'"
    ) from _error


class ImageDataset(Dataset[tuple[Any, Any]]):
    """A drop-in for torchvision.datasets.ImageFolder: the same (image, label) items in the same
    order, and the same attributes.

    One thing differs: pixels are upright, where ImageFolder ignores the EXIF orientation. Works
    with any DataLoader, under fork and spawn, with persistent workers.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        *,
        arrays: bool = False,
        check: bool = True,
    ) -> None:
        """`arrays=True` hands uint8 RGB arrays (height, width, 3) to `transform` instead of PIL
        images. `check` as in readers.open. Raises NotAPack, DamagedPack."""
        self.pack = Pack(path, split, check=check)
        self.transform = transform
        self.target_transform = target_transform
        self.arrays = arrays
        self.classes = self.pack.classes
        self.class_to_idx = self.pack.class_to_idx

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        sample = self.pack[i]
        image: Any = sample.image
        label: Any = sample.label
        if not self.arrays:
            from PIL import Image

            image = Image.fromarray(image)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return image, label

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """What DataLoader's fetcher asks for: a whole batch at once."""
        return [self[i] for i in indices]

    # Lists cost memory in every worker, so they exist only for those who ask, and are not pickled.

    @cached_property
    def targets(self) -> list[int]:
        """The label of every sample."""
        targets: list[int] = self.pack.labels.tolist()
        return targets

    @cached_property
    def samples(self) -> list[tuple[str, int]]:
        """(key, label) of every sample."""
        return list(zip(self.pack.keys, self.targets, strict=True))

    @property
    def imgs(self) -> list[tuple[str, int]]:
        """The same as `samples`, torchvision's older name for it."""
        return self.samples

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("targets", "samples")}

    def __repr__(self) -> str:
        return f"<ImageDataset {self.pack.path}: {len(self)} samples, {len(self.classes)} classes>"


class Loader:
    """Batches of tensors from a pack: `(images, labels)`, or `(images, labels, batch)` with
    `fields` or `with_batch`.

    images: (n, 3, size, size) uint8, channels-last in memory, without a copy; labels: (n) int64.
    Buffers are pinned when CUDA is there. A batch stays valid until it is dropped. All arguments
    but these are those of readers.loader.BatchLoader, whose methods it shares. rank and world_size
    come from torch.distributed when it is initialised.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int,
        split: str | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        with_batch: bool = False,
        **options: Any,
    ) -> None:
        """Raises NotAPack, DamagedPack; while iterating, DamagedSample."""
        if rank is None or world_size is None:
            rank, world_size = _rank_and_world_size()
        loader = _PinnedLoader if torch.cuda.is_available() else BatchLoader
        self.batches = loader(path, batch_size, split, rank=rank, world_size=world_size, **options)
        self._with_batch = with_batch or bool(self.batches.fields)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches:
            images, labels = self._image_tensor(batch), torch.from_numpy(batch.labels)
            yield (images, labels, batch) if self._with_batch else (images, labels)
            del batch, images, labels  # what is held here cannot be used again

    def _image_tensor(self, batch: Batch) -> torch.Tensor:
        images = _PinnedLoader.tensor_of(batch.images)
        if self.batches.layout == "NHWC" and images.ndim == 4:
            images = images.permute(0, 3, 1, 2)
        return images

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches.load_state_dict(state)

    @property
    def skipped(self) -> list[str]:
        """Keys of the damaged samples that on_error="skip" replaced."""
        return self.batches.skipped


def _rank_and_world_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


class _PinnedLoader(BatchLoader):
    """Takes its buffers from torch's allocator of pinned memory, which also knows when an
    asynchronous copy from one has ended, and does not hand it out before."""

    def take_buffer(self, shape: tuple[int, ...]) -> Any:
        dtype = getattr(torch, self.dtype.name)
        return torch.empty(shape, dtype=dtype, pin_memory=True).numpy()

    @staticmethod
    def tensor_of(array: Any) -> torch.Tensor:
        """The tensor that an array is a view of, or a new one on the same memory."""
        if isinstance(array.base, torch.Tensor):
            return array.base
        return torch.from_numpy(array)


class CUDAPrefetcher:
    """Copies the next batch to the GPU, and normalises it there, while this one trains.

        for images, labels in CUDAPrefetcher(loader, "cuda", mean=…, std=…): …

    images: (n, 3, size, size) `dtype`, channels-last, (pixels - mean) / std where given, mean and
    std in 0..255 a channel. On a CPU device it does the same without streams.
    """

    def __init__(
        self,
        loader: Loader,
        device: str | torch.device,
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self.dtype = dtype
        self._mean, self._std = (
            None if part is None else torch.tensor(part, device=self.device).view(1, 3, 1, 1)
            for part in (mean, std)
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self.device.type != "cuda":
            for images, labels, *_ in self.loader:
                yield self._prepare(images, labels)
            return
        stream: Any = torch.cuda.Stream  # torch leaves its constructor untyped
        side = stream(self.device)
        batches = iter(self.loader)
        ahead = self._load(side, batches)
        while ahead is not None:
            # The training stream waits for the copy; the allocator must not give the memory away
            # while that stream still works on it.
            current = torch.cuda.current_stream(self.device)
            current.wait_stream(side)
            images, labels = ahead
            images.record_stream(current)
            labels.record_stream(current)
            ahead = self._load(side, batches)
            yield images, labels

    def _load(
        self, side: torch.cuda.Stream, batches: Iterator[tuple[Any, ...]]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return self._prepare(batch[0], batch[1])

    def _prepare(
        self, images: torch.Tensor, labels: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        images = images.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        if self._mean is None and self._std is None and self.dtype == images.dtype:
            return images, labels
        images = images.to(torch.float32)
        if self._mean is not None:
            images = images - self._mean
        if self._std is not None:
            images = images / self._std
        return images.to(self.dtype), labels
