"""Where a pack goes, and where it must not."""

from __future__ import annotations

import os
import re
from pathlib import Path

from readers import formats
from readers.errors import DestinationError, DspackError, printable
from readers.manifest import MANIFEST_NAME, REJECTED_NAME, Manifest

from .mounts import is_windows_mount

_KIND_SUFFIX = re.compile(
    r"([-_.]?\{[^/]*\})?\.(tar|tgz|tbz2?|txz|tzst|zip|csv|tsv|jsonl|"
    + "|".join(formats.names())
    + r")(\.(gz|bz2|xz|zst))?$",
    re.IGNORECASE,
)

_OF_A_PACK = {MANIFEST_NAME, REJECTED_NAME, "index", "shards"}
_OTHER_NAME = "choose another name with -o"


def default_destination(source: Path, format_name: str) -> Path:
    """NAME.FORMAT in the current folder, or in ~/datasets when that is a Windows drive.

    NAME is the source's without what tells its kind: imgs.tar.gz and imgs-{00..99}.tar give imgs,
    and so does imgs/{00..99}.tar.
    """
    path, here = Path(os.path.abspath(source)), Path.cwd()
    name = f"{_KIND_SUFFIX.sub('', path.name) or path.parent.name or 'pack'}.{format_name}"
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
    shared = os.path.commonpath([real_out, real_source])
    if real_out == real_source:
        raise DestinationError("is the source itself", path=out, advice=_OTHER_NAME)
    if shared == real_source:
        raise DestinationError(
            "lies inside the source, where it would be taken for a class",
            path=out,
            advice="choose another folder with -o",
        )
    if shared == real_out:
        raise DestinationError("holds the source", path=out, advice=_OTHER_NAME)
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
    if strangers := sorted(set(os.listdir(out)) - _OF_A_PACK):
        raise DestinationError(
            f"holds {printable(strangers[0])}, which is no part of a pack, so --overwrite does not "
            "touch it",
            path=out,
            advice="move that away or choose another name",
        )


def _is_pack(path: Path) -> bool:
    try:
        Manifest.load(path)
    except DspackError:
        return False
    return True


def existing_parent(path: Path) -> Path:
    """The lowest folder above `path` that exists."""
    path = path.absolute().parent
    while not os.path.exists(path):
        path = path.parent
    return path
