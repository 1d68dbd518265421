"""What is stored of images that are resized or stored anew, and whole packs of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from images import class_folder, jpeg, photo, png, write
from odd_kinds import BACKGROUND, HOW, KINDS, several
from one_file import OneFile, pixels_of, prepared, reason, saved

import readers
from packer.cli import main
from packer.convert import convert
from packer.images import restart
from packer.images.inspect import inspect
from packer.images.pixels import PixelOptions
from packer.images.resampling import KERNEL, resize
from packer.options import Options
from packer.prepare import prepare
from packer.verify import verify
from readers import seekable
from readers.decode import decode
from readers.errors import DspackError, MissingDependency, SourceError
from readers.loader import BatchLoader

has_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="needs jpegtran (apt: libjpeg-turbo-progs)"
)


# Resizing


LARGE = photo(7, 200, 120)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("shorter", (100, 60)), ("longer", (60, 36)), ("exact", (60, 60)), ("pad", (60, 60))],
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_sizes_of_the_modes(mode: str, expected: tuple[int, int], orientation: int) -> None:
    data = jpeg(LARGE, orientation)
    image = prepared(data, resize=60, resize_mode=mode).image
    assert image is not None
    assert image.orientation == 1
    width, height = expected if orientation == 1 else expected[::-1]
    assert (image.width, image.height) == (width, height)


def test_nothing_is_enlarged_unless_asked_for() -> None:
    for mode in ("shorter", "longer"):
        assert prepared(jpeg(LARGE), resize=300, resize_mode=mode).data == jpeg(LARGE)
        larger = prepared(jpeg(LARGE), resize=300, resize_mode=mode, enlarge=True).image
        assert larger is not None
        assert (larger.width, larger.height) == ((500, 300) if mode == "shorter" else (300, 180))
    assert reason(jpeg(LARGE), resize=150, resize_mode="exact") == "smaller than --resize"
    for mode in ("shorter", "exact", "pad"):  # as large a file would be rejected, too
        enlarged = {"resize": 65535, "resize_mode": mode, "enlarge": True}
        assert reason(jpeg(LARGE), **enlarged) == "too many pixels"
    square = pixels_of(jpeg(LARGE), resize=150, resize_mode="exact", enlarge=True)
    assert square.shape == (150, 150, 3)


def test_padding_has_the_background_and_the_picture_is_in_the_middle() -> None:
    how = {"resize": 256, "resize_mode": "pad", "background": BACKGROUND, "encode": "png"}
    shown = pixels_of(png(LARGE), **how)
    assert shown.shape == (256, 256, 3)
    assert np.array_equal(shown[68:188, 28:228], LARGE)
    shown[68:188, 28:228] = BACKGROUND
    assert (shown == BACKGROUND).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_when_pixels_are_stored_anew(orientation: int) -> None:
    data = jpeg(LARGE, orientation, quality=100, subsampling=0)
    whole = decode(data, orientation)
    shown = pixels_of(data, resize=40, encode="png")
    size = (shown.shape[1], shown.shape[0])
    assert size == ((67, 40) if orientation < 5 else (40, 67))
    expected = resize(whole, *size).astype(int)
    assert np.abs(shown.astype(int) - expected).max() <= 12  # 1/1 or 1/2 of the size decoded
    assert np.abs(shown.astype(int) - expected).mean() < 1
    assert np.array_equal(pixels_of(data, encode="png"), whole)


def test_a_jpeg_decoded_at_reduced_size_looks_the_same() -> None:
    data = jpeg(cv2.resize(LARGE, (1600, 960), interpolation=cv2.INTER_CUBIC), quality=95)
    for size in (479, 240, 120, 60):
        full = resize(decode(data), *((size * 5 + 1) // 3, size)).astype(float)
        shown = pixels_of(data, resize=size, encode="png")
        assert np.abs(shown - full).mean() < 0.6


@pytest.mark.parametrize(
    ("data", "stored_as"),
    [(jpeg(LARGE), b"\xff\xd8"), (png(LARGE), b"\x89PNG"), (saved(LARGE, "WEBP"), b"\x89PNG")],
)
def test_without_encode_jpeg_stays_jpeg_and_others_become_png(
    data: bytes, stored_as: bytes
) -> None:
    assert prepared(data, resize=60).data.startswith(stored_as)


@pytest.mark.parametrize("options", [{"resize": 60}, {"encode": "png"}, {"encode": "raw"}])
@pytest.mark.parametrize("check", [True, False])
def test_damage_is_found_when_pixels_are_stored_anew(options: dict[str, Any], check: bool) -> None:
    data = jpeg(LARGE)
    cut = data[: len(data) // 2] + b"\xff\xd9"
    result = prepare(OneFile(cut), "file", 0, check, PixelOptions(**options))
    assert result.reject is not None
    assert result.reject.reason == "image data missing"
    without_end = prepare(OneFile(data[:-2]), "file", 0, check, PixelOptions(**options))
    assert without_end.image is not None
    assert without_end.data == prepared(data, **options).data


# Encodings


def test_jpeg_has_the_quality_asked_for_and_is_seekable() -> None:
    sizes, errors = [], []
    for quality in (50, 90, 98):
        result = prepared(png(LARGE), encode="jpeg", quality=quality)
        assert result.change == "PNG to JPEG"
        assert result.segments is not None
        assert np.array_equal(result.segments, seekable.segment_offsets(result.data))
        sizes.append(len(result.data))
        errors.append(np.square(decode(result.data).astype(float) - LARGE).mean())
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 80


def test_webp_png_and_raw() -> None:
    webp = prepared(png(LARGE), encode="webp")
    assert webp.data[8:12] == b"WEBP"
    assert np.abs(decode(webp.data).astype(int) - LARGE).mean() < 6
    assert np.array_equal(pixels_of(jpeg(LARGE), encode="png"), decode(jpeg(LARGE)))
    raw = prepared(jpeg(LARGE, 6), encode="raw")
    assert raw.image is not None
    assert (raw.image.width, raw.image.height, raw.image.orientation) == (120, 200, 1)
    assert raw.data == decode(jpeg(LARGE, 6), 6).tobytes()
    assert reason(png(LARGE), encode="raw", raw_size=(120, 200)) == "not of the size of the others"


def test_what_an_encoder_cannot_hold_is_rejected() -> None:
    assert reason(png(np.zeros((1, 16_500, 3), np.uint8)), encode="webp") == "cannot be encoded"


@pytest.mark.parametrize(
    "options",
    [
        {"keep_bytes": True, "resize": 10},
        {"keep_bytes": True, "encode": "png"},
        {"resize_mode": "pad"},
        {"enlarge": True},
        {"encode": "raw", "resize": 10},
        {"encode": "png", "seekable": True},
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="--"):
        PixelOptions(**options)


# Restart markers for what is passed through


@has_jpegtran
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0", None])
def test_restart_markers_are_added_without_touching_a_pixel(subsampling: str | None) -> None:
    pixels = LARGE if subsampling else LARGE[..., 0]
    options = {"subsampling": subsampling} if subsampling else {}
    data = jpeg(pixels, 6, **options)
    result = prepared(data, seekable=True)
    assert result.change == "JPEG with restart markers added"
    assert result.image == inspect(data)
    assert result.segments is not None
    assert len(result.segments) > 10
    assert np.array_equal(decode(result.data), decode(data))
    again = prepared(result.data, seekable=True)
    assert (again.data, again.change) == (result.data, None)
    assert np.array_equal(again.segments, result.segments)


@has_jpegtran
@pytest.mark.parametrize(
    ("data", "change"),
    [
        (jpeg(LARGE, progressive=True), "JPEG that cannot have restart markers, stored whole"),
        (jpeg(LARGE) + b"trailer", None),  # stays as it is, with its warning
        (png(LARGE), None),
    ],
)
def test_what_cannot_have_restart_markers_is_stored_as_it_is(
    data: bytes, change: str | None
) -> None:
    result = prepared(data, seekable=True)
    assert (result.data, result.change, result.segments) == (data, change, None)


def test_a_missing_jpegtran_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="apt install libjpeg-turbo-progs"):
        restart.require_jpegtran()


def test_markers_that_are_not_proven_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.jpg"
    other.write_bytes(jpeg(LARGE[::-1].copy(), restart_marker_blocks=1, subsampling=0))
    tool = write(tmp_path / "jpegtran", f"#!/bin/sh\ncat {other}\n".encode())
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert seekable.segment_offsets(other.read_bytes()) is not None
    assert restart.with_restart_markers(jpeg(LARGE)) is None


# Whole packs


@pytest.fixture(scope="module")
def odd_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder of odd and plain files, some large."""
    root = tmp_path_factory.mktemp("odd") / "imgs"
    for i, name in enumerate(KINDS):
        write(root / f"class_{i % 3}" / f"{i:02d}.png", KINDS[name][0])
    for i in range(4):
        write(root / "class_1" / f"photo_{i}.jpg", jpeg(photo(i, 150 + i, 100), 6 if i else None))
    write(root / "class_2" / "deep.tif", several("TIFF", 2))
    return root


