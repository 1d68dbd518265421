"""From folders to samples: keys, labels, splits and order, as ImageFolder has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from images import jpeg, photo, write

from packer.convert import convert
from packer.options import Options
from packer.plan.layout import SPLIT_NAMES, Plan, load_classes, plan
from packer.sources import Listing
from packer.sources.folder import Source
from readers.errors import NotAPack, SourceError

ROOT = Path("imgs")


def listing(*files: str, folders: Sequence[str] = ()) -> Listing:
    """The listing of a source that holds these files, and empty folders."""
    above = {str(Path(*Path(f).parts[:i])) for f in files for i in range(1, len(Path(f).parts))}
    return Listing(list(files), sorted({*above, *folders}))


def planned(
    *files: str,
    folders: Sequence[str] = (),
    layout: str = "auto",
    classes: Sequence[str] | None = None,
) -> Plan:
    return plan(listing(*files, folders=folders), ROOT, layout, classes)


def samples(plan: Plan) -> list[tuple[str, str | None, str | None]]:
    """(key, class, split) of every sample."""
    names, splits = [*plan.classes, None], [*plan.splits, None]
    return [
        (key, names[label], splits[split])
        for key, label, split in zip(plan.keys, plan.labels, plan.split_ids, strict=True)
    ]


def imagefolder_samples(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """What torchvision's ImageFolder finds: its classes, and (path below root, label) in order."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    found = []
    for label, name in enumerate(classes):
        for folder, _, names in sorted(os.walk(root / name, followlinks=True)):
            found += [(os.path.relpath(f"{folder}/{n}", root), label) for n in sorted(names)]
    return classes, found


def test_order_and_labels_are_imagefolders(tmp_path: Path) -> None:
    for folder in ("a", "a-b", "a/b", "a b", "B", "10", "2", "é", "\U0001f408", "B/x/y", "B/x-y"):
        for name in ("1.jpg", "10.jpg", "2.JPG", "z.png", "Z.png"):
            write(tmp_path / folder / name, b"")
    classes, expected = imagefolder_samples(tmp_path)
    result = plan(Source(tmp_path).scan(), tmp_path)
    assert result.classes == classes == ["10", "2", "B", "a", "a b", "a-b", "é", "\U0001f408"]
    assert list(zip(result.keys, result.labels.tolist(), strict=True)) == expected
    assert result.splits == []
    assert set(result.split_ids) == {-1}


def test_nested_folders_belong_to_their_top_class() -> None:
    result = planned("cat/1.jpg", "cat/tabby/2.jpg", "cat/tabby/old/3.jpg", "dog/1.jpg")
    assert result.classes == ["cat", "dog"]
    assert [name for _, name, _ in samples(result)] == ["cat", "cat", "cat", "dog"]


@pytest.mark.parametrize("case", [str, str.upper, str.title])
@pytest.mark.parametrize("name", SPLIT_NAMES)
def test_known_split_names_are_splits_in_any_case(name: str, case: type[str]) -> None:
    top = case(name)
    assert samples(planned(f"{top}/cat/1.jpg")) == [(f"{top}/cat/1.jpg", "cat", top)]


def test_all_splits_share_one_class_map() -> None:
    result = planned("train/b/1.jpg", "train/c/1.jpg", "val/a/1.jpg", "val/c/1.jpg")
    assert result.classes == ["a", "b", "c"]
    assert result.splits == ["train", "val"]
    assert samples(result) == [
        ("train/b/1.jpg", "b", "train"),
        ("train/c/1.jpg", "c", "train"),
        ("val/a/1.jpg", "a", "val"),
        ("val/c/1.jpg", "c", "val"),
    ]
    assert "class 'a' has no image in train; it keeps its label there" in result.warnings
    assert "class 'b' has no image in val; it keeps its label there" in result.warnings


def test_a_class_that_is_empty_in_one_split_keeps_its_id() -> None:
    whole = planned("train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg", "val/b/1.jpg")
    result = planned("train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg")
    assert result.classes == whole.classes == ["a", "b", "c"]
    assert samples(result)[-1] == ("val/c/1.jpg", "c", "val")
    assert result.labels[-1] == whole.labels[-1] == 2


def test_no_more_than_some_empty_classes_are_listed() -> None:
    result = planned("a/1.jpg", folders=[f"b{i}" for i in range(1000)])
    assert len(result.classes) == 1001
    assert result.warnings[20:] == ["980 more classes have no image, or none in some splits"]


