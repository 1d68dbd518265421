"""A pack as a source: any format to any other, nothing changed; and parts of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from images import class_folder, jpeg, photo, write

from packer.cli import main
from packer.convert import convert
from packer.options import Options
from packer.plan.part import Part
from packer.verify import verify
from readers import formats
from readers.errors import SourceError
from readers.pack import Pack

MakePack = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder") / "imgs"
    class_folder(root / "train")
    class_folder(root / "val", num_classes=2, seed=7)
    (root / "train" / "empty").mkdir()
    write(root / "train" / "class_0" / "a" / "caf\udce9.jpg", jpeg(photo()))
    return root


@pytest.fixture(scope="module")
def source(folder: Path, tmp_path_factory: pytest.TempPathFactory, make_pack: MakePack) -> Path:
    out = tmp_path_factory.mktemp("source") / "imgs.lmdb"
    return make_pack(folder, out, "lmdb", shard_bytes=4000)


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("first", formats.names())
@pytest.mark.parametrize("second", formats.names())
def test_any_format_to_any_other(
    folder: Path, tmp_path: Path, make_pack: MakePack, first: str, second: str
) -> None:
    made = make_pack(folder, tmp_path / "first", first, shard_bytes=4000)
    copy = make_pack(made, tmp_path / "second", second, shard_bytes=9000)
    before, after = Pack(made), Pack(copy)
    assert after.content_digest == before.content_digest
    assert (after.classes, after.splits) == (before.classes, before.splits)
    assert list(after.keys) == list(before.keys)
    assert [after.read(i) for i in range(len(after))] == [
        before.read(i) for i in range(len(before))
    ]
    assert verify(copy, threads=2).ok


def test_a_class_map_and_order_that_folders_do_not_give(tmp_path: Path, folder: Path) -> None:
    """A pack made with another class map or layout is copied as it is."""
    options = Options("memmap", classes=("class_2", "empty", "other", "class_1", "class_0"))
    convert(folder, tmp_path / "first", options, threads=2)
    convert(tmp_path / "first", tmp_path / "second", Options("hdf5"), threads=2)
    flat = Options("memmap", layout="flat")
    convert(folder, tmp_path / "flat", flat, threads=2)
    convert(tmp_path / "flat", tmp_path / "copy", Options("memmap"), threads=2)
    assert Pack(tmp_path / "second").content_digest == Pack(tmp_path / "first").content_digest
    assert Pack(tmp_path / "copy").content_digest == Pack(tmp_path / "flat").content_digest


def test_another_class_map_goes_by_name(tmp_path: Path, source: Path) -> None:
    names = ("empty", "class_1", "class_2", "class_0")
    convert(source, tmp_path / "pack", Options("memmap", classes=names), threads=2)
    before, after = Pack(source), Pack(tmp_path / "pack")
    assert after.classes == list(names)
    assert [names[i] for i in after.labels] == [before.classes[i] for i in before.labels]
    with pytest.raises(SourceError, match="'class_2' is not in the given class map"):
        convert(source, tmp_path / "b", Options("memmap", classes=names[:2] + names[3:]), threads=2)


def test_default_name(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    run(source, "--to", "hdf5")
    assert Pack(tmp_path / "imgs.hdf5").content_digest == Pack(source).content_digest


# Parts


def test_a_split(tmp_path: Path, source: Path) -> None:
    run(source, "--to", "memmap", "-o", tmp_path / "pack", "--split", "val")
    part, whole = Pack(tmp_path / "pack"), Pack(source, "val")
    assert part.splits == ["val"]
    assert part.classes == whole.classes
    assert list(part.keys) == list(whole.keys)
    assert part.labels.tolist() == whole.labels.tolist()


def test_classes_keep_their_labels(tmp_path: Path, source: Path) -> None:
    run(source, "--to", "memmap", "-o", tmp_path / "pack", "--classes", "class_2,class_1")
    part, whole = Pack(tmp_path / "pack"), Pack(source)
    assert part.classes == whole.classes
    assert set(part.labels.tolist()) == {1, 2}
    assert list(part.keys) == [k for k in whole.keys if "class_0" not in k]


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        (["--classes", "crane, bird"], ["crane, bird"]),
        (["--classes", "a,b"], ["a,b"]),  # a class of just this name comes before two of its parts
        (["--classes", "a", "--classes", "b"], ["a", "b"]),
        (["--classes", "b,cat", "--classes", "crane, bird"], ["b", "cat", "crane, bird"]),
    ],
)
def test_names_of_classes_may_have_commas(
    tmp_path: Path, arguments: list[str], taken: list[str]
) -> None:
    for name in ("a", "b", "a,b", "cat", "crane, bird"):
        write(tmp_path / "imgs" / name / "1.jpg", jpeg(photo(len(name))))
    run(tmp_path / "imgs", "--to", "memmap", "-o", tmp_path / "pack", *arguments)
    pack = Pack(tmp_path / "pack")
    assert [pack.classes[label] for label in pack.labels] == sorted(taken)


def test_a_number_of_samples_of_all_classes_and_splits(tmp_path: Path, source: Path) -> None:
    run(source, "--to", "memmap", "-o", tmp_path / "pack", "--limit", 7)
    part = Pack(tmp_path / "pack")
    assert len(part) == 7
    assert set(part.index["split"].tolist()) == {0, 1}
    assert set(part.labels.tolist()) == {0, 1, 2}


def test_a_part_of_a_folder(tmp_path: Path, folder: Path) -> None:
    part = Part(splits=("train",), classes=("class_1",), limit=2)
    summary = convert(folder, tmp_path / "pack", Options("memmap", part=part), threads=2)
    assert summary.num_samples == 2
    assert summary.by_split == {"train": 2}
    assert Pack(tmp_path / "pack").manifest.made["part"]["classes"] == ["class_1"]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part(splits=("dev",)), "no split 'dev'; it has train, val"),
        (Part(classes=("dog",)), "no class 'dog'; it has class_0, class_1"),
        (Part(classes=("class_0, class_1",)), "no class ' class_1', but 'class_1'; it has class_0"),
        (Part(splits=("Val",)), "no split 'Val', but 'val'; it has train, val"),
        (Part(splits=("val",), classes=("class_2",)), "no sample is in these"),
    ],
)
def test_parts_that_are_not_there(tmp_path: Path, source: Path, part: Part, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        convert(source, tmp_path / "pack", Options("memmap", part=part), threads=2)


def test_new_splits_do_not_mix_old_ones_unasked(tmp_path: Path, source: Path) -> None:
    command = [str(source), "--to", "memmap", "-o", str(tmp_path / "pack")]
    result = CliRunner().invoke(main, ["convert", *command, "--split", "a=0.5,b=0.5"])
    assert result.exit_code == 5
    assert "--split NAME --split NAME=SHARE" in result.output
    run(*command, "--split", "train", "--split", "a=0.5,b=0.5")
    pack = Pack(tmp_path / "pack")
    assert pack.splits == ["a", "b"]
    assert sorted(Counter(pack.index["split"].tolist()).values()) == [6, 7]
    assert all(key.startswith("train/") for key in pack.keys)


# Damage


def test_a_damaged_sample_is_a_reject(tmp_path: Path, folder: Path, make_pack: MakePack) -> None:
    made = make_pack(folder, tmp_path / "made", "memmap")
    data = np.load(made / "shards" / "00000.image.npy", mmap_mode="r+")
    data[50] ^= 1
    data.flush()
    del data
    summary = convert(made, tmp_path / "pack", Options("lmdb"), threads=2)
    assert summary.rejected == {"damaged in the source pack": 1}


def test_a_pack_without_a_shard_is_an_error(
    tmp_path: Path, folder: Path, make_pack: MakePack
) -> None:
    made = make_pack(folder, tmp_path / "made", "hdf5", shard_bytes=4000)
    (made / "shards" / "00001.h5").unlink()
    with pytest.raises(SourceError, match=r"00001\.h5.*cannot be read"):
        convert(made, tmp_path / "pack", Options("lmdb"), threads=2)


def test_a_pack_that_vanishes_is_no_trouble_of_the_destination(
    tmp_path: Path, folder: Path, make_pack: MakePack
) -> None:
    made = make_pack(folder, tmp_path / "made", "memmap")

    def vanish(num_done: int, num_bytes: int, num_total: int) -> None:
        (made / "manifest.json").unlink(missing_ok=True)

    with pytest.raises(SourceError, match=r"made/manifest\.json: cannot be read"):
        convert(made, tmp_path / "pack", Options("memmap"), threads=2, progress=vanish)


def test_other_labels_are_another_run(tmp_path: Path, source: Path) -> None:
    """An unfinished run with other splits must not be taken for this one."""
    from packer.plan.split import NewSplits

    part = Part(splits=("train",))
    for seed in (0, 1):
        new = NewSplits((("a", 0.5), ("b", 0.5)), seed=seed)
        options = Options("memmap", part=part, new_splits=new)
        convert(source, tmp_path / f"pack{seed}", options, threads=2)
    digests = [Pack(tmp_path / f"pack{seed}").content_digest for seed in (0, 1)]
    assert digests[0] != digests[1]


# Duplicates and names


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A picture twice in a class, one in two splits, one in two classes."""
    one, two, three = (jpeg(photo(seed)) for seed in range(3))
    for path, data in {
        "train/a/1.jpg": one,
        "train/a/2.jpg": one,
        "train/a/3.jpg": two,
        "val/a/4.jpg": two,
        "train/b/5.jpg": three,
        "train/a/6.jpg": three,
        "val/b/7.jpg": jpeg(photo(9)),
    }.items():
        write(tmp_path / "imgs" / path, data)
    return tmp_path / "imgs"


