"""Another pack: its samples with their keys, labels, splits and order, their bytes untouched."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from readers.errors import DamagedPack, SourceError
from readers.manifest import MANIFEST_NAME
from readers.pack import Pack, check_files

from ..inspect import Reject
from . import File, Given, Listing

_FIELD = "image"
_VERIFY = "`dspack verify` lists all the damage of a pack"


class Source:
    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def _pack(self) -> Pack:
        try:
            pack = Pack(self.root)
            for shard in pack.manifest.shards:
                check_files(pack.path, shard)
        except DamagedPack as error:
            raise SourceError(error.reason, path=error.path, advice=_VERIFY) from error
        if pack.manifest.fields[_FIELD].kind != "encoded":
            raise SourceError(
                "stores pixels, not image files, and cannot be repacked", path=self.root
            )
        return pack

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {key: row for row, key in enumerate(self._pack.keys)}

    @cached_property
    def _modified_ns(self) -> int:
        return os.stat(self.root / MANIFEST_NAME).st_mtime_ns

    def scan(self) -> Listing:
        manifest, index = self._pack.manifest, self._pack.index
        listing = Listing(files=list(self._rows))
        listing.given = Given(
            manifest.classes, index["label"], manifest.splits, index["split"], numbered=False
        )
        for name in manifest.fields:
            if name != _FIELD:
                listing.left_out[f"field {name}"] = manifest.num_samples
        if manifest.num_rejected:
            listing.warnings.append(
                f"the source pack was made with {manifest.num_rejected} rejects of its own"
            )
        return listing

    def read(self, path: str) -> File:
        try:
            data = self._pack.read(self._rows[path])
        except DamagedPack as error:
            raise Reject("damaged in the source pack", error.reason) from None
        return File(data, *self.stamp(path))

    def stamp(self, path: str) -> tuple[int, int]:
        return (int(self._pack.index[f"{_FIELD}.length"][self._rows[path]]), self._modified_ns)
