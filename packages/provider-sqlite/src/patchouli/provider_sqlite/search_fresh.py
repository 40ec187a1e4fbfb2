"""Entities that are evaluated from the truth: the definition of a match, applied as it stands.

SQL leaves out rows that cannot match, without the interpreter and without the index, so that a tail
of some thousand changes costs a retrieval a few milliseconds. What passes is decided by
`patchouli.provider.text_score` and `holds`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import fold, holds, text_score
from patchouli.provider_sqlite import search_filters
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.search_found import Found, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider_sqlite.search_filters import Bindings
    from patchouli.provider_sqlite.search_snapshot import Snapshot

FETCHED: Final = 256  # rows held at once; between two fetches others may have the interpreter

_ENTITIES: Final = """
SELECT e.entity_id, e.type, e.id, e.head_count, e.recorded_at, {value}
FROM carray(:fresh) AS f CROSS JOIN entity AS e ON e.entity_id = f.value
WHERE e.head_count > 1 OR (e.head_count = 1 AND e.state = 0{condition})
"""
_HEADS: Final = """
SELECT recorded_at, value FROM version
WHERE entity_id = ? AND superseded_cursor IS NULL AND unit_id IS NULL AND state = 0
"""

# Letters that fold to ASCII, or begin what folds to it: KELVIN SIGN, I WITH DOT ABOVE.
_FOLDS_TO_ASCII: Final = "instr(e.value, char(8490)) OR instr(e.value, char(304))"
_HAS_ESCAPES: Final = r"instr(e.value, '\u')"
_NUMERIC: Final = frozenset(
    "0123456789.+-einfatyn"
)  # of numbers and of what `inf` and `nan` are spelled
_COMBINING_DOT_ABOVE: Final = "\u0307"


def find_fresh(snapshot: Snapshot, wanted: Wanted) -> Iterator[Found]:
    """Return the fresh entities that match, in no order, whatever their place on the pages."""
    plan = wanted.plan
    if not snapshot.fresh:
        return
    is_plain = plan.text is None and not plan.filters
    condition, bindings = search_filters.conditions(plan.filters, "e.value")
    if plan.text is not None:
        text, needle = text_condition(plan.text)
        condition += text
        bindings |= needle
    sql = _ENTITIES.format(value="NULL" if is_plain else "e.value", condition=condition)
    rows = snapshot.connection.execute(
        sql, bindings | {"fresh": number_array(list(snapshot.fresh))}
    )
    for entity_id, type_, id_, head_count, recorded_at, value in rows:
        if not wanted.admits(type_, id_):
            continue
        if head_count == 1:
            heads = [(recorded_at, value)]
        else:
            heads = snapshot.connection.execute(_HEADS, (entity_id,)).fetchall()
        scored = [
            (score, at)
            for at, head in heads
            if (score := 0.0 if is_plain else matching_score(wanted, head)) is not None
        ]
        if scored:
            score = max(score for score, _ in scored)
            yield wanted.found(entity_id, type_, id_, score, max(at for _, at in scored))


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
