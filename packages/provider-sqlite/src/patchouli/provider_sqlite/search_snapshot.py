"""What one retrieval sees: a snapshot of the index, then one of the truth, and what separates them.

The snapshot of the index is taken first. So the truth is never behind it, and every entity that the
index could be wrong about is known: it changed after the watermark, it is not built yet, or it
stands aside. These are the *fresh* entities of the scope.

In a work unit the entities are also fresh that changed after its baseline, or that it has staged.
Of these the heads of the unit are not those that are published, so they are evaluated *apart*
(`units_search.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import apsw
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_schema import ALL_BUILT, ENTITY_BITS, State, read_state
from patchouli.provider_sqlite.reads import observation_of

if TYPE_CHECKING:
    from patchouli.provider import Observation, ScopeText
    from patchouli.provider_sqlite.connection import Array, Connection
    from patchouli.provider_sqlite.units import Unit

_SCOPE: Final = (
    "SELECT scope_id, frontier, frontier_token, pruned_through FROM scope WHERE text = ?"
)
_CHANGED: Final = """
SELECT group_concat(DISTINCT entity_id) FROM change INDEXED BY change_scope
WHERE scope_id = ? AND cursor > ?
"""
_CHANGED_UNLOGGED: Final = """
SELECT group_concat(entity_id) FROM entity WHERE scope_id = ? AND changed_cursor > ?
"""
_UNBUILT: Final = "SELECT group_concat(entity_id) FROM entity WHERE scope_id = ? AND entity_id > ?"
_ASIDE: Final = "SELECT group_concat(entity_id) FROM idx.aside WHERE scope_id = ?"
_STAGED: Final = """
SELECT group_concat(e.entity_id) FROM work_unit_entity w
CROSS JOIN entity e ON e.scope_id = ?2 AND e.type = w.type AND e.id = w.id
WHERE w.unit_id = ?1
"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One scope at one moment. `built_through` is -1 where the index is not used at all."""

    connection: Connection
    scope_id: int
    observation: Observation
    fresh: frozenset[int]
    built_through: int
    unit: Unit | None = None
    apart: frozenset[int] = frozenset()

    @property
    def has_index(self) -> bool:
        """Whether documents of the index may be looked at."""
        return self.built_through >= 0

    def fresh_documents(self) -> Array | None:
        """Return the numbers of the documents that the index may be wrong about; None if none."""
        above = self.scope_id << ENTITY_BITS
        return number_array([above | entity for entity in self.fresh]) if self.fresh else None


def take_index(connection: Connection) -> State:
    """Return how far the attached index has come, with which its snapshot begins.

    Must run in a transaction that has read nothing yet.

    Raises:
        apsw.CorruptError: The index is not of our layout.
    """
    state = read_state(connection, "idx")
    if state is None:
        raise apsw.CorruptError("the index has another layout")
    return state


def take(
    connection: Connection, scope: ScopeText, state: State | None, unit: Unit | None = None
) -> Snapshot | None:
    """Return the snapshot for `scope`, as `unit` sees it; None if the scope has no row.

    `state` is that of the index, None where it is not used. Must run in the same transaction.
    """
    row = connection.execute(_SCOPE, (scope,)).fetchone()
    if row is None:
        return None
    scope_id, frontier, token, pruned_through = row

    def changed_since(cursor: int) -> frozenset[int]:
        if cursor >= frontier:
            return frozenset()
        changed = _CHANGED if pruned_through <= cursor else _CHANGED_UNLOGGED
        return _entities(connection, changed, scope_id, cursor)

    if state is None:
        fresh, built_through = _entities(connection, _UNBUILT, scope_id, -1), -1
    else:
        built_through = state.built_through
        fresh = _entities(connection, _ASIDE, scope_id) | changed_since(state.watermark)
        if built_through < ALL_BUILT:
            fresh |= _entities(connection, _UNBUILT, scope_id, built_through)
    if unit is None:
        observation = observation_of(frontier, token)
        return Snapshot(connection, scope_id, observation, fresh, built_through)
    apart = changed_since(unit.baseline) | _entities(connection, _STAGED, unit.unit_id, scope_id)
    observation = observation_of(unit.baseline, unit.token)
    return Snapshot(connection, scope_id, observation, fresh | apart, built_through, unit, apart)


def _entities(connection: Connection, sql: str, *bindings: int) -> frozenset[int]:
    listed: str | None = connection.execute(sql, bindings).get
    return frozenset() if listed is None else frozenset(map(int, listed.split(",")))
