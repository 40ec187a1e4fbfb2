"""Statements over many rows at once, and the common commits done with them.

SQLite runs a statement without the interpreter's lock and takes the lock back after it. With one
statement per row the writer would ask for the lock several times per commit, and each time wait for
the event loop to let go of it; with one statement for sixty rows it asks sixty times less often.

The rows of a statement are padded with NULL up to one of a few sizes, so that few texts are needed
and each stays compiled.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider_sqlite.codec import ids_text, state_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider import Commit
    from patchouli.provider_sqlite.connection import Connection, SqlValue

    Row = tuple[int, int, int, Commit]
    """Cursor, number of the scope, number of the entity, and the commit."""

SIZES: Final = (1, 4, 16, 64)  # rows of one statement; more rows are several statements
ROWS_LIMIT: Final = SIZES[-1]


class RowsStatement:
    """A statement around `VALUES` of rows with `width` columns."""

    def __init__(self, before: str, after: str, *, width: int) -> None:
        row = f"({','.join('?' * width)})"
        self._width = width
        self._texts = {
            size: f"{before} (VALUES {','.join([row] * size)}) {after}" for size in SIZES
        }

    def run(self, connection: Connection, cells: Sequence[SqlValue]) -> list[str]:
        """Run it for the rows that `cells` hold one after another; return single results."""
        results: list[str] = []
        width = self._width
        for start in range(0, len(cells), ROWS_LIMIT * width):
            part = cells[start : start + ROWS_LIMIT * width]
            rows = len(part) // width
            size = next(size for size in SIZES if size >= rows)
            padding = (None,) * (size * width - len(part))
            result = connection.execute(self._texts[size], (*part, *padding)).get
            if result is not None:
                results.append(result)
        return results


INSERT_ENTITIES: Final = RowsStatement(
    """
INSERT INTO entity (entity_id, scope_id, type, id, changed_cursor, head_count,
                    version, published_cursor, ordinal, state, parents, recorded_at, value)
SELECT column1, column2, column3, column4, column5, 1,
       column6, column5, 0, column7, '[]', column8, column9
FROM""",
    "WHERE column1 IS NOT NULL",
    width=9,
)
INSERT_CHANGES: Final = RowsStatement(
    """
INSERT INTO change (cursor, scope_id, entity_id, kind, heads, token, event_meta, recorded_at)
SELECT column1, column2, column3, column4, column5, column6, column7, column8 FROM""",
    "WHERE column1 IS NOT NULL",
    width=8,
)

# number of the commit, scope, type, id, new version -> the same number, entity_id, version, whether
# the new version exists already. One text, so that one step yields all of it.
READ_STATES: Final = RowsStatement(
    """
SELECT json_group_array(json_array(v.column1, e.entity_id, e.version, EXISTS (
    SELECT 1 FROM version x WHERE x.entity_id = e.entity_id AND x.version = v.column5)))
FROM""",
    """v CROSS JOIN entity e
WHERE e.scope_id = v.column2 AND e.type = v.column3 AND e.id = v.column4 AND e.head_count = 1
""",
    width=5,
)
SUPERSEDE_INLINE: Final = RowsStatement(
    """
INSERT INTO version (entity_id, version, published_cursor, ordinal, superseded_cursor,
                     superseded_at, state, parents, recorded_at, value)
SELECT e.entity_id, e.version, e.published_cursor, e.ordinal, v.column2,
       v.column3, e.state, e.parents, e.recorded_at, e.value
FROM""",
    "v CROSS JOIN entity e WHERE e.entity_id = v.column1",
    width=3,
)
# The sign keeps the planner from scanning `entity` and looking each row up among the new ones.
UPDATE_INLINE: Final = RowsStatement(
    """
UPDATE entity SET changed_cursor = v.column2, version = v.column3, published_cursor = v.column2,
    ordinal = 0, state = v.column4, parents = v.column5, recorded_at = v.column6, value = v.column7
