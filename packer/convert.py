"""The straight line source -> inspect -> shard -> publish."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from readers.checksum import checksum
from readers.errors import DestinationError, RejectsError, printable
from readers.version import __version__

from . import duplicates
from .annotations import add_boxes, shown_folders
from .destination import check_destination, existing_parent
from .fields import add_fields, stamper
from .memory import keep_freed_memory
from .options import Job, Options
from .plan import labels, layout
from .plan.names import name_warnings
from .plan.part import take_number, take_splits_and_classes
from .plan.split import split
from .prepare import settle
from .prepare_all import prepare_all
from .publish import Finished, RejectedFile, changes, count, finish, keys_of
from .shards import ShardSequence
from .sources import Scanning, Source, open_source, unseen
from .staging import Done, Staging, fingerprint, writing

_GO_ON_ADVICE = (
    "what is packed so far is kept; make room if the disk is full, and run the same command again"
)
Progress = Callable[[int, int, int], None]  # files done, bytes read, files in all


@dataclass
class Summary:
    """What convert did."""

    path: str
    format: str
    num_samples: int
    num_classes: int
    num_shards: int
    pack_bytes: int
    content_digest: str
    by_split: dict[str, int]
    rejected: dict[str, int]
    left_out: dict[str, int]
    changed: dict[str, int]
    warnings: dict[str, int]
    notes: list[str]
    seconds: float
    num_resumed: int
    rejected_files: list[str] = field(default_factory=list)


def convert(
    source_path: Path,
    out: Path,
    options: Options,
    *,
    threads: int,
    io_threads: int | None = None,
    overwrite: bool = False,
    force: bool = False,
    strict: bool = False,
    progress: Progress = lambda files, num_bytes, total: None,
    scanning: Scanning = unseen,
) -> Summary:
    """Pack `source_path` into the new pack `out`.

    A run that was interrupted goes on from its last finished shard when the same call is made
    again, and ends with the same content. `io_threads`: see prepare_all. `strict` publishes nothing
    if a file was rejected. `progress` and `scanning` are told how far it is.
    Raises SourceError, DestinationError, RejectsError; a KeyboardInterrupt says what is kept.
    """
    started = time.monotonic()
    keep_freed_memory()
    check_destination(out, source_path, overwrite=overwrite, force=force)
    job = list_source(source_path, out, options, scanning)
    staging = Staging(out, plan_json(job), overwrite=overwrite)
    try:
        check_destination(out, source_path, overwrite=overwrite, force=force)  # an old pack is back
        with writing(staging.folder):
            finished_shards = staging.finished()
        done = _drop_changed(finished_shards, job, threads)
        with writing(staging.folder):
            staging.keep(done)
        num_resumed = sum(len(shard.rows) for shard in done)
        done += _pack_rest(staging, job, done, threads, io_threads, progress)
        rejected, dropped = _rejected(job, done)
        with writing(staging.folder):
            _refuse(staging, rejected, done, job.source, strict)
            job.listing.left_out.update(reject.reason for reject in dropped)
            finished = finish(staging, job, done, rejected, dropped)
            check_destination(out, source_path, overwrite=overwrite, force=force)  # it may be new
            staging.publish(finished.manifest.to_json())
    except DestinationError as error:
        error.advice = error.advice or _GO_ON_ADVICE
        raise
    except KeyboardInterrupt:
        if not staging.pack.exists():  # it has its name already
            raise
        raise KeyboardInterrupt(_kept(staging.finished())) from None
    finally:
        staging.close()
    return _summary(out, job, done, rejected, finished, num_resumed, started)


def list_source(source_path: Path, out: Path, options: Options, scanning: Scanning = unseen) -> Job:
    """The source, all that it holds, and the samples to be. Writes nothing that has a name.

    Raises SourceError, MissingDependency, and DestinationError without room to unpack an archive
    beside `out`.
    """
    source = open_source(
        source_path,
        options.source_kind,
        scratch=existing_parent(out),
        base=options.root,
        scanning=scanning,
    )
    listing = source.scan()
    used = options.boxes.columns if options.boxes else ()
    add_fields(source, listing, options.fields, options.without_fields, used)
    add_boxes(source, listing, options.boxes)
    if listing.given is None:
        pass_over = options.boxes and options.layout != "classes"
        shown, path_of = shown_folders(listing) if pass_over else (listing, {})
        plan = layout.plan(shown, source.root, options.layout, options.classes)
        if path_of:
            plan = replace(plan, keys=[path_of[key] for key in plan.keys])
    else:
        plan = labels.plan(listing, listing.given, source.root, options.classes)
    plan = take_splits_and_classes(plan, options.part, source.root)
    if options.new_splits is not None:
        plan = split(plan, options.new_splits, source.root, mix=bool(options.part.splits))
    plan = take_number(plan, options.part.limit)
    plan.warnings.extend(name_warnings(plan.keys))
    options = replace(options, pixels=settle(source, plan.keys, options.pixels))
    return Job(source, listing, plan, options)


def plan_json(job: Job) -> dict[str, Any]:
    """What a run that goes on must have in common with the one before."""
    plan, options = job.plan, job.options
    return {
        "source": os.path.realpath(job.source.root),
        "listing": fingerprint(
            [*plan.keys, "", *plan.classes, "", *plan.splits, "", _label_checksum(plan)]
        ),
        "format": options.format,
        "shard_size": options.shard_bytes,
        "check": options.check,
        "layout": options.layout,
        "drop_duplicates": options.drop_duplicates,
        "pixels": options.pixels.describe(),
        "fields": [
            [field.name, field.about.kind, list(field.about.classes or ())]
            for field in job.listing.fields
        ],
        "boxes": options.boxes and options.boxes.describe(),
        "patterns": dict(options.describe_fields()),
        "dspack": __version__,
    }


def _label_checksum(plan: layout.Plan) -> str:
    return checksum(plan.labels.tobytes() + plan.split_ids.tobytes()).hex()


def _drop_changed(done: list[Done], job: Job, threads: int) -> list[Done]:
    """The finished shards up to the first one of which a file has changed since."""
    stamp = stamper(job.source, job.listing.fields)
    with ThreadPoolExecutor(max(threads, 16)) as pool:
        for number, shard in enumerate(done):
            entries, *stored = zip(*shard.stamps(), strict=True)
            now = pool.map(stamp, [job.plan.keys[entry] for entry in entries])
            if list(now) != list(zip(*stored, strict=True)):
                return done[:number]
    return done


def _pack_rest(
    staging: Staging,
    job: Job,
    done: Sequence[Done],
    threads: int,
    io_threads: int | None,
    progress: Progress,
) -> list[Done]:
    """Pack the plan's entries behind the finished shards; returns the new shards."""
    plan, options, fields = job.plan, job.options, job.listing.fields
    start = done[-1].stop if done else 0
    progress(start, 0, len(plan))
    writer = ShardSequence(
        staging,
        plan,
        options.format,
        options.shard_bytes,
        number=len(done),
        start=start,
        fields=[field.name for field in fields],
    )
    try:
        entries, decode = range(start, len(plan)), options.check == "decode"
        every = prepare_all(
            job.source,
            plan.keys,
            entries,
            threads,
            decode=decode,
            pixels=options.pixels,
            io_threads=io_threads,
            fields=fields,
        )
        with closing(every):  # a traceback that somebody keeps would keep its second process
            first = duplicates.FirstOfEach(plan, done) if options.drop_duplicates else None
            for batch in first.of(every) if first else every:
                with writing(staging.folder):
                    writer.append(batch)
                progress(batch[-1].entry + 1, sum([p.num_bytes for p in batch]), len(plan))
        with writing(staging.folder):
            return writer.finish()
    except BaseException:
        with writing(staging.folder):
            writer.abort()
        raise


