"""What a file really is: kind, size, orientation, damage. Judged by its bytes, never by its name.

Sources: ITU-T T.81 annex B (JPEG markers), JFIF 1.02, Adobe TN 5116 (APP14), TIFF 6.0 and EXIF 2.3
(orientation), PNG 3rd edition, and libjpeg's rule for telling YCbCr from RGB.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import Any, NamedTuple

import simplejpeg

from readers.decode import UndecodableError, decode
from readers.jpeg import JPEG_MAGIC, NO_SEGMENT, SEGMENT, without

from .colour import foreign_profile
from .pixels import MAX_PIXELS

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
JPEG_END = b"\xff\xd9"
MORE_PICTURES = "more than one picture in the file, the first is packed"


class Reject(Exception):
    """The file cannot become a sample; `reason` is one of few, so that rejects can be counted."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        return Reject, (self.reason, self.detail)


@dataclass(slots=True)
class Image:
    """A file that can be packed. `width` and `height` are upright, in pixels; but of an odd one
    that is neither JPEG nor PNG they are as stored until it is decoded."""

    kind: str
    width: int
    height: int
    orientation: int = 1
    warnings: tuple[str, ...] = ()
    missing_end: bool = False  # a JPEG without its EOI marker
    stray: tuple[tuple[int, int], ...] = ()  # ranges of bytes in a JPEG's header that are nothing
    odd: str | None = None  # what it is, if decoders disagree on it; then not packed as it is
    bits: int = 8  # a channel; 8 if fewer
    plain_if_deep: bool = False  # odd for nothing but its 16 bits
    num_frames: int = 1
    profile: str | None = None  # the name of its ICC profile, if that is not sRGB
    turned: int = 1  # the orientation of one that is neither JPEG nor PNG, which decoding undoes

    def __reduce__(self) -> tuple[Any, ...]:  # ten times as fast as what dataclasses bring
        return Image, tuple([getattr(self, name) for name in self.__slots__])


def inspect(data: bytes, max_pixels: int = MAX_PIXELS) -> Image:
    """Look at a file's headers; raises Reject for what cannot be packed."""
    if data[:3] == JPEG_MAGIC:
        image = _inspect_jpeg(data)
    elif data[:8] == PNG_MAGIC:
        image = _inspect_png(data)
    else:
        from .odd import look  # costs an import of Pillow

        return look(data, _kind(data), max_pixels)
    if image.width * image.height > max_pixels:
        raise Reject("too many pixels", f"{image.width} x {image.height}")
    if image.orientation >= 5:
        image.width, image.height = image.height, image.width
    return image


def note_profile(image: Image, profile: bytes | None) -> None:
    """Remember an ICC profile that changes colours."""
    if profile:
        try:
            image.profile = foreign_profile(profile)
        except ValueError:
            image.warnings += ("broken colour profile, ignored",)


def check_pixels(data: bytes, image: Image) -> bytes:
    """Decode the image to prove that it is whole; returns the bytes to store.

    They are `data`, or `data` and an end marker where a JPEG lacks nothing but that: decoders
    disagree on whether such a file is an image. Raises Reject.
    """
    if image.kind != "JPEG":
        _decode_as_readers_do(data)
        return data
    if image.missing_end:
        data += JPEG_END
    warning = _decode_jpeg(data)
    if warning is not None and image.stray:
        # libjpeg tells only its first warning: look whether there is another one behind it.
        warning = _decode_jpeg(without(data, image.stray))
        _decode_as_readers_do(data)
    if warning is None:
        return data
    if "extraneous bytes before marker 0xd" in warning and not image.missing_end:
        # Padding behind a whole scan (0xd9), or behind a whole restart interval (0xd0-0xd7).
        image.warnings += ("stray bytes in a JPEG",)
        return data
    if "subsampling" in warning:
        raise Reject("unsupported JPEG process", "unusual subsampling")
    missing = image.missing_end or "premature end" in warning.lower()
    raise Reject("image data missing" if missing else "damaged image data", warning)


def _decode_as_readers_do(data: bytes) -> None:
    try:
        decode(data)
    except UndecodableError as error:
        raise Reject("damaged image data", str(error)) from None