def pack(source: Path, out: Path, format_name: str, **options: Any) -> Path:
    convert(source, out, Options(format_name, pixels=PixelOptions(**options)), threads=2)
    return out


def test_odd_images_through_every_format(
    odd_source: Path, tmp_path: Path, format_name: str
) -> None:
    canonical_pack = readers.open(pack(odd_source, tmp_path / "a", format_name, **HOW))
    kept = readers.open(pack(odd_source, tmp_path / "b", format_name, keep_bytes=True, **HOW))
    assert list(kept.keys) == list(canonical_pack.keys)
    assert len(kept) == len(KINDS) + 4
    for i, key in enumerate(kept.keys):
        assert np.array_equal(kept.image(i), canonical_pack.image(i)), key
        assert kept.read(i) == (odd_source / key).read_bytes()
    made = canonical_pack.manifest.made
    assert made["changed"]["PNG RGBA to RGB PNG"] == 1
    assert sum(made["changed"].values()) == len(KINDS)
    assert made["rejected"] == {"several pages, needs --frame": 1}
    assert made["pixels"] == {"background": list(BACKGROUND), "depth": "shift"}
    assert kept.manifest.made["changed"] == {}
    for path in (canonical_pack.path, kept.path):
        assert verify(path, decode_images=True, threads=2).ok
    options: dict[str, Any] = {"size": 32, "train": False, "seed": 3, "exact": True}
    pairs = zip(
        BatchLoader(kept.path, 5, **options),
        BatchLoader(canonical_pack.path, 5, **options),
        strict=True,
    )
    for a, b in pairs:
        assert np.array_equal(a.images, b.images)


