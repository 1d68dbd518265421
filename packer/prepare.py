"""One sample: its files read, checked, and made what is stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy.typing as npt

from readers.checksum import checksum
from readers.errors import SourceError

from . import repack
from .fields import fold_stamps
from .images.geometry import Geometry, unchanged
from .images.inspect import Image, Reject, check_pixels, inspect
from .images.pixels import PixelOptions
from .images.restart import require_jpegtran
from .images.transform import Stored, is_plain, transform
from .sources import FieldSource, File, MadeFieldSource, Source, pack
from .values import Found, Value, store

_PROBES_MAX = 64  # files to learn from whether all images are of one size
AS_THEY_ARE = PixelOptions()


class Prepared(NamedTuple):
    """One file, read and checked: a sample, or a reject with its reason. `data` is what is stored;
    `change`, `segments`, `is_odd` and `geometry` as in packer.images.transform.Stored;
    `orientation` is that of the file, not of what is stored. `values` are those of the further
    fields, in their order, with their checksums. `source_bytes` and `source_ns` stand for all files
    of the sample."""

    entry: int
    source_bytes: int
    source_ns: int
    data: bytes
    checksum: bytes = b""
    image: Image | None = None
    reject: Reject | None = None
    change: str | None = None
    segments: npt.NDArray[Any] | None = None
    is_odd: bool = False
    geometry: Geometry | None = None
    orientation: int = 1
    values: tuple[tuple[Value, bytes], ...] = ()

    @property
    def num_bytes(self) -> int:
        """The bytes that are stored."""
        if not self.values:
            return len(self.data)
        return len(self.data) + sum([len(value.data) for value, _ in self.values])


def prepare(
    source: Source,
    path: str,
    entry: int,
    decode: bool,
    pixels: PixelOptions = AS_THEY_ARE,
    fields: Sequence[FieldSource] = (),
) -> Prepared:
    """Read a sample's files and look at them, with `decode` at all pixels. Raises SourceError."""
    prepared = _prepare_image(source, path, entry, decode, pixels)
    return _with_fields(prepared, path, decode, pixels, fields) if fields else prepared


def _with_fields(
    prepared: Prepared,
    path: str,
    decode: bool,
    pixels: PixelOptions,
    fields: Sequence[FieldSource],
) -> Prepared:
    """The sample with its further fields, or a reject for the first that cannot be stored."""
    # All are read even if the first is a reject: resuming looks at the stamps of all.
    found = [_read_field(field, path) for field in fields]
    stamps = [f[1:3] if isinstance(f, File) else (-1, -1) for f in found]
    num_bytes, modified_ns = fold_stamps([(prepared.source_bytes, prepared.source_ns), *stamps])
    reject, values = prepared.reject, []
    if prepared.image is not None:
        geometry = prepared.geometry or unchanged(prepared.image.width, prepared.image.height)
        orientation = prepared.orientation
        try:
            for field, file in zip(fields, found, strict=True):
                value = _value(field, file, path, geometry, orientation, decode, pixels)
                values.append((value, checksum(value.data)))
        except Reject as problem:
            reject = problem
    if reject is not None:
        return Prepared(prepared.entry, num_bytes, modified_ns, b"", reject=reject)
    return prepared._replace(source_bytes=num_bytes, source_ns=modified_ns, values=tuple(values))


def _read_field(field: FieldSource, path: str) -> File | Reject | None:
    try:
        return field.read(path)
    except Reject as reject:
        return reject


def _value(
    field: FieldSource,
    file: File | Reject | None,
    path: str,
    geometry: Geometry,
    orientation: int,
    decode: bool,
    pixels: PixelOptions,
) -> Value:
    if isinstance(file, Reject):
        raise file
    if file is None:
        return Value(b"", (f"no {field.name}, an empty value is stored",))
    where = field.where(path)
    found = Found(file.data, field.name, where, path, geometry, orientation, decode, pixels)
    if isinstance(field, MadeFieldSource):
        return field.store(found)
    return store(field.about.kind, found)


def _prepare_image(
    source: Source, path: str, entry: int, decode: bool, pixels: PixelOptions
) -> Prepared:
    if pixels.copied is not None:
        return _prepare_copy(source, path, entry, decode)
    try:
        data, num_bytes, modified_ns, kind = source.read(path)
    except Reject as reject:
        return Prepared(entry, -1, -1, b"", reject=reject)
    try:
        image = inspect(data, pixels.max_pixels)
        if kind is not None:
            image.kind, image.odd = kind, image.odd and kind
        if image.profile and pixels.icc is None:
            image.warnings += (_taken_as_srgb(image),)
        stored = _stored(data, image, decode, pixels)
    except Reject as reject:
        return Prepared(entry, num_bytes, modified_ns, b"", reject=reject)
    orientation = max(image.orientation, image.turned)  # one of them is 1
    return _prepared(entry, num_bytes, modified_ns, stored, orientation)


def _stored(data: bytes, image: Image, decode: bool, pixels: PixelOptions) -> Stored:
    """What is stored of an inspected file. Raises Reject."""
    if not is_plain(image, pixels):
        return transform(data, image, pixels)
    if decode:
        data = check_pixels(data, image)
    elif image.missing_end:
        raise Reject("image data missing", "no end marker; --check decode looks closer")
    return Stored(data, image)


def _prepare_copy(source: Source, path: str, entry: int, decode: bool) -> Prepared:
    assert isinstance(source, pack.Source)
    num_bytes, modified_ns = source.stamp(path)
    try:
        stored = repack.copy(source, path, decode_image=decode)
    except Reject as reject:
        return Prepared(entry, num_bytes, modified_ns, b"", reject=reject)
    if stored.image.profile:
        stored.image.warnings += (_taken_as_srgb(stored.image),)
    return _prepared(entry, num_bytes, modified_ns, stored, stored.image.orientation)


def _taken_as_srgb(image: Image) -> str:
    return f"colour profile {image.profile}, taken as sRGB; --icc srgb converts"


def _prepared(
    entry: int, num_bytes: int, modified_ns: int, stored: Stored, orientation: int
) -> Prepared:
    data, image, change, segments, is_odd, geometry = stored
    digest = checksum(data)
    return Prepared(  # without names: they cost as much as looking at a header
        entry, num_bytes, modified_ns, data, digest,
        image, None, change, segments, is_odd, geometry, orientation,
    )  # fmt: skip


def settle(source: Source, paths: Sequence[str], pixels: PixelOptions) -> PixelOptions:
    """The options with what has to be known of the source before the work starts.

    Raises MissingDependency where a program is missing, SourceError where images that would have
    to be of one size are not, or the options do not go with the images of a pack.
    """
    if isinstance(source, pack.Source):
        pixels = repack.settle_for_pack(source.field, source.root, pixels)
    if pixels.seekable:
        require_jpegtran()
    if pixels.encode != "raw" or pixels.resize is not None:
        return pixels
    chosen = [paths[i] for i in range(0, len(paths), -(-len(paths) // _PROBES_MAX))]
    with ThreadPoolExecutor(16) as pool:
        probes = list(pool.map(lambda path: prepare(source, path, 0, True, pixels).image, chosen))
    sizes = Counter((image.width, image.height) for image in probes if image is not None)
    if len(sizes) != 1:
        shown = ", ".join(f"{width} x {height}" for width, height in sorted(sizes)[:3])
        raise SourceError(
            f"the images are not of one size ({shown} …)" if sizes else "no image can be read",
            path=source.root,
            advice="--encode raw needs one: add --resize N --resize-mode exact or pad",
        )
    return replace(pixels, raw_size=next(iter(sizes)))
