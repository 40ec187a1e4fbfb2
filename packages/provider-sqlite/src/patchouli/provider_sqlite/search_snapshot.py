"""What one retrieval sees: a snapshot of the index, then one of the truth, and what separates them.

The snapshot of the index is taken first. So the truth is never behind it, and every entity that the
index could be wrong about is known: it changed after the watermark, it is not built yet, or it
stands aside. These are the *fresh* entities of the scope.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import apsw
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_schema import ALL_BUILT, ENTITY_BITS, read_state
from patchouli.provider_sqlite.reads import observation_of

if TYPE_CHECKING:
    from patchouli.provider import Observation, ScopeText
    from patchouli.provider_sqlite.connection import Array, Connection

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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One scope at one moment. `built_through` is -1 where the index is not used at all."""

    connection: Connection
    scope_id: int
    observation: Observation
    fresh: frozenset[int]
    built_through: int

    @property
    def has_index(self) -> bool:
        """Whether documents of the index may be looked at."""
        return self.built_through >= 0

    def is_fresh(self, entity_id: int) -> bool:
        """Return whether the entity must be evaluated from the truth."""
        return entity_id in self.fresh or entity_id > self.built_through

    def fresh_documents(self) -> Array | None:
        """Return the numbers of the documents that the index may be wrong about; None if none."""
        above = self.scope_id << ENTITY_BITS
        return number_array([above | entity for entity in self.fresh]) if self.fresh else None


def take(connection: Connection, scope: ScopeText, *, has_index: bool) -> Snapshot | None:
    """Return the snapshot for `scope`; None if nothing was ever published in it.

    Must run in a transaction that has read nothing yet.

    Raises:
        apsw.CorruptError: The index is not of our layout.
    """
    state = None
    if has_index:
        state = read_state(connection, "idx")
        if state is None:
            raise apsw.CorruptError("the index has another layout")
    row = connection.execute(_SCOPE, (scope,)).fetchone()
    if row is None:
        return None
    scope_id, frontier, token, pruned_through = row
    observation = observation_of(frontier, token)
    if state is None:
        return Snapshot(
            connection, scope_id, observation, _entities(connection, _UNBUILT, scope_id, -1), -1
        )
    changed = _CHANGED if pruned_through <= state.watermark else _CHANGED_UNLOGGED
    fresh = _entities(connection, _ASIDE, scope_id)
    if frontier > state.watermark:
        fresh |= _entities(connection, changed, scope_id, state.watermark)
    if state.built_through < ALL_BUILT:
        fresh |= _entities(connection, _UNBUILT, scope_id, state.built_through)
    return Snapshot(connection, scope_id, observation, fresh, state.built_through)


def _entities(connection: Connection, sql: str, *bindings: int) -> frozenset[int]:
    listed: str | None = connection.execute(sql, bindings).get
    return frozenset() if listed is None else frozenset(map(int, listed.split(",")))
