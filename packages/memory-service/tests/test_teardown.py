"""Loops that end without being asked nicely, and handlers that end the program."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Consumer, Feed, Stuck, asked, settled, until
from patchouli.harness import Kernel, ScopeClosed
from patchouli.memory_service import (
    Change,
    MemoryService,
    MemorySubscriptionError,
    SubscribeRequest,
    memory_service,
)

if TYPE_CHECKING:
    from collections.abc import Callable


async def started(kernel: Kernel) -> MemoryService:
    await kernel.root.plugin(memory_service())
    return kernel.root.find("patchouli")


@pytest.mark.parametrize("moment", ["opening", "live", "handling", "waiting", "calling"])
def test_a_loop_that_is_torn_down_ends(moment: str) -> None:
    async def main() -> None:
        memory = await started(Kernel())  # which nobody closes
        feed, consumer = Feed("feed"), Consumer()
        memory.register(feed)
        await consumer.subscribe(memory)
        opening = await feed.opening()
        if moment == "waiting":
            opening.fails(MemorySubscriptionError(retryable=True))
            await settled(consumer.failed.wait())
        elif moment in ("live", "handling"):
            consumer.held = asyncio.Event()
            opening.opens("b1")
            await until(lambda: "feed" in consumer.store.saved)
            if moment == "handling":
                opening.emit(Change(cursor="c1"))
                await consumer.until_journal_has("handle c1")
        elif moment == "calling":
            stuck = Stuck("stuck")
            memory.register(stuck)
            call = asyncio.ensure_future(memory.update(asked()))
            await stuck.entered.wait()
            assert not call.done()

    asyncio.run(main())


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["handler", "subscribe", "wait_closed"])
def test_what_ends_the_program_in_a_subscription_is_named_and_goes_its_way(
    place: str, ending: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop()
    kernel, consumer = Kernel(), Consumer()

    async def main() -> None:
        memory = await started(kernel)
        feed = Feed("feed")
        memory.register(feed)
        subscription = await consumer.subscribe(memory)
        opening = await feed.opening()
        if place == "subscribe":
            opening.fails(ending)
        else:
            handle = opening.opens("b1")
            await until(lambda: "feed" in consumer.store.saved)
            if place == "handler":
                consumer.error = ending
                opening.emit(Change(cursor="c1"))
            else:
                handle.disconnect(ending)
        await consumer.failed.wait()
        await subscription.unsubscribe()

    running = loop.create_task(main())
    with pytest.raises(type(ending)):
        loop.run_until_complete(running)
    loop.run_until_complete(asyncio.wait_for(running, 5))  # for a host that goes on
    loop.run_until_complete(kernel.aclose())
    loop.close()

    assert "plugin feed ends the program" in caplog.text
    (failure,) = consumer.failures
    assert not failure.error.retryable
    assert consumer.store.saved.get("feed") in (None, "b1")


async def test_a_stopped_scope_subscribes_to_nothing(
    memory: MemoryService, owner: Callable[[], Any], consumer: Consumer
) -> None:
    feed = Feed("feed")
    memory.register(feed)
    guest = await owner()
    facade = guest.memory
    await guest.close()

    with pytest.raises(ScopeClosed):
        await facade.subscribe(SubscribeRequest(meta=META), consumer.handle, cursors=consumer.store)

    assert feed.attempts == 0
