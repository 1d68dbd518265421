"""The field `boxes`, from annotations beside images to whoever trains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import Box, coco_text, voc_text, yolo_text
from click.testing import CliRunner
from images import jpeg, photo, png, write
from PIL import Image, features

import readers
from packer.annotations import BoxesOption
from packer.boxes import TURNED
from packer.cli import main
from packer.convert import Summary, convert
from packer.fields import Pattern
from packer.images.pixels import PixelOptions
from packer.options import Options
from packer.verify import verify
from readers.boxes import boxes_within
from readers.errors import DamagedSample, DestinationError, SourceError
from readers.loader import BatchLoader
from readers.manifest import Manifest

NAMES = ("cat", "dog", "owl")
BOXES: dict[str, list[Box]] = {
    "a": [(1, 2, 30, 20.5, 0), (5.25, 5, 60, 40, 2)],
    "b": [(0, 0, 9, 9, 1)],
    "c": [],
}
SIZE = (60, 40)
KINDS = ("coco", "yolo", "voc")


def annotated_set(root: Path, kind: str, boxes: Mapping[str, Sequence[Box]] = BOXES) -> BoxesOption:
    """A set as tools of this kind lay it out, and how to pack it."""
    for i, (name, of_image) in enumerate(boxes.items()):
        folder = {"coco": "images", "yolo": "images/train", "voc": "JPEGImages"}[kind]
        write(root / folder / f"{name}.jpg", jpeg(photo(i, *SIZE)))
        if kind == "yolo":
            write(root / "labels/train" / f"{name}.txt", yolo_text(of_image, SIZE))
        elif kind == "voc":
            write(root / "Annotations" / f"{name}.xml", voc_text(of_image, SIZE, NAMES))
    if kind == "yolo":
        write(root / "data.yaml", b"names: [cat, dog, owl]\n")
    if kind != "coco":
        return BoxesOption(kind)
    text = coco_text({f"{name}.jpg": b for name, b in boxes.items()}, SIZE, NAMES)
    return BoxesOption("coco", (write(root / "annotations" / "instances.json", text),))


def pack(
    source: Path, out: Path, boxes: BoxesOption | None, format_name: str = "memmap", **options: Any
) -> Summary:
    progress = options.pop("progress", lambda *step: None)
    pixels = PixelOptions(**options.pop("pixels", {}))
    made = Options(format_name, boxes=boxes, pixels=pixels, **options)
    return convert(source, out, made, threads=2, progress=progress)


def rejected(out: Path) -> dict[str, tuple[str, str]]:
    rows = map(json.loads, (out / "rejected.jsonl").read_text("ascii").splitlines())
    return {row["key"]: (row["reason"], row["detail"]) for row in rows}


def boxes_of(out: Path) -> dict[str, list[list[float]]]:
    """By file name without folders and extension."""
    pack = readers.open(out)
    return {Path(key).stem: pack.field(i, "boxes").tolist() for i, key in enumerate(pack.keys)}


EXPECTED = {name: [[float(x) for x in box] for box in of] for name, of in BOXES.items()}


# From annotations to the sample


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["folder", "tar", "zip"])
def test_boxes_come_through_every_format(
    tmp_path: Path, kind: str, shape: str, format_name: str
) -> None:
    option = annotated_set(tmp_path / "set", kind)
    source = tmp_path / "set"
    if shape != "folder":
        source = Path(shutil.make_archive(str(source), shape, source))
    summary = pack(source, tmp_path / "pack", option, format_name)
    assert summary.rejected == summary.warnings == {}
    # A JSON is read from its file, so the one in the archive is of no use.
    in_archive = kind == "coco" and shape != "folder"
    assert summary.left_out == ({"not an image: .json": 1} if in_archive else {})
    assert summary.by_split == ({"train": 3} if kind == "yolo" else {})
    assert boxes_of(tmp_path / "pack") == EXPECTED
    opened = readers.open(tmp_path / "pack")
    about = opened.manifest.fields["boxes"]
    assert (about.kind, about.classes) == ("boxes", NAMES)
    assert opened.classes == []
    assert opened[0].fields["boxes"].dtype == np.float32
    assert opened[2].fields["boxes"].shape == (0, 5)
    assert opened.read(2, "boxes") == b""
    assert verify(tmp_path / "pack", decode_images=True, threads=1).findings == []


def test_other_packs_say_nothing_of_classes_of_boxes(tmp_path: Path) -> None:
    annotated_set(tmp_path / "set", "coco")
    pack(tmp_path / "set", tmp_path / "pack", None)
    manifest = json.loads((tmp_path / "pack" / "manifest.json").read_text())
    assert "classes" not in manifest["fields"]["image"]


def test_two_files_of_coco_and_splits(tmp_path: Path) -> None:
    files = []
    for split, name in (("train", "a"), ("val", "b")):
        write(tmp_path / "set" / split / f"{name}.jpg", jpeg(photo(0, *SIZE)))
        text = coco_text({f"{name}.jpg": BOXES[name]}, SIZE, NAMES)
        files.append(write(tmp_path / f"{split}.json", text))
    summary = pack(tmp_path / "set", tmp_path / "pack", BoxesOption("coco", tuple(files)))
    assert summary.by_split == {"train": 1, "val": 1}
    assert boxes_of(tmp_path / "pack") == {name: EXPECTED[name] for name in "ab"}


def test_images_that_are_not_annotated(tmp_path: Path) -> None:
    """YOLO's and COCO's have no boxes, which is counted; one of VOC is a reject."""
    for kind in KINDS:
        option = annotated_set(tmp_path / kind, kind)
        folder = {"coco": "images", "yolo": "images/train", "voc": "JPEGImages"}[kind]
        write(tmp_path / kind / folder / "d.jpg", jpeg(photo(9, *SIZE)))
        summary = pack(tmp_path / kind, tmp_path / f"{kind}.pack", option)
        if kind == "voc":
            assert summary.rejected == {"no boxes": 1}
            why = ("no boxes", "Annotations/d.xml")
            assert rejected(tmp_path / "voc.pack") == {"JPEGImages/d.jpg": why}
        else:
            assert summary.warnings == {"no boxes, an empty value is stored": 1}
            assert boxes_of(tmp_path / f"{kind}.pack") == {**EXPECTED, "d": []}


def test_annotations_without_an_image_are_told(tmp_path: Path) -> None:
    for kind in KINDS:
        option = annotated_set(tmp_path / kind, kind)
        next((tmp_path / kind).rglob("a.jpg")).unlink()
        summary = pack(tmp_path / kind, tmp_path / f"{kind}.pack", option)
        told = [note for note in summary.notes if "not in the source" in note]
        if kind == "coco":
            assert told == ["1 annotated images are not in the source (a.jpg …)"]
        else:
            assert list(summary.left_out.values()) == [1]


def test_broken_annotations_are_rejects_that_say_where(tmp_path: Path) -> None:
    for kind, file in (("yolo", "labels/train/b.txt"), ("voc", "Annotations/b.xml")):
        option = annotated_set(tmp_path / kind, kind)
        write(tmp_path / kind / file, b"0 0.5 0.5 0.1")
        pack(tmp_path / kind, tmp_path / f"{kind}.pack", option)
        ((reason, detail),) = rejected(tmp_path / f"{kind}.pack").values()
        assert reason == "broken annotation" and detail.startswith(f"{file}: ")
    option = annotated_set(tmp_path / "coco", "coco", {"a": [(0, 0, 1, 1, 7)], "b": BOXES["b"]})
    summary = pack(tmp_path / "coco", tmp_path / "coco.pack", option)
    assert summary.rejected == {"broken annotation": 1}


def test_what_happened_to_boxes_is_counted(tmp_path: Path) -> None:
    boxes: list[Box] = [(-9, 0, 5, 5, 0), (-3, 0, 5, 5, 0), (5, 5, 5, 9, 1)]
    option = annotated_set(tmp_path / "set", "coco", {"a": boxes, "b": boxes[2:]})
    assert pack(tmp_path / "set", tmp_path / "pack", option).warnings == {
        "a box that reaches out of its image, clipped": 2,
        "a box without area, left out": 2,
    }


# Classes


def test_classes_of_voc_are_all_names_sorted(tmp_path: Path) -> None:
    option = annotated_set(tmp_path / "set", "voc", {"a": BOXES["b"]})  # a dog alone
    pack(tmp_path / "set", tmp_path / "pack", option)
    about = readers.open(tmp_path / "pack").manifest.fields["boxes"]
    assert about.classes == ("dog",)
    assert boxes_of(tmp_path / "pack")["a"] == [[0, 0, 9, 9, 0]]


@pytest.mark.parametrize(("kind", "dog"), [("coco", 0), ("voc", 0), ("yolo", 1)])
def test_given_classes(tmp_path: Path, kind: str, dog: int) -> None:
    annotated_set(tmp_path / "set", kind)
    names = write(tmp_path / "names.txt", b"dog\ncat\nowl\nyak\n")
    where = "=" + str(tmp_path / "set/annotations/instances.json") if kind == "coco" else ""
    out = str(tmp_path / "pack")
    arguments = ["convert", str(tmp_path / "set"), "--to", "memmap", "-o", out]
    boxes = ["--boxes", kind + where, "--boxes-classes", str(names)]
    result = CliRunner().invoke(main, [*arguments, *boxes])
    assert result.exit_code == 0, result.output
    assert Manifest.load(tmp_path / "pack").fields["boxes"].classes == ("dog", "cat", "owl", "yak")
    assert boxes_of(tmp_path / "pack")["b"][0][4] == dog
    shown = CliRunner().invoke(main, ["info", out]).output
    assert "boxes:        4 classes (dog, cat, owl, yak)" in shown


def test_yolo_without_names(tmp_path: Path) -> None:
    option = annotated_set(tmp_path / "set", "yolo")
    (tmp_path / "set" / "data.yaml").unlink()
    summary = pack(tmp_path / "set", tmp_path / "pack", option)
    assert "the boxes' classes have no names; --boxes-classes gives them" in summary.notes
    assert Manifest.load(tmp_path / "pack").fields["boxes"].classes == ()
    assert boxes_of(tmp_path / "pack") == EXPECTED


@pytest.mark.parametrize("name", ["data.yaml", "classes.txt", "labels/classes.txt"])
def test_yolo_names_are_found_beside_the_folder_images(tmp_path: Path, name: str) -> None:
    """Where the labels of this source are looked for, too."""
    option = annotated_set(tmp_path / "set", "yolo")
    (tmp_path / "set" / "data.yaml").unlink()
    text = b"names: [cat, dog, owl]\n" if name == "data.yaml" else b"cat\ndog\nowl\n"
    write(tmp_path / "set" / name, text)
    summary = pack(tmp_path / "set" / "images", tmp_path / "pack", option)
    assert f"the names of the boxes' classes are those in ../{name}" in summary.notes
    assert readers.open(tmp_path / "pack").manifest.fields["boxes"].classes == NAMES
    assert boxes_of(tmp_path / "pack") == EXPECTED


def test_yolo_from_a_folder_below_images(tmp_path: Path) -> None:
    for folder in ("set/images/train", "images/set"):  # only the first one has a folder labels
        write(tmp_path / folder / "a.jpg", jpeg(photo(0, *SIZE)))
    write(tmp_path / "set/labels/train/a.txt", yolo_text(BOXES["a"]))
    write(tmp_path / "set/data.yaml", b"names: [cat, dog, owl]\n")
    pack(tmp_path / "set/images/train", tmp_path / "1", BoxesOption("yolo"))
    assert boxes_of(tmp_path / "1") == {"a": EXPECTED["a"]}
    assert readers.open(tmp_path / "1").manifest.fields["boxes"].classes == NAMES
    write(tmp_path / "images/set/a.txt", yolo_text(BOXES["a"]))
    pack(tmp_path / "images/set", tmp_path / "2", BoxesOption("yolo"))
    assert boxes_of(tmp_path / "2") == {"a": EXPECTED["a"]}


def test_yolo_from_within_the_folder_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = annotated_set(tmp_path / "set", "yolo")
    monkeypatch.chdir(tmp_path / "set" / "images")
    pack(Path("."), tmp_path / "pack", option)
    assert readers.open(tmp_path / "pack").manifest.fields["boxes"].classes == NAMES
    assert boxes_of(tmp_path / "pack") == EXPECTED


# Orientation and sizes


@pytest.mark.parametrize("pixels", [{}, {"keep_bytes": True}, {"resize": 40}], ids=str)
def test_boxes_are_upright_whatever_they_were_drawn_on(
    tmp_path: Path, pixels: dict[str, Any]
) -> None:
    shown = Image.fromarray(photo(1, 60, 40))
    write(tmp_path / "set" / "plain.jpg", jpeg(photo(0, 60, 40), 6))
    write(tmp_path / "set" / "cmyk.jpg", _turned(shown.convert("CMYK"), "JPEG"))
    write(tmp_path / "set" / "a.png", _turned(shown, "PNG"))
    write(tmp_path / "set" / "a.tif", _turned(shown, "TIFF"))
    write(tmp_path / "set" / "a.webp", _turned(shown, "WEBP"))
    if features.check("avif"):
        write(tmp_path / "set" / "a.avif", _turned(shown, "AVIF"))
    names = [path.name for path in (tmp_path / "set").iterdir()]
    for size, box, expected in (
        ((60, 40), (20, 5, 50, 12, 0), [28, 20, 35, 50, 0]),  # as the file has its pixels
        ((40, 60), (20, 5, 30, 12, 0), [20, 5, 30, 12, 0]),  # as they are seen
    ):
        file = write(tmp_path / "instances.json", coco_text({name: [box] for name in names}, size))
        out = tmp_path / f"{size[0]}.pack"
        pack(tmp_path / "set", out, BoxesOption("coco", (file,)), pixels=pixels)
        assert [sample.fields["boxes"].tolist() for sample in readers.open(out)] == [
            [expected]
        ] * len(names)
    file = write(tmp_path / "instances.json", coco_text({key: [] for key in names}, (60, 41)))
    with pytest.raises(Exception, match="every file was rejected"):
        pack(tmp_path / "set", tmp_path / "none", BoxesOption("coco", (file,)))


def _turned(image: Image.Image, kind: str) -> bytes:
    import io

    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, kind, exif=exif)
    return file.getvalue()


def test_a_turned_image_whose_size_does_not_tell_is_counted(tmp_path: Path) -> None:
    """Mirrored, upside down or square, it has the same size as stored and as seen."""
    for i, (size, orientation) in enumerate([((60, 40), 3), ((40, 40), 6), ((60, 40), 6)]):
        write(tmp_path / str(i) / "set" / "a.jpg", jpeg(photo(0, *size), orientation))
        write(tmp_path / str(i) / "set" / "b.jpg", jpeg(photo(1, *size), orientation))
        text = coco_text({"a.jpg": [(2, 3, 20, 12, 0), (1, 1, 9, 9, 1)], "b.jpg": []}, size)
        option = BoxesOption("coco", (write(tmp_path / str(i) / "instances.json", text),))
        summary = pack(tmp_path / str(i) / "set", tmp_path / str(i) / "pack", option)
        if size == (60, 40) and orientation == 6:
            assert summary.warnings == {}
        else:
            assert summary.warnings == {TURNED: 1}
            assert boxes_of(tmp_path / str(i) / "pack")["a"][0] == [2, 3, 20, 12, 0]
    write(tmp_path / "yolo" / "a.jpg", jpeg(photo(0, *SIZE), 6))
    write(tmp_path / "yolo" / "a.txt", yolo_text(BOXES["b"], (40, 60)))
    summary = pack(tmp_path / "yolo", tmp_path / "pack", BoxesOption("yolo"))
    assert summary.warnings == {TURNED: 1}
    assert boxes_of(tmp_path / "pack") == {"a": EXPECTED["b"]}


BOX = (40, 20, 90, 50)
MODES: list[dict[str, Any]] = [
    {"resize": 40},
    {"resize": 60, "resize_mode": "longer"},
    {"resize": 50, "resize_mode": "exact"},
    {"resize": 64, "resize_mode": "pad"},
    {"resize": 300, "resize_mode": "pad", "enlarge": True},
    {"resize": 64, "resize_mode": "pad", "encode": "raw"},
    {"encode": "png"},
]


def picture_of_a_box(width: int = 120, height: int = 80) -> np.ndarray:
    """Black, with a white rectangle where BOX is."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 255
    return pixels


