-- {"incarnation": "00000000000000000000000000000000", "generation": 1, "last_cursor": 0}
PRAGMA application_id = 1346595945;
PRAGMA user_version = 1;
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
;
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
;
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
;
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
;
CREATE INDEX version_fate ON version (entity_id, superseded_cursor, published_cursor)
;
CREATE INDEX version_age ON version (superseded_at, entity_id) WHERE superseded_at IS NOT NULL
;
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
;
CREATE INDEX change_scope ON change (scope_id, cursor);
CREATE INDEX change_age ON change (recorded_at, scope_id);
CREATE TABLE causal_token (
    token     TEXT PRIMARY KEY CHECK (token <> ''),
    scope_id  INTEGER NOT NULL REFERENCES scope,
    cursor    INTEGER NOT NULL CHECK (cursor >= 1)
) STRICT, WITHOUT ROWID
;
CREATE TABLE session (
    scope_id      INTEGER NOT NULL REFERENCES scope,
    key           TEXT NOT NULL CHECK (key <> ''),
    read_cursor   INTEGER NOT NULL DEFAULT 0 CHECK (read_cursor >= 0),
    write_cursor  INTEGER NOT NULL DEFAULT 0 CHECK (write_cursor >= 0),
    PRIMARY KEY (scope_id, key)
) STRICT, WITHOUT ROWID
;
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
;
CREATE INDEX work_unit_expiry ON work_unit (expires_at) WHERE state IN ('open', 'sealed')
;
CREATE INDEX work_unit_end ON work_unit (closed_at) WHERE closed_at IS NOT NULL
;
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
;
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
;
CREATE UNIQUE INDEX work_unit_names ON work_unit_version (token) WHERE token IS NOT NULL;
CREATE TRIGGER causal_token_once BEFORE INSERT ON change
WHEN EXISTS (SELECT 1 FROM causal_token WHERE token = NEW.token)
    OR EXISTS (SELECT 1 FROM work_unit_version WHERE token = NEW.token)
BEGIN
    SELECT RAISE(ABORT, 'causal token used before');
END;
CREATE TABLE idempotency (
    record_id   INTEGER PRIMARY KEY,
    digest      BLOB NOT NULL UNIQUE CHECK (length(digest) = 16),
    identity    TEXT NOT NULL CHECK (identity <> ''),
    request     TEXT NOT NULL,
    result      TEXT NOT NULL,
    expires_at  INTEGER NOT NULL,
    unit_id     INTEGER REFERENCES work_unit
) STRICT
;
CREATE INDEX idempotency_expiry ON idempotency (expires_at) WHERE unit_id IS NULL
;
CREATE INDEX idempotency_unit ON idempotency (unit_id) WHERE unit_id IS NOT NULL
;
CREATE VIEW active_head AS
SELECT s.text AS scope, e.type AS type, e.id AS id, e.version AS version, e.value AS value,
       e.recorded_at AS recorded_at
FROM entity e JOIN scope s USING (scope_id)
WHERE e.head_count = 1 AND e.state = 0
UNION ALL
SELECT s.text, e.type, e.id, v.version, v.value, v.recorded_at
FROM version v JOIN entity e USING (entity_id) JOIN scope s USING (scope_id)
WHERE v.superseded_cursor IS NULL AND v.state = 0;
CREATE VIEW artifact AS
SELECT scope, id AS artifact_id, version,
       value ->> '$.media_type' AS media_type, value ->> '$.name' AS name,
       value ->> '$.byte_length' AS byte_length, value ->> '$.digest' AS digest,
       value ->> '$.placement.kind' AS placement_kind, value -> '$.placement' AS placement,
       value -> '$.metadata' AS metadata, recorded_at
FROM active_head WHERE type = 'artifact';
CREATE VIEW knowledge AS
SELECT scope, id AS knowledge_id, version,
       value -> '$.content' AS content, value -> '$.metadata' AS metadata,
       value -> '$.artifact' AS artifact, value -> '$.profile' AS profile, recorded_at
FROM active_head WHERE type = 'knowledge';
CREATE VIEW knowledge_relation AS
SELECT scope, id AS relation_id, version,
       value ->> '$.type' AS relation_type, value -> '$.from' AS from_refs,
       value -> '$.to' AS to_refs, value -> '$.metadata' AS metadata, recorded_at
