"""The straight line source -> inspect -> shard -> publish."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from readers.checksum import content_digest
from readers.errors import DestinationError, DspackError, RejectsError, SourceError
from readers.index import Column, column_names, pack_keys, save_columns
from readers.manifest import REJECTED_NAME, Field, Manifest, Shard
from readers.version import __version__

from . import layout
from .mounts import is_windows_mount
from .prepare import prepare_all
from .shards import FIELD, ShardSequence, pack_file
from .sources import Listing, Source, folder
from .staging import Done, Staging, fingerprint

SHARD_BYTES = 512 << 20  # resuming repeats half a shard on average: seconds; and 300 shards of
# ImageNet are few enough for every process to hold open
_GO_ON_ADVICE = (
    "what is packed so far is kept; make room if the disk is full, and run the same command again"
)
Progress = Callable[[int, int, int], None]  # files done, bytes read, files in all


@dataclass(frozen=True)
class Options:
    """What decides a pack's content, and so belongs to the plan of a run."""

    format: str
    shard_bytes: int = SHARD_BYTES
    check: str = "decode"
    layout: str = "auto"
    classes: tuple[str, ...] | None = None


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
    warnings: dict[str, int]
    notes: list[str]
    seconds: float
    num_resumed: int
    rejected_files: list[str] = field(default_factory=list)

    @property
    def num_rejected(self) -> int:
        return sum(self.rejected.values())


def convert(
    source_path: Path,
    out: Path,
    options: Options,
    *,
    threads: int,
    overwrite: bool = False,
    force: bool = False,
    strict: bool = False,
    progress: Progress = lambda files, num_bytes, total: None,
) -> Summary:
    """Pack `source_path` into the new pack `out`.

    A run that was interrupted goes on from its last finished shard when the same call is made
    again, and ends with the same content. `strict` publishes nothing if a file was rejected.
    Raises SourceError, DestinationError, RejectsError.
    """
    started = time.monotonic()
    check_destination(out, source_path, overwrite=overwrite, force=force)
    source = open_source(source_path)
    listing = source.scan()
    plan = layout.plan(listing, source.root, options.layout, options.classes)
    staging = Staging(out, _plan_json(source, plan, options), overwrite=overwrite)
    try:
        done = _drop_changed(staging, staging.finished(), source, plan, threads)
        staging.keep(done)
        num_resumed = sum(len(shard.rows) for shard in done)
        done += _pack_rest(staging, done, source, plan, options, threads, progress)
        rejected = _rejected(listing, plan, done)
        _refuse(staging, rejected, done, source, strict)
        manifest, index = _finish(staging, done, source, listing, plan, options, rejected)
        check_destination(out, source_path, overwrite=overwrite, force=force)  # it may be new
        staging.publish(manifest.to_json())
    except OSError as error:
        raise DestinationError(
            f"cannot be written: {error.strerror or error}",
            path=staging.folder,
            advice=_GO_ON_ADVICE,
        ) from error
    except DestinationError as error:
        error.advice = error.advice or _GO_ON_ADVICE
        raise
    finally:
        staging.close()
    return _summary(out, manifest, index, listing, plan, done, rejected, num_resumed, started)


def default_destination(source: Path, format_name: str) -> Path:
    """NAME.FORMAT in the current folder, or in ~/datasets when that is a Windows drive."""
    name = f"{Path(os.path.abspath(source)).name}.{format_name}"
    here = Path.cwd()
    return Path.home() / "datasets" / name if is_windows_mount(here) else Path(name)


