"""The command line: arguments, progress, printing, exit codes. No logic."""

from __future__ import annotations

import io
import json
import math
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from readers import formats
from readers.errors import DspackError, printable
from readers.version import __version__

from .images.pixels import PixelOptions
from .pixel_arguments import pixel_options
from .plan.layout import LAYOUTS
from .progress import ProgressBar, ScanningBar
from .sources import KINDS

if TYPE_CHECKING:
    from .annotations import BoxesOption
    from .fields import Pattern

EXIT_DAMAGE, EXIT_REJECTS = 1, 3
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141  # 128 + SIGINT and SIGPIPE, as a shell has it
_LISTED = 20  # lines of findings or rejects on a terminal; --json and rejected.jsonl have all


class ByteSize(click.ParamType[int]):
    """A number of bytes with an optional unit: 512MiB, 1GB, 65536."""

    name = "size"
    _UNITS = {"": 1, "b": 1} | {
        prefix + suffix: base**power
        for power, prefix in enumerate("kmgt", 1)
        for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([a-z]*)\s*", value.lower())
        if match is None or match[2] not in self._UNITS:
            self.fail(f"{value!r} is not a size like 512MiB, 1GB or 65536", param, ctx)
        num_bytes = float(match[1]) * self._UNITS[match[2]]
        if not 1 <= num_bytes < 2**63:
            self.fail("a size is at least one byte, and less than 8192 PiB", param, ctx)
        return int(num_bytes)


class Seconds(click.FloatRange):
    """A time that ends."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # it is in every range
            self.fail("nan is no time", param, ctx)
        return seconds


class Regex(click.ParamType[str]):
    """A regular expression that compiles."""

    name = "regex"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            re.compile(value)
        except re.error as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)
        return str(value)


class Splits(click.ParamType[Any]):
    """Names of splits to take, `train,val`, or shares of splits to make, `train=0.9,val=0.1`."""

    name = "splits"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        parts = [part.strip().partition("=") for part in str(value).split(",")]
        names = [name for name, _, _ in parts]
        if not all(names) or len(set(names)) < len(names):
            self.fail(f"{value!r} names a split twice, or not at all", param, ctx)
        if not any(equals for _, equals, _ in parts):
            return names
        try:
            shares = [float(share) for _, _, share in parts]
        except ValueError:
            self.fail(f"{value!r} is neither NAME,… nor NAME=SHARE,…", param, ctx)
        if not (min(shares) > 0 and abs(sum(shares) - 1) < 1e-6):
            self.fail(f"the shares of {value!r} do not add up to 1", param, ctx)
        return dict(zip(names, shares, strict=True))


class FieldPattern(click.ParamType[Any]):
    """A further field and where its values lie: NAME=PATTERN."""

    name = "field"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .fields import Pattern

        name, equals, pattern = str(value).partition("=")
        if not equals:
            self.fail(f"{value!r} is not NAME=PATTERN, as mask=../masks/{{stem}}.png", param, ctx)
        try:
            return Pattern(name, pattern)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Boxes(click.ParamType[Any]):
    """Annotations: coco=FILE, yolo, yolo=PATTERN, voc or voc=PATTERN."""

    name = "boxes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from .annotations import KINDS, NAME, BoxesOption
        from .fields import Pattern

        kind, equals, where = str(value).partition("=")
        if kind not in KINDS or bool(equals) != bool(where) or (kind == "coco" and not where):
            self.fail(f"{value!r} is not coco=FILE, yolo[=PATTERN] or voc[=PATTERN]", param, ctx)
        if kind == "coco":
            return BoxesOption(kind, (Path(where),))
        try:
            return BoxesOption(kind, pattern=Pattern(NAME, where) if where else None)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Group(click.Group):
    """Turns the product's errors into one sentence and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        _open_closed_streams()
        for stream in (sys.stdout, sys.stderr):  # a terminal need not know every letter
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            return super().invoke(ctx)
        except DspackError as error:
            click.echo(f"dspack: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt as error:
            click.echo("; ".join(["\ndspack: interrupted", *map(str, error.args)]), err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # `dspack info PACK | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(EXIT_BROKEN_PIPE)  # not 0: the exit code that was to come is lost


def _open_closed_streams() -> None:
    """Give back the standard streams that whoever started this closed (`2>&-`), to nowhere.

    A file of the pack would take the place of one, and libraries write their warnings into it.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="dspack")
def main() -> None:
    """Pack an image dataset once, then feed training at the speed of the decoder.

    \b
    dspack convert ./imgs --to lmdb        pack a class folder
    dspack verify imgs.lmdb                prove that the pack is whole
    dspack info imgs.lmdb                  what is in it
    dspack bench imgs.lmdb                 how fast it feeds training here
    """


def _default_threads() -> int:
    return len(os.sched_getaffinity(0))


def threads_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--threads; `what` they do."""
    return click.option(
        "--threads",
        type=click.IntRange(1),
        default=_default_threads,
        show_default="the processors",
        help=what,
    )


io_threads_option = click.option(
    "--io-threads",
    metavar="N",
    type=click.IntRange(1, 1024),
    help="Threads that read SRC; each checks what it has read. Default: found while running, few "
    "on a warm cache, up to 64 where reads take long. Say how many where that goes wrong: 1 for a "
    "spinning disk whose heads should not jump, or --io-threads 128 for a network far away.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@main.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "format_name",
    required=True,
    type=click.Choice(formats.names()),
    help="The storage format of the pack.",
)
@click.option(
    "-o",
    "--out",
    metavar="OUT",
    type=click.Path(path_type=Path),
    help="The pack to make. Default: NAME.FORMAT here, or in ~/datasets when here is a "
    "Windows drive.",
)
@click.option(
    "--shard-size",
    type=ByteSize(),
    default="512MiB",
    show_default=True,
    help="Bytes after which a new shard begins: less is repeated after an interruption, more "
    "means fewer files.",
)
@threads_option("Threads that check images. Reading adds its own where a mount is slow.")
@io_threads_option
@click.option(
    "--check",
    type=click.Choice(["decode", "header"]),
    default="decode",
    show_default=True,
    help="How each image is checked: decoded, or only its headers, which misses damage inside.",
)
@click.option(
    "--layout",
    type=click.Choice(LAYOUTS),
    default="auto",
    show_default=True,
    help="How folders are read: as classes, as splits (train, val, test …) of classes, or flat.",
)
@click.option(
    "--classes-from",
    metavar="PACK_OR_TXT",
    type=click.Path(exists=True, path_type=Path),
    help="Use the class map of another pack, or of a text file with a class a line.",
)
@click.option(
    "--from",
    "source_kind",
    type=click.Choice(KINDS),
    help="What SRC is. Default: told from SRC itself.",
)
@click.option(
    "--root",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="What the paths of a list are relative to. Default: the list's folder.",
)
@click.option(
    "--split",
    "splits",
    metavar="NAME[=SHARE],…",
    type=Splits(),
    multiple=True,
    help="Take some splits (val), or make splits by shares (train=0.9,val=0.1), class by class.",
)
@click.option("--seed", default=0, show_default=True, help="Makes other splits by the same shares.")
@click.option(
    "--group-by",
    metavar="REGEX",
    type=Regex(),
    help="Keep samples in one split for which REGEX finds the same in their keys.",
)
@click.option(
    "--classes",
    "only_classes",
    metavar="NAME,…",
    multiple=True,
    help="Take only these classes; labels stay the same. What is not the name of a class is split "
    "at its commas, and the option may be repeated: --classes cat,dog --classes 'crane, bird'.",
)
@click.option("--limit", type=click.IntRange(1), help="Take so many samples, at even distances.")
@click.option(
    "--drop-duplicates",
    is_flag=True,
    help="Leave out a sample whose image has the same bytes as one before it.",
)
@click.option(
    "--field",
    "fields",
    metavar="NAME=PATTERN",
    type=FieldPattern(),
    multiple=True,
    help="Pack a further file with every image: mask=../masks/{stem}.png, caption={stem}.txt. "
    "{stem} and {name} are the image's file name without and with its extension, {folder} its "
    "folder below SRC, and in a list every column may be named. The path is relative to the "
    "image's folder; with {folder} or a column, to SRC.",
)
@click.option(
    "--boxes",
    metavar="KIND[=WHERE]",
    type=Boxes(),
    multiple=True,
    help="Pack the boxes around objects: of coco=FILE, an instances JSON (again for more of them); "
    "of yolo, labels/{stem}.txt for images/{stem}.jpg; of voc, ../Annotations/{stem}.xml. For "
    "yolo and voc another pattern may follow, as for --field: yolo=../boxes/{stem}.txt.",
)
@click.option(
    "--boxes-classes",
    metavar="TXT_OR_YAML",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The classes of boxes in their order: one a line, or `names` as in YOLO's data.yaml. "
    "Default: COCO's categories by id; data.yaml or classes.txt in SRC; all names in VOC's XMLs.",
)
@click.option(
    "--without-field",
    "without_fields",
    metavar="NAME",
    multiple=True,
    help="Leave out a further field that a list, WebDataset shards or a pack have.",
)
@pixel_options
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a pack.")
@click.option("--force", is_flag=True, help="Write to a Windows drive all the same.")
@click.option("--allow-rejects", is_flag=True, help="Exit 0 even if files were rejected.")
@click.option("--strict", is_flag=True, help="Publish nothing, and exit 4, if a file is rejected.")
@click.option("--dry-run", is_flag=True, help="Tell what would be packed; write nothing.")
@json_option
def convert(
    source: Path,
    format_name: str,
    out: Path | None,
    shard_size: int,
    threads: int,
    io_threads: int | None,
    check: str,
    layout: str,
    classes_from: Path | None,
    source_kind: str | None,
    root: Path | None,
    splits: tuple[list[str] | dict[str, float], ...],
    seed: int,
    group_by: str | None,
    only_classes: tuple[str, ...],
    limit: int | None,
    drop_duplicates: bool,
    fields: tuple[Pattern, ...],
    boxes: tuple[BoxesOption, ...],
    boxes_classes: Path | None,
    without_fields: tuple[str, ...],
    overwrite: bool,
    force: bool,
    allow_rejects: bool,
    strict: bool,
    dry_run: bool,
    as_json: bool,
    pixels: PixelOptions,
) -> None:
    """Pack the images of SRC into a new pack.

    SRC is a folder: of class folders (SRC/cat/1.jpg), of splits of them (SRC/train/cat/1.jpg), or
    of images. Or it is such a tree in a tar or zip, WebDataset shards ('imgs-{000..099}.tar'), a
    list (CSV, TSV or JSONL with columns path, label and split), or another pack, whose images are
    copied as they are stored unless options about pixels are given.

    An interrupted run goes on after its last finished shard (--shard-size) when the same command
    is typed again. Damaged files are left out, listed in OUT/rejected.jsonl, and make the exit
    code 3.

    \b
    Examples:
      dspack convert ./imgs --to lmdb
      dspack convert /mnt/c/data/imgs --to memmap -o ~/datasets/imgs.memmap
      dspack convert ./imgs --to hdf5 --dry-run
      dspack convert ./val --to lmdb --classes-from train.lmdb
      dspack convert ./imgs --to memmap --resize 256 --encode jpeg
      dspack convert ./imgs --to memmap --resize 224 --resize-mode exact --encode raw
      dspack convert ./imgs --to lmdb --seekable
      dspack convert imgs.tar.gz --to lmdb --split train=0.9,val=0.1
      dspack convert imgs.lmdb --to hdf5 --split val
      dspack convert ./imgs --to lmdb --field mask=../masks/{stem}.png --field caption={stem}.txt
      dspack convert ./train2017 --to lmdb --boxes coco=annotations/instances_train2017.json
      dspack convert ./coco8 --to memmap --boxes yolo --boxes-classes coco8.yaml
      dspack convert ./VOC2012 --to lmdb --boxes voc
    """
    from .convert import convert as run
    from .destination import default_destination
    from .estimate import estimate
    from .memory import collect_less
    from .options import Options
    from .plan.layout import load_classes
    from .plan.part import Part
    from .plan.split import NewSplits

    out = default_destination(source, format_name) if out is None else out
    classes = None if classes_from is None else tuple(load_classes(classes_from))
    taken = [names for names in splits if isinstance(names, list)]
    made = [shares for shares in splits if isinstance(shares, dict)]
    if len(taken) > 1 or len(made) > 1:
        raise click.UsageError("--split takes splits once, and makes splits once")
    names = [pattern.name for pattern in fields]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.UsageError(f"--field {twice[0]} is given twice")
    if boxes and "boxes" in names:
        raise click.UsageError("--boxes makes the field boxes: give --field boxes another name")
    if group_by is not None and not made:
        raise click.UsageError("--group-by goes with --split NAME=SHARE,…")
    options = Options(
        format_name,
        shard_size,
        check,
        layout,
        classes,
        source_kind=source_kind,
        root=root,
        part=Part(
            splits=tuple(taken[0]) if taken else (),
            classes=only_classes,
            limit=limit,
        ),
        new_splits=NewSplits(tuple(made[0].items()), seed, group_by) if made else None,
        drop_duplicates=drop_duplicates,
        pixels=pixels,
        fields=fields,
        without_fields=without_fields,
        boxes=_boxes_option(boxes, boxes_classes),
    )
    collect_less()
    warnings.filterwarnings("ignore", module=r"PIL\.")  # what it says is in the rejects
    if dry_run:
        with ScanningBar(quiet=as_json) as scanning:
            planned = estimate(
                source,
                out,
                options,
                threads=threads,
                io_threads=io_threads,
                overwrite=overwrite,
                force=force,
                scanning=scanning,
            )
        _print_json(asdict(planned)) if as_json else _print_estimate(asdict(planned))
        return
    with (
        ScanningBar(quiet=as_json) as scanning,
        ProgressBar("convert", quiet=as_json) as progress,
    ):
        summary = run(
            source,
            out,
            options,
            threads=threads,
            io_threads=io_threads,
            overwrite=overwrite,
            force=force,
            strict=strict,
            progress=progress,
            scanning=scanning,
        )
    _print_json(asdict(summary)) if as_json else _print_summary(asdict(summary))
    if summary.rejected and not allow_rejects:
        click.get_current_context().exit(EXIT_REJECTS)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Only files, sizes and the index; reads no sample.")
@click.option("--decode", is_flag=True, help="Also decode every image.")
@threads_option("Threads that read and check shards; with --decode also images.")
@json_option
def verify(pack: Path, quick: bool, decode: bool, threads: int, as_json: bool) -> None:
    """Prove that PACK is whole: every byte of every file, every sample's checksum.

    Goes on to the end, names each damaged sample, and exits 1 if anything is wrong.

    \b
    Examples:
      dspack verify imgs.lmdb
      dspack verify imgs.lmdb --decode
      dspack verify imgs.lmdb --quick --json
    """
    from .verify import verify as run

    if quick and decode:
        raise click.UsageError("--quick reads no sample, so it cannot --decode")
    with ProgressBar("verify", quiet=as_json) as progress:
        report = run(pack, quick=quick, decode_images=decode, threads=threads, progress=progress)
    if as_json:
        _print_json({**asdict(report), "ok": report.ok})
    else:
        for finding in report.findings[:_LISTED]:
            click.echo(printable(str(finding)))
        if len(report.findings) > _LISTED:
            click.echo(f"… and {len(report.findings) - _LISTED} more; --json lists all")
        if report.ok:
            click.echo(
                f"{printable(str(pack))}: whole ({report.num_samples} samples, "
                f"{_size(report.num_bytes)}, {report.checked} checked)"
            )
        else:
            click.echo(f"{printable(str(pack))}: damaged, {len(report.findings)} findings")
    if not report.ok:
        click.get_current_context().exit(EXIT_DAMAGE)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(path_type=Path))
@json_option
def info(pack: Path, as_json: bool) -> None:
    """Tell what PACK holds and how it was made.

    \b
    Examples:
      dspack info imgs.lmdb
      dspack info imgs.lmdb --json
    """
    from .describe import describe

    description = asdict(describe(pack))
    _print_json(description) if as_json else _print_description(description)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(path_type=Path))
@click.option(
    "--against",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The class folder that was packed, to compare with.",
)
@click.option("--split", help="Read this split only.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Samples a batch."
)
@click.option("--size", type=click.IntRange(1), default=224, show_default=True, help="In pixels.")
@threads_option("The Loader's threads, and the DataLoader's workers.")
@click.option(
    "--seconds",
    type=Seconds(0, 3600, min_open=True),
    default=0.5,
    show_default=True,
    help="How long each is measured, after half as long for warming up; --seconds 5 gives figures "
    "that vary less.",
)
@click.option("--cold", is_flag=True, help="Measure from the disk, too, not only from memory.")
@click.option(
    "--plot", metavar="PNG", type=click.Path(dir_okay=False, path_type=Path), help="Draw bars."
)
@json_option
def bench(
    pack: Path,
    against: Path | None,
    split: str | None,
    batch_size: int,
    size: int,
    threads: int,
    seconds: float,
    cold: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure how fast PACK feeds training here, what limits it, and what would help.

    \b
    Examples:
      dspack bench imgs.lmdb
      dspack bench imgs.lmdb --against ./imgs --cold
      dspack bench imgs.lmdb --threads 8 --plot speeds.png
    """
    from .bench import bench as run
    from .bench import plot as draw
    from .bench import require_matplotlib, table

    if plot is not None:
        require_matplotlib()  # before it takes its time
    report = run(
        pack,
        against,
        split=split,
        batch_size=batch_size,
        size=size,
        threads=threads,
        seconds=seconds,
        cold=cold,
        progress=lambda what: click.echo(f"{what} …", err=True),
    )
    if as_json:
        _print_json(asdict(report))
    else:
        click.echo("\n".join(map(printable, table(report))))
    if plot is not None:
        draw(report, plot)


def _boxes_option(given: Sequence[BoxesOption], classes_from: Path | None) -> BoxesOption | None:
    """All --boxes as one, with the classes."""
    from .plan.layout import load_classes

    if not given:
        if classes_from is not None:
            raise click.UsageError("--boxes-classes goes with --boxes")
        return None
    if len(given) > 1 and {option.kind for option in given} != {"coco"}:
        raise click.UsageError("--boxes is given once, but for the files of COCO")
    files = tuple(path for option in given for path in option.files)
    classes = None if classes_from is None else tuple(load_classes(classes_from))
    return replace(given[0], files=files, classes=classes)


# Printing


def _print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    for name, text in rows:
        click.echo(f"{name + ':':<14}{printable(text)}")


def _print_estimate(planned: dict[str, Any]) -> None:
    rows = [
        ("would pack", f"{planned['num_files']} images, {_size(planned['source_bytes'])}"),
        ("into", f"{planned['path']} ({_size(planned['free_bytes'])} free there)"),
        ("time", f"about {planned['seconds']:.0f} s, from reading some of them"),
    ]
    rows += [
        ("field", f"{name}: {number} values, {_size(planned['field_bytes'][name])}")
        for name, number in planned["field_values"].items()
    ]
    rows += [(f"split {name}", f"{n} images") for name, n in planned["by_split"].items()]
    rows += [(f"class {name}", f"{n} images") for name, n in list(planned["by_class"].items())[:20]]
    if len(planned["by_class"]) > 20:
        rows.append(("…", f"{len(planned['by_class']) - 20} more classes"))
    rows += _counted("left out", planned["left_out"])
    rows += _counted("some rejects", planned["rejected"])
    rows += [("note", note) for note in planned["notes"]]
    _print_rows(rows)


def _print_summary(summary: dict[str, Any]) -> None:
    num_rejected = sum(summary["rejected"].values())
    splits = ", ".join(f"{name} {n}" for name, n in summary["by_split"].items())
    resumed = f", {summary['num_resumed']} of them by the run before" * bool(summary["num_resumed"])
    rows = [
        ("samples", f"{summary['num_samples']}{resumed}" + (f" ({splits})" if splits else "")),
        ("classes", str(summary["num_classes"])),
        ("size", f"{_size(summary['pack_bytes'])}, shards: {summary['num_shards']}"),
        ("rejects", str(num_rejected)),
        *_counted("reject", summary["rejected"]),
        *_counted("left out", summary["left_out"]),
        *_counted("changed", summary["changed"]),
        *_counted("warning", summary["warnings"]),
        *(("note", note) for note in summary["notes"]),
        ("digest", summary["content_digest"]),
        ("time", f"{summary['seconds']:.1f} s"),
        ("pack", summary["path"]),
    ]
    if num_rejected:
        shown = ", ".join(summary["rejected_files"][:3])
        rows.append(("see", f"{summary['path']}/rejected.jsonl ({shown} …)"))
    _print_rows(rows)
    click.echo("\nnext:")
    path = printable(shlex.quote(summary["path"]))
    click.echo(f"  dspack verify {path}")
    click.echo(f"  dspack info {path}")


def _print_description(about: dict[str, Any]) -> None:
    width, height = about["width"], about["height"]
    fields = ", ".join(f"{name} ({kind})" for name, kind in about["fields"].items())
    rows = [
        ("pack", about["path"]),
        ("format", f"{about['format']}, shards: {about['num_shards']}"),
        ("samples", f"{about['num_samples']}, fields {fields}"),
        ("stored", _size(about["stored_bytes"])),
        ("splits", ", ".join(f"{name} {n}" for name, n in about["splits"].items())),
        ("width", "min {min}, median {median}, max {max}".format(**width)),
        ("height", "min {min}, median {median}, max {max}".format(**height)),
        ("rejects", str(about["num_rejected"])),
        ("digest", about["content_digest"]),
        ("made", f"{about['made'].get('at')} by {about['made'].get('by')}"),
        ("from", str(about["made"].get("source"))),
        ("check", str(about["made"].get("check"))),
        *_options_of(about["made"]),
    ]
    if about["num_unlabelled"]:
        rows.insert(3, ("unlabelled", str(about["num_unlabelled"])))
    for name, classes in about["field_classes"].items():
        shown = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
        rows.append((name, f"{len(classes)} classes ({shown})" if classes else "without names"))
    rows += _counted("changed", about["made"].get("changed", {}))
    rows += _counted("warning", about["made"].get("warnings", {}))
    _print_rows(rows)
    if about["classes"]:
        click.echo(f"classes:      {len(about['classes'])}")
    for i, (name, by_split) in enumerate(about["classes"].items()):
        counts = ", ".join(f"{split} {n}" for split, n in by_split.items())
        click.echo(f"{i:>6}  {printable(name):<30} {counts}")


def _options_of(made: dict[str, Any]) -> list[tuple[str, str]]:
    """The options that a pack was made with, without those that had their default."""
    pixels, part = made.get("pixels") or {}, made.get("part") or {}
    splits = made.get("new_splits") or {}
    options = {name.replace("_", " "): pixels[name] for name in pixels if name != "copied"}
    others = {
        "shares": [f"{name}={share}" for name, share in splits.get("shares", ())],
        "seed": splits.get("seed"),
        "group by": splits.get("group_by"),
        "only splits": part.get("splits"),
        "only classes": part.get("classes"),
        "limit": part.get("limit"),
        "layout": made.get("layout") if made.get("layout") != "auto" else None,
        "no copies": made.get("drop_duplicates"),
        "patterns": [f"{name}={text}" for name, text in (made.get("fields") or {}).items()],
        "boxes of": (made.get("boxes") or {}).get("annotations"),
    }
    options |= {name: value for name, value in others.items() if value}
    return [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in options.items()
    ]


def _counted(name: str, counts: dict[str, int]) -> list[tuple[str, str]]:
    return [(name, f"{number} x {reason}") for reason, number in counts.items()]


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


if __name__ == "__main__":
    main()
