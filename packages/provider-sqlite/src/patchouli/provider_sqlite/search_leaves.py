"""Equality, and ranges of numbers, asked of the token index."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

from patchouli.provider import Operator
from patchouli.provider_sqlite.index_leaves import (
    SEPARATOR,
    as_element,
    leaves_asked,
    places_of,
)
from patchouli.provider_sqlite.index_numbers import as_double, range_tokens
from patchouli.provider_sqlite.index_terms import find_prefix
from patchouli.provider_sqlite.index_text import NUL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Filter, Json
    from patchouli.provider_sqlite.connection import Connection

_SIDES: Final = {
    Operator.GREATER: True,
    Operator.GREATER_OR_EQUAL: True,
    Operator.LESS: False,
    Operator.LESS_OR_EQUAL: False,
}
"""Whether an operator bounds a range from below."""


def match_of(connection: Connection, filter_: Filter, *, is_element: bool) -> str | None:
    """Return the question for documents whose value at the pointer can equal the operand.

    Or, `is_element`, can be an array with an element that equals it, a scalar. An empty question
    means that no document can; None that the index cannot tell.
    """
    places = places_of(filter_.pointer)
    operand = list(leaves_asked(json.loads(filter_.operand_json)))
    if not places or any(_is_unspeakable(leaf) for _, leaves in operand for leaf in leaves):
        return None
    alternatives: list[str] = []
    for place in places:
        below = place + "[]" if is_element else place
        question = _all_of(connection, below, operand)
        if question is not None:
            alternatives.append(question)
    return f"({' OR '.join(alternatives)})" if alternatives else ""


def ranges_of(connection: Connection, filters: Sequence[Filter]) -> list[list[str]]:
    """Return the ranges of numbers that the filters describe, where the index has questions.

    A range is a list of questions, the largest cells first; a document with a number in it answers
    one of them, so none can match if there are none. Bounds of one pointer are taken together.
    """
    bounds: dict[str, tuple[float, float]] = {}
    for filter_ in filters:
        side = _SIDES.get(filter_.operator)
        if side is None:
            continue
        operand: Json = json.loads(filter_.operand_json)
        if isinstance(operand, bool) or not isinstance(operand, int | float):
            continue
        low, high = bounds.get(filter_.pointer, (-math.inf, math.inf))
        near = as_double(operand)
        bounds[filter_.pointer] = (max(low, near), high) if side else (low, min(high, near))
    ranges = (_within(connection, pointer, *ends) for pointer, ends in bounds.items())
    return [range_ for range_ in ranges if range_ is not None]


def _within(connection: Connection, pointer: str, low: float, high: float) -> list[str] | None:
    places = places_of(pointer)
    if not places:
        return None
    tokens: list[str] = []
    for place in places:
        prefix = find_prefix(connection, as_element(place))
        if prefix is not None:
            cells = range_tokens(prefix, low, high)
            if cells is None:
                return None
            tokens += cells
    return list(map(_quote, tokens))


def _all_of(connection: Connection, place: str, operand: list[tuple[str, list[str]]]) -> str | None:
    """Return the question for all leaves of an operand at `place`; None if a place is unknown."""
    questions: list[str] = []
    for below, leaves in operand:
        prefix = find_prefix(connection, as_element(place + below))
        if prefix is None:
            return None
        questions.append(f"({' OR '.join(_quote(prefix + leaf) for leaf in leaves)})")
    return f"({' AND '.join(questions)})"


def _is_unspeakable(leaf: str) -> bool:
    return SEPARATOR in leaf or NUL in leaf


def _quote(token: str) -> str:
    return '"' + token.replace('"', '""') + '"'
