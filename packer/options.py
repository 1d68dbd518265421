"""What decides a pack's content."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .annotations import BoxesOption
from .fields import Pattern
from .images.pixels import PixelOptions
from .plan.layout import Plan
from .plan.part import Part
from .plan.split import NewSplits
from .sources import Listing, Source

# Resuming repeats half a shard on average, which is seconds; and the 300 shards of ImageNet are few
# enough for every process to hold open.
SHARD_BYTES = 512 << 20


@dataclass(frozen=True)
class Options:
    """What decides a pack's content, and so belongs to the plan of a run."""

    format: str
    shard_bytes: int = SHARD_BYTES
    check: str = "decode"
    layout: str = "auto"
    classes: tuple[str, ...] | None = None
    source_kind: str | None = None  # told from the source itself
    root: Path | None = None  # of a list's paths; the list's folder
    part: Part = field(default_factory=Part)
    new_splits: NewSplits | None = None
    drop_duplicates: bool = False
    pixels: PixelOptions = field(default_factory=PixelOptions)
    fields: tuple[Pattern, ...] = ()
    without_fields: tuple[str, ...] = ()
    boxes: BoxesOption | None = None

    def describe_fields(self) -> list[tuple[str, str]]:
        """The patterns of further fields, as JSON has them."""
        return [(pattern.name, pattern.text) for pattern in self.fields]


@dataclass(frozen=True)
class Job:
    """All that a run needs to know before its first write: what is to be packed, and how."""

    source: Source
    listing: Listing
    plan: Plan
    options: Options  # with what packer.prepare.settle found out
