"""What the commands print of their results; names may have any bytes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from readers.errors import printable

if TYPE_CHECKING:
    from .verify import Report

_LISTED = 20  # lines of findings or classes; --json has all


def print_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value))


def _print_rows(rows: Iterable[tuple[str, str]]) -> None:
    for name, text in rows:
        click.echo(f"{name + ':':<14}{printable(text)}")


def print_estimate(planned: dict[str, Any]) -> None:
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
    rows += [
        (f"class {name}", f"{n} images") for name, n in list(planned["by_class"].items())[:_LISTED]
    ]
    if len(planned["by_class"]) > _LISTED:
        rows.append(("…", f"{len(planned['by_class']) - _LISTED} more classes"))
    rows += _counted("left out", planned["left_out"])
    rows += _counted("some rejects", planned["rejected"])
    rows += [("note", note) for note in planned["notes"]]
    _print_rows(rows)


def print_summary(summary: dict[str, Any]) -> None:
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


def print_report(report: Report) -> None:
    for finding in report.findings[:_LISTED]:
        click.echo(printable(str(finding)))
    if len(report.findings) > _LISTED:
        click.echo(f"… and {len(report.findings) - _LISTED} more; --json lists all")
    if report.ok:
        found = f"whole ({report.num_samples} samples, {_size(report.num_bytes)}, "
        found += f"{report.checked} checked)"
    else:
        found = f"damaged, {len(report.findings)} findings"
    click.echo(f"{printable(report.path)}: {found}")


def print_description(about: dict[str, Any]) -> None:
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
        shown = ", ".join(classes[:_LISTED]) + (", …" if len(classes) > _LISTED else "")
        rows.append((name, f"{len(classes)} classes ({shown})" if classes else "without names"))
    rows += _counted("changed", about["made"].get("changed", {}))
    rows += _counted("warning", about["made"].get("warnings", {}))
    _print_rows(rows)
    if about["classes"]:
        click.echo(f"classes:      {len(about['classes'])}")
    for i, (name, by_split) in enumerate(islice(about["classes"].items(), _LISTED)):
        counts = ", ".join(f"{split} {n}" for split, n in by_split.items())
        click.echo(f"{i:>6}  {printable(name):<30} {counts}")
    if len(about["classes"]) > _LISTED:
        click.echo(f"… and {len(about['classes']) - _LISTED} more; --json lists all")


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