def white_box(pixels: np.ndarray) -> list[int]:
    """x_min, y_min, x_max, y_max of what is rather white than black."""
    rows, columns = np.nonzero(pixels[..., 0] >= 128)
    return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_boxes_follow_their_image(tmp_path: Path, mode: dict[str, Any], orientation: int) -> None:
    write(tmp_path / "set" / "a.jpg", jpeg(picture_of_a_box(), orientation, quality=95))
    text = coco_text({"a.jpg": [(*BOX, 1)]}, (120, 80))
    option = BoxesOption("coco", (write(tmp_path / "instances.json", text),))
    pixels = {"background": (0, 0, 0), **mode}
    pack(tmp_path / "set", tmp_path / "pack", option, pixels=pixels)
    sample = readers.open(tmp_path / "pack")[0]
    (box,) = sample.fields["boxes"]
    seen = white_box(sample.image)
    if orientation == 6:  # drawn on the file's pixels
        assert seen[3] - seen[1] > seen[2] - seen[0] or mode.get("resize_mode") == "exact"
    np.testing.assert_allclose(box[:4], seen, atol=0.75)
    assert verify(tmp_path / "pack", decode_images=True, threads=1).findings == []


def test_a_pack_of_a_pack_keeps_its_boxes(tmp_path: Path) -> None:
    write(tmp_path / "set" / "a.png", png(picture_of_a_box()))
    text = coco_text({"a.png": [(*BOX, 1)]}, (120, 80))
    option = BoxesOption("coco", (write(tmp_path / "instances.json", text),))
    first = pack(tmp_path / "set", tmp_path / "1", option)
    second = pack(tmp_path / "1", tmp_path / "2", None, "lmdb")
    assert second.content_digest == first.content_digest
    pack(tmp_path / "2", tmp_path / "3", None, pixels={"resize": 64, "resize_mode": "pad"})
    opened = readers.open(tmp_path / "3")
    assert opened.manifest.fields["boxes"].classes == NAMES
    (box,) = opened[0].fields["boxes"]
    np.testing.assert_allclose(box, [21.3333, 20.75, 48, 36.875, 1], rtol=1e-5)
    with pytest.raises(SourceError, match=r"boxes of its own.*--without-field boxes"):
        pack(tmp_path / "1", tmp_path / "4", option)
    pack(tmp_path / "1", tmp_path / "4", option, without_fields=("boxes",))
    with pytest.raises(SourceError, match="no files that could be annotations"):
        pack(tmp_path / "1", tmp_path / "5", BoxesOption("yolo"), without_fields=("boxes",))


