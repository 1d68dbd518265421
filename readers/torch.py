"""PyTorch's face of a pack: a dataset, a batch loader, and the way to the GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DspackError, MissingDependency
from .loader import Batch, BatchLoader
from .normalization import NOT_IN_LEVELS, are_in_levels, of_channels
from .pack import Pack
from .ranks import rank_and_world_size
from .render import known_fields

try:
    import torch
    from torch.utils.data import Dataset
except ImportError as _error:
    raise MissingDependency(
        f"readers.torch needs PyTorch ({_error})", advice="pip install torch"
    ) from _error


class ImageDataset(Dataset[tuple[Any, ...]]):
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
        fields: Sequence[str] = (),
        check: bool = True,
    ) -> None:
        """`arrays=True` hands RGB arrays (height, width, 3) to `transform` instead of PIL images:
        uint8, or uint16 from a pack that keeps more than 8 bits, which PIL cannot hold. With
        `fields` items are (image, label, *values), the values as Pack.field gives them; `transform`
        sees the image alone, so leave what moves pixels, and masks with them, to later code, or
        take a Loader. `check` as in readers.open. Raises NotAPack, DamagedPack, DspackError for an
        unknown field, and where PIL images cannot be."""
        self.pack = Pack(path, split, check=check)
        self.fields = known_fields(self.pack, fields)
        stored = self.pack.manifest.fields["image"]
        is_rgb = stored.kind == "encoded" or (stored.shape or ())[2:] == (3,)
        if not arrays and is_rgb and self.pack.pixel_dtype == np.uint16:
            raise DspackError(
                f"its pixels are {self.pack.pixel_dtype}, and PIL has no RGB images of those",
                path=self.pack.path,
                advice="ask for arrays: ImageDataset(…, arrays=True)",
            )
        self.transform = transform
        self.target_transform = target_transform
        self.arrays = arrays
        self.classes = self.pack.classes
        self.class_to_idx = self.pack.class_to_idx

    def __len__(self) -> int:
        return len(self.pack)

    def __getitem__(self, i: int) -> tuple[Any, ...]:
        return self.__getitems__([i])[0]

    def _item(self, i: int, image: Any, label: Any) -> tuple[Any, ...]:
        if not self.arrays:
            from PIL import Image

            image = Image.fromarray(image)
        if self.transform is not None:
            image = self.transform(image)
        if self.target_transform is not None:
            label = self.target_transform(label)
        return (image, label, *(self.pack.field(i, name) for name in self.fields))

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, ...]]:
        """What DataLoader's fetcher asks for: a whole batch at once. The index is read once for
        all, which is most of the time where a pack stores pixels."""
        return [
            self._item(i, image, label)
            for i, (image, label) in zip(indices, self.pack.labelled(indices), strict=True)
        ]

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
    `fields` or `with_batch`, where `batch` is a readers.loader.Batch with tensors in its `fields`.

    images: (n, 3, size, size) uint8, or uint16 from a pack that keeps more than 8 bits (torch can
    do little with those but `.float()`), channels-last in memory, without a copy; with
    `transform`, what it returned, stacked. labels: (n,) int64. Images are in pinned memory when
    CUDA is there. A batch stays valid until the last tensor on it is dropped.
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
        """`options` are those of readers.loader.BatchLoader, and so are the errors. rank and
        world_size come from torch.distributed when it is initialised.
        """
        rank, world_size = rank_and_world_size(rank, world_size)
        if torch.cuda.is_available():
            options.setdefault("allocate", _pinned)
        self.batches = BatchLoader(
            path,
            batch_size,
            split,
            rank=rank,
            world_size=world_size,
            **options,
        )
        self._with_batch = with_batch or bool(self.batches.renderer.fields)
        _require_torch_type(self.batches)

    def __len__(self) -> int:
        """Batches in an epoch, the same in every epoch and on every rank."""
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches:
            images, labels = self._image_tensor(batch), torch.from_numpy(batch.labels)
            if batch.fields:
                batch.fields = _with_each_array(batch.fields, _field_tensor)
            yield (images, labels, batch) if self._with_batch else (images, labels)
            del batch, images, labels  # or their memory could not be used for the next batches

    def _image_tensor(self, batch: Batch) -> torch.Tensor:
        images = _tensor_of(batch.images)
        renderer = self.batches.renderer
        if renderer.transform is None and renderer.layout == "NHWC":
            images = images.permute(0, 3, 1, 2)
        return images

    def set_epoch(self, epoch: int) -> None:
        """See BatchLoader.set_epoch."""
        self.batches.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See BatchLoader.state_dict. With a CUDAPrefetcher, ask that one instead."""
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See BatchLoader.load_state_dict."""
        self.batches.load_state_dict(state)

    @property
    def skipped(self) -> list[str]:
        """Keys of the damaged samples that on_error="skip" replaced."""
        return self.batches.skipped


def _require_torch_type(batches: BatchLoader) -> None:
    renderer = batches.renderer
    if renderer.transform is None and not hasattr(torch, renderer.dtype.name):
        raise MissingDependency(
            f"this PyTorch ({torch.__version__}) has no tensors of {renderer.dtype}",
            path=batches.pack.path,
            advice="install PyTorch 2.3 or newer, or pass dtype=np.float32",
        )


def _pinned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory from torch's allocator of pinned memory, which reuses it by itself, and not before
    the asynchronous copies from it have ended."""
    tensor = torch.empty(shape, dtype=getattr(torch, dtype.name), pin_memory=True)
    array: npt.NDArray[Any] = tensor.numpy()
    return array


