"""Scopes and their runs: plugins live while the services they need are there, and leave no trace.

A `Scope` is an installed plugin, a `Run` one life of it: begun when every need was met, bound to
exactly those provisions, ended when one of them went or the scope was closed. A run is also the
context of the plugin, so a context that outlives its run can make nothing in a later one.

| State    | Meaning                         | Leaves to                          |
|----------|---------------------------------|------------------------------------|
| WAITING  | a need is not met               | STARTING, CLOSED                   |
| STARTING | configuration, then the body    | ACTIVE, STOPPING                   |
| ACTIVE   | running, its services are seen  | STOPPING                           |
| STOPPING | its effects are undone          | WAITING, STARTING, FAILED, CLOSED  |
| FAILED   | the start raised, all is undone | STARTING, CLOSED                   |
| CLOSED   | final                           |                                    |

Rules that the code keeps:

- A need is met by a provision whose run is active. Whoever is bound to a provision that goes is
  marked as stopping in the same step of the loop, and so is whoever is bound to that one in turn:
  no plugin is ever active without all it needs.
- A transition is one task of the scope, started when one is due; it looks again before it ends, so
  whatever happens meanwhile needs only to be visible in the state.
- To stop, a run waits for the runs bound to its provisions, then for the runs below it that have
  lost a need themselves, then undoes its effects from the last to the first, one at a time.
- All of these waits are for runs that began later than the waiting one, so they cannot form a
  circle. What a plugin's own code waits for is not known: so the undo of an effect has a time
  limit, and so has a start that goes on after its run was told to stop.

What is not decided here: where configuration comes from, which plugins there are.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from patchouli.harness.dispatch import Dispatcher, Registered
from patchouli.harness.effects import RecordedEffect
from patchouli.harness.errors import Aborted, ScopeClosed, ServiceUnavailable
from patchouli.harness.handlers import Handlers
from patchouli.harness.plugin import (
    Context,
    Effect,
    EffectBody,
    Listener,
    Logger,
    PluginScope,
    PluginSpec,
    ScopeState,
    StartFn,
    Undo,
    require_names,
)
from patchouli.harness.services import Provision, Services
from patchouli.harness.signals import CancelSource
from patchouli.harness.tasks import Tasks, abandon, for_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence

    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")

UNDO_LIMIT_MS: Final = 30_000  # then the undo is logged and abandoned

_SETTLED: Final = frozenset(
    (ScopeState.WAITING, ScopeState.ACTIVE, ScopeState.FAILED, ScopeState.CLOSED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """What all scopes of a kernel share."""

    logger: Callable[[str], Logger]
    start_limit: float  # s
    tasks: Tasks
    services: Services = field(default_factory=Services)
    dispatcher: Dispatcher = field(default_factory=Dispatcher)
    scopes: dict[Scope, None] = field(default_factory=dict["Scope", None])  # as installed
    transitions: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


class Scope(PluginScope):
    """An installed plugin."""

    def __init__(self, core: Core, parent: Run | None, spec: PluginSpec[Any], raw: object) -> None:
        self.core = core
        self.parent = parent
        self.spec = spec
        self.run: Run | None = None
        self.transition: asyncio.Task[None] | None = None
        self._raw = raw
        self._state = ScopeState.WAITING
        self._error: BaseException | None = None
        self._failed_with: dict[str, Provision] = {}
        self._is_closing = False
        # A restart must not run with the variables of whoever happened to cause it.
        self._variables = contextvars.copy_context()

    @property
    def name(self) -> str:
        """The name of the plugin, or of the nearest one above that has one."""
        if self.spec.name or self.parent is None:
            return self.spec.name
        return self.parent.scope.name

    @property
    def state(self) -> ScopeState:
        """Where it is now."""
        return self._state

    @property
    def error(self) -> BaseException | None:
        """What the last start raised, while the scope is failed."""
        return self._error

    @property
    def missing(self) -> tuple[str, ...]:
        """The needs that are not met now."""
        return tuple(name for name in self.spec.needs if self.core.services.visible(name) is None)

    def __repr__(self) -> str:
        return f"<plugin {self.name or 'without a name'}: {self._state}>"

    def __await__(self) -> Generator[Any, None, PluginScope]:
        return self._outcome().__await__()

    async def _outcome(self) -> PluginScope:
        if self.run is not None and asyncio.current_task() is self.run.body:
            raise RuntimeError(f"the start of {self.name} waits for its own end")
        await self._settled()
        if self._error is not None:
            raise self._error
        return self

    async def close(self) -> None:
        """Stop for good; every call returns when the one stop has ended."""
        current = asyncio.current_task()
        if any(current in scope.run.all_tasks() for scope in self._subtree() if scope.run):
            raise RuntimeError(f"{self.name} is closed by a task or handler that it waits for")
        await self.close_below()

    async def close_below(self) -> None:
        """Close for the stop of a parent; the tasks that must not have been looked at there."""
        self._is_closing = True
        self.wake()
        await self._settled()

    async def _settled(self) -> None:
        while self.transition is not None:
            await asyncio.wait({self.transition})

    def _subtree(self) -> Iterator[Scope]:
        scopes: list[Scope] = [self]
        while scopes:
            scope = scopes.pop()
            yield scope
            if scope.run is not None:
                scopes.extend(scope.run.children)

    def install(self) -> None:
        """Enter the tree, and start if nothing is missing."""
        self.core.scopes[self] = None
        self.core.services.add_needs(self, self.spec.needs)
        self.wake()

    def begin_as_root(self) -> Run:
        """Begin the one run of the host, which needs no start."""
        self.core.scopes[self] = None
        self.run = Run(self, {})
        self._state = ScopeState.ACTIVE
        return self.run

    def wake(self) -> None:
        """Take note, in this step of the loop, of whatever has changed for this scope."""
        if self._state in _SETTLED:
            if self._mark_if_due() and self.transition is None:
                self.transition = self.core.tasks.own(
                    self._move(), name=f"{self.name} transition", context=self._variables.copy()
                )
                self.core.transitions.add(self.transition)
                self.transition.add_done_callback(self.core.transitions.discard)
        elif self._state is ScopeState.STARTING:
            assert self.run is not None  # noqa: S101 - a start has its run
            if self._is_closing:
                self._mark_stopping(self.run)
            elif self.run.has_lost_a_need:
                self.run.source.cancel(Aborted(f"a service that {self.name} needs has gone"))

    def _mark_if_due(self) -> bool:
        """Say whether to leave a settled state, and if so mark where to."""
        match self._state:
            case ScopeState.CLOSED:
                return False
            case ScopeState.ACTIVE:
                assert self.run is not None  # noqa: S101 - what is active runs
                if not self._is_closing and not self.run.has_lost_a_need:
                    return False
                self._mark_stopping(self.run)
            case _ if self._is_closing:
                self._state = ScopeState.STOPPING
            case _:
                met = {name: self.core.services.visible(name) for name in self.spec.needs}
                bound = {name: found for name, found in met.items() if found is not None}
                is_retry = self._state is ScopeState.FAILED
                if len(bound) < len(met) or (is_retry and bound == self._failed_with):
                    return False
                self._error = None
                self._failed_with = {}
                self._state = ScopeState.STARTING
                self.run = Run(self, bound)
        return True

    def _mark_stopping(self, run: Run) -> None:
        self._state = ScopeState.STOPPING
        run.source.cancel(Aborted(f"{self.name} stops"))
        for provision in list(run.provisions):
            self.core.services.wake(provision.name)

    async def _move(self) -> None:
        try:
            while self._state not in _SETTLED or self._mark_if_due():
                if self._state is ScopeState.STARTING:
                    await self._start()
                else:
                    await self._stop()
        finally:
            self.transition = None

    async def _start(self) -> None:
        assert self.run is not None  # noqa: S101 - a start has its run
        run = self.run
        failure = None if run.signal.cancelled else await run.start(self.spec, self._raw)
        if self._state is ScopeState.STARTING and not run.has_lost_a_need and failure is None:
            self._state = ScopeState.ACTIVE
            for provision in run.provisions:
                self.core.services.wake(provision.name)
            return
        if failure is not None:
            if run.signal.cancelled:
                # Whatever a start raises that was told to stop, its need is missing: it waits.
                run.logger.debug("the start of %s ended with its signal: %s", self.name, failure)
            else:
                run.logger.error("the start of %s failed: %s", self.name, failure, exc_info=failure)
                self._error = failure
                self._failed_with = run.bound
        self._mark_stopping(run)

    async def _stop(self) -> None:
        if self.run is not None:
            run = self.run
            for provision in list(run.provisions):
                await provision.unbound()
            for scope in self._subtree():
                if scope is not self and scope.run is not None and scope.run.has_lost_a_need:
                    await scope.run.ended.wait()
            await run.undo()
            self.run = None
            run.end()
        if self._is_closing:
            self._leave()
        else:
            self._state = ScopeState.WAITING if self._error is None else ScopeState.FAILED

    def _leave(self) -> None:
        self._state = ScopeState.CLOSED
        self._error = None
        self.core.scopes.pop(self, None)
        self.core.services.remove_needs(self, self.spec.needs)
        if self.parent is not None:
            self.parent.forget_child(self)


class Run(Context):
    """One life of a plugin, and the context of it."""

    def __init__(self, scope: Scope, bound: dict[str, Provision]) -> None:
        self.scope = scope
        self.bound = bound
        self.source = CancelSource()
        self.ended = asyncio.Event()
        self.provisions: dict[Provision, None] = {}
        self.children: dict[Scope, RecordedEffect] = {}
        self.body: asyncio.Task[None] | None = None  # the start, once it runs
        self._core = scope.core
        self._effects: dict[RecordedEffect, None] = {}
        self._entries: dict[asyncio.Task[Undo], None] = {}  # effects that are still being made
        self._tasks: set[asyncio.Task[Any]] = set()
        self._handlers = Handlers(self, self._core.tasks, limit=UNDO_LIMIT_MS / 1000)
        for provision in bound.values():
            provision.bound[self] = None

    @property
    def logger(self) -> Logger:
        """The logger of the nearest named plugin."""
        return self._core.logger(self.scope.name)

    @property
    def signal(self) -> CancelSignal:
        """Fires when the run is told to stop."""
        return self.source.signal

    @property
    def name(self) -> str:
        """The name of the plugin."""
        return self.scope.name

    @property
    def is_active(self) -> bool:
        """Whether others may see what the run publishes."""
        return self.scope.state is ScopeState.ACTIVE

    @property
    def is_open(self) -> bool:
        """Whether effects may be made."""
        state = self.scope.state
        return self.scope.run is self and state in (ScopeState.STARTING, ScopeState.ACTIVE)

    @property
    def has_lost_a_need(self) -> bool:
        """Whether something that the run began with has gone."""
        return not all(provision.is_visible for provision in self.bound.values())

    def all_tasks(self) -> set[asyncio.Task[Any] | None]:
        """Return the tasks that the run waits for, those of handlers in progress included."""
        return {*self._tasks, *self._handlers.tasks()} - {None}

    # The context of the plugin.

    def plugin(self, spec: PluginSpec[Any], config: Any = None) -> PluginScope:
        """Install a child."""
        self._require_open()
        scope = Scope(self._core, self, spec, config)
        self.children[scope] = RecordedEffect(
            self, f"plugin {scope.name}", scope.close_below, limit=None
        )
        scope.install()
        return scope

    def when(self, needs: Sequence[str], body: StartFn, name: str = "") -> PluginScope:
        """Install a child that follows `needs`."""
        require_names(needs)  # before a text becomes a tuple of its letters

        def start(ctx: Context, _: object) -> Awaitable[Undo | None] | Undo | None:
            return body(ctx)

        return self.plugin(PluginSpec(name=name, start=start, needs=tuple(needs)))

    def provide(self, name: str, value: object) -> Effect:
        """Publish a service."""
        self._require_open()
        provision = Provision(self, name, value)
        self._core.services.publish(provision)
        self.provisions[provision] = None

        async def withdraw() -> None:
            await self._core.services.withdraw(provision)
            del self.provisions[provision]

        return RecordedEffect(self, f"service {name}", withdraw, limit=None)

    def get(self, name: str) -> Any:
        """Return a service that is needed or provided here or above."""
        provision = self._core.services.find(name)
        is_declared = is_provided_above = False
        run: Run | None = self
        while run is not None:
            is_declared = is_declared or name in run.scope.spec.needs
            if provision is not None and provision.provider is run:
                is_provided_above = not provision.is_withdrawn
            run = run.scope.parent
        if provision is not None and (is_provided_above or (is_declared and provision.is_visible)):
            return self._bound_value(provision)
        raise ServiceUnavailable(service=name, scope=self.scope.name, is_declared=is_declared)

    def find(self, name: str) -> Any | None:
        """Return a service whose provider is active."""
        provision = self._core.services.visible(name)
        return None if provision is None else self._bound_value(provision)

    def effect(
        self,
        enter: Callable[[], EffectBody],
        label: str = "",
        *,
        undo_limit_ms: int = UNDO_LIMIT_MS,
    ) -> Effect:
        """Make something and record its undo."""
        self._require_open()
        body = enter()
        undo = self._undo_once_entered(body, label) if inspect.isawaitable(body) else body
        return RecordedEffect(self, label, undo, limit=undo_limit_ms / 1000)

    def spawn(self, coro: Coroutine[Any, Any, R], *, name: str) -> asyncio.Task[R]:
        """Run a loop that may be cut anywhere."""
        if not self.is_open:
            coro.close()
        self._require_open()
        task = self.own(coro, name)

        async def undo() -> None:
            await self._core.tasks.cut({task}, self.logger)

        effect = RecordedEffect(self, f"task {name}", undo, limit=None)

        def ended(task: asyncio.Task[R]) -> None:
            effect.forget()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.logger.error("task %s failed: %s", name, error, exc_info=error)

        task.add_done_callback(ended)
        return task

    def on(self, event: str, listener: Listener, *, prepend: bool = False) -> Effect:
        """Have `listener` called."""
        self._require_open()
        registered = Registered(self._handlers, event, listener)
        self._core.dispatcher.add(registered, prepend=prepend)

        async def undo() -> None:
            self._core.dispatcher.remove(registered)
            # One that is removed before the stop may be in progress, even remove itself.
            if not self.is_open:
                await self._handlers.ended()

        return RecordedEffect(self, f"listener of {event}", undo, limit=None)

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
        return await self._core.dispatcher.chain(event, *args, default=default)

    # What the scope does with its run.

    async def start(self, spec: PluginSpec[Any], raw: object) -> BaseException | None:
        """Run the body and return what it raised, or None.

        A run that is told to stop meanwhile waits for its body, but not for ever.
        """
        body = self.body = self.own(self._body(spec, raw), f"{self.scope.name} start")
        told = asyncio.get_running_loop().create_future()
        forget = self.signal.add_callback(lambda: told.set_result(None))
        await asyncio.wait({body, told}, return_when=asyncio.FIRST_COMPLETED)
        forget()
        if not body.done():
            await asyncio.wait({body}, timeout=self._core.start_limit)
        if not body.done():
            self.logger.error(
                "the start of %s goes on %g s after it was told to stop",
                self.name,
                self._core.start_limit,
            )
            await self._core.tasks.cut({body}, self.logger)
        if not body.done():
            abandon(body, self.logger, f"the start of {self.name}")
            return Aborted("the start does not end")
        # Whoever awaits the scope was not cancelled, and must not look as if it were.
        return Aborted("the start was cancelled") if body.cancelled() else body.exception()

    async def undo(self) -> None:
        """Undo all that was made in the run, from the last to the first."""
        for effect in [effect for effect in self._effects if effect.is_in_progress]:
            await effect.dispose()
        await self._handlers.ended()
        while self._effects:
            effect, _ = self._effects.popitem()  # the last; looking for it costs more and more
            await effect.dispose()

    def end(self) -> None:
        """Let go of what the run was bound to, and tell those who waited for its end."""
        for provision in self.bound.values():
            provision.bound.pop(self, None)
        self.ended.set()

    def forget_child(self, scope: Scope) -> None:
        """Drop a child that has closed."""
        self.children.pop(scope).forget()

    def own(self, coro: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Run `coro` as a task of the run."""
        task = self._core.tasks.own(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def record(self, effect: RecordedEffect) -> None:
        """Take up a new effect, to be undone before all earlier ones."""
        self._effects[effect] = None

    def erase(self, effect: RecordedEffect) -> None:
        """Forget an effect that is undone or has ended."""
        self._effects.pop(effect, None)

    async def _body(self, spec: PluginSpec[Any], raw: object) -> None:
        if self.signal.cancelled:  # told to stop before this first step
            return
        config = raw if spec.config is None else spec.config(raw)
        result = spec.start(self, config)
        undo = await result if inspect.isawaitable(result) else result
        if undo is not None:
            # Never refused: what a start returns must be undone, even if it was told to stop.
            effect = RecordedEffect(self, f"start of {spec.name}", undo, limit=UNDO_LIMIT_MS / 1000)
            if self.ended.is_set():
                await effect.dispose()
        while self._entries:
            await next(iter(self._entries))

    def _undo_once_entered(self, body: Awaitable[Undo], label: str) -> Undo:
        entry = self.own(for_task(body), f"effect {label}")
        self._entries[entry] = None

        def entered(entry: asyncio.Task[Undo]) -> None:
            self._entries.pop(entry, None)
            if entry.cancelled() or (error := entry.exception()) is None:
                return
            if self.scope.state is not ScopeState.STARTING:  # there it is the error of the start
                self.logger.error("effect %r failed: %s", label, error, exc_info=error)

        entry.add_done_callback(entered)

        async def undo() -> None:
            await asyncio.wait({entry})
            if not entry.cancelled() and entry.exception() is None:
                result = entry.result()()
                if inspect.isawaitable(result):
                    await result

        return undo

    def _require_open(self) -> None:
        if not self.is_open:
            raise ScopeClosed(scope=self.scope.name)

    def _bound_value(self, provision: Provision) -> Any:
        bind = getattr(provision.value, "for_context", None)
        return bind(self) if callable(bind) else provision.value
