"""The tables of the truth database, and what SQLite itself refuses to store in them.

A head is stored once. The single head of an entity lies inline in its `entity` row, so that a read
descends one B-tree and a create writes one row; the heads of a conflicted entity and superseded
versions are rows of `version`. A version is a head at cursor `c` iff `published_cursor <= c` and
`superseded_cursor` is NULL or greater, so the head set at an old cursor needs no table of its own.

What an open work unit holds lies apart, in tables that nothing else reads (`units.py`).

Names of scopes, types, ids and versions are compared by their UTF-8 bytes (SQLite's BINARY order),
which is the order of code points. `name <> ''` and not `length(name) > 0`: a NUL ends what
`length` counts.
"""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x50436C69  # "PCli", ours alone; tells our database from any other
FORMAT_VERSION: Final = 1  # PRAGMA user_version; every step up is a function in migrations.py

RUNTIME: Final = """
CREATE TABLE runtime (
    singleton      INTEGER PRIMARY KEY CHECK (singleton = 1),
    generation     INTEGER NOT NULL CHECK (generation >= 0),
    running        INTEGER NOT NULL CHECK (running IN (0, 1)),
    started_at     INTEGER,
    stopped_at     INTEGER,
    incarnation    TEXT NOT NULL CHECK (incarnation <> ''),
    secret         BLOB NOT NULL CHECK (length(secret) = 32),
    last_cursor    INTEGER NOT NULL CHECK (last_cursor >= 0),
    folded_before  INTEGER NOT NULL DEFAULT -1
) STRICT
"""

# `last_cursor` is brought up to date when changes are pruned: no cursor up to it is given out again
# even if the change that had it is gone. `folded_before` is the latest horizon of history behind
# which a version was removed; where it is -1, every parent of a version is still there.

SCOPE: Final = """
CREATE TABLE scope (
    scope_id        INTEGER PRIMARY KEY,
    text            TEXT NOT NULL UNIQUE
                    CHECK (CASE WHEN json_valid(text) THEN json_type(text) = 'object' ELSE 0 END),
    frontier        INTEGER NOT NULL DEFAULT 0 CHECK (frontier >= 0),
    frontier_token  TEXT,
    pruned_through  INTEGER NOT NULL DEFAULT 0,
    CHECK ((frontier = 0) = (frontier_token IS NULL)),
    CHECK (pruned_through BETWEEN 0 AND frontier)
) STRICT
"""

# `value` stands last: SQLite reads the columns before it without touching its overflow pages.
ENTITY: Final = """
CREATE TABLE entity (
    entity_id         INTEGER PRIMARY KEY,
    scope_id          INTEGER NOT NULL,
    type              TEXT NOT NULL CHECK (type <> ''),
    id                TEXT NOT NULL CHECK (id <> ''),
    changed_cursor    INTEGER NOT NULL CHECK (changed_cursor >= 0),
    head_count        INTEGER NOT NULL CHECK (head_count >= 1),
    version           TEXT CHECK (version <> ''),
    published_cursor  INTEGER CHECK (published_cursor BETWEEN 1 AND changed_cursor),
    ordinal           INTEGER,
    state             INTEGER CHECK (state IN (0, 1)),
    parents           TEXT,
    recorded_at       INTEGER CHECK (recorded_at >= 0),
    value             TEXT CHECK (json_valid(value)),
    UNIQUE (scope_id, type, id),
    CHECK ((head_count = 1) = (version IS NOT NULL)),
    CHECK (CASE WHEN version IS NULL
        THEN coalesce(published_cursor, ordinal, state, parents, recorded_at, value) IS NULL
        ELSE published_cursor IS NOT NULL AND ordinal IS NOT NULL AND parents IS NOT NULL
            AND recorded_at IS NOT NULL AND state IS NOT NULL AND (state = 0) = (value IS NOT NULL)
        END)
) STRICT
"""

