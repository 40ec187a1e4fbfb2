"""JSON values, and the one strict way in which bytes become them.

The profile (SPEC `json`): UTF-8 without a byte order mark; no ``NaN`` and no ``Infinity``, neither
spelled out nor by overflow; no lone surrogates; integers from -2^63 to 2^64 - 1; at most 127 nested
arrays and objects; of members with one name the last one counts.

The parser of `pydantic_core` keeps most of this by itself. It lets pass numbers that overflow,
longer integers and up to 200 levels, so what it built is walked once. The walk touches each value
once and costs about two thirds of the parsing; a search through the text for what could be such a
number takes longer than that, because most of a request is text.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, cast

from pydantic_core import from_json

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_NESTING: Final = 127
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1

_LONG_LIST = 32  # items; from here on three passes in C are cheaper than one in Python


class JsonParseError(ValueError):
    """The text is not JSON of the wire's profile; sending it again cannot help.

    Attributes:
        kind: ``utf8`` when the bytes are not UTF-8, else ``json``.
    """

    kind: Literal["utf8", "json"]

    def __init__(self, message: str, *, kind: Literal["utf8", "json"] = "json") -> None:
        super().__init__(message)
        self.kind = kind


class IntegerRangeError(JsonParseError):
    """An integer lies outside -2^63 … 2^64 - 1; it is refused because it could only be rounded."""


def parse_json(data: bytes | str) -> JsonValue:
    """Return the one value that `data` holds (SPEC `json`).

    Raises:
        JsonParseError: `data` is no such value; nothing of it is returned.
    """
    try:
        value: JsonValue = from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise _refusal(data, error) from None
    kind = type(value)
    if kind is dict or kind is list:
        _require_profile(cast("list[JsonValue] | JsonObject", value))
    elif kind is int or kind is float:
        _require_profile([value])
    return value


def _require_profile(root: list[JsonValue] | JsonObject) -> None:
    containers: list[list[JsonValue] | JsonObject] = [root]
    for container in containers:
        for value in container.values() if type(container) is dict else container:
            kind = type(value)
            if kind is str:
                continue
            if kind is dict:
                containers.append(cast("JsonObject", value))
            elif kind is list:
                items = cast("list[JsonValue]", value)
                if len(items) < _LONG_LIST or not _is_plain(items):
                    containers.append(items)
            elif kind is int:
                if not -0x8000000000000000 <= cast("int", value) <= 0xFFFFFFFFFFFFFFFF:
                    raise IntegerRangeError("an integer does not fit into 64 bits")
            elif kind is float and cast("float", value) - cast("float", value):
                # Infinity minus itself is NaN, which is true; of any other double it is 0.
                raise JsonParseError("a number is beyond the range of doubles")
    if len(containers) > MAX_NESTING:  # fewer containers cannot nest deeper
        _require_depth(root)


def _is_plain(items: list[JsonValue]) -> bool:
    """Say whether a long list needs no walk: an embedding, a row of counters, of words."""
    kinds = set(map(type, items))
    if len(kinds) > 1:
        return False
    kind = kinds.pop()
    if kind is int:
        numbers = cast("list[int]", items)
        return min(numbers) >= MIN_INTEGER and max(numbers) <= MAX_INTEGER
    if kind is float:
        doubles = cast("list[float]", items)
        return min(doubles) != float("-inf") and max(doubles) != float("inf")
    return kind is str


def _require_depth(root: list[JsonValue] | JsonObject) -> None:
    level: list[list[JsonValue] | JsonObject] = [root]
    for _ in range(MAX_NESTING):
        level = [
            cast("list[JsonValue] | JsonObject", value)
            for container in level
            for value in (container.values() if type(container) is dict else container)
            if type(value) is dict or type(value) is list
        ]
        if not level:
            return
    raise JsonParseError(f"more than {MAX_NESTING} nested arrays and objects")


def _refusal(data: bytes | str, error: ValueError) -> JsonParseError:
    try:
        _ = data.decode() if isinstance(data, bytes) else data.encode()
    except UnicodeError:
        return JsonParseError("the text is not UTF-8", kind="utf8")
    # The parser ends its messages with the place; that is the part worth passing on.
    _, found, place = str(error).rpartition(" at line ")
    return JsonParseError(f"not JSON at line {place}" if found else "not JSON")
