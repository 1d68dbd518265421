"""Lists: CSV, TSV and JSON lines of paths, labels and splits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from images import class_folder, jpeg, photo, write

from packer.cli import main
from packer.convert import convert
from packer.options import Options
from packer.sources import open_source
from readers.errors import SourceError
from readers.pack import Pack

IMAGE = jpeg(photo())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four images: a/1.jpg, a/2.jpg, b/3.jpg, b/4.jpg"""
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg", "b/4.jpg"):
        write(tmp_path / "imgs" / name, IMAGE)
    return tmp_path / "imgs"


def csv(root: Path, *lines: str, name: str = "list.csv") -> Path:
    return write(root / name, "\n".join(lines).encode("utf-8", "surrogateescape"))


def packed(source: Path, **options: object) -> Pack:
    out = source.with_suffix(".pack")
    convert(source, out, Options("memmap", **options), threads=2)  # type: ignore[arg-type]
    return Pack(out)


def rows(pack: Pack) -> list[tuple[str, str | None, str | None]]:
    """(key, class, split) of every sample."""
    classes, splits = [*pack.classes, None], [*pack.splits, None]
    labels, split_ids = pack.labels.tolist(), pack.index["split"].tolist()
    return [(k, classes[c], splits[s]) for k, c, s in zip(pack.keys, labels, split_ids)]  # noqa: B905


# Labels


def test_a_list_of_a_folder_packs_as_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "imgs"
    for split in ("train", "val"):
        class_folder(root / split)
    paths = sorted(root.rglob("*.*"), reverse=True)
    lines = [
        f"{path.relative_to(root)},{path.parent.name},{path.parent.parent.name}" for path in paths
    ]
    convert(root, tmp_path / "folder", Options("memmap"), threads=2)
    pack = packed(csv(root, "path,label,split", *lines))
    assert pack.content_digest == Pack(tmp_path / "folder").content_digest


def test_paths_alone_are_labelled_by_their_folders(root: Path) -> None:
    assert rows(packed(csv(root, "path", "b/3.jpg", "a/1.jpg"))) == [
        ("a/1.jpg", "a", None),
        ("b/3.jpg", "b", None),
    ]


def test_metadata_of_hugging_face(root: Path) -> None:
    text = '{"file_name": "a/1.jpg", "text": "a cat"}\n{"file_name": "b/3.jpg", "text": ""}\n'
    pack = packed(write(root / "metadata.jsonl", text.encode()))
    assert sorted(pack.keys) == ["a/1.jpg", "b/3.jpg"] and "text" in pack.manifest.fields
    pack = packed(csv(root, "file_name,label", "a/1.jpg,cat"))
    assert rows(pack) == [("a/1.jpg", "cat", None)]


def test_names_and_splits(root: Path) -> None:
    lines = ["b/3.jpg,cat,val", "a/1.jpg,dog,train", "a/2.jpg,cat,train"]
    assert rows(packed(csv(root, "path,label,split", *lines))) == [
        ("a/2.jpg", "cat", "train"),
        ("a/1.jpg", "dog", "train"),
        ("b/3.jpg", "cat", "val"),
    ]


def test_numbers_are_the_labels(root: Path) -> None:
    pack = packed(csv(root, "path,label", "a/1.jpg,10", "a/2.jpg,2", "b/3.jpg,-1", "b/4.jpg,0"))
    labels = dict(zip(pack.keys, pack.labels.tolist(), strict=True))
    assert labels == {"a/1.jpg": 10, "a/2.jpg": 2, "b/3.jpg": -1, "b/4.jpg": 0}
    assert pack.classes == [str(i) for i in range(11)]


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("class", ("10", "2")),  # a class is a name
        ("label", ("01", "02")),  # a number is not written so
        ("label", ("1", "two")),
    ],
)
def test_numbers_that_are_names(root: Path, header: str, values: tuple[str, str]) -> None:
    pack = packed(csv(root, f"path,{header}", *map(",".join, zip(("a/1.jpg", "b/3.jpg"), values))))  # noqa: B905
    assert pack.classes == sorted(values)


