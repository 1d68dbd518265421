"""Storage formats, one module each: how a shard is written and how it is read, nothing else.

The contract of a module `readers/formats/NAME.py`, which `tests/test_formats.py` holds every
module of this folder to:

    class ShardWriter:
        def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None
            Start the shard `name` in `folder`, replacing files a killed run left behind.
        def append(self, values: Mapping[str, Sequence[bytes]]) -> None
            Add consecutive samples: for every field one value a sample, in order. Values of all
            fields but `image` may be empty.
        def seal(self, labels: NDArray[int64], keys: Sequence[str]) -> list[str]
            Finish the shard and return the names of its files. It need not be on disk yet:
            the caller syncs.
        def abort(self) -> None
            Close whatever is open. The files are worthless.

    class ShardReader:
        def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None
        def view(self, field: str, position: int, offset: int, length: int) -> memoryview
            The stored bytes of one value, without a copy, valid until close(). Called from
            many threads. `offset` and `length` are the index's. Raises DamagedPack.
        def announce(self, field: str, offset: int, length: int) -> None
            The value will be read soon: let the kernel fetch it. May do nothing.
        def close(self) -> None
            Let go of the files.

        A reader that is open when its process forks goes on in the child.

    READS_WHOLE_FILES: bool
        Whether scan() observes its files, and is safe on damaged ones: no native code that may
        crash looks at their structure.
    def scan(folder: Path, name: str, fields: Sequence[str], observe: Observe = ignore)
            -> Iterator[tuple[int, str, memoryview]]
        Every (position, field, value) of the shard in order, through the format's own library
        and by the shard's own structure, without help from the index: what a stranger would
        read. A value is valid until the next step. Raises DamagedPack. With READS_WHOLE_FILES,
        observe(file name, bytes) is shown every byte of the files that hold values, in order.

Any library error leaves a module as DamagedPack (reading) or DestinationError (writing).
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy.typing as npt

from ..errors import MissingDependency, NotAPack

Observe = Callable[[str, memoryview], None]


def ignore(file_name: str, data: memoryview) -> None:
    """Observe nothing."""


class ShardWriter(Protocol):
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None: ...
    def append(self, values: Mapping[str, Sequence[bytes]]) -> None: ...
    def seal(self, labels: npt.NDArray[Any], keys: Sequence[str]) -> list[str]: ...
    def abort(self) -> None: ...


class ShardReader(Protocol):
    def __init__(self, folder: Path, name: str, fields: Sequence[str]) -> None: ...
    def view(self, field: str, position: int, offset: int, length: int) -> memoryview: ...
    def announce(self, field: str, offset: int, length: int) -> None: ...
    def close(self) -> None: ...


class Format(Protocol):
    ShardWriter: type[ShardWriter]
    ShardReader: type[ShardReader]

    READS_WHOLE_FILES: bool

    def scan(
        self, folder: Path, name: str, fields: Sequence[str], observe: Observe = ignore
    ) -> Iterator[tuple[int, str, memoryview]]: ...


def names() -> list[str]:
    """The formats that exist: the modules of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> Format:
    """The module of the format `name`, imported now and not before.

    Raises NotAPack for an unknown format, MissingDependency when its library is not installed.
    """
    if name not in names():
        raise NotAPack(f"the storage format {name!r} is not one of {', '.join(names())}")
    try:
        return cast(Format, importlib.import_module(f"{__name__}.{name}"))
    except ImportError as error:
        raise MissingDependency(
            f"the format {name} needs a library that cannot be imported ({error})",
            advice=f"pip install {error.name or name}",
        ) from error
