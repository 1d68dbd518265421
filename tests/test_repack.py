"""Packs of packs: copied as they are, or, where options say so, with other pixels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import array_pack
from images import jpeg, photo, png, write
from odd_kinds import HOW, KINDS, PHOTO

import readers
from packer.convert import Summary, convert
from packer.images.pixels import PixelOptions
from packer.options import Options
from packer.plan.part import Part
from packer.verify import verify
from readers import formats
from readers.decode import decode
from readers.errors import SourceError

DEEP: dict[str, Any] = {"depth": "shift", "frame": 0}
OTHER = {"hdf5": "lmdb", "lmdb": "memmap", "memmap": "hdf5"}


def pack(
    source: Path, out: Path, format_name: str, check: str = "decode", **options: Any
) -> readers.Pack:
    run(source, out, format_name, check, **options)
    return readers.open(out)


def run(
    source: Path, out: Path, format_name: str, check: str = "decode", **options: Any
) -> Summary:
    part = options.pop("part", Part())
    pixels = PixelOptions(**options)
    made = Options(format_name, 20_000, check=check, part=part, pixels=pixels)
    summary = convert(source, out, made, threads=2)
    assert verify(out, decode_images=True, threads=2).ok
    return summary


def check_same(copy: readers.Pack, original: readers.Pack) -> None:
    """The copy has all that the original has, to the last bit and word."""
    assert copy.content_digest == original.content_digest
    assert copy.manifest.fields == original.manifest.fields
    assert copy.index.keys() == original.index.keys()
    for name in copy.index.keys() - {"shard", "position", "image.offset"}:
        assert np.array_equal(copy.index[name], original.index[name]), name
    for i in range(len(copy)):
        assert copy.read(i) == original.read(i)
        image = original.image(i)
        assert np.array_equal(copy.image(i), image)
        assert copy.image(i).dtype == image.dtype
    assert copy.manifest.made["changed"] == {}


@pytest.fixture(scope="module")
def imgs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Odd images in class `odd`, plain ones of one size in `plain`."""
    root = tmp_path_factory.mktemp("repack") / "imgs"
    for i, name in enumerate(KINDS):
        write(root / "odd" / f"{i:02d}.png", KINDS[name][0])
    for i in range(4):
        write(root / "plain" / f"{i}.jpg", jpeg(photo(i, 150, 100), 3 if i else None))
    return root


# Copies


@pytest.mark.parametrize(("depth", "check"), [("shift", "decode"), ("keep", "header")])
def test_odd_images_that_kept_their_bytes_keep_them(
    imgs: Path, tmp_path: Path, format_name: str, depth: str, check: str
) -> None:
    how = {**HOW, "depth": depth}
    first = pack(imgs, tmp_path / "a", format_name, keep_bytes=True, **how)
    assert first.index["image.odd"].any()
    check_same(pack(first.path, tmp_path / "b", OTHER[format_name], check), first)


def test_a_part_without_odd_images_has_no_rule_for_them(imgs: Path, tmp_path: Path) -> None:
    first = pack(imgs, tmp_path / "a", "memmap", keep_bytes=True, **HOW)
    part = pack(first.path, tmp_path / "b", "lmdb", part=Part(classes=("plain",)))
    assert len(part) == 4
    assert "image.odd" not in part.index
    assert part.manifest.fields["image"].odd is None


def test_a_pack_of_16_bits_stays_one(imgs: Path, tmp_path: Path, format_name: str) -> None:
    first = pack(imgs, tmp_path / "a", format_name, depth="keep")
    check_same(pack(first.path, tmp_path / "b", OTHER[format_name]), first)


@pytest.mark.parametrize("depth", ["shift", "keep"])
def test_pixels_are_copied(imgs: Path, tmp_path: Path, format_name: str, depth: str) -> None:
    how: dict[str, Any] = {**HOW, "depth": depth, "resize": 20, "resize_mode": "exact"}
    first = pack(imgs, tmp_path / "a", format_name, encode="raw", **how)
    check_same(pack(first.path, tmp_path / "b", OTHER[format_name]), first)