VERSION: Final = """
CREATE TABLE version (
    version_row        INTEGER PRIMARY KEY,
    entity_id          INTEGER NOT NULL REFERENCES entity,
    version            TEXT NOT NULL CHECK (version <> ''),
    published_cursor   INTEGER NOT NULL CHECK (published_cursor >= 1),
    ordinal            INTEGER NOT NULL CHECK (ordinal >= 0),
    superseded_cursor  INTEGER CHECK (superseded_cursor >= published_cursor),
    superseded_at      INTEGER CHECK (superseded_at >= 0),
    state              INTEGER NOT NULL CHECK (state IN (0, 1)),
    parents            TEXT NOT NULL,
    recorded_at        INTEGER NOT NULL CHECK (recorded_at >= 0),
    value              TEXT CHECK (json_valid(value)),
    UNIQUE (entity_id, version),
    CHECK ((superseded_cursor IS NULL) = (superseded_at IS NULL)),
    CHECK ((state = 0) = (value IS NOT NULL))
) STRICT
"""

# The rows of an entity that are current, and those that were at some cursor, however many it had.
# With it alone it is decided which rows these are.
VERSION_FATE: Final = """
CREATE INDEX version_fate ON version (entity_id, superseded_cursor, published_cursor)
"""
# For compaction: what is past the horizon, the oldest first.
VERSION_AGE: Final = """
CREATE INDEX version_age ON version (superseded_at, entity_id) WHERE superseded_at IS NOT NULL
"""

# `hidden` is the publication of an entity that its work unit created and deleted: it has a cursor
# and names it with its token, and nobody is shown it as a change.
CHANGE: Final = """
CREATE TABLE change (
    cursor       INTEGER PRIMARY KEY CHECK (cursor >= 1),
    scope_id     INTEGER NOT NULL,
    entity_id    INTEGER NOT NULL,
    kind         TEXT NOT NULL
                 CHECK (kind IN ('created', 'updated', 'deleted', 'conflicted', 'resolved',
                                 'hidden')),
    heads        TEXT NOT NULL CHECK (heads <> '[]'),
    token        TEXT NOT NULL UNIQUE CHECK (token <> ''),
    event_meta   TEXT NOT NULL
                 CHECK (CASE WHEN json_valid(event_meta) THEN json_type(event_meta) = 'object'
                        ELSE 0 END),
    recorded_at  INTEGER NOT NULL CHECK (recorded_at >= 0)
) STRICT
"""
CHANGE_SCOPE: Final = "CREATE INDEX change_scope ON change (scope_id, cursor)"

# For the pruning step and for the horizon of a page: both look only at changes past their age.
CHANGE_AGE: Final = "CREATE INDEX change_age ON change (recorded_at, scope_id)"

# Tokens of pruned changes, and the further names of a position at which a work unit was published.
# A token is in `change`, here, or staged in a unit, never in two of them.
PRUNED_POSITION: Final = """
CREATE TABLE causal_token (
    token     TEXT PRIMARY KEY CHECK (token <> ''),
    scope_id  INTEGER NOT NULL REFERENCES scope,
    cursor    INTEGER NOT NULL CHECK (cursor >= 1)
) STRICT, WITHOUT ROWID
"""
PRUNED_POSITION_ONCE: Final = """
CREATE TRIGGER causal_token_once BEFORE INSERT ON change
WHEN EXISTS (SELECT 1 FROM causal_token WHERE token = NEW.token)
    OR EXISTS (SELECT 1 FROM work_unit_version WHERE token = NEW.token)
BEGIN
    SELECT RAISE(ABORT, 'causal token used before');
END
"""

SESSION: Final = """
CREATE TABLE session (
    scope_id      INTEGER NOT NULL REFERENCES scope,
    key           TEXT NOT NULL CHECK (key <> ''),
    read_cursor   INTEGER NOT NULL DEFAULT 0 CHECK (read_cursor >= 0),
    write_cursor  INTEGER NOT NULL DEFAULT 0 CHECK (write_cursor >= 0),
    PRIMARY KEY (scope_id, key)
) STRICT, WITHOUT ROWID
"""

