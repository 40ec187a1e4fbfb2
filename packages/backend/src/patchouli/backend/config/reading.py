"""Reading one JSON document so that every complaint about it can name a line.

The grammar is RFC 8259, strictly: UTF-8 without a byte order mark, no NaN or infinity, no lone
surrogates, no trailing text, at most 127 nested arrays and objects. A repeated member is read (the
last one wins) and reported. Integers outside -2^63 … 2^64 - 1 become the nearest double, a number
beyond the doubles is an error. The speed of a parser in Python is enough: documents are read once.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchouli.backend.config.places import Place

if TYPE_CHECKING:
    from patchouli.provider import Json

DEPTH_LIMIT = 127  # nested arrays and objects, the same as in requests

_SPACE = re.compile(r"[ \t\n\r]*")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD = re.compile(r"[-+A-Za-z0-9_.]+")
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_DIGITS_OF_64_BITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a text; lines and columns (in characters) count from 1."""

    line: int
    column: int


class JsonReadError(ValueError):
    """Raised when a text is not one JSON document; says what is wrong and what to write."""

    def __init__(self, problem: str, remedy: str, position: Position) -> None:
        super().__init__(f"line {position.line}, column {position.column}: {problem}. {remedy}")
        self.problem = problem
        self.remedy = remedy
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A value that was read, and where its parts stand.

    `offsets` holds the offset of every value by its place; `duplicates` the places of the members
    that were written more than once, each with the offset of a later name.
    """

    value: Json
    text: str
    offsets: dict[Place, int]
    duplicates: tuple[tuple[Place, int], ...]

    def offset(self, place: Place) -> int:
        """Return where the value at `place`, or else its nearest present ancestor, begins."""
        while place not in self.offsets:
            place = place.parent
        return self.offsets[place]

    def position(self, place: Place) -> Position:
        """Return `offset(place)` as line and column."""
        return position_of(self.text, self.offset(place))

    def position_of(self, offset: int) -> Position:
        """Return `offset` as line and column."""
        return position_of(self.text, offset)


def position_of(text: str, offset: int) -> Position:
    """Return line and column of `offset`."""
    return Position(
        line=text.count("\n", 0, offset) + 1, column=offset - text.rfind("\n", 0, offset)
    )


def read_json(source: str | bytes) -> Document:
    """Return the document in `source`.

    Raises:
        JsonReadError: It is not one strict JSON document.
    """
    text = source if isinstance(source, str) else _decode(source)
    reader = _Reader(text)
    value = reader.document()
    return Document(
        value=value, text=text, offsets=reader.offsets, duplicates=tuple(reader.duplicates)
    )


def _decode(source: bytes) -> str:
    try:
        return source.decode()
    except UnicodeDecodeError as error:
        text = source[: error.start].decode()
        raise JsonReadError(
            "the text is not valid UTF-8", "Save the file as UTF-8.", position_of(text, len(text))
        ) from error


class _Reader:
    """A recursive descent over one text; the recursion is bounded by `DEPTH_LIMIT`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.offset = 0
        self.depth = 0
        self.offsets: dict[Place, int] = {}
        self.duplicates: list[tuple[Place, int]] = []

    def document(self) -> Json:
        if self.text.startswith("\ufeff"):
            raise self._error("the text begins with a byte order mark", "Save it without one.")
        value = self._value(Place())
        self._skip()
        if self.offset != len(self.text):
            raise self._error("there is text after the document", "Remove it.")
        return value

    def _value(self, place: Place) -> Json:
        self._skip()
        self.offsets[place] = self.offset
        character = self.text[self.offset : self.offset + 1]
        if character == "{":
            return self._object(place)
        if character == "[":
            return self._array(place)
        if character == '"':
            return self._string()
        return self._scalar()

    def _object(self, place: Place) -> Json:
        members: dict[str, Json] = {}
        self._enter()
        while not self._ends("}", first=not members):
            self._skip()
            if self.text[self.offset : self.offset + 1] != '"':
                raise self._error(
                    "a member name is missing", 'Write a name in double quotes, or "}" to end.'
                )
            start = self.offset
            name = self._string()
            member = place / name
            if name in members:
                self.duplicates.append((member, start))
                self._forget(member)
            self._skip()
            if self.text[self.offset : self.offset + 1] != ":":
                raise self._error(f'":" is missing after the name "{name}"', 'Write ":" here.')
            self.offset += 1
            members[name] = self._value(member)
        self.depth -= 1
        return members

    def _array(self, place: Place) -> Json:
        items: list[Json] = []
        self._enter()
        while not self._ends("]", first=not items):
            items.append(self._value(place / len(items)))
        self.depth -= 1
        return items

    def _enter(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise self._error(
                f"arrays and objects are nested more than {DEPTH_LIMIT} deep", "Nest them less."
            )
        self.offset += 1

    def _ends(self, closing: str, *, first: bool) -> bool:
        """Return whether the container ends here; else stand where its next part begins."""
        self._skip()
        character = self.text[self.offset : self.offset + 1]
        if character == closing:
            self.offset += 1
            return True
        if first:
            return False
        if character != ",":
            raise self._error(f'"," or "{closing}" is missing', f'Write "," or "{closing}" here.')
        comma = self.offset
        self.offset += 1
        self._skip()
        if self.text[self.offset : self.offset + 1] == closing:
            self.offset = comma
            raise self._error(f'there is a "," before "{closing}"', 'Remove the ",".')
        return False

    def _string(self) -> str:
        match = _STRING.match(self.text, self.offset)
        if match is None:
            raise self._error(
                "a string has no end, or holds a control character",
                "End it with a double quote, and write control characters as \\n, \\t or \\u00xx.",
            )
        try:
            text = json.loads(match[0]) if "\\" in match[0] else match[0][1:-1]
        except json.JSONDecodeError as error:
            self.offset += error.pos
            raise self._error(
                "a string holds an unknown escape", 'Write "\\\\" for a backslash.'
            ) from error
        if not _is_unicode(text):
            raise self._error(
                "a string holds half of a surrogate pair", "Write the character itself."
            )
        self.offset = match.end()
        return text

    def _scalar(self) -> Json:
        match = _NUMBER.match(self.text, self.offset)
        word = _WORD.match(self.text, self.offset)
        if match is not None and word is not None and match.end() == word.end():
            number = _number(match)
            if math.isinf(number):
                raise self._error("a number is too large", "Write a number below 1.8e308.")
            self.offset = match.end()
            return number
        if word is not None and word[0] in _LITERALS:
            self.offset = word.end()
            return _LITERALS[word[0]]
        if self.offset == len(self.text):
            raise self._error("the document ends too early", "Write the value that is missing.")
        found = word[0][:40] if word is not None else self.text[self.offset]
        raise self._error(
            f"{found!r} is no JSON value",
            "Write an object, an array, a string in double quotes, a number, true, false or null.",
        )

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.offset)
        self.offset = self.offset if match is None else match.end()

    def _forget(self, place: Place) -> None:
        depth = len(place.tokens)
        for known in [found for found in self.offsets if found.tokens[:depth] == place.tokens]:
            del self.offsets[known]

    def _error(self, problem: str, remedy: str) -> JsonReadError:
        return JsonReadError(problem, remedy, position_of(self.text, self.offset))


def _number(match: re.Match[str]) -> int | float:
    fraction, exponent = match.groups()
    if fraction is None and exponent is None and len(match[0]) <= _DIGITS_OF_64_BITS:
        integer = int(match[0])
        if -(2**63) <= integer < 2**64:
            return integer
    return float(match[0])


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
