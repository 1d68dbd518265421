"""From finished shards to all else that a pack consists of: the index, its lists, the manifest."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np

from readers.checksum import content_digest
from readers.index import Column, Keys, column_names, pack_keys, save_columns, save_pieces
from readers.manifest import IMAGE, REJECTED_NAME, Field, Manifest, Shard
from readers.version import __version__

from . import duplicates
from .images.pixels import PixelOptions
from .options import Job
from .plan import layout
from .shards import pack_file
from .staging import Done, Staging


@dataclass(frozen=True)
class RejectedFile:
    key: str
    reason: str
    detail: str


class Finished(NamedTuple):
    """What a pack consists of but for its shards, and the samples that are copies of others."""

    manifest: Manifest
    columns: dict[str, Column]
    copies: list[duplicates.Copies]


def finish(
    staging: Staging,
    job: Job,
    done: Sequence[Done],
    rejected: Sequence[RejectedFile],
    dropped: Sequence[RejectedFile],
) -> Finished:
    """Write the index, and the list of rejects and dropped duplicates."""
    plan, options = job.plan, job.options
    staging.clear_index()
    filled = [shard for shard in done if len(shard.rows)]
    further = {field.name: field.about for field in job.listing.fields}
    fields = [IMAGE, *further]
    columns = _columns(filled, plan, fields)
    names = [*save_columns(staging.pack, columns), REJECTED_NAME]
    if options.pixels.makes_segments or options.pixels.copied is not None:
        names += _save_segments(staging, done, options.pixels)
    with (staging.pack / REJECTED_NAME).open("w", encoding="ascii") as file:
        for reject in (*rejected, *dropped):
            row = {"key": reject.key, "reason": reject.reason, "detail": reject.detail}
            file.write(json.dumps(row) + "\n")
    copies = duplicates.find(columns)
    if crossing := [c for c in copies if c.splits or c.classes]:
        duplicates.write(staging.pack / duplicates.DUPLICATES_NAME, crossing, keys_of(columns))
        names.append(duplicates.DUPLICATES_NAME)
    manifest = Manifest(
        format=options.format,
        num_samples=len(columns["label"]),
        fields={IMAGE: _field(options.pixels, columns), **further},
        classes=tuple(plan.classes),
        splits=tuple(plan.splits),
        shards=tuple(
            Shard(_shard_name(shard.files[0].name), len(shard.rows), shard.files)
            for shard in filled
        ),
        files=tuple(pack_file(staging.pack, name) for name in names),
        content_digest=content_digest(plan.classes, plan.splits, columns, fields),
        num_rejected=len(rejected),
        made=_made(job, done, rejected),
    )
    return Finished(manifest, columns, copies)


def keys_of(columns: dict[str, Column]) -> Keys:
    return Keys(columns["key_offset"], columns["keys"], range(len(columns["label"])))


def _field(pixels: PixelOptions, columns: dict[str, Column]) -> Field:
    """How images are stored."""
    if pixels.copied is not None:
        return replace(pixels.copied, odd=pixels.copied.odd if f"{IMAGE}.odd" in columns else None)
    if pixels.encode == "raw":
        shape = (int(columns["height"][0]), int(columns["width"][0]), 3)
        return Field("array", pixels.dtype.str, shape)
    return Field(
        dtype=pixels.dtype.str if pixels.depth == "keep" else None,
        odd=pixels.rule._asdict() if f"{IMAGE}.odd" in columns else None,
    )


def _save_segments(staging: Staging, done: Sequence[Done], pixels: PixelOptions) -> list[str]:
    """The offsets of seekable JPEGs, which are too many to hold in memory, into the index."""
    num_segments = np.concatenate([staging.segments(i)[0] for i in range(len(done))])
    bounds = np.concatenate([[0], np.cumsum(num_segments)])
    if not pixels.makes_segments and not bounds[-1]:
        return []  # a copy of a pack that has none
    segments = (staging.segments(i)[1] for i in range(len(done)))
    return [
        save_pieces(staging.pack, f"{IMAGE}.segment_offset", len(bounds), [bounds]),
        save_pieces(staging.pack, f"{IMAGE}.segments", int(bounds[-1]), segments),
    ]


def _shard_name(file_name: str) -> str:
    return file_name.removeprefix("shards/").partition(".")[0]


def _columns(filled: Sequence[Done], plan: layout.Plan, fields: Sequence[str]) -> dict[str, Column]:
    """The index of all shards' rows."""
    rows = np.concatenate([shard.rows for shard in filled])
    sizes = [len(shard.rows) for shard in filled]
    key_offset, keys = pack_keys([plan.keys[entry] for entry in rows["entry"]])
    columns: dict[str, Column] = {
        "label": plan.labels[rows["entry"]],
        "split": plan.split_ids[rows["entry"]],
        "shard": np.repeat(np.arange(len(filled)), sizes),
        "position": np.concatenate([np.arange(size) for size in sizes]),
        "key_offset": key_offset,
        "keys": keys,
        "width": rows["width"],
        "height": rows["height"],
        "orientation": rows["orientation"],
    }
    for field in fields:
        lengths = [shard.rows[f"{field}.length"] for shard in filled]
        checksums = np.ascontiguousarray(rows[f"{field}.checksum"])
        columns[f"{field}.length"] = rows[f"{field}.length"]
        columns[f"{field}.offset"] = np.concatenate([np.cumsum(of) - of for of in lengths])
        columns[f"{field}.checksum"] = checksums.view(np.uint8).reshape(-1, 16)
    assert list(columns) == column_names(fields)
    odd = {f"{field}.odd": rows[f"{field}.odd"] for field in fields}
    return columns | {name: column for name, column in odd.items() if column.any()}


def _made(job: Job, done: Sequence[Done], rejected: Sequence[RejectedFile]) -> dict[str, Any]:
    """How the pack was made, for people."""
    options = job.options
    fields = {"fields": dict(options.describe_fields())} if options.fields else {}
    boxes = {"boxes": options.boxes.describe()} if options.boxes else {}
    return {
        **fields,
        **boxes,
        "by": f"dspack {__version__}",
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": os.path.realpath(job.source.root),
        "check": options.check,
        "layout": options.layout,
        "part": asdict(options.part),
        "new_splits": None if options.new_splits is None else asdict(options.new_splits),
        "drop_duplicates": options.drop_duplicates,
        "pixels": options.pixels.describe(),
        "shard_bytes": options.shard_bytes,
        "left_out": dict(sorted(job.listing.left_out.items())),
        "rejected": count(reject.reason for reject in rejected),
        "changed": changes(done),
        "warnings": count(warning for shard in done for _, warning in shard.warnings),
        "python": platform.python_version(),
        "libraries": {
            name: getattr(sys.modules[name], "__version__", None)
            for name in _LIBRARIES
            if name in sys.modules
        },
    }


_LIBRARIES = ("PIL", "cv2", "h5py", "lmdb", "numpy", "simplejpeg")  # if they were used


def count(texts: Iterable[str]) -> dict[str, int]:
    """How often each text occurs, by text."""
    return dict(sorted(Counter(texts).items()))


def changes(done: Sequence[Done]) -> dict[str, int]:
    """What was done to files, and to how many."""
    total: Counter[str] = Counter()
    for shard in done:
        total.update(shard.changes)
    return dict(sorted(total.items()))