FROM""",
    "v WHERE entity.entity_id = +v.column1",
    width=7,
)
MOVE_FRONTIERS: Final = RowsStatement(
    "UPDATE scope SET frontier = v.column2, frontier_token = v.column3 FROM",
    "v WHERE scope.scope_id = +v.column1",
    width=3,
)
# A row that would not move is not written, so that a transaction without any other stays empty.
ADVANCE_SESSIONS: Final = RowsStatement(
    """
INSERT INTO session (scope_id, key, read_cursor, write_cursor)
SELECT column1, column2, column3, column4 FROM""",
    """WHERE column1 IS NOT NULL
ON CONFLICT (scope_id, key) DO UPDATE SET
    read_cursor = max(read_cursor, excluded.read_cursor),
    write_cursor = max(write_cursor, excluded.write_cursor)
WHERE excluded.read_cursor > read_cursor OR excluded.write_cursor > write_cursor
""",
    width=4,
)


def is_plain_create(commit: Commit) -> bool:
    """Return whether `commit` makes an entity with one version and nothing else."""
    if commit.expected_heads or len(commit.new_versions) != 1:
        return False
    version = commit.new_versions[0]
    return not version.parents and commit.head_versions == (version.id,)


def is_plain_update(commit: Commit) -> bool:
    """Return whether `commit` replaces one head by one version that names no other parent."""
    if len(commit.expected_heads) != 1 or len(commit.new_versions) != 1:
        return False
    version = commit.new_versions[0]
    return (
        commit.head_versions == (version.id,)
        and version.parents in ((), commit.expected_heads)
        and version.id != commit.expected_heads[0]
    )


def insert_entities(connection: Connection, rows: Iterable[Row]) -> None:
    """Create the entities of plain creates."""
    cells: list[SqlValue] = []
    for cursor, scope_id, entity_id, commit in rows:
        key, version = commit.key, commit.new_versions[0]
        cells += (entity_id, scope_id, key.type, key.id, cursor)
        cells += (version.id, state_number(version), version.recorded_at_unix_ms)
        cells.append(version.value_json)
    INSERT_ENTITIES.run(connection, cells)


def replace_heads(connection: Connection, rows: Iterable[Row]) -> None:
    """Replace the single heads of entities by those of plain updates."""
    old: list[SqlValue] = []
    new: list[SqlValue] = []
    for cursor, _, entity_id, commit in rows:
        version = commit.new_versions[0]
        old += (entity_id, cursor, commit.recorded_at_unix_ms)
        new += (entity_id, cursor, version.id, state_number(version))
        new += (ids_text(version.parents), version.recorded_at_unix_ms, version.value_json)
    SUPERSEDE_INLINE.run(connection, old)
    UPDATE_INLINE.run(connection, new)


def append_changes(connection: Connection, rows: Iterable[Row]) -> None:
    """Append the change of each commit."""
    cells: list[SqlValue] = []
    for cursor, scope_id, entity_id, commit in rows:
        cells += (cursor, scope_id, entity_id, commit.kind.value, ids_text(commit.head_versions))
        cells += (commit.causal_token, commit.event_meta_json, commit.recorded_at_unix_ms)
    INSERT_CHANGES.run(connection, cells)


class SingleHead(NamedTuple):
    """An entity with one head, as the writer finds it before an update."""

    entity_id: int
    version: str
    has_new_version: bool


def read_single_heads(
    connection: Connection, updates: Sequence[tuple[int, Commit]]
) -> dict[int, SingleHead]:
    """Return what each update (number of the scope, commit) finds, by its index.

    Entities that do not exist or have several heads are left out.
    """
    cells: list[SqlValue] = []
    for index, (scope_id, commit) in enumerate(updates):
        key = commit.key
        cells += (index, scope_id, key.type, key.id, commit.new_versions[0].id)
    return {
        index: SingleHead(entity_id, version, bool(exists))
        for text in READ_STATES.run(connection, cells)
        for index, entity_id, version, exists in json.loads(text)
    }
