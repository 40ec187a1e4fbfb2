"""Databases of every format that was ever released still open, and hold what they held.

`format-<n>.sql` is a database of format `n` as SQL text, with its lock file's words in the first
line. It is written once, by the release that brings the format, and never again: run this file with
PATCHOULI_WRITE_FORMAT=1 to write the one of a new format.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    ChangeKind,
    Committed,
    Consistency,
    Order,
    Published,
    Reading,
    Replayed,
    ScopeText,
    SessionRequirement,
    Staged,
)
from patchouli.provider_conformance.builders import (
    FOREVER,
    NOW,
    SCOPE,
    ManualClock,
    changes,
    commit,
    control,
    create,
    delete,
    entity,
    probe,
    read,
    record,
    retrieve,
    staging,
    tombstone,
    unit,
    update,
    version,
)
from patchouli.provider_sqlite import SqliteProvider
from patchouli.provider_sqlite.changes import prune
from patchouli.provider_sqlite.connection import Disk, open_writer
from patchouli.provider_sqlite.retention import transaction
from patchouli.provider_sqlite.schema import APPLICATION_ID, FORMAT_VERSION
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider import Commit, Version

HERE = Path(__file__).parent
FORMATS = sorted(int(path.stem.partition("-")[2]) for path in HERE.glob("format-*.sql"))
IS_WRITING = os.environ.get("PATCHOULI_WRITE_FORMAT") == "1"
LATER = NOW + 60_000  # recorded times before it are pruned
ELSEWHERE = ScopeText('{"w":"植物"}')

# An entity of each kind: updated, in conflict, deleted, merged, in another scope.
PLAIN, SPLIT, GONE, MERGED = map(entity, ("plain", "split", "gone", "merged"))
FAR = entity("far", scope=ELSEWHERE, kind="task")
STAGED = entity("staged", scope=ELSEWHERE)  # in a work unit that is open
ONCE = control("once", scope=ELSEWHERE)
SESSION = control("session", scope=ELSEWHERE)
UNIT = unit("open", scope=ELSEWHERE, expires_at_unix_ms=INTEGER_MAX)

HEADS = {
    PLAIN: {"p2": (("p1",), {"text": "A fern, watered", "n": 2})},
    SPLIT: {
        "s2": (("s1",), {"text": "left 蕨"}),
        "s3": (("s1",), None),
    },
    GONE: {"g2": (("g1",), None)},
    MERGED: {"m4": (("m3", "m2"), {"text": "both"})},
    FAR: {"f1": ((), {"text": "away", "deep": [1.5, True, None, 18446744073709551615]})},
}
PRUNED_THROUGH = 2  # the changes of `PLAIN` were recorded long ago
CHANGES = [
    (3, "split", "created", ("s1",)),
    (4, "split", "updated", ("s2",)),
    (5, "split", "conflicted", ("s2", "s3")),
    (6, "gone", "created", ("g1",)),
    (7, "gone", "deleted", ("g2",)),
    (8, "merged", "created", ("m1",)),
    (9, "merged", "updated", ("m2",)),
    (10, "merged", "updated", ("m4",)),
]


def history() -> list[Commit]:
    """Return commits with the outcome that the constants above describe."""
    at = {"recorded_at_unix_ms": LATER}
    values: Any = {name: value for heads in HEADS.values() for name, (_, value) in heads.items()}
    return [
        create(PLAIN, "p1", {"text": "A fern"}),
        update(PLAIN, "p1", "p2", values["p2"], event_meta_json='{"who":"é"}'),
        create(SPLIT, "s1", {"text": "whole"}, **at),
        update(SPLIT, "s1", "s2", values["s2"], **at),
        commit(
            SPLIT,
            tombstone("s3", parents=["s1"], **at),
            expected=["s2"],
            heads=["s2", "s3"],
            kind=ChangeKind.CONFLICTED,
        ),
        create(GONE, "g1", {"text": "gone"}, **at),
        delete(GONE, "g1", "g2", **at),
        create(MERGED, "m1", {"text": "base"}, **at),
        update(MERGED, "m1", "m2", {"text": "one"}, **at),
        commit(
            MERGED,
            version("m3", {"text": "other"}, parents=["m1"], **at),
            version("m4", values["m4"], parents=["m3", "m2"], **at),
            expected=["m2"],
            heads=["m4"],
        ),
        create(
            FAR,
            "f1",
            values["f1"],
            idempotency=record(ONCE, expires_at_unix_ms=INTEGER_MAX),
            write_sessions=(SESSION,),
            **at,
        ),
        create(STAGED, "u1", {"text": "not yet"}, staging=staging(UNIT), **at),
    ]


async def made(path: Path) -> None:
    """Make the database of the present format, as a process leaves it that was killed."""
    provider = SqliteProvider(path, clock=ManualClock(), entropy=bytes)
    await provider.initialize(FOREVER)
    for step in history():
        assert isinstance(await provider.commit(step), Committed | Staged)
    await provider.abandon()
    connection = open_writer(path, cache_kib=1000, disk=Disk())
    with transaction(connection):
        pruned, _ = prune(connection, recorded_before_unix_ms=LATER, through=99, limit=99)
    assert pruned == PRUNED_THROUGH
    connection.close()


def dumped(path: Path) -> Iterator[str]:
    """Yield the statements that make the database at `path` anew, its lock file's words first."""
    yield "-- " + path.with_name(path.name + ".lock").read_text("utf-8").strip()
    connection = apsw.Connection(str(path))
    for pragma in ("application_id", "user_version"):
        yield f"PRAGMA {pragma} = {connection.pragma(pragma)};"
    schema = connection.execute("SELECT sql FROM sqlite_schema WHERE sql <> '' ORDER BY rowid")
    yield from (f"{sql};" for (sql,) in schema)
    tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid"
    for (table,) in connection.execute(tables).fetchall():
        rows = connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - a name of ours
        for row in rows:
            values = ",".join(map(apsw.format_sql_value, row))
            yield f"INSERT INTO {table} VALUES ({values});"  # noqa: S608 - quoted by SQLite's rules
    connection.close()


