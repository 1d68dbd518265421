"""--depth keep: more than 8 bits a channel from the file to every reader, losing none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from images import in_png_header, jpeg, photo, png, png_chunk, write
from odd_kinds import BACKGROUND, KINDS, PHOTO, WIDE, rgb
from one_file import prepared, reason, saved, warnings_of
from PIL import Image as Pillow
from PIL import features

import readers
from packer import bench
from packer.cli import main
from packer.convert import convert
from packer.images.pixels import PixelOptions
from packer.images.resampling import resize
from packer.options import Options
from packer.verify import verify
from readers.decode import decode, decode_region, upright
from readers.errors import DspackError
from readers.loader import BatchLoader

HOW: dict[str, Any] = {"background": BACKGROUND, "depth": "keep"}
GREY, COLOUR = rgb(WIDE[..., 0]), WIDE[..., :3]


def on_background(colour: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Composited at 16 bits, rounded; alpha of 0 to 65535."""
    share = alpha[..., None] / 65535
    mixed = colour * share + np.array(BACKGROUND) * 257.0 * (1 - share)
    return np.rint(mixed).astype(np.uint16)


def keyed(name: str) -> np.ndarray:
    """Where the transparent colour of a PNG in KINDS is not."""
    if "grey" in name:
        return np.where(WIDE[..., 0] == WIDE[2, 4, 0], 0, 65535)
    return np.where((WIDE[2, 4, :3] == COLOUR).all(-1), 0, 65535)


# Names of KINDS -> the pixels at 16 bits.
DEEP = {
    "16-bit grey": GREY,
    "16-bit grey, one transparent": on_background(GREY, keyed("grey")),
    "16-bit RGB": COLOUR,
    "16-bit RGB, one transparent": on_background(COLOUR, keyed("RGB")),
    "16-bit grey and alpha": on_background(rgb(WIDE[..., 2]), WIDE[..., 3]),
    "16-bit RGBA": on_background(COLOUR, WIDE[..., 3]),
    "TIFF, 16-bit grey": GREY,
    "TIFF, 16-bit, big-endian": GREY,
    "TIFF, 16-bit, white is 0": 65535 - GREY,
    "TIFF, 16-bit RGB": COLOUR,
    "PGM, 16 bits": GREY,
    "PPM, 16 bits": COLOUR,
    "PGM, 12 bits": np.rint((GREY >> 4) * (65535 / 4095)).astype(np.uint16),
}
PLAIN = ("16-bit grey", "16-bit RGB")  # stored as they are


def deep_pixels(data: bytes, **options: Any) -> np.ndarray:
    """The pixels that readers get of a file, which the index describes."""
    result = prepared(data, depth="keep", **options)
    assert result.reject is None, result.reject
    assert result.image is not None
    rule = PixelOptions(depth="keep", **options).rule if result.is_odd else None
    pixels = decode(result.data, result.image.orientation, rule, np.uint16)
    assert pixels.dtype == np.uint16
    assert pixels.shape == (result.image.height, result.image.width, 3)
    return pixels


# One file


def test_every_deep_kind_is_here() -> None:
    assert DEEP.keys() == {
        name for name in KINDS if "16" in name.replace("of 16", "") or "12" in name
    }


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_image_keeps_every_bit(name: str) -> None:
    data, _ = KINDS[name]
    stored = prepared(data, **HOW)
    assert np.array_equal(deep_pixels(data, background=BACKGROUND), DEEP[name])
    if name in PLAIN:
        assert (stored.data, stored.change) == (data, None)
    else:
        assert stored.change is not None and stored.change.endswith("to 16-bit RGB PNG")
        assert stored.data.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", DEEP)
def test_what_keeps_its_bytes_gives_the_same_pixels(name: str) -> None:
    data, _ = KINDS[name]
    kept = prepared(data, keep_bytes=True, **HOW)
    assert (kept.data, kept.is_odd) == (data, name not in PLAIN)
    pixels = deep_pixels(data, keep_bytes=True, background=BACKGROUND)
    assert np.array_equal(pixels, DEEP[name])
    rule = PixelOptions(**HOW).rule if kept.is_odd else None
    region = decode_region(data, 1, (48, 32), (7, 5, 20, 11), rule=rule, dtype=np.uint16)
    assert np.array_equal(region, pixels[5:16, 7:27])


@pytest.mark.parametrize("name", DEEP)
def test_a_deep_image_cut_short_is_rejected(name: str) -> None:
    data, _ = KINDS[name]
    cut = data[: len(data) * 4 // 10]
    assert reason(cut, **HOW) in ("damaged image data", "image data missing")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in DEEP])
