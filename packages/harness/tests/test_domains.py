"""Durable records: seen only when they are on the disk, valid or not opened."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import (
    CancelSource,
    DomainChanged,
    DomainError,
    DomainSpec,
    Json,
    Kernel,
    SingletonSpec,
)
from patchouli.harness.reference import SqliteDomains

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


def is_text(value: Json) -> None:
    if not isinstance(value, str):
        raise TypeError("not a text")


def anything(_: Json) -> None: ...


SPEC = DomainSpec(
    name="notes",
    version=1,
    tables={"texts": is_text, "things": anything},
    singleton=SingletonSpec(initial={"count": 0}, validate=anything),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "domains.db"


@pytest.fixture
async def store(kernel: Kernel, path: Path) -> AsyncIterator[SqliteDomains]:
    store = SqliteDomains(kernel, path)
    yield store
    await store.aclose()


def stored(path: Path) -> list[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    rows = connection.execute('SELECT "table", key, value FROM record ORDER BY 1, 2').fetchall()
    connection.close()
    return rows


def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a locked database fail at once."""
    monkeypatch.setattr(
        "patchouli.harness.reference.domains.sqlite3.connect",
        partial(sqlite3.connect, timeout=0),  # else SQLite waits for the lock, 5 s
    )


def code_of(caught: pytest.ExceptionInfo[DomainError]) -> str:
    return caught.value.code


async def test_records_are_there_again_after_reopening(
    kernel: Kernel, store: SqliteDomains, path: Path
) -> None:
    domain = await store.open(SPEC)
    await domain.table("texts").put("b", "two é")
    await domain.table("texts").put("a", "one")
    await domain.table("things").put("gone", [1])
    await domain.singleton().put({"count": 1})
    deleted = [await domain.table("things").delete("gone") for _ in range(2)]
    await store.aclose()

    again = SqliteDomains(kernel, path)
    domain = await again.open(SPEC)

    assert deleted == [True, False]
    assert dict(domain.table("texts").items()) == {"a": "one", "b": "two é"}
    assert (len(domain.table("texts")), len(domain.table("things"))) == (2, 0)
    assert domain.table("texts").get("c") is None
    assert domain.singleton().get() == {"count": 1}
    await again.aclose()


async def test_a_write_is_on_the_disk_before_it_is_seen_and_told(
    kernel: Kernel, store: SqliteDomains, path: Path
) -> None:
    told: list[tuple[DomainChanged, Json, list[tuple[str, str, str]]]] = []
    domain = await store.open(SPEC)
    table = domain.table("texts")
    kernel.root.on(
        "domain/changed", lambda change: told.append((change, table.get("a"), stored(path)))
    )

    writing = asyncio.create_task(table.put("a", "one"))
    await asyncio.sleep(0)
    seen_early = table.get("a")
    await writing
    await table.delete("a")

    put = DomainChanged(domain="notes", table="texts", key="a", operation="put", value="one")
    deleted = DomainChanged(domain="notes", table="texts", key="a", operation="delete")
    assert seen_early is None
    assert told == [(put, "one", [("texts", "a", '"one"')]), (deleted, None, [])]


async def test_dropping_what_is_not_there_writes_and_tells_nothing(
    kernel: Kernel, store: SqliteDomains, path: Path
) -> None:
    told: list[tuple[str, str]] = []
    kernel.root.on("domain/changed", lambda change: told.append((change.operation, change.key)))
    table = (await store.open(SPEC)).table("things")
    other = sqlite3.connect(path, isolation_level=None)
    version = other.execute("PRAGMA data_version").fetchone()

    found = await table.delete("k")
    same = other.execute("PRAGMA data_version").fetchone()
    # What counts is what is there when its turn to be written comes.
    both = await asyncio.gather(table.put("k", 1), table.delete("k"), table.delete("k"))
    other.close()

    assert (found, same) == (False, version)
    assert both == [None, True, False]
    assert told == [("put", "k"), ("delete", "k")]


async def test_a_signal_ends_the_wait_and_not_what_was_asked_for(
    store: SqliteDomains, path: Path
) -> None:
    source, reason = CancelSource(), ValueError("enough")
    domain = await store.open(SPEC, signal=source.signal)
    table = domain.table("things")
    await table.put("gone", 1, signal=source.signal)
    waits = [
        asyncio.create_task(table.put("k", 1, signal=source.signal)),
        asyncio.create_task(table.delete("gone", signal=source.signal)),
        asyncio.create_task(domain.singleton().put(2, signal=source.signal)),
    ]
    await asyncio.sleep(0)
    waits.append(asyncio.create_task(domain.close(signal=source.signal)))
    await asyncio.sleep(0)

    source.cancel(reason)

    assert await asyncio.gather(*waits, return_exceptions=True) == [reason] * 4
    await domain.close()
    assert stored(path) == [("", "", "2"), ("things", "k", "1")]


