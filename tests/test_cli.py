"""The command line: help, exit codes, sentences and never a traceback, JSON, progress."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from images import class_folder, jpeg, photo, write
from packs import change_index, change_manifest

import readers
from packer import __version__, convert, estimate, progress, verify
from packer.arguments import ByteSize
from packer.cli import main
from packer.describe import Description
from packer.estimate import Estimate
from packer.options import Options
from packer.verify import Finding, Report

IMAGE = jpeg(photo())
COMMANDS = sorted(main.commands)


def dspack(*arguments: object, charset: str = "utf-8") -> Result:
    """Run the command in this process; whatever happens, it is no traceback."""
    result = CliRunner(charset).invoke(main, list(map(str, arguments)), prog_name="dspack")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which holds the class folder imgs."""
    class_folder(tmp_path / "imgs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def packed(here: Path) -> Path:
    """The pack imgs.memmap, in the current folder."""
    assert dspack("convert", "imgs", "--to", "memmap").exit_code == 0
    return Path("imgs.memmap")


# Help


def test_version() -> None:
    result = dspack("--version")
    assert (result.exit_code, result.output) == (0, f"dspack, version {__version__}\n")


def test_help_names_every_command_with_an_example() -> None:
    result = dspack("--help")
    assert result.exit_code == 0
    for name in ("convert", "verify", "info"):
        assert f"dspack {name} " in result.output
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", result.output, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_tells_every_option_and_has_an_example(name: str) -> None:
    result = dspack(name, "--help")
    assert result.exit_code == 0
    assert f"dspack {name} " in result.output
    for parameter in main.commands[name].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.name} has no help"
            assert parameter.opts[0] in result.output


def examples(name: str) -> list[str]:
    lines = [line.strip() for line in (main.commands[name].help or "").splitlines()]
    return [line for line in lines if line.startswith(f"dspack {name} ")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_are_right(here: Path, name: str) -> None:
    (here / "train.lmdb").mkdir()
    (here / "coco8.yaml").touch()
    assert examples(name)
    for example in examples(name):
        arguments = shlex.split(example)[2:]
        main.commands[name].make_context(name, arguments)  # raises a UsageError for a wrong one


# Exit codes


def test_exit_0_a_pack_is_made_proven_and_described(here: Path, format_name: str) -> None:
    result = dspack("convert", "imgs", "--to", format_name)
    assert result.exit_code == 0
    assert re.search(r"^samples: +12$", result.output, re.MULTILINE)
    assert re.search(r"^classes: +3$", result.output, re.MULTILINE)
    assert re.search(r"^rejects: +0$", result.output, re.MULTILINE)
    assert re.search(r"^size: +[0-9.]+ k?B", result.output, re.MULTILINE)
    out = f"imgs.{format_name}"
    next_commands = [f"  dspack verify {out}", f"  dspack info {out}"]
    assert result.output.splitlines()[-3:] == ["next:", *next_commands]
    for line in next_commands:
        assert dspack(*line.split()[1:]).exit_code == 0


def test_exit_1_verify_finds_damage(packed: Path) -> None:
    shard = next((packed / "shards").glob("*.image.npy"))
    data = bytearray(shard.read_bytes())
    data[500] ^= 1
    shard.write_bytes(data)
    result = dspack("verify", packed)
    assert result.exit_code == 1
    assert "sample 0, key 'class_0/0.jpg'" in result.output
    assert re.search(r"^imgs\.memmap: damaged, \d findings$", result.output, re.MULTILINE)


@pytest.mark.parametrize("number", [-2, 3])
def test_a_label_that_is_no_class_is_damage(packed: Path, number: int) -> None:
    labels = readers.open(packed).labels.copy()
    labels[5] = number
    change_index(packed, label=labels)
    result = dspack("info", packed)
    assert result.exit_code == 1
    assert f"index/label.npy: sample 5 has {number}" in result.stderr
    result = dspack("convert", packed, "--to", "lmdb")
    assert result.exit_code == 5
    assert "index/label.npy" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["convert", "imgs"],
        ["convert", "--to", "lmdb"],
        ["convert", "imgs", "--to", "zip"],
        ["convert", "imgs", "--to", "lmdb", "--threads", "0"],
        ["convert", "imgs", "--to", "lmdb", "--shard-size", "many"],
        ["convert", "imgs", "--to", "lmdb", "--classes-from", "missing.txt"],
        ["verify", "imgs", "--quick", "--decode"],
        ["info"],
        ["bench", "imgs.memmap", "--split", "nope"],
    ],
)
@pytest.mark.usefixtures("packed")
def test_exit_2_wrong_use(arguments: list[str]) -> None:
    assert dspack(*arguments).exit_code == 2


