"""The unpublished pack: what is finished is on disk and recorded, the rest can be done again.

    NAME.partial/lock            held while a run works here
    NAME.partial/plan.json       what is being packed and how; a run with another plan is refused
    NAME.partial/done/00000.npz  one a finished shard, written after the shard is on disk
    NAME.partial/pack/           becomes NAME by one rename
    NAME.partial/old/            the pack that it replaces, for the moment between two renames

At every instant NAME is absent, the old pack, or the new one. Guaranteed against kill -9 and a
full disk, and against power loss as far as fsync is.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from readers.checksum import canonical_json
from readers.errors import DestinationError, printable
from readers.manifest import MANIFEST_NAME, PackFile


def row_dtype(fields: Sequence[str]) -> np.dtype[Any]:
    """The columns of a finished shard's record. `entry` is the sample's row in the plan; the
    source's size and time tell on resuming whether a file has changed."""
    columns = [
        ("entry", "<i8"),
        ("width", "<i4"),
        ("height", "<i4"),
        ("orientation", "|u1"),
        ("source_bytes", "<i8"),
        ("source_ns", "<i8"),
    ]
    for field in fields:
        columns += [
            (f"{field}.length", "<i8"),
            (f"{field}.checksum", "V16"),
            (f"{field}.odd", "|u1"),
        ]
    return np.dtype(columns)


class Rejected(NamedTuple):
    """An entry of the plan that did not become a sample, and its file's stamp."""

    entry: int
    reason: str
    detail: str
    source_bytes: int
    source_ns: int


@dataclass(frozen=True)
class Done:
    """A finished shard: the plan's entries [start, stop) it covers, its rows and rejects."""

    start: int
    stop: int
    files: tuple[PackFile, ...]
    rows: npt.NDArray[Any]
    rejected: list[Rejected]
    warnings: list[tuple[int, str]]  # (entry, warning)
    changes: Mapping[str, int]  # what was done to files -> to how many

    def stamps(self) -> list[tuple[int, int, int]]:
        """(entry, size, time) of every file the shard covers, to notice a change."""
        columns = ("entry", "source_bytes", "source_ns")
        rows = zip(*(self.rows[name].tolist() for name in columns), strict=True)
        return [*rows] + [(r.entry, r.source_bytes, r.source_ns) for r in self.rejected]


