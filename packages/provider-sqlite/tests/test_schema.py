"""What the schema itself refuses, the projections over it, and the steps between formats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import FormatVersionError
from patchouli.provider_conformance import ManualClock
from patchouli.provider_conformance.builders import NOW, commit, create, delete, entity, version
from patchouli.provider_sqlite import migrations
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import Connection, Disk, open_writer, use_wal
from patchouli.provider_sqlite.lifecycle import Chance, start_run
from patchouli.provider_sqlite.schema import APPLICATION_ID

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def started(path: Path) -> Connection:
    connection = open_writer(path, cache_kib=2000, disk=Disk())
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("name", bytes(32)), now_unix_ms=NOW)
    return connection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[Connection]:
    connection = started(path)
    yield connection
    connection.close()


ENTITY = """
INSERT INTO entity (entity_id, scope_id, type, id, changed_cursor, head_count, version,
                    published_cursor, ordinal, state, parents, recorded_at, value)
VALUES (1, 1, 't', 'a', 1, {})
"""
VERSION = """
INSERT INTO version (entity_id, version, published_cursor, ordinal, superseded_cursor,
                     superseded_at, state, parents, recorded_at, value)
VALUES ({})
"""
CHANGE = "INSERT INTO change VALUES ({})"
UNIT = """
INSERT INTO work_unit (unit_id, identity, scope_id, policy, state, opened_at, expires_at,
                       baseline_cursor)
