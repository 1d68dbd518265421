"""python kill_at.py SOURCE OUT FORMAT: convert in child processes that are killed on the way.

For every line with a number n on standard input, a child runs convert with overwrite=True and is
killed (SIGKILL) right before its n-th change of the file system: a file opened for writing,
renamed or removed, a folder made or removed. Prints the child's exit code: -9, or 0 when it came
to its end before that.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from packer.convert import convert
from packer.options import Options
from readers import formats

CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"}


def kill_before_change(number: int) -> None:
    num_changes = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal num_changes
        writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if event in CHANGES or writes:
            num_changes += 1
            if num_changes == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(source: str, out: str, format_name: str) -> None:
    formats.load(format_name)  # imports cost the children nothing
    options = Options(format_name, shard_bytes=3000)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            kill_before_change(int(line))
            convert(Path(source), Path(out), options, threads=1, overwrite=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
