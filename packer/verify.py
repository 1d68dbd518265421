"""Prove that a pack is whole, and name all that is not. Damage is a finding, not an exception."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from readers import formats
from readers.boxes import Boxes
from readers.checksum import checksum, content_digest, file_checksum
from readers.errors import DamagedPack, NoPermission
from readers.index import Column, Keys, map_columns
from readers.manifest import IMAGE, MANIFEST_NAME, Manifest, PackFile, Shard
from readers.pack import Pack, check_readable
from readers.seekable import segment_offsets

from .columns import broken_ranges
from .examine import examine_apart

Progress = Callable[[int, int, int], None]  # steps done, bytes since, steps in all
_DECODE_ROWS = 64  # samples a thread decodes between two looks at the progress bar


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: in which file of the pack, or with which sample."""

    reason: str
    path: str | None = None
    index: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        sample = None if self.index is None else f"sample {self.index}, key {self.key!r}"
        return ": ".join(filter(None, (self.path, sample, self.reason)))


@dataclass
class Report:
    """What verify looked at and found. `num_bytes` counts the shards' files."""

    path: str
    checked: str
    format: str | None = None
    num_samples: int = 0
    num_bytes: int = 0
    content_digest: str | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings


def verify(
    path: Path,
    *,
    quick: bool = False,
    decode_images: bool = False,
    threads: int,
    progress: Progress = lambda done, num_bytes, total: None,
) -> Report:
    """Check the pack at `path` to its end.

    Always: the manifest's own checksum, every file's presence and size, and what the index
    promises. Unless `quick`: every byte of every file against the manifest's checksums, every
    sample's checksum through the format's own library, and the content digest. `decode_images`
    also decodes every image and compares its size. Raises NotAPack when there is no pack.
    """
    report = Report(str(path), "structure" if quick else "images" if decode_images else "samples")
    try:
        manifest = Manifest.load(path)
    except DamagedPack as error:
        report.findings.append(Finding(error.reason, MANIFEST_NAME))
        return report
    report.format, report.num_samples = manifest.format, manifest.num_samples
    report.content_digest = manifest.content_digest
    report.num_bytes = sum(f.num_bytes for shard in manifest.shards for f in shard.files)
    _Check(path, manifest, report, threads, progress).run(quick, decode_images)
    return report


class _Seen:
    """The checksums of files whose bytes are shown to observe() in order."""

    def __init__(self) -> None:
        self._digests: dict[str, xxhash.xxh3_128] = {}
        self._num_bytes: dict[str, int] = {}

    def observe(self, file_name: str, data: memoryview) -> None:
        self._digests.setdefault(file_name, xxhash.xxh3_128()).update(data)
        self._num_bytes[file_name] = self._num_bytes.get(file_name, 0) + len(data)

    def checksum(self, file: PackFile) -> str | None:
        """The checksum in hex, if all of the file was seen."""
        name = Path(file.name).name
        if self._num_bytes.get(name) != file.num_bytes:
            return None
        return self._digests[name].hexdigest()


