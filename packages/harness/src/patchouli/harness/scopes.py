"""Scopes: plugins live while the services they need are there, and leave no trace.

A `Scope` is an installed plugin, a `Run` (`patchouli.harness.runs`) one life of it: begun when
every need was met, bound to exactly those provisions, ended when one of them went or the scope was
closed.

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
from typing import TYPE_CHECKING, Any, Final

from patchouli.harness.plugin import PluginScope, PluginSpec, ScopeState
from patchouli.harness.runs import Core, Run

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from patchouli.harness.effects import RecordedEffect
    from patchouli.harness.services import Provision

_SETTLED: Final = frozenset(
    (ScopeState.WAITING, ScopeState.ACTIVE, ScopeState.FAILED, ScopeState.CLOSED)
)


class Scope(PluginScope):
    """An installed plugin."""

    def __init__(
        self, core: Core, parent: Scope | None, spec: PluginSpec[Any], raw: object
    ) -> None:
        self._core = core
        self._parent = parent
        self._spec = spec
        self._raw = raw
        self._run: Run | None = None
        self._children: dict[Scope, RecordedEffect] = {}  # of the run
        self._transition: asyncio.Task[None] | None = None
        self._state = ScopeState.WAITING
        self._error: BaseException | None = None
        self._failed_with: dict[str, Provision] = {}
        self._is_closing = False
        # A restart must not run with the variables of whoever happened to cause it.
        self._variables = contextvars.copy_context()

    @property
    def name(self) -> str:
        """The name of the plugin, or of the nearest one above that has one."""
        if self._spec.name or self._parent is None:
            return self._spec.name
        return self._parent.name

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
        return tuple(name for name in self._spec.needs if self._core.services.visible(name) is None)

    def __repr__(self) -> str:
        return f"<plugin {self.name or 'without a name'}: {self._state}>"

    def __await__(self) -> Generator[Any, None, PluginScope]:
        return self._outcome().__await__()

    async def _outcome(self) -> PluginScope:
        if self._run is not None and asyncio.current_task() is self._run.body:
            raise RuntimeError(f"the start of {self.name} waits for its own end")
        await self._settled()
        if self._error is not None:
            raise self._error
        return self

    async def close(self) -> None:
        """Stop for good; every call returns when the one stop has ended."""
        current = asyncio.current_task()
        if any(current in scope._run.all_tasks() for scope in self._subtree() if scope._run):
            raise RuntimeError(f"{self.name} is closed by a task or handler that it waits for")
        await self.close_below()

    async def close_below(self) -> None:
        """Close for the stop of a parent; the tasks that must not have been looked at there."""
        self._is_closing = True
        self.wake()
        await self._settled()

    async def _settled(self) -> None:
        while self._transition is not None:
            await asyncio.wait({self._transition})

    def _subtree(self) -> Iterator[Scope]:
        scopes: list[Scope] = [self]
        while scopes:
            scope = scopes.pop()
            yield scope
            scopes.extend(scope._children)

    def install(self) -> None:
        """Enter the tree, and start if nothing is missing."""
        self._core.scopes[self] = None
        self._core.services.add_needs(self.wake, self._spec.needs)
        self.wake()

    def begin_as_root(self) -> Run:
        """Begin the one run of the host, which needs no start."""
        self._core.scopes[self] = None
        self._run = self._new_run({})
        self._state = ScopeState.ACTIVE
        self._run.activate()
        return self._run

    def _install_child(self, spec: PluginSpec[Any], raw: object) -> PluginScope:
        assert self._run is not None  # noqa: S101 - the run that calls this
        child = Scope(self._core, self, spec, raw)
        self._children[child] = self._run.effects.record(
            f"plugin {child.name}", child.close_below, limit=None
        )
        child.install()
        return child

    def _new_run(self, bound: dict[str, Provision]) -> Run:
        above = None if self._parent is None else self._parent._run
        return Run(self._core, above, self.name, self._spec.needs, bound, self._install_child)

    def wake(self) -> None:
        """Take note, in this step of the loop, of whatever has changed for this scope."""
        if self._state in _SETTLED:
            if self._mark_if_due() and self._transition is None:
                self._transition = self._core.tasks.own(
                    self._move(), name=f"{self.name} transition", context=self._variables.copy()
                )
                self._core.transitions.add(self._transition)
                self._transition.add_done_callback(self._core.transitions.discard)
        elif self._state is ScopeState.STARTING:
            assert self._run is not None  # noqa: S101 - a start has its run
            if self._is_closing:
                self._mark_stopping(self._run)
            elif self._run.has_lost_a_need:
                self._run.tell(f"a service that {self.name} needs has gone")

    def _mark_if_due(self) -> bool:
        """Say whether to leave a settled state, and if so mark where to."""
        match self._state:
            case ScopeState.CLOSED:
                return False
            case ScopeState.ACTIVE:
                assert self._run is not None  # noqa: S101 - what is active runs
                if not self._is_closing and not self._run.has_lost_a_need:
                    return False
                self._mark_stopping(self._run)
            case _ if self._is_closing:
                self._state = ScopeState.STOPPING
            case _:
                met = {name: self._core.services.visible(name) for name in self._spec.needs}
                bound = {name: found for name, found in met.items() if found is not None}
                is_retry = self._state is ScopeState.FAILED
                if len(bound) < len(met) or (is_retry and bound == self._failed_with):
                    return False
                self._error = None
                self._failed_with = {}
                self._state = ScopeState.STARTING
                self._run = self._new_run(bound)
        return True

    def _mark_stopping(self, run: Run) -> None:
        self._state = ScopeState.STOPPING
        run.begin_stop()

    async def _move(self) -> None:
        try:
            while self._state not in _SETTLED or self._mark_if_due():
                if self._state is ScopeState.STARTING:
                    await self._start()
                else:
                    await self._stop()
        finally:
            self._transition = None

    async def _start(self) -> None:
        assert self._run is not None  # noqa: S101 - a start has its run
        run = self._run
        failure = None if run.signal.cancelled else await run.start(self._spec, self._raw)
        if self._state is ScopeState.STARTING and not run.has_lost_a_need and failure is None:
            self._state = ScopeState.ACTIVE
            run.activate()
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
        if self._run is not None:
            run = self._run
            await run.unbound()
            for scope in self._subtree():
                if scope is not self and scope._run is not None and scope._run.has_lost_a_need:
                    await scope._run.ended.wait()
            await run.undo()
            self._run = None
            run.end()
        if self._is_closing:
            self._leave()
        else:
            self._state = ScopeState.WAITING if self._error is None else ScopeState.FAILED

    def _leave(self) -> None:
        self._state = ScopeState.CLOSED
        self._error = None
        self._core.scopes.pop(self, None)
        self._core.services.remove_needs(self.wake, self._spec.needs)
        if self._parent is not None:
            self._parent._children.pop(self).forget()
