"""Live and stored logs, flushes, and the view over both."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from patchouli.harness import Aborted, CancelSource, Kernel, NotJson, Session, SessionError
from patchouli.harness.reference import MemorySessions


@pytest.fixture
def ticks() -> list[int]:
    return []


@pytest.fixture
def sessions(kernel: Kernel, ticks: list[int]) -> MemorySessions:
    def now_ms() -> int:
        ticks.append(0)
        return 1_000 + len(ticks)

    return MemorySessions(kernel, now_ms=now_ms, new_id=lambda: f"made-{len(ticks)}")


async def test_a_log_is_contiguous_read_only_and_told(
    kernel: Kernel, sessions: MemorySessions
) -> None:
    told: list[tuple[Session, object]] = []
    kernel.root.on("session/event", lambda session, event: told.append((session, event)))
    session = sessions.create("s1", cwd="/srv/demo")
    data = {"turn": 1, "list": [1]}

    event = session.append("turn/start", data)
    data["turn"] = 2
    session.append("note", {}, ignorable=True)

    assert session.header == {"version": 1, "id": "s1", "createdAt": 1001, "cwd": "/srv/demo"}
    assert event == {
        "type": "turn/start",
        "seq": 0,
        "time": 1002,
        "data": {"turn": 1, "list": (1,)},
    }
    assert [one["seq"] for one in session.events] == [0, 1]
    assert session.events[1].get("ignorable") is True
    assert told == [(session, one) for one in session.events]
    with pytest.raises(TypeError):
        event["data"]["turn"] = 3  # type: ignore[index] - what is refused


async def test_a_log_that_was_read_does_not_grow(sessions: MemorySessions) -> None:
    session = sessions.create("s1")
    session.append("one", {})
    session.append("two", {})
    await sessions.flush(session)
    read = session.events
    stored = await sessions.read_from("s1", 0)

    session.append("three", {})

    assert [one["type"] for one in read] == ["one", "two"]
    assert (len(read), read[-1]["type"], read[1:]) == (2, "two", (read[1],))
    with pytest.raises(IndexError):
        read[2]
    assert read == stored.events
    assert read != session.events
    assert read != session.events[:1]
    assert [one["type"] for one in reversed(session.events)] == ["three", "two", "one"]


async def test_an_event_that_is_no_json_is_not_logged(sessions: MemorySessions) -> None:
    session = sessions.create("s1")

    with pytest.raises(NotJson, match="/data/a"):
        session.append("note", {"a": object()})

    assert session.events == ()


async def test_stored_is_what_was_flushed(sessions: MemorySessions) -> None:
    session = sessions.create("s1")
    session.append("one", {})
    with pytest.raises(SessionError, match="SESSION_NOT_FOUND"):
        await sessions.read_from("s1", 0)

    assert await sessions.flush(session) is True
    session.append("two", {})

    assert [e["type"] for e in (await sessions.read_from("s1", 0)).events] == ["one"]
    assert (await sessions.read_from("s1", 1)).events == ()
    assert (await sessions.read_from("s1", 0)).meta is session.header
    with pytest.raises(ValueError, match="negative"):
        await sessions.read_from("s1", -1)


async def test_only_a_live_session_is_flushed(sessions: MemorySessions) -> None:
    session = sessions.create("s1")
    sessions.dispose(session)
    sessions.dispose(session)

    with pytest.raises(SessionError) as caught:
        await sessions.flush(session)

    assert caught.value.code == "SESSION_NOT_LIVE"


async def test_a_flush_fails_with_its_listener_after_all_have_ended(
    kernel: Kernel, sessions: MemorySessions
) -> None:
    session = sessions.create("s1")
    session.append("one", {})

    async def fail(_: Session) -> None:
        raise ValueError("disk")

    kernel.root.on("session/flush", fail, prepend=True)

    with pytest.raises(ValueError, match="disk"):
        await sessions.flush(session)
    assert len((await sessions.read_from("s1", 0)).events) == 1


async def test_a_flush_inside_a_flush_is_recognised_by_a_variable(
    kernel: Kernel, sessions: MemorySessions
) -> None:
    nested: contextvars.ContextVar[bool] = contextvars.ContextVar("nested", default=False)
    seen: list[bool] = []
    session = sessions.create("s1")

    async def listener(of: Session) -> None:
        seen.append(nested.get())
        if not nested.get():
            nested.set(True)
            await sessions.flush(of)

    kernel.root.on("session/flush", listener)

    await asyncio.gather(sessions.flush(session), sessions.flush(session))

    assert sorted(seen) == [False, False, True, True]


@pytest.mark.checklist("HN-18")
async def test_a_vetoed_session_does_not_exist_and_those_told_hear_of_its_end(
    kernel: Kernel, sessions: MemorySessions
) -> None:
    told: list[str] = []

    def veto(_: Session) -> None:
        raise ValueError("no")

    kernel.root.on("session/created", lambda _: told.append("created"))
    kernel.root.on("session/created", veto)
    kernel.root.on("session/disposed", lambda _: told.append("disposed"))

    with pytest.raises(ValueError, match="no"):
        sessions.create("s1")

    assert told == ["created", "disposed"]
    assert sessions.list() == ()


async def test_the_view_prefers_the_live_log_and_knows_what_is_stored(
    sessions: MemorySessions,
) -> None:
    first, second, third = (sessions.create(name) for name in ("a", "b", "c"))
    for session in (first, second):
        session.append("one", {})
        await sessions.flush(session)
    second.append("two", {})
    sessions.dispose(first)

    records = await sessions.list_sessions()
    before = {record.header["id"]: record.revision for record in records}
    third.append("one", {})
    after = {r.header["id"]: r.revision for r in await sessions.list_sessions()}

    assert [(r.header["id"], r.live, r.persisted) for r in records] == [
        ("c", True, False),
        ("b", True, False),
        ("a", False, True),
    ]
    assert {name for name in before if before[name] != after[name]} == {"c"}
    assert [e["type"] for e in (await sessions.read_session("b")).events] == ["one", "two"]
    assert [e["type"] for e in (await sessions.read_range("b", 1, 5)).events] == ["two"]
    assert (await sessions.read_range("a", 0, 0)).events == ()
    with pytest.raises(SessionError, match="SESSION_NOT_FOUND"):
        await sessions.read_session("d")


async def test_ids_are_unique_and_headers_closed(sessions: MemorySessions) -> None:
    session = sessions.create("s1")
    await sessions.flush(session)
    sessions.dispose(session)

    with pytest.raises(ValueError, match="already"):
        sessions.create("s1")
    with pytest.raises(ValueError, match="colour"):
        sessions.create(colour="red")
    resumed = sessions.resume("s1")
    with pytest.raises(ValueError, match="live already"):
        sessions.resume("s1")
    assert sessions.get("s1") is resumed


async def test_a_signal_that_has_fired_stops_a_look(sessions: MemorySessions) -> None:
    source = CancelSource()
    source.cancel()
    session = sessions.create("s1")

    with pytest.raises(SessionError, match="ABORTED"):
        await sessions.list_sessions(signal=source.signal)
    with pytest.raises(Aborted):
        await sessions.flush(session, signal=source.signal)
