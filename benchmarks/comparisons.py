"""Others doing the same work in the same run: raw SQLite, LangGraph's store, PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import apsw
from langgraph.store.sqlite import SqliteStore

from benchmarks import postgres
from benchmarks.load import Load, run
from benchmarks.scenarios import CONNECTIONS
from benchmarks.state import Run
from benchmarks.values import SCOPE_TEXT, value_of, value_text


def raw_sqlite(run_: Run) -> None:
    """An entity row and a change row by raw apsw, durable, one and 32 operations a commit."""
    for batch in (1, 32):
        connection = apsw.Connection(str(run_.folder / f"raw-{batch}.db"))
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute(
            "CREATE TABLE entity (entity_id INTEGER PRIMARY KEY, scope_id INT, type TEXT, id TEXT,"
            " version TEXT, value TEXT, UNIQUE (scope_id, type, id));"
            "CREATE TABLE change (cursor INTEGER PRIMARY KEY, scope_id INT, entity_id INT,"
            " token TEXT UNIQUE, kind TEXT)"
        )
        count = 2_000 * batch if batch == 1 else 20_000
        rows = [(f"k-{n}", f"{n:032x}", value_text(n)) for n in range(count)]
        started = time.perf_counter()
        for start in range(0, count, batch):
            with connection:
                for id_, version, value in rows[start : start + batch]:
                    connection.execute(
                        "INSERT INTO entity VALUES (NULL, 1, 'knowledge', ?, ?, ?)",
                        (id_, version, value),
                    )
                    connection.execute(
                        "INSERT INTO change VALUES (NULL, 1, ?, ?, 'created')",
                        (connection.last_insert_rowid(), version),
                    )
        rate = count / (time.perf_counter() - started)
        run_.keep("raw SQLite in process", f"creates, {batch} a commit", rate, "/s")
        connection.close()


def langgraph(run_: Run) -> None:
    """LangGraph's SQLite store, durable puts of the same values."""
    count = 3_000
    values = [value_of(number) for number in range(count)]
    with SqliteStore.from_conn_string(str(run_.folder / "langgraph.db")) as store:
        store.setup()
        store.conn.execute("PRAGMA synchronous=FULL")
        started = time.perf_counter()
        for number, value in enumerate(values):
            store.put(("atlas", "mira"), f"k-{number}", value, index=False)
        run_.keep("LangGraph", "durable puts", count / (time.perf_counter() - started), "/s")
        started = time.perf_counter()
        for number in range(count):
            store.get(("atlas", "mira"), f"k-{number}")
        run_.keep("LangGraph", "gets", count / (time.perf_counter() - started), "/s")


def postgresql(run_: Run) -> None:
    """PostgreSQL: creates to each size, text and filtered pages there, then creates and reads."""
    with postgres.server(_folder(run_)) as (socket, user):
        wire = postgres.PostgresWire(user)
        done = 0
        for size in run_.sizes:
            numbers = range(done, size)
            load = Load(socket, wire, 64, lambda k, r=numbers: map(_create, r[k::64]))
            run_.keep_load("PostgreSQL", f"creates to {size}", run(load))
            postgres.statement(socket, "VACUUM ANALYZE")
            pages = {
                "text": lambda n: postgres.execute("text", SCOPE_TEXT, f"%ref{n:07d}%"),
                "filter": lambda n: postgres.execute("filter", SCOPE_TEXT, f"m-{n}"),
            }
            for name, page in pages.items():
                sample = range(7, size, max(1, size // 40))
                figures = run(Load(socket, wire, 1, lambda _, p=page, s=sample: map(p, s)))
                run_.keep("PostgreSQL", f"{name} page at {size}, median", figures.median_ms, "ms")
            done = size
        for connections in CONNECTIONS:
            count = 2_000 if connections == 1 else 20_000
            creates = Load(
                socket,
                wire,
                connections,
                lambda k, c=connections, n=count: (_create(i, f"s{c}") for i in range(k, n, c)),
            )
            run_.keep_load("PostgreSQL", f"creates, {connections} connections", run(creates))
            reads = Load(
                socket,
                wire,
                connections,
                lambda k, c=connections, n=count: (
                    postgres.execute("read", SCOPE_TEXT, f"k-{i * 7919 % done}")
                    for i in range(k, 3 * n, c)
                ),
            )
            run_.keep_load("PostgreSQL", f"reads, {connections} connections", run(reads))


def _create(number: int, prefix: str = "k") -> bytes:
    return postgres.execute("create", SCOPE_TEXT, f"{prefix}-{number}", value_text(number))


def _folder(run_: Run) -> Path:
    folder = run_.folder / "pg"
    folder.mkdir()
    run_.folder.chmod(0o755)
    return folder


ALL: dict[str, Callable[[Run], None]] = {
    "raw_sqlite": raw_sqlite,
    "langgraph": langgraph,
    "postgresql": postgresql,
}
