"""Subscriptions: what is delivered when, what is saved when, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import (
    META,
    Consumer,
    Feed,
    Handle,
    Plain,
    Store,
    asked,
    gate,
    quiet,
    settled,
    until,
)
from patchouli.harness import CancelSource, Kernel, NotJson
from patchouli.memory_service import (
    Boundary,
    CallMeta,
    Change,
    ChangeEvent,
    MemoryService,
    MemorySubscriptionError,
    PluginSubscribeRequest,
    SubscribeRequest,
    memory_service,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from memory_doubles import Opening

    from conftest import Sleeper


def lost(text: str = "line cut") -> MemorySubscriptionError:
    return MemorySubscriptionError(text, retryable=True)


async def asked_to_open(memory: MemoryService, consumer: Consumer) -> tuple[Feed, Opening]:
    """Subscribe to one feed and return when it is asked to open."""
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)
    return feed, await feed.opening()


async def live(
    memory: MemoryService, consumer: Consumer, boundary: str = "b1"
) -> tuple[Feed, Opening, Handle]:
    """Subscribe to one feed and return when its boundary is saved."""
    feed, opening = await asked_to_open(memory, consumer)
    handle = opening.opens(boundary)
    await until(lambda: consumer.store.saved.get("feed") == boundary)
    return feed, opening, handle


async def end(consumer: Consumer) -> None:
    await settled(consumer.subscription.unsubscribe())
    await settled(consumer.subscription.wait_closed())


@pytest.mark.checklist("MS-27")
async def test_plugin_ids_are_the_reactive_plugins_that_match(
    memory: MemoryService, consumer: Consumer
) -> None:
    match, filtered, failing = Feed("match"), Feed("filtered"), Feed("failing")

    def raising(_: object) -> bool:
        raise MemorySubscriptionError("no opinion", retryable=True)

    def not_asked(_: object) -> bool:
        raise AssertionError("a plugin that is not reactive has nothing to filter here")

    memory.register(match)
    memory.register(filtered, filter=lambda _: False)
    memory.register(failing, filter=raising)
    memory.register(Plain("plain"), filter=not_asked)

    subscription = await consumer.subscribe(memory)
    await match.opening()
    memory.register(Feed("later"))

    assert subscription.plugin_ids == ("match",)
    (failure,) = consumer.failures
    assert (failure.plugin_id, str(failure.error)) == ("failing", "no opinion")
    assert (failure.error.retryable, failure.error.reset_required) == (False, False)
    assert (filtered.attempts, failing.attempts) == (0, 0)
    await end(consumer)


@pytest.mark.checklist("MS-28")
async def test_a_plugin_is_opened_behind_the_saved_cursor(memory: MemoryService) -> None:
    consumer = Consumer(feed="C")
    feed = Feed("feed")
    memory.register(feed)

    await consumer.subscribe(memory)
    opening = await feed.opening()

    assert opening.request == PluginSubscribeRequest(meta=META, after_cursor="C")
    await end(consumer)


@pytest.mark.checklist("MS-29")
async def test_no_handler_runs_before_the_boundary_is_saved(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening = await asked_to_open(memory, consumer)
    opening.emit(Change(cursor="c1"))
    consumer.store.held = gate()
    opening.opens("B")
    await consumer.store.waiting.wait()
    before = list(consumer.journal)

    consumer.store.held.set()
    await consumer.until_journal_has("save c1")

    assert before == ["load", "save B"]
    assert consumer.journal == ["load", "save B", "handle c1", "handled c1", "save c1"]
    await end(consumer)


@pytest.mark.checklist("MS-30")
async def test_a_repeated_cursor_is_delivered_once_and_changes_one_by_one(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer, "B")

    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c1", "c2")]
    await settled(asyncio.gather(*emitted))

    assert consumer.journal == [
        "load",
        "save B",
        "handle c1",
        "handled c1",
        "save c1",
        "handle c2",
        "handled c2",
        "save c2",
    ]
    await end(consumer)


@pytest.mark.checklist("MS-31")
async def test_the_next_change_waits_for_the_handler_and_its_save(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)
    consumer.held = gate()
    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2")]
    await consumer.until_journal_has("handle c1")
    await quiet()
    blocked = list(consumer.journal)

    consumer.held.set()
    await settled(asyncio.gather(*emitted))

    assert blocked == ["load", "save b1", "handle c1"]
    await end(consumer)


@pytest.mark.checklist("MS-32")
async def test_events_bear_the_plugin_and_what_it_told(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)

    opening.emit(Change(cursor="c1", memory_id="m7", metadata={"kind": "note"}))
    await settled(opening.emit(Change(cursor="c2")))

    assert consumer.events == [
        ChangeEvent(cursor="c1", memory_id="m7", metadata={"kind": "note"}, plugin_id="feed"),
        ChangeEvent(cursor="c2", memory_id=None, metadata=None, plugin_id="feed"),
    ]
    await end(consumer)


@pytest.mark.checklist("MS-33")
async def test_unsubscribing_twice_ends_it_once(memory: MemoryService, consumer: Consumer) -> None:
    _, _, handle = await live(memory, consumer)
    subscription = consumer.subscription

    await settled(asyncio.gather(subscription.unsubscribe(), subscription.unsubscribe()))
    await settled(subscription.unsubscribe())
    await settled(subscription.wait_closed())

    assert handle.unsubscribed == 1
    assert consumer.failures == []


@pytest.mark.checklist("MS-34")
async def test_a_retryable_disconnect_reopens_behind_the_last_saved_change(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening, handle = await live(memory, consumer, "first")
    await settled(opening.emit(Change(cursor="c1")))

    handle.disconnect(lost())
    again = await feed.opening()
    again.opens("second")
    await consumer.until_journal_has("save second")

    assert again.request.after_cursor == "c1"
    assert [entry for entry in consumer.journal if entry.startswith("save")] == [
        "save first",
        "save c1",
        "save second",
    ]
    (failure,) = consumer.failures
    assert (failure.plugin_id, failure.error.retryable) == ("feed", True)
    assert handle.unsubscribed == 1
    assert consumer.journal.count("load") == 1
    await end(consumer)


@pytest.mark.checklist("MS-35")
async def test_a_plain_exception_ends_one_plugin_and_no_other(
    memory: MemoryService, consumer: Consumer
) -> None:
    broken, fine = Feed("broken"), Feed("fine")
    memory.register(broken)
    memory.register(fine)
    await consumer.subscribe(memory)
    original = OSError("no such lake")
    (await broken.opening()).fails(original)
    opening = await fine.opening()
    opening.opens("b1")

    await settled(opening.emit(Change(cursor="c1")))
    await settled(consumer.failed.wait())
    await quiet()

    (failure,) = consumer.failures
    assert failure.plugin_id == "broken"
    assert (failure.error.retryable, failure.error.reset_required) == (False, False)
    assert failure.error.__cause__ is original
    assert broken.attempts == 1
    await end(consumer)


@pytest.mark.checklist("MS-36")
async def test_a_disconnect_before_the_boundary_is_saved_is_noticed(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening = await asked_to_open(memory, consumer)
    queued = opening.emit(Change(cursor="c1"))
    consumer.store.held = gate()
    opening.opens("b1").disconnect(lost())
    await consumer.store.waiting.wait()

    consumer.store.held.set()
    again = await feed.opening()

    assert again.request.after_cursor == "b1"
    assert consumer.events == []
    with pytest.raises(MemorySubscriptionError, match="line cut"):
        await queued
    await end(consumer)


@pytest.mark.checklist("MS-36")
async def test_a_plugin_is_watched_while_its_boundary_is_being_saved(
    memory: MemoryService, consumer: Consumer
) -> None:
    class Forgetful(Handle):
        """A disconnect is told to who watches when it comes, and to nobody later."""

        watched: asyncio.Future[None] | None = None

        async def wait_closed(self) -> None:
            self.watched = asyncio.get_running_loop().create_future()
            await self.watched

        def disconnect(self, error: BaseException) -> None:
            if self.watched is not None:
                self.watched.set_exception(error)

    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)
    handle = Forgetful("b1")
    opening = await feed.opening()
    consumer.store.held = gate()
    opening.answer.set_result(handle)
    await consumer.store.waiting.wait()
    await quiet()

    handle.disconnect(lost())
    consumer.store.held.set()
    again = await feed.opening()

    assert again.request.after_cursor == "b1"
    await end(consumer)


@pytest.mark.checklist("MS-37")
async def test_waits_grow_until_a_change_is_handled_and_saved(
    memory: MemoryService, consumer: Consumer, sleeper: Sleeper
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)
    for boundary in ("b1", "b2"):
        (await feed.opening()).opens(boundary).disconnect(lost())
    opening = await feed.opening()
    handle = opening.opens("b3")
    await settled(opening.emit(Change(cursor="c1")))
    handle.disconnect(lost())

    await feed.opening()

    assert sleeper.waits_ms == [250, 500, 250]
    await end(consumer)


@pytest.mark.checklist("MS-37")
async def test_a_change_that_was_handled_and_not_saved_is_no_progress(
    memory: MemoryService, consumer: Consumer, sleeper: Sleeper
) -> None:
    feed, opening, _ = await live(memory, consumer)
    for attempt in range(3):
        consumer.store.failures.append(lost("disk busy"))
        opening.emit(Change(cursor="c1"))
        opening = await feed.opening()
        opening.opens("b1")
        await until(lambda: consumer.journal.count("save b1") == attempt + 2)  # noqa: B023 - at once

    assert sleeper.waits_ms == [250, 500, 1000]
    assert consumer.journal.count("handled c1") == 3
    await end(consumer)


@pytest.mark.checklist("MS-38")
async def test_a_subscription_ends_with_the_scope_of_its_consumer(
    memory: MemoryService, consumer: Consumer, owner: Callable[[], Any]
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    guest = await owner()
    subscription = await consumer.subscribe(guest.memory)
    handle = (await feed.opening()).opens("b1")
    await until(lambda: "feed" in consumer.store.saved)

    await settled(guest.close())

    await settled(subscription.wait_closed())
    assert handle.unsubscribed == 1


@pytest.mark.checklist("MS-38")
async def test_a_scope_that_stops_waits_for_the_handler_of_its_subscription(
    memory: MemoryService, consumer: Consumer, owner: Callable[[], Any]
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    guest = await owner()
    await consumer.subscribe(guest.memory)
    opening = await feed.opening()
    handle = opening.opens("b1")
    consumer.held = gate()
    opening.emit(Change(cursor="c1"))
    await consumer.until_journal_has("handle c1")

    closing = asyncio.ensure_future(guest.close())
    await until(lambda: handle.unsubscribed == 1)
    await quiet()
    waits = not closing.done()
    consumer.held.set()
    await settled(closing)

    assert waits
    assert consumer.journal[-1] == "handled c1"


@pytest.mark.checklist("MS-39")
async def test_a_required_reset_ends_the_attempts_and_leaves_the_cursor(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, _, handle = await live(memory, consumer)

    handle.disconnect(MemorySubscriptionError("expired", retryable=True, reset_required=True))
    await settled(consumer.failed.wait())
    await quiet()

    (failure,) = consumer.failures
    assert (failure.error.retryable, failure.error.reset_required) == (True, True)
    assert feed.attempts == 1
    assert consumer.store.saved == {"feed": "b1"}
    await end(consumer)


@pytest.mark.checklist("MS-40")
async def test_a_change_at_the_boundary_is_skipped(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)

    await settled(opening.emit(Change(cursor="b1")))

    assert consumer.journal == ["load", "save b1"]
    await end(consumer)


@pytest.mark.checklist("MS-41")
async def test_a_failing_handler_fails_what_is_queued_and_saves_nothing(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening, handle = await live(memory, consumer)
    consumer.error = KeyError("acorn")

    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2")]
    results = await settled(asyncio.gather(*emitted, return_exceptions=True))
    await settled(consumer.failed.wait())
    await quiet()

    assert results == [consumer.error, consumer.error]
    assert consumer.store.saved == {"feed": "b1"}
    assert [event.cursor for event in consumer.events] == ["c1"]
    assert handle.unsubscribed == 1
    (failure,) = consumer.failures
    assert failure.error.__cause__ is consumer.error
    assert not failure.error.retryable
    assert feed.attempts == 1
    await end(consumer)


@pytest.mark.checklist("MS-42")
async def test_an_orderly_end_delivers_what_is_queued_and_leaves_the_subscription_open(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening, handle = await live(memory, consumer)
    consumer.held = gate()
    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2", "c3")]
    await consumer.until_journal_has("handle c1")
    handle.close()
    await until(lambda: handle.unsubscribed == 1)

    consumer.held.set()
    await settled(asyncio.gather(*emitted))

    closed = asyncio.ensure_future(consumer.subscription.wait_closed())
    await quiet()
    assert not closed.done()
    assert consumer.store.saved == {"feed": "c3"}
    assert (consumer.failures, feed.attempts) == ([], 1)
    await end(consumer)
    await closed


@pytest.mark.checklist("MS-43")
async def test_a_disconnect_lets_the_running_change_finish_and_reads_the_rest_again(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening, handle = await live(memory, consumer)
    consumer.held = gate()
    first, second = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2")]
    await consumer.until_journal_has("handle c1")
    cut = lost()
    handle.disconnect(cut)
    await until(lambda: handle.unsubscribed == 1)

    consumer.held.set()
    again = await feed.opening()

    await first
    assert second.exception() is cut
    assert again.request.after_cursor == "c1"
    assert [event.cursor for event in consumer.events] == ["c1"]
    await end(consumer)


@pytest.mark.checklist("MS-44")
async def test_a_stop_lets_the_running_handler_finish_and_does_not_save_it(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, handle = await live(memory, consumer)
    consumer.held = gate()
    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2")]
    await consumer.until_journal_has("handle c1")

    ending = asyncio.ensure_future(consumer.subscription.unsubscribe())
    await until(lambda: handle.unsubscribed == 1)
    waits = not ending.done()
    consumer.held.set()
    await settled(ending)

    assert waits
    assert consumer.journal == ["load", "save b1", "handle c1", "handled c1"]
    assert all(one.exception() is not None for one in emitted)
    assert consumer.failures == []


@pytest.mark.checklist("MS-45")
async def test_a_late_emit_is_ignored(memory: MemoryService, consumer: Consumer) -> None:
    _, opening, _ = await live(memory, consumer)
    await end(consumer)

    late = opening.emit(Change(cursor="c9"))

    assert late.done()
    assert late.exception() is None
    assert consumer.events == []


@pytest.mark.checklist("MS-46")
async def test_a_stop_ends_a_wait_at_once(
    memory: MemoryService, consumer: Consumer, sleeper: Sleeper
) -> None:
    sleeper.is_holding = True
    feed, _, handle = await live(memory, consumer)
    handle.disconnect(lost())
    await settled(sleeper.began.wait())

    await end(consumer)

    assert feed.attempts == 1


async def test_a_consumer_that_is_cut_before_its_first_step_fails_its_plugin(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening = await asked_to_open(memory, consumer)
    opening.opens("b1")
    found: list[asyncio.Task[Any]] = []
    while not found:
        await asyncio.sleep(0)  # its task is made in one step and begins in the next
        found = [t for t in asyncio.all_tasks() if t.get_name() == "patchouli changes feed"]
    emitted = opening.emit(Change(cursor="c1"))
    found[0].cancel()

    await settled(consumer.failed.wait())

    assert isinstance(emitted.exception(), Exception)
    assert consumer.events == []
    await end(consumer)


async def test_a_clock_that_does_not_wait_ends_the_attempts(
    kernel: Kernel, consumer: Consumer
) -> None:
    def sleep(_: float) -> Any:
        return None

    await kernel.root.plugin(memory_service(sleep=sleep))
    feed, _, handle = await live(kernel.root.find("patchouli"), consumer)
    handle.disconnect(lost())

    await until(lambda: len(consumer.failures) == 2)

    assert isinstance(consumer.failures[1].error, Exception)
    assert feed.attempts == 1
    await end(consumer)


async def test_a_stop_leaves_a_clock_that_ignores_its_cancellation(
    kernel: Kernel, consumer: Consumer, logged: pytest.LogCaptureFixture
) -> None:
    began, release, left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        began.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        left.set()

    await kernel.root.plugin(memory_service(sleep=sleep), {"cancelGraceMs": 20})
    _, _, handle = await live(kernel.root.find("patchouli"), consumer)
    handle.disconnect(lost())
    await settled(began.wait())

    await end(consumer)
    await until(lambda: "goes on" in logged.text)

    assert not left.is_set()
    release.set()
    await settled(left.wait())


@pytest.mark.checklist("MS-47")
async def test_a_stop_does_not_wait_for_a_pending_opening_and_ends_a_late_handle(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed", ignores_signal=True)
    memory.register(feed)
    await consumer.subscribe(memory)
    opening = await feed.opening()
    queued = opening.emit(Change(cursor="c1"))

    await end(consumer)
    told = opening.ctx.signal
    handle = opening.opens("late")
    await until(lambda: handle.unsubscribed == 1)

    assert told is not None
    assert told.cancelled
    assert queued.exception() is told.reason
    assert consumer.journal == ["load"]
    assert consumer.failures == []


@pytest.mark.checklist("MS-48")
async def test_a_load_that_fails_is_fatal_for_its_plugin(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    consumer.store.failures.append(OSError("disk gone"))

    await consumer.subscribe(memory)
    await settled(consumer.failed.wait())
    await quiet()

    (failure,) = consumer.failures
    assert not failure.error.retryable
    assert str(failure.error) == "disk gone"
    assert feed.attempts == 0
    await end(consumer)


async def test_a_load_that_fails_retryably_is_repeated(
    memory: MemoryService, sleeper: Sleeper
) -> None:
    consumer = Consumer(feed="C")
    feed = Feed("feed")
    memory.register(feed)
    consumer.store.failures.append(lost("disk busy"))

    await consumer.subscribe(memory)
    opening = await feed.opening()

    assert opening.request.after_cursor == "C"
    assert consumer.journal == ["load", "load"]
    assert sleeper.waits_ms == [250]
    await end(consumer)


@pytest.mark.checklist("MS-49")
async def test_an_error_callback_that_raises_is_ignored(
    memory: MemoryService, consumer: Consumer, logged: pytest.LogCaptureFixture
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    calls: list[object] = []

    def on_error(failure: object) -> None:
        calls.append(failure)
        raise RuntimeError("cannot even complain")

    subscription = await memory.subscribe(
        SubscribeRequest(meta=META), consumer.handle, cursors=consumer.store, on_error=on_error
    )
    (await feed.opening()).fails(lost())
    await feed.opening()

    assert len(calls) == 1
    assert "cannot even complain" in logged.text
    await settled(subscription.unsubscribe())


@pytest.mark.checklist("MS-50")
async def test_a_subscription_whose_workers_are_all_dead_stays_open(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)
    closed = asyncio.ensure_future(consumer.subscription.wait_closed())
    (await feed.opening()).fails(OSError())
    await settled(consumer.failed.wait())
    await quiet()

    assert not closed.done()
    await end(consumer)
    await closed


@pytest.mark.checklist("MS-50")
async def test_a_subscription_without_plugins_is_open_until_it_is_ended(
    memory: MemoryService, consumer: Consumer
) -> None:
    subscription = await consumer.subscribe(memory)
    closed = asyncio.ensure_future(subscription.wait_closed())
    await quiet()

    assert subscription.plugin_ids == ()
    assert not closed.done()
    await end(consumer)
    await closed


@pytest.mark.checklist("MS-51")
async def test_a_handler_may_end_its_own_subscription(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    order: list[str] = []

    async def handle(event: ChangeEvent) -> None:
        await subscription.unsubscribe()
        order.append(f"handler of {event.cursor} returned")

    subscription = await memory.subscribe(
        SubscribeRequest(meta=META), handle, cursors=consumer.store, on_error=consumer.on_error
    )
    opening = await feed.opening()
    opening.opens("b1")
    opening.emit(Change(cursor="c1"))
    opening.emit(Change(cursor="c2"))

    await settled(subscription.wait_closed())

    assert order == ["handler of c1 returned"]
    assert consumer.store.saved == {"feed": "b1"}
    assert consumer.failures == []


@pytest.mark.checklist("MS-52")
@pytest.mark.parametrize("moment", ["opening", "live", "waiting"])
async def test_an_unregistered_plugin_delivers_no_more(
    memory: MemoryService, consumer: Consumer, sleeper: Sleeper, moment: str
) -> None:
    feed = Feed("feed")
    registration = memory.register(feed)
    sleeper.is_holding = True
    await consumer.subscribe(memory)
    opening = await feed.opening()
    if moment == "live":
        opening.opens("b1")
        await settled(opening.emit(Change(cursor="c1")))
    elif moment == "waiting":
        opening.fails(lost())
        await settled(sleeper.began.wait())
        consumer.failed.clear()

    await registration.dispose()
    late = opening.emit(Change(cursor="c2"))
    await settled(consumer.failed.wait())

    failure = consumer.failures[-1]
    assert failure.error.code == "plugin-unregistered"
    assert not failure.error.retryable
    assert [event.cursor for event in consumer.events] == (["c1"] if moment == "live" else [])
    await until(late.done)
    assert feed.attempts == 1
    if moment == "opening":
        opening.opens("late")
    await end(consumer)


@pytest.mark.checklist("MS-52")
@pytest.mark.parametrize("is_handling", [False, True])
async def test_what_is_queued_when_a_plugin_is_unregistered_is_not_handled(
    memory: MemoryService, consumer: Consumer, *, is_handling: bool
) -> None:
    feed = Feed("feed")
    registration = memory.register(feed)
    await consumer.subscribe(memory)
    opening = await feed.opening()
    opening.opens("b1")
    if is_handling:
        consumer.held = gate()
        opening.emit(Change(cursor="c1"))
        await consumer.until_journal_has("handle c1")
    else:
        await settled(opening.emit(Change(cursor="c1")))
    queued = [opening.emit(Change(cursor=cursor)) for cursor in ("c2", "c3")]

    await registration.dispose()
    if consumer.held is not None:
        await quiet()
        consumer.held.set()
    await settled(consumer.failed.wait())

    assert [event.cursor for event in consumer.events] == ["c1"]
    assert consumer.store.saved == {"feed": "c1"}
    assert [getattr(one.exception(), "code", None) for one in queued] == ["plugin-unregistered"] * 2
    await end(consumer)


@pytest.mark.checklist("MS-83")
async def test_an_ignored_emit_of_a_failing_handler_makes_no_noise(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)
    noise: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: noise.append(context))
    consumer.error = KeyError("acorn")

    opening.emit(Change(cursor="c1"))
    opening.emit(Change(cursor="c2"))
    await settled(consumer.failed.wait())
    await end(consumer)
    gc.collect()
    loop.set_exception_handler(None)

    assert len(consumer.failures) == 1
    assert noise == []


@pytest.mark.checklist("MS-84")
async def test_a_stop_while_the_cursor_is_loading_opens_nothing(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    consumer.store.held = gate()
    await consumer.subscribe(memory)
    await consumer.store.waiting.wait()

    ending = asyncio.ensure_future(consumer.subscription.unsubscribe())
    await asyncio.sleep(0)
    consumer.store.held.set()
    await settled(ending)

    assert feed.attempts == 0
    assert consumer.failures == []


@pytest.mark.checklist("MS-84")
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("ends", ["stop", "unregister"])
async def test_no_plugin_is_opened_behind_a_stop_whenever_that_comes(
    memory: MemoryService, consumer: Consumer, ends: str, turns: int
) -> None:
    feed = Feed("feed")
    registration = memory.register(feed)
    source = CancelSource()
    await consumer.subscribe(memory, signal=source.signal)
    for _ in range(turns):
        await asyncio.sleep(0)
    opened = feed.attempts

    if ends == "stop":
        source.cancel()
    else:
        await registration.dispose()
    await quiet()

    assert feed.attempts == opened
    assert len(consumer.failures) == (0 if ends == "stop" else 1)
    await end(consumer)


@pytest.mark.checklist("MS-85")
async def test_a_boundary_is_saved_and_is_no_progress(
    memory: MemoryService, consumer: Consumer, sleeper: Sleeper
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)
    (await feed.opening()).opens("b1").disconnect(lost())
    opening = await feed.opening()
    handle = opening.opens("b1")
    await settled(opening.emit(Boundary(cursor="b2")))
    handle.disconnect(lost())

    again = await feed.opening()

    assert again.request.after_cursor == "b2"
    assert consumer.store.saved == {"feed": "b2"}
    assert consumer.events == []
    assert sleeper.waits_ms == [250, 500]
    await end(consumer)


async def test_a_signal_that_has_fired_subscribes_to_nothing(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    source = CancelSource()
    source.cancel(OSError("gone"))

    with pytest.raises(OSError, match="gone"):
        await consumer.subscribe(memory, signal=source.signal)

    assert feed.attempts == 0


async def test_a_signal_ends_a_subscription_with_its_reason(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    source = CancelSource()
    reason = OSError("gone")
    subscription = await consumer.subscribe(memory, signal=source.signal)
    opening = await feed.opening()
    handle = opening.opens("b1")
    await until(lambda: "feed" in consumer.store.saved)

    source.cancel(reason)
    await settled(subscription.wait_closed())

    assert opening.ctx.signal is not source.signal
    assert opening.ctx.signal is not None
    assert opening.ctx.signal.reason is reason
    assert handle.unsubscribed == 1


async def test_too_many_pending_changes_reopen_behind_those_that_had_room(
    started: Callable[..., Any], consumer: Consumer
) -> None:
    memory = await started({"maxPendingChanges": 2})
    feed, opening, _ = await live(memory, consumer)
    consumer.held = gate()
    running = opening.emit(Change(cursor="c1"))
    await consumer.until_journal_has("handle c1")
    queued = [opening.emit(Change(cursor=cursor)) for cursor in ("c2", "c3", "c4", "c5")]
    consumer.held.set()

    again = await feed.opening()

    await settled(asyncio.gather(running, *queued[:2]))
    assert all(one.exception() is not None for one in queued[2:])
    (failure,) = consumer.failures
    assert (failure.error.retryable, failure.error.code) == (True, "too-many-pending")
    assert again.request.after_cursor == "c3"
    assert [event.cursor for event in consumer.events] == ["c1", "c2", "c3"]
    await end(consumer)


async def test_what_a_plugin_says_of_its_end_once_it_was_told_to_is_no_disconnect(
    started: Callable[..., Any], consumer: Consumer
) -> None:
    class Grumpy(Handle):
        def close(self) -> None:
            self.disconnect(ConnectionError("cut by you"))

    memory = await started({"maxPendingChanges": 2})
    feed, opening = await asked_to_open(memory, consumer)
    handle = Grumpy("b1")
    opening.answer.set_result(handle)
    await until(lambda: "feed" in consumer.store.saved)
    consumer.held = gate()
    opening.emit(Change(cursor="c1"))
    await consumer.until_journal_has("handle c1")
    for cursor in ("c2", "c3", "c4"):
        opening.emit(Change(cursor=cursor))
    await until(lambda: handle.unsubscribed == 1)
    await quiet()
    consumer.held.set()

    again = await feed.opening()

    assert [one.error.code for one in consumer.failures] == ["too-many-pending"]
    assert again.request.after_cursor == "c3"
    await end(consumer)


async def test_a_boundary_that_cannot_be_saved_starts_no_handler(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening = await asked_to_open(memory, consumer)
    queued = opening.emit(Change(cursor="c1"))
    broken = OSError("disk full")
    consumer.store.failures.append(broken)
    handle = opening.opens("b1")

    await settled(consumer.failed.wait())

    assert queued.exception() is broken
    assert consumer.events == []
    assert handle.unsubscribed == 1
    assert consumer.failures[0].error.__cause__ is broken
    await end(consumer)


async def test_a_boundary_is_the_position_only_when_it_is_saved(memory: MemoryService) -> None:
    consumer = Consumer(feed="C")
    feed, opening = await asked_to_open(memory, consumer)
    consumer.store.failures.append(lost("disk busy"))

    opening.opens("b1")
    again = await feed.opening()

    assert again.request.after_cursor == "C"
    await end(consumer)


async def test_a_retryable_failure_of_the_handler_or_the_store_is_retried(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed, opening, _ = await live(memory, consumer)
    consumer.store.failures.append(lost("disk busy"))

    opening.emit(Change(cursor="c1"))
    again = await feed.opening()
    again.opens("b2")
    await settled(again.emit(Change(cursor="c1")))

    assert again.request.after_cursor == "b1"
    assert [event.cursor for event in consumer.events] == ["c1", "c1"]
    await end(consumer)


@pytest.mark.parametrize("first", [None, lost("cut first")])
async def test_a_failing_unsubscribe_is_reported_only_if_nothing_else_failed(
    memory: MemoryService, consumer: Consumer, first: MemorySubscriptionError | None
) -> None:
    feed, _, handle = await live(memory, consumer)
    handle.unsubscribe_error = OSError("will not let go")

    if first is None:
        handle.close()
    else:
        handle.disconnect(first)
    await settled(consumer.failed.wait())

    (failure,) = consumer.failures
    assert str(failure.error) == ("will not let go" if first is None else "cut first")
    if first is not None:
        await feed.opening()
    await end(consumer)


@pytest.mark.checklist("MS-42")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_failing_unsubscribe_touches_no_change_that_an_orderly_end_delivers(
    memory: MemoryService, consumer: Consumer, *, fails: bool
) -> None:
    _, opening, handle = await live(memory, consumer)
    handle.unsubscribe_error = OSError("will not let go")
    consumer.held = gate()
    emitted = [opening.emit(Change(cursor=cursor)) for cursor in ("c1", "c2", "c3")]
    await consumer.until_journal_has("handle c1")
    handle.close()
    await until(lambda: handle.unsubscribed == 1)
    await quiet()

    consumer.error = KeyError("acorn") if fails else None
    consumer.held.set()
    await settled(asyncio.gather(*emitted, return_exceptions=True))
    await settled(consumer.failed.wait())

    (failure,) = consumer.failures
    assert failure.error.__cause__ is (consumer.error or handle.unsubscribe_error)
    assert [one.exception() for one in emitted] == [consumer.error] * 3
    assert consumer.store.saved == {"feed": "b1" if fails else "c3"}
    await end(consumer)


async def test_a_plugin_that_hangs_in_its_subscribe_is_named_once(
    memory: MemoryService, consumer: Consumer, logged: pytest.LogCaptureFixture
) -> None:
    _, opening = await asked_to_open(memory, consumer)

    await until(lambda: bool(logged.records))
    opening.opens("b1")
    await until(lambda: consumer.store.saved.get("feed") == "b1")

    assert [record.message for record in logged.records] == ["plugin feed takes long to subscribe"]
    assert consumer.failures == []
    await end(consumer)


async def test_a_plugin_that_hangs_in_its_unsubscribe_is_named_once(
    memory: MemoryService, consumer: Consumer, logged: pytest.LogCaptureFixture
) -> None:
    _, _, handle = await live(memory, consumer)
    logged.clear()
    handle.held = gate()
    ending = asyncio.ensure_future(end(consumer))

    await until(lambda: bool(logged.records))
    handle.held.set()
    await ending

    assert [one.message for one in logged.records] == ["plugin feed takes long to unsubscribe"]


async def test_a_shutdown_raises_no_errors_of_plugins(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, _, handle = await live(memory, consumer)
    handle.unsubscribe_error = OSError("will not let go")

    await end(consumer)

    assert consumer.failures == []


async def test_a_plugin_that_awaits_its_emits_unsubscribes_without_a_deadlock(
    memory: MemoryService, consumer: Consumer
) -> None:
    class Flowing(Feed):
        async def subscribe(self, request: Any, emit: Any, ctx: Any) -> Any:
            pump = asyncio.ensure_future(self.pump(emit))
            closed = asyncio.Event()

            class Running:
                cursor = "b0"

                async def wait_closed(self) -> None:
                    await closed.wait()

                async def unsubscribe(self) -> None:
                    await asyncio.wait({pump})
                    closed.set()

            return Running()

        async def pump(self, emit: Any) -> None:
            for number in range(100):
                await emit(Change(cursor=f"c{number}"))

    memory.register(Flowing("flowing"))
    await consumer.subscribe(memory)
    await consumer.until_journal_has("save c7")

    await end(consumer)

    delivered = [event.cursor for event in consumer.events]
    assert delivered == [f"c{number}" for number in range(len(delivered))]


async def test_a_service_that_stops_ends_the_subscriptions_of_others(
    kernel: Kernel, consumer: Consumer
) -> None:
    scope = await kernel.root.plugin(memory_service())
    _, _, handle = await live(kernel.root.find("patchouli"), consumer)

    await settled(scope.close())

    await settled(consumer.subscription.wait_closed())
    assert handle.unsubscribed == 1


async def test_without_a_callback_failures_are_logged(
    memory: MemoryService, consumer: Consumer, logged: pytest.LogCaptureFixture
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    subscription = await memory.subscribe(
        SubscribeRequest(meta=META), consumer.handle, cursors=consumer.store
    )

    (await feed.opening()).fails(OSError("no such lake"))
    await until(lambda: "no such lake" in logged.text)

    assert "feed" in logged.text
    await settled(subscription.unsubscribe())


async def test_a_plain_handler_and_a_plain_subscribe_will_do(
    memory: MemoryService, consumer: Consumer
) -> None:
    class Prompt(Feed):
        def subscribe(self, request: Any, emit: Any, ctx: Any) -> Any:  # type: ignore[override] # allowed
            self.emit = emit
            return Handle("b1")

    prompt = Prompt("prompt")
    memory.register(prompt)
    seen: list[str] = []
    subscription = await memory.subscribe(
        SubscribeRequest(meta=META), lambda event: seen.append(event.cursor), cursors=consumer.store
    )
    await until(lambda: "prompt" in consumer.store.saved)

    await settled(prompt.emit(Change(cursor="c1")))

    assert seen == ["c1"]
    await settled(subscription.unsubscribe())


@pytest.mark.parametrize(
    ("emitted", "text"),
    [
        ("c1", "a str was emitted"),
        (Change(cursor=7), "/cursor"),  # type: ignore[arg-type] # what is refused
        (Change(cursor="c1", metadata={"a": [float("nan")]}), "/metadata/a/0"),
        (Change(cursor="c1", memory_id="\ud800"), "/memoryId"),
        (Boundary(cursor=None), "/cursor"),  # type: ignore[arg-type] # what is refused
    ],
)
async def test_what_is_no_change_fails_its_plugin_in_its_place(
    memory: MemoryService, consumer: Consumer, emitted: Any, text: str
) -> None:
    _, opening, _ = await live(memory, consumer)

    opening.emit(Change(cursor="c0"))
    opening.emit(emitted)
    opening.emit(Change(cursor="c2"))
    await settled(consumer.failed.wait())

    assert [event.cursor for event in consumer.events] == ["c0"]
    assert text in str(consumer.failures[0].error)
    await end(consumer)


@pytest.mark.parametrize("returned", [None, "open"])
async def test_a_plugin_that_returns_no_subscription_fails_alone(
    memory: MemoryService, consumer: Consumer, returned: Any
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)

    (await feed.opening()).answer.set_result(returned)
    await settled(consumer.failed.wait())

    assert "subscribe returned" in str(consumer.failures[0].error)
    await end(consumer)


async def test_a_plugin_that_raises_a_cancellation_fails_alone(
    memory: MemoryService, consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    await consumer.subscribe(memory)

    (await feed.opening()).fails(asyncio.CancelledError("not today"))
    await settled(consumer.failed.wait())

    (failure,) = consumer.failures
    assert str(failure.error) == "not today"
    await end(consumer)


async def test_a_handler_that_raises_a_cancellation_fails_its_plugin(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)
    consumer.error = asyncio.CancelledError("not today")

    emitted = opening.emit(Change(cursor="c1"))
    await settled(consumer.failed.wait())

    assert isinstance(emitted.exception(), MemorySubscriptionError)
    await end(consumer)


async def test_an_envelope_that_is_no_json_is_refused(
    memory: MemoryService, consumer: Consumer
) -> None:
    meta = CallMeta(source=META.source, scope="atlas", attributes={"a": {1}})  # type: ignore[dict-item] # refused

    with pytest.raises(NotJson) as refused:
        await memory.subscribe(SubscribeRequest(meta=meta), consumer.handle, cursors=Store())

    assert refused.value.path == "/meta/attributes/a"


async def test_an_emit_whose_waiter_was_cancelled_is_delivered_all_the_same(
    memory: MemoryService, consumer: Consumer
) -> None:
    _, opening, _ = await live(memory, consumer)
    consumer.held = gate()
    first = opening.emit(Change(cursor="c1"))
    second = opening.emit(Change(cursor="c2"))
    second.cancel()

    consumer.held.set()
    await settled(first)
    await consumer.until_journal_has("save c2")

    await end(consumer)


async def test_updates_and_retrievals_go_on_beside_a_subscription(
    memory: MemoryService, consumer: Consumer
) -> None:
    await live(memory, consumer)

    (outcome,) = await memory.update(asked("seeds"))

    assert outcome.ok
    await end(consumer)
