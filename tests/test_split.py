"""Splits by shares: stratified, grouped, the same everywhere."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from images import class_folder, jpeg, photo, write

from packer.cli import main
from packer.plan.split import assign
from readers.errors import SourceError
from readers.pack import Pack


def counts(labels: np.ndarray, split_ids: np.ndarray) -> dict[int, list[int]]:
    """Samples of every class by split."""
    num_splits = int(split_ids.max()) + 1
    return {
        int(c): np.bincount(split_ids[labels == c], minlength=num_splits).tolist()
        for c in np.unique(labels)
    }


def keys_of(number: int) -> list[str]:
    return [f"a/{i:05d}.jpg" for i in range(number)]


# assign


def test_every_class_gets_its_shares() -> None:
    labels = np.repeat([0, 1, 2, -1], [100, 50, 20, 10])
    split_ids = assign(keys_of(180), labels, [0.8, 0.1, 0.1], seed=0)
    assert counts(labels, split_ids) == {
        0: [80, 10, 10],
        1: [40, 5, 5],
        2: [16, 2, 2],
        -1: [8, 1, 1],
    }


def test_classes_too_small_for_their_share_even_out() -> None:
    """Of 100 classes of 5, half give a sample to val, or one more or less: together they have
    the share."""
    labels = np.repeat(np.arange(100), 5)
    split_ids = assign(keys_of(500), labels, [0.9, 0.1], seed=0)
    assert abs(Counter(split_ids.tolist())[1] - 50) <= 1
    assert {tuple(c) for c in counts(labels, split_ids).values()} == {(5, 0), (4, 1)}


def test_a_class_of_one_goes_to_the_largest_share() -> None:
    assert assign(["a"], np.array([0]), [0.2, 0.8], seed=3).tolist() == [1]


def test_the_seed_decides_and_nothing_else() -> None:
    """The order in which keys come does not matter; and the result is fixed for ever."""
    keys, labels = keys_of(40), np.arange(40) % 2
    first = assign(keys, labels, [0.5, 0.5], seed=1)
    back = assign(keys[::-1], labels[::-1], [0.5, 0.5], seed=1)
    assert first.tolist() == back[::-1].tolist()
    assert first.tolist() != assign(keys, labels, [0.5, 0.5], seed=2).tolist()
    assert "".join(map(str, first.tolist())) == "1011101010110110010100111001000001011100"


@given(
    labels=st.lists(st.integers(-1, 4), min_size=1, max_size=80),
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_no_class_is_further_from_its_share_than_one_sample(
    labels: list[int], shares: list[int], seed: int
) -> None:
    parts = [share / sum(shares) for share in shares]
    split_ids = assign(keys_of(len(labels)), np.array(labels), parts, seed)
    for c in set(labels):
        rows = [s for s, label in zip(split_ids.tolist(), labels, strict=True) if label == c]
        for s, part in enumerate(parts):
            assert abs(rows.count(s) - part * len(rows)) < 1 + 1e-6


@pytest.mark.parametrize("shares", [[0.9, 0.1], [0.7, 0.2, 0.1]])
def test_a_sample_more_moves_hardly_any_other(shares: list[float]) -> None:
    """What was held out of one training must not be in the next one's."""
    labels = np.repeat(np.arange(20), 51)
    keys = keys_of(len(labels))
    before = dict(zip(keys, assign(keys, labels, shares, 0).tolist(), strict=True))
    for at in (0, 500, 1020):  # in the first class, in the middle, in the last
        label = labels[min(at, 1019)]
        more_keys = [*keys[:at], "a/new.jpg", *keys[at:]]
        more_labels = np.insert(labels, at, label)
        after = dict(
            zip(more_keys, assign(more_keys, more_labels, shares, 0).tolist(), strict=True)
        )
        moved = [key for key in keys if before[key] != after[key]]
        in_class = {key for key, c in zip(more_keys, more_labels, strict=True) if c == label}
        assert set(moved) <= in_class and len(moved) <= len(shares) - 1


@given(
    groups=st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=60),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_groups_stay_together(groups: list[str], seed: int) -> None:
    labels = np.arange(len(groups)) % 3
    split_ids = assign(keys_of(len(groups)), labels, [0.6, 0.4], seed, groups)
    assert all(
        len({s for s, g in zip(split_ids.tolist(), groups, strict=True) if g == name}) == 1
        for name in set(groups)
    )


def test_groups_are_stratified_as_well_as_they_can_be() -> None:
    groups = [f"patient_{i // 10}" for i in range(400)]
    labels = np.repeat(np.arange(40) % 2, 10)
    split_ids = assign(keys_of(400), labels, [0.8, 0.2], 0, groups)
    assert counts(labels, split_ids) == {0: [160, 40], 1: [160, 40]}


@pytest.mark.parametrize("per_class", [1, 2, 4])
def test_classes_of_few_groups_have_the_shares_together(per_class: int) -> None:
    """In pictures of persons, say, a class is one group, and no split may stay empty for that."""
    labels = np.repeat(np.arange(40), per_class * 5)
    groups = [f"{label}_{i // 5 % per_class}" for i, label in enumerate(labels.tolist())]
    for share in (0.1, 0.25, 0.5):
        split_ids = assign(keys_of(len(labels)), labels, [1 - share, share], 0, groups)
        assert abs(np.mean(split_ids) - share) < 0.04