def test_dali_refuses_odd_images_that_keep_their_bytes(odd_source: Path, tmp_path: Path) -> None:
    dali = pytest.importorskip("readers.dali", exc_type=ImportError)
    path = pack(odd_source, tmp_path / "kept", "memmap", keep_bytes=True, **HOW)
    with pytest.raises(DspackError, match="--keep-bytes"):
        dali.DALILoader(path, 4, device="cpu")


def test_raw_packs(odd_source: Path, tmp_path: Path, format_name: str) -> None:
    how = {"resize": 40, "resize_mode": "pad", "encode": "raw", **HOW}
    opened = readers.open(pack(odd_source, tmp_path / "raw", format_name, **how))
    field = opened.manifest.fields["image"]
    assert (field.kind, field.dtype, field.shape) == ("array", "|u1", (40, 40, 3))
    assert opened.manifest.made["pixels"]["kernel"] == KERNEL
    assert opened.manifest.made["pixels"]["library"] == f"OpenCV {cv2.__version__}"
    for i, key in enumerate(opened.keys):
        data = (odd_source / key).read_bytes()
        assert np.array_equal(opened.image(i), pixels_of(data, **{**how, "encode": "png"}))
    assert verify(opened.path, decode_images=True, threads=2).ok
    (batch, *_) = BatchLoader(opened.path, 4, size=40, train=False, resize=40)
    assert np.array_equal(batch.images[0], opened.image(0))