def test_8_bits_are_stored_as_ever_and_widened_by_the_reader(name: str) -> None:
    data, _ = KINDS[name]
    options = {"background": BACKGROUND, "frame": 0}
    shallow = prepared(data, **options)
    assert prepared(data, depth="keep", **options).data == shallow.data
    assert np.array_equal(deep_pixels(data, **options), decode(shallow.data) * np.uint16(257))


@pytest.mark.parametrize("orientation", [3, 6])
@pytest.mark.parametrize("keep_bytes", [False, True])
def test_deep_images_come_upright(orientation: int, keep_bytes: bool) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = orientation
    block = exif.tobytes().removeprefix(b"Exif\0\0")
    turned_png = in_png_header(KINDS["16-bit RGB"][0], png_chunk(b"eXIf", block))
    turned_tiff = saved(WIDE[..., 0], "TIFF", tiffinfo={0x0112: orientation})
    for data, pixels in ((turned_png, COLOUR), (turned_tiff, GREY)):
        assert prepared(data, depth="keep").change is not None
        shown = deep_pixels(data, keep_bytes=keep_bytes)
        assert np.array_equal(shown, upright(pixels, orientation))


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("keep_bytes", [False, True])
def test_avif_is_scaled_to_the_full_range(bits: int, keep_bytes: bool) -> None:
    values = cv2.GaussianBlur(COLOUR, (0, 0), 4) >> (16 - bits)
    options = [cv2.IMWRITE_AVIF_DEPTH, bits, cv2.IMWRITE_AVIF_QUALITY, 100]  # 100: loses nothing
    data = cv2.imencode(".avif", values[..., ::-1], options)[1].tobytes()
    expected = np.rint(values * (65535 / (2**bits - 1))).astype(np.uint16)
    assert np.array_equal(deep_pixels(data, keep_bytes=keep_bytes), expected)


def test_a_frame_of_a_deep_tiff_can_be_asked_for() -> None:
    frames = [np.full((8, 9, 3), 1000 * i, np.uint16) for i in range(3)]
    done, data = cv2.imencodemulti(".tiff", frames)
    assert done
    assert reason(data.tobytes(), depth="keep") == "several pages, needs --frame"
    assert (deep_pixels(data.tobytes(), frame=2) == 2000).all()
    assert np.array_equal(
        deep_pixels(KINDS["TIFF, 16-bit RGB"][0], frame=2), COLOUR
    )  # has no other


def test_values_above_the_stated_largest_one_do_not_wrap() -> None:
    data = b"P6\n2 1\n1000\n" + np.array([0, 500, 1000, 2000, 65535, 3], ">u2").tobytes()
    expected = [0, 32768, 65535, 65535, 65535, 197]
    assert deep_pixels(data).ravel().tolist() == expected


def test_low_values_are_nothing_to_warn_about() -> None:
    ramp = np.arange(48 * 32, dtype=np.uint16).reshape(32, 48)
    assert warnings_of(saved(ramp, "TIFF"), depth="keep") == ()


# Resizing and encoding

SMOOTH = cv2.resize(COLOUR[:8, :12], (240, 160), interpolation=cv2.INTER_CUBIC)


