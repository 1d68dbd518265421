"""The arguments of `dspack convert` that are about pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from .images.pixels import DEPTHS, ENCODINGS, MAX_PIXELS, QUALITY, RESIZE_MODES, PixelOptions


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
        default="white",
        show_default=True,
        help="What transparent pixels are put on: a name or #rrggbb.",
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
