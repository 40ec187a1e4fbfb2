"""Runs: one life of a plugin, which is also the context of it.

A run is begun by its scope (`patchouli.harness.scopes`) with the provisions that met its needs, and
told by it when it is active and when it stops. It never begins again: a context that outlives its
run makes nothing in a later one. It knows the run above it, and its scope by one function alone.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from patchouli.harness.dispatch import Dispatcher, Registered
from patchouli.harness.effects import Effects
from patchouli.harness.errors import Aborted, ScopeClosed, ServiceUnavailable
from patchouli.harness.handlers import Handlers
from patchouli.harness.plugin import (
    STOP_LIMIT_MS,
    Context,
    Effect,
    EffectBody,
    Listener,
    Logger,
    PluginScope,
    PluginSpec,
    StartFn,
    Undo,
    require_callable,
    require_names,
)
from patchouli.harness.services import Provision, Services
from patchouli.harness.signals import CancelSource
from patchouli.harness.tasks import RunTasks, Tasks, abandon, for_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What all scopes of a kernel share."""

    logger: Callable[[str], Logger]
    start_limit: float  # s
    tasks: Tasks
    services: Services = field(default_factory=Services)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    scopes: dict[PluginScope, None] = field(default_factory=dict[PluginScope, None])  # as installed
    transitions: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


