"""How fast a pack feeds training on this machine, what limits it, and what would help."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from readers.augment import shorter_side
from readers.errors import DamagedPack, DestinationError, DspackError, MissingDependency
from readers.pack import Pack

from .contenders import CONTENDERS, NEEDS, READY, Measured, Task

TITLES = {
    "decode": "decoding in memory, one thread",
    "read": "reading only, one thread",
    "loader": "Loader",
    "data_loader": "pack + DataLoader",
    "folder": "folder + DataLoader",
    "dali": "DALI",
}
_NEAR = 0.8  # a share of a limit that counts as having reached it


@dataclass
class Report:
    """`load`: the machine's load average before; `warm` and `cold`: what each contender reached;
    `skipped`: why others were left out; `limit`: what holds the Loader back, one of decoder, disk,
    memory, Python, or unclear."""

    pack: str
    num_samples: int
    stored_bytes: int
    memory_bytes: int
    processors: int
    load: float
    threads: int
    size: int
    warm: dict[str, Measured] = field(default_factory=dict)
    cold: dict[str, Measured] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    limit: str = ""
    reason: str = ""
    advice: list[str] = field(default_factory=list)


def bench(
    path: Path,
    against: Path | None = None,
    *,
    split: str | None = None,
    batch_size: int = 64,
    size: int = 224,
    threads: int = 2,
    seconds: float = 0.5,
    cold: bool = False,
    progress: Callable[[str], None] = lambda title: None,
) -> Report:
    """Measure the pack at `path`, beside the class folder `against` that it was made from.

    Every contender runs for `seconds`, and half as long to warm up; with `cold` a second time
    after the page cache let go of the data. `progress` is told what happens next. Raises NotAPack,
    DamagedPack, DspackError where one fails.
    """
    pack = Pack(path, split)
    if len(pack) == 0:
        raise DspackError("there are no samples to read", path=path)
    batch_size = min(batch_size, len(pack))
    report = Report(
        pack=str(pack.path),
        num_samples=len(pack),
        stored_bytes=int(_column(pack, "image.length").sum()),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        processors=len(os.sched_getaffinity(0)),
        load=os.getloadavg()[0],
        threads=threads,
        size=size,
    )
    folder = None if against is None else str(against.absolute())
    task = Task(str(pack.path), folder, split, batch_size, size, threads, seconds, False)
    names = list(_wanted(report, pack, folder))
    progress(f"starting {len(names)} processes")
    with ExitStack() as stack:
        warm = {name: stack.enter_context(Contender(name, task)) for name in names}
        for contender in warm.values():
            contender.wait()
        for number, name in enumerate(names, 1):
            progress(f"measuring {number} of {len(names)}: {TITLES[name]}")
            report.warm[name] = warm[name].measure()
    for name in names if cold else []:
        if name != "decode":
            progress(f"measuring from the disk: {TITLES[name]}")
            with Contender(name, replace(task, cold=True)) as contender:
                contender.wait()
                evict([pack.path] if name != "folder" else [Path(folder or "")])
                report.cold[name] = contender.measure()
    report.limit, report.reason = limit_of(report)
    report.advice = list(advice(report, pack))
    return report


def _wanted(report: Report, pack: Pack, folder: str | None) -> Iterator[str]:
    keeps = pack.manifest.fields["image"].odd is not None or pack.pixel_dtype != np.uint8
    for name in CONTENDERS:
        missing = [module for module in NEEDS.get(name, []) if not _importable(module)]
        if name == "folder" and folder is None:
            report.skipped[name] = "pass --against FOLDER, the images that were packed"
        elif missing:
            report.skipped[name] = f"{missing[0]} is not installed"
        elif name == "dali" and keeps:
            report.skipped[name] = "DALI cannot decode what --keep-bytes or --depth keep stores"
        else:
            yield name


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of a package that would hold it
        return False


class Contender:
    """A contender's process, from its start to its end."""

    def __init__(self, name: str, task: Task) -> None:
        command = [sys.executable, "-m", "packer.contenders", name, json.dumps(asdict(task))]
        self._name, self._task = name, task
        # A pipe could fill while nobody reads it.
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )

    def wait(self) -> None:
        """Until it has imported and opened what it needs. Raises DspackError where it fails."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip() == READY:
                return
        raise self._failed()

    def measure(self) -> Measured:
        """Let it run, and end. Raises DspackError with its last words where it fails."""
        out, _ = self._process.communicate("begin\n")
        if self._process.returncode:
            raise self._failed()
        return Measured(**json.loads(out.splitlines()[-1]))

    def _failed(self) -> DspackError:
        self._process.wait()
        self._stderr.seek(0)
        words = (self._stderr.read().strip().splitlines() or ["it ended without a word"])[-1]
        # Its last words are a traceback's, which begin with the error's class.
        kind = DamagedPack if words.startswith("readers.errors.Damaged") else DspackError
        return kind(f"{TITLES[self._name]} failed: {words}", path=self._task.pack)

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()  # where it has not ended by itself
        self._process.communicate()
        self._stderr.close()


def evict(folders: Sequence[Path]) -> None:
    """Ask the kernel to forget what it holds of the folders' files; of those in use it may not."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.fdatasync(descriptor)  # it keeps what is not on the disk yet
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


# What follows from the figures