def test_exit_3_packed_with_rejects(here: Path) -> None:
    write(here / "imgs" / "class_0" / "bad.jpg", b"")
    result = dspack("convert", "imgs", "--to", "memmap")
    assert result.exit_code == 3
    assert re.search("^reject: +1 x empty file$", result.output, re.MULTILINE)
    assert "imgs.memmap/rejected.jsonl (class_0/bad.jpg" in result.output
    assert (here / "imgs.memmap" / "manifest.json").exists()
    allowed = dspack("convert", "imgs", "--to", "memmap", "-o", "2", "--allow-rejects")
    assert allowed.exit_code == 0


def test_exit_4_rejects_and_nothing_published(here: Path) -> None:
    write(here / "imgs" / "class_0" / "bad.jpg", b"")
    result = dspack("convert", "imgs", "--to", "memmap", "--strict")
    assert result.exit_code == 4
    assert "class_0/bad.jpg: empty file" in result.stderr
    assert "imgs.memmap.partial" in result.stderr
    assert not (here / "imgs.memmap").exists()
    write(here / "nothing" / "a" / "1.jpg", b"")
    assert dspack("convert", "nothing", "--to", "memmap").exit_code == 4


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("missing", r"dspack: missing: no such file or folder"),
        ("empty", r"dspack: empty: no image found; the folder is empty"),
        ("links", r"dspack: links: no image found; left out: link out of the source \(1\)"),
        ("mixed", r"dspack: mixed: two readings: .*; .*--layout"),
        ("x" * 300, r"dspack: x+: "),
    ],
)
def test_exit_5_the_source_cannot_be_packed(here: Path, source: str, sentence: str) -> None:
    (here / "empty").mkdir()
    (here / "links").mkdir()
    (here / "links" / "cat").symlink_to(here / "imgs" / "class_0")
    write(here / "mixed" / "cat" / "1.jpg", IMAGE)
    write(here / "mixed" / "1.jpg", IMAGE)
    for option in ("--json", "--dry-run"):
        result = dspack("convert", source, "--to", "memmap", "-o", "out", option)
        assert result.exit_code == 5
        assert result.stdout == ""
        assert re.match(sentence, result.stderr)
    assert not (here / "out.partial").exists()


def test_exit_6_the_destination_cannot_be_written(here: Path) -> None:
    (here / "imgs.memmap").mkdir()
    result = dspack("convert", "imgs", "--to", "memmap")
    assert result.exit_code == 6
    assert result.stderr == "dspack: imgs.memmap: exists; add --overwrite to replace it\n"
    result = dspack("convert", "imgs", "--to", "memmap", "--overwrite")
    assert result.exit_code == 6
    assert "is not a pack" in result.stderr


def test_info_shows_some_of_many_classes_and_json_all(packed: Path) -> None:
    names = tuple(f"class_{i}" for i in range(300))
    change_manifest(packed, classes=names)
    shown = dspack("info", packed).stdout
    assert "classes:      300\n" in shown and "class_19" in shown and "class_20" not in shown
    assert shown.endswith("… and 280 more; --json lists all\n")
    assert tuple(json.loads(dspack("info", packed, "--json").stdout)["classes"]) == names


