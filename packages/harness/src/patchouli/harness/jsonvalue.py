"""Lossless JSON: which Python values cross from one plugin to another, and how they compare.

What counts as JSON here is narrower than what `json.dumps` takes: exact types, no ``NaN``, no
``-0.0``, no lone surrogates, integers of 64 bits, at most 512 levels. So a value means the same to
every reader and survives storage and transport unchanged. No walker recurses, so that a deep value
is refused and never overflows the stack; a cycle is deeper than any bound and is refused with it.

The walkers first run without looking where they are, because nearly every value is fine; only a
refusal is walked again, in document order, to name the place. A container that occurs in several
places of a large value is checked once. A copy, like the text, holds it once for each place.
"""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from patchouli.harness.errors import NotJson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
JsonObject: TypeAlias = "dict[str, Json]"

MAX_DEPTH: Final = 512  # nested arrays and objects
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**64 - 1
_FEW_MEMBERS: Final = 10_000  # to walk them again costs less than to remember containers

_OBJECTS: Final = frozenset((dict, MappingProxyType))
_ARRAYS: Final = frozenset((list, tuple))
_PLAIN: Final = (frozenset((dict,)), frozenset((list,)))
_READ_ONLY_TOO: Final = (_OBJECTS, _ARRAYS)

# The Unicode property White_Space, and the byte order mark. `str.strip` without an argument would
# take U+001C to U+001F as well, which are no white space to other languages.
_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)


def snapshot(value: object, *, path: str = "") -> Json:
    """Return a copy of `value` in plain ``dict`` and ``list`` that shares nothing with it.

    Tuples become lists and read-only mappings become dictionaries; nothing else is converted. A
    container that occurs in several places is copied for each, since the copies may be changed.

    Args:
        value: What is to be copied.
        path: Where `value` stands, as a JSON Pointer: the beginning of the path in an error.

    Raises:
        NotJson: Some part of `value` is no lossless JSON; the error names the first such part.
    """
    of: type = type(value)
    if of not in _OBJECTS and of not in _ARRAYS:
        if not _is_scalar(value):
            raise _refusal(value, path, _READ_ONLY_TOO)
        return cast("Json", value)
    copy: Any = {} if of in _OBJECTS else []  # Any: filled by the walk, of either kind
    todo: list[tuple[Any, Any, int]] = [(value, copy, 1)]
    while todo:
        source, target, depth = todo.pop()
        is_object: bool = isinstance(target, dict)
        for key, item in source.items() if is_object else enumerate(source):
            if is_object and not _is_text(key):
                raise _refusal(value, path, _READ_ONLY_TOO)
            kind: type = type(item)  # pyright: ignore[reportUnknownVariableType] - of anything
            if kind is str and item.isascii():
                made: Any = item
            elif kind in _OBJECTS or kind in _ARRAYS:
                made = {} if kind in _OBJECTS else []
                if depth >= MAX_DEPTH:
                    raise _refusal(value, path, _READ_ONLY_TOO)
                todo.append((item, made, depth + 1))
            elif _is_scalar(item):
                made = item
            else:
                raise _refusal(value, path, _READ_ONLY_TOO)
            if is_object:
                target[key] = made
            else:
                target.append(made)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue] - a list
    return cast("Json", copy)


def require_json(value: object, *, path: str = "") -> None:
    """Return when `value` is lossless JSON in plain ``dict`` and ``list``; nothing is copied.

    Raises:
        NotJson: Some part of `value` is no lossless JSON, or a read-only or other container.
    """
    walked = 0  # members of the containers that were met
    depths: dict[int, int] = {}  # where each container was met, in a value that is not small
    todo: list[tuple[Iterable[Any], int]] = [((value,), 0)]
    while todo:
        items, depth = todo.pop()
        for item in items:
            kind: type = type(item)  # pyright: ignore[reportUnknownVariableType] - of anything
            if kind is str and item.isascii():
                continue  # most of most values
            if kind is dict or kind is list:
                if walked > _FEW_MEMBERS:
                    met = depths.get(id(item))  # pyright: ignore[reportUnknownArgumentType] - as above
                    if met is not None and depth <= met:
                        continue
                    if met is not None:  # too deep here, perhaps, or it holds itself
                        if (refusal := _first_refusal(value, path, _PLAIN)) is not None:
                            raise refusal
                        return
                    depths[id(item)] = depth  # pyright: ignore[reportUnknownArgumentType] - as above
                walked += len(item)  # pyright: ignore[reportUnknownArgumentType] - as above
                if depth >= MAX_DEPTH or (kind is dict and not all(map(_is_text, item))):
                    raise _refusal(value, path, _PLAIN)
                todo.append((item.values() if kind is dict else item, depth + 1))
            elif not _is_scalar(item):
                raise _refusal(value, path, _PLAIN)