def test_raw_packs_of_images_of_one_size(tmp_path: Path) -> None:
    for i in range(100):
        write(tmp_path / "imgs" / f"{i:03d}.png", png(photo(i, 12, 8)))
    opened = readers.open(pack(tmp_path / "imgs", tmp_path / "a", "memmap", encode="raw"))
    assert opened.manifest.fields["image"].shape == (8, 12, 3)
    # One that nobody looked at before the work began is a reject.
    write(tmp_path / "imgs" / "033.png", png(photo(0, 12, 9)))
    summary = convert(
        tmp_path / "imgs",
        tmp_path / "b",
        Options("memmap", pixels=PixelOptions(encode="raw")),
        threads=2,
    )
    assert summary.rejected == {"not of the size of the others": 1}
    write(tmp_path / "imgs" / "000.png", png(photo(0, 12, 9)))
    with pytest.raises(SourceError, match=r"not of one size .*--resize-mode"):
        pack(tmp_path / "imgs", tmp_path / "c", "memmap", encode="raw")
    assert not (tmp_path / "c.partial").exists()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of some size, two of them turned, one progressive, and a PNG."""
    root = tmp_path_factory.mktemp("photos") / "imgs"
    for i in range(6):
        pixels = photo(i, 300 + 17 * i, 220)
        write(root / "a" / f"{i}.jpg", jpeg(pixels, [None, 3, 6][i % 3], progressive=i == 5))
    write(root / "a" / "9.png", png(photo(9, 90, 70)))
    return root


@pytest.mark.parametrize("options", [{"encode": "jpeg"}, {"resize": 150}, {"seekable": True}])
def test_crops_of_a_seekable_pack_are_those_of_the_whole_image(
    photos: Path,
    tmp_path: Path,
    format_name: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "seekable" in options and shutil.which("jpegtran") is None:
        pytest.skip("needs jpegtran (apt: libjpeg-turbo-progs)")
    opened = readers.open(pack(photos, tmp_path / "pack", format_name, **options))
    found = [opened.segments(row) for row in range(len(opened))]
    assert sum(segments is not None for segments in found) == (
        5 if "seekable" in options else 7 - ("resize" in options)
    )
    for row, segments in enumerate(found):
        if segments is not None:
            assert np.array_equal(segments, seekable.segment_offsets(opened.read(row)))
    assert verify(opened.path, decode_images=True, threads=2).ok
    loader = BatchLoader(opened.path, 3, size=64, seed=5, exact=True, drop_last=False)
    with_segments = [batch.images.copy() for _ in range(2) for batch in loader]
    monkeypatch.setattr(type(opened), "segments", lambda self, row: None)
    loader = BatchLoader(opened.path, 3, size=64, seed=5, exact=True, drop_last=False)
    without = [batch.images.copy() for _ in range(2) for batch in loader]
    assert all(np.array_equal(a, b) for a, b in zip(with_segments, without, strict=True))


def test_an_ordinary_pack_has_no_further_columns(pack_path: Path) -> None:
    names = {path.name for path in (pack_path / "index").iterdir()}
    assert not any("segment" in name or "odd" in name for name in names)
    assert readers.open(pack_path).segments(0) is None
    assert readers.open(pack_path).odd_rule(0) is None


def test_verify_finds_segments_that_are_not_the_images(photos: Path, tmp_path: Path) -> None:
    path = pack(photos, tmp_path / "pack", "memmap", encode="jpeg")
    column = np.load(path / "index" / "image.segments.npy")
    bounds = np.load(path / "index" / "image.segment_offset.npy")
    column[bounds[2] + 3] += 1
    np.save(path / "index" / "image.segments.npy", column)
    findings = verify(path, decode_images=True, threads=2).findings
    assert {finding.index for finding in findings} == {None, 2}
    np.save(path / "index" / "image.segments.npy", column[:-1])
    assert any("segment" in str(f) for f in verify(path, quick=True, threads=2).findings)


def test_an_interrupted_run_keeps_its_segments_and_changes(photos: Path, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop_late(done: int, num_bytes: int, total: int) -> None:
        if done > 4:
            raise Stop

    options = Options("memmap", 20_000, pixels=PixelOptions(encode="jpeg"))
    whole = convert(photos, tmp_path / "whole", options, threads=2)
    with pytest.raises(Stop):
        convert(photos, tmp_path / "pack", options, threads=1, progress=stop_late)
    other = Options("memmap", 20_000, pixels=PixelOptions(encode="jpeg", quality=80))
    with pytest.raises(DspackError, match="pixels"):
        convert(photos, tmp_path / "pack", other, threads=2)
    summary = convert(photos, tmp_path / "pack", options, threads=2)
    assert summary.num_resumed > 0
    assert (summary.content_digest, summary.changed) == (whole.content_digest, whole.changed)
    for name in ("segments", "segment_offset"):
        a, b = (tmp_path / p / "index" / f"image.{name}.npy" for p in ("pack", "whole"))
        assert a.read_bytes() == b.read_bytes()


# The command line


@pytest.fixture
def dspack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    class_folder(tmp_path / "imgs")
    write(tmp_path / "imgs" / "class_0" / "x.png", KINDS["RGBA"][0])
    return lambda *arguments: CliRunner().invoke(main, ["convert", "imgs", *arguments])


def test_the_summary_tells_what_was_changed(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "memmap", "--background", "#102030")
    assert result.exit_code == 0
    assert "1 x PNG RGBA to RGB PNG" in result.output
    opened = readers.open("imgs.memmap")
    assert np.abs(opened.image(4).astype(int) - KINDS["RGBA"][1]).max() <= 1
    info = CliRunner().invoke(main, ["info", "imgs.memmap"])
    assert "1 x PNG RGBA to RGB PNG" in info.output


def test_resize_and_encode_from_the_command_line(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "lmdb", "--resize", "20", "--encode", "jpeg", "--quality", "80")
    assert result.exit_code == 0, result.output
    opened = readers.open("imgs.lmdb")
    assert min(opened.index["width"].min(), opened.index["height"].min()) == 20
    assert opened.manifest.made["pixels"]["quality"] == 80
    assert dspack("--to", "hdf5", "--resize", "20", "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--encode", "raw", "--resize", "20"],
        ["--keep-bytes", "--resize", "20"],
        ["--background", "mauvish"],
        ["--background", "#10203040"],
        ["--resize-mode", "pad"],
        ["--quality", "80"],
    ],
)
def test_wrong_use_is_exit_code_2(dspack: Callable[..., Any], arguments: list[str]) -> None:
    result = dspack("--to", "memmap", *arguments)
    assert result.exit_code == 2, result.output


def test_raw_without_one_size_is_an_error_before_work_starts(dspack: Callable[..., Any]) -> None:
    result = dspack("--to", "memmap", "--encode", "raw")
    assert result.exit_code == 5
    assert "--resize-mode exact" in result.output
    assert not Path("imgs.memmap.partial").exists()
