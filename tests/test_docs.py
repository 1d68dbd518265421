"""The documents' code is run, and what they name exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click import Command
from images import class_folder, jpeg, photo, write
from odd_kinds import KINDS
from PIL import Image, ImageOps

import readers
from packer.annotations import BoxesOption
from packer.cli import main
from packer.convert import convert
from packer.fields import Pattern
from packer.images.pixels import PixelOptions
from packer.options import Options
from readers import formats

ROOT = Path(__file__).parent.parent


@pytest.fixture
def packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """imgs.lmdb, imgs.hdf5 and imgs.memmap in the current folder, with splits and three fields."""
    for split in ("train", "val"):
        class_folder(tmp_path / "imgs" / split)
    for path in [p for p in tmp_path.rglob("*.*") if p.is_file()]:
        with Image.open(path) as image:
            ImageOps.exif_transpose(image).convert("L").save(path.with_name(f"{path.stem}_m.png"))
        path.with_suffix(".txt").write_text(f"a picture named {path.stem}")
        path.with_name(f"{path.stem}_b.txt").write_text("1 0.5 0.5 0.5 0.25")
    monkeypatch.chdir(tmp_path)
    fields = Pattern("mask", "{stem}_m.png"), Pattern("caption", "{stem}.txt")
    boxes = BoxesOption("yolo", pattern=Pattern("boxes", "{stem}_b.txt"), classes=("cat", "dog"))
    for name in formats.names():
        options = Options(name, fields=fields, boxes=boxes)
        convert(Path("imgs"), Path(f"imgs.{name}"), options, threads=2)


def test_the_pixels_of_format_md_are_the_readers_at_16_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "imgs" / "0.png", KINDS["16-bit RGB"][0])
    write(tmp_path / "imgs" / "1.jpg", jpeg(photo(), orientation=6))
    monkeypatch.chdir(tmp_path)
    options = Options("lmdb", pixels=PixelOptions(depth="keep"))
    convert(Path("imgs"), Path("imgs.lmdb"), options, threads=2)
    pack = readers.open("imgs.lmdb")
    (block,) = (block for block in python_blocks("FORMAT.md") if "is_deep" in block)
    manifest = json.loads(Path("imgs.lmdb/manifest.json").read_text())
    for i in range(2):
        names = {"manifest": manifest, "first": pack.read(i), "np": np}
        exec(block.replace("[0]", f"[{i}]"), names)
        assert np.array_equal(names["pixels"], pack.image(i))


def python_blocks(document: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text("utf-8"), re.DOTALL)
    assert blocks, f"{document} has no Python in it"
    return blocks


@pytest.mark.parametrize("document", ["FORMAT.md", "README.md"])
@pytest.mark.usefixtures("packs")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # snippets leave files to the interpreter
def test_the_python_of_a_document_runs(document: str) -> None:
    source = "\n".join(python_blocks(document))
    if "torch" in source:
        pytest.importorskip("torch")
    exec(compile(source, document, "exec"), {"__name__": "__main__"})


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert isinstance(main, Command)
    for name in main.commands:
        assert f"dspack {name}" in readme


def test_every_format_is_in_format_md() -> None:
    text = (ROOT / "FORMAT.md").read_text("utf-8")
    for name in formats.names():
        assert f"`{name}`" in text


def test_format_md_lists_every_column() -> None:
    from readers.index import FIELD_COLUMNS, OPTIONAL_COLUMNS, SAMPLE_COLUMNS

    text = (ROOT / "FORMAT.md").read_text("utf-8")
    for name in [*SAMPLE_COLUMNS, *(f"FIELD.{part}" for part in FIELD_COLUMNS | OPTIONAL_COLUMNS)]:
        assert f"`{name}`" in text
