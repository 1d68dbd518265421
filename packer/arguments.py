"""The kinds of arguments of the command line, and the options of `dspack convert` about pixels."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .images.pixels import DEPTHS, ENCODINGS, MAX_PIXELS, QUALITY, RESIZE_MODES, PixelOptions


class ByteSize(click.ParamType[int]):
    """A number of bytes with an optional unit: 512MiB, 1GB, 65536."""

    name = "size"
    _UNITS = {"": 1, "b": 1} | {
        prefix + suffix: base**power
        for power, prefix in enumerate("kmgt", 1)
        for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in self._UNITS:
            self.fail(f"{value!r} is not a size like 512MiB, 1GB or 65536", param, ctx)
        num_bytes = float(match[1]) * self._UNITS[match[2]]
        if not 1 <= num_bytes < 2**63:
            self.fail("a size is at least one byte, and less than 8192 PiB", param, ctx)
        return int(num_bytes)


class Seconds(click.FloatRange):
    """A time that ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # it is in every range
            self.fail("nan is no time", param, ctx)
        return seconds


class Regex(click.ParamType[str]):
    """A regular expression that compiles."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)
        return str(value)


class Splits(click.ParamType[Any]):
    """Names of splits to take, `train,val`, or shares of splits to make, `train=0.9,val=0.1`."""

    name = "splits"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = [part.strip().partition("=") for part in str(value).split(",")]
        names = [name for name, _, _ in parts]
        if not all(names) or len(set(names)) < len(names):
            self.fail(f"{value!r} names a split twice, or not at all", param, ctx)
        if not any(equals for _, equals, _ in parts):
            return names
        try:
            shares = [float(share) for _, _, share in parts]
        except ValueError:
            self.fail(f"{value!r} is neither NAME,… nor NAME=SHARE,…", param, ctx)
        if not (min(shares) > 0 and abs(sum(shares) - 1) < 1e-6):
            self.fail(f"the shares of {value!r} do not add up to 1", param, ctx)
        return dict(zip(names, shares, strict=True))


class FieldPattern(click.ParamType[Any]):
    """A further field and where its values lie: NAME=PATTERN."""

    name = "field"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .fields import Pattern

        name, equals, pattern = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not NAME=PATTERN, as mask=../masks/{{stem}}.png", param, ctx)
        try:
            return Pattern(name, pattern)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Boxes(click.ParamType[Any]):
    """Annotations: coco=FILE, yolo, yolo=PATTERN, voc or voc=PATTERN."""

    name = "boxes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .annotations import KINDS, NAME, BoxesOption
        from .fields import Pattern

        kind, equals, where = str(value).partition("=")
        if kind not in KINDS or bool(equals) != bool(where) or (kind == "coco" and not where):
            self.fail(f"{value!r} is not coco=FILE, yolo[=PATTERN] or voc[=PATTERN]", param, ctx)
        if kind == "coco":
            return BoxesOption(kind, (Path(where),))
        try:
            return BoxesOption(kind, pattern=Pattern(NAME, where) if where else None)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Colour(click.ParamType[Any]):
    """A colour by name or as #rrggbb, as (red, green, blue)."""

    name = "colour"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from PIL import ImageColor

        if isinstance(value, tuple):
            return value
        try:
            colour = ImageColor.getrgb(value)
        except ValueError:
            self.fail(f"{value!r} is not a colour like white or #rrggbb", param, ctx)
        if len(colour) != 3:
            self.fail(f"{value!r} is transparent itself", param, ctx)
        return colour


# Pixels

_OPTIONS = [
    click.option(
        "--resize",
        metavar="N",
        type=click.IntRange(1, 65535),
        help="Make larger images smaller, antialiased: the shorter side N pixels, or as "
        "--resize-mode says. JPEGs stay JPEGs, others become PNGs, unless --encode says otherwise.",
    ),
    click.option(
        "--resize-mode",
        type=click.Choice(RESIZE_MODES),
        default="shorter",
        show_default=True,
        help="Which side becomes N; exact: both, whatever the shape; pad: the longer one, in a "
        "square of --background.",
    ),
    click.option("--enlarge", is_flag=True, help="Let --resize make images larger, too."),
    click.option(
        "--encode",
        type=click.Choice(ENCODINGS),
        help="Store every image anew, as this; raw: pixels, all of one size.",
    ),
    click.option(
        "--quality",
        type=click.IntRange(1, 100),
        default=QUALITY,
        show_default=True,
        help="Of JPEG and WebP.",
    ),
    click.option(
        "--seekable",
        is_flag=True,
        help="Add restart markers to JPEGs, which keeps their pixels to the bit and lets crops be "
        "decoded without the rest. --encode jpeg does so without it, and --resize for JPEGs that "
        "it makes smaller; those that are small enough stay as they are.",
    ),
    click.option(
        "--background",
        type=Colour(),
        help="What transparent pixels are put on: a name or #rrggbb. Default: white; for a pack's "
        "images the pack's own.",
    ),
    click.option(
        "--frame", type=click.IntRange(0), help="Which page or frame of several to take, from 0."
    ),
    click.option(
        "--depth",
        type=click.Choice(DEPTHS),
        help="What becomes of more than 8 bits a channel: shift drops the low ones, scale maps the "
        "largest value to 255 and rounds; keep makes a pack of 16 bits, whose readers give uint16, "
        "0 to 65535, for all its images. Example: --depth keep. Without it such images are "
        "rejected.",
    ),
    click.option(
        "--icc",
        type=click.Choice(["srgb"]),
        help="Convert images with another colour profile to sRGB. Default: only count them.",
    ),
    click.option(
        "--keep-bytes",
        is_flag=True,
        help="Store odd images (CMYK, palette, transparent, TIFF, WebP …) as they are; the readers "
        "then give the same pixels, but slowly. Default: as RGB PNG.",
    ),
    click.option(
        "--max-pixels",
        type=click.IntRange(1),
        default=MAX_PIXELS,
        show_default=True,
        help="Reject larger images before they are decoded.",
    ),
]


def pixel_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets them as one argument, `pixels`."""

    @functools.wraps(command)
    def with_pixels(**arguments: Any) -> Any:
        mine = {option: arguments.pop(option) for option in _names()}
        try:
            pixels = PixelOptions(**mine)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        return command(**arguments, pixels=pixels)

    for option in reversed(_OPTIONS):
        with_pixels = option(with_pixels)
    return with_pixels


def _names() -> list[str]:
    names = PixelOptions.__dataclass_fields__
    return [name for name in names if name not in ("raw_size", "copied")]