@pytest.mark.parametrize("dtype", [np.float32, np.uint16, np.int8])
def test_any_array_can_be_copied_and_only_copied(tmp_path: Path, dtype: type) -> None:
    arrays = np.arange(3 * 4 * 5 * 2).reshape(3, 4, 5, 2).astype(dtype)
    first = readers.open(array_pack(tmp_path / "a", "lmdb", arrays))
    convert(first.path, tmp_path / "b", Options("hdf5"), threads=2)
    copy = readers.open(tmp_path / "b")
    check_same(copy, first)
    assert np.array_equal(copy.image(1), arrays[1])
    with pytest.raises(SourceError, match="can only be copied as they are"):
        pack(first.path, tmp_path / "c", "hdf5", resize=10)


@pytest.mark.parametrize("options", [{"encode": "jpeg"}, {"resize": 90}, {"seekable": True}])
def test_seekable_jpegs_stay_seekable(imgs: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    if "seekable" in options and shutil.which("jpegtran") is None:
        pytest.skip("needs jpegtran (apt: libjpeg-turbo-progs)")
    for name in formats.names():
        first = pack(imgs, tmp_path / f"{name}-1", name, depth="shift", **options)
        assert len(first.index["image.segments"])
        check_same(pack(first.path, tmp_path / f"{name}-2", OTHER[name]), first)
    part = pack(first.path, tmp_path / "part", "lmdb", part=Part(limit=5))
    rows = [list(first.keys).index(key) for key in part.keys]
    for i, row in enumerate(rows):
        assert (part.segments(i) is None) == (first.segments(row) is None)
        if part.segments(i) is not None:
            assert np.array_equal(part.segments(i), first.segments(row))


def test_a_copy_goes_on_after_an_interruption(imgs: Path, tmp_path: Path) -> None:
    first = pack(imgs, tmp_path / "a", "memmap", keep_bytes=True, **HOW)

    def stop(done: int, num_bytes: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    options = Options("lmdb", 20_000)
    with pytest.raises(KeyboardInterrupt):
        convert(first.path, tmp_path / "b", options, threads=1, progress=stop)
    assert convert(first.path, tmp_path / "b", options, threads=1).num_resumed > 0
    check_same(readers.open(tmp_path / "b"), first)


def test_damage_does_not_get_into_a_copy(tmp_path: Path) -> None:
    """Not even damage that was packed, by a run that looked at headers only."""
    data = jpeg(PHOTO)
    write(tmp_path / "imgs" / "cut.jpg", data[: len(data) // 2] + b"\xff\xd9")
    write(tmp_path / "imgs" / "whole.jpg", data)
    options = Options("memmap", check="header")
    convert(tmp_path / "imgs", tmp_path / "a", options, threads=1)
    again = run(tmp_path / "a", tmp_path / "b", "lmdb")
    assert again.rejected == {"image data missing": 1}
    assert convert(tmp_path / "a", tmp_path / "c", options, threads=1).rejected == {}


def test_a_copied_image_that_is_larger_than_its_index_says_is_rejected(tmp_path: Path) -> None:
    """The limit of pixels is what the first run allowed."""
    write(tmp_path / "imgs" / "a.png", png(PHOTO))
    first = pack(tmp_path / "imgs", tmp_path / "a", "memmap", max_pixels=48 * 32)
    check_same(pack(first.path, tmp_path / "b", "lmdb"), first)


# Other pixels


def test_raw_pixels_are_pixels_like_any_other(imgs: Path, tmp_path: Path, format_name: str) -> None:
    how: dict[str, Any] = {**HOW, "resize": 20, "resize_mode": "exact"}
    raw = pack(imgs, tmp_path / "raw", format_name, encode="raw", **how)
    encoded = pack(raw.path, tmp_path / "png", format_name, encode="png")
    assert encoded.manifest.made["changed"] == {"raw pixels to RGB PNG": len(raw)}
    for i in range(len(raw)):
        assert np.array_equal(encoded.image(i), raw.image(i))
    as_jpeg = pack(raw.path, tmp_path / "jpeg", format_name, encode="jpeg")
    assert as_jpeg.read(0).startswith(b"\xff\xd8")
    smaller = pack(raw.path, tmp_path / "smaller", format_name, resize=10)
    assert smaller.read(0).startswith(b"\x89PNG")
    assert smaller.image(0).shape == (10, 10, 3)
    same = pack(raw.path, tmp_path / "same", format_name, max_pixels=10_000)
    assert same.manifest.fields == raw.manifest.fields
    assert same.content_digest == raw.content_digest


def test_16_bits_stay_16_bits_unless_told_otherwise(imgs: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {**HOW, "depth": "keep", "resize": 20, "resize_mode": "exact"}
    for name, options in {"png": how, "raw": {**how, "encode": "raw"}}.items():
        first = pack(imgs, tmp_path / name, "memmap", **options)
        smaller = pack(first.path, tmp_path / f"{name}-10", "memmap", resize=10)
        assert smaller.image(0).dtype == np.uint16
        shallow = pack(first.path, tmp_path / f"{name}-8", "memmap", resize=10, depth="scale")
        assert shallow.image(0).dtype == np.uint8
        difference = smaller.image(0) / 257 - shallow.image(0)
        assert np.abs(difference).max() <= 1
        with pytest.raises(SourceError, match="--depth shift or scale"):
            pack(first.path, tmp_path / "no", "memmap", encode="jpeg")
        as_jpeg = pack(first.path, tmp_path / f"{name}-j", "lmdb", encode="jpeg", depth="shift")
        assert decode(as_jpeg.read(0)).shape == (20, 20, 3)


def test_odd_images_of_a_pack_are_treated_as_a_folder_s(imgs: Path, tmp_path: Path) -> None:
    kept = pack(imgs, tmp_path / "kept", "memmap", keep_bytes=True, **HOW)
    for options in ({"resize": 20}, {"encode": "png"}):
        from_pack = pack(kept.path, tmp_path / "a", "lmdb", **HOW, **options)
        from_folder = pack(imgs, tmp_path / "b", "lmdb", **HOW, **options)
        assert from_pack.content_digest == from_folder.content_digest
        for name in ("a", "b"):
            shutil.rmtree(tmp_path / name)


def test_odd_images_become_what_the_pack_s_readers_show(imgs: Path, tmp_path: Path) -> None:
    rule = {"background": (255, 0, 0), "depth": "shift", "frame": 0}
    kept = pack(imgs, tmp_path / "kept", "memmap", keep_bytes=True, **rule)
    plain = pack(tmp_path / "kept", tmp_path / "plain", "memmap", encode="png")
    assert len(plain) == len(kept)
    for i in range(len(kept)):
        assert np.array_equal(plain.image(i), kept.image(i)), kept.keys[i]
    on_black = {"encode": "png", "background": (0, 0, 0)}
    black = pack(tmp_path / "kept", tmp_path / "black", "memmap", **on_black)
    assert any(not np.array_equal(black.image(i), kept.image(i)) for i in range(len(kept)))


def test_white_is_a_background_like_any_other(imgs: Path, tmp_path: Path) -> None:
    """That it is the default does not make it the background of a pack that has another."""
    kept = pack(imgs, tmp_path / "red", "memmap", keep_bytes=True, background=(255, 0, 0), **DEEP)
    made_white = pack(imgs, tmp_path / "made", "memmap", encode="png", **DEEP)
    for how in ({"encode": "png"}, {}):
        out = tmp_path / f"white{len(how)}"
        white = pack(kept.path, out, "memmap", background=(255, 255, 255), **how)
        for i in range(len(white)):
            assert np.array_equal(white.image(i), made_white.image(i)), white.keys[i]