def _kept(done: Sequence[Done]) -> str:
    """What an interrupted run leaves to the next one."""
    if not done:
        return "no shard was finished, so the same command starts anew"
    num_samples = sum(len(shard.rows) for shard in done)
    return f"finished shards: {len(done)}, samples: {num_samples}; the same command goes on there"


def _rejected(job: Job, done: Sequence[Done]) -> tuple[list[RejectedFile], list[RejectedFile]]:
    """The rejects, and the duplicates that were to be dropped."""
    rejected = [RejectedFile(path, reason, "") for path, reason in sorted(job.listing.rejected)]
    dropped: list[RejectedFile] = []
    for shard in done:
        for r in shard.rejected:
            files = dropped if r.reason == duplicates.DUPLICATE else rejected
            files.append(RejectedFile(job.plan.keys[r.entry], r.reason, r.detail))
    return rejected, dropped


def _refuse(
    staging: Staging,
    rejected: Sequence[RejectedFile],
    done: Sequence[Done],
    source: Source,
    strict: bool,
) -> None:
    """Raise RejectsError when nothing may be published."""
    is_empty = not any(len(shard.rows) for shard in done)
    if not rejected or not (strict or is_empty):
        return
    if is_empty:
        staging.discard()  # nothing to go on from, and it would be in the way of other options
    shown = "; ".join(
        f"{printable(r.key)}: {r.reason}" + f", {printable(r.detail)}" * bool(r.detail)
        for r in rejected[:3]
    )
    more = f" and {len(rejected) - 3} more" if len(rejected) > 3 else ""
    if strict:
        raise RejectsError(
            f"{len(rejected)} files were rejected and --strict was given ({shown}{more})",
            path=source.root,
            advice="mend them, or run without --strict"
            + f"; what is packed stays in {staging.folder}" * (not is_empty),
        )
    raise RejectsError(
        f"every file was rejected ({shown}{more})", path=source.root, advice="nothing was packed"
    )


def _summary(
    out: Path,
    job: Job,
    done: Sequence[Done],
    rejected: Sequence[RejectedFile],
    finished: Finished,
    num_resumed: int,
    started: float,
) -> Summary:
    plan, (manifest, columns, copies) = job.plan, finished
    counts = np.bincount(columns["split"] + 1, minlength=len(plan.splits) + 1)
    files = [file for shard in manifest.shards for file in shard.files] + list(manifest.files)
    return Summary(
        path=str(out),
        format=manifest.format,
        num_samples=manifest.num_samples,
        num_classes=len(plan.classes),
        num_shards=len(manifest.shards),
        pack_bytes=sum(file.num_bytes for file in files),
        content_digest=manifest.content_digest,
        by_split={name: int(counts[i + 1]) for i, name in enumerate(plan.splits)},
        rejected=count(reject.reason for reject in rejected),
        left_out=dict(sorted(job.listing.left_out.items())),
        changed=changes(done),
        warnings=count(warning for shard in done for _, warning in shard.warnings),
        notes=plan.warnings + duplicates.notes(copies, keys_of(columns)),
        seconds=time.monotonic() - started,
        num_resumed=num_resumed,
        rejected_files=[reject.key for reject in rejected[:10]],
    )