class Staging:
    """The folder NAME.partial, locked for this process."""

    def __init__(self, out: Path, plan: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Open or make the staging folder of `out` for `plan`, a JSON object.

        `overwrite` throws an earlier run's work away if it had another plan; without it that is
        a DestinationError. So is another process at work here, or a folder not to be written.
        """
        self.out = out = _resolved(out)
        self.folder = _folder(out)
        self.pack = self.folder / "pack"
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            _refuse_strangers(self.folder)
            self._lock = (self.folder / "lock").open("a")
        try:
            with writing(self.folder):
                self._acquire()
                self._put_old_back()
                self._adopt(plan, overwrite)
        except BaseException:
            self.close()
            raise

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DestinationError(
                "another dspack is writing this pack", path=self.out, advice="wait for it to end"
            ) from None

    def _put_old_back(self) -> None:
        """Give the old pack its name again where a run was killed between publish()'s renames."""
        is_between = (self.folder / "old").exists() and (self.pack / MANIFEST_NAME).exists()
        if is_between and not os.path.lexists(self.out):
            (self.folder / "old").rename(self.out)
            sync(self.out.parent)

    def _adopt(self, plan: Mapping[str, Any], overwrite: bool) -> None:
        path, text = self.folder / "plan.json", canonical_json(plan)
        before = _check_plan(self.folder, plan, overwrite)
        if before != text:
            self._remove("done", "pack")
            write_durably(path, text)
        (self.folder / "done").mkdir(exist_ok=True)
        (self.pack / "shards").mkdir(parents=True, exist_ok=True)

    # Finished shards

    def finished(self) -> list[Done]:
        """The shards that an earlier run finished, in order, each with its files in place."""
        done: list[Done] = []
        while (record := self._read_record(len(done))) is not None:
            done.append(record)
        return done

    def record(
        self, number: int, done: Done, segments: Sequence[npt.NDArray[Any] | None] = ()
    ) -> None:
        """Put shard `number` and its record on disk: from now on it is finished.

        `segments`: for every row the offsets of a seekable JPEG, if it is one. They stay on disk.
        """
        for file in done.files:
            sync(self.pack / file.name)
        sync(self.pack / "shards")
        about = {
            "start": done.start,
            "stop": done.stop,
            "files": [[f.name, f.num_bytes, f.checksum] for f in done.files],
            "rejected": done.rejected,
            "warnings": done.warnings,
            "changes": done.changes,
        }
        buffer = io.BytesIO()
        np.savez(
            buffer,
            allow_pickle=False,
            rows=done.rows,
            about=np.frombuffer(json.dumps(about).encode("ascii"), np.uint8),
            **_joined(segments),
        )
        write_durably(self._record_path(number), buffer.getvalue())

    def segments(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """What record() was given for shard `number`: how many offsets each row has, and all."""
        with np.load(self._record_path(number), allow_pickle=False) as record:
            if "segments" in record:
                return record["num_segments"], record["segments"]
            return np.zeros(len(record["rows"]), "<i8"), np.zeros(0, "<u4")

    def keep(self, done: Sequence[Done]) -> None:
        """Remove the records and files of all shards but the first ones, `done`.

        The others will be packed again; a record must not outlive its shard's files, nor a file
        of an unfinished shard get into the pack.
        """
        records = {self._record_path(number).name for number in range(len(done))}
        files = {file.name for shard in done for file in shard.files}
        for path in (self.folder / "done").iterdir():
            if path.name not in records:
                path.unlink()
        for path in (self.pack / "shards").iterdir():
            if f"shards/{path.name}" not in files:
                path.unlink()

    def _record_path(self, number: int) -> Path:
        return self.folder / "done" / f"{number:05d}.npz"

    def _read_record(self, number: int) -> Done | None:
        path = self._record_path(number)
        if not path.exists():
            return None
        try:
            with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as record:
                about = json.loads(record["about"].tobytes())
                rows = record["rows"]
        except (ValueError, KeyError, EOFError, BadZipFile):  # not by us, nor by a crash
            return None
        done = Done(
            about["start"],
            about["stop"],
            tuple(PackFile(*file) for file in about["files"]),
            rows,
            [Rejected(*reject) for reject in about["rejected"]],
            [tuple(warning) for warning in about["warnings"]],
            about["changes"],
        )
        in_place = all(
            (self.pack / file.name).is_file()
            and (self.pack / file.name).stat().st_size == file.num_bytes
            for file in done.files
        )
        return done if in_place else None

    # Publishing

    def clear_index(self) -> None:
        """Remove the index and the lists of a try that was stopped before it was published: it may
        have had files that this one has not."""
        self._remove("pack/index")
        for path in self.pack.glob("*.jsonl"):
            path.unlink()

    def publish(self, manifest: str) -> None:
        """Write the manifest, the commit record, and give the pack its name."""
        index = self.pack / "index"
        for path in (*index.iterdir(), index, *self.pack.glob("*.jsonl"), self.pack):
            sync(path)
        write_durably(self.pack / MANIFEST_NAME, manifest.encode("ascii"))
        if self.out.exists():
            self._remove("old")  # a killed run's; this one replaces what it held
            self.out.rename(self.folder / "old")
        self.pack.rename(self.out)
        sync(self.out.parent)
        self.discard()

    def discard(self) -> None:
        """Remove the staging folder, plan.json after all that it stands for."""
        self._remove("old", "done", "pack")
        shutil.rmtree(self.folder)
        self.close()

    def _remove(self, *names: str) -> None:
        for name in names:
            if (self.folder / name).exists():
                shutil.rmtree(self.folder / name)

    def close(self) -> None:
        """Let another process work here; what is finished stays."""
        self._lock.close()


def check_unfinished(out: Path, plan: Mapping[str, Any], *, overwrite: bool) -> None:
    """Raise the DestinationError that Staging would raise for what an earlier run, or somebody
    else, has left beside `out`; changes nothing."""
    folder = _folder(_resolved(out))
    if os.path.lexists(folder):
        with writing(folder):
            _refuse_strangers(folder)
            _check_plan(folder, plan, overwrite)


def _resolved(out: Path) -> Path:
    """`out` by a path that does not lead through it: publishing takes its name away for a moment,
    and whoever runs this may stand in it."""
    return Path(os.path.realpath(out.parent), out.name)


def _folder(out: Path) -> Path:
    return out.with_name(out.name + ".partial")


def _refuse_strangers(folder: Path) -> None:
    """Raise, before the folder is touched, where it holds anything but a run's files."""
    names = {path.name for path in folder.iterdir()}
    ours = {"lock", "plan.json.new"}
    if "plan.json" in names:  # the first file of a run to come, and the last one to go
        ours |= {"plan.json", "done", "pack", "old"}
    if strangers := sorted(names - ours):
        raise DestinationError(
            f"holds {printable(strangers[0])}, and no dspack run",
            path=folder,
            advice="move it away",
        )


def _check_plan(folder: Path, plan: Mapping[str, Any], overwrite: bool) -> bytes | None:
    """The plan of an unfinished run, if there is one; raises where it is another one."""
    path = folder / "plan.json"
    before = path.read_bytes() if path.exists() else None
    if before is not None and before != canonical_json(plan) and not overwrite:
        raise DestinationError(
            f"an unfinished run is here that {_difference(before, plan)}",
            path=folder,
            advice="repeat that run's command to finish it, or add --overwrite to start anew",
        )
    return before


def _joined(segments: Sequence[npt.NDArray[Any] | None]) -> dict[str, npt.NDArray[Any]]:
    """The offsets of all rows one after another, and how many each has; nothing without any."""
    found = [s.astype("<u4") for s in segments if s is not None]
    if not found:
        return {}
    num_segments = [0 if s is None else len(s) for s in segments]
    return {"num_segments": np.array(num_segments, "<i8"), "segments": np.concatenate(found)}


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file by new content: after a crash it is the old one or the new one, whole."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fingerprint(lines: Sequence[str]) -> str:
    """The SHA-256, in hex, of a list of names."""
    text = "".join([f"{line}\0" for line in lines])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()  # of any names


def _difference(before: bytes, plan: Mapping[str, Any]) -> str:
    """How an earlier run's plan differs from `plan`, for a person."""
    try:
        old = json.loads(before)
        changed = sorted(key for key in {*old, *plan} if old.get(key) != plan.get(key))
    except (ValueError, TypeError):
        return "this version cannot read"
    if changed == ["listing"]:
        return (
            "packed another list of files, labels or splits (files came or went, or other options "
            "choose them)"
        )
    shown = [
        f"{key} {old.get(key)!r}, not {plan.get(key)!r}" for key in changed[:3] if key != "listing"
    ]
    return "has " + ", ".join(shown)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Says that a folder cannot be written where the system fails. What fails outside of this is
    the source, or whoever watches."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise DestinationError(f"cannot be written: {reason}", path=folder) from error