WORK_UNIT: Final = """
CREATE TABLE work_unit (
    unit_id          INTEGER PRIMARY KEY,
    identity         TEXT NOT NULL UNIQUE CHECK (identity <> ''),
    scope_id         INTEGER NOT NULL REFERENCES scope,
    policy           TEXT NOT NULL,
    state            TEXT NOT NULL CHECK (state IN ('open', 'sealed', 'committed', 'expired')),
    opened_at        INTEGER NOT NULL CHECK (opened_at >= 0),
    expires_at       INTEGER NOT NULL,
    closed_at        INTEGER,
    baseline_cursor  INTEGER NOT NULL CHECK (baseline_cursor >= 0),
    baseline_token   TEXT,
    sealed_by        TEXT,
    accepted         TEXT,
    CHECK (expires_at > opened_at),
    CHECK ((baseline_cursor = 0) = (baseline_token IS NULL)),
    CHECK ((closed_at IS NOT NULL) = (state IN ('committed', 'expired'))),
    CHECK ((sealed_by IS NOT NULL) = (state = 'sealed')),
    CHECK ((sealed_by IS NULL) = (accepted IS NULL))
) STRICT
"""
WORK_UNIT_EXPIRY: Final = """
CREATE INDEX work_unit_expiry ON work_unit (expires_at) WHERE state IN ('open', 'sealed')
"""
WORK_UNIT_END: Final = """
CREATE INDEX work_unit_end ON work_unit (closed_at) WHERE closed_at IS NOT NULL
"""

# An entity that a unit mutated, with what its last mutation left: the heads, and what its change
# will be published with. The baseline is derived from `entity` and `version`.
WORK_UNIT_ENTITY: Final = """
CREATE TABLE work_unit_entity (
    unit_id          INTEGER NOT NULL REFERENCES work_unit,
    type             TEXT NOT NULL CHECK (type <> ''),
    id               TEXT NOT NULL CHECK (id <> ''),
    heads            TEXT NOT NULL CHECK (heads <> '[]'),
    conflict_policy  TEXT NOT NULL,
    holds_policy     INTEGER NOT NULL CHECK (holds_policy IN (0, 1)),
    token            TEXT NOT NULL CHECK (token <> ''),
    event_meta       TEXT NOT NULL
                     CHECK (CASE WHEN json_valid(event_meta) THEN json_type(event_meta) = 'object'
                            ELSE 0 END),
    sessions         TEXT NOT NULL,
    is_closing       INTEGER NOT NULL CHECK (is_closing IN (0, 1)),
    versions         INTEGER NOT NULL CHECK (versions >= 1),
    PRIMARY KEY (unit_id, type, id)
) STRICT, WITHOUT ROWID
"""

# A staged version, the `ordinal`-th of its entity in the unit. The first version of a mutation has
# the token of the mutation. Rows are appended: sorted into a tree, long ones would split its pages.
WORK_UNIT_VERSION: Final = """
CREATE TABLE work_unit_version (
    version_row  INTEGER PRIMARY KEY,
    unit_id      INTEGER NOT NULL,
    type         TEXT NOT NULL,
    id           TEXT NOT NULL,
    version      TEXT NOT NULL CHECK (version <> ''),
    ordinal      INTEGER NOT NULL CHECK (ordinal >= 0),
    state        INTEGER NOT NULL CHECK (state IN (0, 1)),
    parents      TEXT NOT NULL,
    recorded_at  INTEGER NOT NULL CHECK (recorded_at >= 0),
    token        TEXT CHECK (token <> ''),
    value        TEXT CHECK (json_valid(value)),
    UNIQUE (unit_id, type, id, version),
    FOREIGN KEY (unit_id, type, id) REFERENCES work_unit_entity,
    CHECK ((state = 0) = (value IS NOT NULL))
) STRICT
"""
WORK_UNIT_NAMES: Final = (
    "CREATE UNIQUE INDEX work_unit_names ON work_unit_version (token) WHERE token IS NOT NULL"
)

