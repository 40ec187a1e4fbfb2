"""What the memory service adds to the work of its plugins.

    python -m benchmarks.memory_service [--plugins 20] [--calls 2000] [--changes 100000]

Nothing here waits for anything, so processor time is taken, which other work on the machine does
not stretch. Two figures, each against the same work done by hand in the same run:

* fan-out: one `retrieve` to plugins that answer at once, less what awaiting the same coroutines of
  the same plugins one after another takes. Target: 20 plugins add less than 0.5 ms.
* subscription: changes applied a second, from `emit` to the saved cursor, by a handler that counts
  and a cursor store in memory; once by a plugin that awaits each emit, once by one that emits in
  batches. Target: 20,000 a second.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from typing import Any

from patchouli.harness import Kernel
from patchouli.memory_service import (
    CallContext,
    CallMeta,
    Change,
    MemoryRequest,
    MemoryService,
    Source,
    SubscribeRequest,
    memory_service,
)

META = CallMeta(source=Source(type="bench", id="bench"), scope="atlas")
FAN_OUT_TARGET_MS = 0.5
CHANGES_TARGET = 20_000
ROUNDS = 5
BATCH = 1_000


class Prompt:
    """Answers at once with what a small search would return."""

    def __init__(self, plugin_id: str) -> None:
        self.id = plugin_id

    async def update(self, request: MemoryRequest, ctx: CallContext) -> None:
        return None

    async def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Any:
        return {"hits": [{"id": "m1", "text": "order seed trays"}], "more": False}


class Feed(Prompt):
    """Emits as many changes as it was told, each with metadata."""

    cursor = "start"

    def __init__(self, *, count: int, batch: int) -> None:
        super().__init__("feed")
        self.done = asyncio.Event()
        self._closed = asyncio.Event()
        self._count = count
        self._batch = batch

    async def subscribe(self, request: object, emit: Any, ctx: CallContext) -> Feed:
        self._pump = asyncio.ensure_future(self._emit_all(emit))
        return self

    async def _emit_all(self, emit: Any) -> None:
        for first in range(0, self._count, self._batch):
            emitted = [
                emit(Change(cursor=f"c{number}", memory_id="m1", metadata={"kind": "note"}))
                for number in range(first, first + self._batch)
            ]
            await emitted[-1]
        self.done.set()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    async def unsubscribe(self) -> None:
        self._closed.set()


class Cursors:
    def __init__(self) -> None:
        self.saved: dict[str, str] = {}

    async def load(self, plugin_id: str) -> str | None:
        return self.saved.get(plugin_id)

    async def save(self, plugin_id: str, cursor: str) -> None:
        self.saved[plugin_id] = cursor

    async def delete(self, plugin_id: str) -> None:
        self.saved.pop(plugin_id, None)


async def fan_out_ms(plugins: int, calls: int) -> tuple[float, float]:
    """Return what a retrieval takes through the service, and by hand (ms)."""
    async with Kernel() as kernel:
        await kernel.root.plugin(memory_service())
        memory: MemoryService = kernel.root.find("patchouli")
        registered = [Prompt(f"plugin-{number}") for number in range(plugins)]
        for plugin in registered:
            memory.register(plugin, filter=lambda call: call.operation == "retrieve")
        request = MemoryRequest(meta=META, data={"text": "seed trays", "limit": 10})
        context = CallContext(signal=None)

        async def through_service() -> None:
            assert len(await memory.retrieve(request)) == plugins

        async def by_hand() -> None:
            assert len([await one.retrieve(request, context) for one in registered]) == plugins

        return await median_ms(through_service, calls), await median_ms(by_hand, calls)


async def median_ms(work: Any, calls: int) -> float:
    took: list[float] = []
    for _ in range(calls):
        began = time.process_time()
        await work()
        took.append(time.process_time() - began)
    return statistics.median(took) * 1000


async def changes_per_second(count: int, batch: int) -> float:
    async with Kernel() as kernel:
        await kernel.root.plugin(memory_service())
        memory: MemoryService = kernel.root.find("patchouli")
        feed, cursors = Feed(count=count, batch=batch), Cursors()
        memory.register(feed)
        seen = 0

        async def handle(event: object) -> None:
            nonlocal seen
            seen += 1

        began = time.process_time()
        subscription = await memory.subscribe(SubscribeRequest(meta=META), handle, cursors=cursors)
        await feed.done.wait()
        took = time.process_time() - began
        await subscription.unsubscribe()
    assert (seen, cursors.saved) == (count, {"feed": f"c{count - 1}"})
    return count / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plugins", type=int, default=20)
    parser.add_argument("--calls", type=int, default=2_000)
    parser.add_argument("--changes", type=int, default=100_000)
    chosen = parser.parse_args()
    gc.collect()

    service, by_hand = asyncio.run(fan_out_ms(chosen.plugins, chosen.calls))
    added = service - by_hand
    print(f"one retrieve to {chosen.plugins} plugins, median of {chosen.calls}:")
    print(f"  through the service {service:.3f} ms, by hand {by_hand:.3f} ms, added {added:.3f} ms")
    print(f"  target {FAN_OUT_TARGET_MS} ms: {'met' if added < FAN_OUT_TARGET_MS else 'MISSED'}")

    count = chosen.changes // BATCH * BATCH
    for batch, name in ((1, "each awaited"), (BATCH, f"batches of {BATCH}")):
        rates = [asyncio.run(changes_per_second(count, batch)) for _ in range(ROUNDS)]
        rate = statistics.median(rates)
        print(f"{count} changes, {name}, median of {ROUNDS} runs: {rate:,.0f} a second")
        print(f"  target {CHANGES_TARGET:,}: {'met' if rate >= CHANGES_TARGET else 'MISSED'}")


if __name__ == "__main__":
    main()
