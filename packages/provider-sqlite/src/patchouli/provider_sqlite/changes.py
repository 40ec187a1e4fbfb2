"""The change log: pages of a scope, the horizon behind which it is gone, and its pruning."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from patchouli.provider import ChangePage, Cursor
from patchouli.provider_sqlite.budget import UNBOUNDED
from patchouli.provider_sqlite.codec import change_of, ids_text, within

if TYPE_CHECKING:
    from patchouli.provider import ChangesPlan, ScopeText
    from patchouli.provider_sqlite.connection import Connection

SCOPE: Final = "SELECT scope_id, frontier, pruned_through FROM scope WHERE text = ?"
FRONTIER: Final = "SELECT frontier FROM scope WHERE text = ?"

# Changes past their age that the pruning has not reached yet: few, and found by the index.
AGED: Final = """
SELECT ifnull(max(cursor), 0) FROM change INDEXED BY change_age
WHERE recorded_at < ?2 AND scope_id = ?1
"""
# One text for the whole page: a row by itself would take the interpreter's lock each time.
PAGE: Final = """
SELECT json_group_array(
    json_array(cursor, type, id, kind, json(heads), token, event_meta, recorded_at)
    ORDER BY cursor)
FROM (SELECT c.cursor, e.type, e.id, c.kind, c.heads, c.token, c.event_meta, c.recorded_at
"""
# The same changes with the bytes of their metadata, which SQLite tells without reading them.
LENGTHS: Final = """
SELECT json_group_array(bytes ORDER BY cursor)
FROM (SELECT c.cursor, octet_length(c.event_meta) AS bytes
"""
SELECTED: Final = """
FROM change c INDEXED BY change_scope CROSS JOIN entity e ON e.entity_id = c.entity_id
WHERE c.scope_id = ? AND c.cursor > ? AND c.recorded_at >= ? AND c.kind <> 'hidden'
"""
OF_TYPES: Final = " AND e.type IN (SELECT value FROM json_each(?))"
OF_IDS: Final = " AND e.id IN (SELECT value FROM json_each(?))"
ORDER: Final = " ORDER BY c.cursor LIMIT ?)"

AGED_FIRST: Final = """
SELECT json_group_array(json_array(cursor, bytes)) FROM (
    SELECT cursor, octet_length(event_meta) AS bytes FROM change INDEXED BY change_age
    WHERE recorded_at < ?1 AND cursor <= ?2 LIMIT ?3)
"""
KEEP_TOKENS: Final = """
INSERT INTO causal_token (token, scope_id, cursor)
SELECT token, scope_id, cursor FROM change WHERE cursor IN (SELECT value FROM json_each(?))
"""
MOVE_HORIZON: Final = """
UPDATE scope SET pruned_through = max(pruned_through, p.cursor)
FROM (SELECT scope_id, max(cursor) AS cursor FROM change
      WHERE cursor IN (SELECT value FROM json_each(?)) GROUP BY scope_id) p
WHERE scope.scope_id = +p.scope_id
"""
KEEP_LAST_CURSOR: Final = """
UPDATE runtime SET last_cursor = max(last_cursor, (SELECT max(cursor) FROM change))
"""
PRUNE: Final = "DELETE FROM change WHERE cursor IN (SELECT value FROM json_each(?))"


def read_changes(connection: Connection, plan: ChangesPlan, *, incarnation: str) -> ChangePage:
    """Return a page of changes with the frontier and the horizon of the same snapshot."""
    cursor = connection.execute(SCOPE, (plan.scope,))
    try:
        scope = cursor.fetchone()
        if scope is None:
            return ChangePage(
                changes=(),
                frontier=Cursor(0),
                reached=Cursor(0),
                pruned_through=Cursor(0),
                incarnation=incarnation,
            )
        scope_id, frontier, pruned_through = scope
        cutoff = plan.retained_after_unix_ms
        aged = connection.execute(AGED, (scope_id, cutoff)).get
        selected, bindings = SELECTED, [scope_id, plan.after, cutoff]
        if plan.types is not None:
            selected += OF_TYPES
            bindings.append(ids_text(plan.types))
        if plan.ids is not None:
            selected += OF_IDS
            bindings.append(ids_text(plan.ids))
        limit = plan.limit
        if plan.limit_bytes is not None:
            found: str = connection.execute(LENGTHS + selected + ORDER, (*bindings, limit)).get
            lengths = json.loads(found)
            number = within(lengths, most=limit, most_bytes=plan.limit_bytes)
            limit = number if number < len(lengths) else limit
        page: str = connection.execute(PAGE + selected + ORDER, (*bindings, limit)).get
        changes = tuple(map(change_of, json.loads(page)))
        is_full = len(changes) == limit
        return ChangePage(
            changes=changes,
            frontier=Cursor(frontier),
            reached=changes[-1].cursor if is_full else Cursor(frontier),
            pruned_through=Cursor(max(pruned_through, aged)),
            incarnation=incarnation,
        )
    finally:
        cursor.close()


def read_frontier(connection: Connection, scope: ScopeText) -> int:
    """Return the cursor of the newest change of `scope`, 0 if there is none."""
    frontier: int | None = connection.execute(FRONTIER, (scope,)).get
    return frontier or 0


def prune(
    connection: Connection,
    *,
    recorded_before_unix_ms: int,
    through: int,
    limit: int,
    limit_bytes: int = UNBOUNDED,
) -> tuple[int, bool]:
    """Remove at most `limit` changes that are too old, keep their tokens, and move the horizons.

    Changes beyond the cursor `through` stay, whatever their age. Returns how many were removed, and
    whether it stopped because their metadata are long. Must run in a transaction.
    """
    found: str = connection.execute(AGED_FIRST, (recorded_before_unix_ms, through, limit)).get
    aged = json.loads(found)
    number = within([length for _, length in aged], most=limit, most_bytes=limit_bytes)
    if number:
        cursors = json.dumps([cursor for cursor, _ in aged[:number]])
        connection.execute(KEEP_TOKENS, (cursors,))
        connection.execute(MOVE_HORIZON, (cursors,))
        connection.execute(KEEP_LAST_CURSOR)
        connection.execute(PRUNE, (cursors,))
    return number, number < len(aged)
