"""JSON values, and the one strict way in which bytes become them.

The profile (SPEC `json`): UTF-8 without a byte order mark; no ``NaN`` and no ``Infinity``, neither
spelled out nor by overflow; no lone surrogates; integers from -2^63 to 2^64 - 1; at most 127 nested
arrays and objects; of members with one name the last one counts.

The parser of `pydantic_core` keeps most of this by itself. It lets pass numbers that overflow,
longer integers and up to 200 levels, so what it built is walked once, which costs two thirds of the
parsing. To look in the text for what could be such a number costs more, because most of a request
is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic_core import from_json

if TYPE_CHECKING:
    from collections.abc import Iterable

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_NESTING: Final = 127
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1

_LONG_LIST = 32  # items; from here on three passes in C are cheaper than one in Python
_LONG_TEXT = 65_536  # bytes; few requests are longer
_CONTAINERS: Final = (dict, list)


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
    except (ValueError, TypeError) as error:  # TypeError: text with a lone surrogate
        raise _refusal(data, error) from None
    if len(data) >= _LONG_TEXT:
        _require_profile_by_levels(value)
    elif type(value) is dict:
        _require_profile(value, value.values())
    elif type(value) is not str:
        _require_profile(value, value if type(value) is list else (value,))
    return value


def _require_profile(root: JsonValue, values: Iterable[JsonValue]) -> None:
    containers: list[Iterable[JsonValue]] = [values]
    for container in containers:
        for value in container:
            if type(value) is str:
                continue
            if type(value) is dict:
                if value:
                    containers.append(value.values())
            elif type(value) is list:
                if value and (len(value) < _LONG_LIST or not _is_plain(value)):
                    containers.append(value)
            elif type(value) is int:
                if not -0x8000000000000000 <= value <= 0xFFFFFFFFFFFFFFFF:
                    raise IntegerRangeError("an integer does not fit into 64 bits")
            elif type(value) is float and value - value:
                # Infinity minus itself is NaN, which is true; of any other double it is 0.
                raise JsonParseError("a number is beyond the range of doubles")
    # Without the empty and the plain ones, which end a path, fewer containers cannot be too deep.
    if len(containers) >= MAX_NESTING:
        _require_depth(root)


def _require_profile_by_levels(root: JsonValue) -> None:
    """Do the same level by level: a third of the time where containers are many and small.

    All of it holds the interpreter, and a line may have some 300,000 of them.
    """
    level: list[Any] = [[root]]
    for depth in range(1, MAX_NESTING + 2):
        below: list[Any] = []
        for container in level:
            below += container.values() if type(container) is dict else container
        kinds = set(map(type, below))
        if int in kinds:
            integers = [value for value in below if type(value) is int]
            if min(integers) < MIN_INTEGER or max(integers) > MAX_INTEGER:
                raise IntegerRangeError("an integer does not fit into 64 bits")
        if float in kinds:
            doubles = [value for value in below if type(value) is float]
            total = sum(doubles)
            if total - total and any(value - value for value in doubles):
                raise JsonParseError("a number is beyond the range of doubles")
        if kinds.isdisjoint((dict, list)):
            return
        if depth > MAX_NESTING:
            break
        level = [value for value in below if value and type(value) in _CONTAINERS]
    raise JsonParseError(f"more than {MAX_NESTING} nested arrays and objects")


def _is_plain(items: list[Any]) -> bool:
    """Say whether a long list needs no walk: an embedding, a row of counters, of words."""
    kinds = set(map(type, items))
    if len(kinds) > 1:
        return False
    kind = kinds.pop()
    if kind is float:
        # One infinity makes the sum infinite or NaN. So may large numbers: then the walk decides.
        total = sum(items)
        return not total - total
    if kind is int:
        return min(items) >= MIN_INTEGER and max(items) <= MAX_INTEGER
    return kind is str


def _require_depth(root: JsonValue) -> None:
    level: list[JsonValue] = [root]
    for _ in range(MAX_NESTING):
        below: list[JsonValue] = []
        for container in level:
            if type(container) is dict:
                below += container.values()
            elif type(container) is list:
                below += container
        level = [value for value in below if type(value) is dict or type(value) is list]
        if not level:
            return
    raise JsonParseError(f"more than {MAX_NESTING} nested arrays and objects")


def _refusal(data: bytes | str, error: Exception) -> JsonParseError:
    try:
        _ = data.decode() if isinstance(data, bytes) else data.encode()
    except UnicodeError:
        return JsonParseError("the text is not UTF-8", kind="utf8")
    # The parser ends its messages with the place; that is the part worth passing on.
    _, found, place = str(error).rpartition(" at line ")
    return JsonParseError(f"not JSON at line {place}" if found else "not JSON")