class _Check:
    def __init__(
        self, path: Path, manifest: Manifest, report: Report, threads: int, progress: Progress
    ) -> None:
        self._path = path
        self._manifest = manifest
        self._found = report.findings.append
        self._threads = threads
        self._progress = progress
        self._columns: dict[str, Column] | None = None
        self._keys: Keys | None = None

    def run(self, quick: bool, decode_images: bool) -> None:
        self._manifest_is_as_written()
        for file in self._manifest.files:
            if self._file_is_there(file) and not quick:
                self._file_is_same(file)
        self._check_index(quick)
        firsts = np.cumsum([0, *(shard.num_samples for shard in self._manifest.shards)]).tolist()
        shards = list(zip(self._manifest.shards, firsts, strict=False))
        if quick:
            for shard in self._manifest.shards:
                for file in shard.files:
                    self._file_is_there(file)
            return
        with ThreadPoolExecutor(self._threads, thread_name_prefix="verify") as pool:
            intact = self._check_shards(pool, shards, decode_images)
            if decode_images and self._columns is not None:
                self._decode(
                    pool, [pair for pair, whole in zip(shards, intact, strict=True) if whole]
                )

    # Files

    def _manifest_is_as_written(self) -> None:
        """Its checksum is of what it says, and does not see a space that became another."""
        text = (self._path / MANIFEST_NAME).read_bytes()
        if text != json.dumps(json.loads(text), indent=1).encode("ascii") + b"\n":
            self._found(Finding("says the same, but its text was changed", MANIFEST_NAME))

    def _file_is_there(self, file: PackFile) -> bool:
        path = self._path / file.name
        try:
            size = path.stat().st_size
        except PermissionError:
            raise NoPermission(path) from None
        except OSError as error:
            self._found(Finding(f"cannot be read: {error.strerror}", file.name))
            return False
        if size != file.num_bytes:
            self._found(Finding(f"has {size} bytes, not {file.num_bytes}", file.name))
            return False
        check_readable(path)
        return True

    def _file_is_same(self, file: PackFile, seen: _Seen | None = None) -> bool:
        try:
            now = seen.checksum(file) if seen is not None else None
            same = (now or file_checksum(self._path / file.name)) == file.checksum
            reason = "is not what was packed: its checksum differs"
        except OSError as error:
            same, reason = False, f"cannot be read: {error.strerror}"
        if not same:
            self._found(Finding(reason, file.name))
        return same

    # Index

    def _check_index(self, quick: bool) -> None:
        manifest = self._manifest
        sizes = [shard.num_samples for shard in manifest.shards]
        if sum(sizes) != manifest.num_samples or min(sizes, default=1) < 1:
            reason = f"its shards hold {sum(sizes)} samples, not {manifest.num_samples}"
            self._found(Finding(reason, MANIFEST_NAME))
            return
        try:
            listed = {file.name for file in manifest.files}
            columns = map_columns(self._path, manifest.num_samples, list(manifest.fields), listed)
        except DamagedPack as error:
            self._found(Finding(error.reason, str(Path(str(error.path)).relative_to(self._path))))
            return
        broken = list(_broken_promises(manifest, columns))
        for name, reason in broken:
            self._found(Finding(reason, f"index/{name}.npy"))
        if any(name in ("keys", "key_offset") for name, _ in broken):
            return
        self._columns = columns
        self._keys = Keys(columns["key_offset"], columns["keys"], range(manifest.num_samples))
        digest = content_digest(manifest.classes, manifest.splits, columns, list(manifest.fields))
        if not quick and digest != manifest.content_digest:
            self._found(Finding("the content digest of the index differs from the manifest's"))

    # Shards

    def _check_shards(
        self, pool: ThreadPoolExecutor, shards: list[tuple[Shard, int]], decode_images: bool
    ) -> list[bool]:
        """Check every shard; returns which of them hold the very bytes that were packed."""
        num_done, intact = 0, []
        self._progress(0, 0, self._manifest.num_samples)
        work = pool.map(lambda pair: self._check_shard(pair[0], pair[1], decode_images), shards)
        for (shard, _), whole in zip(shards, work, strict=True):
            num_done += shard.num_samples
            num_bytes = sum(file.num_bytes for file in shard.files)
            self._progress(num_done, num_bytes, self._manifest.num_samples)
            intact.append(whole)
        return intact

    def _check_shard(self, shard: Shard, first: int, decode_images: bool) -> bool:
        # The library, which may crash on damaged structures, is let loose in this process only
        # on files that are what they were.
        there = [self._file_is_there(file) for file in shard.files]
        module = formats.load(self._manifest.format)
        findings: list[Finding] = []
        if all(there) and self._columns is not None and module.READS_WHOLE_FILES:
            seen = _Seen()  # one pass for the files' checksums and the samples'
            findings = list(self._scan(module, shard, first, seen.observe))
            same = [self._file_is_same(file, seen) for file in shard.files]
            intact = all(same)
        else:
            same = [self._file_is_same(file) for file in shard.files if all(there)]
            intact = all(there) and all(same)
            if intact and self._columns is not None:
                findings = list(self._scan(module, shard, first))
        if self._columns is None:
            return False
        if intact:
            for finding in findings:
                self._found(finding)
        elif all(os.path.exists(self._path / file.name) for file in shard.files):
            for row, reason in examine_apart(self._path, shard.name, first, decode_images):
                self._sample_found(row, reason)
        else:
            last = first + shard.num_samples - 1
            self._found(Finding(f"samples {first} to {last} are lost", f"shards/{shard.name}"))
        return intact

    def _scan(
        self,
        module: formats.Format,
        shard: Shard,
        first: int,
        observe: formats.Observe = formats.ignore,
    ) -> Iterator[Finding]:
        """Compare every value that the library finds with the index."""
        assert self._columns is not None
        folder, fields = self._path / "shards", list(self._manifest.fields)
        rows = slice(first, first + shard.num_samples)
        expected = {f: self._columns[f"{f}.checksum"][rows].tobytes() for f in fields}
        lengths = {f: self._columns[f"{f}.length"][rows].tolist() for f in fields}
        num_values = 0
        try:
            for position, name, value in module.scan(folder, shard.name, fields, observe):
                num_values += 1
                if position >= shard.num_samples:
                    continue
                if checksum(value) != expected[name][16 * position : 16 * position + 16]:
                    yield self._of_sample(first + position, f"the checksum of its {name} differs")
                elif len(value) != lengths[name][position]:
                    reason = f"its {name} has {len(value)} bytes, not {lengths[name][position]}"
                    yield self._of_sample(first + position, reason)
        except DamagedPack as error:
            yield Finding(error.reason, f"shards/{shard.name}")
            return
        if num_values != shard.num_samples * len(fields):
            reason = f"holds {num_values} values, not {shard.num_samples * len(fields)}"
            yield Finding(reason, f"shards/{shard.name}")

    def _sample_found(self, row: int, reason: str) -> None:
        self._found(self._of_sample(row, reason))

    def _of_sample(self, row: int, reason: str) -> Finding:
        assert self._keys is not None
        return Finding(reason, index=row, key=self._keys[row])

    # Images

    def _decode(self, pool: ThreadPoolExecutor, shards: list[tuple[Shard, int]]) -> None:
        """Decode every image of the intact shards."""
        pack = Pack(self._path, check=False)
        batches = [
            range(start, min(start + _DECODE_ROWS, first + shard.num_samples))
            for shard, first in shards
            for start in range(first, first + shard.num_samples, _DECODE_ROWS)
        ]
        work = pool.map(lambda rows: [(row, decode_problem(pack, row)) for row in rows], batches)
        num_done, num_total = 0, sum(map(len, batches))
        self._progress(0, 0, num_total)
        for rows, problems in zip(batches, work, strict=True):
            num_done += len(problems)
            num_bytes = int(pack.index["image.length"][rows.start : rows.stop].sum())
            self._progress(num_done, num_bytes, num_total)
            for row, problem in problems:
                if problem is not None:
                    self._sample_found(row, problem)


