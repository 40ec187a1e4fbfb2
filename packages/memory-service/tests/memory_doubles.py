"""Plugins, stores and consumers that a test steers step by step."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchouli.memory_service import (
    CallContext,
    CallMeta,
    Emit,
    MemoryRequest,
    MemoryService,
    PluginSubscribeRequest,
    Source,
    SubscribeRequest,
    SubscriptionFailure,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_SECONDS = 5.0

META = CallMeta(source=Source(type="chat", id="desk"), scope="atlas", attributes={"lang": "en"})


def asked(data: Any = None, *, meta: CallMeta = META) -> MemoryRequest:
    return MemoryRequest(meta=meta, data=data)


_gates: list[asyncio.Event] = []


def gate() -> asyncio.Event:
    """Return what holds somebody until the test opens it, or has failed before it did."""
    made = asyncio.Event()
    _gates.append(made)
    return made


def open_gates() -> None:
    """Hold nobody any more."""
    while _gates:
        _gates.pop().set()


class Plain:
    """A memory that answers as it was told and keeps what it was asked."""

    def __init__(self, plugin_id: str, answer: Any = None) -> None:
        self.id = plugin_id
        self.answer = answer
        self.asked: list[tuple[str, MemoryRequest, CallContext]] = []

    async def update(self, request: MemoryRequest, ctx: CallContext) -> Any:
        return await self._answer("update", request, ctx)

    async def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Any:
        return await self._answer("retrieve", request, ctx)

    async def _answer(self, operation: str, request: MemoryRequest, ctx: CallContext) -> Any:
        self.asked.append((operation, request, ctx))
        answer = self.answer
        if callable(answer):
            answer = answer()
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Stuck(Plain):
    """A memory that answers when the test lets it, and keeps how it ended."""

    def __init__(self, plugin_id: str, *, ignores_cancellation: bool = False) -> None:
        super().__init__(plugin_id, self._wait)
        self.entered = asyncio.Event()
        self.release = gate()
        self.ignored = asyncio.Event()
        self.left = asyncio.Event()
        self.was_cancelled = False
        self._ignores = ignores_cancellation

    async def _wait(self) -> str:
        self.entered.set()
        try:
            while not self.release.is_set():
                try:
                    await self.release.wait()
                except asyncio.CancelledError:
                    self.was_cancelled = True
                    if not self._ignores:
                        raise
                    self.ignored.set()
        finally:
            self.left.set()
        return f"{self.id} at last"


class Handle:
    """A reactive plugin's side of a subscription."""

    def __init__(self, cursor: str) -> None:
        self.cursor = cursor
        self.unsubscribed = 0
        self.unsubscribe_error: BaseException | None = None
        self.held: asyncio.Event | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    async def unsubscribe(self) -> None:
        self.unsubscribed += 1
        if self.held is not None:
            await self.held.wait()
        self.close()
        if self.unsubscribe_error is not None:
            raise self.unsubscribe_error

    def close(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)

    def disconnect(self, error: BaseException) -> None:
        self._closed.set_exception(error)
        self._closed.exception()


@dataclass
class Opening:
    """One attempt as the plugin sees it."""

    request: PluginSubscribeRequest
    emit: Emit
    ctx: CallContext
    answer: asyncio.Future[Handle] = field(repr=False)

    def opens(self, boundary: str) -> Handle:
        handle = Handle(boundary)
        self.answer.set_result(handle)
        return handle

    def fails(self, error: BaseException) -> None:
        self.answer.set_exception(error)


class Feed(Plain):
    """A reactive memory: each attempt waits until the test opens it, or the subscription stops."""

    def __init__(self, plugin_id: str, *, ignores_signal: bool = False) -> None:
        super().__init__(plugin_id)
        self.attempts = 0
        self._ignores_signal = ignores_signal
        self._openings: asyncio.Queue[Opening] = asyncio.Queue()

    async def subscribe(
        self, request: PluginSubscribeRequest, emit: Emit, ctx: CallContext
    ) -> Handle:
        self.attempts += 1
        opening = Opening(request, emit, ctx, asyncio.get_running_loop().create_future())
        self._openings.put_nowait(opening)
        assert ctx.signal is not None
        forget = ctx.signal.add_callback(lambda: self._give_up(opening))
        try:
            return await opening.answer
        finally:
            forget()

    def _give_up(self, opening: Opening) -> None:
        if not self._ignores_signal and not opening.answer.done():
            opening.fails(ConnectionError("not wanted any more"))

    async def opening(self) -> Opening:
        return await asyncio.wait_for(self._openings.get(), WAIT_SECONDS)


class Store:
    """A cursor store that keeps what was asked of it and can be held or made to fail."""

    def __init__(self, journal: list[str] | None = None, **saved: str) -> None:
        self.saved = saved
        self.journal = [] if journal is None else journal
        self.failures: list[BaseException] = []
        self.held: asyncio.Event | None = None
        self.waiting = asyncio.Event()

    async def load(self, plugin_id: str) -> str | None:
        self.journal.append("load")
        await self._step()
        return self.saved.get(plugin_id)

    async def save(self, plugin_id: str, cursor: str) -> None:
        self.journal.append(f"save {cursor}")
        await self._step()
        self.saved[plugin_id] = cursor

    async def delete(self, plugin_id: str) -> None:
        self.saved.pop(plugin_id, None)

    async def _step(self) -> None:
        if self.held is not None:
            self.waiting.set()
            await self.held.wait()
        if self.failures:
            raise self.failures.pop(0)


class Consumer:
    """A subscriber whose handler writes a journal, shared with its store, and can be held."""

    def __init__(self, **saved: str) -> None:
        self.journal: list[str] = []
        self.store = Store(self.journal, **saved)
        self.failures: list[SubscriptionFailure] = []
        self.failed = asyncio.Event()
        self.events: list[Any] = []
        self.held: asyncio.Event | None = None
        self.error: BaseException | None = None
        self.subscription: Any = None

    async def handle(self, event: Any) -> None:
        self.events.append(event)
        self.journal.append(f"handle {event.cursor}")
        if self.held is not None:
            await self.held.wait()
        if self.error is not None:
            raise self.error
        self.journal.append(f"handled {event.cursor}")

    def on_error(self, failure: SubscriptionFailure) -> None:
        self.failures.append(failure)
        self.failed.set()

    async def subscribe(self, memory: MemoryService, **options: Any) -> Any:
        self.subscription = await memory.subscribe(
            SubscribeRequest(meta=META),
            self.handle,
            cursors=self.store,
            on_error=self.on_error,
            **options,
        )
        return self.subscription

    async def until_journal_has(self, entry: str) -> None:
        await until(lambda: entry in self.journal)


async def until(predicate: Callable[[], bool]) -> None:
    """Return when `predicate` holds; whatever makes it hold runs on this loop."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not predicate():  # noqa: ASYNC110 - what it waits for has no event
            await asyncio.sleep(0)


async def quiet() -> None:
    """Return when whatever could go on without an event from outside has gone on."""
    for _ in range(100):
        await asyncio.sleep(0)


async def settled(awaitable: Any) -> Any:
    return await asyncio.wait_for(awaitable, WAIT_SECONDS)
