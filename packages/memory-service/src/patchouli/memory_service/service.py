"""The service itself: what the plugin `patchouli` provides, seen from the scope of each caller.

One `_Core` holds the registrations, the calls under way and the subscriptions. Callers never see
it: each gets a facade bound to its own context, and what it makes through that ends with it.
"""

from __future__ import annotations

import asyncio
import random as chance  # noqa: TID251 - this is the door; a caller may bring its own
from typing import TYPE_CHECKING, Any, Final

from patchouli.harness import (
    PATCHOULI_REGISTRATIONS,
    PluginSpec,
    Registrations,
    ScopeClosed,
    require_callable,
)
from patchouli.memory_service.configuration import MemoryServiceConfig
from patchouli.memory_service.dispatch import Dispatch
from patchouli.memory_service.meta import (
    RouteCall,
    SubscribeRequest,
    require_kind,
    require_meta,
)
from patchouli.memory_service.registry import Entry, Registry
from patchouli.memory_service.results import fatal_failure
from patchouli.memory_service.routing import is_async
from patchouli.memory_service.subscriptions import Reporter, RunningSubscription
from patchouli.memory_service.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.harness import CancelSignal, Context, Effect, Undo
    from patchouli.memory_service.consumer import (
        ChangeHandler,
        CursorStore,
        MemoryService,
        Registration,
        Subscription,
        SubscriptionFailure,
    )
    from patchouli.memory_service.meta import MemoryRequest
    from patchouli.memory_service.plugin import MemoryPlugin, RouteFilter
    from patchouli.memory_service.results import Outcome

SERVICE: Final = "patchouli"


def memory_service(
    *,
    sleep: Callable[[float], Awaitable[Any]] | None = None,  # Any: what a sleep returns
    random: Callable[[], float] | None = None,
) -> PluginSpec[MemoryServiceConfig]:
    """Return the plugin that provides the service `patchouli`; it needs no other.

    Args:
        sleep: Waits between the attempts of a subscription (s); None for that of asyncio. If it
            fails, so does the plugin that was to be tried again.
        random: Spreads those waits, a number in [0, 1); None for one of its own.
    """

    def start(ctx: Context, config: MemoryServiceConfig) -> None:
        core = _Core(ctx, config, sleep or asyncio.sleep, random or chance.Random().random)  # noqa: S311 - spreads waits, guards nothing
        ctx.effect(lambda: core.drain, "patchouli calls and subscriptions")
        ctx.provide(SERVICE, core)

    return PluginSpec(name=SERVICE, start=start, config=MemoryServiceConfig.parse)


class _Core:
    """The state that all facades share."""

    def __init__(
        self,
        ctx: Context,
        config: MemoryServiceConfig,
        sleep: Callable[[float], Awaitable[Any]],
        random: Callable[[], float],
    ) -> None:
        self.config = config
        self.sleep = sleep
        self.random = random
        self.tasks = Tasks(grace=config.cancel_grace_ms / 1000, logger=ctx.logger)
        self.registry = Registry(config)
        self.dispatch = Dispatch(self.registry, self.tasks)
        self.subscriptions: set[RunningSubscription] = set()
        self._ctx = ctx

    def for_context(self, ctx: Context) -> MemoryService:
        return _Facade(self, ctx)

    def add(self, entry: Entry) -> Undo:
        self.registry.add(entry)
        try:
            self._notify(entry, registered=True)
        except BaseException:  # what ends the program; nobody could undo the registration any more
            self.remove(entry)
            raise
        return lambda: self.remove(entry)

    def remove(self, entry: Entry) -> None:
        if self.registry.remove(entry):
            self._notify(entry, registered=False)

    async def drain(self) -> None:
        """Cut retrievals, end subscriptions, and return when no plugin is at work."""
        self.dispatch.close()
        ending = tuple(self.subscriptions)
        for subscription in ending:
            subscription.stop(ScopeClosed(scope=SERVICE))
        await self.dispatch.drain()
        for subscription in ending:
            await subscription.wait_closed()

    def _notify(self, entry: Entry, *, registered: bool) -> None:
        notice = Registrations(plugin_id=entry.plugin_id, registered=registered)
        self._ctx.notify(PATCHOULI_REGISTRATIONS, notice)