@pytest.mark.usefixtures("packed")
def test_info_tells_the_options_that_a_pack_was_made_with() -> None:
    plain = dspack("info", "imgs.memmap").output
    for name in ("resize", "quality", "shares", "seed", "limit"):
        assert f"\n{name}:" not in plain
    made = ["--resize", "20", "--split", "train=0.5,val=0.5", "--seed", "3", "--limit", "9"]
    assert dspack("convert", "imgs", "--to", "hdf5", *made, "--background", "red").exit_code == 0
    told = dict(re.findall(r"^([a-z ]+): +(.+)$", dspack("info", "imgs.hdf5").output, re.MULTILINE))
    assert (told["resize"], told["quality"], told["background"]) == ("20", "90", "255, 0, 0")
    assert (told["shares"], told["seed"], told["limit"]) == ("train=0.5, val=0.5", "3", "9")


@pytest.mark.parametrize("command", ["verify", "info"])
@pytest.mark.usefixtures("here")
def test_exit_7_not_a_pack(command: str) -> None:
    for path in ("imgs", "missing", "x" * 300):
        result = dspack(command, path)
        assert result.exit_code == 7
        assert re.match(rf"dspack: \S*{path}", result.stderr)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["convert", "imgs", "--to", "lmdb"],
            "; no shard was finished, so the same",
        ),
        (["convert", "imgs", "--to", "lmdb", "--dry-run"], "\n"),
        (["verify", "imgs.memmap"], "\n"),
    ],
)
@pytest.mark.usefixtures("packed")
def test_exit_130_interrupted(
    monkeypatch: pytest.MonkeyPatch, command: list[str], said: str
) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    for module, name in ((convert, "prepare_all"), (estimate, "prepare_all"), (verify, "verify")):
        monkeypatch.setattr(module, name, interrupt)
    result = dspack(*command)
    assert result.exit_code == 130
    assert result.stderr.startswith("\ndspack: interrupted" + said)


@pytest.mark.usefixtures("packed")
def test_an_error_of_the_system_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise OSError(5, "Input/output error", "imgs/a.jpg")

    monkeypatch.setattr(verify, "verify", fail)
    result = dspack("verify", "imgs.memmap")
    assert result.exit_code == 2
    assert result.stderr == "dspack: [Errno 5] Input/output error: 'imgs/a.jpg'\n"


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), MemoryError(), MemoryError("cannot allocate")]
)
@pytest.mark.usefixtures("packed")
def test_what_the_system_does_not_allow_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(verify, "verify", fail)
    result = dspack("verify", "imgs.memmap")
    assert result.exit_code == 7
    assert result.stderr.startswith(f"dspack: {str(error) or 'out of memory'}; use fewer threads")


# JSON


def members(of: type) -> set[str]:
    return {field.name for field in dataclasses.fields(of)}


def test_json_of_convert(here: Path) -> None:
    write(here / "imgs" / "class_0" / "bad.jpg", b"")
    write(here / "imgs" / "class_0" / "notes.txt", b"")
    result = dspack("convert", "imgs", "--to", "memmap", "--json")
    summary = json.loads(result.stdout)
    assert result.exit_code == 3
    assert result.stderr == ""
    assert summary.keys() == members(convert.Summary)
    assert (summary["num_samples"], summary["num_classes"], summary["num_shards"]) == (12, 3, 1)
    assert summary["rejected"] == {"empty file": 1}
    assert summary["rejected_files"] == ["class_0/bad.jpg"]
    assert summary["left_out"] == {"not an image: .txt": 1}
    assert re.fullmatch("[0-9a-f]{64}", summary["content_digest"])
    pack_bytes = sum(p.stat().st_size for p in (here / "imgs.memmap").rglob("*") if p.is_file())
    manifest_bytes = (here / "imgs.memmap" / "manifest.json").stat().st_size
    assert summary["pack_bytes"] == pack_bytes - manifest_bytes


def test_json_of_a_dry_run_which_writes_nothing(here: Path) -> None:
    for split in ("train", "val"):
        class_folder(here / "split" / split, num_classes=2)
    before = sorted(here.rglob("*"))
    result = dspack("convert", "split", "--to", "memmap", "--dry-run", "--json")
    planned = json.loads(result.stdout)
    assert result.exit_code == 0
    assert planned.keys() == members(Estimate)
    assert planned["num_files"] == 16
    assert planned["by_split"] == {"train": 8, "val": 8}
    assert planned["by_class"] == {"class_0": 8, "class_1": 8}
    sizes = sum(path.stat().st_size for path in (here / "split").rglob("*.*"))
    assert planned["source_bytes"] == sizes
    assert planned["seconds"] > 0
    assert sorted(here.rglob("*")) == before
    assert "would pack" in dspack("convert", "split", "--to", "memmap", "--dry-run").output