FROM active_head WHERE type = 'knowledge_relation';
INSERT INTO runtime VALUES (1,1,1,1700000000000,NULL,'00000000000000000000000000000000',X'0000000000000000000000000000000000000000000000000000000000000000',11,-1);
INSERT INTO scope VALUES (1,'{"w":"1"}',10,'token-m3',2);
INSERT INTO scope VALUES (2,'{"w":"植物"}',11,'token-f1',0);
INSERT INTO entity VALUES (1,1,'note','plain',2,1,'p2',2,0,0,'["p1"]',1700000000000,'{"n":2,"text":"A fern, watered"}');
INSERT INTO entity VALUES (2,1,'note','split',5,2,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO entity VALUES (3,1,'note','gone',7,1,'g2',7,0,1,'["g1"]',1700000000000,NULL);
INSERT INTO entity VALUES (4,1,'note','merged',10,1,'m4',10,1,0,'["m3","m2"]',1700000060000,'{"text":"both"}');
INSERT INTO entity VALUES (5,2,'task','far',11,1,'f1',11,0,0,'[]',1700000060000,'{"deep":[1.5,true,null,18446744073709551615],"text":"away"}');
INSERT INTO version VALUES (1,1,'p1',1,0,2,1700000000000,0,'[]',1700000000000,'{"text":"A fern"}');
INSERT INTO version VALUES (2,2,'s1',3,0,4,1700000060000,0,'[]',1700000060000,'{"text":"whole"}');
INSERT INTO version VALUES (3,2,'s2',4,0,NULL,NULL,0,'["s1"]',1700000060000,'{"text":"left 蕨"}');
INSERT INTO version VALUES (4,2,'s3',5,0,NULL,NULL,1,'["s1"]',1700000060000,NULL);
INSERT INTO version VALUES (5,3,'g1',6,0,7,1700000060000,0,'[]',1700000060000,'{"text":"gone"}');
INSERT INTO version VALUES (6,4,'m1',8,0,9,1700000060000,0,'[]',1700000060000,'{"text":"base"}');
INSERT INTO version VALUES (7,4,'m2',9,0,10,1700000060000,0,'["m1"]',1700000060000,'{"text":"one"}');
INSERT INTO version VALUES (8,4,'m3',10,0,10,1700000060000,0,'["m1"]',1700000060000,'{"text":"other"}');
INSERT INTO change VALUES (3,1,2,'created','["s1"]','token-s1','{}',1700000060000);
INSERT INTO change VALUES (4,1,2,'updated','["s2"]','token-s2','{}',1700000060000);
INSERT INTO change VALUES (5,1,2,'conflicted','["s2","s3"]','token-s3','{}',1700000060000);
INSERT INTO change VALUES (6,1,3,'created','["g1"]','token-g1','{}',1700000060000);
INSERT INTO change VALUES (7,1,3,'deleted','["g2"]','token-g2','{}',1700000060000);
INSERT INTO change VALUES (8,1,4,'created','["m1"]','token-m1','{}',1700000060000);
INSERT INTO change VALUES (9,1,4,'updated','["m2"]','token-m2','{}',1700000060000);
INSERT INTO change VALUES (10,1,4,'updated','["m4"]','token-m3','{}',1700000060000);
INSERT INTO change VALUES (11,2,5,'created','["f1"]','token-f1','{}',1700000060000);
INSERT INTO causal_token VALUES ('token-p1',1,1);
INSERT INTO causal_token VALUES ('token-p2',1,2);
INSERT INTO session VALUES (2,'{"fields":{"key":"session"},"scope":{"w":"植物"}}',0,11);
INSERT INTO work_unit VALUES (1,'{"fields":{"key":"open"},"scope":{"w":"1"}}',2,'{"policy":1}','open',1700000000000,9223372036854775807,NULL,11,'token-f1',NULL,NULL);
INSERT INTO work_unit_entity VALUES (1,'note','staged','["u1"]','{}',0,'token-u1','{}','[]',0,1);
INSERT INTO work_unit_version VALUES (1,1,'note','staged','u1',0,0,'[]',1700000060000,'token-u1','{"text":"not yet"}');
INSERT INTO idempotency VALUES (1,X'E64091F7365BE3CE8277227D065109A9','{"fields":{"key":"once"},"scope":{"w":"植物"}}','"request"','"result"',9223372036854775807,NULL);
