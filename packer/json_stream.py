"""A large JSON object read piece by piece: one element of its arrays at a time is in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TextIO

_CHUNK_CHARS = 1 << 20
_VALUE_CHARS_MAX = 1 << 26  # of one element: more is damage, and not to be read to its end
_SPACE = " \t\r\n"
_decoder = json.JSONDecoder()


class JsonStream:
    """The object that is all of a file. For each of members() call value() or elements() once."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._text = ""
        self._at = 0  # in the text
        self._start = 0  # of the text in the file

    def members(self) -> Iterator[str]:
        """The names of the object's members, in order. Raises ValueError."""
        self._expect("{")
        more = self._next() != "}"
        while more:
            name = self.value()
            if not isinstance(name, str):
                raise self._error("a member has no name")
            self._expect(":")
            yield name
            more = self._next() == ","
            if more:
                self._at += 1
        self._expect("}")
        if self._next():
            raise self._error("something comes after the object")

    def elements(self) -> Iterator[object]:
        """The elements of the member that is an array, one after another. Raises ValueError."""
        self._expect("[")
        more = self._next() != "]"
        while more:
            yield self.value()
            more = self._next() == ","
            if more:
                self._at += 1
        self._expect("]")

    def value(self) -> object:
        """The next value as a whole. Raises ValueError."""
        self._next()
        while True:
            try:
                value, stop = _decoder.raw_decode(self._text, self._at)
                # What the text ends in may go on: 12 is the start of 123.
                if stop < len(self._text) and self._text[stop] in _SPACE + ",]}:":
                    self._at = stop
                    return value
                problem = "not a JSON value"
            except (ValueError, RecursionError) as error:
                problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            if len(self._text) - self._at > _VALUE_CHARS_MAX or not self._read():
                raise self._error(problem)

    def _next(self) -> str:
        """The next character that is no space, which stays; "" at the end of the file."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._read():
                return ""

    def _expect(self, character: str) -> None:
        if (found := self._next()) != character:
            raise self._error(f"{found!r} instead of {character!r}" if found else "the file ends")
        self._at += 1

    def _read(self) -> bool:
        """Read more, as much again as is there; False at the end of the file."""
        rest = self._text[self._at :]
        more = self._file.read(max(len(rest), _CHUNK_CHARS))
        self._start += self._at
        self._text, self._at = rest + more, 0
        return bool(more)

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"{problem}, at character {self._start + self._at}")
