"""The command line: arguments, progress, printing, exit codes. No logic."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from readers import formats
from readers.errors import DspackError, printable
from readers.version import __version__

from .layout import LAYOUTS
from .progress import ProgressBar

EXIT_DAMAGE, EXIT_REJECTS, EXIT_INTERRUPTED = 1, 3, 130
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
        num_bytes = int(float(match[1]) * self._UNITS[match[2]])
        if num_bytes < 1:
            self.fail("a size is at least one byte", param, ctx)
        return num_bytes


class Group(click.Group):
    """Turns the product's errors into one sentence and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DspackError as error:
            click.echo(f"dspack: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\ndspack: interrupted; the same command goes on from here", err=True)
            ctx.exit(EXIT_INTERRUPTED)
        except BrokenPipeError:  # `dspack info PACK | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(1)


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
    """


def _default_threads() -> int:
    return len(os.sched_getaffinity(0))


threads_option = click.option(
    "--threads",
    type=click.IntRange(1),
    default=_default_threads,
    show_default="the processors",
    help="Threads that check images. Reading adds its own where a mount is slow.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@main.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.option("--to", "format_name", required=True, type=click.Choice(formats.names()))
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
@threads_option
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
    check: str,
    layout: str,
    classes_from: Path | None,
    overwrite: bool,
    force: bool,
    allow_rejects: bool,
    strict: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Pack the folder SRC into a new pack.

    SRC holds class folders (SRC/cat/1.jpg), or splits of them (SRC/train/cat/1.jpg), or just
    images. An interrupted run goes on where it was when the same command is typed again.
    Damaged files are left out, listed in OUT/rejected.jsonl, and make the exit code 3.

    \b
    Examples:
      dspack convert ./imgs --to lmdb
      dspack convert /mnt/c/data/imgs --to memmap -o ~/datasets/imgs.memmap
      dspack convert ./imgs --to hdf5 --dry-run
      dspack convert ./val --to lmdb --classes-from train.lmdb
    """
    from .convert import Options, default_destination
    from .convert import convert as run
    from .estimate import estimate
    from .layout import load_classes

    out = default_destination(source, format_name) if out is None else out
    classes = None if classes_from is None else tuple(load_classes(classes_from))
    options = Options(format_name, shard_size, check, layout, classes)
    if dry_run:
        planned = estimate(source, out, options, threads=threads, overwrite=overwrite, force=force)
        _print_json(asdict(planned)) if as_json else _print_estimate(asdict(planned))
        return
    with ProgressBar("convert", quiet=as_json) as progress:
        summary = run(
            source,
            out,
            options,
            threads=threads,
            overwrite=overwrite,
            force=force,
            strict=strict,
            progress=progress,
        )
    _print_json(asdict(summary)) if as_json else _print_summary(asdict(summary))
    if summary.rejected and not allow_rejects:
        click.get_current_context().exit(EXIT_REJECTS)


@main.command()
@click.argument("pack", metavar="PACK", type=click.Path(path_type=Path))
@click.option("--quick", is_flag=True, help="Only files, sizes and the index; reads no sample.")
@click.option("--decode", is_flag=True, help="Also decode every image.")
@threads_option
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
                f"{pack}: whole ({report.num_samples} samples, {_size(report.num_bytes)}, "
                f"{report.checked} checked)"
            )
        else:
            click.echo(f"{pack}: damaged, {len(report.findings)} findings")
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
        *_counted("  ", summary["rejected"]),
        *_counted("left out", summary["left_out"]),
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
    click.echo(f"  dspack verify {summary['path']}")
    click.echo(f"  dspack info {summary['path']}")


def _print_description(about: dict[str, Any]) -> None:
    width, height = about["width"], about["height"]
    rows = [
        ("pack", about["path"]),
        ("format", f"{about['format']}, shards: {about['num_shards']}"),
        ("samples", f"{about['num_samples']}, fields {', '.join(about['fields'])}"),
        ("stored", _size(about["stored_bytes"])),
        ("splits", ", ".join(f"{name} {n}" for name, n in about["splits"].items())),
        ("width", "min {min}, median {median}, max {max}".format(**width)),
        ("height", "min {min}, median {median}, max {max}".format(**height)),
        ("rejects", str(about["num_rejected"])),
        ("digest", about["content_digest"]),
        ("made", f"{about['made'].get('at')} by {about['made'].get('by')}"),
        ("from", str(about["made"].get("source"))),
        ("check", str(about["made"].get("check"))),
    ]
    if about["num_unlabelled"]:
        rows.insert(3, ("unlabelled", str(about["num_unlabelled"])))
    rows += _counted("warning", about["made"].get("warnings", {}))
    _print_rows(rows)
    if about["classes"]:
        click.echo(f"classes:      {len(about['classes'])}")
    for i, (name, by_split) in enumerate(about["classes"].items()):
        counts = ", ".join(f"{split} {n}" for split, n in by_split.items())
        click.echo(f"{i:>6}  {printable(name):<30} {counts}")


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
