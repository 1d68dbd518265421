"""The commands and their options, progress, exit codes. No logic."""

from __future__ import annotations

import errno
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from readers import formats
from readers.errors import DestinationError, DspackError, OutOfMemory, printable
from readers.version import __version__

from .arguments import Boxes, ByteSize, FieldPattern, Regex, Seconds, Splits, pixel_options
from .images.pixels import PixelOptions
from .plan.layout import LAYOUTS
from .printing import print_description, print_estimate, print_json, print_report, print_summary
from .progress import ProgressBar, ScanningBar
from .sources import KINDS

if TYPE_CHECKING:
    from .annotations import BoxesOption
    from .fields import Pattern

EXIT_DAMAGE, EXIT_REJECTS = 1, 3
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141  # 128 + SIGINT and SIGPIPE, as a shell has it


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
            _say(f"dspack: {error}")
            ctx.exit(error.exit_code)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "start new thread" not in str(error):
                raise
            reason = str(error) or "out of memory"
            _say(f"dspack: {reason}; use fewer threads, or allow more (see `ulimit -a`)")
            ctx.exit(OutOfMemory.exit_code)
        except KeyboardInterrupt as error:
            _say("; ".join(["\ndspack: interrupted", *map(str, error.args)]))
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # `dspack info PACK | head`
            _write_no_more()
            ctx.exit(EXIT_BROKEN_PIPE)  # not 0: the exit code that was to come is lost
        except OSError as error:  # what can be foreseen is an error of the product's
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                _write_no_more()
                _say(f"dspack: the output cannot be written: {error.strerror}")
                ctx.exit(DestinationError.exit_code)
            _say(f"dspack: {error}")
            ctx.exit(DspackError.exit_code)


def _say(text: str) -> None:
    with suppress(OSError):  # the exit code is more important
        click.echo(text, err=True)


def _write_no_more() -> None:
    """Send what is still to be printed to nowhere, or Python would try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
    help="Keep samples in one split for which REGEX, or its first group, finds the same in their "
    "keys: --group-by 'p[0-9]+' for the images p07_1.jpg and p07_2.jpg of a patient.",
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
    with (
        ScanningBar(quiet=as_json) as scanning,
        ProgressBar("convert", quiet=as_json) as progress,
    ):
        both: dict[str, Any] = {
            "threads": threads,
            "io_threads": io_threads,
            "overwrite": overwrite,
            "force": force,
            "scanning": scanning,
        }
        if dry_run:
            planned = estimate(source, out, options, **both)
        else:
            summary = run(source, out, options, **both, strict=strict, progress=progress)
    if dry_run:
        print_json(asdict(planned)) if as_json else print_estimate(asdict(planned))
        return
    print_json(asdict(summary)) if as_json else print_summary(asdict(summary))
    if summary.rejected and not allow_rejects:
        click.get_current_context().exit(EXIT_REJECTS)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(readable=False, path_type=Path))
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
    print_json({**asdict(report), "ok": report.ok}) if as_json else print_report(report)
    if not report.ok:
        click.get_current_context().exit(EXIT_DAMAGE)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(readable=False, path_type=Path))
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
    print_json(description) if as_json else print_description(description)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(readable=False, path_type=Path))
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
    from .bench import check_plot, table
    from .bench import plot as draw

    if plot is not None:
        check_plot(plot)  # before it takes its time
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
        print_json(asdict(report))
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


if __name__ == "__main__":
    main()
