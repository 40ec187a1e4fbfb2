"""One entity as a work unit sees it: what it has staged, else the heads at its baseline.

The heads at an old cursor are the versions that were published by then and not superseded by then,
so they are found by key, however much came later. A version is known in the unit if it was
published by the baseline or staged by the unit itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from patchouli.provider import INTEGER_MAX, VersionId
from patchouli.provider_sqlite.budget import OverBudgetError
from patchouli.provider_sqlite.codec import VersionRow, ids_of, ids_text, version_of
from patchouli.provider_sqlite.graph import diverge
from patchouli.provider_sqlite.heads import misuse

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider import Divergence, EntityKey, Version
    from patchouli.provider_sqlite.budget import Budget
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.graph import NodeRow, ValueRow
    from patchouli.provider_sqlite.units import Unit

ENTITY_COLUMNS: Final = """e.entity_id, e.changed_cursor, e.head_count, e.published_cursor,
    e.version, e.state, iif(octet_length(e.value) <= :bytes, e.value, NULL), e.parents,
    e.recorded_at, w.heads"""
ENTITY_JOINS: Final = """
LEFT JOIN entity e ON e.scope_id = u.scope_id AND e.type = :type AND e.id = :id
LEFT JOIN work_unit_entity w ON w.unit_id = u.unit_id AND w.type = :type AND w.id = :id
"""
ENTITY: Final = f"""
SELECT {ENTITY_COLUMNS} FROM work_unit u {ENTITY_JOINS} WHERE u.unit_id = :unit
"""  # noqa: S608 - of constants

# Current ones and those that a later change superseded; both by the index of fates. First, if it is
# asked for, a row that says that too many were superseded since to look through them here.
HEADS_AT: Final = """
SELECT NULL, NULL, NULL, NULL, NULL FROM (
    SELECT 1 FROM version INDEXED BY version_fate
    WHERE entity_id = ?1 AND superseded_cursor > ?2 LIMIT ?4 OFFSET ?5)
UNION ALL
SELECT version, state, iif(octet_length(value) <= ?3, value, NULL), parents, recorded_at
FROM version INDEXED BY version_fate
WHERE entity_id = ?1 AND superseded_cursor > ?2 AND published_cursor <= ?2
UNION ALL
SELECT version, state, iif(octet_length(value) <= ?3, value, NULL), parents, recorded_at
FROM version INDEXED BY version_fate
WHERE entity_id = ?1 AND superseded_cursor IS NULL AND published_cursor <= ?2
"""
PUBLISHED: Final = """
SELECT version, state, iif(octet_length(value) <= ?4, value, NULL), parents, recorded_at
FROM version WHERE entity_id = ?1 AND published_cursor <= ?2
    AND version IN (SELECT value FROM json_each(?3))
UNION ALL
SELECT version, state, iif(octet_length(value) <= ?4, value, NULL), parents, recorded_at
FROM entity WHERE entity_id = ?1 AND published_cursor <= ?2
    AND version IN (SELECT value FROM json_each(?3))
"""
STAGED: Final = """
SELECT version, state, iif(octet_length(value) <= ?5, value, NULL), parents, recorded_at
FROM work_unit_version WHERE unit_id = ?1 AND type = ?2 AND id = ?3
    AND version IN (SELECT value FROM json_each(?4))
"""
PUBLISHED_NODE: Final = """
SELECT version, parents, published_cursor, ordinal FROM version
WHERE entity_id = ?1 AND version = ?3 AND published_cursor <= ?2
UNION ALL
SELECT version, parents, published_cursor, ordinal FROM entity
WHERE entity_id = ?1 AND version = ?3 AND published_cursor <= ?2
"""
STAGED_NODE: Final = f"""
SELECT version, parents, {INTEGER_MAX}, ordinal FROM work_unit_version
WHERE unit_id = ?1 AND type = ?2 AND id = ?3 AND version = ?4
"""  # noqa: S608 - of constants
KNOWN: Final = """
SELECT version, published_cursor <= ?4 FROM version
WHERE entity_id = ?3 AND version IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT version, published_cursor <= ?4 FROM entity
WHERE entity_id = ?3 AND version IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT version, 1 FROM work_unit_version WHERE unit_id = ?2 AND type = ?5 AND id = ?6
    AND version IN (SELECT value FROM json_each(?1))
