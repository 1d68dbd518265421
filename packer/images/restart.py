"""Restart markers for JPEGs that have none, without touching a coefficient: `--seekable`.

libjpeg-turbo's jpegtran does it. Its library can do so only from version 3 on (tj3Transform), which
few systems have, and no Python package brings; a process a picture costs about a millisecond.
"""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import simplejpeg

from readers import seekable
from readers.errors import MissingDependency

_JPEGTRAN = "jpegtran"


def require_jpegtran() -> None:
    """Raise MissingDependency unless jpegtran is installed."""
    if shutil.which(_JPEGTRAN) is None:
        raise MissingDependency(
            "--seekable needs the program jpegtran, which is not installed",
            advice="apt install libjpeg-turbo-progs",
        )


def with_restart_markers(data: bytes) -> bytes | None:
    """The same JPEG with restart markers, or None where that cannot be or is not proven.

    It is seekable, and decodes to the same pixels as `data`: both are decoded and compared.
    """
    frame = seekable.frame_of(data)
    if frame is None:
        return None
    interval = seekable.restart_interval(frame.width, frame.mcu_width)
    # -optimize: tables made for the picture save what the markers cost.
    command = [_JPEGTRAN, "-copy", "all", "-optimize", "-restart", f"{interval}B"]
    run = subprocess.run(command, input=data, capture_output=True)
    marked = run.stdout
    if run.returncode != 0 or seekable.segment_offsets(marked) is None:
        return None
    before, after = (simplejpeg.decode_jpeg(jpeg, "RGB", strict=False) for jpeg in (data, marked))
    return marked if np.array_equal(before, after) else None