def _tensor_of(array: npt.NDArray[Any]) -> torch.Tensor:
    """The tensor that an array was made from, which that allocator knows, or one on its memory."""
    return array.base if isinstance(array.base, torch.Tensor) else torch.from_numpy(array)


def _field_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    if not hasattr(torch, array.dtype.name):
        array = array.astype(np.int32)  # PyTorch before 2.3 has no uint16
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _with_each_array(values: Any, change: Callable[[Any], Any]) -> Any:
    """`values` with what `change` makes of the arrays, or tensors, in its dicts and lists."""
    if isinstance(values, dict):
        return {name: _with_each_array(value, change) for name, value in values.items()}
    if isinstance(values, list):
        return [_with_each_array(value, change) for value in values]
    return change(values) if isinstance(values, np.ndarray | torch.Tensor) else values


def _tensors_in(values: Any) -> Iterator[torch.Tensor]:
    """The tensors in what CUDAPrefetcher yields."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Batch):
        yield from _tensors_in(values.fields)
    elif isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors_in(value)


class CUDAPrefetcher:
    """Copies the next batch to the GPU, and normalises it there, while this one trains.

        for images, labels in CUDAPrefetcher(loader, "cuda", mean=…, std=…): …

    images: (n, 3, size, size) `dtype`, channels-last, (pixels - mean) / std where given, mean and
    std a channel, in the pixels' own units: 0..255, or 0..65535 where they are uint16. labels: (n,)
    int64. Where the loader gives a batch as well, so does this, its fields' tensors on the device,
    as they are. On a CPU it does the same without streams. Raises ValueError for mean and std that
    are not of such pixels.
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
        means, stds = of_channels(mean, std)
        self._in_levels = are_in_levels(means, stds)
        self._mean, self._std = (
            None if given is None else torch.from_numpy(part).to(self.device).view(1, 3, 1, 1)
            for given, part in ((mean, means), (std, stds))
        )
        self._state: dict[str, Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """See BatchLoader.set_epoch."""
        self.loader.set_epoch(epoch)
        self._state = None

    def state_dict(self) -> dict[str, Any]:
        """The loader's state at the batch that was handed out last, not the one fetched ahead."""
        return self.loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See BatchLoader.load_state_dict."""
        self.loader.load_state_dict(state)
        self._state = None

    @property
    def skipped(self) -> list[str]:
        """See Loader.skipped."""
        return self.loader.skipped

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self.device.type != "cuda":
            for batch in self.loader:
                yield self._prepare(*batch)
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
            for tensor in _tensors_in(ahead):
                tensor.record_stream(current)
            now = ahead
            self._state = self.loader.state_dict()
            ahead = self._load(side, batches)
            yield now
        self._state = None

    def _load(
        self, side: torch.cuda.Stream, batches: Iterator[tuple[Any, ...]]
    ) -> tuple[Any, ...] | None:
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return self._prepare(*batch)

    def _prepare(
        self, images: torch.Tensor, labels: torch.Tensor, *batch: Batch
    ) -> tuple[Any, ...]:
        # What a transform makes may be of 0 to 1.
        if not (self._in_levels or (images.is_floating_point() and images.amax() <= 1)):
            raise ValueError(NOT_IN_LEVELS)
        images = images.to(self.device, non_blocking=True)
        labels = labels.to(self.device, non_blocking=True)
        for whole in batch:
            whole.fields = _with_each_array(
                whole.fields, lambda tensor: tensor.to(self.device, non_blocking=True)
            )
        if self._mean is not None or self._std is not None:
            images = images.to(torch.float32)
        if self._mean is not None:
            images = images - self._mean
        if self._std is not None:
            images = images / self._std
        return images.to(self.dtype), labels, *batch
