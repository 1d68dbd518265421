"""What Pillow finds in the header of a file that is neither a JPEG nor a PNG."""

from __future__ import annotations

from struct import Struct

import PIL.Image

from readers.odd import allow_pixels, largest_value, num_frames, open_image, orientation_of

from .inspect import Image, Reject, note_profile

_MANY = {"TIFF": "multi-page TIFF", "GIF": "animated GIF"}


def look(data: bytes, kind: str, max_pixels: int) -> Image:
    """Look at a file's header. Width and height are as stored.

    Raises Reject.
    """
    if kind == "WebP":  # Pillow allots its canvas before it tells the size
        check_size(*_webp_size(data), max_pixels)
    allow_pixels(max_pixels)
    try:
        with open_image(data) as image:
            frames = num_frames(image)
            found = Image(
                kind,
                image.width,
                image.height,
                odd=_MANY.get(kind, f"animated {kind}") if frames > 1 else kind,
                bits=largest_value(image, data).bit_length(),
                num_frames=frames,
                turned=orientation_of(image),
            )
            note_profile(found, image.info.get("icc_profile"))
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning):
        raise Reject("too many pixels", f"a {kind} of more than {max_pixels}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise Reject("damaged image data", f"{kind}: {error}") from None
    check_size(found.width, found.height, max_pixels)
    return found


def check_size(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise Reject("too many pixels", f"{width} x {height}")
    if width < 1 or height < 1:
        raise Reject("damaged image data", f"a size of {width} x {height}")


_CANVAS = Struct("<HBHB")  # two numbers of 24 bits


def _webp_size(data: bytes) -> tuple[int, int]:
    """The canvas of an extended WebP (RFC 9649, 2.7); the others have 14 bits a side."""
    if data[12:16] != b"VP8X" or len(data) < 30:
        return 1, 1
    width_low, width_high, height_low, height_high = _CANVAS.unpack_from(data, 24)
    return 1 + width_low + (width_high << 16), 1 + height_low + (height_high << 16)
