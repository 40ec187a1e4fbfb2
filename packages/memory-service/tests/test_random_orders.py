"""Whatever the order of events: nothing lost, nothing out of order, nothing left behind.

Plugins keep a log that outlives them, stores keep cursors that outlive their consumers. A random
program registers, unregisters, appends, disconnects, crashes stores, subscribes, stops and calls,
with random pauses between; then everything is put right once and has to catch up.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from memory_doubles import META, asked
from patchouli.harness import CancelSource, Context, Kernel, PluginSpec
from patchouli.memory_service import (
    Boundary,
    CallContext,
    Change,
    ChangeEvent,
    MemoryRequest,
    MemoryService,
    MemorySubscriptionError,
    PluginSubscribeRequest,
    Registration,
    SubscribeRequest,
    Subscription,
    memory_service,
)

EXAMPLES = int(os.environ.get("PATCHOULI_ORDER_EXAMPLES", "40"))
PLUGINS = 3
CONSUMERS = 2
START = "start"


def lost(text: str) -> MemorySubscriptionError:
    return MemorySubscriptionError(text, retryable=True)


class LogMemory:
    """A reactive memory over a log; it emits its backlog without waiting for anything."""

    def __init__(self, number: int) -> None:
        self.id = f"log-{number}"
        self.log: list[str] = [START]
        self.loud: set[int] = set()  # positions that everyone has to be told of
        self.live: list[_Live] = []
        self.opens_slowly = False
        self.behaviours = itertools.cycle(("answer", "raise", "hang", "ignore", "self-cancel"))

    def append(self, *, silent: bool) -> None:
        if not silent:
            self.loud.add(len(self.log))
        self.log.append(f"{self.id}:{len(self.log)}")
        for live in self.live:
            live.catch_up(silent=silent)

    def disconnect(self) -> None:
        for live in tuple(self.live):
            live.disconnect(lost("cut"))

    async def update(self, request: MemoryRequest, ctx: CallContext) -> Any:
        await asyncio.sleep(0)
        return len(self.log)

    async def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Any:
        match next(self.behaviours):
            case "raise":
                raise OSError("no")
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "ignore":
                try:
                    await asyncio.get_running_loop().create_future()
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
            case "self-cancel":
                raise asyncio.CancelledError
        return self.log[-1]

    async def subscribe(
        self, request: PluginSubscribeRequest, emit: Any, ctx: CallContext
    ) -> _Live:
        if self.opens_slowly:
            for _ in range(5):
                await asyncio.sleep(0)
        live = _Live(self, emit, request.after_cursor or START)
        live.catch_up(silent=False)
        return live


class _Live:
    """One subscription to a log."""

    def __init__(self, memory: LogMemory, emit: Any, boundary: str) -> None:
        self.cursor = boundary
        self._memory = memory
        self._emit = emit
        self._position = memory.log.index(boundary)
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        memory.live.append(self)

    def catch_up(self, *, silent: bool) -> None:
        while self._position < len(self._memory.log) - 1 and not self._closed.done():
            if self._position % 3 == 1:
                self._emit(Change(cursor=self._memory.log[self._position]))  # a repetition
            self._position += 1
            cursor = self._memory.log[self._position]
            # A silent entry is one that this subscriber need not see.
            self._emit(Boundary(cursor=cursor) if silent else Change(cursor=cursor))

    def disconnect(self, error: Exception) -> None:
        if self in self._memory.live:
            self._memory.live.remove(self)
        if not self._closed.done():
            self._closed.set_exception(error)
            self._closed.exception()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def unsubscribe(self) -> None:
        if self in self._memory.live:
            self._memory.live.remove(self)
        await asyncio.sleep(0)
        if not self._closed.done():
            self._closed.set_result(None)


class DurableStore:
    """Cursors that survive; a crash may come before or behind what it was asked to do."""

    def __init__(self) -> None:
        self.saved: dict[str, str] = {}
        self.crashes: list[str] = []

    async def load(self, plugin_id: str) -> str | None:
        await asyncio.sleep(0)
        if self.crashes:
            self.crashes.pop()
            raise lost("store crashed")
        return self.saved.get(plugin_id)

    async def save(self, plugin_id: str, cursor: str) -> None:
        await asyncio.sleep(0)
        crash = self.crashes.pop() if self.crashes else None
        if crash == "before":
            raise lost("store crashed")
        self.saved[plugin_id] = cursor
        if crash == "behind":  # as a limit written by hand, whose count stays with the task
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                raise lost("store crashed") from None

    async def delete(self, plugin_id: str) -> None:
        raise AssertionError("the service never deletes a cursor")


class Follower:
    """A consumer that checks every event against what its store says."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.store = DurableStore()
        self.handled: dict[str, list[int]] = {}
        self.busy: set[str] = set()
        self.ctx: Any = None
        self.scope: Any = None
        self.subscription: Subscription | None = None
        self.ends_itself = False

    async def handle(self, event: ChangeEvent) -> None:
        if event.plugin_id in self.busy:
            self.world.faults.append("two handlers of one plugin at once")
        self.busy.add(event.plugin_id)
        log = self.world.memories[event.plugin_id].log
        position, saved = log.index(event.cursor), log.index(self.store.saved[event.plugin_id])
        # A save that crashed behind its work is repeated; anything else follows what is saved.
        if position not in (saved, saved + 1):
            self.world.faults.append(f"{event.cursor} behind {log[saved]}")
        self.handled.setdefault(event.plugin_id, []).append(position)
        await asyncio.sleep(0)
        if self.ends_itself and self.subscription is not None:
            self.ends_itself = False
            await self.subscription.unsubscribe()
        self.busy.discard(event.plugin_id)

    async def start(self) -> None:
        if self.scope is None:

            def begin(ctx: Context, _: object) -> None:
                self.ctx = ctx

            spec = PluginSpec(name="follower", start=begin, needs=("patchouli",))
            self.scope = await self.world.kernel.root.plugin(spec)
        await self.unsubscribe()
        self.subscription = await self.ctx.get("patchouli").subscribe(
            SubscribeRequest(meta=META), self.handle, cursors=self.store
        )

    async def unsubscribe(self) -> None:
        if self.subscription is not None:
            await self.subscription.unsubscribe()
            await self.subscription.wait_closed()
            self.subscription = None
            assert self.busy == set()

    async def stop(self) -> None:
        if self.scope is not None:
            await self.scope.close()
            if self.subscription is not None:
                await self.subscription.wait_closed()
            self.scope = self.subscription = None
            assert self.busy == set()