def test_a_class_that_comes_moves_few_samples_of_others() -> None:
    labels, keys = np.repeat(np.arange(20), 51), keys_of(20 * 51)
    before = assign(keys, labels, [0.9, 0.1], 0)
    after = assign(["new", *keys], np.concatenate([[0], labels + 1]), [0.9, 0.1], 0)
    assert np.sum(before != after[1:]) <= 20
    after = assign(["new", *keys], np.concatenate([[-1], labels]), [0.9, 0.1], 0)
    assert np.array_equal(before, after[1:])


# The command


def test_a_split_that_gets_no_image_is_mentioned(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "a.jpg", jpeg(photo()))
    output = run(tmp_path / "imgs", "-o", tmp_path / "pack", "--split", "train=0.9,val=0.1")
    assert "split 'val' has no image" in output


def run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(main, ["convert", *map(str, arguments), "--to", "memmap"])
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return class_folder(tmp_path / "imgs", num_classes=2, per_class=10)


def test_splits_are_in_the_index_and_in_order(folder: Path, tmp_path: Path) -> None:
    run(folder, "-o", tmp_path / "pack", "--split", "train=0.8,val=0.2", "--seed", 5)
    pack = Pack(tmp_path / "pack")
    assert pack.splits == ["train", "val"]
    assert np.all(np.diff(pack.index["split"]) >= 0)
    assert Counter(Pack(tmp_path / "pack", "train").labels.tolist()) == {0: 8, 1: 8}
    assert Counter(Pack(tmp_path / "pack", "val").labels.tolist()) == {0: 2, 1: 2}
    assert pack.manifest.made["new_splits"] == {
        "shares": [["train", 0.8], ["val", 0.2]],
        "seed": 5,
        "group_by": None,
    }


def test_the_manifest_is_enough_to_split_again(folder: Path, tmp_path: Path) -> None:
    run(folder, "-o", tmp_path / "pack", "--split", "train=0.7,val=0.3", "--seed", 5)
    pack = Pack(tmp_path / "pack")
    new = pack.manifest.made["new_splits"]
    shares = [share for _, share in new["shares"]]
    again = assign(list(pack.keys), pack.labels, shares, new["seed"])
    assert again.tolist() == pack.index["split"].tolist()


def test_group_by(tmp_path: Path) -> None:
    for i in range(20):
        write(tmp_path / "imgs" / f"c{i % 2}" / f"p{i // 4}_{i}.jpg", jpeg(photo(i)))
    command = (tmp_path / "imgs", "-o", tmp_path / "pack", "--split", "a=0.6,b=0.4")
    run(*command, "--group-by", r"/(p\d+)_")
    pack = Pack(tmp_path / "pack")
    pairs = {
        (key.split("/")[1].split("_")[0], s)
        for key, s in zip(pack.keys, pack.index["split"].tolist(), strict=True)
    }
    assert len(pairs) == 5
    assert Counter(pack.index["split"].tolist()) == {0: 12, 1: 8}
    output = run(*command, "--overwrite", "--group-by", "p1", exit_code=5)
    assert "--group-by 'p1' finds no group in it" in output


def test_a_limit_keeps_samples_in_their_split(folder: Path, tmp_path: Path) -> None:
    split = ("--split", "train=0.5,val=0.5")
    run(folder, "-o", tmp_path / "all", *split)
    run(folder, "-o", tmp_path / "few", *split, "--limit", 8)
    whole, few = Pack(tmp_path / "all"), Pack(tmp_path / "few")
    split_of = dict(zip(whole.keys, whole.index["split"].tolist(), strict=True))
    assert [split_of[key] for key in few.keys] == few.index["split"].tolist()


def test_a_class_without_val_samples_is_told(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "imgs", num_classes=1, per_class=9)
    write(folder / "rare" / "1.jpg", jpeg(photo(99)))
    output = run(folder, "-o", tmp_path / "pack", "--split", "train=0.9,val=0.1")
    assert "class 'rare' has no image in val" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--split", "train=0.9,val=0.2"), "do not add up to 1"),
        (("--split", "train=1.1,val=-0.1"), "do not add up to 1"),
        (("--split", "train=0.9,val"), "neither NAME"),
        (("--split", "train=x,val=0.1"), "neither NAME"),
        (("--split", "train=nan"), "do not add up to 1"),
        (("--split", "a=0.5,a=0.5"), "twice"),
        (("--split", ""), "not at all"),
        (("--split", "a", "--split", "b"), "takes splits once"),
        (("--group-by", "x"), "goes with --split"),
        (("--shard-size", "9" * 400), "a size is at least one byte"),
        (("--split", "a=1", "--group-by", "("), "not a regular expression"),
    ],
)
def test_wrong_use(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in run(folder, *arguments, exit_code=2)


def test_an_unknown_split_is_an_error(folder: Path, tmp_path: Path) -> None:
    output = run(folder, "-o", tmp_path / "pack", "--split", "val", exit_code=SourceError.exit_code)
    assert "no split 'val'; it has none" in output
