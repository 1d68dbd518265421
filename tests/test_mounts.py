"""Windows drives are known by their mount, whatever their path; packs are not written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from packer import mounts
from packer.convert import convert
from packer.destination import default_destination
from packer.estimate import estimate
from packer.mounts import is_windows_mount
from packer.options import Options
from readers.errors import DestinationError

ROOT = "1 0 8:1 / / rw,relatime - ext4 /dev/sdc rw,discard,errors=remount-ro"
WSL2_9P = (
    "98 70 0:51 / /mnt/c rw,noatime - 9p C:\\134 rw,dirsync,aname=drvfs;path=C:\\134;uid=1000;"
    "gid=1000;symlinkroot=/mnt/,mmap,access=client,msize=262144,trans=fd,rfd=8,wfd=8"
)
WSL2_9P_DRVFS = "98 70 0:51 / /mnt/c rw,noatime - 9p drvfs rw,aname=drvfs;path=C:\\134;uid=1000"
WSL2_VIRTIOFS = "98 70 0:51 / /mnt/c rw,noatime - virtiofs drvfsaC3 rw"
WSL1 = "8 2 0:8 / /mnt/c rw,noatime - drvfs C:\\134 rw,case=off"
VIRTUAL_MACHINE_9P = "98 70 0:51 / /mnt/c rw - 9p share rw,trans=virtio,version=9p2000.L"
VIRTUAL_MACHINE_VIRTIOFS = "98 70 0:51 / /mnt/c rw - virtiofs share rw"
OPTIONAL_FIELDS = "98 70 0:51 / /mnt/c rw shared:5 master:1 - 9p C:\\134 rw,aname=drvfs;path=C:"


def at(line: str, point: str) -> str:
    """The mountinfo line with another mount point."""
    return line.replace(" /mnt/c ", f" {point} ")


def is_windows(path: str, *lines: str) -> bool:
    return is_windows_mount(Path(path), "\n".join([ROOT, *lines]) + "\n")


@pytest.mark.parametrize("line", [WSL1, WSL2_9P, WSL2_9P_DRVFS, WSL2_VIRTIOFS, OPTIONAL_FIELDS])
def test_windows_drives_are_known_by_their_mount(line: str) -> None:
    assert is_windows("/mnt/c", line)
    assert is_windows("/mnt/c/Users/me/new folder/pack.lmdb", line)
    assert not is_windows("/mnt/cc/pack", line)
    assert not is_windows("/mnt", line)
    assert not is_windows("/home/me/pack", line)


@pytest.mark.parametrize("line", [VIRTUAL_MACHINE_9P, VIRTUAL_MACHINE_VIRTIOFS])
def test_other_shares_of_the_same_type_are_no_windows_drives(line: str) -> None:
    assert not is_windows("/mnt/c/pack", line)


def test_a_path_like_mnt_c_alone_says_nothing() -> None:
    assert not is_windows("/mnt/c/pack")


def test_the_automount_root_may_be_anywhere() -> None:
    assert is_windows("/c/data", at(WSL2_9P, "/c"))
    assert is_windows("/windir/d/data", at(WSL2_9P, "/windir/d"))
    assert is_windows("/data", at(WSL2_9P, "/"))


def test_a_native_disk_below_a_windows_drive_is_native() -> None:
    native = at(ROOT, "/mnt/c/disk").replace(" / / ", " / /mnt/c/disk ")
    for lines in ([WSL2_9P, native], [native, WSL2_9P]):
        assert not is_windows("/mnt/c/disk/pack", *lines)
        assert is_windows("/mnt/c/disks/pack", *lines)
        assert is_windows("/mnt/c/pack", *lines)


def test_of_two_mounts_on_one_point_the_later_counts() -> None:
    native = ROOT.replace(" / / ", " / /mnt/c ")
    assert not is_windows("/mnt/c/pack", WSL2_9P, native)
    assert is_windows("/mnt/c/pack", native, WSL2_9P)


@pytest.mark.parametrize(
    ("point", "path"),
    [
        ("/mnt/my\\040drive", "/mnt/my drive/pack"),
        ("/mnt/a\\011b", "/mnt/a\tb/pack"),
        ("/mnt/a\\012b", "/mnt/a\nb/pack"),
        ("/mnt/a\\134b", "/mnt/a\\b/pack"),
        ("/mnt/a\\134040b", "/mnt/a\\040b/pack"),
        ("/mnt/größe", "/mnt/größe/pack"),
        ("/mnt/a\x0cb\x85c\u2028d", "/mnt/a\x0cb\x85c\u2028d/pack"),  # no escape, no line break
    ],
)
def test_escapes_in_mount_points_are_undone(point: str, path: str) -> None:
    assert is_windows(path, at(WSL2_9P, point))


def test_links_are_followed_to_their_mount(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("/mnt/c/data")
    assert is_windows(str(tmp_path / "data" / "pack"), WSL2_9P)


def test_without_mountinfo_there_is_no_windows_drive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "MOUNTINFO", Path("/nonexistent"))
    assert not is_windows_mount(Path("/mnt/c"))


def test_this_very_machine_can_be_asked() -> None:
    assert is_windows_mount(Path("/proc")) is False


@pytest.fixture
def windows_drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the system says is a Windows drive."""
    drive = tmp_path / "drive"
    drive.mkdir()
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(f"{ROOT}\n{at(WSL2_9P, str(drive))}\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", mountinfo)
    return drive


def test_a_pack_is_not_written_to_a_windows_drive(
    windows_drive: Path, source: Path, tmp_path: Path
) -> None:
    out = windows_drive / "deep" / "pack"
    with pytest.raises(DestinationError, match="lies on a Windows drive") as error:
        convert(source, out, Options("memmap"), threads=1)
    assert "~/datasets" in str(error.value) and "--force" in str(error.value)
    with pytest.raises(DestinationError, match="lies on a Windows drive"):
        estimate(source, out, Options("memmap"), threads=1, overwrite=False, force=False)
    assert not any(windows_drive.iterdir())
    convert(source, tmp_path / "elsewhere", Options("memmap"), threads=1)


def test_force_writes_to_a_windows_drive(windows_drive: Path, source: Path) -> None:
    convert(source, windows_drive / "pack", Options("memmap"), threads=1, force=True)
    assert (windows_drive / "pack" / "manifest.json").exists()


def test_the_default_destination_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_destination(Path("data/imgs"), "lmdb") == Path("imgs.lmdb")
    assert default_destination(Path("/data/imgs/"), "hdf5") == Path("imgs.hdf5")
    assert default_destination(Path(".."), "lmdb") == Path(f"{tmp_path.parent.name}.lmdb")


def test_the_default_destination_has_the_name_that_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imgs").symlink_to("/somewhere/x17")
    monkeypatch.chdir(tmp_path)
    assert default_destination(Path("imgs"), "lmdb") == Path("imgs.lmdb")


def test_the_default_destination_leaves_a_windows_drive(
    windows_drive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(windows_drive)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    expected = tmp_path / "home" / "datasets" / "imgs.lmdb"
    assert default_destination(Path("imgs"), "lmdb") == expected