def test_duplicates_are_counted_and_listed_where_they_cross(tmp_path: Path, copies: Path) -> None:
    summary = convert(copies, tmp_path / "pack", Options("memmap"), threads=2)
    assert summary.num_samples == 7
    notes = "\n".join(summary.notes)
    assert "3 samples are exact copies of others" in notes
    assert "1 sets of copies lie in several splits" in notes
    assert "1 sets of copies lie in several classes" in notes
    lines = (tmp_path / "pack" / "duplicates.jsonl").read_text("ascii").splitlines()
    listed = {tuple(row.pop("keys")): row for row in map(json.loads, lines)}
    assert listed == {
        ("train/a/3.jpg", "val/a/4.jpg"): {"crosses_splits": True, "crosses_classes": False},
        ("train/a/6.jpg", "train/b/5.jpg"): {"crosses_splits": False, "crosses_classes": True},
    }
    assert verify(tmp_path / "pack", threads=1).ok


def test_dropping_duplicates(tmp_path: Path, copies: Path) -> None:
    arguments = (copies, "--to", "memmap", "-o", tmp_path / "pack", "--drop-duplicates")
    assert "3 x duplicate" in run(*arguments, "--strict")
    assert list(Pack(tmp_path / "pack").keys) == [
        "train/a/1.jpg",
        "train/a/3.jpg",
        "train/a/6.jpg",
        "val/b/7.jpg",
    ]
    lines = (tmp_path / "pack" / "rejected.jsonl").read_text("ascii").splitlines()
    assert json.loads(lines[0]) == {
        "key": "train/a/2.jpg",
        "reason": "duplicate",
        "detail": "the same bytes as train/a/1.jpg",
    }
    assert not (tmp_path / "pack" / "duplicates.jsonl").exists()