class Run(Context):
    """One life of a plugin, and the context of it.

    Attributes:
        bound: What meets its needs, by name.
        provisions: What it publishes and has not withdrawn.
        effects: What it has made.
        ended: Set when all of it is undone.
        body: The task of its start, once that runs.
    """

    def __init__(
        self,
        core: Core,
        above: Run | None,
        name: str,
        needs: tuple[str, ...],
        bound: dict[str, Provision],
        install: Callable[[PluginSpec[Any], object], PluginScope],
    ) -> None:
        self.bound = bound
        self.provisions: dict[Provision, None] = {}
        self.ended = asyncio.Event()
        self.body: asyncio.Task[None] | None = None
        self._core = core
        self._above = above
        self._name = name
        self._needs = needs
        self._install = install
        self._source = CancelSource()
        self._is_open = True  # for new effects
        self._is_active = False
        self._tasks = RunTasks(core.tasks, core.logger(name))
        self.effects = Effects(self._tasks)
        self._entries: dict[asyncio.Task[Undo], None] = {}  # which the body awaits
        self._handlers = Handlers(self._tasks, limit=STOP_LIMIT_MS / 1000)
        for provision in bound.values():
            provision.bound[self.ended] = None

    # What the scope does with its run.

    @property
    def has_lost_a_need(self) -> bool:
        """Whether something that the run began with has gone."""
        return not all(provision.is_visible for provision in self.bound.values())

    def all_tasks(self) -> set[asyncio.Task[Any] | None]:
        """Return the tasks that the run waits for, those of handlers in progress included."""
        return {*self._tasks.all(), *self._handlers.callers()} - {None}

    async def start(self, spec: PluginSpec[Any], raw: object) -> BaseException | None:
        """Run the body and return what it raised, or None.

        A run that is told to stop meanwhile waits for its body, but not for ever.
        """
        body = self.body = self._tasks.own(self._body(spec, raw), f"{self._name} start")
        told = asyncio.get_running_loop().create_future()
        forget = self.signal.add_callback(lambda: told.set_result(None))
        await asyncio.wait({body, told}, return_when=asyncio.FIRST_COMPLETED)
        forget()
        if not body.done():
            await asyncio.wait({body}, timeout=self._core.start_limit)
        if not body.done():
            self.logger.error(
                "the start of %s goes on %g s after it was told to stop",
                self._name,
                self._core.start_limit,
            )
            await self._tasks.cut({body})
        if not body.done():
            abandon(body, self.logger, f"the start of {self._name}")
            return Aborted("the start does not end")
        # Whoever awaits the scope was not cancelled, and must not look as if it were.
        return Aborted("the start was cancelled") if body.cancelled() else body.exception()

    def activate(self) -> None:
        """Let others see what the run publishes."""
        self._is_active = True
        for provision in self.provisions:
            provision.is_visible = True
        for provision in list(self.provisions):
            self._core.services.wake(provision.name)

    def tell(self, why: str) -> None:
        """Fire the signal of the run."""
        self._source.cancel(Aborted(why))

    def begin_stop(self) -> None:
        """Take no more effects and let nobody see what the run publishes, all in this step."""
        self._is_open = self._is_active = False
        left, self._entries = self._entries, {}
        for entry in left:
            entry.add_done_callback(self._log_failed_entry)
        for provision in self.provisions:
            provision.is_visible = False
        self.tell(f"{self._name} stops")
        for provision in list(self.provisions):
            self._core.services.wake(provision.name)

    async def unbound(self) -> None:
        """Return when everyone who began with what the run publishes has ended."""
        for provision in list(self.provisions):
            await provision.unbound()

    async def undo(self) -> None:
        """Undo all that was made in the run, from the last to the first."""
        for effect in self.effects.in_progress():
            await effect.dispose()
        await self._handlers.ended()
        await self.effects.undo_all()

    def end(self) -> None:
        """Let go of what the run was bound to, and tell those who waited for its end."""
        for provision in self.bound.values():
            provision.bound.pop(self.ended, None)
        self.ended.set()

    # The context of the plugin.

    @property
    def logger(self) -> Logger:
        """The logger of the nearest named plugin."""
        return self._tasks.logger

    @property
    def signal(self) -> CancelSignal:
        """Fires when the run is told to stop."""
        return self._source.signal

    def plugin(self, spec: PluginSpec[Any], config: Any = None) -> PluginScope:
        """Install a child."""
        self._require_open()
        if not isinstance(spec, PluginSpec):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
            raise TypeError(f"a plugin of the kernel is a PluginSpec, not {spec!r}")
        return self._install(spec, config)

    def when(self, needs: Sequence[str], body: StartFn, name: str = "") -> PluginScope:
        """Install a child that follows `needs`."""
        require_names(needs)  # before a text becomes a tuple of its letters
        require_callable(body, "a body")

        def start(ctx: Context, _: object) -> Awaitable[Undo | None] | Undo | None:
            return body(ctx)

        return self.plugin(PluginSpec(name=name, start=start, needs=tuple(needs)))

    def provide(self, name: str, value: object) -> Effect:
        """Publish a service."""
        self._require_open()
        provision = Provision(name, value, provider=self._name, is_visible=self._is_active)
        self._core.services.publish(provision)
        self.provisions[provision] = None

        async def withdraw() -> None:
            del self.provisions[provision]
            await self._core.services.withdraw(provision)

        return self.effects.record(f"service {name}", withdraw, limit=None)

    def get(self, name: str) -> Any:
        """Return a service that is needed or provided here or above."""
        provision = self._core.services.find(name)
        is_declared = is_provided_above = False
        run: Run | None = self
        while run is not None:
            is_declared = is_declared or name in run._needs
            is_provided_above = is_provided_above or provision in run.provisions
            run = run._above
        if provision is not None and (is_provided_above or (is_declared and provision.is_visible)):
            return self._bound_value(provision)
        raise ServiceUnavailable(service=name, scope=self._name, is_declared=is_declared)

    def find(self, name: str) -> Any | None:
        """Return a service whose provider is active."""
        provision = self._core.services.visible(name)
        return None if provision is None else self._bound_value(provision)

    def effect(
        self,
        enter: Callable[[], EffectBody],
        label: str = "",
        *,
        undo_limit_ms: int = STOP_LIMIT_MS,
    ) -> Effect:
        """Make something and record its undo."""
        self._require_open()
        require_callable(enter, "what makes an effect")
        body = enter()
        undo = self._undo_once_entered(body, label) if inspect.isawaitable(body) else body
        require_callable(undo, f"the undo of {label!r}")
        return self.effects.record(label, undo, limit=undo_limit_ms / 1000)

    def spawn(self, coro: Coroutine[Any, Any, R], *, name: str) -> asyncio.Task[R]:
        """Run a loop that may be cut anywhere."""
        if not self._is_open:
            coro.close()
        self._require_open()
        task = self._tasks.own(coro, name)

        async def undo() -> None:
            await self._tasks.cut({task})

        effect = self.effects.record(f"task {name}", undo, limit=None)

        def ended(task: asyncio.Task[R]) -> None:
            effect.forget()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.logger.error("task %s failed: %s", name, error, exc_info=error)

        task.add_done_callback(ended)
        return task

    def on(self, event: str, listener: Listener, *, prepend: bool = False) -> Effect:
        """Have `listener` called."""
        self._require_open()
        require_callable(listener, f"a listener of {event}")
        registered = Registered(self._handlers, event, listener)
        self._core.dispatcher.add(registered, prepend=prepend)

        async def undo() -> None:
            self._core.dispatcher.remove(registered)
            # One that is removed before the stop may be in progress, even remove itself.
            if not self._is_open:
                await self._handlers.ended()

        return self.effects.record(f"listener of {event}", undo, limit=None)

    def notify(self, event: str, *args: object) -> None:
        """Call all; contain what they raise."""
        self._core.dispatcher.notify(event, *args)

    def announce(self, event: str, *args: object) -> None:
        """Call all until one raises."""
        self._core.dispatcher.announce(event, *args)

    async def gather(self, event: str, *args: object) -> None:
        """Call all, await all, then raise the first failure."""
        await self._core.dispatcher.gather(event, *args)

    async def serial(self, event: str, *args: object) -> Any:
        """Await one after another until one returns something."""
        return await self._core.dispatcher.serial(event, *args)

    async def chain(self, event: str, *args: object, default: Callable[[], Any]) -> Any:
        """Nest all around `default`."""
        require_callable(default, f"the default of {event}")
        return await self._core.dispatcher.chain(event, *args, default=default)

    async def _body(self, spec: PluginSpec[Any], raw: object) -> None:
        if self.signal.cancelled:  # told to stop before this first step
            return
        config = raw if spec.config is None else spec.config(raw)
        result = spec.start(self, config)
        undo = await result if inspect.isawaitable(result) else result
        if undo is not None:
            require_callable(undo, f"what the start of {self._name} returns")
            # Never refused: what a start returns must be undone, even if it was told to stop.
            effect = self.effects.record(f"start of {spec.name}", undo, limit=STOP_LIMIT_MS / 1000)
            if self.ended.is_set():
                await effect.dispose()
        while self._entries:
            entry = next(iter(self._entries))
            try:
                await entry
                if (failure := _failure_of(entry)) is not None:
                    raise failure
            finally:
                self._entries.pop(entry, None)

    def _undo_once_entered(self, body: Awaitable[Undo], label: str) -> Undo:
        entry = self._tasks.own(for_task(body), f"effect {label}")
        if self.body is not None and not self.body.done():
            self._entries[entry] = None
        else:
            entry.add_done_callback(self._log_failed_entry)

        async def undo() -> None:
            await asyncio.wait({entry})
            if not entry.cancelled() and _failure_of(entry) is None:
                result = entry.result()()
                if inspect.isawaitable(result):
                    await result

        return undo

    def _log_failed_entry(self, entry: asyncio.Task[Undo]) -> None:
        if not entry.cancelled() and (error := _failure_of(entry)) is not None:
            self.logger.error("%s failed: %s", entry.get_name(), error, exc_info=error)

    def _require_open(self) -> None:
        if not self._is_open:
            raise ScopeClosed(scope=self._name)

    def _bound_value(self, provision: Provision) -> Any:
        bind = getattr(provision.value, "for_context", None)
        return bind(self) if callable(bind) else provision.value


def _failure_of(entry: asyncio.Task[Undo]) -> BaseException | None:
    """Return what an effect raised that has been entered, or that what it gave is no undo."""
    if (error := entry.exception()) is not None or callable(entry.result()):
        return error
    return TypeError(f"the undo of {entry.get_name()} must be callable, not {entry.result()!r}")
