"""Names of classes from a file: one a line, or the `names` of a YAML such as YOLO's data.yaml."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import PurePath

from readers.errors import SourceError, printable

from .names import can_be_a_name

_YAML = (".yaml", ".yml")
_YAML_ADVICE = "write the names into a text file, one a line"
# One scalar: in double quotes, in single ones, or plain up to what ends it in a list or a line.
_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'"""
_IN_FLOW = re.compile(rf"\s*({_QUOTED}|[^,:\[\]{{}}\"'#\n][^,:\[\]{{}}#\n]*|[,:\[\]{{}}]|#.*)")
_IN_LINE = re.compile(rf"({_QUOTED}|(?:[^#]|(?<=\S)#)*?)\s*(?:(?<!\S)#.*)?")
_NAMES = re.compile(r"^names[ \t]*:(.*)", re.MULTILINE)
_ELEMENT = re.compile(r"[ \t]*-[ \t]+(.*)")
_NUMBERED = re.compile(r"[ \t]+([0-9]+)[ \t]*:[ \t]+(.*)")


def parse(data: bytes, path: PurePath) -> list[str]:
    """The names in a file; `path` tells by its extension what it is. Raises SourceError."""
    text = data.decode("utf-8-sig", "surrogateescape")  # Windows' editors add a BOM
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if path.suffix.lower() in _YAML:
        names = _yaml_names(text, path)
    else:
        names = [line for line in text.split("\n") if line]
    if wrong := [name for name in names if not can_be_a_name(name)]:
        raise SourceError(f"class {wrong[0]!r} cannot be a name", path=path)
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise SourceError(f"class {printable(twice[0])!r} is listed twice", path=path)
    return names


def _yaml_names(text: str, path: PurePath) -> list[str]:
    """`names` as a list, or by numbers from 0: of YAML no more than that is understood."""
    found = _NAMES.search(text)
    if found is None:
        raise SourceError("has no `names`", path=path, advice=_YAML_ADVICE)
    if found[1].strip().startswith(("[", "{")):
        pairs = _flow(text[found.start(1) :])
    else:
        pairs = _block(text[found.end() :]) if not _scalar(found[1]) else None
    if not pairs or sorted(pairs) != list(range(len(pairs))):
        raise SourceError(
            "its `names` are neither a list nor numbered from 0", path=path, advice=_YAML_ADVICE
        )
    return [pairs[number] for number in range(len(pairs))]


def _block(text: str) -> dict[int, str] | None:
    """`- name` or `0: name`, one a line, to the first line that begins another member."""
    pairs: dict[int, str] = {}
    for line in text.split("\n"):
        element, numbered = _ELEMENT.fullmatch(line), _NUMBERED.fullmatch(line)
        if element:
            pairs[len(pairs)] = _scalar(element[1])
        elif numbered:
            pairs[int(numbered[1])] = _scalar(numbered[2])
        elif line[:1] in (" ", "\t") and _scalar(line.strip()):
            return None
        elif line[:1] not in ("", "#", " ", "\t"):
            break
    return pairs


def _flow(text: str) -> dict[int, str] | None:
    """`[a, "b"]` or `{0: a, 1: b}`, which may go over several lines."""
    tokens: list[str] = []
    at = 0
    while not tokens or tokens[-1] not in ("]", "}"):
        token = _IN_FLOW.match(text, at)
        if token is None:
            return None
        at = token.end()
        if not token[1].startswith("#"):
            tokens.append(token[1].strip())
    opening, *inside, closing = tokens
    entries: list[list[str]] = [[]]
    for part in inside:
        if part == ",":
            entries.append([])
        else:
            entries[-1].append(part)
    if not entries[-1]:  # behind a comma at the end
        entries.pop()
    if opening + closing == "[]" and all(len(entry) == 1 for entry in entries):
        return {i: _scalar(name) for i, (name,) in enumerate(entries)}
    if opening + closing != "{}" or not all(_is_numbered(entry) for entry in entries):
        return None
    return {int(number): _scalar(name) for number, _, name in entries}


def _is_numbered(entry: list[str]) -> bool:
    return len(entry) == 3 and entry[0].isdecimal() and entry[1] == ":"


def _scalar(text: str) -> str:
    """A name without its quotes, and without a comment behind it."""
    found = _IN_LINE.fullmatch(text.strip())
    name = found[1] if found else text.strip()
    if name.startswith('"'):
        try:
            return str(json.loads(name))
        except ValueError:
            return name
    return name[1:-1].replace("''", "'") if name.startswith("'") and len(name) > 1 else name
