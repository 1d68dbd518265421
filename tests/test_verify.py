"""dspack verify: an intact pack is whole, and no damage stays unseen, crashes it or stops it."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from images import class_folder, jpeg, photo, png, write
from packs import (
    Recipe,
    Row,
    change_format_version,
    change_index,
    change_manifest,
    files_of,
    flip,
    place_of,
)

import readers
from packer import examine
from packer.cli import main
from packer.verify import Finding, Report, verify
from readers import formats
from readers.errors import NoPermission, NotAPack
from readers.index import column_path, map_columns
from readers.manifest import Field, Manifest
from readers.pack import Pack

MODES = {"structure": {"quick": True}, "samples": {}, "images": {"decode_images": True}}


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, make_pack: Callable[..., Path]
) -> Callable[[str], Path]:
    """made(format_name) -> a pack of six samples and a reject, in three shards; to be copied."""
    folder = tmp_path_factory.mktemp("made")
    class_folder(folder / "imgs", num_classes=2, per_class=3)
    write(folder / "imgs" / "class_0" / "broken.jpg", b"not an image")
    for name in formats.names():
        make_pack(folder / "imgs", folder / name, name, shard_bytes=5000)
    return lambda name: folder / name


@pytest.fixture
def pack(made: Callable[[str], Path], tmp_path: Path, format_name: str) -> Path:
    return Path(shutil.copytree(made(format_name), tmp_path / "pack"))


def check(pack: Path, **mode: bool) -> Report:
    return verify(pack, threads=2, **mode)


def samples(report: Report) -> set[tuple[int, str]]:
    """(index, key) of the samples that a report names."""
    return {(f.index, f.key) for f in report.findings if f.index is not None}


def files(report: Report) -> set[str]:
    return {f.path for f in report.findings if f.path is not None}


def others(pack: Path) -> list[Path]:
    """A pack's files but for its shards'."""
    return [path for path in files_of(pack) if path.parent.name != "shards"]


def shards(pack: Path) -> list[Path]:
    return [path for path in files_of(pack) if path.parent.name == "shards"]


def name_of(path: Path, pack: Path) -> str:
    return str(path.relative_to(pack))


# Intact packs


@pytest.mark.parametrize("mode", MODES)
def test_an_intact_pack_is_whole(pack: Path, format_name: str, mode: str) -> None:
    report = check(pack, **MODES[mode])
    manifest = Manifest.load(pack)
    assert report.ok and report.findings == []
    assert (report.path, report.format, report.checked) == (str(pack), format_name, mode)
    assert report.num_samples == 6 and len(manifest.shards) == 3
    assert report.num_bytes == sum(path.stat().st_size for path in shards(pack))
    assert report.content_digest == manifest.content_digest


def test_a_pack_that_is_open_is_whole(pack: Path) -> None:
    with readers.open(pack) as opened:
        for i in range(6):
            opened.read(i)
        assert check(pack, decode_images=True).ok
        assert opened[5].key == "class_1/2.png"


@pytest.mark.parametrize("mode", MODES)
def test_two_fields_arrays_and_splits(tmp_path: Path, format_name: str, mode: str) -> None:
    rows = [
        Row(f"{i}", {"image": photo(i, 5, 4).tobytes(), "mask": b"m" * (i + 1)}, -1, i % 2, 5, 4)
        for i in range(7)
    ]
    fields = {"mask": Field("bytes"), "image": Field("array", "|u1", (4, 5, 3))}
    recipe = Recipe(rows, splits=("train", "val"), shard_sizes=(3, 4), fields=fields)
    assert check(recipe.write(tmp_path / "pack", format_name), **MODES[mode]).findings == []


def test_progress_reaches_its_end(pack: Path) -> None:
    steps: list[tuple[int, int]] = []
    verify(pack, threads=2, progress=lambda done, num_bytes, total: steps.append((done, total)))
    assert steps == sorted(steps) and steps[0] == (0, 6) and steps[-1] == (6, 6)
    stored = sum(map(len, map(readers.open(pack).read, range(6))))
    seen: list[tuple[int, int]] = []
    verify(pack, decode_images=True, threads=2, progress=lambda *step: seen.append(step[:2]))
    images = seen[len(steps) :]  # they are counted anew
    assert images[0] == (0, 0) and images[-1][0] == 6 and sum(n for _, n in images) == stored


def test_what_is_no_pack(pack: Path, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", pack / "manifest.json"):
        with pytest.raises(NotAPack):
            check(path)
    change_format_version(pack, 2)
    with pytest.raises(NotAPack, match="newer"):
        check(pack)


# Damaged files


def positions(path: Path, number: int) -> Iterator[int]:
    """The first byte, the middle one, the last one, and some at random."""
    size = path.stat().st_size
    yield from (0, size // 2, size - 1)
    rng = random.Random(path.name)
    yield from (rng.randrange(size) for _ in range(number))


def test_a_flipped_byte_of_the_index_or_the_manifest_is_found(pack: Path) -> None:
    rng = random.Random(0)
    assert {"manifest.json", "rejected.jsonl"} < {path.name for path in others(pack)}
    for path in others(pack):
        for position in positions(path, 5):
            mask = rng.choice([0xFF, *(1 << bit for bit in range(8))])
            flip(path, position, mask)
            assert name_of(path, pack) in files(check(pack)), (path, position, mask)
            flip(path, position, mask)
    assert check(pack).ok


@pytest.mark.parametrize("space", [b"\n", b"\t", b"\r", b""])
def test_a_manifest_that_still_says_the_same_is_found(pack: Path, space: bytes) -> None:
    manifest = pack / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b": ", b":" + space))
    assert files(check(pack, quick=True)) == {"manifest.json"}


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("damage", ["cut", "emptied", "longer", "a space longer", "deleted"])
def test_a_file_of_another_size_is_found(pack: Path, damage: str, quick: bool) -> None:
    for path in others(pack):
        data = path.read_bytes()
        if damage == "deleted":
            path.unlink()
            if path.name == "manifest.json":
                with pytest.raises(NotAPack):
                    check(pack, quick=quick)
        else:
            path.write_bytes(
                {
                    "cut": data[:-1],
                    "emptied": b"",
                    "longer": data + b"\0",
                    "a space longer": data + b" ",
                }[damage]
            )
        if path.exists() or path.name != "manifest.json":
            assert name_of(path, pack) in files(check(pack, quick=quick))
        path.write_bytes(data)
    assert check(pack).ok


@pytest.mark.parametrize("where", ["first byte", "middle", "last byte"])
def test_a_flipped_byte_of_a_shard_is_found(pack: Path, where: str) -> None:
    for file in Manifest.load(pack).shards[-1].files:
        flip(pack / file.name, {"first byte": 0, "middle": file.num_bytes // 2}.get(where, -1))
        assert file.name in files(check(pack))


@pytest.mark.parametrize("damage", ["cut", "emptied", "longer", "deleted"])
def test_a_shard_of_another_size_is_found(pack: Path, damage: str) -> None:
    path = shards(pack)[0]
    data = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    else:
        cut, longer = data[: len(data) // 2], data + b"\0"
        path.write_bytes({"cut": cut, "emptied": b"", "longer": longer}[damage])
    assert files(check(pack, quick=True)) == {name_of(path, pack)}
    report = check(pack)
    assert name_of(path, pack) in files(report)
    lost = Manifest.load(pack).shards[0].num_samples
    if damage == "deleted":
        assert any(f"samples 0 to {lost - 1}" in finding.reason for finding in report.findings)
    else:
        assert {index for index, _ in samples(report)} == set(range(lost))


def test_every_damaged_sample_is_named_and_no_other(pack: Path) -> None:
    opened = readers.open(pack)
    stored = {i: opened.read(i) for i in (0, 2, 4)}
    for i, byte in ((0, 0), (2, len(stored[2]) // 2), (4, len(stored[4]) - 1)):
        path, position = place_of(pack, stored[i])
        flip(path, position + byte)
    report = check(pack)
    assert samples(report) == {(i, opened.keys[i]) for i in stored}
    assert len(files(report)) == 2, "and the files that they are in"
    assert check(pack, quick=True).ok, "which reads no sample"


def test_it_goes_on_to_the_end(pack: Path) -> None:
    """Damage in the rejects, two columns and two shards: five findings, or more."""
    opened = readers.open(pack)
    first, last = opened.read(0), opened.read(5)
    (pack / "rejected.jsonl").unlink()
    flip(column_path(pack, "width"), -1, 1)
    flip(column_path(pack, "label"), -8, 1)
    for value in (first, last):
        path, position = place_of(pack, value)
        flip(path, position + 7)
    report = check(pack, decode_images=True)
    assert {"rejected.jsonl", "index/width.npy", "index/label.npy"} < files(report)
    assert {0, 5} <= {index for index, _ in samples(report)}
    assert any("content digest" in finding.reason for finding in report.findings)


def test_damaged_pages_of_lmdb(made: Callable[[str], Path], tmp_path: Path) -> None:
    """Page headers, branch and meta pages: the library may crash on them, verify does not."""
    rows = [Row(f"{i:04}", {"image": bytes([i % 251]) * (i % 50 + 1)}) for i in range(400)]
    pack = Recipe(rows).write(tmp_path / "pack", "lmdb")
    (path,) = shards(pack)
    rng = random.Random(0)
    num_pages = path.stat().st_size // 4096
    places = [(0, 60), (1, 90)]  # both meta pages
    places += [(rng.randrange(2, num_pages), rng.randrange(40)) for _ in range(6)]
    data = path.read_bytes()
    for page, byte in places:
        flip(path, 4096 * page + byte, rng.choice([0xFF, 0x01, 0x80]))
        assert name_of(path, pack) in files(check(pack))
        path.write_bytes(data)
    assert check(pack).ok


# A library that crashes


def crashing_python(folder: Path, script: str) -> str:
    """A program in Python's place that does what `script` says with $START, the position."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nSTART=$5\nsay() {{ echo "$1"; }}\n{script}\n')
    program.chmod(0o755)
    return str(program)