def restored(number: int, path: Path) -> Path:
    """Make the database of format `number` and its lock file at `path`."""
    text = (HERE / f"format-{number}.sql").read_text("utf-8")
    path.touch(mode=0o600)
    connection = apsw.Connection(str(path))
    connection.execute(text)
    assert connection.pragma("user_version") == number
    connection.close()
    lock = path.with_name(path.name + ".lock")
    lock.touch(mode=0o600)
    lock.write_text(text.partition("\n")[0].removeprefix("-- "), "utf-8")
    return path


def described(heads: tuple[Version, ...]) -> dict[str, Any]:
    return {
        head.id: (head.parents, None if head.value_json is None else json.loads(head.value_json))
        for head in heads
    }


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.skipif(not IS_WRITING, reason="a format is written once, when it is new")
async def test_the_present_format_is_written(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await made(path)
    check_truth(path)

    text = "\n".join(dumped(path)) + "\n"

    with (HERE / f"format-{FORMAT_VERSION}.sql").open("x", encoding="utf-8") as file:
        file.write(text)


def test_a_database_of_every_format_is_kept() -> None:
    assert list(range(1, FORMAT_VERSION + 1)) == FORMATS


@pytest.mark.parametrize("number", FORMATS)
async def test_a_database_of_an_older_release_holds_what_it_held(
    number: int, tmp_path: Path
) -> None:
    path = restored(number, tmp_path / "db")
    provider = SqliteProvider(path, clock=ManualClock(LATER))

    run = await provider.initialize(FOREVER)

    assert (run.generation, run.recovered_after_unclean_shutdown) == (2, True)
    assert (run.incarnation, run.secret) == (bytes(16).hex(), bytes(32))
    for key, heads in HEADS.items():
        assert described((await provider.read(read(key))).heads) == heads
    page = await provider.read_changes(changes(PRUNED_THROUGH))
    assert (page.pruned_through, page.frontier) == (PRUNED_THROUGH, CHANGES[-1][0])
    assert [(c.cursor, c.id, c.kind, c.head_versions) for c in page.changes] == CHANGES
    (found,) = (await provider.retrieve(retrieve(text="蕨"))).hits
    assert found.key == SPLIT
    listed = await provider.retrieve(retrieve(order=Order.ID_ASCENDING))
    assert [hit.key for hit in listed.hits] == [MERGED, PLAIN, SPLIT]
    await provider.shutdown()
    check_truth(path)
    connection = apsw.Connection(str(path))
    assert connection.pragma("application_id") == APPLICATION_ID
    assert connection.pragma("user_version") == FORMAT_VERSION
    connection.close()


@pytest.mark.parametrize("number", FORMATS)
async def test_a_database_of_an_older_release_keeps_its_control_data(
    number: int, tmp_path: Path
) -> None:
    provider = SqliteProvider(restored(number, tmp_path / "db"), clock=ManualClock(LATER))
    await provider.initialize(FOREVER)
    requirement = SessionRequirement(key=SESSION, monotonic_reads=True, read_your_writes=True)
    everything = Consistency(minimum_tokens=(CausalToken("token-f1"),), sessions=(requirement,))

    outside = await provider.read(read(FAR, consistency=everything, idempotency=probe(ONCE)))
    pruned = await provider.read(
        read(PLAIN, consistency=Consistency(minimum_tokens=(CausalToken("token-p1"),)))
    )
    inside = await provider.read(read(STAGED, unit=UNIT))
    closed = await provider.commit(
        update(STAGED, "u1", "u2", staging=staging(UNIT, close=True), recorded_at_unix_ms=LATER)
    )
    await provider.shutdown()

    assert isinstance(outside, Reading)
    assert outside.record == Replayed(result_json='"result"')
    assert isinstance(pruned, Reading)
    assert isinstance(inside, Reading)
    assert [head.id for head in inside.heads] == ["u1"]
    assert isinstance(closed, Published)
    check_truth(tmp_path / "db")


@pytest.mark.parametrize("number", FORMATS)
async def test_a_database_of_an_older_release_gets_the_tables_of_a_new_one(
    number: int, tmp_path: Path
) -> None:
    schemas: list[list[tuple[str, str]]] = []
    for path in (restored(number, tmp_path / "old"), tmp_path / "new"):
        provider = SqliteProvider(path, clock=ManualClock(LATER))
        await provider.initialize(FOREVER)
        await provider.shutdown()
        connection = apsw.Connection(str(path))
        schemas.append(
            connection.execute("SELECT name, sql FROM sqlite_schema ORDER BY name").fetchall()
        )
        connection.close()

    assert schemas[0] == schemas[1]


@pytest.mark.parametrize("number", FORMATS)
async def test_a_database_of_an_older_release_goes_on(number: int, tmp_path: Path) -> None:
    path = restored(number, tmp_path / "db")
    provider = SqliteProvider(path, clock=ManualClock(LATER))
    await provider.initialize(FOREVER)

    resolved = commit(
        SPLIT,
        version("s4", {"text": "one again"}, parents=["s2", "s3"]),
        expected=["s2", "s3"],
        kind=ChangeKind.RESOLVED,
    )
    outcomes = [
        await provider.commit(update(PLAIN, "p2", "p3")),
        await provider.commit(resolved),
        await provider.commit(create(entity("new"), "n1")),
    ]
    reading = await provider.read(read(PLAIN, "p1", "p2"))
    frontier = (await provider.read_changes(changes(scope=SCOPE))).frontier
    await provider.shutdown()

    assert outcomes == [Committed(cursor=cursor) for cursor in (12, 13, 14)]
    assert [base.id for base in reading.bases] == ["p1", "p2"]
    assert frontier == 14
    check_truth(path)
