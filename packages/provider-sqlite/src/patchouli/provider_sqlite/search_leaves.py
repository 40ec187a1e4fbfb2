"""Equality asked of the token index."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from patchouli.provider_sqlite.index_leaves import (
    SEPARATOR,
    as_element,
    leaves_asked,
    places_of,
)
from patchouli.provider_sqlite.index_terms import find_prefix
from patchouli.provider_sqlite.index_text import NUL

if TYPE_CHECKING:
    from patchouli.provider import Filter
    from patchouli.provider_sqlite.connection import Connection


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