def _decode_jpeg(data: bytes) -> str | None:
    """Decode a JPEG; returns libjpeg's warning or error, if any.

    At an eighth of the size all coded bits are still read, which is where damage can be seen;
    only arithmetic that cannot fail is saved.
    """
    try:
        simplejpeg.decode_jpeg(data, "GRAY", min_height=1, min_width=1, strict=True)
    except ValueError as error:
        return str(error)
    return None


_KINDS = {
    b"GIF8": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",
    b"MM\0+": "TIFF",
    **dict.fromkeys((b"P1", b"P2", b"P3", b"P4", b"P5", b"P6"), "PNM"),
}
_UNSUPPORTED_KINDS = {
    b"8BPS": "PSD",
    b"\0\0\0\x0cjP  ": "JPEG 2000",
    b"\xff\x4f\xff\x51": "JPEG 2000",
    b"\0\0\1\0": "icon",
    b"%PDF": "PDF",
    b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL",
}
_AVIF_BRANDS = (b"avif", b"avis")


def _kind(data: bytes) -> str:
    """The kind of a file that is neither a JPEG nor a PNG. Raises Reject."""
    if not data:
        raise Reject("empty file")
    if not data.strip(b"\0"):
        raise Reject("all bytes are zero", f"{len(data)} bytes")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    if data[4:8] == b"ftyp":
        brands = [data[at : at + 4] for at in range(8, min(int.from_bytes(data[:4], "big"), 64), 4)]
        if any(brand in _AVIF_BRANDS for brand in brands):
            return "AVIF"
        raise Reject("unsupported kind of file: HEIF")
    for magic, kind in _UNSUPPORTED_KINDS.items():
        if data.startswith(magic):
            raise Reject(f"unsupported kind of file: {kind}")
    for magic, kind in _KINDS.items():
        if data.startswith(magic):
            return kind
    raise Reject("not an image", f"it starts with {data[:8].hex(' ')}")


# JPEG

_BASELINE, _EXTENDED, _PROGRESSIVE = 0xC0, 0xC1, 0xC2
_ARITHMETIC = (0xC9, 0xCA)  # sequential and progressive
_SOF = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
_APP0, _APP1, _APP2, _APP14 = 0xE0, 0xE1, 0xE2, 0xEE
_SOI, _EOI, _SOS, _FILL = 0xD8, 0xD9, 0xDA, 0xFF
_TELLING = _SOF | {_APP0, _APP1, _APP2, _APP14, _SOS, _EOI, _FILL}
_SILENT = frozenset(range(256)) - _TELLING - NO_SEGMENT  # tables, comments: nothing to know


class _Header(NamedTuple):
    """What a JPEG's header says but for the size of the picture, which stands in 4 bytes at
    `size_at`. The first scan's data begin at `scan`; the rest as in Image."""

    size_at: int
    scan: int
    components: bytes
    is_arithmetic: bool
    odd: str | None
    orientation: int
    warnings: tuple[str, ...]
    stray: tuple[tuple[int, int], ...]
    profile: bytes | None


_SIZE = Struct(">HH")
# The last header: the bytes before its size, those after it, and what they say. Small files come by
# the ten thousand from one encoder, and looking through the same header again took a quarter of the
# time of packing them.
_last_header: tuple[bytes, bytes, _Header] | None = None


def _inspect_jpeg(data: bytes) -> Image:
    header = _header(data)
    height, width = _SIZE.unpack_from(data, header.size_at)
    if not width or not height:
        raise Reject("damaged image data", f"a size of {width} x {height}")
    _, scan, components, is_arithmetic, odd, orientation, warnings, stray, profile = header
    missing_end = False
    if not data.endswith(JPEG_END):
        more: list[str] = []
        missing_end = _look_for_end(data, scan, more)
        warnings += tuple(more)
    # An arithmetic decoder makes up what is missing, without a word.
    if missing_end and (is_arithmetic or not _has_all_scans(data, components)):
        raise Reject("image data missing", "the file ends before its last scan")
    image = Image("JPEG", width, height, orientation, warnings, missing_end, stray, odd)
    if profile is not None:
        note_profile(image, profile)
    return image