def deep_png(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()


def test_resizing_keeps_16_bits() -> None:
    shown = deep_pixels(deep_png(SMOOTH), resize=40)
    assert np.array_equal(shown, resize(SMOOTH, 60, 40))
    change = prepared(deep_png(SMOOTH), depth="keep", resize=40).change
    assert change == "PNG RGB, 16 bits to 16-bit RGB PNG, resized"
    from_tiff = deep_pixels(cv2.imencode(".tif", SMOOTH[..., ::-1])[1].tobytes(), resize=40)
    assert np.array_equal(from_tiff, shown)


def test_padding_has_the_background_at_16_bits() -> None:
    how: dict[str, Any] = {"resize": 60, "resize_mode": "pad", "background": BACKGROUND}
    shown = deep_pixels(deep_png(SMOOTH), **how)
    assert shown.shape == (60, 60, 3)
    assert (shown[:10] == np.array(BACKGROUND) * 257).all()


def test_encode_png_and_raw() -> None:
    data, _ = KINDS["16-bit RGBA"]
    assert np.array_equal(
        deep_pixels(data, encode="png", background=BACKGROUND), DEEP["16-bit RGBA"]
    )
    raw = prepared(data, encode="raw", **HOW)
    assert raw.data == DEEP["16-bit RGBA"].astype("<u2").tobytes()
    assert raw.change == "PNG RGBA, 16 bits to raw 16-bit pixels"
    from_8_bits = prepared(png(PHOTO), encode="raw", depth="keep")
    assert from_8_bits.data == (PHOTO.astype("<u2") * 257).tobytes()
    assert prepared(png(PHOTO), encode="png", depth="keep").data.startswith(b"\x89PNG")
    assert deep_pixels(jpeg(PHOTO), resize=16).dtype == np.uint16


@pytest.mark.parametrize(
    "arguments", [["--encode", "jpeg"], ["--encode", "webp"], ["--icc", "srgb"]]
)
def test_what_holds_8_bits_only_is_wrong_use(tmp_path: Path, arguments: list[str]) -> None:
    command = ["convert", str(tmp_path), "--to", "memmap", "--depth", "keep", *arguments]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "--depth shift or scale" in result.output


# Whole packs


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder of deep images, and of some with 8 bits."""
    root = tmp_path_factory.mktemp("deep") / "imgs"
    for i, name in enumerate(DEEP):
        write(root / f"class_{i % 2}" / f"{i:02d}.png", KINDS[name][0])
    write(root / "class_0" / "turned.jpg", jpeg(photo(1, 150, 100), 6))
    write(root / "class_1" / "palette.png", KINDS["palette"][0])
    write(root / "class_1" / "smooth.png", deep_png(SMOOTH))
    return root


def pack(source: Path, out: Path, format_name: str, **options: Any) -> readers.Pack:
    pixels = PixelOptions(**{**HOW, **options})
    convert(source, out, Options(format_name, pixels=pixels), threads=2)
    assert verify(out, decode_images=True, threads=2).ok
    return readers.open(out)


def test_deep_packs_in_every_format(source: Path, tmp_path: Path, format_name: str) -> None:
    opened = pack(source, tmp_path / "a", format_name)
    kept = pack(source, tmp_path / "b", format_name, keep_bytes=True)
    assert opened.pixel_dtype == np.uint16
    assert opened.manifest.fields["image"].dtype == "<u2"
    for i, key in enumerate(opened.keys):
        data = (source / key).read_bytes()
        assert np.array_equal(opened[i].image, deep_pixels(data, background=BACKGROUND))
        assert np.array_equal(kept.image(i), opened.image(i))
        assert kept.read(i) == data
    for train in (False, True):
        options: dict[str, Any] = {"size": 24, "seed": 3, "exact": True, "train": train}
        pairs = zip(
            BatchLoader(opened.path, 4, **options),
            BatchLoader(kept.path, 4, **options),
            strict=True,
        )
        for a, b in pairs:
            assert a.images.dtype == np.uint16
            assert a.images.any()
            assert np.array_equal(a.images, b.images)


def test_raw_deep_packs_in_every_format(source: Path, tmp_path: Path, format_name: str) -> None:
    how: dict[str, Any] = {"resize": 40, "resize_mode": "pad"}
    raw = pack(source, tmp_path / "raw", format_name, encode="raw", **how)
    field = raw.manifest.fields["image"]
    assert (field.kind, field.dtype, field.shape) == ("array", "<u2", (40, 40, 3))
    encoded = pack(source, tmp_path / "png", format_name, encode="png", **how)
    for i in range(len(raw)):
        assert raw.image(i).dtype == np.uint16
        assert np.array_equal(raw.image(i), encoded.image(i))
    (batch, *_) = BatchLoader(raw.path, 4, size=40, train=False, resize=40)
    assert np.array_equal(batch.images[1], raw.image(1))
    loader = BatchLoader(raw.path, 4, size=40, scale=None)
    assert loader.renderer.copies
    encoded_loader = BatchLoader(encoded.path, 4, size=40, scale=None)
    for batch, other in zip(loader, encoded_loader, strict=True):
        assert np.array_equal(batch.images, other.images)


def test_a_pack_of_8_bits_is_what_it_was(tmp_path: Path) -> None:
    write(tmp_path / "imgs" / "a.png", png(PHOTO))
    opened = pack(tmp_path / "imgs", tmp_path / "pack", "memmap", depth="scale")
    assert opened.pixel_dtype == np.uint8
    assert opened.manifest.fields["image"].dtype is None


def test_a_pack_is_as_deep_as_it_was_asked_to_be(tmp_path: Path) -> None:
    """Whatever is in it: a program that reads it need not look first."""
    write(tmp_path / "imgs" / "a.png", png(PHOTO))
    opened = pack(tmp_path / "imgs", tmp_path / "pack", "memmap")
    assert opened.read(0) == png(PHOTO)
    assert np.array_equal(opened.image(0), PHOTO * np.uint16(257))


# Loaders


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one smooth image of 240 x 160."""
    folder = tmp_path_factory.mktemp("smooth")
    write(folder / "imgs" / "a.png", deep_png(SMOOTH))
    return pack(folder / "imgs", folder / "pack", "memmap").path


def first(path: Path, **options: Any) -> np.ndarray:
    (batch,) = BatchLoader(path, 1, **options)
    return batch.images


def test_eval_is_antialiased_at_16_bits(smooth: Path) -> None:
    (image,) = first(smooth, train=False, size=40, resize=40)
    pixels = [Pillow.fromarray(SMOOTH[..., c].astype(np.float32)) for c in range(3)]
    box = (40, 0, 200, 160)
    planes = [np.asarray(p.resize((40, 40), Pillow.Resampling.BILINEAR, box)) for p in pixels]
    assert np.abs(image - np.dstack(planes)).max() <= 0.5
    assert (image % 257).any()


def test_training_crops_are_opencvs_at_16_bits(smooth: Path) -> None:
    (image,) = first(smooth, size=64, scale=None, flip=1.0)
    expected = cv2.flip(cv2.resize(SMOOTH, (64, 64), interpolation=cv2.INTER_LINEAR), 1)
    assert np.array_equal(image, expected)


def test_normalize_is_in_the_pixels_own_units(smooth: Path) -> None:
    plain = first(smooth, train=False)
    mean, std = [30000.0, 20000.0, 10000.0], [1000.0, 2000.0, 3000.0]
    images = first(smooth, train=False, normalize=(mean, std), layout="NCHW")
    assert images.dtype == np.float32
    expected = (plain.astype(np.float64) - mean) / std
    assert np.allclose(images.transpose(0, 2, 3, 1), expected, atol=1e-4)
    assert np.array_equal(first(smooth, train=False, dtype=np.float32), plain.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float16])
