"""Subscriptions whose stream a test can steer; the streams of the engine are tested there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import CursorExpiredError, Event
from patchouli.protocol import RpcError, SubscribeData, SubscribeParams
from patchouli.provider import CorruptStoreError, Cursor
from patchouli.server.logs import Log
from patchouli.server.subscriptions import SubscriptionSet
from patchouli.server.work import Work

if TYPE_CHECKING:
    from collections.abc import Sequence


def event(number: int, size: int = 1) -> Event:
    return Event(
        position=Cursor(number),
        type="memo",
        id="m",
        cursor=f"c.{number}",
        meta_json=b"{}",
        change_json=json.dumps({"n": number, "pad": "x" * size}).encode(),
    )


class Stream:
    """A stream of events as the engine gives them, under the control of a test."""

    def __init__(self) -> None:
        self.cursor = "c.0"
        self.is_closed = False
        self.pages: asyncio.Queue[list[Event] | Exception] = asyncio.Queue()

    async def next_events(self) -> Sequence[Event]:
        page = await self.pages.get()
        if isinstance(page, Exception):
            raise page
        self.cursor = page[-1].cursor
        return page

    def close(self) -> None:
        self.is_closed = True


class Streams:
    """Stands for the engine: every subscription is a stream of the test."""

    def __init__(self) -> None:
        self.opened: list[Stream] = []
        self.gate: asyncio.Event | None = None

    async def subscribe(self, _: SubscribeParams) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        self.opened.append(Stream())
        return self.opened[-1]


class Desk:
    """An outlet that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sizes: list[int] = []
        self.is_closed = False
        self.room = asyncio.Event()
        self.room.set()
        self.waited_for = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self.room.is_set()

    async def wait_for_room(self) -> None:
        self.waited_for.set()
        await self.room.wait()

    def send(self, data: bytes) -> None:
        self.sizes.append(len(data))
        for line in data.splitlines():
            self.lines.put_nowait(json.loads(line))

    def close(self) -> None:
        self.is_closed = True

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self.lines.get(), 5)


class Room:
    """One connection's subscriptions with everything around them."""

    def __init__(self, *capabilities: str, limit: int = 8) -> None:
        self.desk = Desk()
        self.streams: Any = Streams()
        self.work = Work()
        self.subscriptions = SubscriptionSet(
            self.desk, work=self.work, log=Log(), limit=limit, boundary_ms=30_000
        )
        self.subscriptions.renegotiate(frozenset({"subscriptions", *capabilities}))

    async def open(self) -> Stream:
        await self.subscriptions.subscribe(
            self.streams, SubscribeParams(meta={}, data=SubscribeData()), now=0.0
        )
        return self.streams.opened[-1]


LIFECYCLE = "subscription-lifecycle"


@pytest.mark.clause("changes.closed")
async def test_a_stream_that_fails_is_told_and_the_others_go_on() -> None:
    room = Room(LIFECYCLE)
    failing, other = await room.open(), await room.open()
    failing.pages.put_nowait([event(7)])
    await room.desk.next()

    failing.pages.put_nowait(CursorExpiredError("too old"))
    closed = await room.desk.next()
    other.pages.put_nowait([event(8)])
    told = await room.desk.next()

    assert closed == {
        "jsonrpc": "2.0",
        "method": "patchouli.changes.closed@1",
        "params": {
            "meta": {},
            "data": {
                "subscription_id": "subscription-1",
                "cursor": "c.7",
                "reason": "CURSOR_EXPIRED",
            },
        },
    }
    assert told["params"]["data"]["subscription_id"] == "subscription-2"
    assert failing.is_closed
    assert not room.desk.is_closed
    assert room.subscriptions.unsubscribe("subscription-1") is False
    room.subscriptions.close()


@pytest.mark.clause("changes.closed")
async def test_without_the_capability_a_failure_ends_the_connection() -> None:
    room = Room()
    failing = await room.open()

    failing.pages.put_nowait(CursorExpiredError("too old"))
    await asyncio.wait_for(room.work.drain(), 5)

    assert room.desk.is_closed
    assert room.desk.lines.empty()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (CorruptStoreError("sqlite", "read_changes", "page 7"), "OVERLOADED"),
        (ZeroDivisionError("a bug"), "OVERLOADED"),
    ],
)
async def test_the_reason_of_a_failure_is_one_of_the_wire(error: Exception, reason: str) -> None:
    room = Room(LIFECYCLE)
    failing = await room.open()

    failing.pages.put_nowait(error)
    closed = await room.desk.next()

    assert closed["params"]["data"]["reason"] == reason