async def test_nothing_is_asked_for_with_a_signal_that_has_fired(
    store: SqliteDomains, path: Path
) -> None:
    source = CancelSource()
    source.cancel(ValueError("enough"))
    domain = await store.open(SPEC)
    table = domain.table("things")

    for late in (
        table.put("k", 1, signal=source.signal),
        table.delete("k", signal=source.signal),
        domain.singleton().put(2, signal=source.signal),
        store.open(replace(SPEC, name="more"), signal=source.signal),
    ):
        with pytest.raises(ValueError, match="enough"):
            await late

    await domain.close(signal=source.signal)  # which has nothing to wait for
    assert stored(path) == []
    with pytest.raises(DomainError, match="closed"):
        await table.put("k", 1)
    await store.open(replace(SPEC, name="more"))


async def test_a_signal_that_fires_while_a_domain_opens_leaves_it_closed(
    store: SqliteDomains,
) -> None:
    source = CancelSource()
    opening = asyncio.create_task(store.open(SPEC, signal=source.signal))
    await asyncio.sleep(0)
    source.cancel(ValueError("enough"))

    with pytest.raises(ValueError, match="enough"):
        await opening
    await store.open(SPEC)


async def test_a_store_that_is_closed_while_it_connects_leaves_the_loop_free_and_no_connection(
    store: SqliteDomains, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, loop = sqlite3.connect, asyncio.get_running_loop()
    connecting, gate = asyncio.Event(), threading.Event()
    let_go: list[bool] = []

    def connect_late(*args: Any, **given: Any) -> sqlite3.Connection:
        loop.call_soon_threadsafe(connecting.set)
        let_go.append(gate.wait(5))  # in vain if the loop waits for this thread
        return connect(*args, **given)

    monkeypatch.setattr("patchouli.harness.reference.domains.sqlite3.connect", connect_late)
    source = CancelSource()
    opening = asyncio.create_task(store.open(SPEC, signal=source.signal))
    await connecting.wait()
    source.cancel(ValueError("enough"))
    with pytest.raises(ValueError, match="enough"):
        await opening

    closing = [asyncio.create_task(store.aclose()) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    early = any(one.done() for one in closing)
    gate.set()
    await asyncio.gather(*closing)

    assert not early
    assert let_go == [True]
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no log of a connection


async def test_a_closed_store_opens_nothing(store: SqliteDomains, path: Path) -> None:
    opening = asyncio.create_task(store.open(SPEC))
    await store.aclose()

    with pytest.raises(DomainError) as caught:
        await opening
    await store.aclose()

    assert code_of(caught) == "closed"
    assert [*path.parent.iterdir()] == []


async def test_a_write_that_fails_when_nobody_waits_is_logged(
    store: SqliteDomains,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    no_patience(monkeypatch)
    source = CancelSource()
    domain = await store.open(SPEC)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    writing = asyncio.create_task(domain.table("things").put("k", 1, signal=source.signal))
    await asyncio.sleep(0)
    source.cancel(ValueError("enough"))
    with pytest.raises(ValueError, match="enough"):
        await writing
    await domain.close()
    other.close()

    assert [r.message for r in logged.records if r.levelname == "ERROR"] == [
        "write notes failed after it was abandoned"
    ]


async def test_writes_are_made_in_the_order_in_which_they_were_asked_for(
    kernel: Kernel, store: SqliteDomains
) -> None:
    told: list[Json] = []
    kernel.root.on("domain/changed", lambda change: told.append(change.value))
    domain = await store.open(SPEC)

    await asyncio.gather(*(domain.table("things").put("k", number) for number in range(20)))

    assert told == list(range(20))
    assert domain.table("things").get("k") == 19


async def test_records_are_copies(store: SqliteDomains) -> None:
    domain = await store.open(SPEC)
    value: Any = {"list": [1]}
    await domain.table("things").put("k", value)

    value["list"].append(2)
    read: Any = domain.table("things").get("k")
    read["list"].append(3)

    assert domain.table("things").get("k") == {"list": [1]}


async def test_what_is_told_is_a_copy(kernel: Kernel, store: SqliteDomains) -> None:
    kernel.root.on("domain/changed", lambda change: change.value.append(2))
    domain = await store.open(SPEC)

    await domain.table("things").put("k", [1])

    assert domain.table("things").get("k") == [1]


@pytest.mark.parametrize("value", [7, {1, 2}, float("nan")])
async def test_an_invalid_record_is_not_written(store: SqliteDomains, value: Any) -> None:
    domain = await store.open(SPEC)

    with pytest.raises(DomainError) as caught:
        await domain.table("texts").put("k", value)

    assert code_of(caught) == "invalid-record"
    assert domain.table("texts").get("k") is None


async def test_an_invalid_stored_record_refuses_the_domain(
    store: SqliteDomains, path: Path
) -> None:
    domain = await store.open(SPEC)
    await domain.table("things").put("k", 1)
    await domain.close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE record SET \"table\" = 'texts'")
    connection.commit()
    connection.close()

    for _ in range(2):
        with pytest.raises(DomainError) as caught:
            await store.open(SPEC)
        assert code_of(caught) == "invalid-record"


async def test_a_domain_is_open_once_and_in_its_version(store: SqliteDomains) -> None:
    opening = [store.open(SPEC), store.open(SPEC)]
    domain, error = await asyncio.gather(*opening, return_exceptions=True)
    assert isinstance(error, DomainError)
    assert error.code == "already-open"
    assert not isinstance(domain, BaseException)
    await domain.close()

    with pytest.raises(DomainError) as caught:
        await store.open(DomainSpec(name="notes", version=2, tables={}))

    assert code_of(caught) == "version-mismatch"
    await store.open(SPEC)


async def test_a_close_lets_writes_end_and_refuses_new_ones(
    store: SqliteDomains, path: Path
) -> None:
    domain = await store.open(SPEC)
    table = domain.table("things")
    writes = [asyncio.create_task(table.put(str(number), number)) for number in range(3)]
    await asyncio.sleep(0)

    await asyncio.gather(domain.close(), domain.close())

    assert [write.done() for write in writes] == [True] * 3
    assert len(stored(path)) == 3
    with pytest.raises(DomainError) as caught:
        await table.put("late", 1)
    assert code_of(caught) == "closed"
    await domain.close()


async def test_a_write_whose_caller_has_gone_is_still_made(store: SqliteDomains) -> None:
    domain = await store.open(SPEC)
    table = domain.table("things")
    writing = asyncio.create_task(table.put("k", 1))
    await asyncio.sleep(0)

    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await domain.close()

    assert table.get("k") == 1


async def test_names_are_checked_and_absent_things_are_key_errors(
    kernel: Kernel, store: SqliteDomains, tmp_path: Path
) -> None:
    domain = await store.open(DomainSpec(name="bare", version=1, tables={}))

    with pytest.raises(ValueError, match="No"):
        await store.open(DomainSpec(name="No", version=1, tables={}))
    with pytest.raises(KeyError):
        domain.table("texts")
    with pytest.raises(KeyError):
        domain.singleton()

    nowhere = SqliteDomains(kernel, tmp_path / "missing" / "domains.db")
    with pytest.raises(DomainError) as caught:
        await nowhere.open(SPEC)
    assert code_of(caught) == "backend-not-found"
    await nowhere.aclose()


async def test_a_store_that_another_process_locks_fails_with_a_code(
    store: SqliteDomains, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_patience(monkeypatch)
    domain = await store.open(SPEC)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(DomainError) as opening:
        await store.open(DomainSpec(name="more", version=1, tables={}))
    with pytest.raises(DomainError) as writing:
        await domain.table("things").put("k", 1)
    other.execute("ROLLBACK")
    other.close()
    await domain.table("things").put("k", 2)

    assert (code_of(opening), code_of(writing)) == ("backend-failed", "backend-failed")
    assert domain.table("things").get("k") == 2
    await store.open(DomainSpec(name="more", version=1, tables={}))


@pytest.fixture
def no_database(path: Path) -> Path:
    path.write_bytes(b"no database" * 100)
    return path


async def test_what_is_no_database_is_not_found(kernel: Kernel, no_database: Path) -> None:
    store = SqliteDomains(kernel, no_database)

    with pytest.raises(DomainError) as caught:
        await store.open(SPEC)

    assert code_of(caught) == "backend-not-found"
    await store.aclose()


@pytest.mark.parametrize("key", ["\ud800", 5, None])
async def test_a_key_that_is_no_text_is_refused(store: SqliteDomains, key: Any) -> None:
    table = (await store.open(SPEC)).table("things")

    with pytest.raises(DomainError) as putting:
        await table.put(key, 1)
    with pytest.raises(DomainError) as deleting:
        await table.delete(key)

    assert (code_of(putting), code_of(deleting)) == ("invalid-record", "invalid-record")
    assert len(table) == 0