# Training


@pytest.fixture
def one_box(tmp_path: Path) -> Path:
    """A pack of one large image with BOX."""
    write(tmp_path / "set" / "a.png", png(picture_of_a_box()))
    text = coco_text({"a.png": [(*BOX, 1)]}, (120, 80))
    pack(
        tmp_path / "set",
        tmp_path / "pack",
        BoxesOption("coco", (write(tmp_path / "instances.json", text),)),
    )
    return tmp_path / "pack"


@pytest.mark.parametrize("train", [True, False])
def test_the_loader_gives_boxes_in_pixels_of_its_images(one_box: Path, train: bool) -> None:
    loader = BatchLoader(
        one_box, 1, size=64, train=train, scale=(0.3, 1), threads=1, fields=["boxes"]
    )
    num_cut = 0
    for epoch in range(30 if train else 1):
        loader.set_epoch(epoch)
        for batch in loader:
            boxes = batch.fields["boxes"][0]
            assert len(batch.fields["boxes"]) == 1 and boxes.dtype == np.float32
            if not (batch.images[0] >= 128).any():
                assert len(boxes) == 0 or np.min(boxes[0, 2:4] - boxes[0, :2]) < 1
                continue
            ((*box, c),) = boxes.tolist()
            np.testing.assert_allclose(box, white_box(batch.images[0]), atol=0.75)
            assert c == 1
            num_cut += min(box) == 0 or max(box) == 64
    assert num_cut > 0 or not train