class _Facade:
    """The service as one scope sees it."""

    __slots__ = ("_core", "_ctx")

    def __init__(self, core: _Core, ctx: Context) -> None:
        self._core = core
        self._ctx = ctx

    def register(
        self,
        plugin: MemoryPlugin,
        *,
        filter: RouteFilter | None = None,  # noqa: A002 - the specification's word
    ) -> Registration:
        core = self._core
        core.dispatch.require_open()
        entry = core.registry.prepare(plugin, filter)
        effect = self._ctx.effect(
            lambda: core.add(entry), f"registration of memory plugin {entry.plugin_id}"
        )
        return _Registration(core, entry, effect)

    async def update(
        self, request: MemoryRequest, *, signal: CancelSignal | None = None
    ) -> tuple[Outcome, ...]:
        return await self._core.dispatch.call("update", request, signal)

    async def retrieve(
        self, request: MemoryRequest, *, signal: CancelSignal | None = None
    ) -> tuple[Outcome, ...]:
        return await self._core.dispatch.call("retrieve", request, signal)

    async def subscribe(
        self,
        request: SubscribeRequest,
        handler: ChangeHandler,
        *,
        cursors: CursorStore,
        on_error: Callable[[SubscriptionFailure], None] | None = None,
        signal: CancelSignal | None = None,
    ) -> Subscription:
        core = self._core
        if signal is not None:
            signal.raise_if_cancelled()
        core.dispatch.require_open()
        require_kind(request, SubscribeRequest)
        require_meta(request.meta)
        require_callable(handler, "handler")
        if on_error is not None:
            require_callable(on_error, "on_error")
            if is_async(on_error):
                raise TypeError("on_error must be a plain function: nobody awaits it")
        entries, refused = self._reactive(RouteCall(operation="subscribe", meta=request.meta))
        subscription = RunningSubscription(entries, core.tasks, core.subscriptions.discard)
        subscription.attach(self._ctx)
        core.subscriptions.add(subscription)
        reporter = Reporter(on_error, core.tasks.logger)
        for entry, error in refused:
            reporter.report(entry.plugin_id, fatal_failure(error))
        subscription.start(
            entries,
            meta=request.meta,
            handler=handler,
            store=cursors,
            reporter=reporter,
            max_pending=core.config.max_pending_changes,
            sleep=core.sleep,
            random=core.random,
            signal=signal,
        )
        return subscription

    def matching(self, call: RouteCall) -> tuple[str, ...]:
        require_kind(call, RouteCall, "call")
        return tuple(
            entry.plugin_id
            for entry in self._core.registry.entries
            if (call.operation != "subscribe" or entry.subscribe is not None)
            and self._admits(entry, call)
        )

    def _admits(self, entry: Entry, call: RouteCall) -> bool:
        try:
            return entry.admits(call)
        except BaseException as error:  # a plugin call; a filter that fails counts as a refusal
            self._core.tasks.caught(error, f"the filter of plugin {entry.plugin_id}")
            return False

    def _reactive(self, call: RouteCall) -> tuple[list[Entry], list[tuple[Entry, BaseException]]]:
        admitted: list[Entry] = []
        refused: list[tuple[Entry, BaseException]] = []
        for entry in self._core.registry.entries:
            if entry.subscribe is None:
                continue
            try:
                if entry.admits(call):
                    admitted.append(entry)
            except BaseException as error:  # a plugin call
                self._core.tasks.caught(error, f"the filter of plugin {entry.plugin_id}")
                refused.append((entry, error))
        return admitted, refused


class _Registration:
    __slots__ = ("_core", "_effect", "_entry")

    def __init__(self, core: _Core, entry: Entry, effect: Effect) -> None:
        self._core = core
        self._entry = entry
        self._effect = effect

    @property
    def plugin_id(self) -> str:
        return self._entry.plugin_id

    async def dispose(self) -> None:
        self._core.remove(self._entry)  # at once; the undo finds nothing left to do
        await self._effect.dispose()