def _header(data: bytes) -> _Header:
    """A JPEG's header. Raises Reject for one that cannot be packed, or is cut."""
    global _last_header
    if _last_header is not None:
        before, after, header = _last_header
        if data.startswith(before) and data.startswith(after, len(before) + _SIZE.size):
            return header
    header = _read_header(data)
    size_stop = header.size_at + _SIZE.size
    _last_header = data[: header.size_at], data[size_stop : header.scan], header
    return header


def _read_header(data: bytes) -> _Header:
    components: bytes | None = None
    adobe_transform = None
    is_arithmetic = False
    profile: list[bytes] = []
    jfif = exif = False
    orientation = 1
    warnings: list[str] = []
    stray: list[tuple[int, int]] = []
    at, size_at = 2, 0
    marker = _SOI
    while marker != _SOS:
        try:
            prefix, marker, length = SEGMENT.unpack_from(data, at)
        except StructError:
            raise Reject("image data missing", "the file ends in its header") from None
        if prefix == 0xFF and marker in _SILENT:
            at += 2 + length
            continue
        segment = at + 4
        if prefix != 0xFF or marker in NO_SEGMENT:
            start, at = at, data.find(b"\xff", at + 1)
            stray.append((start, at))
            if at < 0:
                raise Reject("image data missing", "the file ends in its header")
            continue
        at += 2 + length
        if marker in _SOF:
            if components is not None:
                raise Reject("unsupported JPEG process", "more than one frame")
            components, size_at = _components(marker, data, segment, at), segment + 1
            is_arithmetic = marker in _ARITHMETIC
        elif marker == _APP0:
            jfif = jfif or data[segment : segment + 5] == b"JFIF\0"
        elif marker == _APP1 and not exif and data[segment : segment + 6] == b"Exif\0\0":
            exif = True  # decoders go by the first one
            try:
                orientation = exif_orientation(data[segment + 6 : at])
            except ValueError:
                warnings.append("broken EXIF, taken as upright")
        elif marker == _APP2 and data[segment : segment + 4] == b"MPF\0":
            warnings.append(MORE_PICTURES)
        elif marker == _APP2 and data[segment : segment + 12] == b"ICC_PROFILE\0":
            profile.append(data[segment + 12 : at])
        elif marker == _APP14 and data[segment : segment + 5] == b"Adobe" and length >= 14:
            adobe_transform = data[segment + 11] if segment + 11 < len(data) else None
        elif marker == _FILL:  # any number of 0xFF may come before a marker's code
            at = segment - 3
        elif marker == _EOI:
            raise Reject("image data missing", "the file has no scan")
    if at > len(data):
        raise Reject("image data missing", "the file ends in its header")
    if components is None:
        raise Reject("image data missing", "the scan comes before its frame")
    if stray:
        warnings.append("stray bytes in a JPEG")
    colours = _colours(components, jfif, adobe_transform)
    odd = f"{colours} JPEG" if colours else None
    return _Header(
        size_at,
        at,
        components,
        is_arithmetic,
        "arithmetic-coded JPEG" if is_arithmetic else odd,
        orientation,
        tuple(warnings),
        tuple(stray),
        # Each part has its number in front, and how many there are.
        b"".join(part[2:] for part in sorted(profile)) if profile else None,
    )


def _colours(components: bytes, jfif: bool, adobe_transform: int | None) -> str | None:
    """The colours of a JPEG; None for grey and YCbCr. By libjpeg's rule: JFIF means YCbCr; else
    Adobe's marker decides; else the components' names do. Raises Reject."""
    if len(components) == 1 or (len(components) == 3 and jfif):
        return None
    if len(components) == 4:
        return "YCCK" if adobe_transform == 2 else "CMYK"
    if len(components) != 3:
        raise Reject("unsupported JPEG process", f"{len(components)} components")
    is_rgb = components == b"RGB" if adobe_transform is None else adobe_transform == 0
    return "RGB" if is_rgb else None


