"""Packs put together by hand from readers.formats: what the packer does not write, or not so."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packer.shards import pack_file
from readers import formats
from readers.checksum import checksum, content_digest
from readers.index import pack_keys, save_columns
from readers.manifest import MANIFEST_NAME, Field, Manifest, Shard


def handmade_pack(
    path: Path,
    format_name: str,
    images: Sequence[bytes],
    sizes: Sequence[tuple[int, int]],
    *,
    orientations: Sequence[int] | None = None,
    labels: Sequence[int] | None = None,
    image: Field | None = None,
    fields: dict[str, Sequence[bytes]] | None = None,
    splits: Sequence[tuple[str, int]] = (),
) -> Path:
    """A pack of one shard. `sizes` are upright (width, height); `splits` are names and how many
    samples each takes, in order; labels default to the samples' numbers. Returns `path`."""
    num = len(images)
    values = {"image": list(images), **{name: list(v) for name, v in (fields or {}).items()}}
    labels = list(range(num)) if labels is None else list(labels)
    keys = [f"{i:03d}" for i in range(num)]
    (path / "shards").mkdir(parents=True)
    writer = formats.load(format_name).ShardWriter(path / "shards", "00000", list(values))
    writer.append(values)
    names = writer.seal(np.array(labels, np.int64), keys)
    key_offset, key_bytes = pack_keys(keys)
    split = [i for i, (_, count) in enumerate(splits) for _ in range(count)]
    columns = {
        "label": np.array(labels, np.int64),
        "split": np.array(split or [-1] * num, np.int16),
        "shard": np.zeros(num, np.int32),
        "position": np.arange(num),
        "key_offset": key_offset,
        "keys": key_bytes,
        "width": np.array([width for width, _ in sizes]),
        "height": np.array([height for _, height in sizes]),
        "orientation": np.array(orientations or [1] * num, np.uint8),
    }
    for name, field in values.items():
        lengths = np.array([len(value) for value in field], np.int64)
        columns[f"{name}.length"] = lengths
        columns[f"{name}.offset"] = np.cumsum(lengths) - lengths
        digests = b"".join(map(checksum, field))
        columns[f"{name}.checksum"] = np.frombuffer(digests, np.uint8).reshape(num, 16)
    index_files = save_columns(path, columns)
    classes = [str(i) for i in range(max(labels, default=-1) + 1)]
    split_names = [name for name, _ in splits]
    manifest = Manifest(
        format=format_name,
        num_samples=num,
        fields={name: Field("bytes") for name in values} | {"image": image or Field()},
        classes=tuple(classes),
        splits=tuple(split_names),
        shards=(Shard("00000", num, tuple(pack_file(path, f"shards/{name}") for name in names)),),
        files=tuple(pack_file(path, name) for name in index_files),
        content_digest=content_digest(classes, split_names, columns, list(values)),
    )
    (path / MANIFEST_NAME).write_text(manifest.to_json())
    return path


def array_pack(path: Path, format_name: str, arrays: np.ndarray) -> Path:
    """A pack that stores decoded pixels: arrays (n, height, width, channels) of any dtype."""
    return handmade_pack(
        path,
        format_name,
        [array.tobytes() for array in arrays],
        [(arrays.shape[2], arrays.shape[1])] * len(arrays),
        image=Field("array", arrays.dtype.name, tuple(arrays.shape[1:])),
    )
