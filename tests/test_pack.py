"""readers.open: a pack as a sequence of samples, in any process, from any thread."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from images import jpeg, photo, png, write
from packs import (
    Recipe,
    Row,
    change_format_version,
    change_index,
    change_manifest,
    damage_value,
    place_of,
)
from PIL import Image, ImageOps

import readers
from packer.verify import verify
from readers.errors import DamagedPack, DamagedSample, DspackError, NoPermission, NotAPack
from readers.manifest import Field

# Python 3.12 warns of any fork while threads run, and NumPy's and OpenCV's always do.
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def two_splits(tmp_path: Path, format_name: str) -> Path:
    """Samples of two splits in turns, two fields, three shards."""
    rows = [
        Row(
            key=f"{i:02}",
            values={"image": png(photo(i, 6, 4)), "mask": bytes([i]) * (i + 1)},
            label=i % 3 - 1,
            split=i % 2,
            width=6,
            height=4,
        )
        for i in range(10)
    ]
    recipe = Recipe(
        rows,
        classes=("a", "b"),
        splits=("train", "val"),
        shard_sizes=(3, 6, 1),
        fields={"image": Field(), "mask": Field("bytes")},
    )
    return recipe.write(tmp_path / "two_splits", format_name)


def test_it_is_a_sequence(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    assert len(pack) == 12
    assert [sample.key for sample in pack] == [pack[i].key for i in range(12)]
    assert pack[-1].key == pack[11].key == pack[np.int64(11)].key == pack[np.uint8(11)].key
    assert pack[-12].key == pack[0].key
    assert pack.read(-1) == pack.read(11)
    for i in (12, -13, 1 << 70):
        with pytest.raises(IndexError, match="12"):
            pack[i]
    for wrong in (slice(0, 2), "0", 1.0, np.float64(1), None):
        with pytest.raises(TypeError):
            pack[wrong]  # type: ignore[index]
    assert "12 samples" in repr(pack)


def test_a_sample_is_what_the_folder_holds(pack_path: Path, source: Path) -> None:
    for i, sample in enumerate(pack := readers.open(pack_path)):
        data = (source / sample.key).read_bytes()
        upright = ImageOps.exif_transpose(Image.open(source / sample.key)).convert("RGB")
        assert pack.read(i) == data
        assert np.array_equal(sample.image, np.asarray(upright))
        assert np.array_equal(pack.image(i), sample.image)
        assert sample.image.dtype == np.uint8
        assert pack.classes[sample.label] == sample.key.split("/")[0]


def test_labels_are_an_int64_array_that_cannot_be_changed(
    pack_path: Path, two_splits: Path
) -> None:
    packs = [readers.open(pack_path)]
    packs += [readers.open(two_splits, split) for split in (None, "train")]
    for pack in packs:
        assert pack.labels.dtype == np.int64
        assert pack.labels.tolist() == [sample.label for sample in pack]
        with pytest.raises(ValueError, match="read-only"):
            pack.labels[0] = 5


def test_keys_classes_and_splits(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    expected = [f"class_{c}/{name}" for c in range(3) for name in ("0.jpg", "1.jpg", "2.jpg")]
    expected += [f"class_{c}/3.png" for c in range(3)]
    assert list(pack.keys) == sorted(expected)
    assert pack.keys[3] == "class_0/3.png" and pack.keys[-1] == "class_2/3.png"
    assert pack.keys[1:3] == ["class_0/1.jpg", "class_0/2.jpg"]
    assert pack.classes == ["class_0", "class_1", "class_2"]
    assert pack.class_to_idx == {"class_0": 0, "class_1": 1, "class_2": 2}
    assert pack.splits == []


def test_a_file_name_that_is_not_utf8(
    tmp_path: Path, format_name: str, make_pack: Callable[..., Path]
) -> None:
    write(tmp_path / "imgs" / "a" / os.fsdecode(b"caf\xe9.jpg"), jpeg(photo()))
    write(tmp_path / "imgs" / "a" / "café.jpg", jpeg(photo(1)))
    pack = readers.open(make_pack(tmp_path / "imgs", tmp_path / "pack", format_name))
    assert [os.fsencode(key) for key in pack.keys] == ["a/café.jpg".encode(), b"a/caf\xe9.jpg"]
    assert (tmp_path / "imgs" / pack[1].key).read_bytes() == pack.read(1)


@pytest.mark.parametrize("layout", ["one after the other", "in turns"])
def test_splits(two_splits: Path, layout: str) -> None:
    if layout == "one after the other":
        change_index(two_splits, split=np.repeat([0, 1], [4, 6]).astype("<i2"))
    whole = readers.open(two_splits)
    split = whole.index["split"]
    for number, name in enumerate(whole.splits):
        rows = np.flatnonzero(split == number).tolist()
        part = readers.open(two_splits, name)
        assert len(part) == len(rows)
        assert list(part.keys) == [whole.keys[row] for row in rows]
        assert part.keys[1:3] == [whole.keys[row] for row in rows[1:3]]
        assert part.labels.tolist() == [int(whole.labels[row]) for row in rows]
        for i, row in enumerate(rows):
            assert part.read(i) == whole.read(row)
            assert part.read(i, "mask") == whole.read(row, "mask") == bytes([row]) * (row + 1)
        assert np.array_equal(part[-1].image, whole[rows[-1]].image)
        with pytest.raises(IndexError):
            part[len(rows)]
        assert part.classes == whole.classes
        assert part.content_digest == whole.content_digest
        assert f"{name!r}" in repr(part)


def test_a_split_without_samples_is_empty(two_splits: Path) -> None:
    change_manifest(two_splits, splits=("train", "val", "test"))
    pack = readers.open(two_splits, "test")
    assert len(pack) == 0 and list(pack) == [] and pack.labels.tolist() == []


def test_unknown_names_are_told_with_the_known_ones(two_splits: Path) -> None:
    with pytest.raises(DspackError, match="train, val"):
        readers.open(two_splits, "test")
    with pytest.raises(DspackError, match="image, mask"):
        readers.open(two_splits).read(0, "boxes")


def test_raw_arrays_come_as_they_are(tmp_path: Path, format_name: str) -> None:
    arrays = [photo(i, 5, 3) for i in range(4)]
    recipe = Recipe(
        [Row(f"{i}", {"image": a.tobytes()}, width=5, height=3) for i, a in enumerate(arrays)],
        fields={"image": Field("array", "|u1", (3, 5, 3))},
    )
    pack = readers.open(recipe.write(tmp_path / "pack", format_name))
    for sample, array in zip(pack, arrays, strict=True):
        assert np.array_equal(sample.image, array)
        sample.image[0, 0, 0] ^= 1  # it is the caller's own


def test_train_and_val_of_one_pack_are_open_at_once(two_splits: Path) -> None:
    train, val = readers.open(two_splits, "train"), readers.open(two_splits, "val")
    keys = [sample.key for pair in zip(train, val, strict=True) for sample in pair]
    assert keys == [f"{i:02}" for i in range(10)]
    train.close()
    assert val[0].key == "01" and train[0].key == "00", "and closing one is no end"


def test_a_pack_under_two_names(pack_path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pack_path)
    shutil.copytree(pack_path, tmp_path / "hard", copy_function=os.link)
    packs = [readers.open(path) for path in (pack_path, tmp_path / "link", tmp_path / "hard")]
    for i in range(12):
        assert len({pack.read(i) for pack in packs}) == 1


def test_a_pack_replaced_by_another_while_it_is_open(
    tmp_path: Path, format_name: str, make_pack: Callable[..., Path]
) -> None:
    for seed in (1, 2):
        write(tmp_path / f"imgs{seed}" / "a" / "1.png", png(photo(seed)))
        make_pack(tmp_path / f"imgs{seed}", tmp_path / f"pack{seed}", format_name)
    path = tmp_path / "pack1"
    old = readers.open(path)
    assert np.array_equal(old[0].image, photo(1))
    path.rename(tmp_path / "moved")
    (tmp_path / "pack2").rename(path)
    assert np.array_equal(readers.open(path)[0].image, photo(2))
    assert np.array_equal(old[0].image, photo(1))


def test_close_and_with(pack_path: Path) -> None:
    with readers.open(pack_path) as pack:
        data = pack.read(0)
    assert pack.read(0) == data, "a closed pack opens its shards again"


# The content digest


def test_the_digest_is_the_content_s_alone(
    source: Path, tmp_path: Path, make_pack: Callable[..., Path]
) -> None:
    from packer.convert import convert
    from packer.options import Options
    from readers import formats

    digests = set()
    for name in formats.names():
        for shard_bytes in (1, 5000, 1 << 30):
            out = make_pack(
                source, tmp_path / f"{name}{shard_bytes}", name, shard_bytes=shard_bytes
            )
            digests.add(readers.open(out).content_digest)
        convert(source, tmp_path / f"{name}8", Options(name), threads=8)
        digests.add(readers.open(tmp_path / f"{name}8").content_digest)
    assert len(digests) == 1


rows = st.builds(
    Row,
    key=st.binary(min_size=1, max_size=9).map(os.fsdecode),
    values=st.fixed_dictionaries({"image": st.binary(min_size=1, max_size=9)}),
    label=st.integers(-1, 2),
    split=st.integers(0, 1),
)
CLASSES, SPLITS = ("a", "b", "c"), ("train", "val")


@settings(deadline=None, max_examples=40)
@given(some=st.lists(rows, min_size=1, max_size=5), data=st.data())
def test_the_digest_changes_with_the_content(some: list[Row], data: st.DataObject) -> None:
    digest = Recipe(some, CLASSES, SPLITS).content_digest()
    i = data.draw(st.integers(0, len(some) - 1))
    other = data.draw(rows)
    name = data.draw(st.sampled_from(["key", "values", "label", "split"]))
    changed = replace(some[i], **{name: getattr(other, name)})
    assume(changed != some[i])
    assert Recipe([*some[:i], changed, *some[i + 1 :]], CLASSES, SPLITS).content_digest() != digest
    assert Recipe([*some, other], CLASSES, SPLITS).content_digest() != digest
    assert Recipe(some, ("a", "b", "d"), SPLITS).content_digest() != digest
    assert Recipe(some, CLASSES, ("train", "test")).content_digest() != digest


@settings(deadline=None, max_examples=40)
@given(some=st.lists(rows, min_size=1, max_size=5), size=st.integers(1, 5))
def test_the_digest_does_not_see_shards(some: list[Row], size: int) -> None:
    sizes = tuple(len(some[i : i + size]) for i in range(0, len(some), size))
    recipe = Recipe(some, CLASSES, SPLITS)
    assert replace(recipe, shard_sizes=sizes).content_digest() == recipe.content_digest()


# Processes and threads


def check_all(pack: readers.Pack, expected: Sequence[bytes], times: int = 1) -> None:
    for _ in range(times):
        assert [pack.read(i) for i in range(len(pack))] == expected
        assert pack[0].image.shape[2] == 3


def check_all_in_threads(pack: readers.Pack, expected: Sequence[bytes]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(check_all, pack, expected) for _ in range(8)]:
            future.result()


def run_processes(
    start_method: str, number: int, target: Callable[..., None], *args: object
) -> list[multiprocessing.process.BaseProcess]:
    context = multiprocessing.get_context(start_method)
    processes = [context.Process(target=target, args=args) for _ in range(number)]
    for process in processes:
        process.start()
    return processes


def join(processes: list[multiprocessing.process.BaseProcess]) -> None:
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def test_a_pickled_pack_is_small_and_opens_again(two_splits: Path) -> None:
    pack = readers.open(two_splits, "val", check=False)
    expected = [pack.read(i) for i in range(len(pack))]
    assert len(pack.labels) == len(pack.keys) == len(pack)
    pickled = pickle.dumps(pack)
    assert len(pickled) < 2000
    again = pickle.loads(pickled)
    check_all(again, expected)
    assert (again.split, again.check) == ("val", False)
    assert again.labels.tolist() == pack.labels.tolist()


@forks
def test_forked_processes_read_while_their_parent_does(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    expected = [pack.read(i) for i in range(len(pack))]
    processes = run_processes("fork", 4, check_all, pack, expected, 20)
    check_all(pack, expected, 20)
    join(processes)
    check_all(pack, expected)


@forks
def test_a_process_forked_before_anything_was_read(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    with readers.open(pack_path) as other:
        expected = [other.read(i) for i in range(len(other))]
    processes = run_processes("fork", 2, check_all_in_threads, pack, expected)
    check_all_in_threads(pack, expected)
    join(processes)


@forks
def test_forks_of_a_process_whose_threads_read(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    expected = [pack.read(i) for i in range(len(pack))]
    stop = threading.Event()

    def read_and_reopen() -> None:
        while not stop.is_set():
            with readers.open(pack_path) as another:
                check_all(another, expected)

    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read_and_reopen) for _ in range(2)]
        try:
            for _ in range(5):
                join(run_processes("fork", 2, check_all_in_threads, pack, expected))
        finally:
            stop.set()
        for future in reading:
            future.result()


def test_spawned_processes(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    expected = [pack.read(i) for i in range(len(pack))]
    join(run_processes("spawn", 1, check_all, pack, expected))


def test_sixteen_threads_read_one_pack(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    expected = [(sample.key, sample.image) for sample in pack]

    def read_some(seed: int) -> None:
        for i in random.Random(seed).choices(range(len(pack)), k=60):
            sample = pack[i]
            assert sample.key == expected[i][0]
            assert np.array_equal(sample.image, expected[i][1])

    for _ in range(3):
        pack.close()  # the threads open the shards, too
        with ThreadPoolExecutor(16) as pool:
            for future in [pool.submit(read_some, seed) for seed in range(16)]:
                future.result()


def test_threads_open_and_let_go_of_the_same_pack(pack_path: Path) -> None:
    with readers.open(pack_path) as pack:
        expected = [pack.read(i) for i in range(len(pack))]

    def open_often() -> None:
        for _ in range(8):
            check_all(readers.open(pack_path), expected)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(open_often) for _ in range(8)]:
                future.result()
    finally:
        sys.setswitchinterval(interval)


# Damage


def test_damage_names_pack_index_and_key(pack_path: Path) -> None:
    data = readers.open(pack_path).read(5)
    shard = damage_value(pack_path, data)
    pack = readers.open(pack_path)
    for read in (pack.__getitem__, pack.read, pack.image):
        with pytest.raises(DamagedSample, match="checksum") as caught:
            read(5)
        error = caught.value
        assert (error.path, error.index, error.key) == (str(pack_path), 5, "class_1/1.jpg")
        assert error.exit_code == 1
        for part in (str(pack_path), "sample 5", "class_1/1.jpg", f"(shards/{shard.name})"):
            assert part in str(error)
    assert pack.read(4) and pack.read(6), "the others are whole"


def test_an_error_arrives_whole_from_another_process(pack_path: Path) -> None:
    error = DamagedSample("broken", path=pack_path, index=5, key="a/\udce9.jpg", advice="mend it")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is DamagedSample and str(again) == str(error)
    assert vars(again) == vars(error)
    assert r"a/\\xe9.jpg" in str(error), "and can be printed"


def test_check_false_skips_the_checksum(pack_path: Path) -> None:
    data = readers.open(pack_path).read(5)
    damage_value(pack_path, data)
    found = readers.open(pack_path, check=False).read(5)
    assert len(found) == len(data) and found != data


def test_an_image_that_cannot_be_decoded_is_damage(tmp_path: Path, format_name: str) -> None:
    pack = readers.open(
        Recipe([Row("a.jpg", {"image": b"no image"})]).write(tmp_path / "pack", format_name)
    )
    assert pack.read(0) == b"no image"
    with pytest.raises(DamagedSample, match=r"a\.jpg.*decode"):
        pack[0]


def test_a_cut_shard_raises_and_kills_nobody(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    with readers.open(pack_path) as whole:
        shard, _ = place_of(pack_path, whole.read(0))
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(DamagedSample, match="bytes"):
        pack[0]
    assert pack[11].key == "class_2/3.png", "another shard is whole"


def test_a_missing_shard(pack_path: Path) -> None:
    pack = readers.open(pack_path)
    for path in (pack_path / "shards").iterdir():
        path.unlink()
    with pytest.raises(DamagedSample, match="No such file"):
        pack[3]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("shard", 99),
        ("shard", -1),
        ("position", 1 << 40),
        ("position", -1),
        ("image__offset", 1 << 40),
        ("image__length", 1 << 40),
        ("image__length", -5),
    ],
)
def test_an_index_that_points_nowhere_is_damage(pack_path: Path, column: str, value: int) -> None:
    changed = readers.open(pack_path).index[column.replace("__", ".")].copy()
    changed[2] = value
    change_index(pack_path, **{column: changed})
    pack = readers.open(pack_path)
    if column in ("position", "image__offset"):  # LMDB needs the one, the others the other
        changed = pack.index["image.checksum"].copy()
        changed[2] = 0
        change_index(pack_path, image__checksum=changed)
        pack = readers.open(pack_path)
    with pytest.raises(DamagedSample, match="sample 2"):
        pack[2]


@pytest.mark.parametrize("damage", ["missing", "cut", "rubbish", "dtype", "shape"])
def test_a_damaged_column_is_found_on_opening(pack_path: Path, damage: str) -> None:
    path = pack_path / "index" / "label.npy"
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        os.truncate(path, path.stat().st_size - 8)
    elif damage == "rubbish":
        path.write_bytes(b"rubbish")
    else:
        np.save(path, np.zeros(12, "<i4") if damage == "dtype" else np.zeros(11, "<i8"))
    with pytest.raises(DamagedPack) as caught:
        readers.open(pack_path)
    assert caught.value.path == str(path)


def test_what_is_not_a_pack(tmp_path: Path, pack_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing", pack_path / "manifest.json"):
        with pytest.raises(NotAPack) as caught:
            readers.open(path)
        assert caught.value.exit_code == 7 and str(path) in str(caught.value)
    (tmp_path / "a.lmdb.partial").mkdir()
    with pytest.raises(NotAPack, match="unfinished run"):
        readers.open(tmp_path / "a.lmdb.partial")


def test_a_newer_format_is_refused(pack_path: Path) -> None:
    change_format_version(pack_path, 2)
    with pytest.raises(NotAPack, match=r"version 2.*newer"):
        readers.open(pack_path)


@pytest.mark.parametrize("version", [0, -3, True, "1", None])
def test_what_is_no_format_version_is_refused(pack_path: Path, version: Any) -> None:
    change_format_version(pack_path, version)
    with pytest.raises(NotAPack, match="format version"):
        readers.open(pack_path)


def test_a_version_that_was_changed_by_accident_is_damage(pack_path: Path) -> None:
    manifest = pack_path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('version": 1', 'version": 3'))
    with pytest.raises(DamagedPack, match="checksum"):
        readers.open(pack_path)


@pytest.mark.parametrize(
    "text", ["", "{" * 100_000, '{"content_digest": 1}', '{"dspack_format_version": 1}', "\xe9"]
)
def test_a_manifest_that_is_damaged(pack_path: Path, text: str) -> None:
    (pack_path / "manifest.json").write_text(text, "latin-1")
    with pytest.raises(DamagedPack):
        readers.open(pack_path)


@pytest.mark.parametrize("text", ["{}", "[]", "null", "1", '{"name": "caf\xe9", "checksum": 1}'])
def test_a_manifest_of_somebody_else(pack_path: Path, text: str) -> None:
    (pack_path / "manifest.json").write_text(text, "utf-8")
    with pytest.raises(NotAPack, match=r"manifest\.json: is not dspack's manifest"):
        readers.open(pack_path)


# Imports


def test_import_readers_is_light() -> None:
    heavy = {"torch", "nvidia", "lmdb", "h5py", "PIL", "click", "tqdm", "cv2", "simplejpeg"}
    script = "import readers, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not heavy & set(run.stdout.split())
    assert "packer" not in run.stdout.split()


def test_a_shard_that_may_not_be_read_is_not_damage(source, tmp_path, make_pack, monkeypatch):
    path = make_pack(source, tmp_path / "pack", "memmap")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the tests may run as root
    for read in (lambda: readers.open(path)[0], lambda: verify(path, threads=1)):
        with pytest.raises(NoPermission, match="may not be read by this user") as error:
            read()
        assert error.value.exit_code == 7


@pytest.mark.parametrize("name", ["manifest.json", "index/label.npy"])
def test_an_index_that_may_not_be_read_is_not_damage(
    source, tmp_path, make_pack, monkeypatch, name
):
    path = make_pack(source, tmp_path / "pack", "memmap")
    real = pathlib.Path.open

    def refusing(self, *arguments, **options):
        if self == path / name:
            raise PermissionError(13, "Permission denied")
        return real(self, *arguments, **options)

    monkeypatch.setattr(pathlib.Path, "open", refusing)  # the tests may run as root
    with pytest.raises(NoPermission, match="may not be read by this user") as error:
        readers.open(path)
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.path) == (str(error.value), str(path / name))