def _look_for_end(data: bytes, scan: int, warnings: list[str]) -> bool:
    """Whether the end marker is missing, where it is not the file's last two bytes."""
    end = data.rfind(JPEG_END, scan)
    if end < 0:
        if data[-1] == 0xFF:
            raise Reject("image data missing", "the file ends inside a marker")
        warnings.append("a JPEG without its end marker, one was added")
        return True
    if data[end + 2 :].strip(b"\0"):
        warnings.append("bytes after the end of a JPEG")
    return False


def _has_all_scans(data: bytes, components: bytes) -> bool:
    """Whether the scans cover every coefficient of every component to its last bit. Decoders do
    not mind when some are missing: a progressive JPEG is only blurred then."""
    due = {(name, coefficient) for name in components for coefficient in range(64)}
    at = 2
    while (at := data.find(b"\xff", at)) >= 0 and at + SEGMENT.size <= len(data):
        _, marker, length = SEGMENT.unpack_from(data, at)
        if marker in NO_SEGMENT or marker == _FILL:
            at += 1
            continue
        if marker == _SOS and at + 2 + length <= len(data) and length >= 6:
            names = data[at + 5 : at + 5 + 2 * data[at + 4] : 2]
            start, stop, precision = data[at + length - 1 : at + length + 2]
            if precision & 15 == 0:
                due -= {(name, i) for name in names for i in range(start, stop + 1)}
        at += 2 + length
    return not due


_FRAME = Struct(">BHHB")


def _components(marker: int, data: bytes, start: int, stop: int) -> bytes:
    """The names of a frame header's components, a byte each."""
    if stop - start < _FRAME.size or stop > len(data):
        raise Reject("image data missing", "the frame header is cut")
    precision, _, _, num_components = _FRAME.unpack_from(data, start)
    if marker not in (_BASELINE, _EXTENDED, _PROGRESSIVE, *_ARITHMETIC):
        raise Reject("unsupported JPEG process", f"SOF{marker - 0xC0}")
    if precision != 8:
        raise Reject("unsupported JPEG process", f"{precision} bits a sample")
    return data[start + 6 : start + 6 + 3 * num_components : 3]


_ORIENTATION_TAG = 0x0112