def test_the_sample_that_crashes_the_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    i=$START
    while [ $i -lt 6 ]; do
        echo "[$i, null]"
        [ $i -eq 1 ] && echo "[1, \\"damaged\\"]"
        [ $i -eq 2 ] && kill -SEGV $$
        if [ $i -eq 4 ]; then printf '[4, "dam'; kill -BUS $$; fi
        i=$((i+1))
    done
    """
    monkeypatch.setattr(examine.sys, "executable", crashing_python(tmp_path, script))
    found = dict(examine.examine_apart(tmp_path, "00000", 100, False))
    assert set(found) == {101, 102, 104}
    assert found[101] == "damaged"
    assert "crashes" in found[102] and "crashes" in found[104]


def test_what_goes_wrong_with_one_sample_does_not_hide_the_others(
    pack: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever it is: an error that nobody thought of is no reason to look no further."""
    read = Pack.read

    def failing(self: Pack, i: int, field: str = "image") -> bytes:
        if i == 1:
            raise TypeError("not foreseen")
        return read(self, i, field)

    monkeypatch.setattr(Pack, "read", failing)
    examine._examine(pack, "00000", 0, False)
    said = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line for line in said if line[1]] == [[1, "reading it fails: TypeError: not foreseen"]]
    assert [position for position, reason in said if reason is None] == [0, 1, 2]