VALUES (1, 'one', 1, 'p', 'open', 5, 6, 0)
"""
UNIT_ENTITY = "INSERT INTO work_unit_entity VALUES ({})"
UNIT_VERSION = "INSERT INTO work_unit_version VALUES (NULL, {})"
REFUSED = {
    "a single head without its content": ENTITY.format("1, 'v', NULL, 0, 0, '[]', 1, '1'"),
    "a single head without a version": ENTITY.format("1, NULL, NULL, NULL, NULL, NULL, NULL, NULL"),
    "several heads and one inline": ENTITY.format("2, 'v', 1, 0, 0, '[]', 1, '1'"),
    "content without a head": ENTITY.format("2, NULL, NULL, NULL, NULL, NULL, NULL, '1'"),
    "an active head without a value": ENTITY.format("1, 'v', 1, 0, 0, '[]', 1, NULL"),
    "a tombstone with a value": ENTITY.format("1, 'v', 1, 0, 1, '[]', 1, '1'"),
    "a value that is no JSON": ENTITY.format("1, 'v', 1, 0, 0, '[]', 1, '{'"),
    "a state that is none": ENTITY.format("1, 'v', 1, 0, 2, '[]', 1, NULL"),
    "a head from the future": ENTITY.format("1, 'v', 2, 0, 0, '[]', 1, '1'"),
    "an empty version": ENTITY.format("1, '', 1, 0, 0, '[]', 1, '1'"),
    "a version of no entity": VERSION.format("9, 'v', 1, 0, NULL, NULL, 0, '[]', 1, '1'"),
    "a version that was not published": VERSION.format(
        "1, 'v', NULL, 0, NULL, NULL, 0, '[]', 1, '1'"
    ),
    "a version superseded before it was published": VERSION.format(
        "1, 'v', 2, 0, 1, 1, 0, '[]', 1, '1'"
    ),
    "a version superseded at no time": VERSION.format("1, 'v', 1, 0, 2, NULL, 0, '[]', 1, '1'"),
    "a change without heads": CHANGE.format("1, 1, 1, 'created', '[]', 't', '{}', 1"),
    "a change of an unknown kind": CHANGE.format("1, 1, 1, 'made', '[1]', 't', '{}', 1"),
    "metadata that is no object": CHANGE.format("1, 1, 1, 'created', '[1]', 't', '1', 1"),
    "a change at no cursor": CHANGE.format("0, 1, 1, 'created', '[1]', 't', '{}', 1"),
    "a text in the place of a number": CHANGE.format("1, 1, 1, 'created', '[1]', 't', '{}', 'now'"),
    "a frontier without a token": "UPDATE scope SET frontier = 5",
    "a horizon beyond the frontier": "UPDATE scope SET pruned_through = 9",
    "a scope that is an array": "INSERT INTO scope (text) VALUES ('[]')",
    "a second run": "INSERT INTO runtime VALUES (2, 1, 0, NULL, NULL, 'i', zeroblob(32), 0, -1)",
    "a short secret": "UPDATE runtime SET secret = zeroblob(31)",
    "a unit that expires before it opens": """
        INSERT INTO work_unit (identity, scope_id, policy, state, opened_at, expires_at,
                               baseline_cursor)
        VALUES ('u', 1, 'p', 'open', 5, 5, 0)""",
    "an open unit with an end": """
        INSERT INTO work_unit (identity, scope_id, policy, state, opened_at, expires_at, closed_at,
                               baseline_cursor)
        VALUES ('u', 1, 'p', 'open', 5, 6, 6, 0)""",
    "a sealed unit without a seal": """
        INSERT INTO work_unit (identity, scope_id, policy, state, opened_at, expires_at,
                               baseline_cursor)
        VALUES ('u', 1, 'p', 'sealed', 5, 6, 0)""",
    "a baseline without a token": """
        INSERT INTO work_unit (identity, scope_id, policy, state, opened_at, expires_at,
                               baseline_cursor)
        VALUES ('u', 1, 'p', 'open', 5, 6, 1)""",
    "an entity of no unit": UNIT_ENTITY.format("9, 't', 'a', '[1]', 'p', 0, 't', '{}', '[]', 0, 1"),
    "a staged entity without heads": UNIT_ENTITY.format(
        "1, 't', 'a', '[]', 'p', 0, 't', '{}', '[]', 0, 1"
    ),
    "a staged version of no entity": UNIT_VERSION.format(
        "1, 't', 'z', 'v', 0, 0, '[]', 1, 'token', '1'"
    ),
    "a staged tombstone with a value": UNIT_VERSION.format(
        "1, 't', 'b', 'v', 0, 1, '[]', 1, 'token', '1'"
    ),
    "a record of no unit": "INSERT INTO idempotency VALUES (1, zeroblob(16), 'i', 'q', 'r', 1, 77)",
}


@pytest.mark.parametrize("statement", REFUSED.values(), ids=REFUSED.keys())
def test_the_schema_refuses(connection: Connection, statement: str) -> None:
    connection.execute("INSERT INTO scope (text) VALUES ('{}')")
    connection.execute(UNIT)
    connection.execute(UNIT_ENTITY.format("1, 't', 'b', '[1]', 'p', 0, 't', '{}', '[]', 0, 1"))
    if statement.lstrip().startswith("INSERT INTO version"):
        connection.execute(ENTITY.format("1, 'h', 1, 0, 0, '[]', 1, '1'"))

    with pytest.raises(apsw.ConstraintError):
        connection.execute(statement)


def test_the_schema_takes_what_the_refused_rows_should_have_been(connection: Connection) -> None:
    connection.execute("INSERT INTO scope (text) VALUES ('{}')")
    for statement in (
        ENTITY.format("1, 'h', 1, 0, 0, '[]', 1, '1'"),
        VERSION.format("1, 'v', 1, 0, 2, 1, 0, '[]', 1, '1'"),
        CHANGE.format("1, 1, 1, 'created', '[1]', 't', '{}', 1"),
        "UPDATE scope SET frontier = 5, frontier_token = 't', pruned_through = 5",
        UNIT,
        UNIT_ENTITY.format("1, 't', 'a', '[1]', 'p', 0, 't', '{}', '[]', 0, 1"),
        UNIT_VERSION.format("1, 't', 'a', 'w', 0, 1, '[]', 1, 'u', NULL"),
        UNIT_VERSION.format("1, 't', 'a', 'x', 1, 0, '[\"w\"]', 1, NULL, '1'"),
        "INSERT INTO idempotency VALUES (1, zeroblob(16), 'i', 'q', 'r', 1, 1)",
    ):
        connection.execute(statement)

    assert connection.changes() == 1


@pytest.mark.parametrize("where", ["staged", "kept"])
def test_a_token_that_lies_elsewhere_is_no_token_of_a_change(
    connection: Connection, where: str
) -> None:
    connection.execute("INSERT INTO scope (text) VALUES ('{}')")
    if where == "staged":
        connection.execute(UNIT)
        connection.execute(UNIT_ENTITY.format("1, 't', 'a', '[1]', 'p', 0, 't', '{}', '[]', 0, 1"))
        connection.execute(UNIT_VERSION.format("1, 't', 'a', 'w', 0, 1, '[]', 1, 'u', NULL"))
    else:
        connection.execute("INSERT INTO causal_token VALUES ('u', 1, 1)")

    with pytest.raises(apsw.ConstraintError):
        connection.execute(CHANGE.format("1, 1, 1, 'created', '[1]', 'u', '{}', 1"))


ARTIFACT = {
    "media_type": "text/plain",
    "name": None,
    "byte_length": 5,
    "digest": "sha256:0",
    "placement": {"kind": "managed", "provider": "node", "key": "sha256/0"},
    "metadata": {"core": {}, "extensions": {}},
}
KNOWLEDGE = {
    "content": {"kind": "text", "text": "Ä"},
    "metadata": {"core": {}},
    "artifact": [],
    "profile": {"epistemic": "unknown"},
}
RELATION = {
    "type": "supports",
    "from": [{"type": "knowledge", "id": "k"}],
    "to": [{"type": "knowledge", "id": "l"}],
    "metadata": {"core": {}},
}
SCOPE_TEXT = '{"w":"1"}'


def test_views_show_the_active_heads_of_the_fact_types(connection: Connection) -> None:
    ledger = Ledger(connection, ManualClock())
    gone, twice = entity("gone", kind="knowledge"), entity("twice", kind="knowledge")
    ledger.publish([create(entity("f", kind="artifact"), "f1", ARTIFACT)])
    ledger.publish([create(entity("k", kind="knowledge"), "k1", KNOWLEDGE)])
    ledger.publish([create(entity("r", kind="knowledge_relation"), "r1", RELATION)])
    ledger.publish([create(entity("n", kind="note"), "n1")])
    ledger.publish([create(gone, "g1", KNOWLEDGE)])
    ledger.publish([delete(gone, "g1", "g2")])
    ledger.publish([create(twice, "t1", KNOWLEDGE)])
    ledger.publish([commit(twice, version("t2", KNOWLEDGE), expected=["t1"], heads=["t1", "t2"])])

    artifacts = connection.execute("SELECT * FROM artifact").fetchall()
    knowledge = connection.execute("SELECT * FROM knowledge ORDER BY version").fetchall()
    relations = connection.execute("SELECT * FROM knowledge_relation").fetchall()

    text = {name: compact(value) for name, value in (KNOWLEDGE | RELATION).items()}
    assert artifacts == [
        (
            SCOPE_TEXT,
            "f",
            "f1",
            "text/plain",
            None,
            5,
            "sha256:0",
            "managed",
            compact(ARTIFACT["placement"]),
            compact(ARTIFACT["metadata"]),
            NOW,
        )
    ]
    assert [row[:3] for row in knowledge] == [
        (SCOPE_TEXT, "k", "k1"),
        (SCOPE_TEXT, "twice", "t1"),
        (SCOPE_TEXT, "twice", "t2"),
    ]
    assert knowledge[0][3:] == (
        text["content"],
        text["metadata"],
        text["artifact"],
        text["profile"],
        NOW,
    )
    assert relations == [
        (SCOPE_TEXT, "r", "r1", "supports", text["from"], text["to"], text["metadata"], NOW)
    ]


def compact(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def test_a_start_on_the_present_format_creates_nothing(path: Path) -> None:
    started(path).close()
    connection = open_writer(path, cache_kib=2000, disk=Disk())
    statements: list[str] = []
    traced = connection

    def note(event: dict[str, str]) -> None:
        statements.append(event["sql"])

    assert isinstance(traced, apsw.Connection)
    traced.trace_v2(apsw.SQLITE_TRACE_STMT, note)
    start_run(connection, witness=None, chance=Chance("x", bytes(32)), now_unix_ms=NOW)
    connection.close()

    assert statements
    assert not [sql for sql in statements if sql.lstrip().upper().startswith("CREATE")]


def test_steps_take_an_older_format_forward_one_by_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(path).close()
    connection = open_writer(path, cache_kib=2000, disk=Disk())

    def first(connection: Connection) -> None:
        connection.execute("CREATE TABLE added (x)")

    def second(connection: Connection) -> None:
        connection.execute("INSERT INTO added VALUES (1)")

    monkeypatch.setattr(migrations, "FORMAT_VERSION", 3)
    monkeypatch.setattr(migrations, "STEPS", {1: first, 2: second})
    run = start_run(connection, witness=None, chance=Chance("x", bytes(32)), now_unix_ms=NOW)

    assert run.generation == 2
    assert connection.execute("PRAGMA user_version").get == 3
    assert connection.execute("PRAGMA application_id").get == APPLICATION_ID
    assert connection.execute("SELECT x FROM added").get == 1
    connection.close()


def test_a_step_that_fails_leaves_the_older_format(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(path).close()
    connection = open_writer(path, cache_kib=2000, disk=Disk())

    def half(connection: Connection) -> None:
        connection.execute("CREATE TABLE added (x)")
        connection.execute("INSERT INTO nowhere VALUES (1)")

    monkeypatch.setattr(migrations, "FORMAT_VERSION", 2)
    monkeypatch.setattr(migrations, "STEPS", {1: half})
    with pytest.raises(apsw.SQLError):
        start_run(connection, witness=None, chance=Chance("x", bytes(32)), now_unix_ms=NOW)

    assert connection.execute("PRAGMA user_version").get == 1
    assert connection.execute("SELECT generation FROM runtime").get == 1
    assert connection.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'added'").get == 0
    connection.close()


def test_there_is_a_step_for_every_older_format() -> None:
    assert sorted(migrations.STEPS) == list(range(1, migrations.FORMAT_VERSION))


def test_a_downgrade_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = started(path)
    connection.execute("PRAGMA user_version = 9")

    with pytest.raises(FormatVersionError, match="format 9"):
        migrations.require_ours(connection)

    connection.close()