class World:
    """Everything of one random program."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        memories = [LogMemory(number) for number in range(PLUGINS)]
        self.memories = {memory.id: memory for memory in memories}
        self.registrations: dict[str, Registration] = {}
        self.followers: list[Follower] = []
        self.faults: list[str] = []  # what a handler raised would only end its worker
        self.calls: list[tuple[asyncio.Future[Any], CancelSource]] = []

    @property
    def service(self) -> MemoryService:
        return self.kernel.root.find("patchouli")

    async def do(self, step: str, plugin: int, consumer: int) -> None:
        memory = self.memories[f"log-{plugin}"]
        follower = self.followers[consumer]
        match step:
            case "register":
                if memory.id not in self.registrations:
                    self.registrations[memory.id] = self.service.register(memory)
            case "unregister":
                if memory.id in self.registrations:
                    await self.registrations.pop(memory.id).dispose()
            case "append":
                memory.append(silent=False)
            case "burst":
                for _ in range(3):
                    memory.append(silent=False)
            case "crash-in-burst":
                follower.store.crashes.append("before")
                for _ in range(3):
                    memory.append(silent=False)
            case "append-silently":
                memory.append(silent=True)
            case "disconnect":
                memory.disconnect()
            case "slow-open":
                memory.opens_slowly = not memory.opens_slowly
            case "crash-before" | "crash-behind":
                follower.store.crashes.append(step.removeprefix("crash-"))
            case "subscribe":
                await follower.start()
            case "unsubscribe":
                await follower.unsubscribe()
            case "unsubscribe-inside":
                follower.ends_itself = True
            case "stop":
                await follower.stop()
            case "retrieve" | "update":
                source = CancelSource()
                call = getattr(self.service, step)(asked("seeds"), signal=source.signal)
                self.calls.append((asyncio.ensure_future(call), source))
            case "fire":
                for _, source in self.calls:
                    source.cancel()
            case "cancel":
                for call, _ in self.calls:
                    call.cancel()
            case _:
                raise AssertionError(step)

    async def put_right(self) -> None:
        """End what hangs, then let everyone catch up."""
        for _, source in self.calls:
            source.cancel()
        await asyncio.gather(*(call for call, _ in self.calls), return_exceptions=True)
        for follower in self.followers:
            follower.store.crashes.clear()
            follower.ends_itself = False
        for memory in self.memories.values():
            if memory.id not in self.registrations:
                self.registrations[memory.id] = self.service.register(memory)
        for follower in self.followers:
            await follower.start()
        while not all(  # noqa: ASYNC110 - whatever makes it hold runs on this loop
            follower.store.saved.get(memory.id) == memory.log[-1]
            for follower in self.followers
            for memory in self.memories.values()
        ):
            await asyncio.sleep(0)


STEPS = st.tuples(
    st.sampled_from(
        (
            "register",
            "unregister",
            *["append"] * 3,
            *["burst"] * 3,
            *["crash-in-burst"] * 3,
            "append-silently",
            "disconnect",
            "slow-open",
            "crash-before",
            "crash-behind",
            "subscribe",
            "subscribe",
            "unsubscribe",
            "unsubscribe-inside",
            "stop",
            "retrieve",
            "update",
            "fire",
            "cancel",
        )
    ),
    st.integers(0, PLUGINS - 1),
    st.integers(0, CONSUMERS - 1),
    st.integers(0, 12),
)


BEGINNING = (
    *(("register", plugin, 0, 0) for plugin in range(PLUGINS)),
    *(("subscribe", 0, consumer, 10) for consumer in range(CONSUMERS)),
)


async def run(program: list[tuple[str, int, int, int]]) -> None:
    async def sleep(_: float) -> None:
        await asyncio.sleep(0)

    async with asyncio.timeout(20), Kernel() as kernel:
        await kernel.root.plugin(
            memory_service(sleep=sleep, random=lambda: 0.0), {"maxPendingChanges": 4}
        )
        world = World(kernel)
        world.followers = [Follower(world) for _ in range(CONSUMERS)]
        for step, plugin, consumer, pause in (*BEGINNING, *program):
            await world.do(step, plugin, consumer)
            for _ in range(pause):
                await asyncio.sleep(0)
        await world.put_right()
        for follower in world.followers:
            await follower.stop()
    assert world.faults == []
    for follower, memory in itertools.product(world.followers, world.memories.values()):
        check_delivered(memory, follower.handled.get(memory.id, []))
    for _ in range(5):  # callbacks of what has just ended
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert left == set(), left


def check_delivered(memory: LogMemory, positions: list[int]) -> None:
    """Every change came, and none before all that precede it had come."""
    assert memory.loud <= set(positions)
    come = 0
    for position in positions:
        assert not memory.loud & set(range(come + 1, position)), f"{memory.id}: {positions}"
        come = max(come, position)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_nothing_is_lost_and_nothing_left_behind(program: list[tuple[str, int, int, int]]) -> None:
    asyncio.run(run(program))
