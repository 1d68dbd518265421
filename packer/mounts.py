"""Which paths lie on a Windows drive: known by the mount's type, never by a name like /mnt/c.

Windows drives appear in WSL2 as 9p with `aname=drvfs` or as virtiofs, in WSL1 as drvfs.
"""

from __future__ import annotations

import os
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


def is_windows_mount(path: Path, mountinfo: str | None = None) -> bool:
    """Whether `path`, which need not exist, lies on a Windows drive.

    `mountinfo` is the text of /proc/self/mountinfo (proc(5)); read when not given.
    """
    if mountinfo is None:
        try:
            mountinfo = os.fsdecode(MOUNTINFO.read_bytes())
        except OSError:
            return False  # not Linux
    real = os.path.realpath(path)
    longest, windows = "", False
    for line in filter(None, mountinfo.split("\n")):  # the only escaped line break
        before, _, after = line.partition(" - ")
        mount_point = _unescape(before.split(" ")[4])
        below = real == mount_point or real.startswith(mount_point.rstrip("/") + "/")
        # Of two mounts on one point the later one hides the earlier.
        if below and len(mount_point) >= len(longest):
            longest, windows = mount_point, _is_windows(*after.split(" ", 2))
    return windows


def _is_windows(kind: str, device: str, options: str = "") -> bool:
    if kind == "9p":
        return "aname=drvfs" in options
    return kind == "drvfs" or (kind == "virtiofs" and device.startswith("drvfs"))


def _unescape(text: str) -> str:
    """Undo mountinfo's octal escapes of space, tab, newline and backslash."""
    for code in ("040", "011", "012", "134"):
        text = text.replace("\\" + code, chr(int(code, 8)))
    return text
