"""What matches a retrieval, how well, and in which order: the meaning every store must give it.

These functions are the definition. A store may find candidates in any way, but what it returns must
be what these functions say of the heads it holds.

*Text.* The searchable leaves of a value are its member names and its scalar leaves, each once:
strings as they are, numbers, `true`, `false` and `null` as in canonical JSON. A needle matches when
it is a substring of a leaf, both folded by `fold`; there are no wildcards, and a match never spans
two leaves. The score is the share of the leaves that the needle covers, so it depends on the value
and the needle alone.

*Filters.* A pointer that does not resolve matches no condition, `NOT_EQUAL` included. Numbers are
equal when they are mathematically equal, also inside arrays and objects; a boolean is no number.
"""

from __future__ import annotations

import json
import operator
import re
from typing import TYPE_CHECKING, Any

from patchouli.provider.plans import Filter, Operator, Order, Position

if TYPE_CHECKING:
    from collections.abc import Callable

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_FINAL_SIGMA, _SIGMA = "\N{GREEK SMALL LETTER FINAL SIGMA}", "\N{GREEK SMALL LETTER SIGMA}"
_ARRAY_INDEX = re.compile(r"(?:0|[1-9][0-9]{0,17})\Z")  # more digits than any array has elements


def fold(text: str) -> str:
    """Return `text` with case removed: lower case per code point, and one lower-case sigma.

    Accents stay, and `ß` is not `ss`. Folding a substring of `text` gives a substring of the folded
    `text`, which `str.casefold` and a bare `str.lower` (final sigma) do not promise.
    """
    return text.lower() if text.isascii() else text.lower().replace(_FINAL_SIGMA, _SIGMA)


def leaves(value: Json) -> list[str]:
    """Return the searchable leaves of `value` as typed, each once, in ascending order."""
    found: set[str] = set()
    pending: list[Json] = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            found.add(node)
        elif isinstance(node, dict):
            found.update(node)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
        else:
            found.add(json.dumps(node))
    return sorted(found)


def text_score(value: Json, text: str) -> float | None:
    """Return how much of `value` the needle `text` covers, in (0, 1], or None without a match."""
    needle = fold(text)
    folded = [fold(leaf) for leaf in leaves(value)]
    covered = sum(leaf.count(needle) for leaf in folded) * len(needle)
    return covered / sum(map(len, folded)) if covered else None


def resolve(value: Json, pointer: str) -> Json:
    """Return what `pointer` (RFC 6901, not empty) names in `value`.

    Raises:
        LookupError: It names nothing; `-` never does.
    """
    node = value
    for token in pointer[1:].split("/"):
        name = token.replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node[name]
        elif isinstance(node, list) and _ARRAY_INDEX.match(name):
            node = node[int(name)]
        else:
            raise LookupError(pointer)
    return node


def equal(left: Json, right: Json) -> bool:
    """Return whether two JSON values are equal, numbers by their mathematical value."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return left == right


def holds(condition: Filter, value: Json) -> bool:
    """Return whether `condition` is true of `value`."""
    try:
        actual = resolve(value, condition.pointer)
    except LookupError:
        return False
    operand: Json = json.loads(condition.operand_json)
    match condition.operator:
        case Operator.EQUAL:
            return equal(actual, operand)
        case Operator.NOT_EQUAL:
            return not equal(actual, operand)
        case Operator.CONTAINS:
            return _contains(actual, operand)
        case Operator.LESS:
            return _ordered(actual, operand, operator.lt)
        case Operator.LESS_OR_EQUAL:
            return _ordered(actual, operand, operator.le)
        case Operator.GREATER:
            return _ordered(actual, operand, operator.gt)
        case Operator.GREATER_OR_EQUAL:
            return _ordered(actual, operand, operator.ge)


def sort_key(order: Order, position: Position) -> tuple[int | float | str, ...]:
    """Return a key whose ascending order is `order`; types and ids by code point, never equal.

    Descending ids cannot be a key of this form, so for `ID_DESCENDING` the caller reverses.
    """
    match order:
        case Order.RELEVANCE:
            return (-position.score, -position.recorded_at_unix_ms, position.type, position.id)
        case Order.NEWEST:
            return (-position.recorded_at_unix_ms, position.type, position.id)
        case Order.OLDEST:
            return (position.recorded_at_unix_ms, position.type, position.id)
        case Order.ID_ASCENDING | Order.ID_DESCENDING:
            return (position.id, position.type)


def _contains(actual: Json, operand: Json) -> bool:
    if isinstance(actual, list):
        return any(equal(element, operand) for element in actual)
    return isinstance(actual, str) and isinstance(operand, str) and operand in actual


# Any: two strings or two numbers, which the branches below establish.
def _ordered(actual: Json, operand: Json, compare: Callable[[Any, Any], bool]) -> bool:
    if isinstance(actual, str) and isinstance(operand, str):
        return compare(actual, operand)
    if _is_number(actual) and _is_number(operand):
        return compare(actual, operand)
    return False


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
