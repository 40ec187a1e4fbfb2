"""Nobody is left waiting: bounds, interruptions, failures and ends of the threads."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import (
    Commit,
    Committed,
    Cursor,
    DeadlineExceededError,
    ProviderError,
    UnavailableError,
)
from patchouli.provider_conformance.builders import (
    FOREVER,
    SCOPE,
    ManualClock,
    create,
    entity,
    read,
    retrieve,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.commits import LOST, Lost
from patchouli.provider_sqlite.connection import Disk, open_reader
from patchouli.provider_sqlite.executor import Handed, Readers, Writer
from patchouli.provider_sqlite.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence
    from pathlib import Path

    from patchouli.provider_sqlite.commits import Result
    from patchouli.provider_sqlite.connection import Connection

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"
A = create(entity("a"), "v1")


class Ended(BaseException):
    """What a thread cannot survive."""


class Told:
    """The answers of a writer, group by group."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.wakeups = Wakeups()

    def __call__(self, group: Sequence[Handed], results: Sequence[Result]) -> None:
        works = [handed.work for handed in group]
        self.groups.append([work.accepted for work in works if isinstance(work, Commit)])
        self.wakeups.answer(group, results)


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def writer(told: Told) -> AsyncIterator[Writer]:
    limits = SqliteLimits(waiting_commits=5, group_commits=3, group_bytes=1000)
    writer = Writer(limits, asyncio.get_running_loop(), told)
    yield writer
    writer.stop()
    await asyncio.to_thread(writer.join)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    gate = threading.Event()
    yield gate
    gate.set()


def answered(commits: Sequence[Commit]) -> Sequence[Result]:
    return [Committed(cursor=Cursor(number)) for number in range(1, len(commits) + 1)]


def lost(commits: Sequence[Commit]) -> Sequence[Result]:
    return [LOST] * len(commits)


async def test_what_waits_is_done_together_up_to_the_bounds(
    writer: Writer, told: Told, gate: threading.Event
) -> None:
    writer.serve(answered)
    held = writer.call(gate.wait)
    small = [writer.hand_over(create(entity(name), f"v{name}")) for name in "abcd"]
    gate.set()
    await asyncio.gather(held, *small)
    gate.clear()
    held = writer.call(gate.wait)
    large = [writer.hand_over(create(entity(name), f"v{name}", "x" * 600)) for name in "efg"]
    gate.set()
    await asyncio.gather(held, *large)

    assert told.groups == [["va", "vb", "vc"], ["vd"], ["ve", "vf"], ["vg"]]


async def test_functions_run_between_groups_in_the_order_of_the_calls(
    writer: Writer, gate: threading.Event
) -> None:
    done: list[str] = []

    def publish(commits: Sequence[Commit]) -> Sequence[Result]:
        done.extend(commit.accepted for commit in commits)
        return answered(commits)

    writer.serve(publish)
    held = writer.call(gate.wait)
    first = writer.hand_over(create(entity("a"), "va"))
    between = writer.call(lambda: done.append("between"))
    last = writer.hand_over(create(entity("b"), "vb"))
    gate.set()
    await asyncio.gather(held, first, between, last)

    assert done == ["va", "between", "vb"]


async def test_one_commit_too_many_is_refused_until_there_is_room(
    writer: Writer, gate: threading.Event
) -> None:
    writer.serve(answered)
    held = writer.call(gate.wait)
    waiting = [writer.hand_over(A) for _ in range(5)]
    waiting[0].cancel()

    with pytest.raises(UnavailableError, match="too many commits"):
        writer.hand_over(A)
    gate.set()
    await asyncio.gather(held, *waiting[1:])
    after = await writer.hand_over(A)

    assert isinstance(after, Committed)


async def test_a_cancelled_waiter_does_not_keep_its_commit_from_being_done(
    writer: Writer, told: Told, gate: threading.Event
) -> None:
    writer.serve(lost)
    held = writer.call(gate.wait)
    first, second = writer.hand_over(A), writer.hand_over(create(entity("b"), "v2"))
    first.cancel()
    gate.set()
    await held

    assert isinstance(await second, Lost)
    assert told.groups == [["v1", "v2"]]


async def test_an_unexpected_error_fails_its_group_and_not_the_next(writer: Writer) -> None:
    def broken(_: Sequence[Commit]) -> Sequence[Result]:
        raise KeyError("a bug")

    writer.serve(broken)
    with pytest.raises(ProviderError, match="unexpected") as failure:
        await writer.hand_over(A)
    writer.serve(answered)

    assert isinstance(failure.value.__cause__, KeyError)
    assert isinstance(await writer.hand_over(A), Committed)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_the_death_of_the_writer_fails_everybody_who_waits_now_and_later(
    writer: Writer, gate: threading.Event
) -> None:
    def dying(_: Sequence[Commit]) -> Sequence[Result]:
        raise Ended

    writer.serve(dying)
    held = writer.call(gate.wait)
    group = [writer.hand_over(A) for _ in range(5)]
    after = writer.call(lambda: None)
    gate.set()
    await held
    results = await asyncio.gather(*group, after, return_exceptions=True)
    await asyncio.to_thread(writer.join)

    assert all(isinstance(result, ProviderError) for result in results)
    with pytest.raises(UnavailableError):
        await writer.hand_over(A)
    with pytest.raises(UnavailableError):
        await writer.call(lambda: None)
    with pytest.raises(UnavailableError):
        await asyncio.to_thread(writer.run, lambda: None)