def test_a_transform_gets_boxes_as_they_are_stored(one_box: Path) -> None:
    loader = BatchLoader(
        one_box, 1, transform=lambda pixels, random: pixels[:8, :8], fields=["boxes"]
    )
    (batch,) = loader
    assert batch.fields["boxes"][0].tolist() == [[*BOX, 1]]


def test_boxes_outside_of_a_window_are_left_out() -> None:
    boxes = np.array([[0, 0, 10, 10, 0], [5, 5, 15, 12, 1], [20, 0, 30, 40, 2]], np.float32)
    shown = boxes_within(boxes, (10, 4, 10, 10), (20, 40))
    assert shown.tolist() == [[0, 4, 10, 32, 1]]
    mirrored = boxes_within(boxes, (10, 4, 10, 10), (20, 40), mirrored=True)
    assert mirrored.tolist() == [[10, 4, 20, 32, 1]]
    assert boxes_within(boxes[:0], (0, 0, 1, 1), (2, 2)).shape == (0, 5)
    assert boxes.tolist()[0] == [0, 0, 10, 10, 0]


def test_torch_datasets_give_boxes(one_box: Path) -> None:
    pytest.importorskip("torch")
    from readers.torch import ImageDataset, Loader

    image, label, boxes = ImageDataset(one_box, fields=["boxes"], arrays=True)[0]
    assert image.shape == (80, 120, 3) and label == -1 and boxes.tolist() == [[*BOX, 1]]
    ((images, _, batch),) = Loader(one_box, 1, size=40, train=False, fields=["boxes"])
    assert images.shape == (1, 3, 40, 40)
    assert batch.fields["boxes"][0].shape == (1, 5)


