"""Annotations of COCO, YOLO and Pascal VOC: what is read from them, and what is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import Box, coco_text, voc_text, yolo_text
from hypothesis import given, settings
from hypothesis import strategies as st
from images import write

from packer.annotations import coco, voc, yolo
from packer.boxes import CLIPPED, OUTSIDE, WITHOUT_AREA, Annotated, fit, turned
from packer.images.geometry import Geometry, Size, unchanged
from packer.images.inspect import Reject
from packer.json_stream import JsonStream
from packer.plan import class_names
from readers.decode import upright
from readers.errors import SourceError

LANDSCAPE = unchanged(60, 40)
SIZE = LANDSCAPE.source


def from_coco(tmp_path: Path, text: bytes, keys: Sequence[str] = ("a.jpg",), **options: Any) -> Any:
    return coco.Annotations([write(tmp_path / "instances.json", text)], keys, **options)


def stored(
    found: Annotated, orientation: int = 1, geometry: Geometry = LANDSCAPE
) -> list[list[float]]:
    rows, _ = fit(found, orientation, geometry)
    assert rows.dtype == np.dtype("<f4") and rows.shape[1:] == (5,)
    return rows.tolist()  # type: ignore[no-any-return]


def reason(call: Any, *arguments: Any) -> str:
    with pytest.raises(Reject) as caught:
        call(*arguments)
    return str(caught.value)


@st.composite
def sizes_and_boxes(draw: st.DrawFn) -> tuple[Size, list[Box]]:
    width, height = draw(st.integers(1, 5000)), draw(st.integers(1, 5000))
    part = st.floats(0, 1, width=32)
    boxes = []
    for _ in range(draw(st.integers(0, 4))):
        x, y = (sorted(draw(st.tuples(part, part))) for _ in range(2))
        if min((x[1] - x[0]) * width, (y[1] - y[0]) * height) > 0.01:
            corners = (x[0] * width, y[0] * height, x[1] * width, y[1] * height)
            boxes.append((*corners, draw(st.integers(0, 2))))
    return (width, height), boxes


@settings(max_examples=50, deadline=None)
@given(sizes_and_boxes())
def test_all_kinds_give_the_same_boxes(
    tmp_path_factory: pytest.TempPathFactory, drawn: tuple[Size, list[Box]]
) -> None:
    size, boxes = drawn
    found = [
        from_coco(tmp_path_factory.mktemp("coco"), coco_text({"a.jpg": boxes}, size)).find(
            "a.jpg", b"", size
        ),
        yolo.Annotations().find("a.jpg", yolo_text(boxes, size), size),
        voc.Annotations(["cat", "dog", "owl"]).find("a.jpg", voc_text(boxes, size), size),
    ]
    for of_kind in found:
        rows, warnings = fit(of_kind, 1, unchanged(*size))
        assert warnings == ()
        np.testing.assert_allclose(rows, np.array(boxes).reshape(-1, 5), rtol=1e-6, atol=1e-3)
        assert np.all(rows[:, :2] >= 0) and np.all(rows[:, 2:4] <= size)


def test_a_value_is_rows_of_little_endian_floats(tmp_path: Path) -> None:
    annotations = from_coco(tmp_path, coco_text({"a.jpg": [(10, 5, 30.5, 25, 2)], "b.jpg": []}))
    rows, _ = fit(annotations.find("a.jpg", b"", SIZE), 1, LANDSCAPE)
    assert rows.tobytes() == np.array([10, 5, 30.5, 25, 2], "<f4").tobytes()
    assert rows.flags.c_contiguous


# What becomes of boxes


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_turn_as_pixels_do(orientation: int) -> None:
    picture = np.zeros((40, 60, 3), np.uint8)
    picture[5:12, 20:50] = 255
    (x, y, right, bottom, c) = turned(np.array([[20.0, 5, 50, 12, 7]]), (60, 40), orientation)[0]
    expected = np.zeros_like(upright(picture, orientation))
    expected[int(y) : int(bottom), int(x) : int(right)] = 255
    assert np.array_equal(upright(picture, orientation), expected) and c == 7


def test_boxes_drawn_on_an_image_on_its_side_are_turned_and_others_are_not() -> None:
    rows = np.array([[20.0, 5, 50, 12, 0]])
    assert stored(Annotated(rows, (40, 60)), 6, unchanged(40, 60)) == [
        [20, 5, 40, 12, 0]
    ]  # clipped
    assert stored(Annotated(rows, (60, 40)), 6, unchanged(40, 60)) == [[28, 20, 35, 50, 0]]
    assert stored(Annotated(rows, (60, 40)), 3) == [[20, 5, 50, 12, 0]]
    assert stored(Annotated(rows, None), 6) == [[20, 5, 50, 12, 0]]


@pytest.mark.parametrize(("orientation", "size"), [(1, (40, 60)), (3, (40, 60)), (8, (61, 40))])
def test_annotations_of_another_size_are_refused(orientation: int, size: Size) -> None:
    found = Annotated(np.array([[0.0, 0, 1, 1, 0]]), (60, 40))
    text = reason(fit, found, orientation, unchanged(*size))
    assert text.startswith("annotated in another size")
    assert "60 x 40" in text and f"{size[0]} x {size[1]}" in text


def test_boxes_are_clipped_or_left_out_but_never_without_a_word() -> None:
    rows = np.array(
        [
            [-0.4, 3, 10, 41, 0],  # out by rounding
            [-5, 3, 70, 20, 1],
            [4, 3, 4, 20, 2],
            [30, 20, 10, 10, 3],
            [60, 3, 70, 20, 4],
            [-9, 3, -2, 20, 5],
        ]
    )
    boxes, warnings = fit(Annotated(rows, warnings=("before",)), 1, LANDSCAPE)
    assert boxes.tolist() == [[0, 3, 10, 40, 0], [0, 3, 60, 20, 1]]
    assert warnings == (
        "before",
        *(WITHOUT_AREA, WITHOUT_AREA, OUTSIDE, OUTSIDE),
        CLIPPED,
    )


def test_boxes_follow_the_image_to_its_new_place() -> None:
    found = Annotated(np.array([[10.0, 4, 60, 40, 2]]))
    geometry = Geometry((60, 40), (30, 10), (36, 24), (3, 7))
    assert stored(found, 1, geometry) == [[8, 8, 33, 17, 2]]


# COCO


def test_sparse_categories_become_classes_without_gaps(tmp_path: Path) -> None:
    annotations = from_coco(tmp_path, coco_text({"a.jpg": [(0, 0, 1, 1, 2), (0, 0, 2, 2, 1)]}))
    assert annotations.classes == ("cat", "dog", "owl")
    assert stored(annotations.find("a.jpg", b"", SIZE)) == [[0, 0, 1, 1, 2], [0, 0, 2, 2, 1]]


def test_given_classes_are_matched_by_name(tmp_path: Path) -> None:
    text = coco_text({"a.jpg": [(0, 0, 1, 1, 2)]})
    annotations = from_coco(tmp_path, text, classes=["owl", "dog", "yak", "cat"])
    assert annotations.classes == ("owl", "dog", "yak", "cat")
    assert stored(annotations.find("a.jpg", b"", SIZE)) == [[0, 0, 1, 1, 0]]
    with pytest.raises(SourceError, match="category 'owl' is not in the given class map"):
        from_coco(tmp_path, text, classes=["cat", "dog"])
    with pytest.raises(SourceError, match="'owl' is not in the given class map, but 'owl ' is"):
        from_coco(tmp_path, text, classes=["cat", "dog", "owl "])


def test_the_members_may_come_in_any_order(tmp_path: Path) -> None:
    body = json.loads(coco_text({"a.jpg": [(0, 0, 1, 1, 2)], "b.jpg": [(0, 0, 3, 3, 0)]}))
    for order in (("annotations", "categories", "images"), ("categories", "images", "annotations")):
        text = json.dumps({name: body[name] for name in order}, indent=2).encode()
        annotations = from_coco(tmp_path, text, ["b.jpg", "a.jpg"])
        assert stored(annotations.find("a.jpg", b"", SIZE)) == [[0, 0, 1, 1, 2]]
        assert stored(annotations.find("b.jpg", b"", SIZE)) == [[0, 0, 3, 3, 0]]


def test_several_files_are_one_set(tmp_path: Path) -> None:
    first = write(tmp_path / "1.json", coco_text({"train/a.jpg": [(0, 0, 1, 1, 1)]}))
    text = coco_text({"val/a.jpg": [(0, 0, 2, 2, 3)]}, names=["cat", "dog", "owl", "yak"])
    second = write(tmp_path / "2.json", text)
    annotations = coco.Annotations([first, second], ["train/a.jpg", "val/a.jpg"])
    assert annotations.classes == ("cat", "dog", "owl", "yak") and annotations.notes == []
    assert stored(annotations.find("train/a.jpg", b"", SIZE)) == [[0, 0, 1, 1, 1]]
    assert stored(annotations.find("val/a.jpg", b"", SIZE)) == [[0, 0, 2, 2, 3]]
    write(second, coco_text({"b.jpg": []}, names=["cow", "dog", "owl"]))
    with pytest.raises(SourceError, match=r"category 1 is 'cow', and 'cat' in 1\.json"):
        coco.Annotations([first, second], [])


def test_crowds_and_strays_are_counted(tmp_path: Path) -> None:
    body = json.loads(coco_text({"a.jpg": [(0, 0, 1, 1, 0), (0, 0, 2, 2, 0), (0, 0, 3, 3, 0)]}))
    body["annotations"][0].update(iscrowd=1, bbox="whatever")
    body["annotations"][2]["image_id"] = 7
    annotations = from_coco(tmp_path, json.dumps(body).encode())
    found = annotations.find("a.jpg", b"", SIZE)
    assert stored(found) == [[0, 0, 2, 2, 0]]
    assert found.warnings == (coco.CROWD,)
    assert annotations.notes == [
        "1 annotations in instances.json are of images that it does not list"
    ]


def test_an_image_without_a_size_is_taken_as_upright(tmp_path: Path) -> None:
    body = json.loads(coco_text({"a.jpg": [(0, 0, 9, 9, 0)]}))
    del body["images"][0]["width"]
    found = from_coco(tmp_path, json.dumps(body).encode()).find("a.jpg", b"", SIZE)
    assert found.size is None and "without the image's size" in found.warnings[0]


@pytest.mark.parametrize(
    ("file_name", "keys", "expected"),
    [
        ("a.jpg", ["a.jpg", "x/a.jpg"], "a.jpg"),
        ("a.jpg", ["x/a.jpg", "x/b.jpg"], "x/a.jpg"),
        ("x\\a.jpg", ["x/a.jpg", "y/a.jpg"], "x/a.jpg"),
        ("./x/a.jpg", ["x/a.jpg", "y/a.jpg"], "x/a.jpg"),
        ("x/a.jpg", ["images/x/a.jpg", "images/y/a.jpg"], "images/x/a.jpg"),
        ("/home/me/set/x/a.jpg", ["x/a.jpg", "y/a.jpg"], "x/a.jpg"),
        ("old/a.jpg", ["x/a.jpg", "x/ba.jpg"], "x/a.jpg"),
    ],
)
def test_a_file_name_finds_its_key(
    tmp_path: Path, file_name: str, keys: list[str], expected: str
) -> None:
    annotations = from_coco(tmp_path, coco_text({file_name: [(0, 0, 9, 9, 0)]}), keys)
    assert [key for key in keys if key in annotations] == [expected]
    assert len(annotations.find(expected, b"", SIZE).rows) == 1
    assert bool(annotations.notes) == (file_name == "old/a.jpg")


@pytest.mark.parametrize("file_name", ["a.jpg", "z/a.jpg"])
def test_a_file_name_that_may_be_two_keys_is_an_error(tmp_path: Path, file_name: str) -> None:
    with pytest.raises(SourceError, match=r"may be x/a\.jpg or y/a\.jpg"):
        from_coco(tmp_path, coco_text({file_name: []}), ["x/a.jpg", "y/a.jpg"])


def test_two_images_that_may_be_one_key_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"two images .* key 'x/a\.jpg'|'x/a\.jpg': two images"):
        from_coco(tmp_path, coco_text({"a.jpg": [], "x/a.jpg": []}), ["x/a.jpg"])


def test_annotated_images_that_are_missing_are_counted(tmp_path: Path) -> None:
    annotations = from_coco(tmp_path, coco_text({"a.jpg": [], "b.jpg": [], "c.jpg": []}))
    assert annotations.notes == ["2 annotated images are not in the source (b.jpg …)"]


BAD_OBJECTS: dict[str, dict[str, Any]] = {
    "bbox is [0, 0, 1]": {"bbox": [0, 0, 1]},
    "bbox is None": {"bbox": None},
    "bbox is [0, 0, nan, 1]": {"bbox": [0, 0, float("nan"), 1]},
    "bbox is ['0', 0, 1, 1]": {"bbox": ["0", 0, 1, 1]},
    "bbox is [True, 0, 1, 1]": {"bbox": [True, 0, 1, 1]},
    "bbox is [1000": {"bbox": [10**400, 0, 1, 1]},
    "category_id is 'cat'": {"category_id": "cat"},
    "category_id is None": {"category_id": None},
    "category 99, which is not in categories": {"category_id": 99},
}


@pytest.mark.parametrize("expected", BAD_OBJECTS)
def test_a_broken_object_rejects_its_image_alone(tmp_path: Path, expected: str) -> None:
    body = json.loads(coco_text({"a.jpg": [(0, 0, 1, 1, 0)], "b.jpg": [(0, 0, 1, 1, 0)]}))
    body["annotations"][0].update(BAD_OBJECTS[expected])
    annotations = from_coco(tmp_path, json.dumps(body).encode(), ["a.jpg", "b.jpg"])
    text = reason(annotations.find, "a.jpg", b"", SIZE)
    assert text.startswith("broken annotation (instances.json, ") and expected in text
    assert len(annotations.find("b.jpg", b"", SIZE).rows) == 1


BROKEN_COCO: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file ends"),
    "results": (b'[{"image_id": 1}]', "instead of '{'"),
    "captions": (b'{"images": [], "annotations": []}', "has no categories"),
    "no array": (b'{"images": {}}', r"instead of '\['"),
    "cut": (coco_text({"a.jpg": [(0, 0, 1, 1, 0)]})[:-40], "is broken behind"),
    "cut in a number": (b'{"images": [{"id": 1', "is broken the file"),
    "trailing": (coco_text({"a.jpg": []}) + b"]", "something comes after the object"),
    "no object": (b'{"images": [1]}', r"images\[0\] is not an object"),
    "no file_name": (b'{"images": [{"id": 1}]}', r"images\[0\] lacks its id or file_name"),
    "no image_id": (b'{"annotations": [{"bbox": []}]}', r"annotations\[0\] lacks its image_id"),
    "no name": (b'{"categories": [{"id": 1}]}', r"categories\[0\] lacks its id"),
    "same id": (
        b'{"images": [{"id": 1, "file_name": "a"}, {"id": 1, "file_name": "b"}]}',
        r"images\[1\] has the id 1",
    ),
    "same category": (
        b'{"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}',
        r"categories\[1\] has the id 1",
    ),
    "half a character in a name": (
        b'{"categories": [{"id": 1, "name": "\\ud800"}]}',
        r"categories\[0\]: its name .* cannot be one",
    ),
    "half a character in a file_name": (
        b'{"images": [{"id": 1, "file_name": "\\ud800"}]}',
        r"images\[0\]: its file_name .* cannot be one",
    ),
    "deep": (b'{"images": [' + b"[" * 200_000, "recursion"),
}


@pytest.mark.parametrize("what", BROKEN_COCO)
def test_what_is_not_coco_is_an_error_with_a_place(tmp_path: Path, what: str) -> None:
    text, expected = BROKEN_COCO[what]
    with pytest.raises(SourceError, match=expected) as caught:
        from_coco(tmp_path, text)
    assert "instances.json" in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No such file"):
        coco.Annotations([tmp_path / "none.json"], [])


# A large JSON, piece by piece


class Dribble(io.StringIO):
    """A file that hands out a few characters at a time."""

    def read(self, size: int | None = -1) -> str:
        return super().read(3)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=5),
        st.lists(
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
                max_leaves=6,
            ),
            max_size=4,
        ),
        max_size=4,
    ),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_json_in_pieces_is_json(body: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    stream = JsonStream(Dribble(json.dumps(body, indent=indent, ensure_ascii=ascii_only)))
    assert {name: list(stream.elements()) for name in stream.members()} == body


def test_json_errors_tell_where(tmp_path: Path) -> None:
    stream = JsonStream(Dribble('{"a": [12, 13, oops]}'))
    with pytest.raises(ValueError, match="at character 15"):
        [list(stream.elements()) for _ in stream.members()]


# YOLO


@pytest.mark.parametrize(
    ("key", "file"),
    [
        ("images/train/a.jpg", "labels/train/a.txt"),
        ("train/images/a.b.jpg", "train/labels/a.b.txt"),
        ("images/images/a.png", "images/labels/a.txt"),
        ("my_images/a.jpg", "my_images/a.txt"),
        ("a.jpg", "a.txt"),
    ],
)
def test_the_label_file_of_an_image(key: str, file: str) -> None:
    assert yolo.label_file(key) == file


def test_a_source_that_is_the_folder_images_has_labels_beside_it() -> None:
    assert yolo.label_file("a.jpg", "../labels") == "../labels/a.txt"
    assert yolo.label_file("train/a.jpg", "../labels") == "../labels/train/a.txt"
    assert yolo.label_file("images/a.jpg", "../labels") == "labels/a.txt"


def test_blank_lines_windows_lines_and_a_bom_do_no_harm() -> None:
    data = b"\xef\xbb\xbf1 0.5 0.5 1 1\r\n\r\n  0\t.25 .25 .5 .5  \r\n"
    found = yolo.Annotations(["a", "b"]).find("a.jpg", data, SIZE)
    assert stored(found) == [[0, 0, 60, 40, 1], [0, 0, 30, 20, 0]]
    assert stored(yolo.Annotations().find("a.jpg", b"", SIZE)) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"0 .5 .5 1 1\n0 .5 .5 1", "line 2: 4 values, not the 5"),
        (b"0 .1 .1 .2 .1 .2 .2", "line 1: 7 values"),
        (b"0 .5 .5 1 1 0.93", "line 1: 6 values"),
        (b"cat .5 .5 1 1", "line 1: cat .5 .5 1 1 are not 5 numbers"),
        (b"0 .5 .5 1 nan", "line 1: .5 .5 1 nan are not parts"),
        (b"0 30 20 10 10", "are not parts of the image, 0 to 1"),
        (b"0 .5 .5 -.2 .2", "are not parts of the image"),
        (b"2 .5 .5 1 1", "class 2 is not in 0 … 1"),
        (b"-1 .5 .5 1 1", "class -1 is not in"),
        (b"0.5 .5 .5 1 1", "class 0.5 is not in"),
        (b"nan .5 .5 1 1", "class nan is not in"),
        (b"\xff\xfe0\0", "not text in UTF-8"),
    ],
)
def test_a_broken_label_file_is_rejected(data: bytes, expected: str) -> None:
    text = reason(yolo.Annotations(["a", "b"]).find, "a.jpg", data, SIZE)
    assert text.startswith("broken annotation (") and expected in text


def test_without_names_any_class_goes_that_float32_can_hold() -> None:
    unnamed = yolo.Annotations()
    assert unnamed.classes == ()
    largest = (1 << 24) - 1
    found = unnamed.find("a.jpg", b"%d .5 .5 1 1" % largest, SIZE)
    assert stored(found)[0][4] == largest
    assert "is not in" in reason(unnamed.find, "a.jpg", b"%d .5 .5 1 1" % (1 << 24), SIZE)


# Pascal VOC


def test_voc_counts_from_one_and_its_last_pixel_is_inside() -> None:
    data = voc_text([(0, 0, 60, 40, 1)])
    assert b"<xmin>1</xmin>" in data and b"<xmax>60</xmax>" in data
    annotations = voc.Annotations(["cat", "dog"])
    assert stored(annotations.find("a.jpg", data, SIZE)) == [[0, 0, 60, 40, 1]]
    found = annotations.find("a.jpg", data.replace(b"min>1<", b"min>0<"), SIZE)
    assert fit(found, 1, LANDSCAPE)[1] == ()  # tools that count from 0: out by a pixel is rounding


def test_parts_are_no_objects_and_difficult_objects_are() -> None:
    data = voc_text([(0, 0, 9, 9, 0)]).replace(
        b"</bndbox>",
        b"</bndbox><difficult>1</difficult><part><name>head</name><bndbox><xmin>1</xmin>"
        b"<ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>",
    )
    assert voc.names_in(data) == {"cat"}
    found = voc.Annotations(["cat"]).find("a.jpg", data, SIZE)
    assert stored(found) == [[0, 0, 9, 9, 0]] and found.warnings == (voc.PART,)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "gb2312"])
def test_the_encodings_of_xml(encoding: str) -> None:
    name = "旗" if encoding == "gb2312" else "café"
    declared = encoding.removesuffix("-sig")
    text = voc_text([(0, 0, 9, 9, 0)], names=[name]).decode()
    data = f'<?xml version="1.0" encoding="{declared}"?>\n{text}'.encode(encoding)
    assert voc.names_in(data) == {name}


BOMB = '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]>'
BROKEN_VOC: dict[str, tuple[bytes, str]] = {
    "bomb": (BOMB.encode() + voc_text([]), "declares entities"),
    "bomb in UTF-16": ((BOMB + voc_text([]).decode()).encode("utf-16"), "declares entities"),
    "bomb in EBCDIC": (
        b"<?xml version='1.0' encoding='cp037'?>" + BOMB.encode("cp037"),
        "declares entities",
    ),
    "empty": (b"", "not XML"),
    "cut": (voc_text([(0, 0, 9, 9, 0)])[:-5], "not XML"),
    "other": (b"<svg/>", "it is <svg>, not Pascal VOC's <annotation>"),
    "encoding": (b'<?xml version="1.0" encoding="rot13"?><annotation/>', "not text in rot13"),
    "not UTF-8": (voc_text([(0, 0, 9, 9, 0)]).replace(b"cat", b"c\xe9t"), "not text in utf-8"),
    "no name": (voc_text([(0, 0, 9, 9, 0)], names=[" "]), "object 1 has no name"),
    "unknown": (voc_text([(0, 0, 9, 9, 0)], names=["yak"]), "'yak' is not among the classes"),
    "no box": (voc_text([], more="<object><name>cat</name></object>"), "xmin missing"),
    "no number": (
        voc_text([(0, 0, 9, 9, 0), (0, 0, 8, 8, 0)]).replace(b">8<", b">x<"),
        "object 2: its bndbox is xmin 1, ymin 1, xmax x, ymax x, not four numbers",
    ),
    "nan": (voc_text([(0, 0, 9, float("nan"), 0)]), "not four numbers"),
    "size": (voc_text([], ("a", 3)), "its size is not two whole numbers"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", BROKEN_VOC)
def test_a_broken_xml_is_rejected(what: str) -> None:
    data, expected = BROKEN_VOC[what]
    text = reason(voc.Annotations(["cat"]).find, "a.jpg", data, SIZE)
    assert text.startswith("broken annotation (") and expected in text


def test_an_xml_without_a_size_is_taken_as_upright() -> None:
    found = voc.Annotations(["cat"]).find("a.jpg", voc_text([(1, 2, 9, 9, 0)], (0, 0)), SIZE)
    assert stored(found) == [[1, 2, 9, 9, 0]]
    assert "without the image's size" in found.warnings[0]


# Names of classes


@pytest.mark.parametrize(
    "text",
    [
        "names: [traffic light, 'it''s', \"a # b\"]",
        "nc: 3\nnames:   # all\n  - traffic light\n  - 'it''s'  # quoted\n  - \"a # b\"\nval: x\n",
        "names:\n- traffic light\n\n# more\n- 'it''s'\n- \"a # b\"\n",
        "names:\n  0: traffic light\n  2: \"a # b\"\n  1: 'it''s'\ntrain: x",
        "train: x\nnames: {0: traffic light, 1: 'it''s',\n  2: \"a # b\", }  # all\n",
        'names: [\n  \'traffic light\',  # first\n  "it\'s",\n  "a # b",\n]\r\nnc: 3\n',
    ],
)
def test_names_in_a_yaml(text: str) -> None:
    assert class_names.parse(text.encode(), Path("data.yaml")) == ["traffic light", "it's", "a # b"]


@pytest.mark.parametrize(
    "text",
    [
        "names: x",
        "names: []",
        "names:",
        "names: [a, [b]]",
        "names: [a,, b]",
        "names: [a b: c]",
        "names: {a: b}",
        "names: {0: a 1: b}",
        "names: [a, b",
        "names: [a, b}",
        "names:\n  1: a\n",
        "names:\n  a: b\n",
        "path: names\n",
    ],
)
def test_what_else_a_yaml_may_hold_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match="names"):
        class_names.parse(text.encode(), Path("data.yml"))


@pytest.mark.parametrize("text", ['names: ["\\ud800"]', 'names:\n  0: "a\\u0000"'])
def test_a_class_that_no_folder_could_be_is_refused(text: str) -> None:
    with pytest.raises(SourceError, match=r"data\.yaml: class .* cannot be a name"):
        class_names.parse(text.encode(), Path("data.yaml"))


def test_names_in_a_text() -> None:
    assert class_names.parse(b"\xef\xbb\xbfa b\r\n\r\nc\n", Path("classes.txt")) == ["a b", "c"]
    with pytest.raises(SourceError, match="class 'a' is listed twice"):
        class_names.parse(b"a\nb\na\n", Path("obj.names"))