async def test_what_was_handed_over_before_the_stop_is_done(
    writer: Writer, gate: threading.Event
) -> None:
    writer.serve(answered)
    held = writer.call(gate.wait)
    before = [writer.hand_over(A) for _ in range(4)]
    writer.stop()
    gate.set()
    await held
    results = await asyncio.gather(*before)
    await asyncio.to_thread(writer.join)

    assert all(isinstance(result, Committed) for result in results)
    with pytest.raises(UnavailableError):
        await writer.hand_over(A)


async def test_another_thread_gets_what_its_function_returns_or_raises(writer: Writer) -> None:
    def fails() -> None:
        raise ValueError("mine")

    assert await asyncio.to_thread(writer.run, lambda: 7) == 7
    with pytest.raises(ValueError, match="mine"):
        await asyncio.to_thread(writer.run, fails)


@pytest.fixture
async def readers(tmp_path: Path) -> AsyncIterator[Readers]:
    path = tmp_path / "db"
    apsw.Connection(str(path)).close()
    limits = SqliteLimits(readers=1, waiting_reads=2)
    readers = Readers(
        limits,
        asyncio.get_running_loop(),
        lambda: open_reader(path, cache_kib=100, disk=Disk()),
    )
    yield readers
    readers.stop()
    await asyncio.to_thread(readers.join)


def endless(connection: Connection) -> int:
    return connection.execute(ENDLESS).get


def one(connection: Connection) -> int:
    return connection.execute("SELECT 1").get


async def test_a_read_past_its_time_is_interrupted_and_its_thread_free(readers: Readers) -> None:
    with pytest.raises(TimeoutError):
        await readers.run(endless, operation="read", seconds_left=0.02)

    assert await readers.run(one, operation="read", seconds_left=5) == 1


async def test_a_read_whose_task_is_cancelled_is_interrupted(readers: Readers) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def announced(connection: Connection) -> int:
        loop.call_soon_threadsafe(started.set)
        return endless(connection)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(readers.run(announced, operation="read"))
        waiting = tasks.create_task(readers.run(endless, operation="read"))
        await started.wait()
        with pytest.raises(UnavailableError, match="too many reads"):
            await readers.run(one, operation="read")
        running.cancel()
        waiting.cancel()

    assert await readers.run(one, operation="read") == 1


async def test_a_read_interrupted_between_two_statements_is_interrupted_in_the_next(
    readers: Readers, gate: threading.Event
) -> None:
    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    def pausing(connection: Connection) -> int:
        loop.call_soon_threadsafe(started.set)
        gate.wait()
        return endless(connection)

    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(readers.run(pausing, operation="read"))
        await started.wait()
        running.cancel()
        await asyncio.sleep(0)
        gate.set()

    assert await readers.run(one, operation="read") == 1


async def test_a_reader_that_cannot_connect_says_so_and_tries_again(tmp_path: Path) -> None:
    path = tmp_path / "db"
    readers = Readers(
        SqliteLimits(readers=1),
        asyncio.get_running_loop(),
        lambda: open_reader(path, cache_kib=100, disk=Disk()),
    )
    with pytest.raises(apsw.CantOpenError):
        await readers.run(one, operation="read")
    apsw.Connection(str(path)).close()

    assert await readers.run(one, operation="read") == 1
    readers.stop()
    await asyncio.to_thread(readers.join)


async def test_reads_after_the_end_are_refused(readers: Readers) -> None:
    readers.stop()
    await asyncio.to_thread(readers.join)

    with pytest.raises(UnavailableError):
        await readers.run(one, operation="read")


async def test_a_retrieval_past_its_deadline_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    provider = SqliteProvider(tmp_path / "db", clock=clock)
    await provider.initialize(FOREVER)
    store = provider._store
    assert store is not None
    monkeypatch.setattr(store.index, "retrieve", lambda connection, *_, **__: endless(connection))

    plan = retrieve()
    soon = replace(plan.consistency, deadline_unix_ms=clock.unix_ms() + 20)
    with pytest.raises(DeadlineExceededError):
        await provider.retrieve(replace(plan, consistency=soon))

    await provider.read(read(entity()))
    await provider.shutdown()


async def test_waiters_are_woken_by_their_scope_and_failed_by_the_stop(told: Told) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(told.wakeups.wait(SCOPE))
        await asyncio.sleep(0)
        handed = Handed(A, asyncio.get_running_loop().create_future())
        told([handed], [Committed(cursor=Cursor(1))])
    assert waiting.result() is None

    other = asyncio.ensure_future(told.wakeups.wait(SCOPE))
    await asyncio.sleep(0)
    told.wakeups.stop()
    with pytest.raises(UnavailableError):
        await other
    with pytest.raises(UnavailableError):
        await told.wakeups.wait(SCOPE)


def test_a_loop_that_was_closed_keeps_no_thread(tmp_path: Path) -> None:
    async def start() -> SqliteProvider:
        provider = SqliteProvider(tmp_path / "db", clock=ManualClock())
        await provider.initialize(FOREVER)
        await provider.commit(A)
        return provider

    provider = asyncio.run(start())
    store = provider._store
    assert store is not None
    store.drop()
    for thread in threading.enumerate():
        if thread.name.startswith("patchouli-sqlite"):
            thread.join(5)

    assert not [t for t in threading.enumerate() if t.name.startswith("patchouli-sqlite")]
