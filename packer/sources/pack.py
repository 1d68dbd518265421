"""Another pack: its samples with their keys, labels, splits and order."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np

from readers.errors import DamagedPack, SourceError
from readers.index import Column
from readers.manifest import IMAGE, MANIFEST_NAME, Field
from readers.pack import Pack, check_files

from ..columns import check_numbers
from ..images.inspect import Reject
from . import File, Given, Listing

if TYPE_CHECKING:
    from readers.odd import Rule

_VERIFY = "`dspack verify` lists all the damage of a pack"


class Copy(NamedTuple):
    """A stored value and what the index says of it: `width` and `height` are upright, `segments`
    a seekable JPEG's offsets, `rule` is how it is decoded if it is odd."""

    data: bytes
    width: int
    height: int
    orientation: int
    segments: Column | None
    rule: Rule | None


class Source:
    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def _pack(self) -> Pack:
        try:
            pack = Pack(self.root)
            for shard in pack.manifest.shards:
                check_files(pack.path, shard)
            check_numbers(pack)
        except DamagedPack as error:
            raise SourceError(error.reason, path=error.path, advice=_VERIFY) from error
        return pack

    @property
    def field(self) -> Field:
        """How the pack stores its images."""
        return self._pack.manifest.fields[IMAGE]

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self._pack.keys)}

    @cached_property
    def _modified_ns(self) -> int:
        path = self.root / MANIFEST_NAME
        try:
            return os.stat(path).st_mtime_ns
        except OSError as error:
            raise SourceError(f"cannot be read: {error.strerror}", path=path) from None

    def scan(self) -> Listing:
        manifest, index = self._pack.manifest, self._pack.index
        listing = Listing(files=list(self._rows))
        listing.given = Given(
            manifest.classes, index["label"], manifest.splits, index["split"], numbered=False
        )
        for name, about in manifest.fields.items():
            if name != IMAGE and about.odd is None:
                listing.fields.append(_PackField(name, about, self))
            elif name != IMAGE:  # such an image needs a rule of its own, which no option states
                listing.left_out[f"field {name}"] = manifest.num_samples
        if manifest.num_rejected:
            listing.warnings.append(
                f"the source pack was made with {manifest.num_rejected} rejects of its own"
            )
        return listing

    def read(self, path: str) -> File:
        """An image as a file: pixels, uint8 or uint16 RGB, as a PNG that is not compressed."""
        data, kind = self._value(path, IMAGE), None
        if self.field.kind == "array":
            pixels = np.frombuffer(data, self.field.dtype).reshape(self.field.shape or ())
            parameters = [cv2.IMWRITE_PNG_COMPRESSION, 0]
            bgr = np.ascontiguousarray(pixels[..., ::-1])
            data = cv2.imencode(".png", bgr, parameters)[1].tobytes()
            kind = "raw pixels" if pixels.dtype == np.uint8 else "raw 16-bit pixels"
        return File(data, *self.stamp(path), kind)

    def copy(self, path: str) -> Copy:
        """A stored value, whatever it is. Raises Reject."""
        row, index = self._rows[path], self._pack.index
        return Copy(
            self._value(path, IMAGE),
            int(index["width"][row]),
            int(index["height"][row]),
            int(index["orientation"][row]),
            self._pack.segments(row),
            self._pack.odd_rule(row),
        )

    def read_field(self, path: str, name: str) -> File:
        return File(self._value(path, name), *self.stamp_field(path, name))

    def _value(self, path: str, name: str) -> bytes:
        try:
            return self._pack.read(self._rows[path], name)
        except DamagedPack as error:
            raise Reject("damaged in the source pack", error.reason) from None

    def stamp(self, path: str) -> tuple[int, int]:
        return self.stamp_field(path, IMAGE)

    def stamp_field(self, path: str, name: str) -> tuple[int, int]:
        return (int(self._pack.index[f"{name}.length"][self._rows[path]]), self._modified_ns)


@dataclass(frozen=True)
class _PackField:
    name: str
    about: Field
    source: Source

    def read(self, image: str) -> File | None:
        try:
            file = self.source.read_field(image, self.name)
        except Reject as reject:
            raise Reject(f"{self.name}: {reject.reason}", reject.detail) from None
        return None if self.about.kind == "mask" and not file.data else file

    def stamp(self, image: str) -> tuple[int, int]:
        return self.source.stamp_field(image, self.name)

    def where(self, image: str) -> str:
        return f"the {self.name} of {image}"