"""


FAR: Final = 10_000  # versions superseded since the baseline; about a millisecond to pass by


@dataclass(frozen=True, slots=True)
class UnitView:
    """An entity in a unit; `through` is the cursor up to which published versions are known."""

    connection: Connection
    unit_id: int
    through: int
    type: str
    id: str
    entity_id: int | None
    changed_cursor: int
    head_count: int
    inline_cursor: int
    inline: VersionRow | None
    staged: tuple[VersionId, ...] | None

    def with_all_published(self) -> UnitView:
        """Return the view of everything that is published now, and of what the unit staged."""
        return replace(self, through=INTEGER_MAX)

    def without_staged(self) -> UnitView:
        """Return the view of the baseline alone."""
        return replace(self, staged=None)

    def heads(self, budget: Budget) -> tuple[Version, ...]:
        """Return the heads, ascending by id.

        Raises:
            OverBudgetError: They cost more than `budget` allows.
        """
        if self.staged is not None:
            found = self.versions(self.staged, budget)
            return tuple(found[version] for version in sorted(found))
        if self.entity_id is None:
            return ()
        rows: list[VersionRow] = []
        if self.inline is not None and self.inline_cursor <= self.through:
            rows.append(self.inline)
        if self.head_count > 1 or self.changed_cursor > self.through:
            rows += self._heads_at(budget)
        return tuple(sorted(self._taken(rows, budget), key=lambda head: head.id))

    def head_ids(self) -> frozenset[VersionId]:
        """Return the ids of the heads, for a comparison."""
        if self.staged is not None:
            return frozenset(self.staged)
        if self.entity_id is None:
            return frozenset()
        found: set[VersionId] = set()
        if self.inline is not None and self.inline_cursor <= self.through:
            found.add(VersionId(self.inline[0]))
        if self.head_count > 1 or self.changed_cursor > self.through:
            bindings = (self.entity_id, self.through, -1, 0, 0)
            found.update(row[0] for row in self.connection.execute(HEADS_AT, bindings))
        return frozenset(found)

    def versions(self, wanted: Iterable[VersionId], budget: Budget) -> dict[VersionId, Version]:
        """Return those of `wanted` that the unit knows, in the order of `wanted`.

        Raises:
            OverBudgetError: They cost more than `budget` allows.
        """
        ids = tuple(dict.fromkeys(wanted))
        if not ids:
            return {}
        for _ in ids:
            budget.look_up()
        text, rows = ids_text(ids), list[VersionRow]()
        if self.staged is not None:
            key = (self.unit_id, self.type, self.id, text, budget.value_bytes)
            rows += self.connection.execute(STAGED, key).fetchall()
        if len(rows) < len(ids) and self.entity_id is not None:
            bindings = (self.entity_id, self.through, text, budget.value_bytes)
            rows += self.connection.execute(PUBLISHED, bindings).fetchall()
        found = {version.id: version for version in self._taken(rows, budget)}
        return {version: found[version] for version in ids if version in found}

    def require_known(
        self,
        new_versions: Sequence[Version],
        head_versions: Iterable[VersionId],
        present: frozenset[VersionId],
    ) -> None:
        """Return if heads and parents exist in the unit and the new versions exist nowhere.

        `present` are the heads that may stay.

        Raises:
            MisuseError: They do not.
        """
        new = {version.id for version in new_versions}
        if not new.isdisjoint(present):
            raise misuse("a new version exists already")
        if not present.union(new).issuperset(head_versions):
            raise misuse("a head is neither a new version nor a present head")
        older = {parent for version in new_versions for parent in version.parents} - new
        if self.entity_id is None and self.staged is None:
            if older:
                raise misuse("a parent is unknown")
            return
        key = (self.unit_id, self.entity_id, self.through, self.type, self.id)
        found = dict(self.connection.execute(KNOWN, (ids_text(older | new), *key)).fetchall())
        if not new.isdisjoint(found):
            raise misuse("a new version exists already")
        if not all(found.get(parent) for parent in older):
            raise misuse("a parent is unknown")

    def divergence(self, starts: Sequence[VersionId], budget: Budget) -> Divergence:
        """Return the divergence of some versions that the unit knows.

        Raises:
            OverBudgetError: It costs more than `budget` allows.
        """
        return diverge(
            starts,
            node=self._node,
            values=lambda versions: self._values(versions, budget),
            budget=budget,
        )

    def _heads_at(self, budget: Budget) -> list[VersionRow]:
        """Return the heads at the baseline that lie outside of the row of the entity."""
        limits = (budget.value_bytes, int(budget.is_bounded), FAR)
        cursor = self.connection.execute(HEADS_AT, (self.entity_id, self.through, *limits))
        rows: list[VersionRow] = []
        for row in cursor:
            if row[0] is None:
                cursor.close()
                raise OverBudgetError
            rows.append(row)
        return rows

    def _node(self, version: VersionId) -> NodeRow | None:
        if self.staged is not None:
            key = (self.unit_id, self.type, self.id, version)
            row = self.connection.execute(STAGED_NODE, key).get
            if row is not None:
                return row
        bindings = (self.entity_id, self.through, version)
        return self.connection.execute(PUBLISHED_NODE, bindings).get

    def _values(self, versions: str, budget: Budget) -> list[ValueRow]:
        rows: list[VersionRow] = []
        if self.staged is not None:
            key = (self.unit_id, self.type, self.id, versions, budget.value_bytes)
            rows += self.connection.execute(STAGED, key).fetchall()
        bindings = (self.entity_id, self.through, versions, budget.value_bytes)
        rows += self.connection.execute(PUBLISHED, bindings).fetchall()
        return [row[:3] for row in rows]

    def _taken(self, rows: Iterable[VersionRow], budget: Budget) -> list[Version]:
        versions: list[Version] = []
        for row in rows:
            budget.take(row[1], row[2])
            versions.append(version_of(row))
        return versions


# Any: what a row of `ENTITY_COLUMNS` holds, only the text of the statement says.
def view_of(connection: Connection, unit: Unit, key: EntityKey, row: Sequence[Any]) -> UnitView:
    """Return the view of the entity that a row of `ENTITY_COLUMNS` holds."""
    entity_id, changed_cursor, head_count, inline_cursor, *inline, staged = row
    return UnitView(
        connection=connection,
        unit_id=unit.unit_id,
        through=unit.baseline,
        type=key.type,
        id=key.id,
        entity_id=entity_id,
        changed_cursor=changed_cursor or 0,
        head_count=head_count or 0,
        inline_cursor=inline_cursor or 0,
        inline=None if inline[0] is None else (inline[0], *inline[1:]),
        staged=None if staged is None else ids_of(staged),
    )


def read_view(connection: Connection, unit: Unit, key: EntityKey, *, value_bytes: int) -> UnitView:
    """Return the view of one entity; a longer value than `value_bytes` is left out of it."""
    bindings = {"unit": unit.unit_id, "type": key.type, "id": key.id, "bytes": value_bytes}
    row = connection.execute(ENTITY, bindings).fetchone()
    return view_of(connection, unit, key, row)
