"""Packs of every released format version are read as they were on the day they were made.

The packs are in tests/golden/VERSION/, and a script beside them says how they came to be. A failure
here means that packs which people have can no longer be read as before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import readers
from packer.verify import verify
from readers.checksum import checksum
from readers.manifest import FORMAT_VERSION

GOLDEN = Path(__file__).parent / "golden"
# Version 1 came with these; a later version of the format has its own line.
PACKS = [
    (version, kind, name)
    for version, kinds, names in [(1, ("plain", "kept", "raw"), ("hdf5", "lmdb", "memmap"))]
    for kind in kinds
    for name in names
]


def expected_of(version: int, kind: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((GOLDEN / str(version) / "expected.json").read_text())
    return expected[kind]


@pytest.fixture(params=PACKS, ids=lambda pack: "{}-{}-{}".format(*pack))
def golden(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    """(a golden pack, what must be in it)"""
    version, kind, name = request.param
    return GOLDEN / str(version) / f"{kind}.{name}", expected_of(version, kind)


def test_this_version_s_packs_are_among_them() -> None:
    assert FORMAT_VERSION in {version for version, *_ in PACKS}


def test_its_samples_are_the_same(golden: tuple[Path, dict[str, Any]]) -> None:
    path, expected = golden
    pack = readers.open(path)
    assert pack.classes == expected["classes"]
    assert pack.splits == expected["splits"]
    assert list(pack.keys) == expected["keys"]
    assert pack.labels.tolist() == expected["labels"]
    assert [checksum(pack.read(i)).hex() for i in range(len(pack))] == expected["stored"]
    assert [list(sample.image.shape) for sample in pack] == expected["shapes"]
    sums = [sample.image.sum((0, 1), dtype=int).tolist() for sample in pack]
    assert sums == expected["pixel_sums"]


def test_its_splits_are_the_same(golden: tuple[Path, dict[str, Any]]) -> None:
    path, expected = golden
    for number, name in enumerate(expected["splits"]):
        rows = np.flatnonzero(np.array(expected["split"]) == number)
        assert list(readers.open(path, name).keys) == [expected["keys"][row] for row in rows]


def test_it_is_whole(golden: tuple[Path, dict[str, Any]]) -> None:
    path, expected = golden
    before = sorted(path.rglob("*"))
    report = verify(path, threads=2, decode_images=True)
    assert report.findings == []
    assert report.content_digest == expected["content_digest"]
    assert sorted(path.rglob("*")) == before, "and reading it leaves nothing behind"
