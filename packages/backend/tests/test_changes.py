"""Change feeds over the in-memory provider: order, filters, catching up, ends."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.backend import (
    CursorExpiredError,
    Event,
    InvalidRequestError,
    Limits,
    changes,
    event_line,
)
from patchouli.backend.changes import ChangeFeeds, parse_cursor
from patchouli.provider import CorruptStoreError, Cursor, UnavailableError
from patchouli.provider_conformance import builders
from patchouli.provider_conformance.model import ModelProvider, ModelStorage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from patchouli.backend import Subscription
    from patchouli.provider import ChangePage, ChangesPlan

SECONDS = 5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Store:
    """A provider, its clock and its feeds."""

    def __init__(self, **limits: int) -> None:
        self.clock = builders.ManualClock()
        self.storage = ModelStorage()
        self.provider = ModelProvider(self.storage, self.clock)
        self.feeds = self.new_feeds(**limits)
        self._made = 0

    def new_feeds(self, **limits: int) -> ChangeFeeds:
        return ChangeFeeds(
            self.provider, clock=self.clock, changes_seconds=10**6, limits=Limits(**limits)
        )

    async def aclose(self) -> None:
        await self.feeds.aclose()
        await self.provider.shutdown()

    async def publish(self, name: str, *, kind: str = "note", scope: str = builders.SCOPE) -> None:
        self._made += 1
        key = builders.entity(f"{name}-{self._made}", scope=builders.ScopeText(scope), kind=kind)
        await self.provider.commit(builders.create(key, f"v{self._made}"))

    def cursor(self, number: int) -> str:
        return f"{self.storage.incarnation}.{number}"


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with aclosing(Store()) as store:
        await store.provider.initialize(builders.FOREVER)
        yield store


async def take(subscription: Subscription, count: int) -> list[str]:
    """Return the ids of the next `count` changes."""
    found: list[str] = []
    async with asyncio.timeout(SECONDS):
        while len(found) < count:
            found += [event.id for event in await subscription.next_events()]
    return found


async def test_a_subscription_without_cursor_begins_at_the_end(store: Store) -> None:
    await store.publish("before")

    subscription = await store.feeds.subscribe(builders.SCOPE)
    await store.publish("after")

    assert subscription.cursor == store.cursor(1)
    assert await take(subscription, 1) == ["after-2"]
    assert subscription.cursor == store.cursor(2)


async def test_zero_replays_everything_and_goes_on_live(store: Store) -> None:
    for _ in range(3):
        await store.publish("old")

    subscription = await store.feeds.subscribe(builders.SCOPE, after_cursor="0")

    assert await take(subscription, 3) == ["old-1", "old-2", "old-3"]
    waiting = asyncio.create_task(take(subscription, 1))
    await store.publish("new")
    assert await waiting == ["new-4"]


async def test_a_filter_passes_by_what_does_not_match_and_moves_the_cursor(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE, types=frozenset({"wanted"}))
    waiting = asyncio.create_task(take(subscription, 1))

    await store.publish("a", kind="other")
    await store.publish("b", kind="wanted")
    await store.publish("c", kind="other")

    assert await waiting == ["b-2"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await subscription.next_events()
    assert subscription.cursor == store.cursor(3)


async def test_a_filter_by_id_and_type_must_match_both(store: Store) -> None:
    subscription = await store.feeds.subscribe(
        builders.SCOPE, types=frozenset({"note"}), ids=frozenset({"x-2", "y-3"})
    )

    await store.publish("x")
    await store.publish("x")
    await store.publish("y", kind="other")
    await store.publish("z")

    assert await take(subscription, 1) == ["x-2"]


async def test_changes_of_another_scope_are_not_seen(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE)

    await store.publish("foreign", scope=builders.OTHER_SCOPE)
    await store.publish("own")

    assert await take(subscription, 1) == ["own-2"]


async def test_all_subscriptions_of_a_scope_share_one_encoding(store: Store) -> None:
    first = await store.feeds.subscribe(builders.SCOPE)
    second = await store.feeds.subscribe(builders.SCOPE)

    await store.publish("a")
    (one,) = await first.next_events()
    (other,) = await second.next_events()

    assert one is other
    line = event_line(one, "subscription-1")
    assert event_line(other, "subscription-1") is line
    assert json.loads(line) == {
        "jsonrpc": "2.0",
        "method": "patchouli.changes.event@1",
        "params": {
            "meta": {},
            "data": {
                "subscription_id": "subscription-1",
                "change": {
                    "cursor": store.cursor(1),
                    "ref": {"type": "note", "id": "a-1"},
                    "kind": "created",
                    "head_versions": ["v1"],
                },
            },
        },
    }


async def test_who_falls_out_of_the_window_reads_the_log_again(store: Store) -> None:
    store.feeds = store.new_feeds(max_window_events=4)
    slow = await store.feeds.subscribe(builders.SCOPE)
    quick = await store.feeds.subscribe(builders.SCOPE)

    names: list[str] = []
    for _ in range(12):
        await store.publish("n")
        names += await take(quick, 1)

    assert await take(slow, 12) == names


async def test_a_window_is_handed_out_a_page_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "PAGE_LIMIT", 3)
    subscription = await store.feeds.subscribe(builders.SCOPE)
    quick = await store.feeds.subscribe(builders.SCOPE)
    for _ in range(7):
        await store.publish("n")
    await take(quick, 7)

    sizes = [len(await subscription.next_events()) for _ in range(3)]

    assert sizes == [3, 3, 1]


@pytest.mark.parametrize(
    "cursor", ["", "+5", "007", "-1", " 1", "1 ", "1.", ".1", "x.01", "x.", "abc", "x.1e3", "x.٣"]
)
async def test_a_cursor_that_was_never_given_out_is_invalid(store: Store, cursor: str) -> None:
    with pytest.raises(InvalidRequestError):
        await store.feeds.subscribe(builders.SCOPE, after_cursor=cursor)


async def test_a_cursor_of_another_database_or_ahead_has_expired(store: Store) -> None:
    await store.publish("a")

    for cursor in ("41", "other.1", store.cursor(2), store.cursor(10**18)):
        with pytest.raises(CursorExpiredError):
            await store.feeds.subscribe(builders.SCOPE, after_cursor=cursor)
    subscription = await store.feeds.subscribe(builders.SCOPE, after_cursor=store.cursor(1))
    assert subscription.cursor == store.cursor(1)


async def test_a_position_that_retention_passed_ends_the_stream(store: Store) -> None:
    feeds = ChangeFeeds(store.provider, clock=store.clock, changes_seconds=10)
    subscription = await feeds.subscribe(builders.SCOPE, after_cursor="0")
    await store.publish("old")
    store.clock.now_unix_ms += 20_000

    with pytest.raises(CursorExpiredError):
        await subscription.next_events()

    await feeds.aclose()


async def test_closing_one_subscription_leaves_the_others(store: Store) -> None:
    closed = await store.feeds.subscribe(builders.SCOPE)
    kept = await store.feeds.subscribe(builders.SCOPE)

    closed.close()
    closed.close()
    await store.publish("a")

    assert await take(kept, 1) == ["a-1"]
    kept.close()
    assert await take(await resubscribed(store), 1) == ["a-1"]


async def test_closing_again_leaves_the_next_feed_of_the_scope(store: Store) -> None:
    closed = await store.feeds.subscribe(builders.SCOPE)
    closed.close()
    first = await store.feeds.subscribe(builders.SCOPE)

    closed.close()
    second = await store.feeds.subscribe(builders.SCOPE)
    await store.publish("a")

    (one,) = await first.next_events()
    assert (await second.next_events())[0] is one


async def resubscribed(store: Store) -> Subscription:
    return await store.feeds.subscribe(builders.SCOPE, after_cursor="0")


async def test_a_cancelled_wait_loses_nothing(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE)
    waiting = asyncio.create_task(subscription.next_events())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])

    await store.publish("a")

    assert await take(subscription, 1) == ["a-1"]


async def test_stopping_ends_every_wait(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE)
    waiting = asyncio.create_task(subscription.next_events())
    await asyncio.sleep(0)

    await store.feeds.aclose()

    with pytest.raises(UnavailableError):
        async with asyncio.timeout(SECONDS):
            await waiting


async def test_a_store_that_stays_unavailable_ends_the_stream_after_all_retries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "RETRY_DELAYS_MS", (0, 0, 0))
    subscription = await store.feeds.subscribe(builders.SCOPE)

    await store.provider.shutdown()

    with pytest.raises(UnavailableError):
        async with asyncio.timeout(SECONDS):
            await subscription.next_events()


async def test_a_subscription_after_a_failure_begins_anew(store: Store) -> None:
    failing = await store.feeds.subscribe(builders.SCOPE)
    intact = store.provider.read_changes

    async def broken(plan: ChangesPlan) -> ChangePage:
        raise CorruptStoreError("test", "read_changes", "broken")

    store.provider.read_changes = broken
    await store.publish("a")
    with pytest.raises(CorruptStoreError):
        async with asyncio.timeout(SECONDS):
            await failing.next_events()
    store.provider.read_changes = intact

    fresh = await store.feeds.subscribe(builders.SCOPE)  # while the other one is still open
    await store.publish("b")

    assert await take(fresh, 1) == ["b-2"]


def size_of_an_event() -> int:
    """Return what the windows count for each change of these tests."""
    event = Event(
        position=Cursor(1),
        type="note",
        id="n-1",
        cursor="",
        meta_json=b"{}",
        change_json=json.dumps(
            {
                "cursor": f"{'0' * 36}.1",
                "head_versions": ["v1"],
                "kind": "created",
                "ref": {"id": "n-1", "type": "note"},
            },
            separators=(",", ":"),
        ).encode(),
    )
    return event.size


async def kept(store: Store, scope: str = builders.SCOPE) -> int:
    """Return how many of three changes that were taken stay in the window of the scope."""
    slow = await store.feeds.subscribe(builders.ScopeText(scope))
    quick = await store.feeds.subscribe(builders.ScopeText(scope))
    for _ in range(3):
        await store.publish("n", scope=scope)
    first = await take(quick, 3)
    number = len(slow._feed._window)

    assert await take(slow, 3) == first
    return number


@pytest.mark.parametrize("bound", ["max_window_bytes", "max_windows_bytes"])
async def test_a_window_keeps_what_the_bound_allows_and_not_one_byte_more(
    store: Store, bound: str
) -> None:
    three = 3 * size_of_an_event()

    store.feeds = store.new_feeds(**{bound: three})
    assert await kept(store) == 3
    await store.feeds.aclose()
    store.feeds = store.new_feeds(**{bound: three - 1})
    assert await kept(store) == 2
    await store.feeds.aclose()
    store.feeds = store.new_feeds(**{bound: 1})
    assert await kept(store) == 0


async def test_beyond_the_bound_of_all_windows_the_oldest_changes_of_any_scope_go(
    store: Store,
) -> None:
    store.feeds = store.new_feeds(max_windows_bytes=4 * size_of_an_event())
    one, other = builders.SCOPE, builders.OTHER_SCOPE
    waiting = [await store.feeds.subscribe(scope) for scope in (one, other)]
    readers = [await store.feeds.subscribe(scope) for scope in (one, other)]
    for scope, reader in ((one, 0), (one, 0), (other, 1), (one, 0), (other, 1), (other, 1)):
        await store.publish("n", scope=scope)
        await take(readers[reader], 1)

    assert [len(found._feed._window) for found in waiting] == [1, 3]
    assert store.feeds.windows.bytes == 4 * size_of_an_event()
    assert await take(waiting[0], 3) == ["n-1", "n-2", "n-4"]
    assert await take(waiting[1], 3) == ["n-3", "n-5", "n-6"]


async def test_a_scope_without_subscribers_counts_for_nothing(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE)
    failing = await store.feeds.subscribe(builders.OTHER_SCOPE)
    for scope, reader in ((builders.SCOPE, subscription), (builders.OTHER_SCOPE, failing)):
        await store.publish("n", scope=scope)
        await take(reader, 1)
    assert store.feeds.windows.bytes == 2 * size_of_an_event()

    subscription.close()
    assert store.feeds.windows.bytes == size_of_an_event()
    await store.feeds.aclose()
    failing.close()

    assert store.feeds.windows.bytes == 0


async def test_an_event_keeps_the_lines_of_a_few_subscriptions_only(store: Store) -> None:
    subscription = await store.feeds.subscribe(builders.SCOPE)
    await store.publish("a")
    (event,) = await subscription.next_events()

    lines = [event_line(event, f"subscription-{number}") for number in range(100)]

    assert len(event.lines) == changes.LINES_LIMIT
    assert [json.loads(line)["params"]["data"]["subscription_id"] for line in lines] == [
        f"subscription-{number}" for number in range(100)
    ]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_interleaving_delivers_each_matching_change_once_in_order(data: st.DataObject) -> None:
    async def run() -> None:
        async with aclosing(Store()) as store:
            await store.provider.initialize(builders.FOREVER)
            kinds: list[str] = []
            subscriptions: list[tuple[Subscription, str | None, int, list[str]]] = []
            for _ in range(data.draw(st.integers(1, 25))):
                match data.draw(st.sampled_from(["publish", "publish", "subscribe", "take"])):
                    case "publish":
                        kinds.append(data.draw(st.sampled_from("ab")))
                        await store.publish("n", kind=kinds[-1])
                    case "subscribe":
                        kind = data.draw(st.sampled_from([None, "a", "b"]))
                        start = data.draw(st.integers(0, len(kinds)))
                        subscription = await store.feeds.subscribe(
                            builders.SCOPE,
                            after_cursor=store.cursor(start) if start else "0",
                            types=None if kind is None else frozenset({kind}),
                        )
                        subscriptions.append((subscription, kind, start, []))
                    case _:
                        for subscription, kind, start, seen in subscriptions:
                            due = expected(kinds, kind, start)[len(seen) :]
                            if due:
                                seen += [e.id for e in await subscription.next_events()]
            for subscription, kind, start, seen in subscriptions:
                due = expected(kinds, kind, start)
                seen += await take(subscription, len(due) - len(seen))
                assert seen == due

    def expected(kinds: list[str], kind: str | None, start: int) -> list[str]:
        return [
            f"n-{number}"
            for number, found in enumerate(kinds, 1)
            if number > start and kind in {None, found}
        ]

    asyncio.run(run())


def test_a_wire_cursor_names_its_position() -> None:
    assert parse_cursor("0", incarnation="x") == Cursor(0)
    assert parse_cursor("x.y.17", incarnation="x.y") == Cursor(17)
    assert parse_cursor("x.0", incarnation="x") == Cursor(0)
