"""What must hold of the truth database, whatever happened to the process or the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import apsw
from patchouli.provider_sqlite.idempotency import digest_of

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider_sqlite.connection import Connection

SOUND: Final = "PRAGMA integrity_check"
VIOLATIONS: Final = {
    "the number of heads is the number of current versions": """
        SELECT entity_id FROM entity e WHERE head_count <> (version IS NOT NULL) + (
            SELECT count(*) FROM version v WHERE v.entity_id = e.entity_id
            AND superseded_cursor IS NULL)
    """,
    "a version is stored once": """
        SELECT v.version FROM version v JOIN entity e USING (entity_id, version)
    """,
    "the change at which an entity changed last names its heads": """
        SELECT entity_id FROM entity e JOIN change c USING (entity_id)
        WHERE c.cursor = e.changed_cursor
        AND (SELECT group_concat(value, ' ') FROM
                (SELECT value FROM json_each(c.heads) ORDER BY value))
        IS NOT (SELECT group_concat(version, ' ') FROM (
            SELECT e.version WHERE e.version IS NOT NULL
            UNION ALL SELECT version FROM version v WHERE v.entity_id = e.entity_id
                AND superseded_cursor IS NULL
            ORDER BY 1))
    """,
    "an entity changed last at its newest change": """
        SELECT entity_id FROM entity e JOIN change c USING (entity_id)
        WHERE c.cursor > e.changed_cursor
        UNION ALL SELECT entity_id FROM entity e JOIN scope s USING (scope_id)
        WHERE e.changed_cursor > s.pruned_through AND NOT EXISTS (
            SELECT 1 FROM change c WHERE c.cursor = e.changed_cursor
            AND c.entity_id = e.entity_id)
    """,
    "a change and its entity belong to one scope": """
        SELECT cursor FROM change c LEFT JOIN entity e USING (entity_id)
        WHERE c.scope_id IS NOT e.scope_id
    """,
    "the frontier of a scope is its newest change, with its token": """
        SELECT s.scope_id FROM scope s WHERE frontier > 0 AND frontier_token NOT IN (
            SELECT token FROM change WHERE cursor = frontier AND scope_id = s.scope_id
            UNION ALL SELECT token FROM causal_token p
            WHERE p.token = s.frontier_token AND p.cursor = frontier AND p.scope_id = s.scope_id)
        UNION ALL SELECT scope_id FROM change JOIN scope USING (scope_id) WHERE cursor > frontier
        UNION ALL SELECT scope_id FROM causal_token JOIN scope USING (scope_id)
        WHERE cursor > frontier
    """,
    "a token stands for one position": """
        SELECT token FROM change JOIN causal_token USING (token)
    """,
    "what is pruned lies behind the horizon": """
        SELECT token FROM causal_token t JOIN scope USING (scope_id) WHERE cursor > pruned_through
        AND NOT EXISTS (
            SELECT 1 FROM change c WHERE c.cursor = t.cursor AND c.scope_id = t.scope_id)
    """,
    "no version is newer than the frontier of its scope": """
        SELECT v.version FROM version v JOIN entity USING (entity_id) JOIN scope USING (scope_id)
        WHERE max(v.published_cursor, ifnull(v.superseded_cursor, 0)) > frontier
        UNION ALL SELECT version FROM entity JOIN scope USING (scope_id)
        WHERE changed_cursor > frontier
    """,
    "the parents of a version are versions of its entity": """
        WITH known AS (
            SELECT entity_id, version, parents FROM version
            UNION ALL SELECT entity_id, version, parents FROM entity WHERE version IS NOT NULL)
        SELECT k.version FROM known k, json_each(k.parents) p
        WHERE (SELECT folded_before FROM runtime) < 0 AND NOT EXISTS (SELECT 1 FROM known o
                          WHERE o.entity_id = k.entity_id AND o.version = p.value)
    """,
    "a finished work unit has left nothing but its name": """
        SELECT unit_id FROM work_unit u WHERE state IN ('committed', 'expired') AND (
            EXISTS (SELECT 1 FROM work_unit_entity w WHERE w.unit_id = u.unit_id)
            OR EXISTS (SELECT 1 FROM work_unit_version v WHERE v.unit_id = u.unit_id)
            OR EXISTS (SELECT 1 FROM idempotency i WHERE i.unit_id = u.unit_id))
    """,
    "the baseline of a work unit is a position of its scope": """
        SELECT unit_id FROM work_unit JOIN scope USING (scope_id) WHERE baseline_cursor > frontier
    """,
    "a work unit has a closing entity exactly when it is sealed": """
        SELECT unit_id FROM work_unit u WHERE state IN ('open', 'sealed')
        AND (state = 'sealed') <> EXISTS (
            SELECT 1 FROM work_unit_entity w WHERE w.unit_id = u.unit_id AND w.is_closing)
    """,
    "the heads of a staged entity are known in its work unit": """
        SELECT w.unit_id, h.value FROM work_unit_entity w JOIN work_unit u USING (unit_id),
            json_each(w.heads) h
        WHERE NOT EXISTS (
            SELECT 1 FROM work_unit_version v
            WHERE (v.unit_id, v.type, v.id, v.version) = (w.unit_id, w.type, w.id, h.value)
            UNION ALL
            SELECT 1 FROM entity e JOIN version v USING (entity_id)
            WHERE (e.scope_id, e.type, e.id, v.version) = (u.scope_id, w.type, w.id, h.value)
            AND v.published_cursor <= u.baseline_cursor
            UNION ALL
            SELECT 1 FROM entity e
            WHERE (e.scope_id, e.type, e.id, e.version) = (u.scope_id, w.type, w.id, h.value)
            AND e.published_cursor <= u.baseline_cursor)
    """,
    "staged versions are counted, and the last mutation has the token of its entity": """
        SELECT w.unit_id, w.type, w.id FROM work_unit_entity w
        WHERE (versions, versions - 1, versions) IS NOT (
            SELECT count(*), max(ordinal), count(DISTINCT ordinal) FROM work_unit_version v
            WHERE (v.unit_id, v.type, v.id) = (w.unit_id, w.type, w.id))
        OR token IS NOT (
            SELECT token FROM work_unit_version v
            WHERE (v.unit_id, v.type, v.id) = (w.unit_id, w.type, w.id) AND token IS NOT NULL
            ORDER BY ordinal DESC LIMIT 1)
    """,
    "a staged token stands for no position": """
        SELECT token FROM work_unit_version JOIN change USING (token)
        UNION ALL SELECT token FROM work_unit_version JOIN causal_token USING (token)
    """,
    "a staged version is not published": """
        SELECT v.version FROM work_unit_version v JOIN work_unit u USING (unit_id)
        JOIN entity e ON (e.scope_id, e.type, e.id) = (u.scope_id, v.type, v.id)
        WHERE e.version = v.version OR EXISTS (
            SELECT 1 FROM version p WHERE p.entity_id = e.entity_id AND p.version = v.version)
    """,
    "a record is found by the digest of its identity": """
        SELECT identity FROM idempotency WHERE digest IS NOT digest_of(identity)
    """,
    "no session is ahead of its scope": """
        SELECT key FROM session JOIN scope USING (scope_id)
        WHERE max(read_cursor, write_cursor) > frontier
    """,
    "every number of a scope, an entity or a unit leads somewhere": "PRAGMA foreign_key_check",
}
"""Each statement finds what contradicts the sentence; parents only while all history is there."""


def check_truth(path: Path) -> None:
    """Return if the database at `path`, which nobody may be using, contradicts no invariant.

    Raises:
        AssertionError: It does; the message names the invariant and what breaks it.
    """
    opened = apsw.Connection(str(path))
    # Any: the stub leaves the type of the function unknown.
    cast("Any", opened).create_scalar_function("digest_of", digest_of, 1)
    connection = cast("Connection", opened)
    try:
        found = connection.execute(SOUND).fetchall()
        if found != [("ok",)]:
            raise AssertionError(f"the file is sound: {found}")
        for invariant, statement in VIOLATIONS.items():
            found = connection.execute(statement).fetchall()
            if found:
                raise AssertionError(f"{invariant}: {found}")
    finally:
        connection.close()