def test_numbers_with_a_class_map(root: Path) -> None:
    lines = ["path,label", "a/1.jpg,1", "b/3.jpg,0"]
    pack = packed(csv(root, *lines), classes=("cat", "dog"))
    assert rows(pack) == [("b/3.jpg", "cat", None), ("a/1.jpg", "dog", None)]
    with pytest.raises(SourceError, match="label 1 is not in the given class map of 1 classes"):
        packed(csv(root, *lines, name="b.csv"), classes=("cat",))
    with pytest.raises(SourceError, match="two readings: label 0 is class '1' by its number"):
        packed(csv(root, *lines, name="b.csv"), classes=("1", "0"))


def test_a_huge_number_is_no_label(root: Path) -> None:
    with pytest.raises(SourceError, match=r"label 202401010 is too large.*`class`"):
        packed(csv(root, "path,label", "a/1.jpg,202401010"))


def test_images_without_a_label_are_counted(root: Path) -> None:
    source = open_source(csv(root, "path,label", "a/1.jpg,cat", "a/2.jpg,"))
    assert source.scan().warnings == ["1 images have no label in the list"]


# Forms


def test_json_lines(root: Path) -> None:
    objects = [
        {"path": "a/1.jpg", "label": 1, "split": "train", "width": 5},
        {"path": "b/3.jpg", "label": 0, "split": "val", "boxes": [1]},
        {"path": "b/4.jpg", "label": None, "split": "val"},
    ]
    source = csv(root, *map(json.dumps, objects), "", name="list.jsonl")
    columns = open_source(source).scan().columns
    assert {name: column.num_rows for name, column in columns.items()} == {"width": 1, "boxes": 1}
    pack = packed(source)
    assert [pack.read(i, "boxes") for i in range(3)] == [b"", b"", b"[1]"]
    assert [pack.read(i, "width") for i in range(3)] == [b"5", b"", b""]
    assert pack.labels.tolist() == [1, -1, 0]
    assert pack.splits == ["train", "val"]


def test_json_strings_are_names(root: Path) -> None:
    objects = [{"path": "a/1.jpg", "label": "10"}, {"path": "a/2.jpg", "label": "9"}]
    pack = packed(csv(root, *map(json.dumps, objects), name="list.jsonl"))
    assert pack.classes == ["10", "9"]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("list.tsv", ["path\tlabel", "a/1.jpg\tcat"]),
        ("list.csv", ["path;label", "a/1.jpg;cat"]),
        ("LIST.CSV", ["\ufeffPath, Label\r", '"a/1.jpg",cat\r', "\r"]),
        ("list.csv", ["label,path", '"cat","./a//1.jpg"']),
        ("list.csv", ["label,path", "cat,a\\1.jpg"]),
    ],
)
def test_what_spreadsheets_write(root: Path, name: str, lines: list[str]) -> None:
    assert rows(packed(csv(root, *lines, name=name))) == [("a/1.jpg", "cat", None)]


def test_names_with_commas_lines_and_bytes(root: Path) -> None:
    names = ["a/x,y.jpg", 'a/"q".jpg', "a/two\nlines.jpg", os.fsdecode(b"a/caf\xe9.jpg")]
    for name in names:
        write(root / name, IMAGE)
    quoted = [f'"{name}"' for name in (n.replace('"', '""') for n in names)]
    assert set(packed(csv(root, "path", *quoted)).keys) == set(names)


def test_root(root: Path, tmp_path: Path) -> None:
    source = csv(tmp_path, "path,label", f"{root}/a/1.jpg,cat", "b/3.jpg,dog")
    with pytest.raises(SourceError, match=r"line 2: .*1\.jpg' is not below .*--root FOLDER"):
        packed(csv(tmp_path / "lists", "path,label", f"{root}/a/1.jpg,cat"))
    out = tmp_path / "pack"
    command = ["convert", source, "--to", "memmap", "-o", out, "--root", root]
    result = CliRunner().invoke(main, list(map(str, command)))
    assert result.exit_code == 0, result.output
    assert rows(Pack(out)) == [("a/1.jpg", "cat", None), ("b/3.jpg", "dog", None)]


