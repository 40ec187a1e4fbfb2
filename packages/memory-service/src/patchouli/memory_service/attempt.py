"""One attempt of one plugin's part of a subscription: from the opening of the plugin to its end.

    opening ──▶ boundary being saved ──▶ live ──▶ ending
       └──────────────┴───────────────────┴─────────▲   disconnect, failure, overflow, stop

Changes wait in a queue from the first moment on; the consumer of the queue starts when the boundary
is saved, so no handler runs before that, or when the attempt ends, to settle what is left. It works
on one change at a time: handler, then save. Whatever ends the attempt, except an orderly end,
refuses each change that is not yet begun; the change being handled runs to its end, and is saved
unless the subscription stops, so that what was not saved comes again. An overflow refuses only what
is emitted from then on and lets the queue drain first: a plugin that emits a long backlog without
waiting would otherwise fail each time before its first change was handled.

What is not decided here: whether to try again, and what a failure means.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from patchouli.memory_service.changes import (
    Boundary,
    Change,
    ChangeEvent,
    require_cursor,
    require_emitted,
)
from patchouli.memory_service.errors import MemorySubscriptionError
from patchouli.memory_service.meta import CallContext, CallMeta, PluginSubscribeRequest
from patchouli.memory_service.results import as_exception

if TYPE_CHECKING:
    from patchouli.harness import CancelSignal
    from patchouli.memory_service.consumer import ChangeHandler, CursorStore
    from patchouli.memory_service.plugin import PluginSubscription, Subscribe
    from patchouli.memory_service.tasks import Tasks

TURN: Final = 64  # changes in a row before others on the loop get a turn


@dataclass(slots=True, kw_only=True)
class Delivery:
    """What the attempts of one worker share.

    Attributes:
        signal: Tells that the subscription stops.
        halted: Done when the subscription stops or the plugin is unregistered.
        removed: The failure to report once the plugin is unregistered.
        cursor: The last saved position.
        failures: Failures in a row without progress.
        consumer: The task that runs handlers now.
    """

    plugin_id: str
    subscribe: Subscribe
    meta: CallMeta
    handler: ChangeHandler
    store: CursorStore
    signal: CancelSignal
    max_pending: int
    tasks: Tasks
    halted: asyncio.Future[None]
    removed: MemorySubscriptionError | None = None
    cursor: str | None = None
    failures: int = 0
    consumer: asyncio.Task[None] | None = field(default=None)

    @property
    def who(self) -> str:
        """The plugin, as the log names it."""
        return f"plugin {self.plugin_id}"

    @property
    def store_who(self) -> str:
        """The store, as the log names it."""
        return f"the cursor store for plugin {self.plugin_id}"


class Attempt:
    """See the module."""

    __slots__ = (
        "_delivery",
        "_failure",
        "_handle",
        "_idle",
        "_is_abandoned",
        "_is_accepting",
        "_is_ending",
        "_loop",
        "_over",
        "_overflow",
        "_queue",
        "_saving",
        "_unsubscribe_failure",
    )

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[Change | Boundary, asyncio.Future[None]]] = deque()
        self._failure: Exception | None = None  # the first one, which is the one to report
        self._handle: PluginSubscription | None = None  # until it is told to unsubscribe
        self._unsubscribe_failure: Exception | None = None  # reported if nothing else failed
        self._overflow: MemorySubscriptionError | None = None
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._idle: asyncio.Future[None] | None = None  # what the consumer waits for
        self._is_accepting = True
        self._is_ending = False
        self._is_abandoned = False
        self._saving = delivery.tasks.steps("%s takes long to save", delivery.store_who)

    async def run(self) -> None:
        """Return at an orderly end or a stop, with every change settled.

        Raises:
            Exception: What ended the attempt.
            CancelledError: The worker was cancelled, which nothing in the service does. Changes are
                refused, and the plugin has had the grace to unsubscribe.
        """
        delivery = self._delivery
        watcher: asyncio.Task[None] | None = None
        consumer: asyncio.Task[None] | None = None
        try:
            handle = await self._open()
            if handle is not None:
                watcher = delivery.tasks.start(self._watch(handle), self._name("closed"))
                await self._save_boundary(handle)
            consumer = delivery.tasks.start(self._consume(), self._name("changes"))
            delivery.consumer = consumer
            if handle is not None and self._failure is None:
                await asyncio.wait(
                    {self._over, delivery.halted, consumer}, return_when=asyncio.FIRST_COMPLETED
                )
            if consumer.done():  # somebody cancelled it before its first step, or it ends all
                self._fail(asyncio.CancelledError())
            self._is_accepting = False
            if delivery.removed is not None and not self._over.done():
                self._fail(delivery.removed)
            await self._unsubscribe()
            self._end_consumer()
            await asyncio.wait({consumer})
            await asyncio.sleep(0)  # lets a watcher that was just told end by itself
        except BaseException as error:  # nothing foreign runs here
            self._fail(error)
            raise
        finally:
            self._is_accepting = False
            self._end_consumer()
            if consumer is None or consumer.done():
                self._refuse_rest()
            if watcher is not None:
                delivery.tasks.cancel(watcher, delivery.plugin_id, "the attempt has ended")
            if self._handle is not None:  # the worker was cancelled
                ending = delivery.tasks.start(self._unsubscribe(), self._name("end"))
                await asyncio.wait({ending}, timeout=delivery.tasks.grace)
        failure = self._failure or self._overflow or self._unsubscribe_failure
        if watcher is not None and not watcher.done():
            await asyncio.sleep(0)
        if failure is not None:
            raise failure

    def _emit(self, emitted: Change | Boundary) -> asyncio.Future[None]:
        settled: asyncio.Future[None] = self._loop.create_future()
        if not self._is_accepting:
            settled.set_result(None)
            return settled
        if self._overflow is None and len(self._queue) >= self._delivery.max_pending:
            self._overflow = MemorySubscriptionError(
                f"more than {self._delivery.max_pending} changes wait",
                retryable=True,
                code="too-many-pending",
            )
            self._end()
        if (refusal := self._failure or self._overflow) is not None:
            _refuse(settled, refusal)
            return settled
        self._queue.append((emitted, settled))
        self._wake_consumer()
        return settled

    async def _open(self) -> PluginSubscription | None:
        """Return what the plugin opened; None if it failed or was not waited for."""
        delivery = self._delivery
        opening = delivery.tasks.start(self._subscribe(), self._name("subscribe"))
        timer = delivery.tasks.watch("%s takes long to subscribe", delivery.who)
        try:
            await asyncio.wait({opening, delivery.halted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            self._is_abandoned = not opening.done()
        if self._handle is None and self._failure is None:
            if delivery.removed is not None:
                self._fail(delivery.removed)
            elif not delivery.signal.cancelled:  # somebody cancelled it before its first step
                self._fail(asyncio.CancelledError())
        return self._handle

    async def _subscribe(self) -> None:
        delivery = self._delivery
        if delivery.halted.done():  # since this task was made
            return
        request = PluginSubscribeRequest(meta=delivery.meta, after_cursor=delivery.cursor)
        try:
            opened = delivery.subscribe(request, self._emit, CallContext(signal=delivery.signal))
            handle: Any = await opened if inspect.isawaitable(opened) else opened  # Any: unchecked
            if self._is_abandoned:
                await handle.unsubscribe()
                return
            _require_subscription(handle)
            self._handle = handle
        except BaseException as error:  # a plugin call
            if not self._is_abandoned:
                self._fail(error)
            delivery.tasks.caught(error, delivery.who)

    async def _watch(self, handle: PluginSubscription) -> None:
        try:
            await handle.wait_closed()
        except BaseException as error:  # a plugin call
            if self._handle is not None:  # what it says once it was told to end is no disconnect
                self._fail(error)
            elif isinstance(error, asyncio.CancelledError):
                return  # cut
            self._delivery.tasks.caught(error, self._delivery.who)
        else:
            self._end()

    async def _save_boundary(self, handle: PluginSubscription) -> None:
        delivery = self._delivery

        async def save() -> str:
            boundary = handle.cursor
            require_cursor(boundary)
            await delivery.store.save(delivery.plugin_id, boundary)
            return boundary

        try:
            delivery.cursor = await delivery.tasks.run(save, delivery.store_who, "save")
        except Exception as error:  # the consumer's own code
            self._fail(error)

    async def _consume(self) -> None:
        queue = self._queue
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that asyncio runs
        count = 0
        while queue or not self._is_ending:
            try:
                if queue:
                    await self._apply(*queue.popleft())
                    count += 1
                    if count % TURN == 0:
                        await asyncio.sleep(0)
                else:
                    self._idle = self._loop.create_future()
                    await self._idle
            except asyncio.CancelledError as error:  # a handler left it in this task
                self._fail(error)
            while task.cancelling():  # the next handler has nothing to do with it
                task.uncancel()

    async def _apply(self, emitted: Change | Boundary, settled: asyncio.Future[None]) -> None:
        delivery = self._delivery
        failure = self._failure or delivery.removed
        if failure is not None:
            self._fail(failure)
            _refuse(settled, failure)
            return
        try:
            require_emitted(emitted)
            cursor = emitted.cursor
            if cursor == delivery.cursor:
                _settle(settled)
                return
            if (stopped := delivery.signal.reason) is not None:
                _refuse(settled, stopped)
                return
            if isinstance(emitted, Change):
                event = ChangeEvent(
                    cursor=cursor,
                    memory_id=emitted.memory_id,
                    metadata=emitted.metadata,
                    plugin_id=delivery.plugin_id,
                )
                answer = delivery.handler(event)
                if answer is not None and inspect.isawaitable(answer):
                    await answer
                if (stopped := delivery.signal.reason) is not None:
                    _refuse(settled, stopped)
                    return
            self._saving.begin()
            await delivery.store.save(delivery.plugin_id, cursor)
        except BaseException as error:  # the consumer's own code
            _refuse(settled, self._fail(error))
            delivery.tasks.caught(error, f"a change of {delivery.who}")
            return
        finally:
            self._saving.end()
        delivery.cursor = cursor
        if isinstance(emitted, Change):
            delivery.failures = 0
        _settle(settled)

    async def _unsubscribe(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        tasks, who = self._delivery.tasks, self._delivery.who
        try:
            await tasks.run(lambda: handle.unsubscribe(), who, "unsubscribe")
        except Exception as error:  # a plugin call; it touches no change
            self._unsubscribe_failure = error

    def _fail(self, error: BaseException) -> Exception:
        """End the attempt, with `error` unless it has failed; return `error` as an exception."""
        failure = as_exception(error)
        if self._failure is None:
            self._failure = failure
        self._end()
        return failure

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _end_consumer(self) -> None:
        self._is_ending = True
        self._wake_consumer()

    def _refuse_rest(self) -> None:
        """Refuse what no consumer is there for: it never began, or it ended the program."""
        failure = self._failure or self._overflow
        while self._queue and failure is not None:
            _refuse(self._queue.popleft()[1], failure)

    def _wake_consumer(self) -> None:
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    def _name(self, what: str) -> str:
        return f"patchouli {what} {self._delivery.plugin_id}"


def _require_subscription(handle: object) -> None:
    for method in ("wait_closed", "unsubscribe"):
        if not callable(getattr(handle, method, None)):
            raise TypeError(f"subscribe returned a {type(handle).__name__} without {method}")


def _settle(settled: asyncio.Future[None]) -> None:
    if not settled.done():  # who emitted may have been cancelled while it waited
        settled.set_result(None)


def _refuse(settled: asyncio.Future[None], error: Exception) -> None:
    if not settled.done():
        settled.set_exception(error)
        settled.exception()  # it may be ignored: the attempt reports the failure