def exif_orientation(tiff: bytes) -> int:
    """The orientation, 1 to 8, that an EXIF block (from its TIFF header on) states; 1 if none.

    Raises ValueError when the block is broken.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        raise ValueError("not a TIFF header")
    short, long = Struct(order + "H"), Struct(order + "I")
    (directory,) = long.unpack_from(tiff, 4)
    if directory + 2 > len(tiff):
        raise ValueError("the directory lies outside the block")
    (num_entries,) = short.unpack_from(tiff, directory)
    if directory + 2 + 12 * num_entries > len(tiff):
        raise ValueError("the directory is cut")
    for entry in range(directory + 2, directory + 2 + 12 * num_entries, 12):
        (tag,) = short.unpack_from(tiff, entry)
        if tag == _ORIENTATION_TAG:
            (kind,) = short.unpack_from(tiff, entry + 2)
            (value,) = (short if kind == 3 else long).unpack_from(tiff, entry + 8)
            if kind not in (3, 4) or value > 8:
                raise ValueError(f"orientation {value} of type {kind}")
            return value or 1  # some cameras write 0 for "unknown"
    return 1


# PNG

_CHUNK = Struct(">I4s")
_IHDR = Struct(">IIBBBBB")
_GREY, _RGB = 0, 2
_COLOUR_TYPES = {0: "grey", 2: "RGB", 3: "palette", 4: "grey and alpha", 6: "RGBA"}


def _inspect_png(data: bytes) -> Image:
    chunks = _png_chunks(data)
    header = chunks.get(b"IHDR", [b""])[0]
    if len(header) != _IHDR.size or b"IDAT" not in chunks:
        raise Reject("damaged image data", "a PNG without its header or data")
    width, height, depth, colour, *_ = _IHDR.unpack(header)
    if not width or not height:
        raise Reject("damaged image data", f"a size of {width} x {height}")
    if colour not in _COLOUR_TYPES or depth not in (1, 2, 4, 8, 16):
        raise Reject("damaged image data", f"a PNG of colour type {colour} and {depth} bits")
    image = Image("PNG", width, height, bits=max(depth, 8))
    if depth != 8:
        image.odd = f"PNG {_COLOUR_TYPES[colour]}, {depth} bits"
    elif colour not in (_GREY, _RGB):
        image.odd = f"PNG {_COLOUR_TYPES[colour]}"
    elif b"tRNS" in chunks:
        image.odd = "PNG with a transparent colour"
    if b"acTL" in chunks:
        image.odd = "animated PNG"
        image.num_frames = max(int.from_bytes(chunks[b"acTL"][0][:4], "big"), 2)
    try:
        image.orientation = _png_orientation(chunks)
    except (ValueError, zlib.error):
        image.warnings += ("broken EXIF, taken as upright",)
    if image.orientation != 1 and image.odd is None:
        image.odd = "PNG with an orientation"
    image.plain_if_deep = (
        (depth, image.orientation) == (16, 1)
        and colour in (_GREY, _RGB)
        and chunks.keys().isdisjoint((b"tRNS", b"acTL"))
    )
    if b"iCCP" in chunks:
        note_profile(image, _png_profile(chunks[b"iCCP"][0]))
    return image


def _png_profile(chunk: bytes) -> bytes:
    try:
        return _inflate(chunk.partition(b"\0")[2][1:])
    except zlib.error:
        return b"not deflated"


def _png_chunks(data: bytes) -> dict[bytes, list[bytes]]:
    """The chunks of a PNG by type, their checksums compared; IDAT is empty."""
    chunks: dict[bytes, list[bytes]] = {}
    at, size = len(PNG_MAGIC), len(data)
    while at + 12 <= size:
        length, kind = _CHUNK.unpack_from(data, at)
        stop = at + 8 + length
        if stop + 4 > size:
            break
        if zlib.crc32(memoryview(data)[at + 4 : stop]) != int.from_bytes(
            data[stop : stop + 4], "big"
        ):
            raise Reject("damaged image data", f"the checksum of PNG chunk {kind!r} is wrong")
        chunks.setdefault(kind, []).append(b"" if kind == b"IDAT" else data[at + 8 : stop])
        at = stop + 4
        if kind == b"IEND":
            return chunks
    raise Reject("image data missing", "the file ends before its IEND chunk")


_XMP_ORIENTATION = re.compile(rb"""tiff:Orientation(?:=["']|>)\s*([0-9])""")
_TEXT_BYTES_MAX = 1 << 20  # of a compressed text; EXIF has 64 KiB at most


def _png_orientation(chunks: dict[bytes, list[bytes]]) -> int:
    """The orientation, 1 to 8, that a PNG states in any of the places where tools put it: an eXIf
    chunk, EXIF in hex in a text (ImageMagick), XMP. Raises ValueError or zlib.error if broken."""
    exif = chunks.get(b"eXIf", [])
    xmp: list[bytes] = []
    for kind in (b"tEXt", b"zTXt", b"iTXt"):
        for chunk in chunks.get(kind, []):
            keyword, _, text = chunk.partition(b"\0")
            if kind == b"zTXt":
                text = _inflate(text[1:])
            elif kind == b"iTXt":  # two flags, a language and a translated keyword come first
                is_compressed, text = text[:1] == b"\1", text[2:].split(b"\0", 2)[-1]
                text = _inflate(text) if is_compressed else text
            if keyword in (b"Raw profile type exif", b"Raw profile type APP1"):
                # An empty line, a name and a length stand before the hex digits.
                block = bytes.fromhex(b"".join(text.split(b"\n")[3:]).decode("ascii"))
                exif = [*exif, block.removeprefix(b"Exif\0\0")]
            elif keyword == b"XML:com.adobe.xmp":
                xmp += _XMP_ORIENTATION.findall(text)
    stated = [exif_orientation(block) for block in exif] + [int(digit) for digit in xmp]
    return next((orientation for orientation in stated if 2 <= orientation <= 8), 1)


def _inflate(data: bytes) -> bytes:
    return zlib.decompressobj().decompress(data, _TEXT_BYTES_MAX)