# Errors


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            ["a/1.jpg,cat"],
            "line 1: no column `path`, nor `file_name`, but a/1.jpg, cat; name",
        ),
        (["path,label,label"], "line 1: two columns have the same name"),
        (["path,label", "a/1.jpg,cat", "a/2.jpg"], "line 3: 1 columns, the first line 2"),
        (["path,label", '"a/1\n.jpg",cat', "x"], "line 4: 1 columns"),
        (["path,label", ",cat"], "line 2: no `path`"),
        (["path,label", "", "../x.jpg,cat"], "line 3: '../x.jpg' is not below"),
        (["path,label", "/etc/x.jpg,cat"], "line 2: '/etc/x.jpg' is not below"),
        (["path", "a/1.jpg", "b/3.jpg", "./a/1.jpg"], "line 4: .* twice, first on line 2"),
        (["path,split", "a/1.jpg,train", "b/3.jpg,"], "line 3: some lines have a split"),
        (["path,label,class", "a/1.jpg,3,cat"], r"line 2: both a label \(3\) and a class \(cat\)"),
        (["path,label", 'a/1.jpg,"cat'], "line 2: unexpected end"),
        (["path,label"], "no image found"),
        ([], "no image found"),
    ],
)
def test_errors_name_the_line(root: Path, lines: list[str], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        packed(csv(root, *lines))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"path": "a/1.jpg"}\n{"path": }', "line 2: not JSON"),
        ('\n["a/1.jpg"]', "line 2: not a JSON object"),
        ('{"file": "a/1.jpg"}', "line 1: no `path`"),
        ('{"path": 5}', "line 1: no `path`"),
        ('{"path": "a/1.jpg", "label": 1.5}', "line 1: the label 1.5 is neither"),
        ('{"path": "a/1.jpg", "label": true}', "line 1: the label True is neither"),
        ('{"path": "\\ud800.jpg"}', "line 1: .* cannot be the name of a file"),
        ('{"path": "\\u0000.jpg"}', "line 1: .* cannot be the name of a file"),
        ('{"path": "a/1.jpg", "label": "\\ud800"}', "line 1: the label .* cannot be a name"),
        ('{"path": "a/1.jpg", "class": "\\udfff"}', "line 1: the class .* cannot be a name"),
        ('{"path": "a/1.jpg", "split": "x\\u0000"}', "line 1: the split .* cannot be a name"),
        ('{"path": "a/1.jpg", "\\ud800": 1}', "line 1: .* cannot be the name of a column"),
    ],
)
def test_errors_in_json(root: Path, text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        packed(csv(root, text, name="list.jsonl"))


def test_utf_16_is_an_error(root: Path) -> None:
    with pytest.raises(SourceError, match="UTF-16; save it as UTF-8"):
        packed(write(root / "list.csv", "path\na/1.jpg".encode("utf-16")))


def test_missing_and_odd_files_are_rejects(root: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside" / "x.jpg", IMAGE)
    (root / "out.jpg").symlink_to(tmp_path / "outside" / "x.jpg")
    (root / "outdir").symlink_to(tmp_path / "outside")
    (root / "in.jpg").symlink_to("a/1.jpg")
    names = ["a/1.jpg", "gone.jpg", "no/gone.jpg", "a", "out.jpg", "outdir/x.jpg", "in.jpg"]
    source = csv(root, "path,label", *(f"{name},cat" for name in names))
    pack = packed(source)
    assert list(pack.keys) == ["in.jpg", "a/1.jpg"]
    lines = (pack.path / "rejected.jsonl").read_text("ascii").splitlines()
    rejected = {row["key"]: (row["reason"], row["detail"]) for row in map(json.loads, lines)}
    assert rejected == {
        "gone.jpg": ("no such file", "line 3 of the list"),
        "no/gone.jpg": ("no such file", "line 4 of the list"),
        "a": ("not a regular file", ""),
        "out.jpg": ("link out of the source", ""),
        "outdir/x.jpg": ("link out of the source", ""),
    }


def test_other_labels_are_not_taken_for_a_resumed_run(root: Path, tmp_path: Path) -> None:
    (tmp_path / "imgs" / "list.csv").write_text("path,label\na/1.jpg,cat\nb/3.jpg,dog\n")
    from packer.convert import list_source, plan_json

    plans = []
    for text in ("a/1.jpg,cat\nb/3.jpg,dog", "a/1.jpg,cat\nb/3.jpg,cat\n"):
        source_path = csv(root, f"path,label\n{text}")
        options = Options("memmap", classes=("cat", "dog"))
        job = list_source(source_path, tmp_path / "pack", options)
        plans.append(plan_json(job)["listing"])
    assert plans[0] != plans[1]