def test_an_empty_class_is_kept_with_a_warning() -> None:
    result = planned("a/1.jpg", "c/1.jpg", folders=["b"])
    assert result.classes == ["a", "b", "c"]
    assert result.labels.tolist() == [0, 2]
    assert result.warnings == ["class 'b' has no image; it keeps its label"]
    in_split = planned("train/a/1.jpg", "train/c/1.jpg", folders=["train/b"])
    assert in_split.classes == ["a", "b", "c"]


def test_an_empty_split_is_warned_about_and_its_classes_count() -> None:
    result = planned("train/a/1.jpg", "train/c/1.jpg", folders=["val", "val/b"])
    assert result.classes == ["a", "b", "c"]
    assert result.splits == ["train"]
    assert "split 'val' has no image" in result.warnings
    assert planned("a/1.jpg", folders=["val"]).splits == []


def test_the_layout_of_kaggle_labels_train_and_leaves_a_flat_test_unlabelled() -> None:
    result = planned("train/cat/1.jpg", "train/dog/1.jpg", "test/1.jpg", "test/2.jpg")
    assert result.classes == ["cat", "dog"]
    assert samples(result) == [
        ("test/1.jpg", None, "test"),
        ("test/2.jpg", None, "test"),
        ("train/cat/1.jpg", "cat", "train"),
        ("train/dog/1.jpg", "dog", "train"),
    ]
    assert result.labels.tolist() == [-1, -1, 0, 1]
    assert result.warnings == []


def test_a_flat_folder_is_unlabelled() -> None:
    result = planned("2.jpg", "10.jpg", folders=["empty"])
    assert (result.classes, result.splits) == ([], [])
    assert samples(result) == [("10.jpg", None, None), ("2.jpg", None, None)]


@pytest.mark.parametrize("name", ["train_001.jpg", "test.jpg", "val-2.png", "train", "x.train.jpg"])
def test_a_word_in_a_file_name_never_makes_a_split(name: str) -> None:
    assert planned(name).splits == []
    assert planned(f"cat/{name}").splits == []
    assert planned(f"train_data/{name}").classes == ["train_data"]
    assert planned(f"cat/test/{name}").splits == []


@pytest.mark.parametrize(
    ("names", "warning"),
    [
        (["1", "2", "10"], "not in numeric order: label 1 is class '10'"),
        (["1", "2", "3"], "not equal to the labels"),
        (["00", "01", "02"], None),
        (["0", "1", "2"], None),
        (["1", "2", "x"], None),
    ],
)
def test_numeric_class_names_are_warned_about(names: list[str], warning: str | None) -> None:
    result = planned(*(f"{name}/1.jpg" for name in names))
    assert result.classes == sorted(names)
    assert [warning in text for text in result.warnings] == ([True] if warning else [])


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        (["images", "masks"], "pack images/ with --field 'mask=../masks/{stem}.png'"),
        (["masks", "JPEGImages"], "JPEGImages/ and masks/ are taken as classes"),
        (["images"], "images/ is taken as a class"),
        (["cat", "images"], None),
        (["cat", "masks"], None),
        (["masks"], None),
    ],
)
def test_folders_that_are_hardly_classes_are_mentioned(
    folders: list[str], said: str | None
) -> None:
    notes = planned(*(f"{folder}/1.jpg" for folder in folders)).warnings
    assert len(notes) == (said is not None) and (said is None or said in notes[0])


@pytest.mark.parametrize(("folder", "kind"), [("labels", "yolo"), ("Annotations", "voc")])
def test_annotations_beside_images_are_mentioned(folder: str, kind: str) -> None:
    *_, note = planned("images/1.jpg", folders=[folder]).warnings
    assert note.endswith(f"if they are none, add --boxes {kind}")


def test_one_class_over_nested_folders_is_warned_about() -> None:
    result = planned("imgs/cat/1.jpg", "imgs/dog/1.jpg")
    assert result.classes == ["imgs"]
    assert "pack that folder instead" in result.warnings[0]


@pytest.mark.parametrize(
    ("files", "readings"),
    [
        (["train/cat/1.jpg", "other/1.jpg"], ["train/ is a split", "other/", "is a class"]),
        (["train/cat/1.jpg", "1.jpg"], ["train/ is a split", "1 images", "is a class"]),
        (["cat/1.jpg", "1.jpg"], ["cat/ is a class", "1.jpg", "is flat"]),
        (["train/cat/1.jpg", "train/1.jpg"], ["cat/ is a class", "1.jpg", "is flat"]),
    ],
)
def test_mixed_depth_is_an_error_that_shows_both_readings(
    files: list[str], readings: list[str]
) -> None:
    with pytest.raises(SourceError, match="two readings") as error:
        planned(*files)
    for reading in readings:
        assert reading in error.value.reason
    assert "--layout" in (error.value.advice or "")


