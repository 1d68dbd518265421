"""Names that another file system, or a person, would take for one another; and what is no name."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence

from readers.errors import printable

_WINDOWS_STAND_IN = re.compile("[\uf001-\uf07f]")


def can_be_a_name(name: str) -> bool:
    """Whether a file system could hold such a path; classes and splits have no other names."""
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return False


def name_warnings(keys: Sequence[str]) -> list[str]:
    """Warnings of keys that differ only in case or in Unicode form, and of U+F0xx characters."""
    warnings: list[str] = []
    if all(map(str.isascii, keys)) and len(set(map(hash, map(str.lower, keys)))) == len(keys):
        return warnings  # as most are: the closer look takes time
    if alike := _alike(keys):
        shown = " and ".join(printable(key) for key in alike[0][:2])
        warnings.append(
            f"{len(alike)} sets of keys differ only in case or Unicode form; on a Windows drive "
            f"they are one file ({shown})"
        )
    if stand_ins := [key for key in keys if _WINDOWS_STAND_IN.search(key)]:
        warnings.append(
            f"{len(stand_ins)} keys have characters U+F0xx, which stand for : * ? and others that "
            f"Windows does not allow ({printable(stand_ins[0])})"
        )
    return warnings


def but_for_spaces(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs from this one in spaces, case or Unicode form alone."""
    folded = _without_spaces(name)
    return next((other for other in known if _without_spaces(other) == folded), None)


def not_in_class_map(what: str, name: str, classes: Iterable[str]) -> str:
    """What is wrong with the `name` of a class or category."""
    near = but_for_spaces(name, classes)
    but = "" if near is None else f", but {printable(near)!r} is"
    return f"{what} {printable(name)!r} is not in the given class map{but}"


def _without_spaces(name: str) -> str:
    return "".join(_fold(name).split())


def _alike(keys: Sequence[str]) -> list[list[str]]:
    """Sets of keys that are the same when folded. Numbers stand for most keys: memory."""
    seen: set[int] = set()
    twice: set[int] = set()
    for key in keys:
        number = hash(_fold(key))
        (twice if number in seen else seen).add(number)
    if not twice:
        return []
    sets: dict[str, list[str]] = defaultdict(list)
    for key in keys:
        folded = _fold(key)
        if hash(folded) in twice:
            sets[folded].append(key)
    return [alike for alike in sets.values() if len(alike) > 1]


def _fold(key: str) -> str:
    return key.lower() if key.isascii() else unicodedata.normalize("NFC", key).casefold()
