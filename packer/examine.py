"""Look for the damaged samples of a shard that is known to be damaged, in a process of its own:
a storage library may crash on damaged structures, and then says nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from readers.errors import DamagedPack, OutOfMemory, TooManyOpenFiles
from readers.manifest import Manifest
from readers.pack import Pack

_CRASHES_MAX = 50  # a process start each; a shard worse than that is lost


def examine_apart(
    pack: Path, shard: str, first: int, decode_images: bool
) -> Iterator[tuple[int, str]]:
    """(row, what is wrong) for the samples of `shard`, whose first one is row `first`."""
    start, num_crashes = 0, 0
    while True:
        command = [sys.executable, "-m", "packer.examine", str(pack), shard, str(start)]
        command += ["decode"] if decode_images else []
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        position = start
        for line in run.stdout.splitlines():
            if not line.endswith(b"]"):
                break  # cut by the crash
            position, reason = json.loads(line)
            if reason is not None:
                yield first + position, reason
        if run.returncode == 0:
            return
        num_crashes += 1
        reason = f"reading it crashes the library (exit {run.returncode})"
        if num_crashes == _CRASHES_MAX:
            yield first + position, f"{reason}; the rest of its shard was not examined"
            return
        yield first + position, reason
        start = position + 1


def _examine(path: Path, shard_name: str, start: int, decode_images: bool) -> None:
    """Print [position, null] before a sample is read, and [position, reason] if it is bad."""
    if decode_images:
        from .verify import decode_problem  # costs an import of the decoders

    manifest = Manifest.load(path)
    pack = Pack(path)
    first = 0
    for shard in manifest.shards:
        if shard.name == shard_name:
            break
        first += shard.num_samples
    for position in range(start, shard.num_samples):
        _say(position, None)
        try:
            for field in manifest.fields:
                pack.read(first + position, field)
            if decode_images and (problem := decode_problem(pack, first + position)):
                _say(position, problem)
        except DamagedPack as error:
            _say(position, error.reason)
        except (OutOfMemory, TooManyOpenFiles):
            raise
        except Exception as error:  # the samples behind it are to be looked at, too
            _say(position, f"reading it fails: {type(error).__name__}: {error}")


def _say(position: int, reason: str | None) -> None:
    # Straight to the pipe: what a crash leaves in a buffer is lost.
    os.write(1, json.dumps([position, reason]).encode() + b"\n")


if __name__ == "__main__":
    _examine(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), "decode" in sys.argv[4:])
