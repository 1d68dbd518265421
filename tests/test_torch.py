"""readers.torch.ImageDataset: what torchvision's ImageFolder is for a folder, for a pack."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from images import jpeg, photo, png, write
from packs import Recipe, Row, damage_value
from PIL import Image

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from readers.errors import DamagedSample  # noqa: E402
from readers.torch import ImageDataset  # noqa: E402

# Python 3.12 warns of any fork while threads run, and torch's always do.
forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

# Class names and nested folders that sort otherwise by bytes of whole paths, by number, or
# without case. "a-b" < "a/" and "a" < "a-b"; "x-y" < "x/".
FOLDERS = ["a", "a/x", "a/x/deep", "a/x-y", "a-b", "B", "10", "2", "é", "a.b"]
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder in which every order but torchvision's gives another result."""
    root = tmp_path_factory.mktemp("tree") / "imgs"
    for i, folder in enumerate(FOLDERS):
        for j, name in enumerate(("b.jpg", "B.JPG", "10.jpeg", "2.jpg", "~.jpg")):
            write(root / folder / name, jpeg(photo(10 * i + j, 12, 8)))
    return root


@pytest.fixture
def tree_pack(tree: Path, tmp_path: Path, format_name: str, make_pack: Callable[..., Path]) -> Path:
    return make_pack(tree, tmp_path / "tree.pack", format_name, shard_bytes=6000)