# `unit_id` marks a record staged in a work unit; an identity is in one place only. It is found by a
# digest of it, because clients choose identities at random: an index over the texts themselves
# would dirty a page for each record and outgrow the cache.
IDEMPOTENCY: Final = """
CREATE TABLE idempotency (
    record_id   INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL UNIQUE CHECK (length(digest) = 16),
    identity    TEXT NOT NULL CHECK (identity <> ''),
    request     TEXT NOT NULL,
    result      TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    unit_id     INTEGER REFERENCES work_unit
) STRICT
"""
# For the purge; staged records go with their unit.
IDEMPOTENCY_EXPIRY: Final = """
CREATE INDEX idempotency_expiry ON idempotency (expires_at) WHERE unit_id IS NULL
"""
IDEMPOTENCY_UNIT: Final = """
CREATE INDEX idempotency_unit ON idempotency (unit_id) WHERE unit_id IS NOT NULL
"""

ACTIVE_HEAD: Final = """
CREATE VIEW active_head AS
SELECT s.text AS scope, e.type AS type, e.id AS id, e.version AS version, e.value AS value,
       e.recorded_at AS recorded_at
FROM entity e JOIN scope s USING (scope_id)
WHERE e.head_count = 1 AND e.state = 0
UNION ALL
SELECT s.text, e.type, e.id, v.version, v.value, v.recorded_at
FROM version v JOIN entity e USING (entity_id) JOIN scope s USING (scope_id)
WHERE v.superseded_cursor IS NULL AND v.state = 0
"""
ARTIFACT_VIEW: Final = """
CREATE VIEW artifact AS
SELECT scope, id AS artifact_id, version,
       value ->> '$.media_type' AS media_type, value ->> '$.name' AS name,
       value ->> '$.byte_length' AS byte_length, value ->> '$.digest' AS digest,
       value ->> '$.placement.kind' AS placement_kind, value -> '$.placement' AS placement,
       value -> '$.metadata' AS metadata, recorded_at
FROM active_head WHERE type = 'artifact'
"""
KNOWLEDGE_VIEW: Final = """
CREATE VIEW knowledge AS
SELECT scope, id AS knowledge_id, version,
       value -> '$.content' AS content, value -> '$.metadata' AS metadata,
       value -> '$.artifact' AS artifact, value -> '$.profile' AS profile, recorded_at
FROM active_head WHERE type = 'knowledge'
"""
KNOWLEDGE_RELATION_VIEW: Final = """
CREATE VIEW knowledge_relation AS
SELECT scope, id AS relation_id, version,
       value ->> '$.type' AS relation_type, value -> '$.from' AS from_refs,
       value -> '$.to' AS to_refs, value -> '$.metadata' AS metadata, recorded_at
FROM active_head WHERE type = 'knowledge_relation'
"""

STATEMENTS: Final = (
    RUNTIME,
    SCOPE,
    ENTITY,
    VERSION,
    VERSION_FATE,
    VERSION_AGE,
    CHANGE,
    CHANGE_SCOPE,
    CHANGE_AGE,
    PRUNED_POSITION,
    SESSION,
    WORK_UNIT,
    WORK_UNIT_EXPIRY,
    WORK_UNIT_END,
    WORK_UNIT_ENTITY,
    WORK_UNIT_VERSION,
    WORK_UNIT_NAMES,
    PRUNED_POSITION_ONCE,
    IDEMPOTENCY,
    IDEMPOTENCY_EXPIRY,
    IDEMPOTENCY_UNIT,
    ACTIVE_HEAD,
    ARTIFACT_VIEW,
    KNOWLEDGE_VIEW,
    KNOWLEDGE_RELATION_VIEW,
)
