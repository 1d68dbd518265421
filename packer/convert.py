"""The straight line source -> inspect -> shard -> publish."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from readers import formats
from readers.checksum import checksum, content_digest
from readers.errors import DestinationError, DspackError, RejectsError, printable
from readers.index import (
    Column,
    Keys,
    column_names,
    pack_keys,
    save_columns,
    save_pieces,
)
from readers.manifest import REJECTED_NAME, Field, Manifest, Shard
from readers.version import __version__

from . import duplicates, labels, layout
from .mounts import is_windows_mount
from .names import name_warnings
from .part import Part, take_number, take_splits_and_classes
from .pixels import PixelOptions
from .prepare import prepare_all, settle
from .shards import FIELD, ShardSequence, pack_file
from .sources import Listing, Source, open_source
from .split import NewSplits, split
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
    source_kind: str | None = None  # told from the source itself
    root: Path | None = None  # of a list's paths; the list's folder
    part: Part = field(default_factory=Part)
    new_splits: NewSplits | None = None
    drop_duplicates: bool = False
    pixels: PixelOptions = field(default_factory=PixelOptions)


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
    source, listing, plan = list_source(source_path, out, options)
    options = replace(options, pixels=settle(source, plan.keys, options.pixels))
    staging = Staging(out, _plan_json(source, plan, options), overwrite=overwrite)
    try:
        done = _drop_changed(staging, staging.finished(), source, plan, threads)
        staging.keep(done)
        num_resumed = sum(len(shard.rows) for shard in done)
        done += _pack_rest(staging, done, source, plan, options, threads, progress)
        rejected = _rejected(listing, plan, done)
        _refuse(staging, _unwanted(rejected), done, source, strict)
        manifest, index = _finish(staging, done, source, listing, plan, options, rejected)
        check_destination(out, source_path, overwrite=overwrite, force=force)  # it may be new
        staging.publish(manifest.to_json())
    except OSError as error:
        raise DestinationError(
            f"cannot be written: {os.strerror(error.errno) if error.errno else error}",
            path=staging.folder,
            advice=_GO_ON_ADVICE,
        ) from error
    except DestinationError as error:
        error.advice = error.advice or _GO_ON_ADVICE
        raise
    finally:
        staging.close()
    return _summary(out, manifest, index, listing, plan, done, rejected, num_resumed, started)


_KIND_SUFFIX = re.compile(
    r"([-_.]?\{[^/]*\})?\.(tar|tgz|tbz2?|txz|tzst|zip|csv|tsv|jsonl|"
    + "|".join(formats.names())
    + r")(\.(gz|bz2|xz|zst))?$",
    re.IGNORECASE,
)


def default_destination(source: Path, format_name: str) -> Path:
    """NAME.FORMAT in the current folder, or in ~/datasets when that is a Windows drive.

    NAME is the source's without what tells its kind: imgs.tar.gz and imgs-{00..99}.tar give imgs.
    """
    name = _KIND_SUFFIX.sub("", Path(os.path.abspath(source)).name) + f".{format_name}"
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


def list_source(
    source_path: Path, out: Path, options: Options
) -> tuple[Source, Listing, layout.Plan]:
    """The source, all that it holds, and the samples to be. Writes nothing that has a name.

    Raises SourceError, and DestinationError without room to unpack an archive beside `out`.
    """
    source = open_source(
        source_path, options.source_kind, scratch=existing_parent(out), base=options.root
    )
    listing = source.scan()
    if listing.given is None:
        plan = layout.plan(listing, source.root, options.layout, options.classes)
    else:
        plan = labels.plan(listing, listing.given, source.root, options.classes)
    plan = take_splits_and_classes(plan, options.part, source.root)
    if options.new_splits is not None:
        plan = split(plan, options.new_splits, source.root, mix=bool(options.part.splits))
    plan = take_number(plan, options.part.limit)
    plan.warnings.extend(name_warnings(plan.keys))
    return source, listing, plan


def existing_parent(path: Path) -> Path:
    """The lowest folder above `path` that exists."""
    path = path.absolute().parent
    while not os.path.exists(path):
        path = path.parent
    return path


def _plan_json(source: Source, plan: layout.Plan, options: Options) -> dict[str, Any]:
    return {
        "source": os.path.realpath(source.root),
        "listing": fingerprint(
            [*plan.keys, "", *plan.classes, "", *plan.splits, "", _label_checksum(plan)]
        ),
        "format": options.format,
        "shard_size": options.shard_bytes,
        "check": options.check,
        "layout": options.layout,
        "drop_duplicates": options.drop_duplicates,
        "pixels": options.pixels.describe(),
        "dspack": __version__,
    }


def _label_checksum(plan: layout.Plan) -> str:
    return checksum(plan.labels.tobytes() + plan.split_ids.tobytes()).hex()


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
        batches = prepare_all(
            source, plan.keys, entries, threads, decode=decode, pixels=options.pixels
        )
        if options.drop_duplicates:
            batches = duplicates.FirstOfEach(plan, done).of(batches)
        for batch in batches:
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


def _unwanted(rejected: Sequence[_Rejected]) -> list[_Rejected]:
    """The rejects but for the duplicates that were to be dropped."""
    return [reject for reject in rejected if reject.reason != duplicates.DUPLICATE]


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
    shown = "; ".join(f"{printable(r.key)}: {r.reason}" for r in rejected[:3])
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
    if options.pixels.makes_segments:
        names += _save_segments(staging, done)
    with (staging.pack / REJECTED_NAME).open("w", encoding="ascii") as file:
        for reject in rejected:
            row = {"key": reject.key, "reason": reject.reason, "detail": reject.detail}
            file.write(json.dumps(row) + "\n")
    copies = [c for c in duplicates.find(columns, FIELD) if c.splits or c.classes]
    if copies:
        duplicates.write(staging.pack / duplicates.DUPLICATES_NAME, copies, _keys(columns))
        names.append(duplicates.DUPLICATES_NAME)
    manifest = Manifest(
        format=options.format,
        num_samples=len(columns["label"]),
        fields={FIELD: _field(options.pixels, columns)},
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


def _keys(columns: dict[str, Column]) -> Keys:
    return Keys(columns["key_offset"], columns["keys"], range(len(columns["label"])))


def _field(pixels: PixelOptions, columns: dict[str, Column]) -> Field:
    """How images are stored."""
    if pixels.encode == "raw":
        return Field("array", "|u1", (int(columns["height"][0]), int(columns["width"][0]), 3))
    return Field(odd=pixels.rule._asdict() if f"{FIELD}.odd" in columns else None)


def _save_segments(staging: Staging, done: Sequence[Done]) -> list[str]:
    """The offsets of seekable JPEGs, which are too many to hold in memory, into the index."""
    num_segments = np.concatenate([staging.segments(i)[0] for i in range(len(done))])
    bounds = np.concatenate([[0], np.cumsum(num_segments)])
    segments = (staging.segments(i)[1] for i in range(len(done)))
    return [
        save_pieces(staging.pack, f"{FIELD}.segment_offset", len(bounds), [bounds]),
        save_pieces(staging.pack, f"{FIELD}.segments", int(bounds[-1]), segments),
    ]


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
    if rows["odd"].any():
        columns[f"{FIELD}.odd"] = rows["odd"]
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
        "part": asdict(options.part),
        "new_splits": None if options.new_splits is None else asdict(options.new_splits),
        "drop_duplicates": options.drop_duplicates,
        "pixels": options.pixels.describe(),
        "shard_bytes": options.shard_bytes,
        "left_out": dict(sorted(listing.left_out.items())),
        "rejected": layout.count(reject.reason for reject in rejected),
        "changed": _changed(done),
        "warnings": layout.count(warning for shard in done for _, warning in shard.warnings),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _changed(done: Sequence[Done]) -> dict[str, int]:
    """What was done to files, and to how many."""
    total: Counter[str] = Counter()
    for shard in done:
        total.update(shard.changes)
    return dict(sorted(total.items()))


_LIBRARIES = ("h5py", "lmdb", "numpy", "opencv-python-headless", "pillow", "simplejpeg", "xxhash")


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
    copies = duplicates.find(columns, FIELD)
    num_dropped = len(rejected) - len(_unwanted(rejected))
    left_out = listing.left_out + Counter({duplicates.DUPLICATE: num_dropped})
    return Summary(
        path=str(out),
        format=manifest.format,
        num_samples=manifest.num_samples,
        num_classes=len(plan.classes),
        num_shards=len(manifest.shards),
        pack_bytes=sum(file.num_bytes for file in files),
        content_digest=manifest.content_digest,
        by_split={name: int(counts[i + 1]) for i, name in enumerate(plan.splits)},
        rejected=layout.count(reject.reason for reject in _unwanted(rejected)),
        left_out=dict(sorted(left_out.items())),
        changed=_changed(done),
        warnings=layout.count(warning for shard in done for _, warning in shard.warnings),
        notes=plan.warnings + duplicates.notes(copies, _keys(columns)),
        seconds=time.monotonic() - started,
        num_resumed=num_resumed,
        rejected_files=[reject.key for reject in _unwanted(rejected)[:10]],
    )