def check_destination(out: Path, source: Path, *, overwrite: bool, force: bool) -> None:
    """Raise DestinationError for a destination that must not be written."""
    if out.name in ("", ".."):
        raise DestinationError("is no name for a new pack", path=out, advice="add one")
    if is_windows_mount(out) and not force:
        raise DestinationError(
            "lies on a Windows drive, where reading a pack is slow and mapping it unsafe",
            path=out,
            advice="choose a folder in Linux's own file system, such as ~/datasets, or --force",
        )
    real_out, real_source = os.path.realpath(out), os.path.realpath(source)
    if os.path.commonpath([real_out, real_source]) == real_source != real_out:
        raise DestinationError(
            "lies inside the source, where it would be taken for a class",
            path=out,
            advice="choose another folder with -o",
        )
    if not os.path.lexists(out):
        return
    if not overwrite:
        raise DestinationError("exists", path=out, advice="add --overwrite to replace it")
    if out.is_symlink() or not _is_pack(out):
        raise DestinationError(
            "exists and is not a pack, so --overwrite does not touch it",
            path=out,
            advice="move it away or choose another name",
        )


def _is_pack(path: Path) -> bool:
    try:
        Manifest.load(path)
    except DspackError:
        return False
    return True


def open_source(path: Path) -> Source:
    """The source at `path`. Raises SourceError."""
    if not os.path.exists(path):
        raise SourceError("no such file or folder", path=path)
    if not os.path.isdir(path):
        raise SourceError("not a folder", path=path, advice="unpack it first")
    return folder.Source(path)


def _plan_json(source: Source, plan: layout.Plan, options: Options) -> dict[str, Any]:
    return {
        "source": os.path.realpath(source.root),
        "listing": fingerprint([*plan.keys, "", *plan.classes]),
        "format": options.format,
        "shard_size": options.shard_bytes,
        "check": options.check,
        "layout": options.layout,
        "dspack": __version__,
    }


def _drop_changed(
    staging: Staging, done: list[Done], source: Source, plan: layout.Plan, threads: int
) -> list[Done]:
    """The finished shards up to the first one of which a file has changed since."""
    with ThreadPoolExecutor(max(threads, 16)) as pool:
        for number, shard in enumerate(done):
            entries, *stored = zip(*shard.stamps(), strict=True)
            now = pool.map(source.stamp, [plan.keys[entry] for entry in entries])
            if list(now) != list(zip(*stored, strict=True)):
                return done[:number]
    return done


def _pack_rest(
    staging: Staging,
    done: Sequence[Done],
    source: Source,
    plan: layout.Plan,
    options: Options,
    threads: int,
    progress: Progress,
) -> list[Done]:
    """Pack the plan's entries behind the finished shards; returns the new shards."""
    start = done[-1].stop if done else 0
    progress(start, 0, len(plan))
    writer = ShardSequence(
        staging, plan, options.format, options.shard_bytes, number=len(done), start=start
    )
    try:
        entries, decode = range(start, len(plan)), options.check == "decode"
        for batch in prepare_all(source, plan.keys, entries, threads, decode=decode):
            writer.append(batch)
            progress(batch[-1].entry + 1, sum(len(p.data) for p in batch), len(plan))
        return writer.finish()
    except BaseException:
        writer.abort()
        raise


@dataclass(frozen=True)
class _Rejected:
    key: str
    reason: str
    detail: str


def _rejected(listing: Listing, plan: layout.Plan, done: Sequence[Done]) -> list[_Rejected]:
    rejected = [_Rejected(path, reason, "") for path, reason in sorted(listing.rejected)]
    for shard in done:
        rejected += [_Rejected(plan.keys[r.entry], r.reason, r.detail) for r in shard.rejected]
    return rejected


def _refuse(
    staging: Staging,
    rejected: Sequence[_Rejected],
    done: Sequence[Done],
    source: Source,
    strict: bool,
) -> None:
    """Raise RejectsError when nothing may be published."""
    if not rejected or (not strict and any(len(shard.rows) for shard in done)):
        return
    shown = "; ".join(f"{r.key}: {r.reason}" for r in rejected[:3])
    more = f" and {len(rejected) - 3} more" if len(rejected) > 3 else ""
    if strict:
        raise RejectsError(
            f"{len(rejected)} files were rejected and --strict was given ({shown}{more})",
            path=source.root,
            advice=f"mend them, or run without --strict; what is packed stays in {staging.folder}",
        )
    raise RejectsError(
        f"every file was rejected ({shown}{more})", path=source.root, advice="nothing was packed"
    )