def limit_of(report: Report) -> tuple[str, str]:
    """What holds the Loader back, and the figures that say so."""
    ours = report.warm["loader"]
    if report.stored_bytes > report.memory_bytes:
        return "memory", (
            f"the pack has {_gb(report.stored_bytes)}, this machine {_gb(report.memory_bytes)} of "
            "memory: every epoch reads it from the disk"
        )
    if "loader" in report.cold and report.cold["loader"].speed < _NEAR * ours.speed:
        share = report.cold["loader"].speed / ours.speed
        return "disk", f"from the disk the Loader reaches {share:.0%} of what it does from memory"
    workers = min(report.threads, report.processors)
    decoding = report.warm["decode"].speed * workers
    share = ours.speed / decoding
    if share >= _NEAR:
        return "decoder", f"the Loader reaches {share:.0%} of {workers} threads that only decode"
    if ours.processors < _NEAR:  # Python's lock alone would let it use a whole one
        return "unclear", (
            f"the Loader had {ours.processors:.1f} of {workers} processors: other programs, or a "
            "limit, kept the rest from it"
        )
    return "Python", (
        f"the Loader reaches {share:.0%} of {workers} threads that only decode, with "
        f"{ours.processors:.1f} processors busy: the rest is Python's work for each sample"
    )


def advice(report: Report, pack: Pack) -> Iterator[str]:
    """What would help, by the figures."""
    ours = report.warm["loader"].speed
    if report.limit == "unclear":
        yield "measure again when the processors are free"
    elif report.load > report.processors / 2:
        yield f"measure again: the machine was busy with something else (load {report.load:.1f})"
    stored = pack.manifest.fields["image"]
    if report.limit in ("decoder", "Python") and report.threads < report.processors:
        yield f"threads: {report.threads} of {report.processors} processors are used; try them all"
    shorter = np.minimum(_column(pack, "width"), _column(pack, "height"))
    median = float(np.median(shorter))
    resize = shorter_side(report.size)
    if (
        stored.kind == "encoded"
        and report.limit not in ("Python", "unclear")
        and median > 1.5 * resize
    ):
        yield (
            f"pack with --resize {resize}: the images' shorter side is {median:.0f} pixels, so "
            f"{(median / resize) ** 2:.0f} times as many are read and decoded as training looks at"
        )
    raw_bytes = report.num_samples * report.size**2 * 3
    if stored.kind == "encoded" and report.limit == "decoder":
        if raw_bytes < report.memory_bytes / 2:
            yield (
                f"pack with --resize {report.size} --resize-mode exact --encode raw, if flipping "
                f"is augmentation enough: {_gb(raw_bytes)}, which fits into memory, no decoding"
            )
        if "image.segments" not in pack.index:
            yield "pack with --seekable: of a JPEG only the part of a crop is decoded then"
    if report.limit in ("disk", "memory"):
        yield 'pass shuffle="blocks" to the Loader: reads stay close together'
    for name in ("folder", "data_loader"):
        if name in report.warm:
            yield f"the Loader is {ours / report.warm[name].speed:.1f} times {TITLES[name]}"
    yield (
        f"a model that trains on fewer than {ours:,.0f} images a second never waits for this "
        "Loader; examples/profile_input.py tells how yours does"
    )


def _column(pack: Pack, name: str) -> Any:
    return pack.index[name][np.asarray(pack.rows)]


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


# Showing


def table(report: Report) -> list[str]:
    """The figures as lines of text."""
    lines = [
        f"{report.pack}: {report.num_samples} samples, {_gb(report.stored_bytes)}, "
        f"{report.threads} threads on {report.processors} processors",
        "",
        f"{'':<34}{'images/s':>10}{'x decode':>10}{'first':>9}{'busy':>6}"
        f"{'private':>10}{'shared':>10}",
    ]
    decoding = report.warm["decode"].speed
    for suffix, measured in (("", report.warm), (", cold", report.cold)):
        for name, m in measured.items():
            lines.append(
                f"{TITLES[name] + suffix:<34}{m.speed:>10,.0f}{m.speed / decoding:>10.2f}"
                f"{m.first_batch:>7.2f} s{m.processors:>6.1f}"
                f"{m.private_bytes / 1e6:>7,.0f} MB{m.shared_bytes / 1e6:>7,.0f} MB"
            )
    lines += [f"{TITLES[name] + ':':<34}left out: {why}" for name, why in report.skipped.items()]
    article = "" if report.limit in ("Python", "unclear") else "the "
    lines += ["", f"limit: {article}{report.limit}"]
    lines += [f"  {report.reason}", "advice:", *(f"  {text}" for text in report.advice)]
    return lines


def check_plot(out: Path) -> None:
    """Raise DestinationError or MissingDependency if plot() could not write `out`, or not draw."""
    if not os.access(out.absolute().parent, os.W_OK):
        raise DestinationError("its folder is missing, or may not be written", path=out)
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            f"--plot draws with matplotlib, which cannot be imported ({error})",
            advice="pip install matplotlib",
        ) from error


def plot(report: Report, out: Path) -> None:
    """Bars of the speeds. Raises as check_plot."""
    check_plot(out)
    from matplotlib.figure import Figure

    names = [name for name in report.warm if name != "read"]  # its bar would dwarf the others
    figure = Figure(figsize=(8, 0.6 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots()
    bars = axes.barh([TITLES[name] for name in names], [report.warm[name].speed for name in names])
    axes.bar_label(bars, fmt="{:,.0f}", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("images a second, warm page cache")
    axes.set_title(f"{Path(report.pack).name}, {report.threads} threads")
    figure.savefig(out)
