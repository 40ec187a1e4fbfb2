"""Entities of a retrieval that a work unit sees with other heads than are published.

These are the entities that changed after its baseline and those that it has staged. All of them
are evaluated, from the truth as it was at the baseline or from what is staged, so a retrieval in a
unit costs what changed since the baseline more than the same retrieval outside. The definition of a
match is applied as in `search_fresh.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import EntityKey
from patchouli.provider_sqlite.budget import Budget
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.search_fresh import condition_of, matching_score, restriction_to
from patchouli.provider_sqlite.units_view import read_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider import Version
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.search_found import Found, Wanted
    from patchouli.provider_sqlite.search_snapshot import Snapshot
    from patchouli.provider_sqlite.units import Unit

STAGED: Final = -1  # in the place of the number of an entity that the unit has staged

# Heads at the baseline: superseded later, current, or inline. Then what is staged, of which some
# heads may be published versions that stay.
_HEADS: Final = f"""
SELECT n.entity_id, n.type, n.id, v.recorded_at, v.state, v.value
FROM carray(:apart) AS c CROSS JOIN entity AS n ON n.entity_id = c.value
CROSS JOIN version AS v INDEXED BY version_fate
    ON v.entity_id = n.entity_id AND v.superseded_cursor > :baseline
WHERE v.published_cursor <= :baseline
UNION ALL
SELECT n.entity_id, n.type, n.id, v.recorded_at, v.state, v.value
FROM carray(:apart) AS c CROSS JOIN entity AS n ON n.entity_id = c.value
CROSS JOIN version AS v INDEXED BY version_fate
    ON v.entity_id = n.entity_id AND v.superseded_cursor IS NULL
WHERE v.published_cursor <= :baseline
UNION ALL
SELECT n.entity_id, n.type, n.id, n.recorded_at, n.state, n.value
FROM carray(:apart) AS c CROSS JOIN entity AS n ON n.entity_id = c.value
WHERE n.published_cursor <= :baseline
UNION ALL
SELECT {STAGED}, w.type, w.id, v.recorded_at, v.state, v.value
FROM work_unit_entity AS w CROSS JOIN json_each(w.heads) AS h
CROSS JOIN work_unit_version AS v
    ON v.unit_id = w.unit_id AND v.type = w.type AND v.id = w.id AND v.version = h.value
WHERE w.unit_id = :unit
UNION ALL
SELECT {STAGED}, w.type, w.id, v.recorded_at, v.state, v.value
FROM work_unit_entity AS w
CROSS JOIN entity AS n ON n.scope_id = :scope AND n.type = w.type AND n.id = w.id
CROSS JOIN json_each(w.heads) AS h
CROSS JOIN version AS v ON v.entity_id = n.entity_id AND v.version = h.value
WHERE w.unit_id = :unit
UNION ALL
SELECT {STAGED}, w.type, w.id, n.recorded_at, n.state, n.value
FROM work_unit_entity AS w
CROSS JOIN entity AS n ON n.scope_id = :scope AND n.type = w.type AND n.id = w.id
CROSS JOIN json_each(w.heads) AS h ON h.value = n.version
WHERE w.unit_id = :unit
"""  # noqa: S608 - of constants
_MATCHING: Final = """
SELECT e.entity_id, e.type, e.id, e.recorded_at, {value}
FROM ({heads}) AS e WHERE e.state = 0{restriction}{condition}"""
_STAGED_ENTITIES: Final = """
SELECT e.entity_id FROM work_unit_entity w
CROSS JOIN entity e ON e.scope_id = ?2 AND e.type = w.type AND e.id = w.id
WHERE w.unit_id = ?1
"""


def find_in_unit(snapshot: Snapshot, unit: Unit, wanted: Wanted) -> Iterator[Found]:
    """Return the matches among them, in the order of the plan, after the page before."""
    plan, connection = wanted.plan, snapshot.connection
    condition, bindings = condition_of(plan)
    restriction, names = restriction_to(plan)
    staged = connection.execute(_STAGED_ENTITIES, (unit.unit_id, unit.scope_id))
    apart = snapshot.apart.difference(row[0] for row in staged)
    bindings |= names | {
        "apart": number_array(list(apart)),
        "baseline": unit.baseline,
        "unit": unit.unit_id,
        "scope": unit.scope_id,
    }
    is_plain = plan.text is None and not plan.filters
    sql = _MATCHING.format(
        heads=_HEADS,
        value="NULL" if is_plain else "e.value",
        restriction=restriction,
        condition=condition,
    )
    best: dict[tuple[str, str], tuple[int, float, int]] = {}
    for entity_id, type_, id_, recorded_at, value in connection.execute(sql, bindings):
        score = 0.0 if is_plain else matching_score(wanted, value)
        if score is not None:
            _, other, at = best.get((type_, id_), (entity_id, 0.0, 0))
            best[type_, id_] = (entity_id, max(score, other), max(recorded_at, at))
    found = [
        wanted.found(entity_id, type_, id_, score, recorded_at)
        for (type_, id_), (entity_id, score, recorded_at) in best.items()
    ]
    return filter(wanted.is_after, sorted(found, reverse=wanted.is_descending))


def heads_in(connection: Connection, unit: Unit, found: Found) -> tuple[Version, ...]:
    """Return all heads of a hit in the unit, ascending by id."""
    key, budget = EntityKey(unit.scope, found.type, found.id), Budget()
    return read_view(connection, unit, key, value_bytes=budget.value_bytes).heads(budget)
