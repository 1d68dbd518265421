"""Packs of more shards than a process may have files open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from images import photo, png
from packs import Recipe, Row

from readers import formats

NUM_SHARDS = 90
LIMIT = 80  # an interpreter and an index need some forty

READ_ALL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
import readers
pack = readers.open(sys.argv[1])
try:
    print(sum(pack.image(i).size > 0 for i in range(len(pack))))
    open("/dev/null").close()
except readers.DspackError as error:
    print(type(error).__name__, error.exit_code, error)
"""

OPEN_MANY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
import readers
packs = []
try:
    for _ in range(8):
        packs.append(readers.open(sys.argv[1]))
    print(len(packs))
except readers.DspackError as error:
    print(type(error).__name__, error.exit_code, error)
"""


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pack.FORMAT of many shards."""
    folder = tmp_path_factory.mktemp("many")
    rows = [Row(f"{i}.png", {"image": png(photo(i, 6, 5))}) for i in range(NUM_SHARDS)]
    for name in formats.names():
        Recipe(rows, shard_sizes=(1,) * NUM_SHARDS).write(folder / f"pack.{name}", name)
    return folder


def run(program: str, pack: Path, soft: int, hard: int) -> str:
    command = [sys.executable, "-c", program, str(pack), str(soft), str(hard)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize("program", [READ_ALL, OPEN_MANY])
def test_a_soft_limit_is_raised(packs: Path, format_name: str, program: str) -> None:
    expected = {READ_ALL: NUM_SHARDS, OPEN_MANY: 8}[program]
    assert run(program, packs / f"pack.{format_name}", LIMIT, 1000) == str(expected)


@pytest.mark.parametrize("program", [READ_ALL, OPEN_MANY])
def test_a_hard_limit_is_no_damage(packs: Path, format_name: str, program: str) -> None:
    pack = packs / f"pack.{format_name}"
    said = run(program, pack, LIMIT, LIMIT)
    assert said.startswith(f"TooManyOpenFiles 7 {pack}: no more files can be opened")
    assert f"this process may have {LIMIT}" in said
    assert "--shard-size" in said


@pytest.mark.parametrize("format_name", formats.names())
def test_a_shard_that_does_not_fit_into_address_space_is_not_damaged(
    tmp_path: Path, format_name: str
) -> None:
    """Clusters limit it for each job. The test's own limit is far below what the shard takes."""
    value = bytes(64 << 20)
    Recipe([Row("a", {"image": value})]).write(tmp_path / "pack", format_name)
    program = f"""
import resource, sys
import readers, readers.formats.{format_name}
pack = readers.open(sys.argv[1])
used = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))
limit = (int(used) << 10) + (32 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    pack.read(0)
except readers.DspackError as error:
    print(type(error).__name__, error.exit_code, error)
"""
    said = run(program, tmp_path / "pack", 0, 0)
    assert said.startswith(f"OutOfMemory 7 {tmp_path}/pack/shards/") and "ulimit -v" in said


FEW_LEFT = """
import os, resource, sys
import readers, readers.formats.hdf5, readers.formats.lmdb, readers.formats.memmap
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(60)]
limit = len(os.listdir("/proc/self/fd")) - 1
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
found = set()
for descriptor in taken:
    try:
        with readers.open(sys.argv[1]) as pack:
            sum(len(pack.read(i)) for i in range(30))
    except readers.DspackError as error:
        found.add(f"{type(error).__name__} {error.exit_code}")
    pack = error = None
    os.close(descriptor)
print(*sorted(found))
"""


def test_however_few_files_are_left_a_whole_pack_is_not_damaged(
    packs: Path, format_name: str
) -> None:
    assert run(FEW_LEFT, packs / f"pack.{format_name}", 0, 0) == "TooManyOpenFiles 7"