def test_a_library_that_always_crashes_is_given_up(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = crashing_python(tmp_path, 'echo "[$START, null]"; kill -SEGV $$')
    monkeypatch.setattr(examine.sys, "executable", always)
    found = list(examine.examine_apart(pack, "00000", 0, False))
    assert [row for row, _ in found] == list(range(examine._CRASHES_MAX))
    assert "the rest of its shard" in found[-1][1]
    monkeypatch.setattr(examine, "_CRASHES_MAX", 1)
    flip(shards(pack)[-1], 40)
    assert max(index for index, _ in samples(check(pack))) < 6


# What the index promises; all checksums and the content digest are made to match


def columns_of(pack: Path) -> dict[str, np.ndarray]:
    manifest = Manifest.load(pack)
    columns = map_columns(pack, manifest.num_samples, list(manifest.fields))
    return {name: column.copy() for name, column in columns.items()}


BROKEN = {
    # name: (column, row or rows, value)
    "a label below -1": ("label", 0, -2),
    "a label without a class": ("label", 2, 2),
    "a split where there is none": ("split", 1, 0),
    "a split below -1": ("split", 1, -2),
    "a sample in no shard": ("shard", 5, 3),
    "a sample in another shard": ("shard", 0, 1),
    "a position twice": ("position", 1, 0),
    "a position past the shard": ("position", 5, 9),
    "a key offset past the keys": ("key_offset", 6, 1000),
    "a key that ends before it begins": ("key_offset", 3, 0),
    "an empty key": ("key_offset", 1, 0),
    "a first key that is cut": ("key_offset", 0, 1),
    "no width": ("width", 3, 0),
    "a negative height": ("height", 3, -1),
    "orientation 0": ("orientation", 4, 0),
    "orientation 9": ("orientation", 4, 9),
    "an offset": ("image.offset", 1, 5),
    "a value without bytes": ("image.length", 5, 0),
    "a negative length": ("image.length", 5, -1),
}


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("mode", ["structure", "images"])
def test_a_broken_promise_of_the_index_is_found(pack: Path, broken: str, mode: str) -> None:
    name, row, value = BROKEN[broken]
    column = columns_of(pack)[name]
    column[row] = value
    change_index(pack, **{name.replace(".", "__"): column})
    report = check(pack, **MODES[mode])
    assert f"index/{name}.npy" in files(report)


def test_a_key_that_occurs_twice_is_found(pack: Path) -> None:
    keys = columns_of(pack)["keys"]
    assert keys.tobytes().startswith(b"class_0/0.jpgclass_0/1.jpg")
    keys[13:26] = keys[:13]
    change_index(pack, keys=keys)
    assert files(check(pack)) == {"index/keys.npy"}


@pytest.mark.parametrize("damage", ["dtype", "rows", "dimensions", "missing"])
def test_a_column_of_another_kind_is_found(pack: Path, damage: str) -> None:
    for path in sorted((pack / "index").iterdir()):
        data, column = path.read_bytes(), np.load(path)
        wrong = {
            "dtype": column.astype("<f8"),
            "rows": column[:-1],
            "dimensions": column[:, None],
            "missing": column,
        }[damage]
        np.save(path, wrong)
        manifest = Manifest.load(pack)
        size = path.stat().st_size
        if damage == "missing":
            path.unlink()
        described = [f for f in manifest.files if f.name == name_of(path, pack)]
        assert len(described) == 1 and size
        assert name_of(path, pack) in files(check(pack)), path
        path.write_bytes(data)


def test_a_length_that_is_another_value_s_is_found(pack: Path) -> None:
    """Two lengths that add up to the same: every sum holds, and the values are whole."""
    columns = columns_of(pack)
    shard = columns["shard"]
    row = next(i for i in range(5) if shard[i] == shard[i + 1])
    length, offset = columns["image.length"], columns["image.offset"]
    length[row] += 1
    length[row + 1] -= 1
    offset[row + 1] += 1
    change_index(pack, image__length=length, image__offset=offset)
    report = check(pack)
    assert {index for index, _ in samples(report)} == {row, row + 1}
    assert not files(report)


def test_a_checksum_that_is_another_value_s_is_found(pack: Path) -> None:
    checksums = columns_of(pack)["image.checksum"]
    checksums[2], checksums[4] = checksums[4].copy(), checksums[2].copy()
    change_index(pack, image__checksum=checksums)
    assert samples(check(pack)) == {(2, "class_0/2.png"), (4, "class_1/1.jpg")}


def test_a_content_digest_that_is_another_s_is_found(pack: Path) -> None:
    change_manifest(pack, content_digest="0" * 64)
    (finding,) = check(pack).findings
    assert "content digest" in finding.reason


@pytest.mark.parametrize("change", [-1, 1])
def test_shards_that_do_not_add_up_are_found(pack: Path, change: int) -> None:
    first, *rest = Manifest.load(pack).shards
    resized = type(first)(first.name, first.num_samples + change, first.files)
    change_manifest(pack, shards=(resized, *rest))
    assert "manifest.json" in files(check(pack))
    change_manifest(pack, num_samples=6 + change)
    for mode in MODES.values():
        assert not check(pack, **mode).ok


def test_shards_in_another_order_are_found(pack: Path) -> None:
    first, second, third = Manifest.load(pack).shards
    change_manifest(pack, shards=(first, third, second))
    assert {index for index, _ in samples(check(pack))} >= {5}


def test_a_shard_with_more_values_than_the_index_is_found(tmp_path: Path, format_name: str) -> None:
    rows = [Row(f"{i}", {"image": b"x" * (i + 1)}) for i in range(4)]
    long = Recipe(rows).write(tmp_path / "long", format_name)
    short = Recipe(rows[:3]).write(tmp_path / "short", format_name)
    shutil.rmtree(short / "shards")
    shutil.copytree(long / "shards", short / "shards")
    change_manifest(
        short, shards=tuple(type(s)(s.name, 3, s.files) for s in Manifest.load(long).shards)
    )
    (finding,) = check(short).findings
    assert "holds 4 values, not 3" in finding.reason


# Images


def test_decode_names_what_cannot_be_decoded(tmp_path: Path, format_name: str) -> None:
    good = png(photo(0, 6, 4))
    rows = [
        Row("good.png", {"image": good}, width=6, height=4),
        Row("rubbish.jpg", {"image": b"\xff\xd8\xffrubbish"}),
        Row("size.png", {"image": good}, width=4, height=6),
        Row("turned.jpg", {"image": jpeg(photo(0, 6, 4), 6)}, width=4, height=6, orientation=6),
    ]
    pack = Recipe(rows, shard_sizes=(2, 2)).write(tmp_path / "pack", format_name)
    assert check(pack).ok
    report = check(pack, decode_images=True)
    assert samples(report) == {(1, "rubbish.jpg"), (2, "size.png")}
    reasons = {finding.index: finding.reason for finding in report.findings}
    assert "decode" in reasons[1] and "(4, 6, 3)" in reasons[2]


def test_decode_names_an_array_that_is_none(tmp_path: Path, format_name: str) -> None:
    rows = [Row(f"{n}", {"image": bytes(n)}, width=2, height=1) for n in (6, 5, 7, 12)]
    pack = Recipe(rows, fields={"image": Field("array", "|u1", (1, 2, 3))})
    report = check(pack.write(tmp_path / "pack", format_name), decode_images=True)
    assert {index for index, _ in samples(report)} == {1, 2, 3}


# The report


def test_the_report_is_json(tmp_path: Path, format_name: str) -> None:
    rows = [Row("a/\udce9.jpg", {"image": b"some bytes"}), Row("b", {"image": b"others"})]
    pack = Recipe(rows).write(tmp_path / "pack", format_name)
    path, position = place_of(pack, b"some bytes")
    flip(path, position)
    run = CliRunner().invoke(main, ["verify", str(pack), "--json"])
    assert run.exit_code == 1
    report = json.loads(run.stdout)
    assert report["ok"] is False and report["num_samples"] == 2
    assert {(f["index"], f["key"]) for f in report["findings"]} == {(None, None), (0, rows[0].key)}
    assert {f["path"] for f in report["findings"]} == {name_of(path, pack), None}


def test_a_finding_is_one_line_for_people() -> None:
    assert str(Finding("is missing", "index/label.npy")) == "index/label.npy: is missing"
    assert str(Finding("differs", index=3, key="a/b.jpg")) == "sample 3, key 'a/b.jpg': differs"


def test_a_folder_that_may_not_be_looked_into_is_no_damage(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.stat

    def refused(path: Any, **options: Any) -> os.stat_result:
        if "/shards/" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, **options)

    monkeypatch.setattr(os, "stat", refused)
    with pytest.raises(NoPermission, match=r"shards/.*may not be read"):
        check(pack)
