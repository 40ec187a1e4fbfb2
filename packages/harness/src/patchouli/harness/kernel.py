"""The lifecycle kernel: plugins run while the services they need are there, and leave no trace.

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
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from patchouli.harness.dispatch import Dispatcher, Registered
from patchouli.harness.errors import Aborted, AlreadyProvided, ScopeClosed, ServiceUnavailable
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
)
from patchouli.harness.signals import CancelSource

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
    from types import TracebackType

    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")

UNDO_LIMIT_MS: Final = 30_000  # then the undo is logged and abandoned
START_LIMIT_MS: Final = 30_000  # after its run was told to stop; then the start is cut
TASK_GRACE_MS: Final = 5_000  # from the cancellation of a task until it is abandoned

_SETTLED: Final = frozenset(
    (ScopeState.WAITING, ScopeState.ACTIVE, ScopeState.FAILED, ScopeState.CLOSED)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlugin:
    """A plugin that waits, and for what."""

    name: str
    missing: tuple[str, ...]


class Kernel:
    """A tree of plugins, their services and their events, on one event loop.

    As a context manager it closes itself: every plugin has stopped when the block is left.

    Attributes:
        root: The context of the host itself. It is active from the start, so what it provides is
            seen at once.
    """

    root: Context

    def __init__(
        self,
        *,
        logger: Callable[[str], Logger] = logging.getLogger,  # noqa: TID251 - no dependency, so no structlog
        start_limit_ms: int = START_LIMIT_MS,
        task_grace_ms: int = TASK_GRACE_MS,
    ) -> None:
        self.logger = logger
        self.start_limit = start_limit_ms / 1000
        self.task_grace = task_grace_ms / 1000
        self.dispatcher = Dispatcher()
        self.provisions: dict[str, _Provision] = {}
        self.scopes: dict[_Scope, None] = {}  # in the order in which they were installed
        self.in_need: dict[str, dict[_Scope, None]] = {}  # by the name that they need
        self._tasks: set[asyncio.Task[Any]] = set()
        self._scope = _Scope(self, None, PluginSpec(name="patchouli", start=_no_start), None)
        self.root = self._scope.begin_as_root()

    async def __aenter__(self) -> Kernel:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop every plugin; each call returns when all have stopped.

        Raises:
            RuntimeError: A task or a handler of a plugin calls this; it could never end.
        """
        await self._scope.close()

    async def settle(self) -> None:
        """Return when no scope is in a transition."""
        while moving := {scope.transition for scope in self.scopes} - {None}:
            await asyncio.wait(cast("set[asyncio.Task[None]]", moving))

    def pending(self) -> Sequence[PendingPlugin]:
        """Return the plugins that wait for services, in the order in which they were installed."""
        return [
            PendingPlugin(name=scope.name, missing=scope.missing)
            for scope in self.scopes
            if scope.state is ScopeState.WAITING
        ]

    def has_listeners(self, event: str) -> bool:
        """Say whether a dispatch of `event` would reach anyone now."""
        return bool(self.dispatcher.listeners(event))

    def own(
        self,
        coro: Coroutine[Any, Any, R],
        *,
        name: str,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[R]:
        """Run `coro` as a task that is referenced until it ends."""
        task = asyncio.get_running_loop().create_task(coro, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def abandon(self, task: asyncio.Task[None], logger: Logger, what: str) -> None:
        """Wait for `task` no longer; a failure that comes later is still logged."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("%s failed after it was abandoned", what, exc_info=error)

        task.add_done_callback(ended)

    async def cut(self, tasks: set[asyncio.Task[Any]], logger: Logger) -> None:
        """Cancel `tasks` and return when they have ended, or when the grace period has."""
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=self.task_grace)
        for task in pending:
            name = task.get_name()
            logger.error("task %s goes on %g s after its cancellation", name, self.task_grace)

    def visible(self, name: str) -> _Provision | None:
        """Return what meets a need for `name` now."""
        provision = self.provisions.get(name)
        return provision if provision is not None and provision.is_visible else None

    def wake_those_in_need_of(self, name: str) -> None:
        """Let every scope that needs `name` look again."""
        for scope in list(self.in_need.get(name, ())):
            scope.wake()


class _Provision:
    """A service under its name, published by one run. It becomes invisible once, for good."""

    __slots__ = ("bound", "is_withdrawn", "name", "run", "value")

    def __init__(self, run: _Run, name: str, value: object) -> None:
        self.run = run
        self.name = name
        self.value = value
        self.is_withdrawn = False
        self.bound: dict[_Run, None] = {}  # the runs that began with it and have not ended

    @property
    def is_visible(self) -> bool:
        return not self.is_withdrawn and self.run.scope.state is ScopeState.ACTIVE

    async def unbound(self) -> None:
        """Return when every run that is bound to it has ended."""
        while self.bound:
            await next(iter(self.bound)).ended.wait()


class _Scope(PluginScope):
    """An installed plugin."""

    def __init__(
        self, kernel: Kernel, parent: _Run | None, spec: PluginSpec[Any], raw: object
    ) -> None:
        self.kernel = kernel
        self.parent = parent
        self.spec = spec
        self.run: _Run | None = None
        self.transition: asyncio.Task[None] | None = None
        self._raw = raw
        self._state = ScopeState.WAITING
        self._error: BaseException | None = None
        self._failed_with: dict[str, _Provision] = {}
        self._is_closing = False
        # A restart must not run with the variables of whoever happened to cause it.
        self._variables = contextvars.copy_context()

    @property
    def name(self) -> str:
        if self.spec.name or self.parent is None:
            return self.spec.name
        return self.parent.scope.name

    @property
    def state(self) -> ScopeState:
        return self._state

    @property
    def error(self) -> BaseException | None:
        return self._error

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in self.spec.needs if self.kernel.visible(name) is None)

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
        current = asyncio.current_task()
        if any(current in scope.run.all_tasks() for scope in self._subtree() if scope.run):
            raise RuntimeError(f"{self.name} is closed by a task or handler that it waits for")
        self._is_closing = True
        self.wake()
        await self._settled()

    async def _settled(self) -> None:
        while self.transition is not None:
            await asyncio.wait({self.transition})

    def _subtree(self) -> Iterator[_Scope]:
        scopes: list[_Scope] = [self]
        while scopes:
            scope = scopes.pop()
            yield scope
            if scope.run is not None:
                scopes.extend(scope.run.children)

    def install(self) -> None:
        """Enter the tree, and start if nothing is missing."""
        self.kernel.scopes[self] = None
        for name in self.spec.needs:
            self.kernel.in_need.setdefault(name, {})[self] = None
        self.wake()

    def begin_as_root(self) -> _Run:
        """Begin the one run of the host, which needs no start."""
        self.kernel.scopes[self] = None
        self.run = _Run(self, {})
        self._state = ScopeState.ACTIVE
        return self.run

    def wake(self) -> None:
        """Take note, in this step of the loop, of whatever has changed for this scope."""
        if self._state in _SETTLED:
            if self._is_due() and self.transition is None:
                self.transition = self.kernel.own(
                    self._move(), name=f"{self.name} transition", context=self._variables.copy()
                )
        elif self._state is ScopeState.STARTING:
            assert self.run is not None  # noqa: S101 - a start has its run
            if self._is_closing:
                self._mark_stopping(self.run)
            elif self.run.has_lost_a_need:
                self.run.source.cancel(Aborted(f"a service that {self.name} needs has gone"))

    def _is_due(self) -> bool:
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
                met = {name: self.kernel.visible(name) for name in self.spec.needs}
                bound = {name: found for name, found in met.items() if found is not None}
                is_retry = self._state is ScopeState.FAILED
                if len(bound) < len(met) or (is_retry and bound == self._failed_with):
                    return False
                self._error = None
                self._failed_with = {}
                self._state = ScopeState.STARTING
                self.run = _Run(self, bound)
        return True

    def _mark_stopping(self, run: _Run) -> None:
        self._state = ScopeState.STOPPING
        run.source.cancel(Aborted(f"{self.name} stops"))
        for provision in list(run.provisions):
            self.kernel.wake_those_in_need_of(provision.name)

    async def _move(self) -> None:
        try:
            while self._state not in _SETTLED or self._is_due():
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
                self.kernel.wake_those_in_need_of(provision.name)
            return
        if failure is not None:
            if run.signal.cancelled:
                # Whatever a start raises that was told to stop, its need is missing: it waits.
                run.logger.debug("the start ended with its signal: %s", failure)
            else:
                run.logger.error("start failed: %s", failure, exc_info=failure)
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
        self.kernel.scopes.pop(self, None)
        for name in self.spec.needs:
            in_need = self.kernel.in_need[name]
            in_need.pop(self, None)
            if not in_need:
                del self.kernel.in_need[name]
        if self.parent is not None:
            self.parent.forget_child(self)


class _Run(Context):
    """One life of a plugin, and the context of it."""

    def __init__(self, scope: _Scope, bound: dict[str, _Provision]) -> None:
        self.scope = scope
        self.bound = bound
        self.source = CancelSource()
        self.ended = asyncio.Event()
        self.provisions: dict[_Provision, None] = {}
        self.children: dict[_Scope, _Effect] = {}
        self.body: asyncio.Task[None] | None = None  # the start, once it runs
        self._kernel = scope.kernel
        self._effects: dict[_Effect, None] = {}
        self._entries: dict[asyncio.Task[Undo], None] = {}  # effects that are still being made
        self._tasks: set[asyncio.Task[Any]] = set()
        self._notified: set[asyncio.Task[None]] = set()
        self._handling: dict[asyncio.Future[None], asyncio.Task[Any] | None] = {}
        for provision in bound.values():
            provision.bound[self] = None

    @property
    def logger(self) -> Logger:
        return self._kernel.logger(self.scope.name)

    @property
    def signal(self) -> CancelSignal:
        return self.source.signal

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
        return {*self._tasks, *self._handling.values()} - {None}

    # The context of the plugin.

    def plugin(self, spec: PluginSpec[Any], config: Any = None) -> PluginScope:
        self._require_open()
        scope = _Scope(self._kernel, self, spec, config)
        self.children[scope] = _Effect(self, f"plugin {scope.name}", scope.close, limit=None)
        scope.install()
        return scope

    def when(self, needs: Sequence[str], body: StartFn, name: str = "") -> PluginScope:
        def start(ctx: Context, _: object) -> Awaitable[Undo | None] | Undo | None:
            return body(ctx)

        return self.plugin(PluginSpec(name=name, start=start, needs=tuple(needs)))

    def provide(self, name: str, value: object) -> Effect:
        self._require_open()
        if (present := self._kernel.provisions.get(name)) is not None:
            raise AlreadyProvided(service=name, provider=present.run.scope.name)
        provision = _Provision(self, name, value)
        self._kernel.provisions[name] = provision
        self.provisions[provision] = None

        async def withdraw() -> None:
            provision.is_withdrawn = True
            self._kernel.wake_those_in_need_of(name)
            await provision.unbound()
            del self.provisions[provision]
            del self._kernel.provisions[name]

        effect = _Effect(self, f"service {name}", withdraw, limit=None)
        self._kernel.wake_those_in_need_of(name)
        return effect

    def get(self, name: str) -> Any:
        provision = self._kernel.provisions.get(name)
        is_declared = is_provided_above = False
        scope: _Scope | None = self.scope
        while scope is not None:
            is_declared = is_declared or name in scope.spec.needs
            if provision is not None and provision.run.scope is scope:
                is_provided_above = not provision.is_withdrawn
            scope = scope.parent.scope if scope.parent is not None else None
        if provision is not None and (is_provided_above or (is_declared and provision.is_visible)):
            return self._bound_value(provision)
        raise ServiceUnavailable(service=name, scope=self.scope.name, is_declared=is_declared)

    def find(self, name: str) -> Any | None:
        provision = self._kernel.visible(name)
        return None if provision is None else self._bound_value(provision)

    def effect(
        self,
        enter: Callable[[], EffectBody],
        label: str = "",
        *,
        undo_limit_ms: int = UNDO_LIMIT_MS,
    ) -> Effect:
        self._require_open()
        body = enter()
        undo = self._undo_once_entered(body, label) if inspect.isawaitable(body) else body
        return _Effect(self, label, undo, limit=undo_limit_ms / 1000)

    def spawn(self, coro: Coroutine[Any, Any, R], *, name: str) -> asyncio.Task[R]:
        if not self.is_open:
            coro.close()
        self._require_open()
        task = self._own(coro, name)

        async def undo() -> None:
            await self._kernel.cut({task}, self.logger)

        effect = _Effect(self, f"task {name}", undo, limit=None)

        def ended(task: asyncio.Task[R]) -> None:
            effect.forget()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.logger.error("task %s failed: %s", name, error, exc_info=error)

        task.add_done_callback(ended)
        return task

    def on(self, event: str, listener: Listener, *, prepend: bool = False) -> Effect:
        self._require_open()
        registered = Registered(self, event, listener)
        self._kernel.dispatcher.add(registered, prepend=prepend)

        async def undo() -> None:
            self._kernel.dispatcher.remove(registered)
            if (
                not self.is_open
            ):  # one that is removed earlier may be in progress, even remove itself
                await self._handlers_ended()

        return _Effect(self, f"listener of {event}", undo, limit=None)

    def notify(self, event: str, *args: object) -> None:
        self._kernel.dispatcher.notify(event, *args)

    def announce(self, event: str, *args: object) -> None:
        self._kernel.dispatcher.announce(event, *args)

    async def gather(self, event: str, *args: object) -> None:
        await self._kernel.dispatcher.gather(event, *args)

    async def serial(self, event: str, *args: object) -> Any:
        return await self._kernel.dispatcher.serial(event, *args)

    async def chain(self, event: str, *args: object, default: Callable[[], Any]) -> Any:
        return await self._kernel.dispatcher.chain(event, *args, default=default)

    # The owner of listeners.

    def own_handler(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        task = self._own(coro, name)
        self._notified.add(task)
        task.add_done_callback(self._notified.discard)

    async def handle(self, result: Awaitable[Any]) -> Any:
        done = asyncio.get_running_loop().create_future()
        self._handling[done] = asyncio.current_task()
        try:
            return await result
        finally:
            del self._handling[done]
            done.set_result(None)

    # What the scope does with its run.

    async def start(self, spec: PluginSpec[Any], raw: object) -> BaseException | None:
        """Run the body and return what it raised, or None.

        A run that is told to stop meanwhile waits for its body, but not for ever.
        """
        body = self.body = self._own(self._body(spec, raw), f"{self.scope.name} start")
        told = asyncio.get_running_loop().create_future()
        forget = self.signal.add_callback(lambda: told.set_result(None))
        await asyncio.wait({body, told}, return_when=asyncio.FIRST_COMPLETED)
        forget()
        if not body.done():
            await asyncio.wait({body}, timeout=self._kernel.start_limit)
        if not body.done():
            self.logger.error(
                "the start goes on %g s after it was told to stop", self._kernel.start_limit
            )
            await self._kernel.cut({body}, self.logger)
        if not body.done():
            self._kernel.abandon(body, self.logger, "the start")
            return Aborted("the start does not end")
        return asyncio.CancelledError() if body.cancelled() else body.exception()

    async def undo(self) -> None:
        """Undo all that was made in the run, from the last to the first."""
        for effect in [effect for effect in self._effects if effect.is_in_progress]:
            await effect.dispose()
        await self._handlers_ended()
        while self._effects:
            await next(reversed(self._effects)).dispose()

    def end(self) -> None:
        """Let go of what the run was bound to, and tell those who waited for its end."""
        for provision in self.bound.values():
            provision.bound.pop(self, None)
        self.ended.set()

    def forget_child(self, scope: _Scope) -> None:
        self.children.pop(scope).forget()

    def undo_soon(self, coro: Coroutine[Any, Any, None], label: str) -> asyncio.Task[None]:
        """Run an undo as a task of the run."""
        return self._own(coro, f"undo {label}")

    def record(self, effect: _Effect) -> None:
        self._effects[effect] = None

    def erase(self, effect: _Effect) -> None:
        self._effects.pop(effect, None)

    def abandon(self, task: asyncio.Task[None], what: str) -> None:
        self._kernel.abandon(task, self.logger, what)

    async def _body(self, spec: PluginSpec[Any], raw: object) -> None:
        if self.signal.cancelled:  # told to stop before this first step
            return
        config = raw if spec.config is None else spec.config(raw)
        result = spec.start(self, config)
        undo = await result if inspect.isawaitable(result) else result
        if undo is not None:
            # Never refused: what a start returns must be undone, even if it was told to stop.
            effect = _Effect(self, f"start of {spec.name}", undo, limit=UNDO_LIMIT_MS / 1000)
            if self.ended.is_set():
                await effect.dispose()
        while self._entries:
            await next(iter(self._entries))

    def _undo_once_entered(self, body: Awaitable[Undo], label: str) -> Undo:
        async def enter() -> Undo:
            return await body

        entry = self._own(enter(), f"effect {label}")
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

    async def _handlers_ended(self) -> None:
        await self._kernel.cut(set(self._notified), self.logger)
        if not self._handling:
            return
        _, pending = await asyncio.wait(set(self._handling), timeout=UNDO_LIMIT_MS / 1000)
        if pending:
            self.logger.error("%d handlers of events do not end", len(pending))

    def _own(self, coro: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        task = self._kernel.own(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _require_open(self) -> None:
        if not self.is_open:
            raise ScopeClosed(scope=self.scope.name)

    def _bound_value(self, provision: _Provision) -> Any:
        bind = getattr(provision.value, "for_context", None)
        return bind(self) if callable(bind) else provision.value


class _Effect(Effect):
    """Something made in a run, with its undo."""

    __slots__ = ("_label", "_limit", "_run", "_task", "_undo", "_waiting_for")

    def __init__(self, run: _Run, label: str, undo: Undo, *, limit: float | None) -> None:
        self._run = run
        self._label = label
        self._undo = undo
        self._limit = limit  # s; None for one whose steps have limits of their own
        self._task: asyncio.Task[None] | None = None
        self._waiting_for: asyncio.Task[None] | None = None
        run.record(self)

    @property
    def is_in_progress(self) -> bool:
        """Whether somebody disposes of it now."""
        return self._task is not None and not self._task.done()

    def forget(self) -> None:
        """Drop it without an undo: what it stood for has ended by itself."""
        self._run.erase(self)

    async def dispose(self) -> None:
        if self._task is None:
            self._task = self._run.undo_soon(self._perform(), self._label)
        if asyncio.current_task() in (self._task, self._waiting_for):
            raise RuntimeError(f"the undo of {self._label!r} waits for itself")
        await asyncio.wait({self._task})

    async def _perform(self) -> None:
        logger = self._run.logger
        try:
            result = self._undo()
            if inspect.isawaitable(result):
                await self._within_limit(self._run.undo_soon(_awaited(result), self._label))
        except (Exception, asyncio.CancelledError) as error:
            logger.error("the undo of %r failed: %s", self._label, error, exc_info=error)
        finally:
            self._run.erase(self)

    async def _within_limit(self, waiting_for: asyncio.Task[None]) -> None:
        self._waiting_for = waiting_for
        done, _ = await asyncio.wait({waiting_for}, timeout=self._limit)
        if done:
            waiting_for.result()
            return
        self._run.logger.error(
            "the undo of %r goes on after its limit of %g s and is abandoned",
            self._label,
            self._limit,
        )
        self._run.abandon(waiting_for, f"the undo of {self._label!r}")


async def _awaited(result: Awaitable[object]) -> None:
    await result


def _no_start(_: Context, __: object) -> None:
    pass
