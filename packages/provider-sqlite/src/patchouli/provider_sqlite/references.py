"""What stored versions of a type name at a pointer, for the housekeeping of what lies outside.

Entities are gone through scope by scope and in the order of their ids, each page by look-ups in the
index that makes them unique. A version may move between the row of its entity and a row of its own
at any time, so both are read by one statement. What work units have staged lies elsewhere and moves
to the entities when a unit is published, so it belongs to the first page.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import EntityKey, MisuseError, ReferencesPage, ScopeText, resolve
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patchouli.provider import ReferencesPlan
    from patchouli.provider_sqlite.connection import Connection

SCOPE: Final = "SELECT scope_id FROM scope WHERE text = ?"
OF_SCOPE: Final = """
SELECT ?1, id, entity_id FROM entity
WHERE scope_id = ?1 AND type = ?2 AND id > ?3 ORDER BY id LIMIT ?4
"""
OF_LATER_SCOPES: Final = """
SELECT s.scope_id, e.id, e.entity_id
FROM scope s CROSS JOIN entity e ON e.scope_id = s.scope_id AND e.type = ?2
WHERE s.scope_id > ?1 ORDER BY s.scope_id, e.id LIMIT ?3
"""
NAME_OF_SCOPE: Final = "SELECT text FROM scope WHERE scope_id = ?"
VALUES: Final = """
SELECT value FROM entity WHERE entity_id IN carray(?1) AND value IS NOT NULL
UNION ALL
SELECT value FROM version WHERE entity_id IN carray(?1) AND value IS NOT NULL
"""
STAGED: Final = "SELECT value FROM work_unit_version WHERE type = ? AND value IS NOT NULL"


def read_references(connection: Connection, plan: ReferencesPlan) -> ReferencesPage:
    """Return the strings at the pointer in all versions of the next entities.

    Raises:
        MisuseError: The limit is below 1.
    """
    if plan.limit < 1:
        raise MisuseError(KIND, "read_references", "the limit is below 1")
    staged: frozenset[str] = frozenset()
    if plan.after is None:  # before the entities, see the module
        staged = _named(connection.execute(STAGED, (plan.type,)), plan.pointer)
    found = _entities(connection, plan)
    numbers = (number_array([entity_id for _, _, entity_id in found]),)
    texts = _named(connection.execute(VALUES, numbers), plan.pointer)
    texts |= staged
    if len(found) < plan.limit:
        return ReferencesPage(texts=texts, reached=None)
    scope_id, id_, _ = found[-1]
    scope = ScopeText(connection.execute(NAME_OF_SCOPE, (scope_id,)).get)
    return ReferencesPage(texts=texts, reached=EntityKey(scope, plan.type, id_))


def _named(values: Iterable[tuple[str]], pointer: str) -> frozenset[str]:
    texts: set[str] = set()
    for (value,) in values:
        try:
            named = resolve(json.loads(value), pointer)
        except LookupError:
            continue
        if isinstance(named, str):
            texts.add(named)
    return frozenset(texts)


def _entities(connection: Connection, plan: ReferencesPlan) -> list[tuple[int, str, int]]:
    """Return scope, id and number of the next entities."""
    scope_id = 0
    found: list[tuple[int, str, int]] = []
    if plan.after is not None:
        scope_id = connection.execute(SCOPE, (plan.after.scope,)).get or 0
        bindings = (scope_id, plan.type, plan.after.id, plan.limit)
        found = connection.execute(OF_SCOPE, bindings).fetchall()
    if len(found) < plan.limit:
        rest = (scope_id, plan.type, plan.limit - len(found))
        found += connection.execute(OF_LATER_SCOPES, rest).fetchall()
    return found
