"""Entities that are evaluated from the truth: the definition of a match, applied as it stands.

SQL leaves out rows that cannot match, without the interpreter and without the index, so that a tail
of some thousand changes costs a retrieval a few milliseconds. What passes is decided by
`patchouli.provider.text_score` and `holds`.
"""

from __future__ import annotations

import heapq
import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import Order, fold, holds, text_score
from patchouli.provider_sqlite import search_filters
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.search_found import Found, Wanted
from patchouli.provider_sqlite.search_order import AFTER, ORDER, bindings_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from patchouli.provider import RetrievePlan
    from patchouli.provider_sqlite.search_filters import Bindings
    from patchouli.provider_sqlite.search_snapshot import Snapshot

LONGEST_FETCH: Final = 512  # rows asked for at once when a page turns out to need many

_SINGLE: Final = """
SELECT e.entity_id, e.type AS type, e.id AS id, e.recorded_at AS recorded_at, {value}
FROM carray(:fresh) AS f CROSS JOIN entity AS e ON e.entity_id = f.value
WHERE e.head_count = 1 AND e.state = 0{restriction}{condition}"""
_IN_ORDER: Final = "{single}{after} ORDER BY {order} LIMIT :limit"
_SEVERAL: Final = """
SELECT e.entity_id, e.type, e.id
FROM carray(:fresh) AS f CROSS JOIN entity AS e ON e.entity_id = f.value
WHERE e.head_count > 1{restriction}"""
_OF_TYPES: Final = " AND e.type IN (SELECT value FROM json_each(:types))"
_OF_IDS: Final = " AND e.id IN (SELECT value FROM json_each(:ids))"
_HEADS: Final = """
SELECT recorded_at, value FROM version
WHERE entity_id = ? AND superseded_cursor IS NULL AND state = 0
"""

# Letters that fold to ASCII, or begin what folds to it: KELVIN SIGN, I WITH DOT ABOVE.
_FOLDS_TO_ASCII: Final = "instr(e.value, char(8490)) OR instr(e.value, char(304))"
_HAS_ESCAPES: Final = r"instr(e.value, '\u')"
_NUMERIC: Final = frozenset(
    "0123456789.+-einfatyn"
)  # of numbers and of what `inf` and `nan` are spelled
_COMBINING_DOT_ABOVE: Final = "\u0307"

Row = tuple[int, str, str, int, str]
"""entity_id, type, id, recorded_at, value."""


def find_fresh(snapshot: Snapshot, wanted: Wanted) -> Iterator[Found]:
    """Return the fresh entities that match, in the order of the plan, after the page before.

    Those that a work unit sees with other heads are left out.
    """
    if not snapshot.fresh - snapshot.apart:
        return iter(())
    search = _Search(snapshot, wanted)
    if wanted.plan.order is Order.RELEVANCE:
        found = sorted([*search.single(), *search.several()])
        return filter(wanted.is_after, found)
    several = sorted(search.several(), reverse=wanted.is_descending)
    return heapq.merge(
        filter(wanted.is_after, several), search.in_order(), reverse=wanted.is_descending
    )


class _Search:
    """The statements of one plan over the fresh entities of one snapshot."""

    def __init__(self, snapshot: Snapshot, wanted: Wanted) -> None:
        self._connection = snapshot.connection
        self._wanted = wanted
        plan = wanted.plan
        self._is_plain = plan.text is None and not plan.filters
        condition, self._bindings = condition_of(plan)
        self._bindings["fresh"] = number_array(list(snapshot.fresh - snapshot.apart))
        restriction, names = restriction_to(plan)
        self._bindings |= names
        self._restriction = restriction
        self._single = _SINGLE.format(
            value="NULL" if self._is_plain else "e.value",
            restriction=restriction,
            condition=condition,
        )

    def single(self) -> Iterator[Found]:
        """Return all matches with one head, in no order."""
        yield from self._verified(self._connection.execute(self._single, self._bindings))

    def in_order(self) -> Iterator[Found]:
        """Return the matches with one head in the order of the plan, a few at a time."""
        plan = self._wanted.plan
        bound = self._bindings | bindings_after(plan.after)
        is_first = plan.after is None
        limit = plan.limit + 1
        while True:
            after = "" if is_first else f" AND {AFTER[plan.order]}"
            sql = _IN_ORDER.format(single=self._single, after=after, order=ORDER[plan.order])
            rows = self._connection.execute(sql, bound | {"limit": limit}).fetchall()
            yield from self._verified(rows)
            if len(rows) < limit:
                return
            is_first = False
            bound |= {"time": rows[-1][3], "type": rows[-1][1], "id": rows[-1][2]}
            limit = min(2 * limit, LONGEST_FETCH)

    def several(self) -> Iterator[Found]:
        """Return all matches with several heads, in no order."""
        sql = _SEVERAL.format(restriction=self._restriction)
        for entity_id, type_, id_ in self._connection.execute(sql, self._bindings).fetchall():
            scored = [
                (score, at)
                for at, head in self._connection.execute(_HEADS, (entity_id,)).fetchall()
                if (score := matching_score(self._wanted, head)) is not None
            ]
            if scored:
                score = max(score for score, _ in scored)
                recorded_at = max(at for _, at in scored)
                yield self._wanted.found(entity_id, type_, id_, score, recorded_at)

    def _verified(self, rows: Iterable[Row]) -> Iterator[Found]:
        for entity_id, type_, id_, recorded_at, value in rows:
            score = 0.0 if self._is_plain else matching_score(self._wanted, value)
            if score is not None:
                yield self._wanted.found(entity_id, type_, id_, score, recorded_at)


def restriction_to(plan: RetrievePlan) -> tuple[str, Bindings]:
    """Return a condition on the names of entities `e`, and what its parameters are bound to."""
    restriction = ""
    bindings: Bindings = {}
    if plan.types is not None:
        restriction += _OF_TYPES
        bindings["types"] = json.dumps(plan.types)
    if plan.ids is not None:
        restriction += _OF_IDS
        bindings["ids"] = json.dumps(list(plan.ids))
    return restriction, bindings


def condition_of(plan: RetrievePlan) -> tuple[str, Bindings]:
    """Return a condition on `e.value` that every matching value fulfils, and its bindings."""
    condition, bindings = search_filters.conditions(plan.filters, "e.value")
    if plan.text is None:
        return condition, bindings
    text, needle = text_condition(plan.text)
    return condition + text, bindings | needle


def matching_score(wanted: Wanted, value_json: str) -> float | None:
    """Return the score of one head, or None if its text or a filter does not match."""
    value = json.loads(value_json)
    text = wanted.plan.text
    score = 0.0 if text is None else text_score(value, text)
    if score is None or not all(holds(filter_, value) for filter_ in wanted.plan.filters):
        return None
    return score


def text_condition(text: str) -> tuple[str, Bindings]:
    """Return a condition that every value in which `text` occurs fulfils, or an empty one."""
    needle = fold(text)
    if set(needle) <= _NUMERIC or not all(map(stands_for_itself, needle)):
        return "", {}
    return (
        f" AND (instr(lower(e.value), :needle) OR {_FOLDS_TO_ASCII} OR {_HAS_ESCAPES})",
        {"needle": needle},
    )


def stands_for_itself(character: str) -> bool:
    """Return whether canonical JSON text shows the folded character wherever a value holds it.

    ASCII letters do after SQLite's `lower`, other letters only if they have no case.
    """
    if character.isascii():
        return character.isprintable() and character not in '"\\'
    return character.upper() == character.lower() and character != _COMBINING_DOT_ABOVE