def _finish(
    staging: Staging,
    done: Sequence[Done],
    source: Source,
    listing: Listing,
    plan: layout.Plan,
    options: Options,
    rejected: Sequence[_Rejected],
) -> tuple[Manifest, dict[str, Column]]:
    """Write the index and the list of rejects; returns the manifest and the index."""
    filled = [shard for shard in done if len(shard.rows)]
    columns = _columns(filled, plan)
    names = [*save_columns(staging.pack, columns), REJECTED_NAME]
    with (staging.pack / REJECTED_NAME).open("w", encoding="ascii") as file:
        for reject in rejected:
            row = {"key": reject.key, "reason": reject.reason, "detail": reject.detail}
            file.write(json.dumps(row) + "\n")
    manifest = Manifest(
        format=options.format,
        num_samples=len(columns["label"]),
        fields={FIELD: Field()},
        classes=tuple(plan.classes),
        splits=tuple(plan.splits),
        shards=tuple(
            Shard(_shard_name(shard.files[0].name), len(shard.rows), shard.files)
            for shard in filled
        ),
        files=tuple(pack_file(staging.pack, name) for name in names),
        content_digest=content_digest(plan.classes, plan.splits, columns, [FIELD]),
        num_rejected=len(rejected),
        made=_made(source, listing, options, done, rejected),
    )
    return manifest, columns


def _shard_name(file_name: str) -> str:
    return file_name.removeprefix("shards/").partition(".")[0]


def _columns(filled: Sequence[Done], plan: layout.Plan) -> dict[str, Column]:
    """The index of all shards' rows."""
    rows = np.concatenate([shard.rows for shard in filled])
    sizes = [len(shard.rows) for shard in filled]
    offsets = [np.cumsum(shard.rows["length"]) - shard.rows["length"] for shard in filled]
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
        f"{FIELD}.length": rows["length"],
        f"{FIELD}.offset": np.concatenate(offsets),
        f"{FIELD}.checksum": np.ascontiguousarray(rows["checksum"]).view(np.uint8).reshape(-1, 16),
    }
    assert list(columns) == column_names([FIELD])
    return columns


def _made(
    source: Source,
    listing: Listing,
    options: Options,
    done: Sequence[Done],
    rejected: Sequence[_Rejected],
) -> dict[str, Any]:
    """How the pack was made, for people."""
    return {
        "by": f"dspack {__version__}",
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": os.path.realpath(source.root),
        "check": options.check,
        "layout": options.layout,
        "shard_bytes": options.shard_bytes,
        "left_out": dict(sorted(listing.left_out.items())),
        "rejected": layout.count(reject.reason for reject in rejected),
        "warnings": layout.count(warning for shard in done for _, warning in shard.warnings),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


_LIBRARIES = ("h5py", "lmdb", "numpy", "opencv-python-headless", "simplejpeg", "xxhash")


def _version(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:  # cv2 comes under other names, too
        return None


def _summary(
    out: Path,
    manifest: Manifest,
    columns: dict[str, Column],
    listing: Listing,
    plan: layout.Plan,
    done: Sequence[Done],
    rejected: Sequence[_Rejected],
    num_resumed: int,
    started: float,
) -> Summary:
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
        rejected=layout.count(reject.reason for reject in rejected),
        left_out=dict(sorted(listing.left_out.items())),
        warnings=layout.count(warning for shard in done for _, warning in shard.warnings),
        notes=plan.warnings,
        seconds=time.monotonic() - started,
        num_resumed=num_resumed,
        rejected_files=[reject.key for reject in rejected[:10]],
    )