async def test_events_wait_for_room_and_none_is_lost() -> None:
    room = Room()
    stream = await room.open()
    room.desk.room.clear()
    stream.pages.put_nowait([event(1), event(2)])
    await asyncio.wait_for(room.desk.waited_for.wait(), 5)
    assert room.desk.lines.empty()

    room.desk.room.set()
    told = [await room.desk.next() for _ in range(2)]

    assert [line["params"]["data"]["change"]["n"] for line in told] == [1, 2]
    room.subscriptions.close()


async def test_a_long_page_leaves_in_several_writes_of_whole_lines() -> None:
    room = Room()
    stream = await room.open()

    stream.pages.put_nowait([event(number, 20_000) for number in range(10)])
    told = [await room.desk.next() for _ in range(10)]

    assert [line["params"]["data"]["change"]["n"] for line in told] == list(range(10))
    assert len(room.desk.sizes) == 3
    assert max(room.desk.sizes) < 100_000
    room.subscriptions.close()


async def test_nothing_follows_an_unsubscribe_in_the_middle_of_a_page() -> None:
    room = Room()
    stream = await room.open()
    room.desk.room.clear()
    stream.pages.put_nowait([event(1)])
    await asyncio.wait_for(room.desk.waited_for.wait(), 5)

    assert room.subscriptions.unsubscribe("subscription-1") is True
    room.desk.room.set()
    await asyncio.wait_for(room.work.drain(), 5)

    assert room.desk.lines.empty()
    assert stream.is_closed


@pytest.mark.clause("changes.boundary")
async def test_a_boundary_is_told_when_the_position_moved_and_not_too_often() -> None:
    room = Room(LIFECYCLE)
    stream = await room.open()
    await asyncio.sleep(0)  # the delivery begins to wait

    room.subscriptions.tell_boundaries(100.0)
    assert room.desk.lines.empty()  # nothing moved
    stream.cursor = "c.5"
    room.subscriptions.tell_boundaries(29.0)
    assert room.desk.lines.empty()  # too early
    room.subscriptions.tell_boundaries(30.0)
    first = await room.desk.next()
    stream.cursor = "c.6"
    room.subscriptions.tell_boundaries(59.0)
    assert room.desk.lines.empty()
    room.subscriptions.tell_boundaries(60.0)
    second = await room.desk.next()

    assert first["method"] == "patchouli.changes.boundary@1"
    assert first["params"]["data"] == {"subscription_id": "subscription-1", "cursor": "c.5"}
    assert second["params"]["data"]["cursor"] == "c.6"
    room.subscriptions.close()


@pytest.mark.clause("changes.boundary")
async def test_no_boundary_passes_an_event_that_was_not_written_yet() -> None:
    room = Room(LIFECYCLE)
    stream = await room.open()
    room.desk.room.clear()
    stream.pages.put_nowait([event(9)])
    await asyncio.wait_for(room.desk.waited_for.wait(), 5)

    room.desk.room.set()
    room.subscriptions.tell_boundaries(1000.0)

    told = await room.desk.next()
    assert told["method"] == "patchouli.changes.event@1"
    room.subscriptions.close()


async def test_subscriptions_that_are_being_opened_count() -> None:
    room = Room(limit=1)
    room.streams.gate = asyncio.Event()
    opening = asyncio.ensure_future(room.open())
    await asyncio.sleep(0)

    with pytest.raises(RpcError, match="at most 1 subscriptions"):
        await room.open()

    room.streams.gate.set()
    await opening
    room.subscriptions.close()


async def test_a_subscription_that_opens_after_its_connection_ended_is_closed() -> None:
    room = Room()
    room.streams.gate = asyncio.Event()
    opening = asyncio.ensure_future(room.open())
    await asyncio.sleep(0)

    room.subscriptions.close()
    room.streams.gate.set()

    with pytest.raises(RpcError, match="ending"):
        await opening
    assert room.streams.opened[0].is_closed
    assert len(room.work) == 0
