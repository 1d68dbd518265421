"""Opening a pack costs the same for a million samples as for ten, in time and in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packer.staging import sync
from readers.index import save_columns
from readers.manifest import MANIFEST_NAME, Field, Manifest, PackFile, Shard

NUM_SAMPLES = 1_000_000
PRIVATE_BYTES_MAX = 5 << 20
# What is a forked process's own at once: the pages that its interpreter writes to.
WORKER_BYTES_MAX = 4 << 20

# Run in an interpreter of its own, where nothing else allocates. Pages of mapped files that this
# process alone has looked at count as private and clean; the kernel drops them when it likes.
SCRIPT = """
import json, os, sys, time

import numpy as np
import readers

def private_bytes(*kinds):
    with open("/proc/self/smaps_rollup") as file:
        lines = [line.split() for line in file]
    return sum(1024 * int(line[1]) for line in lines if line[0] in kinds)

def in_child(work):
    ours, theirs = os.pipe()
    if os.fork() == 0:
        work()
        os.write(theirs, b"%d" % private_bytes("Private_Dirty:"))
        os._exit(0)
    os.close(theirs)
    return ours

path, split = sys.argv[1], sys.argv[2] or None
readers.open(sys.argv[3])  # what is imported and allocated once
before = private_bytes("Private_Clean:", "Private_Dirty:")
started = time.perf_counter()
pack = readers.open(path, split)
seconds = time.perf_counter() - started
opened = private_bytes("Private_Clean:", "Private_Dirty:") - before

def read_the_index():
    assert int(pack.labels.sum()) == sum(range(1000)) * (len(pack) // 1000)
    for i in range(0, len(pack), 5000):
        assert pack.keys[i] and pack.index["image.offset"][i] >= 0

workers = [in_child(read_the_index) for _ in range(8)]
print(json.dumps({
    "seconds": seconds,
    "opened": opened,
    "num_samples": len(pack),
    "workers": [int(os.read(worker, 100)) for worker in workers],
}))
"""


def write_index(out: Path, num_samples: int) -> Path:
    """A pack without shards: its index and its manifest."""
    out.mkdir()
    rows = np.arange(num_samples)
    keys = np.char.add("class/", np.char.zfill(rows.astype("U7"), 7)).astype("S13")
    columns = {
        "label": rows % 1000,
        "split": rows >= num_samples // 2,
        "shard": np.zeros(num_samples),
        "position": rows,
        "key_offset": 13 * np.arange(num_samples + 1),
        "keys": np.frombuffer(keys.tobytes(), np.uint8),
        "width": np.full(num_samples, 640),
        "height": np.full(num_samples, 480),
        "orientation": np.ones(num_samples),
        "image.length": np.full(num_samples, 100),
        "image.offset": 100 * rows,
        "image.checksum": np.zeros((num_samples, 16)),
    }
    names = save_columns(out, columns)
    for name in names:
        sync(out / name)  # pages still to be written count as dirty in whoever maps them
    manifest = Manifest(
        format="memmap",
        num_samples=num_samples,
        fields={"image": Field()},
        classes=tuple(f"{i:03}" for i in range(1000)),
        splits=("train", "val"),
        shards=(Shard("00000", num_samples, ()),),
        files=tuple(PackFile(name, (out / name).stat().st_size, "") for name in names),
        content_digest="",
    )
    (out / MANIFEST_NAME).write_text(manifest.to_json())
    return out


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pack of a million samples, and one of a thousand."""
    folder = tmp_path_factory.mktemp("index")
    return write_index(folder / "large", NUM_SAMPLES), write_index(folder / "small", 1000)


@pytest.mark.parametrize("split", ["", "val"])
def test_a_million_samples_cost_no_memory(packs: tuple[Path, Path], split: str) -> None:
    large, small = packs
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(large), split, str(small)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(run.stdout)
    assert found["num_samples"] == (NUM_SAMPLES // 2 if split else NUM_SAMPLES)
    assert found["opened"] < PRIVATE_BYTES_MAX
    assert max(found["workers"]) < WORKER_BYTES_MAX
    assert found["seconds"] < 1
