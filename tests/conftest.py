from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from images import class_folder

from packer.convert import convert
from packer.options import Options
from readers import formats

# A shell that starts the tests in its background makes them deaf to Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=formats.names())
def format_name(request: pytest.FixtureRequest) -> str:
    """Every storage format there is: a new file in readers/formats is tested without a word."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A class folder of a dozen small images; do not change it."""
    return class_folder(tmp_path_factory.mktemp("source") / "imgs")


@pytest.fixture(scope="session")
def make_pack() -> Callable[..., Path]:
    """make_pack(source, out, format_name, **options) -> out"""

    def make(source: Path, out: Path, format_name: str, **options: object) -> Path:
        convert(source, out, Options(format_name, **options), threads=2)  # type: ignore[arg-type]
        return out

    return make


@pytest.fixture(scope="session")
def made_packs(
    source: Path, tmp_path_factory: pytest.TempPathFactory, make_pack: Callable[..., Path]
) -> Path:
    """A folder with pack.FORMAT, of `source` and of several shards; do not change it."""
    folder = tmp_path_factory.mktemp("packs")
    for name in formats.names():
        make_pack(source, folder / f"pack.{name}", name, shard_bytes=4000)
    return folder


@pytest.fixture
def pack_path(made_packs: Path, tmp_path: Path, format_name: str) -> Path:
    """A pack of `source` in every format, of several shards; the test may damage it."""
    name = f"pack.{format_name}"
    return Path(shutil.copytree(made_packs / name, tmp_path / name))
