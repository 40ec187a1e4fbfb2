"""A subscription: one worker for each plugin, and one shutdown for all of them.

A worker loads its cursor once and makes attempts until one ends in order, the subscription stops,
or a failure is not to be retried. No worker affects another, and a subscription whose workers have
all ended stays open until somebody ends it.

Everything that ends a subscription leads to one shutdown: tell the workers by the subscription's
own signal, wait for them and the handlers they run, drop the effect in the scope of the owner, and
only then count as closed. A handler that ends its own subscription does not wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from patchouli.harness import Aborted, CancelSource
from patchouli.memory_service.attempt import Attempt, Delivery
from patchouli.memory_service.backoff import delay_ms
from patchouli.memory_service.changes import require_cursor
from patchouli.memory_service.consumer import SubscriptionFailure
from patchouli.memory_service.errors import MemorySubscriptionError
from patchouli.memory_service.results import error_text, fatal_failure
from patchouli.memory_service.routing import require_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from patchouli.harness import CancelSignal, Context, Logger
    from patchouli.memory_service.consumer import ChangeHandler, CursorStore
    from patchouli.memory_service.meta import CallMeta
    from patchouli.memory_service.registry import Entry
    from patchouli.memory_service.tasks import Tasks


class Reporter:
    """Tells a consumer of failures, and never lets it fail itself."""

    __slots__ = ("_logger", "_on_error")

    def __init__(
        self, on_error: Callable[[SubscriptionFailure], None] | None, logger: Logger
    ) -> None:
        self._on_error = on_error
        self._logger = logger

    def report(self, plugin_id: str, error: MemorySubscriptionError) -> None:
        """Call the consumer back; without a callback the failure is logged."""
        logger = self._logger
        if self._on_error is None:
            logger.warning("subscription to plugin %s failed: %s", plugin_id, error_text(error))
            return
        try:
            answer: object = self._on_error(SubscriptionFailure(plugin_id=plugin_id, error=error))
            require_answer(answer, "on_error")
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:  # the consumer's own code
            text = error_text(raised)
            logger.error("on_error failed for plugin %s: %s", plugin_id, text, exc_info=raised)


class RunningSubscription:
    """A subscription and its shutdown."""

    __slots__ = (
        "_closed",
        "_closing",
        "_drained",
        "_effect",
        "_forget_signal",
        "_on_closed",
        "_source",
        "_tasks",
        "_workers",
        "plugin_ids",
    )

    plugin_ids: tuple[str, ...]

    def __init__(
        self,
        entries: Sequence[Entry],
        tasks: Tasks,
        on_closed: Callable[[RunningSubscription], None],
    ) -> None:
        self.plugin_ids = tuple(entry.plugin_id for entry in entries)
        self._tasks = tasks
        self._on_closed = on_closed
        self._source = CancelSource()
        self._workers: dict[_Worker, asyncio.Task[None]] = {}
        self._closing: asyncio.Task[None] | None = None
        self._drained = asyncio.Event()
        self._closed = asyncio.Event()
        self._forget_signal: Callable[[], None] | None = None

    def attach(self, ctx: Context) -> None:
        """Have it end with the scope of `ctx`; raises if that scope stops."""
        self._effect = ctx.effect(lambda: self._undo, "patchouli subscription")

    def start(
        self,
        entries: Sequence[Entry],
        *,
        meta: CallMeta,
        handler: ChangeHandler,
        store: CursorStore,
        reporter: Reporter,
        max_pending: int,
        sleep: Callable[[float], Awaitable[Any]],
        random: Callable[[], float],
        signal: CancelSignal | None,
    ) -> None:
        """Start the workers, and end with `signal`."""
        for entry in entries:
            if (subscribe := entry.subscribe) is None:
                continue  # they are all reactive
            delivery = Delivery(
                plugin_id=entry.plugin_id,
                subscribe=subscribe,
                meta=meta,
                handler=handler,
                store=store,
                signal=self._source.signal,
                max_pending=max_pending,
                tasks=self._tasks,
                halted=asyncio.get_running_loop().create_future(),
            )
            worker = _Worker(delivery, entry, reporter, sleep, random)
            name = f"patchouli subscription {entry.plugin_id}"
            self._workers[worker] = self._tasks.start(worker.run(), name)
        if signal is not None:
            self._forget_signal = signal.add_callback(lambda: self.stop(signal.reason))

    def stop(self, reason: Exception | None) -> None:
        """Begin the shutdown, unless it has begun."""
        if self._closing is None:
            # The task first: a callback of the signal may come here again.
            self._closing = self._tasks.start(self._close(), "patchouli subscription end")
            self._source.cancel(reason)

    async def wait_closed(self) -> None:
        """Return when all is cleaned up."""
        await self._closed.wait()

    async def unsubscribe(self) -> None:
        """End it; from inside a handler, begin to."""
        self.stop(Aborted("unsubscribed"))
        task = asyncio.current_task()
        if any(task is worker.delivery.consumer for worker in self._workers):
            return
        await self._closed.wait()

    async def _undo(self) -> None:
        self.stop(Aborted("the scope of the subscription stops"))
        await self._drained.wait()

    async def _close(self) -> None:
        if self._forget_signal is not None:
            self._forget_signal()
        if self._workers:
            await asyncio.wait(self._workers.values())
        self._drained.set()
        await self._effect.dispose()
        self._on_closed(self)
        self._closed.set()


class _Worker:
    """One plugin's part of a subscription."""

    __slots__ = ("_entry", "_is_loaded", "_random", "_reporter", "_sleep", "delivery")

    def __init__(
        self,
        delivery: Delivery,
        entry: Entry,
        reporter: Reporter,
        sleep: Callable[[float], Awaitable[Any]],
        random: Callable[[], float],
    ) -> None:
        self.delivery = delivery
        self._entry = entry
        self._reporter = reporter
        self._sleep = sleep
        self._random = random
        self._is_loaded = False
        delivery.signal.add_callback(self._halt)
        entry.on_removed[self._removed] = None

    async def run(self) -> None:
        """Make attempts until there is no point in another."""
        try:
            while (failure := await self._attempt()) is not None:
                await self._report(failure)
                if failure.reset_required or not failure.retryable:
                    return
                await self._pause()
        except (Exception, asyncio.CancelledError) as error:  # a task's top
            # Nothing foreign runs in this task (see `tasks`), so the cancellation is its own.
            self._reporter.report(self.delivery.plugin_id, fatal_failure(error))
            raise
        finally:
            self._entry.on_removed.pop(self._removed, None)

    async def _attempt(self) -> MemorySubscriptionError | None:
        """Return what failed; None at an orderly end or a stop."""
        delivery = self.delivery
        try:
            if not self._is_loaded:
                delivery.cursor = await self._load()
                self._is_loaded = True
            if delivery.signal.cancelled:
                return None
            if delivery.removed is not None:
                raise delivery.removed
            await Attempt(delivery).run()
        except Exception as error:  # a task's top
            if delivery.signal.cancelled:
                return None
            return error if isinstance(error, MemorySubscriptionError) else fatal_failure(error)
        return None

    async def _load(self) -> str | None:
        delivery = self.delivery

        def load() -> Awaitable[str | None]:
            return delivery.store.load(delivery.plugin_id)

        cursor = await delivery.tasks.run(load, delivery.store_who, "load")
        if cursor is not None:
            require_cursor(cursor)
        return cursor

    async def _report(self, failure: MemorySubscriptionError) -> None:
        delivery = self.delivery

        def report() -> None:
            self._reporter.report(delivery.plugin_id, failure)

        # What it raises stands for something that ends the program and is on its way already.
        with contextlib.suppress(Exception):
            await delivery.tasks.run(report, f"on_error for {delivery.who}", "answer")

    async def _pause(self) -> None:
        """Wait for the next attempt; a stop or the end of the registration ends the wait.

        Raises:
            Exception: The clock that the host brought failed. To go on without it would be to try
                again and again without a pause.
        """
        delivery = self.delivery
        delay = delay_ms(delivery.failures, self._random())
        delivery.failures += 1

        async def sleep() -> None:
            await self._sleep(delay / 1000)

        sleeping, answer = delivery.tasks.begin(sleep, f"the clock for {delivery.who}", "wait")
        try:
            await asyncio.wait({answer, delivery.halted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            delivery.tasks.cancel(sleeping, delivery.plugin_id, "the wait is over")
        if answer.done():
            answer.result()

    def _halt(self) -> None:
        if not self.delivery.halted.done():
            self.delivery.halted.set_result(None)

    def _removed(self) -> None:
        self.delivery.removed = MemorySubscriptionError(
            f"plugin {self.delivery.plugin_id!r} was unregistered", code="plugin-unregistered"
        )
        self._halt()
