"""Where a pack goes, and where it must not."""

from __future__ import annotations

import os
import re
from pathlib import Path

from readers import formats
from readers.errors import DestinationError, DspackError, printable
from readers.manifest import MANIFEST_NAME, Manifest

from .mounts import is_windows_mount

_KIND_SUFFIX = re.compile(
    r"([-_.]?\{[^/]*\})?\.(tar|tgz|tbz2?|txz|tzst|zip|csv|tsv|jsonl|"
    + "|".join(formats.names())
    + r")(\.(gz|bz2|xz|zst))?$",
    re.IGNORECASE,
)

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
    above = [path for path in Path(real_out).parents if path.name.endswith(".partial")]
    if any((folder / "plan.json").exists() for folder in above):
        raise DestinationError(
            "lies in the folder of an unfinished run", path=out, advice="leave that folder first"
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
    if strangers := sorted(_strangers(out)):
        raise DestinationError(
            f"holds {printable(strangers[0])}, which is no part of a pack, so --overwrite does not "
            "touch it",
            path=out,
            advice="move that away or choose another name",
        )


def _strangers(pack: Path) -> set[str]:
    """The files in a pack's folder that are not of the pack, but for the locks that LMDB leaves."""
    manifest = Manifest.load(pack)
    files = [*manifest.files, *(file for shard in manifest.shards for file in shard.files)]
    there = {
        os.path.relpath(os.path.join(folder, name), pack)
        for folder, _, names in os.walk(pack)
        for name in names
        if not name.endswith(".lmdb-lock")
    }
    return there - {MANIFEST_NAME, *(file.name for file in files)}


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
