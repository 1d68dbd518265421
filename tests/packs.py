"""Packs made by hand, and what can happen to their files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from readers import formats
from readers.checksum import checksum, content_digest, file_checksum
from readers.index import Column, column_path, map_columns, pack_keys, save_columns
from readers.manifest import (
    MANIFEST_NAME,
    REJECTED_NAME,
    Field,
    Manifest,
    PackFile,
    Shard,
)


@dataclass(frozen=True)
class Row:
    """One sample of a pack to be; `values` holds its fields' stored bytes."""

    key: str
    values: Mapping[str, bytes]
    label: int = -1
    split: int = -1
    width: int = 1
    height: int = 1
    orientation: int = 1


@dataclass(frozen=True)
class Recipe:
    """All that a pack is made of; the samples are spread over shards of `shard_sizes`."""

    rows: Sequence[Row]
    classes: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    shard_sizes: tuple[int, ...] = ()
    fields: Mapping[str, Field] = field(default_factory=lambda: {"image": Field()})

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.shard_sizes or (len(self.rows),)

    def columns(self) -> dict[str, Column]:
        """The index."""
        rows, sizes = self.rows, self.sizes
        columns: dict[str, Column] = {
            name: np.array([getattr(row, name) for row in rows])
            for name in ("label", "split", "width", "height", "orientation")
        }
        columns["shard"] = np.repeat(np.arange(len(sizes)), sizes)
        columns["position"] = np.concatenate([np.arange(size) for size in sizes])
        columns["key_offset"], columns["keys"] = pack_keys([row.key for row in rows])
        for name in self.fields:
            values = [row.values[name] for row in rows]
            length = np.array([len(value) for value in values])
            offset = [np.cumsum(part) - part for part in np.split(length, np.cumsum(sizes)[:-1])]
            columns[f"{name}.length"] = length
            columns[f"{name}.offset"] = np.concatenate(offset)
            columns[f"{name}.checksum"] = np.frombuffer(
                b"".join(map(checksum, values)), np.uint8
            ).reshape(-1, 16)
        return columns

    def content_digest(self) -> str:
        # A column's dtype belongs to its bytes, so they are cast as save_columns does.
        from readers.index import column_dtype

        columns = {name: c.astype(column_dtype(name)) for name, c in self.columns().items()}
        return content_digest(self.classes, self.splits, columns, list(self.fields))

    def write(self, out: Path, format_name: str) -> Path:
        """Make the pack."""
        (out / "shards").mkdir(parents=True)
        shards, start = [], 0
        for number, size in enumerate(self.sizes):
            rows = self.rows[start : start + size]
            writer = formats.load(format_name).ShardWriter(
                out / "shards", f"{number:05d}", list(self.fields)
            )
            writer.append({name: [row.values[name] for row in rows] for name in self.fields})
            names = writer.seal(np.array([row.label for row in rows]), [row.key for row in rows])
            files = tuple(described(out, f"shards/{name}") for name in names)
            shards.append(Shard(f"{number:05d}", size, files))
            start += size
        (out / REJECTED_NAME).touch()
        names = [*save_columns(out, self.columns()), REJECTED_NAME]
        manifest = Manifest(
            format=format_name,
            num_samples=len(self.rows),
            fields=dict(self.fields),
            classes=self.classes,
            splits=self.splits,
            shards=tuple(shards),
            files=tuple(described(out, name) for name in names),
            content_digest=self.content_digest(),
        )
        (out / MANIFEST_NAME).write_text(manifest.to_json())
        return out


def described(pack: Path, name: str) -> PackFile:
    return PackFile(name, (pack / name).stat().st_size, file_checksum(pack / name))


def change_index(pack: Path, **changed: Column) -> None:
    """Replace columns (`.` in a name written `__`) and make every checksum anew, so that only
    what the columns say can be wrong."""
    manifest = Manifest.load(pack)
    columns = map_columns(pack, manifest.num_samples, list(manifest.fields))
    for name, column in changed.items():
        columns[name.replace("__", ".")] = column
        np.save(column_path(pack, name.replace("__", ".")), column)
    change_manifest(
        pack,
        files=tuple(described(pack, file.name) for file in manifest.files),
        content_digest=content_digest(
            manifest.classes, manifest.splits, columns, list(manifest.fields)
        ),
    )


def change_manifest(pack: Path, **changed: object) -> None:
    """Replace members of the manifest and make its checksum anew."""
    manifest = replace(Manifest.load(pack), **changed)  # type: ignore[arg-type]
    (pack / MANIFEST_NAME).write_text(manifest.to_json())


def change_format_version(pack: Path, version: int) -> None:
    """Make the manifest one of another format version, with the right checksum."""
    from readers.checksum import canonical_json

    body = json.loads((pack / MANIFEST_NAME).read_text())
    del body["checksum"]
    body["dspack_format_version"] = version
    body["checksum"] = checksum(canonical_json(body)).hex()
    (pack / MANIFEST_NAME).write_text(json.dumps(body, indent=1) + "\n")


def files_of(pack: Path) -> list[Path]:
    """Every file of a pack, in a fixed order."""
    return sorted(path for path in pack.rglob("*") if path.is_file())


def flip(path: Path, position: int, mask: int = 0xFF) -> None:
    """Change one byte of a file; a negative position counts from the end."""
    with path.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(position % size)
        byte = file.read(1)[0]
        file.seek(position % size)
        file.write(bytes([byte ^ mask]))


def place_of(pack: Path, value: bytes) -> tuple[Path, int]:
    """The file of a pack, and the byte in it, where a stored value begins."""
    for path in files_of(pack):
        if (position := path.read_bytes().find(value)) >= 0:
            return path, position
    raise AssertionError("the value is in no file as it is")


def damage_value(pack: Path, value: bytes) -> Path:
    """Flip a byte in the middle of a stored value; returns the file."""
    path, position = place_of(pack, value)
    flip(path, position + len(value) // 2)
    return path
