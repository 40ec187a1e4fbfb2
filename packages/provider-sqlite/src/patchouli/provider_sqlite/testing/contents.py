"""What a database at rest holds, read past the provider: its versions and its last run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import apsw
from patchouli.provider import EntityKey, ScopeText

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider_sqlite.connection import Connection

_RUN: Final = "SELECT generation, running, incarnation FROM runtime"
_VERSIONS: Final = """
SELECT s.text, e.type, e.id, e.version, e.parents, e.value, 1
FROM entity e JOIN scope s USING (scope_id) WHERE e.version IS NOT NULL
UNION ALL
SELECT s.text, e.type, e.id, v.version, v.parents, v.value, v.superseded_cursor IS NULL
FROM version v JOIN entity e USING (entity_id) JOIN scope s USING (scope_id)
"""
_CHANGES: Final = """
SELECT c.cursor, s.text, e.type, e.id, c.kind, c.heads, c.event_meta
FROM change c JOIN entity e USING (entity_id) JOIN scope s ON s.scope_id = c.scope_id
WHERE c.kind <> 'hidden' ORDER BY c.cursor
"""


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A published version; without a value it is a tombstone."""

    parents: tuple[str, ...]
    value_json: str | None
    is_head: bool


@dataclass(frozen=True, slots=True)
class StoredChange:
    """A change as it stands in the log."""

    cursor: int
    key: EntityKey
    kind: str
    heads: tuple[str, ...]
    event_meta_json: str


@dataclass(frozen=True, slots=True)
class Contents:
    """A database: its versions by entity and id, and its changes in order."""

    generation: int
    is_running: bool
    incarnation: str
    versions: dict[EntityKey, dict[str, StoredVersion]]
    changes: tuple[StoredChange, ...]


def read_contents(path: Path) -> Contents:
    """Return what the database at `path` holds, which nobody may be using.

    Raises:
        AssertionError: A version is stored twice.
    """
    connection = cast("Connection", apsw.Connection(str(path)))
    try:
        generation, running, incarnation = connection.execute(_RUN).fetchone()
        versions: dict[EntityKey, dict[str, StoredVersion]] = {}
        for scope, type_, id_, version, parents, value, is_head in connection.execute(_VERSIONS):
            of_entity = versions.setdefault(EntityKey(ScopeText(scope), type_, id_), {})
            if version in of_entity:
                raise AssertionError(f"version {version} is stored twice")
            of_entity[version] = StoredVersion(tuple(json.loads(parents)), value, bool(is_head))
        changes = tuple(
            StoredChange(
                cursor,
                EntityKey(ScopeText(scope), type_, id_),
                kind,
                tuple(json.loads(heads)),
                meta,
            )
            for cursor, scope, type_, id_, kind, heads, meta in connection.execute(_CHANGES)
        )
        return Contents(generation, bool(running), incarnation, versions, changes)
    finally:
        connection.close()
