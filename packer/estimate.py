"""What a conversion would do, without doing it: `dspack convert --dry-run`."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .convert import list_source, plan_json
from .destination import check_destination, existing_parent
from .options import Options
from .prepare import Prepared
from .prepare_all import prepare_all
from .publish import count
from .sources import Scanning, unseen
from .staging import check_unfinished

_SAMPLE_FILES = 200  # a second or two on a slow mount; enough for a rate


@dataclass(frozen=True)
class Estimate:
    """What would be packed. Sizes in bytes, times in seconds."""

    path: str
    format: str
    num_files: int
    by_split: dict[str, int]
    by_class: dict[str, int]
    source_bytes: int  # of images
    field_values: dict[str, int]  # further fields: how many samples have a value, and their bytes
    field_bytes: dict[str, int]
    free_bytes: int
    seconds: float
    left_out: dict[str, int]
    rejected: dict[str, int]
    notes: list[str]


def estimate(
    source_path: Path,
    out: Path,
    options: Options,
    *,
    threads: int,
    io_threads: int | None = None,
    overwrite: bool,
    force: bool,
    scanning: Scanning = unseen,
) -> Estimate:
    """List the source, add up its sizes, and time the reading of some of its files.

    Raises what convert would raise before its first write, but does not try whether `out` can be
    written.
    """
    check_destination(out, source_path, overwrite=overwrite, force=force)
    job = list_source(source_path, out, options, scanning)
    check_unfinished(out, plan_json(job), overwrite=overwrite)
    source, listing, plan, options = job.source, job.listing, job.plan, job.options
    with ThreadPoolExecutor(64) as pool:  # a stat each: deep enough for a slow mount
        sizes = [size for size, _ in pool.map(source.stamp, plan.keys)]
        field_sizes = {
            field.name: [size for size, _ in pool.map(field.stamp, plan.keys) if size >= 0]
            for field in listing.fields
        }
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(plan))[:_SAMPLE_FILES]
    paths = [plan.keys[i] for i in chosen]
    started = time.perf_counter()
    prepared: list[Prepared] = []
    for batch in prepare_all(
        source,
        paths,
        range(len(paths)),
        threads,
        decode=options.check == "decode",
        pixels=options.pixels,
        io_threads=io_threads,
        fields=listing.fields,
    ):
        prepared += batch
    seconds = (time.perf_counter() - started) / len(paths) * len(plan)
    rejected = count(p.reject.reason for p in prepared if p.reject is not None)
    return Estimate(
        path=str(out),
        format=options.format,
        num_files=len(plan),
        by_split=count(plan.splits[i] for i in plan.split_ids if i >= 0),
        by_class=count(plan.classes[i] for i in plan.labels if i >= 0),
        source_bytes=sum(max(size, 0) for size in sizes),
        field_values={name: len(of) for name, of in field_sizes.items()},
        field_bytes={name: sum(of) for name, of in field_sizes.items()},
        free_bytes=shutil.disk_usage(existing_parent(out)).free,
        seconds=seconds,
        left_out=dict(sorted(listing.left_out.items())),
        rejected=rejected,
        notes=plan.warnings,
    )