def image_folder(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """torchvision.datasets.ImageFolder(root), as its source says: (classes, samples)."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS):
                    samples.append((os.path.join(folder, file), label))
    return classes, samples


def same_items(
    dataset: ImageDataset, samples: list[tuple[str, int]], open_image: Callable[[str], Image.Image]
) -> None:
    assert len(dataset) == len(samples)
    for i, (path, label) in enumerate(samples):
        image, found = dataset[i]
        assert type(image) is Image.Image and image.mode == "RGB"
        assert type(found) is int and found == label
        assert np.array_equal(np.asarray(image), np.asarray(open_image(path)))


def load(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def test_it_has_the_items_of_an_image_folder(tree: Path, tree_pack: Path) -> None:
    classes, samples = image_folder(tree)
    dataset = ImageDataset(tree_pack)
    assert dataset.classes == classes
    assert dataset.class_to_idx == {name: i for i, name in enumerate(classes)}
    assert dataset.targets == [label for _, label in samples]
    expected = [(os.path.relpath(path, tree), label) for path, label in samples]
    assert dataset.samples == dataset.imgs == expected
    same_items(dataset, samples, load)


def test_it_has_the_items_of_torchvision_s_own(tree: Path, tree_pack: Path) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    folder = datasets.ImageFolder(str(tree))
    dataset = ImageDataset(tree_pack)
    assert dataset.classes == folder.classes
    assert dataset.class_to_idx == folder.class_to_idx
    assert dataset.targets == folder.targets
    assert dataset.samples == [(os.path.relpath(path, tree), i) for path, i in folder.samples]
    same_items(dataset, folder.samples, folder.loader)


def test_splits_are_image_folders_of_one_class_map(
    tree: Path, tmp_path: Path, format_name: str, make_pack: Callable[..., Path]
) -> None:
    shutil.copytree(tree, tmp_path / "imgs" / "train")
    shutil.copytree(tree, tmp_path / "imgs" / "val")
    for path in (tmp_path / "imgs" / "val" / "B").iterdir():
        path.unlink()
    pack = make_pack(tmp_path / "imgs", tmp_path / "pack", format_name)
    for name in ("train", "val"):
        classes, samples = image_folder(tmp_path / "imgs" / name)
        dataset = ImageDataset(pack, name)
        assert dataset.classes == classes
        same_items(dataset, samples, load)


def test_transforms(pack_path: Path) -> None:
    plain = ImageDataset(pack_path)
    dataset = ImageDataset(
        pack_path, transform=lambda image: image.size, target_transform=lambda label: -label
    )
    assert dataset[3] == (plain[3][0].size, -plain[3][1])
    arrays = ImageDataset(pack_path, arrays=True, transform=lambda image: image[::-1])
    assert isinstance(arrays[3][0], np.ndarray) and arrays[3][0].dtype == np.uint8
    assert np.array_equal(arrays[3][0], np.asarray(plain[3][0])[::-1])
    assert ImageDataset(pack_path, arrays=True)[-1][1] == plain[len(plain) - 1][1]


def test_an_array_may_be_changed_in_place(pack_path: Path) -> None:
    image, _ = ImageDataset(pack_path, arrays=True)[0]
    tensor = torch.from_numpy(image)
    before = tensor.clone()
    tensor += 1
    assert torch.equal(tensor, before + 1)


def test_a_batch_at_once_is_its_samples(pack_path: Path) -> None:
    dataset = ImageDataset(pack_path, arrays=True)
    batch = dataset.__getitems__([5, 0, 11])
    for i, (image, label) in zip([5, 0, 11], batch, strict=True):
        assert np.array_equal(image, dataset[i][0]) and label == dataset[i][1]


def test_a_pickled_dataset_holds_no_list(pack_path: Path) -> None:
    dataset = ImageDataset(pack_path)
    before = len(pickle.dumps(dataset))
    assert len(dataset.targets) == len(dataset.samples) == len(dataset.imgs) == 12
    assert len(pickle.dumps(dataset)) == before < 2000
    again = pickle.loads(pickle.dumps(dataset))
    assert again.samples == dataset.samples and again.classes == dataset.classes


def summed(items: Iterable[tuple[np.ndarray, int]]) -> list[tuple[int, int]]:
    """(sum of the pixels, label) of every item."""
    return [(int(image.astype(np.int64).sum()), label) for image, label in items]


@forks
@pytest.mark.parametrize("workers", ["none", "fork", "fork, persistent", "fork after reading"])
def test_a_data_loader_hands_over_every_sample(pack_path: Path, workers: str) -> None:
    expected = summed(sample for sample in ImageDataset(pack_path, arrays=True))
    dataset = ImageDataset(pack_path, arrays=True)
    if workers == "fork after reading":
        assert summed([dataset[3]]) == expected[3:4]
    loader = DataLoader(
        dataset,
        batch_size=5,
        collate_fn=list,
        num_workers=0 if workers == "none" else 2,
        multiprocessing_context=None if workers == "none" else "fork",
        persistent_workers=workers == "fork, persistent",
    )
    for _ in range(2):
        batches = [summed(batch) for batch in loader]
        assert batches == [expected[:5], expected[5:10], expected[10:]]
    assert summed([dataset[3]]) == expected[3:4], "and the parent goes on reading"


def test_spawned_persistent_workers(
    tree: Path, tmp_path: Path, make_pack: Callable[..., Path]
) -> None:
    """Once, since a spawned worker's import of torch takes seconds; test_pack has all formats."""
    dataset = ImageDataset(make_pack(tree, tmp_path / "pack", "lmdb"), arrays=True)
    expected = summed(dataset)
    loader = DataLoader(
        dataset,
        batch_size=len(dataset),
        collate_fn=list,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    for _ in range(2):
        assert [summed(batch) for batch in loader] == [expected]


def test_damage_in_a_worker_names_the_sample(pack_path: Path) -> None:
    """DataLoader hands an error over as its type and its text alone."""
    dataset = ImageDataset(pack_path)
    damage_value(pack_path, dataset.pack.read(5))
    with pytest.raises(DamagedSample) as caught:
        dataset[5]
    arrived = torch._utils.ExceptionWrapper(
        (caught.type, caught.value, caught.tb), where="in a worker"
    )
    with pytest.raises(DamagedSample, match=r"sample 5, key 'class_1/1\.jpg'"):
        arrived.reraise()


def test_a_split_is_opened_by_name(tmp_path: Path, format_name: str) -> None:
    rows = [Row(f"{i}", {"image": png(photo(i, 3, 2))}, split=i % 2) for i in range(5)]
    recipe = Recipe(rows, splits=("train", "val"))
    pack = recipe.write(tmp_path / "pack", format_name)
    dataset = ImageDataset(pack, "val")
    assert [key for key, _ in dataset.samples] == ["1", "3"]
    assert np.array_equal(np.asarray(dataset[1][0]), photo(3, 3, 2))