def json_equal(a: object, b: object) -> bool:
    """Say whether two JSON values are one: ``1`` is ``1.0`` and never ``true``.

    Members of objects have no order, items of arrays have; text is compared by code point.
    Read-only containers compare like plain ones.
    """
    todo: list[tuple[Any, Any]] = [(a, b)]
    while todo:
        one, other = todo.pop()
        if one is other:
            continue
        if type(one) in _OBJECTS:
            if type(other) not in _OBJECTS or len(one) != len(other):
                return False
            for key, item in one.items():
                if key not in other:
                    return False
                todo.append((item, other[key]))
        elif type(one) in _ARRAYS:
            if type(other) not in _ARRAYS or len(one) != len(other):
                return False
            todo.extend(zip(one, other, strict=True))
        elif (type(one) is bool) is not (type(other) is bool) or one != other:
            return False
    return True


def encode_json(value: Json) -> str:
    """Return the compact text of `value`: members in their order, no character escaped needlessly.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def trim(text: str) -> str:
    """Return `text` without white space and byte order marks at its ends.

    White space is the Unicode property, which differs from what `str.strip` removes. A text of
    which nothing is left is *blank*.
    """
    return text.strip(_WHITE_SPACE)


def _is_text(value: object) -> bool:
    if type(value) is not str:
        return False
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _is_scalar(value: object) -> bool:
    kind = type(value)
    if kind is str:
        return _is_text(value)
    if kind is int:
        return MIN_INTEGER <= cast("int", value) <= MAX_INTEGER
    if kind is float:
        number = cast("float", value)
        return math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0)
    return value is None or kind is bool


def _refusal(
    value: object, path: str, containers: tuple[frozenset[type], frozenset[type]]
) -> NotJson:
    """Return the error for a value that was found to be no JSON."""
    refusal = _first_refusal(value, path, containers)
    if refusal is None:
        raise AssertionError("the walk refused what holds nothing to refuse")
    return refusal


def _first_refusal(
    value: object, path: str, containers: tuple[frozenset[type], frozenset[type]]
) -> NotJson | None:
    """Return the error for the first part of `value`, in document order, that is no JSON.

    A container is walked once, however often it occurs: from then on it is known to hold nothing
    that is refused, and how many levels it has.
    """
    objects, arrays = containers
    levels: dict[int, int] = {}  # of each container that was met; 0 while it is open
    # What is left of each open container, outermost first; the first of all holds `value` alone.
    walk: list[Iterator[tuple[object, object]]] = [iter([("", value)])]
    keys: list[object] = [""]  # where the walk stands in each
    heights = [0]  # the levels found in each so far
    open_ids: list[int] = []

    def refused(problem: str) -> NotJson:
        pointer = "".join(f"/{_escape(str(key))}" for key in keys[1:])
        return NotJson(path=path + pointer, problem=problem)

    while walk:
        for key, item in walk[-1]:
            keys[-1] = key
            kind = type(item)
            if kind not in objects and kind not in arrays:
                if not _is_scalar(item):
                    return refused(_problem(item))
                continue
            known = levels.get(id(item))
            if known == 0:
                return refused("a container holds itself")
            if known is not None and len(open_ids) + known <= MAX_DEPTH:
                heights[-1] = max(heights[-1], known)
                continue
            if len(open_ids) >= MAX_DEPTH:
                return refused(f"more than {MAX_DEPTH} nested containers")
            inside: Iterable[tuple[object, object]]
            if kind in objects:
                members = cast("Mapping[object, object]", item)
                for name in members:
                    if not _is_text(name):
                        odd = _problem(name) if type(name) is str else f"a key is {_kind(name)}"
                        return refused(odd)
                inside = members.items()
            else:
                inside = enumerate(cast("Sequence[object]", item))
            levels[id(item)] = 0
            open_ids.append(id(item))
            walk.append(iter(inside))
            keys.append("")
            heights.append(0)
            break
        else:
            walk.pop()
            keys.pop()
            height = heights.pop() + 1
            if open_ids:
                levels[open_ids.pop()] = height
                heights[-1] = max(heights[-1], height)
    return None


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _kind(value: object) -> str:
    return type(value).__name__


def _problem(value: object) -> str:
    if type(value) is str:
        return "text with a lone surrogate"
    if type(value) is int:
        return "an integer beyond 64 bits"
    if type(value) is float:
        return "a number that is not finite" if value != 0 else "a negative zero"
    return f"a value of type {_kind(value)}"