def test_dali_gets_boxes(tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali", reason="DALI is not installed")
    from nvidia.dali import fn, pipeline_def

    from readers import dali

    out = tmp_path / "pack"
    pack(tmp_path / "set", out, annotated_set(tmp_path / "set", "coco"))
    source = dali.external_source(out, 3, train=False, fields=["boxes"])

    @pipeline_def(batch_size=3, num_threads=1, device_id=None)
    def pipeline() -> Any:
        return fn.external_source(source, num_outputs=1, batch_info=True)[0]

    made = pipeline()
    made.build()
    (boxes,) = made.run()
    assert [np.asarray(boxes.at(i)).tolist() for i in range(3)] == list(EXPECTED.values())


# Damage


def test_boxes_that_are_none_are_found(one_box: Path) -> None:
    from packs import Recipe, Row

    from readers.manifest import Field

    image = png(photo(0, *SIZE))
    outside, strange = np.array([[0, 0, 61, 40, 0]], "<f4"), np.array([[0, 0, 1, 1, 1]], "<f4")
    damaged = {
        b"123": "not rows of boxes",
        outside.tobytes(): "no area within the image",
        np.concatenate([strange, strange]).tobytes(): "a class that does not exist",
    }
    for value, sentence in damaged.items():
        row = Row("a", {"image": image, "boxes": value}, width=60, height=40)
        fields = {"image": Field(), "boxes": Field("boxes", classes=("cat",))}
        out = Recipe([row], fields=fields).write(one_box.parent / str(len(value)), "memmap")
        (finding,) = verify(out, decode_images=True, threads=1).findings
        assert sentence in finding.reason
    with pytest.raises(DamagedSample, match="not rows of boxes"):
        readers.open(one_box.parent / "3").field(0, "boxes")


# Going on after an interruption


class Stopped(BaseException):
    pass


def stop(num_files: int, num_bytes: int, num_total: int) -> None:
    if num_files >= num_total:
        raise Stopped


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_annotation_is_noticed(tmp_path: Path, kind: str) -> None:
    boxes = {f"{i:02d}": BOXES["a"] for i in range(20)}
    option = annotated_set(tmp_path / "set", kind, boxes)
    shards = {"shard_bytes": 6000}
    with pytest.raises(Stopped):
        pack(tmp_path / "set", tmp_path / "pack", option, progress=stop, **shards)
    changed = {**boxes, "10": BOXES["a"][1:]}
    annotated_set(tmp_path / "set", kind, changed)
    if kind == "coco":
        with pytest.raises(DestinationError, match="unfinished run is here that has boxes"):
            pack(tmp_path / "set", tmp_path / "pack", option, **shards)
        return
    summary = pack(tmp_path / "set", tmp_path / "pack", option, **shards)
    assert len(boxes_of(tmp_path / "pack")["10"]) == 1
    afresh = pack(tmp_path / "set", tmp_path / "afresh", option)
    assert summary.content_digest == afresh.content_digest


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_goes_on(tmp_path: Path, kind: str) -> None:
    option = annotated_set(tmp_path / "set", kind, {f"{i:02d}": BOXES["a"] for i in range(20)})
    with pytest.raises(Stopped):
        pack(tmp_path / "set", tmp_path / "pack", option, progress=stop, shard_bytes=6000)
    assert pack(tmp_path / "set", tmp_path / "pack", option, shard_bytes=6000).num_resumed > 0


# The command line


def test_patterns_and_columns(tmp_path: Path) -> None:
    write(tmp_path / "set" / "x" / "a.jpg", jpeg(photo(0, *SIZE)))
    write(tmp_path / "set" / "boxes" / "a.txt", yolo_text(BOXES["a"], SIZE))
    arguments = ["convert", str(tmp_path / "set"), "--to", "lmdb", "-o", str(tmp_path / "1")]
    result = CliRunner().invoke(main, [*arguments, "--boxes", "yolo=../boxes/{stem}.txt"])
    assert result.exit_code == 0, result.output
    assert boxes_of(tmp_path / "1") == {"a": EXPECTED["a"]}
    assert readers.open(tmp_path / "1").classes == ["x"]
    write(tmp_path / "set" / "list.csv", b"path,seen\nx/a.jpg,boxes/a.txt\n")
    option = BoxesOption("yolo", pattern=Pattern("boxes", "{seen}"))
    pack(tmp_path / "set" / "list.csv", tmp_path / "2", option)
    assert list(readers.open(tmp_path / "2").manifest.fields) == ["image", "boxes"]
    assert boxes_of(tmp_path / "2") == {"a": EXPECTED["a"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--boxes", "coco"], "is not coco=FILE, yolo[=PATTERN] or voc[=PATTERN]"),
        (["--boxes", "yolo="], "is not coco=FILE"),
        (["--boxes", "kitti"], "is not coco=FILE"),
        (["--boxes", "voc=/abs/{stem}.xml"], "is not a relative path"),
        (["--boxes", "yolo", "--boxes", "voc"], "--boxes is given once"),
        (["--boxes", "yolo", "--field", "boxes={stem}.txt"], "--boxes makes the field"),
        (["--boxes-classes", __file__], "--boxes-classes goes with --boxes"),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["convert", str(tmp_path), "--to", "lmdb", *arguments])
    assert result.exit_code == 2 and sentence in " ".join(result.output.split())


def test_a_dry_run_counts_boxes(tmp_path: Path) -> None:
    annotated_set(tmp_path / "set", "yolo")
    (tmp_path / "set" / "labels" / "train" / "c.txt").unlink()
    arguments = ["convert", str(tmp_path / "set"), "--to", "lmdb", "--boxes", "yolo", "--dry-run"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0 and "boxes: 2 values" in result.output, result.output