def test_layout_classes_takes_split_names_for_classes() -> None:
    result = planned("train/1.jpg", "bus/1.jpg", layout="classes")
    assert (result.classes, result.splits) == (["bus", "train"], [])
    with pytest.raises(SourceError, match="no class folder"):
        planned("1.jpg", layout="classes")


def test_layout_splits_takes_any_name_for_a_split() -> None:
    result = planned("fold1/cat/1.jpg", "fold2/dog/1.jpg", layout="splits")
    assert (result.classes, result.splits) == (["cat", "dog"], ["fold1", "fold2"])
    with pytest.raises(SourceError, match="1 images lie beside the split folders"):
        planned("fold1/cat/1.jpg", "1.jpg", layout="splits")


def test_layout_flat_makes_no_labels() -> None:
    result = planned("train/cat/1.jpg", "1.jpg", layout="flat")
    assert samples(result) == [("1.jpg", None, None), ("train/cat/1.jpg", None, None)]
    assert result.classes == []


def test_a_given_class_map_decides_the_labels() -> None:
    result = planned("a/1.jpg", "b/1.jpg", classes=["b", "x", "a"])
    assert result.classes == ["b", "x", "a"]
    assert result.labels.tolist() == [2, 0]
    assert "class 'x' has no image; it keeps its label" in result.warnings


def test_a_class_that_a_given_map_lacks_is_an_error() -> None:
    with pytest.raises(SourceError, match="class 'b' is not in the given class map"):
        planned("a/1.jpg", "b/1.jpg", classes=["a"])


@pytest.mark.parametrize("near", ["cat ", "Cat", " c at"])
def test_a_class_that_only_looks_like_one_of_a_given_map_is_shown(near: str) -> None:
    with pytest.raises(SourceError, match=f"'cat' is not in the given class map, but '{near}' is"):
        planned("cat/1.jpg", "dog/1.jpg", classes=["dog", near])


def test_a_class_map_comes_from_a_text_file(tmp_path: Path) -> None:
    text = tmp_path / "classes.txt"
    text.write_bytes("\ufeffzebra\r\nant\r\n\r\nBär\r\n".encode())
    assert load_classes(text) == ["zebra", "ant", "Bär"]
    text.write_bytes(b"caf\xe9\n")
    assert load_classes(text) == [os.fsdecode(b"caf\xe9")]
    text.write_text("a\nb\na\n")
    with pytest.raises(SourceError, match="class 'a' is listed twice"):
        load_classes(text)


def test_a_class_map_comes_from_another_pack(tmp_path: Path) -> None:
    for name in ("b", "c"):
        write(tmp_path / "imgs" / name / "1.jpg", jpeg(photo()))
    convert(tmp_path / "imgs", tmp_path / "pack", Options("memmap"), threads=1)
    assert load_classes(tmp_path / "pack") == ["b", "c"]
    with pytest.raises(NotAPack):
        load_classes(tmp_path / "imgs")


def test_a_source_without_an_image_is_an_error_that_says_what_was_left_out() -> None:
    empty = Listing()
    empty.left_out["not an image: .txt"] = 3
    with pytest.raises(SourceError, match=r"no image found; left out: not an image: \.txt \(3\)"):
        plan(empty, ROOT)
    with pytest.raises(SourceError, match="the folder is empty"):
        plan(Listing(), ROOT)


def test_the_message_about_an_undecodable_name_can_be_printed() -> None:
    with pytest.raises(SourceError) as error:
        planned(os.fsdecode(b"caf\xe9/1.jpg"), "1.jpg")
    assert r"caf\xe9" in str(error.value)
    str(error.value).encode()


NAMES = st.sampled_from(["a", "a-b", "a.b", "B", "10", "2", "é", "\U0001f408", "\udce9"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda parts: "/".join([*parts, "1.jpg"]))


@settings(deadline=None)
@given(st.sets(PATHS, min_size=1, max_size=8), st.sampled_from(["", "train/"]), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_the_listing(
    paths: set[str], top: str, random: object
) -> None:
    files = [f"{top}{path}" for path in sorted(paths)]
    before = planned(*files)
    random.shuffle(files)  # type: ignore[attr-defined]
    after = planned(*files)
    assert samples(after) == samples(before)
    assert after.warnings == before.warnings
    assert sorted(before.keys) == sorted(files)  # every file once
    # By class, then by folder, then by name.
    assert before.keys == sorted(
        files,
        key=lambda key: (key.removeprefix(top).partition("/")[0], *key.rpartition("/")[::2]),
    )
