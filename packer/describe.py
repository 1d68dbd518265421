"""What a pack is, from its manifest and index alone: `dspack info`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from readers.pack import Pack

from .columns import check_numbers


@dataclass(frozen=True)
class Description:
    """A pack for people and scripts; sizes in bytes, images in pixels."""

    path: str
    format: str
    num_samples: int
    fields: dict[str, str]  # how each is stored: the kinds of readers.manifest.Field
    field_classes: dict[str, list[str]]  # of fields that have their own
    splits: dict[str, int]  # samples by split
    classes: dict[str, dict[str, int]]  # samples by class and split ("all" without splits)
    num_unlabelled: int
    num_shards: int
    stored_bytes: int
    width: dict[str, int]  # min, median, max
    height: dict[str, int]
    orientations: dict[str, int]
    num_rejected: int
    content_digest: str
    made: dict[str, Any]


def describe(path: Path) -> Description:
    """Describe the pack at `path`. Raises NotAPack, DamagedPack."""
    pack = Pack(path)
    manifest, index = pack.manifest, pack.index
    check_numbers(pack)
    # One row a split and one column a class; row and column 0 are for "none".
    counts = np.zeros((len(manifest.splits) + 1, len(manifest.classes) + 1), np.int64)
    np.add.at(counts, (index["split"] + 1, index["label"] + 1), 1)
    splits = manifest.splits or ("all",)
    by_split = counts[1:] if manifest.splits else counts[:1]
    orientations, numbers = np.unique(index["orientation"], return_counts=True)
    return Description(
        path=str(pack.path),
        format=manifest.format,
        num_samples=len(pack),
        fields={name: about.kind for name, about in manifest.fields.items()},
        field_classes={
            name: list(about.classes)
            for name, about in manifest.fields.items()
            if about.classes is not None
        },
        splits={name: int(n) for name, n in zip(splits, by_split.sum(1), strict=True)},
        classes={
            name: {split: int(by_split[s, c + 1]) for s, split in enumerate(splits)}
            for c, name in enumerate(manifest.classes)
        },
        num_unlabelled=int(counts[:, 0].sum()),
        num_shards=len(manifest.shards),
        stored_bytes=sum(file.num_bytes for shard in manifest.shards for file in shard.files),
        width=_spread(index["width"]),
        height=_spread(index["height"]),
        orientations={str(o): int(n) for o, n in zip(orientations, numbers, strict=True)},
        num_rejected=manifest.num_rejected,
        content_digest=manifest.content_digest,
        made=manifest.made,
    )


def _spread(column: Any) -> dict[str, int]:
    return {
        "min": int(column.min()),
        "median": int(np.median(column)),
        "max": int(column.max()),
    }
