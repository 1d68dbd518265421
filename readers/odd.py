"""Odd images to plain pixels: one way to read the files that decoders disagree about.

CMYK, palettes, transparency, more than 8 bits a channel, TIFF, GIF, WebP and the like become RGB by
the rules below: when they are packed, or in the readers where a pack was made with --keep-bytes.
All go through Pillow, which knows the most kinds; OpenCV helps where Pillow itself would drop low
bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageChops

from .decode import Pixels, UndecodableError, as_dtype, upright

# No other plugin is let loose on a file: some start programs, many were never tested on damage.
_PLUGINS = ("JPEG", "PNG", "TIFF", "BMP", "GIF", "WEBP", "AVIF", "PPM")
_JPEG = ("JPEG", "MPO")  # the latter is Pillow's name for one with further pictures behind it
_ORIENTATION_TAG, _BITS_TAG, _PHOTOMETRIC_TAG = 0x0112, 258, 262
_MIN_IS_WHITE = 0


class Rule(NamedTuple):
    """What has to be decided by somebody: the colour behind transparent pixels (RGB), which frame
    to take, counted from 0, what becomes of more than 8 bits ("shift" drops the low bits, "scale"
    maps the largest value to 255 and rounds, both to 8; "keep" maps it to 65535 and rounds, to
    16), and "srgb" to follow ICC profiles, at 8 bits."""

    background: tuple[int, int, int] = (255, 255, 255)
    frame: int = 0
    depth: str | None = None
    icc: str | None = None


def stated_rule(stated: Mapping[str, Any]) -> Rule:
    """The rule that a manifest states; what this version does not know is left out."""
    known = {name: stated[name] for name in Rule._fields if name in stated}
    return Rule(**{**known, "background": tuple(known["background"])})


Warn = Callable[[str], None]


def _ignore(warning: str) -> None:
    pass


def canonical(data: bytes | memoryview, rule: Rule, warn: Warn = _ignore) -> Pixels:
    """Decode an image of any known kind to RGB, (height, width, 3): uint8, or uint16 where it has
    more than 8 bits and the rule is to keep them.

    A JPEG or a PNG comes as it is stored: its orientation is the index's, as for plain ones. All
    others come upright. `warn` is told what was doubtful. Raises UndecodableError.
    """
    try:
        with open_image(data) as image:
            if rule.frame and num_frames(image) > 1:
                image.seek(rule.frame)
            maximum = largest_value(image, data)
            image.load()
            in_index = image.format in (*_JPEG, "PNG")
            orientation = 1 if in_index else orientation_of(image, warn)
            if maximum > 255 and rule.depth == "keep":
                values = widen(_deep_values(image, data, maximum), maximum)
                return upright(_deep_rgb(values, rule.background), orientation)
            if maximum > 255:
                shown = _eight_bits(image, data, maximum, rule, warn)
            else:
                shown = _mend_transparency(image, data)
            profile = image.info.get("icc_profile") if rule.icc == "srgb" else None
            pixels = np.array(_to_rgb(shown, profile, rule.background, warn))  # may be written to
    except (MemoryError, UndecodableError):
        raise
    except Exception as error:  # Pillow's plugins raise almost anything on damaged files
        raise UndecodableError(str(error) or type(error).__name__) from None
    return upright(pixels, orientation)


def allow_pixels(number: int) -> None:
    """Let Pillow open images of so many pixels, which packing has allowed. It has one limit for
    the whole process, whatever thread it works for, so this only ever raises it."""
    limit = PIL.Image.MAX_IMAGE_PIXELS
    if limit is not None and limit < number:
        PIL.Image.MAX_IMAGE_PIXELS = number


def open_image(data: bytes | memoryview) -> PIL.Image.Image:
    """Open a file by its content, without decoding it. Raises what Pillow raises."""
    return PIL.Image.open(BytesIO(data), formats=_PLUGINS)


def num_frames(image: PIL.Image.Image) -> int:
    """Pages or frames; the further pictures that a phone hides in a JPEG do not count."""
    return 1 if image.format in _JPEG else getattr(image, "n_frames", 1)


def largest_value(image: PIL.Image.Image, data: bytes | memoryview) -> int:
    """The largest value a channel can have: 255, or more where there are more than 8 bits."""
    return max(255, largest_stored(image, data))


def largest_stored(image: PIL.Image.Image, data: bytes | memoryview) -> int:
    """The largest value that the file itself can hold: also less than 255, which Pillow widens."""
    bits = 8
    if image.format == "PNG":
        bits = data[24]
    elif image.format == "TIFF":
        bits = int(max(_tag(image, _BITS_TAG) or (8,)))
    elif image.format == "PPM":
        return _ppm_maximum(image)
    elif image.format == "AVIF":
        bits = _avif_bits(bytes(data[:_AVIF_HEADER_BYTES]))
    return int(2**bits - 1)


def _tag(tiff: PIL.Image.Image, tag: int) -> Any:
    return tiff.tag_v2.get(tag)  # type: ignore[attr-defined]


_AVIF_HEADER_BYTES = 4096


def _avif_bits(header: bytes) -> int:
    """Bits a channel by the av1C box (AV1-ISOBMFF, 2.3.3): two flags in its third byte."""
    at = header.find(b"av1C")
    if at < 0 or at + 7 > len(header):
        return 8
    flags = header[at + 6]
    return 8 if not flags & 0x40 else 12 if flags & 0x20 else 10


def _ppm_maximum(image: PIL.Image.Image) -> int:
    arguments: Any = image.tile[0].args  # type: ignore[attr-defined]
    if arguments == "I;16B":
        return 65535
    return int(arguments[1]) if isinstance(arguments, tuple) else 255


# More than 8 bits


def _eight_bits(
    image: PIL.Image.Image, data: bytes | memoryview, maximum: int, rule: Rule, warn: Warn
) -> PIL.Image.Image:
    """The image at 8 bits a channel: L, RGB or RGBA."""
    if rule.depth not in ("shift", "scale"):
        raise UndecodableError("it has more than 8 bits a channel, and no rule says what to do")
    if image.format == "AVIF":
        return image  # its decoder has rounded them, as "scale" does
    values = _deep_values(image, data, maximum)
    if (values if values.ndim == 2 else values[..., :3]).max() <= maximum >> 4:
        warn("more than 8 bits a channel, but only low values: nearly black")
    return PIL.Image.fromarray(squeeze(values, maximum, rule.depth))


def squeeze(values: npt.NDArray[np.uint16], maximum: int, depth: str) -> npt.NDArray[np.uint8]:
    """Values of 0 to `maximum` as uint8: by "shift" or by "scale", see Rule."""
    if depth == "shift":
        return (values >> (maximum.bit_length() - 8)).astype(np.uint8)
    return ((values.astype(np.uint32) * 255 + maximum // 2) // maximum).astype(np.uint8)


def widen(values: npt.NDArray[Any], maximum: int) -> npt.NDArray[np.uint16]:
    """Values of 0 to `maximum` as uint16 of 0 to 65535, rounded."""
    if maximum == 65535:
        return values.astype(np.uint16, copy=False)
    return ((values.astype(np.uint32) * 65535 + maximum // 2) // maximum).astype(np.uint16)


def _deep_rgb(
    values: npt.NDArray[np.uint16], background: tuple[int, int, int]
) -> npt.NDArray[np.uint16]:
    """Grey, RGB or RGBA of 0 to 65535 as RGB, what is transparent on the background."""
    if values.ndim == 2:
        return np.repeat(values[..., None], 3, axis=2)
    if values.shape[2] == 3:
        return np.ascontiguousarray(values)
    # At most 65535 * 65535 + 32767, which uint32 just holds.
    colours, alpha = values[..., :3].astype(np.uint32), values[..., 3:].astype(np.uint32)
    behind = as_dtype(np.array(background, np.uint8), np.uint16).astype(np.uint32)
    mixed = (colours * alpha + behind * (65535 - alpha) + 32767) // 65535
    return mixed.astype(np.uint16)


def _deep_values(
    image: PIL.Image.Image, data: bytes | memoryview, maximum: int
) -> npt.NDArray[np.uint16]:
    """Values of 0 to `maximum`, upright where the file is a TIFF: (height, width), or with RGB or
    RGBA."""
    values: npt.NDArray[np.uint16] = _stored_values(image, data, maximum)
    key = image.info.get("transparency")
    if key is None:
        return values
    colours = values[..., None] if values.ndim == 2 else values[..., :3]
    alpha = np.where((colours == np.array(key)).all(-1), 0, maximum).astype(np.uint16)
    return np.dstack([np.broadcast_to(colours, (*alpha.shape, 3)), alpha])


def _stored_values(image: PIL.Image.Image, data: bytes | memoryview, maximum: int) -> Any:
    if image.format == "TIFF" and image.mode.startswith("I;16"):  # 9 to 16 bits, in any packing
        grey = np.asarray(image).astype(np.uint16)
        is_white = _tag(image, _PHOTOMETRIC_TAG) == _MIN_IS_WHITE
        return (maximum - grey).astype(np.uint16) if is_white else grey
    if image.mode in ("F", "I") and image.format == "TIFF":
        raise UndecodableError("pixels of 32 bits a channel are not supported")
    buffer, flags = np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED
    frame = image.tell()
    if frame or image.format == "TIFF":
        pages = cv2.imdecodemulti(buffer, flags, range=(frame, frame + 1))[1]
        values = pages[0] if pages else None
    else:
        values = cv2.imdecode(buffer, flags)
    if values is None or values.dtype != np.uint16:
        raise UndecodableError("OpenCV cannot decode its 16-bit values")
    values = np.minimum(values, np.uint16(maximum))  # a damaged PNM may have larger ones
    return values if values.ndim == 2 else values[..., [2, 1, 0, 3][: values.shape[2]]]


# Colours


def _mend_transparency(image: PIL.Image.Image, data: bytes | memoryview) -> PIL.Image.Image:
    # Pillow widens 2- and 4-bit greys to 8 bits, but not the transparent one among them.
    if image.format == "PNG" and image.mode == "L" and "transparency" in image.info:
        image.info["transparency"] *= 255 // (2 ** data[24] - 1)
    return image


def _to_rgb(
    image: PIL.Image.Image, profile: bytes | None, background: tuple[int, int, int], warn: Warn
) -> PIL.Image.Image:
    is_grey = image.mode in ("1", "L", "LA", "La")  # as the profile, if any, expects it
    alpha = None
    if image.has_transparency_data:
        image = image.convert("RGBA")
        alpha = image.getchannel("A")
    is_inks = image.mode == "CMYK"
    image = _inks(image, warn) if is_inks else image.convert("L" if is_grey else "RGB")
    if profile:
        image = _to_srgb(image, profile, warn)
    rgb = image.convert("RGB")
    if alpha is None:
        return rgb
    shown = PIL.Image.new("RGB", rgb.size, background)
    shown.paste(rgb, mask=alpha)
    return shown


def _inks(image: PIL.Image.Image, warn: Warn) -> PIL.Image.Image:
    """CMYK by libjpeg's rule: JPEG values are inverted if Adobe's marker is there. Pillow always
    takes them to be."""
    if image.format in _JPEG and "adobe" not in image.info:
        warn("CMYK JPEG without Adobe's marker, taken as not inverted")
        return PIL.ImageChops.invert(image)
    return image


def _to_srgb(image: PIL.Image.Image, profile: bytes, warn: Warn) -> PIL.Image.Image:
    from PIL import ImageCms

    try:
        source, target = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
        converted = ImageCms.profileToProfile(image, source, target, outputMode="RGB")
    except (ImageCms.PyCMSError, OSError):
        warn("colour profile that cannot be followed, pixels taken as sRGB")
        return image
    assert converted is not None  # only inPlace=True gives None
    return converted


def orientation_of(image: PIL.Image.Image, warn: Warn = _ignore) -> int:
    """EXIF's orientation, wherever the file keeps it: of an image that has been loaded, what is
    left to be done, for a TIFF is upright by then and has lost the tag."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # a broken block must not lose the picture
        warn("broken EXIF, taken as upright")
        return 1
    return orientation if orientation in range(1, 9) else 1