def test_a_type_that_cannot_hold_the_pixels_is_refused(smooth: Path, dtype: type) -> None:
    with pytest.raises(ValueError, match="cannot hold the pack's uint16 pixels"):
        BatchLoader(smooth, 1, dtype=dtype)


def test_a_transform_gets_16_bits(smooth: Path) -> None:
    images = first(smooth, train=False, transform=lambda pixels, random: pixels)
    assert np.array_equal(images[0], SMOOTH)


def test_torch(smooth: Path) -> None:
    torch = pytest.importorskip("torch")
    from readers.torch import CUDAPrefetcher, ImageDataset, Loader

    with pytest.raises(DspackError, match="arrays=True"):
        ImageDataset(smooth)
    image, _ = ImageDataset(smooth, arrays=True)[0]
    assert np.array_equal(image, SMOOTH)
    ((images, _),) = torch.utils.data.DataLoader(ImageDataset(smooth, arrays=True))
    assert images.dtype == torch.uint16
    loader = Loader(smooth, 1, train=False, size=40)
    ((images, _),) = loader
    assert images.dtype == torch.uint16
    assert images.shape == (1, 3, 40, 40)
    plain = first(smooth, train=False, size=40)
    assert np.array_equal(images.permute(0, 2, 3, 1).numpy(), plain)
    loader.set_epoch(0)
    ((floats, _),) = CUDAPrefetcher(loader, "cpu", std=[65535.0] * 3)
    assert torch.allclose(floats, images.to(torch.float32) / 65535)


def test_a_torch_without_16_bits_says_so(smooth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from readers.torch import Loader

    monkeypatch.delattr(torch, "uint16")
    with pytest.raises(DspackError, match=r"PyTorch 2\.3 or newer, or pass dtype=np\.float32"):
        Loader(smooth, 1, train=False)
    ((images, _),) = Loader(smooth, 1, train=False, dtype=np.float32)
    assert images.dtype == torch.float32


def test_raw_and_dali(smooth: Path, tmp_path: Path) -> None:
    dali = pytest.importorskip("readers.dali", exc_type=ImportError)
    with pytest.raises(DspackError, match="--depth shift or scale"):
        dali.DALILoader(smooth, 1, device="cpu", train=False)
    shutil.copytree(smooth.parent / "imgs", tmp_path / "imgs")
    raw = pack(tmp_path / "imgs", tmp_path / "raw", "memmap", encode="raw")
    with pytest.raises(DspackError, match="uint8"):
        dali.DALILoader(raw.path, 1, device="cpu", train=False)


def test_bench_leaves_dali_out(smooth: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = bench.Measured(100.0, 0.1, 1.0, 1, 1)
    monkeypatch.setattr(bench.Contender, "__init__", lambda self, name, task: None)
    monkeypatch.setattr(bench.Contender, "__exit__", lambda self, *exception: None)
    monkeypatch.setattr(bench.Contender, "wait", lambda self: None)
    monkeypatch.setattr(bench.Contender, "measure", lambda self: measured)
    monkeypatch.setattr(bench, "_importable", lambda module: True)
    report = bench.bench(smooth)
    assert "--depth keep" in report.skipped["dali"]
    assert "loader" in report.warm
