"""PyTorch datasets over a pack."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from .errors import MissingDependency
from .pack import Pack

try:
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