def test_dropped_duplicates_are_no_rejects(tmp_path: Path, copies: Path) -> None:
    write(copies / "val/b/broken.jpg", b"no picture")
    options = Options("memmap", drop_duplicates=True)
    summary = convert(copies, tmp_path / "pack", options, threads=2)
    manifest = Pack(tmp_path / "pack").manifest
    assert sum(summary.rejected.values()) == manifest.num_rejected == 1
    assert "duplicate" not in {**summary.rejected, **manifest.made["rejected"]}
    assert summary.left_out == manifest.made["left_out"] == {"duplicate": 3}
    lines = (tmp_path / "pack" / "rejected.jsonl").read_text("ascii").splitlines()
    assert [json.loads(line)["reason"] for line in lines].count("duplicate") == len(lines) - 1 == 3
    again = convert(tmp_path / "pack", tmp_path / "again", Options("lmdb"), threads=2)
    assert "the source pack was made with 1 rejects of its own" in again.notes


def test_names_that_windows_takes_for_one(tmp_path: Path) -> None:
    for name in ("a/Cat.jpg", "a/cat.jpg", "a/\u00e9.jpg", "a/e\u0301.jpg", "a/x\uf03ay.jpg"):
        write(tmp_path / "imgs" / name, jpeg(photo(len(name))))
    summary = convert(tmp_path / "imgs", tmp_path / "pack", Options("memmap"), threads=2)
    notes = "\n".join(summary.notes)
    assert "2 sets of keys differ only in case or Unicode form" in notes
    assert "a/Cat.jpg and a/cat.jpg" in notes
    assert "1 keys have characters U+F0xx" in notes