def decode_problem(pack: Pack, row: int) -> str | None:
    """Why the image of a row, or a mask, does not decode to the size the index states, or a text
    does not decode; None if all do."""
    index = pack.index
    try:
        image = pack.image(row)
        values = {name: pack.field(row, name) for name in pack.manifest.fields if name != IMAGE}
        segments = pack.segments(row)
        found = None if segments is None else segment_offsets(pack.read(row))
    except DamagedPack as error:
        return error.reason
    stated = (int(index["height"][row]), int(index["width"][row]), 3)
    if image.shape != stated:
        return f"the image decodes to {image.shape}, the index states {stated}"
    for name, value in values.items():
        is_mask = pack.manifest.fields[name].kind == "mask" and value is not None
        if is_mask and value.shape[:2] != stated[:2]:
            return f"the {name} decodes to {value.shape}, the index states {stated[:2]}"
        if pack.manifest.fields[name].kind == "boxes" and (
            problem := _boxes_problem(value, stated, pack.manifest.fields[name].classes)
        ):
            return f"the {name}: {problem}"
    if segments is not None and not np.array_equal(segments, [] if found is None else found):
        return "its segments are not where the index places them"
    return None


def _boxes_problem(
    boxes: Boxes, shape: tuple[int, ...], classes: Sequence[str] | None
) -> str | None:
    """What is wrong with the boxes in an image of this shape."""
    low, high, ids = boxes[:, :2], boxes[:, 2:4], boxes[:, 4]
    if not np.all((low >= 0) & (low < high) & (high <= (shape[1], shape[0]))):
        return f"one has no area within the image, which is {shape[1]} x {shape[0]}"
    if not np.all((ids >= 0) & (ids == np.floor(ids)) & (ids < (len(classes or ()) or np.inf))):
        return "one has a class that does not exist"
    return None


def _broken_promises(manifest: Manifest, columns: dict[str, Column]) -> Iterator[tuple[str, str]]:
    """(column, what is wrong with it) for all that the format promises of the index."""
    sizes = [shard.num_samples for shard in manifest.shards]
    positions = np.concatenate([np.arange(size) for size in [*sizes, 0]])
    if not np.array_equal(columns["shard"], np.repeat(np.arange(len(sizes)), sizes)):
        yield "shard", "samples are not in the order of the shards"
    if not np.array_equal(columns["position"], positions):
        yield "position", "samples are not in the order of their shard"
    for name in manifest.fields:
        length, offset = columns[f"{name}.length"], columns[f"{name}.offset"]
        before = np.cumsum(length) - length
        starts = before[np.cumsum([0, *sizes])[:-1]] if len(length) else before
        if not np.array_equal(offset, before - np.repeat(starts, sizes)):
            yield f"{name}.offset", "offsets are not the sums of the lengths before"
        wrong = length < (1 if name == IMAGE else 0)
        if np.any(wrong):
            yield f"{name}.length", f"sample {int(np.argmax(wrong))} has no bytes"
        bounds = columns.get(f"{name}.segment_offset")
        if bounds is not None:
            num_segments = len(columns.get(f"{name}.segments", []))
            if bounds[0] != 0 or bounds[-1] != num_segments or np.any(np.diff(bounds) < 0):
                yield f"{name}.segment_offset", "segments are missing or not tiled"
    yield from broken_ranges(manifest, columns)
    bounds = columns["key_offset"]
    if bounds[0] != 0 or bounds[-1] != len(columns["keys"]) or np.any(np.diff(bounds) <= 0):
        yield "key_offset", "keys are empty or do not tile the column keys"
    elif len(set(Keys(bounds, columns["keys"], range(len(bounds) - 1)))) != len(bounds) - 1:
        yield "keys", "a key occurs twice"