def test_json_of_info_and_verify(packed: Path) -> None:
    about = json.loads(dspack("info", packed, "--json").stdout)
    assert about.keys() == members(Description)
    assert about["classes"]["class_1"] == {"all": 4}
    report = json.loads(dspack("verify", packed, "--json").stdout)
    assert report.keys() == {*members(Report), "ok"}
    assert report["ok"] is True and report["findings"] == []
    (packed / "rejected.jsonl").unlink()
    result = dspack("verify", packed, "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["ok"]) == (1, False)
    assert report["findings"][0].keys() == members(Finding)
    assert report["findings"][0]["path"] == "rejected.jsonl"


# Sizes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("65536", 65536),
        ("1b", 1),
        ("1kB", 1000),
        ("1k", 1024),
        ("1KiB", 1024),
        ("512MiB", 512 << 20),
        ("512 mib", 512 << 20),
        ("1GB", 10**9),
        ("1.5g", 3 << 29),
        (".5TB", 5 * 10**11),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert ByteSize().convert(text, None, None) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "MB", "0", "0.2", "-1", "1e3", "1 2", "1XB", "1MiBs", "\u0661"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(click.BadParameter):
        ByteSize().convert(text, None, None)


# Names

NAMES = ["a b", "\u732b", "'quoted'", os.fsdecode(b"caf\xe9"), "\x1b[31mred\n", "-dash"]


@pytest.fixture
def odd_names(here: Path) -> list[Path]:
    """Folders of odd names, each with an image and a reject of that name in a class of it."""
    for name in NAMES:
        write(here / "odd" / name / name / "1.jpg", IMAGE)
        write(here / "odd" / name / name / f"{name}.jpg", b"")
    return [here / "odd" / name for name in NAMES]


def test_paths_of_any_bytes_can_be_printed(odd_names: list[Path]) -> None:
    for path in odd_names:
        result = dspack("convert", path, "--to", "memmap", "-o", f"{path}.pack")
        assert result.exit_code == 3
        assert "\x1b" not in result.stdout
        next_command = result.stdout.splitlines()[-2].strip()
        if next_command.isascii() and "\\" not in next_command:
            assert shlex.split(next_command) == ["dspack", "verify", f"{path}.pack"]
        for command in ("verify", "info"):
            assert dspack(command, f"{path}.pack").exit_code == 0
            assert dspack(command, f"{path}.missing").exit_code == 7
        assert dspack("convert", path, "--to", "memmap", "-o", f"{path}.pack").exit_code == 6
        strict = dspack("convert", path, "--to", "memmap", "-o", f"{path}.2", "--strict")
        assert strict.exit_code == 4
        assert "\x1b" not in strict.stderr
        dry_run = dspack("convert", path, "--to", "memmap", "-o", f"{path}.3", "--dry-run")
        assert dry_run.exit_code == 0


def test_what_is_half_a_character_can_be_printed_and_copied(packed: Path) -> None:
    change_manifest(packed, classes=("class_0", "\ud83d", os.fsdecode(b"\xe9\x9b\n")))
    result = dspack("info", packed)
    assert result.exit_code == 0
    assert "\\ud83d " in result.stdout and "\\xe9\\x9b\\x0a " in result.stdout
    assert dspack("convert", packed, "--to", "hdf5").exit_code == 0
    assert readers.open("imgs.hdf5").classes == readers.open(packed).classes


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
def test_a_terminal_that_knows_few_letters_is_no_trouble(
    odd_names: list[Path], charset: str
) -> None:
    source = odd_names[0].parent
    out = source.parent / os.fsdecode(b"\xe9 \xe7\x8c\xab")
    convert_it = ("convert", source, "--to", "memmap", "-o", out)
    assert dspack(*convert_it, charset=charset).exit_code == 3
    for command in ("info", "verify"):
        assert dspack(command, out, charset=charset).exit_code == 0
        assert dspack(command, f"{out}.missing", charset=charset).exit_code == 7


# Progress and pipes


def test_progress_in_a_log_is_plain_lines(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    result = dspack("convert", "imgs", "--to", "memmap")
    lines = result.stderr.splitlines()
    assert lines
    pattern = r"convert: \d+ of 12 samples, \d+ samples/s, \d+ MB/s, (\d+|inf) s left"
    assert all(re.fullmatch(pattern, line) for line in lines)
    assert lines[-1].startswith("convert: 12 of 12 samples")
    assert "verify: 12 of 12" in dspack("verify", "imgs.memmap").stderr


def test_a_short_run_leaves_no_progress_in_a_log(here: Path) -> None:
    assert dspack("convert", "imgs", "--to", "memmap").stderr == ""


def test_progress_on_a_terminal_is_a_bar(here: Path) -> None:
    terminal, its_end = pty.openpty()
    fcntl.ioctl(its_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with os.fdopen(terminal, "rb", buffering=0) as screen:
        command = [sys.executable, "-m", "packer.cli", "convert", "imgs", "--to", "memmap"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=its_end) as process:
            os.close(its_end)
            shown = b""
            try:
                while block := screen.read(4096):
                    shown += block
            except OSError:  # EIO: the other end is closed
                pass
    assert process.returncode == 0
    assert re.search(r"convert: 100%[^\r]* 12/12 [^\r]* samples/s, \d+ MB/s\]", shown.decode())


def test_progress_does_not_get_into_json(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    assert dspack("convert", "imgs", "--to", "memmap", "--json").stderr == ""
    assert dspack("verify", "imgs.memmap", "--json").stderr == ""


def test_a_reader_that_leaves_early_is_no_trouble(packed: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m packer.cli info {packed} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert result.stdout.startswith("pack: ")
    assert result.stderr == ""


def test_output_to_a_closed_pipe_is_no_trouble(packed: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "packer.cli", "info", str(packed)]
    result = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    assert result.returncode == 141
    assert result.stderr == b""


@pytest.mark.parametrize("arguments", ["info imgs.memmap", "verify imgs.memmap --json"])
@pytest.mark.usefixtures("packed")
def test_output_to_a_full_disk_is_a_sentence(arguments: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m packer.cli {arguments} > /dev/full"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert result.returncode == 6
    assert result.stderr == "dspack: the output cannot be written: No space left on device\n"


def test_closed_standard_streams_are_no_trouble(here: Path) -> None:
    command = f"{sys.executable} -W error -m packer.cli convert imgs --to memmap -o pack"
    result = subprocess.run(f"{command} <&- >&- 2>&-", shell=True, cwd=here, check=False)
    assert result.returncode == 0
    assert dspack("verify", here / "pack").exit_code == 0


def test_a_run_that_goes_on_says_so(here: Path) -> None:
    class Stopped(BaseException):
        pass

    def stop(num_done: int, num_bytes: int, num_total: int) -> None:
        if num_done == num_total:
            raise Stopped

    options = Options("memmap", shard_bytes=4000)
    with pytest.raises(Stopped):
        convert.convert(Path("imgs"), Path("imgs.memmap"), options, threads=1, progress=stop)
    result = dspack("convert", "imgs", "--to", "memmap", "--shard-size", "5000")
    assert result.exit_code == 6
    assert "an unfinished run is here that has shard_size 4000, not 5000" in result.stderr
    result = dspack("convert", "imgs", "--to", "memmap", "--shard-size", "4000")
    assert result.exit_code == 0
    assert re.search(r"samples: +12, \d+ of them by the run before", result.output)
    assert not (here / "imgs.memmap.partial").exists()


@pytest.mark.parametrize("seconds", ["nan", "inf", "0"])
def test_a_time_that_never_ends_is_wrong_use(packed: Path, seconds: str) -> None:
    assert dspack("bench", packed, "--seconds", seconds).exit_code == 2
