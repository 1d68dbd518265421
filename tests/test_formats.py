"""The contract of readers/formats, held to by every module of the folder."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packs import flip

from readers import formats
from readers.errors import DamagedPack, MissingDependency, NotAPack

FIELDS = ["image", "mask"]
Values = dict[str, list[bytes]]


def some_values(num_samples: int = 7, seed: int = 0, size_max: int = 9000) -> Values:
    """Two fields of different sizes, some of them longer than a page."""
    rng = np.random.default_rng(seed)
    return {
        field: [rng.bytes(int(size)) for size in rng.integers(1, size_max, num_samples)]
        for field in FIELDS
    }


def write_shard(
    format_name: str,
    folder: Path,
    values: Values,
    *,
    batches: Sequence[int] = (),
    keys: Sequence[str] | None = None,
) -> list[Path]:
    """Write shard 00000, appending `batches` of samples, then the rest; returns its files."""
    fields = list(values)
    num_samples = len(values[fields[0]])
    writer = formats.load(format_name).ShardWriter(folder, "00000", fields)
    bounds = [0, *np.cumsum(batches).tolist(), num_samples]
    for start, stop in pairwise(bounds):
        writer.append({field: values[field][start:stop] for field in fields})
    labels = np.arange(num_samples) % 3 - 1
    return [
        folder / name for name in writer.seal(labels, keys or [f"{i}" for i in range(num_samples)])
    ]


def read_by_view(format_name: str, folder: Path, values: Values) -> Values:
    """Every value of a shard through ShardReader, with the places an index would hold."""
    reader = formats.load(format_name).ShardReader(folder, "00000", list(values))
    found: Values = {field: [] for field in values}
    for field, column in values.items():
        offset = 0
        for position, value in enumerate(column):
            found[field].append(bytes(reader.view(field, position, offset, len(value))))
            offset += len(value)
    reader.close()
    return found


def read_by_scan(format_name: str, folder: Path, fields: Sequence[str]) -> Values:
    found: Values = {field: [] for field in fields}
    for position, field, value in formats.load(format_name).scan(folder, "00000", fields):
        assert position == len(found[field]), "values come in order"
        found[field].append(bytes(value))
    return found


# Reading with the format's own library alone, as FORMAT.md describes it. A new format adds a
# function here: what cannot be read without dspack is no storage format of dspack's.


def read_lmdb(folder: Path) -> Values:
    values: Values = {}
    with lmdb.open(str(folder / "00000.lmdb"), subdir=False, readonly=True, lock=False) as file:
        for i, (key, value) in enumerate(file.begin().cursor()):
            position, field = key.decode().split("/")
            assert len(position) == 10 and int(position) == i // 2
            values.setdefault(field, []).append(value)
    return values


def read_hdf5(folder: Path) -> Values:
    with h5py.File(folder / "00000.h5", "r") as file:
        return {
            field: cut(file[f"{field}/bytes"][...], file[f"{field}/offsets"][...])
            for field in ("image", "mask")
        }


def read_memmap(folder: Path) -> Values:
    return {
        field: cut(
            np.load(folder / f"00000.{field}.npy"), np.load(folder / f"00000.{field}.offsets.npy")
        )
        for field in ("image", "mask")
    }


def cut(data: np.ndarray, offsets: np.ndarray) -> list[bytes]:
    assert data.dtype == np.uint8 and data.ndim == 1
    assert offsets.dtype == np.int64 and offsets[0] == 0 and offsets[-1] == len(data)
    return [data[start:stop].tobytes() for start, stop in pairwise(offsets)]


PLAIN_READERS: dict[str, Callable[[Path], Values]] = {
    "hdf5": read_hdf5,
    "lmdb": read_lmdb,
    "memmap": read_memmap,
}


def open_files_below(folder: Path) -> Iterator[str]:
    """Files below a folder that this process holds open or mapped."""
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:
            continue  # the descriptor that lists the folder
        if target.startswith(str(folder)):
            yield target
    for line in Path("/proc/self/maps").read_text().splitlines():
        if str(folder) in line:
            yield line


def test_there_are_formats() -> None:
    assert {"lmdb", "hdf5", "memmap"} <= set(formats.names())


def test_a_module_has_the_three_names_of_the_contract(format_name: str) -> None:
    module = formats.load(format_name)
    for name in ("ShardWriter", "ShardReader"):
        theirs, ours = getattr(module, name), getattr(formats, name)
        for method in {"__init__", *(m for m in vars(ours) if not m.startswith("_"))}:
            expected = list(inspect.signature(getattr(ours, method)).parameters)
            assert list(inspect.signature(getattr(theirs, method)).parameters) == expected
    scan = inspect.signature(module.scan).parameters
    assert list(scan) == ["folder", "name", "fields", "observe"]
    assert module.READS_WHOLE_FILES in (True, False)


def test_scan_shows_whole_files_to_an_observer_or_nothing(format_name: str, tmp_path: Path) -> None:
    module = formats.load(format_name)
    values = [bytes([i]) * (700 * i + 1) for i in range(60)]  # several blocks
    writer = module.ShardWriter(tmp_path, "00000", ["image"])
    writer.append({"image": values})
    writer.seal(np.zeros(60, np.int64), [str(i) for i in range(60)])
    seen: dict[str, bytearray] = {}
    for position, _, value in module.scan(
        tmp_path,
        "00000",
        ["image"],
        lambda name, data: seen.setdefault(name, bytearray()).extend(data),
    ):
        assert bytes(value) == values[position]
    assert bool(seen) == module.READS_WHOLE_FILES
    for name, data in seen.items():
        assert data == (tmp_path / name).read_bytes()


def test_an_unknown_format_is_not_a_pack_this_version_reads() -> None:
    with pytest.raises(NotAPack, match="zarr"):
        formats.load("zarr")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> None:
        raise ModuleNotFoundError("No module named 'h5py'", name="h5py")

    monkeypatch.setattr(formats.importlib, "import_module", import_module)
    with pytest.raises(MissingDependency, match="pip install h5py"):
        formats.load("hdf5")


def test_what_is_written_is_read_back(format_name: str, tmp_path: Path) -> None:
    values = some_values()
    files = write_shard(format_name, tmp_path, values, batches=[2, 3])
    assert sorted(tmp_path.iterdir()) == sorted(files), "and nothing else is left"
    assert read_by_view(format_name, tmp_path, values) == values
    assert read_by_scan(format_name, tmp_path, FIELDS) == values


def test_a_plain_library_reads_it(format_name: str, tmp_path: Path) -> None:
    values = some_values()
    write_shard(format_name, tmp_path, values)
    assert PLAIN_READERS[format_name](tmp_path) == values


def test_plain_h5py_finds_labels_and_keys(tmp_path: Path) -> None:
    keys = ["a/1.jpg", "a/\udce9.jpg", "b/ü.jpg"]
    write_shard("hdf5", tmp_path, some_values(3), keys=keys)
    with h5py.File(tmp_path / "00000.h5", "r") as file:
        assert file["label"][...].tolist() == [-1, 0, 1]
        found = cut(file["key/bytes"][...], file["key/offsets"][...])
        assert found == [b"a/1.jpg", b"a/\xe9.jpg", "b/ü.jpg".encode()]


def test_scan_needs_no_order_of_fields(format_name: str, tmp_path: Path) -> None:
    values = some_values()
    write_shard(format_name, tmp_path, values)
    assert read_by_scan(format_name, tmp_path, FIELDS[::-1]) == values


def test_the_same_samples_make_the_same_file_however_they_were_appended(
    format_name: str, tmp_path: Path
) -> None:
    values = some_values(40)
    written = []
    for batches in ([], [1] * 40, [7, 0, 13, 19]):
        folder = tmp_path / str(len(written))
        folder.mkdir()
        files = write_shard(format_name, folder, values, batches=batches)
        written.append([(path.name, path.read_bytes()) for path in files])
    assert written[0] == written[1] == written[2]


def test_many_tiny_values(format_name: str, tmp_path: Path) -> None:
    values = some_values(5000, size_max=51)
    write_shard(format_name, tmp_path, values, batches=[1000] * 4)
    assert read_by_view(format_name, tmp_path, values) == values
    assert read_by_scan(format_name, tmp_path, FIELDS) == values


def test_a_value_larger_than_a_transaction(format_name: str, tmp_path: Path) -> None:
    big = np.random.default_rng(0).bytes(1 << 20) * 34
    values = {"image": [b"before", big, b"after"]}
    write_shard(format_name, tmp_path, values)
    # Compared by ==, whose message would be 34 MB long.
    assert (read_by_view(format_name, tmp_path, values) == values) is True
    assert (read_by_scan(format_name, tmp_path, ["image"]) == values) is True


def test_a_view_is_read_only_and_without_a_copy(format_name: str, tmp_path: Path) -> None:
    values = some_values(1)
    write_shard(format_name, tmp_path, values)
    reader = formats.load(format_name).ShardReader(tmp_path, "00000", FIELDS)
    view = reader.view("image", 0, 0, len(values["image"][0]))
    assert isinstance(view, memoryview) and view.readonly
    del view
    reader.close()


def test_abort_and_close_leave_nothing_open(format_name: str, tmp_path: Path) -> None:
    values = some_values()
    writer = formats.load(format_name).ShardWriter(tmp_path, "00000", FIELDS)
    writer.append(values)
    assert list(open_files_below(tmp_path))
    writer.abort()
    assert not list(open_files_below(tmp_path))
    write_shard(format_name, tmp_path, values)
    assert not list(open_files_below(tmp_path))
    reader = formats.load(format_name).ShardReader(tmp_path, "00000", FIELDS)
    reader.view("image", 0, 0, len(values["image"][0]))
    reader.close()
    assert not list(open_files_below(tmp_path))


@pytest.mark.parametrize("left", ["an unfinished shard", "a whole shard", "rubbish"])
def test_a_killed_run_s_leftover_is_replaced(format_name: str, tmp_path: Path, left: str) -> None:
    fresh, used = tmp_path / "fresh", tmp_path / "used"
    fresh.mkdir()
    used.mkdir()
    if left == "an unfinished shard":
        writer = formats.load(format_name).ShardWriter(used, "00000", FIELDS)
        writer.append(some_values(20, seed=1))
        writer.abort()
    else:
        for path in write_shard(format_name, used, some_values(20, seed=1)):
            if left == "rubbish":
                path.write_bytes(b"rubbish" * 10_000)
    expected = write_shard(format_name, fresh, some_values())
    found = write_shard(format_name, used, some_values())
    assert [path.read_bytes() for path in found] == [path.read_bytes() for path in expected]
    assert sorted(path.name for path in used.iterdir()) == sorted(path.name for path in found)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "rubbish"])
def test_a_damaged_file_is_named(format_name: str, tmp_path: Path, damage: str) -> None:
    values = some_values()
    for path in write_shard(format_name, tmp_path, values):
        data = path.read_bytes()
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes({"empty": b"", "cut": data[:100], "rubbish": b"?" * 9999}[damage])
    for read in (
        lambda: read_by_view(format_name, tmp_path, values),
        lambda: read_by_scan(format_name, tmp_path, FIELDS),
    ):
        with pytest.raises(DamagedPack) as caught:
            read()
        assert caught.value.path is not None and Path(caught.value.path).parent == tmp_path


# A damaged LMDB file may end the process, so it is examined in another one: see test_verify.
@pytest.mark.parametrize("name", [name for name in formats.names() if name != "lmdb"])
def test_a_damaged_header_is_damage_whatever_it_says(name: str, tmp_path: Path) -> None:
    values = some_values(2)
    for path in write_shard(name, tmp_path, values):
        for position in [*range(128), *range(128, 1200, 11)]:
            flip(path, position)
            for read in (
                lambda: read_by_view(name, tmp_path, values),
                lambda: read_by_scan(name, tmp_path, FIELDS),
            ):
                with suppress(DamagedPack):
                    read()
            flip(path, position)
    assert read_by_view(name, tmp_path, values) == values


def test_a_place_that_the_shard_does_not_have_is_damage(format_name: str, tmp_path: Path) -> None:
    values = some_values(3)
    write_shard(format_name, tmp_path, values)
    total = sum(map(len, values["image"]))
    reader = formats.load(format_name).ShardReader(tmp_path, "00000", FIELDS)
    for position, offset, length in (
        (3, total, 5),
        (2, total - 2, len(values["image"][2]) + 7),
        (1 << 40, 1 << 40, 5),
    ):
        with pytest.raises(DamagedPack):
            reader.view("image", position, offset, length)
    reader.close()


def test_scan_finds_a_shard_open_for_reading(format_name: str, tmp_path: Path) -> None:
    values = some_values(3)
    write_shard(format_name, tmp_path, values)
    module = formats.load(format_name)
    reader = module.ShardReader(tmp_path, "00000", FIELDS)
    another = module.ShardReader(tmp_path, "00000", FIELDS)
    another.close()
    assert read_by_scan(format_name, tmp_path, FIELDS) == values
    assert bytes(reader.view("mask", 0, 0, len(values["mask"][0]))) == values["mask"][0]
    reader.close()


keys_and_values = st.lists(
    st.tuples(st.binary(min_size=1, max_size=30), st.binary(min_size=1), st.binary(min_size=1)),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("name", formats.names())
@settings(deadline=None, max_examples=25)
@given(samples=keys_and_values, first_batch=st.integers(0, 20))
def test_any_bytes_under_any_keys(
    name: str, samples: list[tuple[bytes, bytes, bytes]], first_batch: int
) -> None:
    values = {"image": [image for _, image, _ in samples], "mask": [mask for *_, mask in samples]}
    keys = [os.fsdecode(key) for key, *_ in samples]
    with tempfile.TemporaryDirectory() as folder:
        batches = [min(first_batch, len(samples))]
        write_shard(name, Path(folder), values, batches=batches, keys=keys)
        assert read_by_view(name, Path(folder), values) == values
        assert read_by_scan(name, Path(folder), FIELDS) == values
        assert PLAIN_READERS[name](Path(folder)) == values
