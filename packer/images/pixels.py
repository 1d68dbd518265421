"""What a run does to images: the options, and no more."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from readers.manifest import Field

if TYPE_CHECKING:
    from readers.odd import Rule

RESIZE_MODES = ("shorter", "longer", "exact", "pad")
ENCODINGS = ("jpeg", "png", "webp", "raw")
DEPTHS = ("shift", "scale", "keep")
# Pillow's own limit against decompression bombs, about 13,000 x 13,000.
MAX_PIXELS = 178_956_970


# Photographs at 256 pixels: q90 takes 70 % of q95's bytes at 36 dB instead of 38; q85 saves another
# fifth, at 35 dB.
QUALITY = 90
WHITE = (255, 255, 255)


@dataclass(frozen=True)
class PixelOptions:
    """What is done to images.

    `background` is the colour (RGB) behind transparent pixels and around an image that
    resize_mode "pad" makes square, white if it is not given; `frame` counts from 0; `depth` and
    `icc` as in readers.odd.Rule. With `resize`, in pixels, images that are larger are stored anew,
    JPEG as JPEG and everything else as PNG; with `encode` all are, as that. `raw_size` (width,
    height) is what every image must have for encode="raw"; with `copied`, a pack's field, its
    values are stored as they are there. Raises ValueError for options that contradict each other.
    """

    background: tuple[int, int, int] | None = None
    frame: int | None = None
    depth: str | None = None
    icc: str | None = None
    keep_bytes: bool = False
    max_pixels: int = MAX_PIXELS
    resize: int | None = None
    resize_mode: str = "shorter"
    enlarge: bool = False
    encode: str | None = None
    quality: int = QUALITY
    seekable: bool = False
    raw_size: tuple[int, int] | None = None
    copied: Field | None = None

    def __post_init__(self) -> None:
        if self.keep_bytes and (self.resize or self.encode):
            raise ValueError("--keep-bytes stores files as they are; --resize and --encode do not")
        if self.resize is None and (self.resize_mode != "shorter" or self.enlarge):
            raise ValueError("--resize-mode and --enlarge are of no use without --resize")
        if self.encode == "raw" and self.resize and self.resize_mode not in ("exact", "pad"):
            raise ValueError(
                "--encode raw needs images of one size: add --resize-mode exact or pad"
            )
        if self.seekable and self.encode not in (None, "jpeg"):
            raise ValueError(f"--seekable is about JPEG, and --encode {self.encode} makes none")
        if self.quality != QUALITY and not self.resize and self.encode not in ("jpeg", "webp"):
            raise ValueError("--quality is of what --resize, --encode jpeg or webp make")
        if self.depth == "keep" and self.encode in ("jpeg", "webp"):
            raise ValueError(
                f"--encode {self.encode} holds 8 bits a channel: give it --depth shift or scale, "
                "or give --depth keep --encode png or raw"
            )
        if self.depth == "keep" and self.icc:
            raise ValueError("--icc converts 8 bits a channel: give it --depth shift or scale")

    @property
    def rule(self) -> Rule:
        """How odd images become plain pixels."""
        from readers.odd import Rule  # costs an import of OpenCV and Pillow

        return Rule(self.background or WHITE, self.frame or 0, self.depth, self.icc)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the pixels that readers get."""
        return np.dtype("<u2" if self.depth == "keep" else "|u1")

    @property
    def makes_segments(self) -> bool:
        """Whether JPEGs get restart markers, so that their offsets belong into the index."""
        resized_as_jpeg = self.resize is not None and self.encode is None
        return self.seekable or self.encode == "jpeg" or resized_as_jpeg

    def describe(self) -> dict[str, Any]:
        """The options that are not the default, as JSON has them, and the kernel of a resize."""
        stated = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        changed = {name: value for name, value in stated.items() if value != defaults[name]}
        if self.resize is not None:
            from .resampling import KERNEL  # costs an import of OpenCV

            changed["kernel"] = KERNEL
        if self.resize is not None or self.encode is not None:
            changed |= {"quality": self.quality, "library": f"OpenCV {_opencv_version()}"}
        if self.copied is not None:
            changed["copied"] = asdict(self.copied)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in changed.items()}


def _opencv_version() -> str:
    import cv2

    return str(cv2.__version__)
