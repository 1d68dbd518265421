"""Checksums of stored bytes (xxh3-128) and the content digest of a pack (SHA-256)."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

CHECKSUM_BYTES = 16
_BLOCK_BYTES = 1 << 20  # fits the second-level cache, so hashing costs no second trip to memory


def checksum(data: bytes | memoryview) -> bytes:
    """The 16 bytes of xxh3-128 (seed 0, big-endian canonical form) of `data`."""
    return xxhash.xxh3_128_digest(data)


def file_checksum(path: str | os.PathLike[str]) -> str:
    """The xxh3-128 of a whole file in hex, as `xxhsum -H2` prints it."""
    digest = xxhash.xxh3_128()
    block = memoryview(bytearray(_BLOCK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


def content_digest(
    classes: Sequence[str],
    splits: Sequence[str],
    columns: Mapping[str, npt.NDArray[np.generic]],
    fields: Sequence[str],
) -> str:
    """The SHA-256, in hex, of what a pack holds, whatever its format and shards.

    It covers, in this order: a line of JSON with the class names, split names, field names and
    the number of samples; the columns key_offset, keys, label and split; then every field's
    checksum column, fields in sorted order. Columns are hashed as the bytes of their arrays.
    """
    header = {
        "classes": list(classes),
        "fields": sorted(fields),
        "num_samples": len(columns["label"]),
        "splits": list(splits),
    }
    digest = hashlib.sha256(b"dspack content digest 1\n")
    digest.update(canonical_json(header) + b"\n")
    names = ["key_offset", "keys", "label", "split", *(f"{f}.checksum" for f in sorted(fields))]
    for name in names:
        digest.update(np.ascontiguousarray(columns[name]).data)
    return digest.hexdigest()


def canonical_json(value: object) -> bytes:
    """The one JSON text of `value` that checksums are taken over: sorted, compact, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
