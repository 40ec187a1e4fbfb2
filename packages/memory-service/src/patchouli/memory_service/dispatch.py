"""One update or retrieval: run every routed plugin at once and give each its own fate.

Each plugin runs in a task of its own. Its outcome is fixed by whatever comes first: its answer, its
failure, its deadline. The call ends when every outcome is fixed, or at once when the caller's
signal fires; tasks that outlive it stay with the service. Retrievals may be cut, updates never are.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Literal

from patchouli.harness import ScopeClosed, require_json
from patchouli.memory_service.meta import CallContext, RouteCall, require_request
from patchouli.memory_service.results import Outcome, failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.harness import CancelSignal, Json
    from patchouli.memory_service.meta import MemoryRequest
    from patchouli.memory_service.registry import Entry, Registry
    from patchouli.memory_service.tasks import Tasks


class Dispatch:
    """The fan-out of one service."""

    __slots__ = ("_invocations", "_is_closed", "_registry", "_tasks")

    def __init__(self, registry: Registry, tasks: Tasks) -> None:
        self._registry = registry
        self._tasks = tasks
        self._invocations: set[_Invocation] = set()
        self._is_closed = False

    async def call(
        self,
        operation: Literal["update", "retrieve"],
        request: MemoryRequest,
        signal: CancelSignal | None,
    ) -> tuple[Outcome, ...]:
        """Return the outcomes of the routed plugins, in registration order."""
        if signal is not None:
            signal.raise_if_cancelled()
        self.require_open()
        require_request(request)
        fanout = _Fanout(self._routed(RouteCall(operation=operation, meta=request.meta)))
        if signal is not None:
            signal.raise_if_cancelled()
        started = self._start(operation, request, signal, fanout)
        forget = None if signal is None else signal.add_callback(fanout.wake)
        try:
            if started:
                await fanout.ended
        except asyncio.CancelledError:
            if operation == "retrieve":
                for one in started:
                    one.cancel("the caller was cancelled")
            await self._within_grace(started)
            raise
        finally:
            for timer in fanout.timers:
                timer.cancel()
            if forget is not None:
                forget()
        if signal is not None and signal.cancelled:
            if operation == "retrieve":
                for one in started:
                    one.cancel("the caller has no use for it any more")
            signal.raise_if_cancelled()
        return fanout.outcomes

    def require_open(self) -> None:
        """Return while the service takes calls.

        Raises:
            ScopeClosed: It does not any more.
        """
        if self._is_closed:
            raise ScopeClosed(scope="patchouli")

    def close(self) -> None:
        """Take no further call."""
        self._is_closed = True

    async def drain(self) -> None:
        """Cut retrievals, and return when every plugin has ended."""
        for one in tuple(self._invocations):
            if one.operation == "retrieve":
                one.cancel("the memory service stops")
        while self._invocations:
            await asyncio.wait({one.task for one in self._invocations})
            await asyncio.sleep(0)  # the callbacks that take them out of the set

    def _routed(self, call: RouteCall) -> list[Entry | Outcome]:
        routed: list[Entry | Outcome] = []
        for entry in self._registry.entries:
            try:
                if entry.admits(call):
                    routed.append(entry)
            except BaseException as error:  # a plugin call
                self._tasks.caught(error, f"the filter of plugin {entry.plugin_id}")
                routed.append(failure(entry.plugin_id, error))
        return routed

    def _start(
        self,
        operation: Literal["update", "retrieve"],
        request: MemoryRequest,
        signal: CancelSignal | None,
        fanout: _Fanout,
    ) -> list[_Invocation]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        started: list[_Invocation] = []
        by_deadline: dict[int | None, tuple[CallContext, list[_Invocation]]] = {}
        for position, entry in enumerate(fanout.routed):
            if isinstance(entry, Outcome):
                fanout.settle(position, entry)
                continue
            # Plugins with one deadline share a context and a timer.
            timeout_ms = entry.retrieve_timeout_ms if operation == "retrieve" else None
            if timeout_ms not in by_deadline:
                deadline = None if timeout_ms is None else now + timeout_ms / 1000
                by_deadline[timeout_ms] = (CallContext(signal=signal, deadline=deadline), [])
            ctx, together = by_deadline[timeout_ms]
            one = _Invocation(operation, entry, fanout, position, self._tasks, self._forget)
            one.start(loop, request, ctx)
            self._invocations.add(one)
            started.append(one)
            together.append(one)
        for ctx, together in by_deadline.values():
            if ctx.deadline is not None:
                fanout.timers.append(loop.call_at(ctx.deadline, _expire, together))
        return started

    def _forget(self, one: _Invocation) -> None:
        self._invocations.discard(one)

    async def _within_grace(self, started: list[_Invocation]) -> None:
        running = {one.task for one in started if not one.task.done()}
        if not running:
            return
        try:
            await asyncio.wait(running, timeout=self._tasks.grace)
        except asyncio.CancelledError:
            return  # told twice: leave now, the caller raises the first one


class _Fanout:
    """The outcomes of one call, as they come in."""

    __slots__ = ("_missing", "_outcomes", "ended", "routed", "timers")

    def __init__(self, routed: list[Entry | Outcome]) -> None:
        self.routed = routed
        self.timers: list[asyncio.TimerHandle] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outcomes: list[Outcome | None] = [None] * len(routed)
        self._missing = len(routed)

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self._outcomes if one is not None)

    def settle(self, position: int, outcome: Outcome) -> bool:
        """Fix an outcome; False if it was fixed, or the call is over."""
        if self.ended.done() or self._outcomes[position] is not None:
            return False
        self._outcomes[position] = outcome
        self._missing -= 1
        if not self._missing:
            self.wake()
        return True

    def wake(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _Invocation:
    """One plugin at work on one call."""

    __slots__ = (
        "_entry",
        "_fanout",
        "_forget",
        "_is_cancelled",
        "_position",
        "_tasks",
        "operation",
        "task",
    )

    task: asyncio.Task[Outcome]

    def __init__(
        self,
        operation: Literal["update", "retrieve"],
        entry: Entry,
        fanout: _Fanout,
        position: int,
        tasks: Tasks,
        forget: Callable[[_Invocation], None],
    ) -> None:
        self.operation: Literal["update", "retrieve"] = operation
        self._entry = entry
        self._fanout = fanout
        self._position = position
        self._tasks = tasks
        self._forget = forget
        self._is_cancelled = False

    def start(
        self, loop: asyncio.AbstractEventLoop, request: MemoryRequest, ctx: CallContext
    ) -> None:
        # Held, like the invocation, by the dispatch until it ends.
        name = f"patchouli {self.operation} {self._entry.plugin_id}"
        self.task = loop.create_task(self._run(request, ctx), name=name)
        self.task.add_done_callback(self._ended)

    def cancel(self, why: str) -> None:
        if not self._is_cancelled:
            self._is_cancelled = True
            self._tasks.cancel(self.task, self._entry.plugin_id, why)

    async def _run(self, request: MemoryRequest, ctx: CallContext) -> Outcome:
        entry = self._entry
        plugin = entry.plugin
        try:
            method = plugin.update if self.operation == "update" else plugin.retrieve
            answer = method(request, ctx)
            value: Json = await answer if inspect.isawaitable(answer) else answer
            require_json(value)
        except BaseException as error:  # a plugin call: nothing that it raises reaches its peers
            self._tasks.caught(error, f"{self.operation} of plugin {entry.plugin_id}")
            return failure(entry.plugin_id, error)
        return Outcome(plugin_id=entry.plugin_id, ok=True, value=value)

    def expire(self) -> None:
        """Fix the outcome as too late and cut the plugin, unless it has ended."""
        if self.task.done():
            return  # its outcome is fixed, or is about to be by the callback of the task
        text = (
            f"{self.operation} of plugin {self._entry.plugin_id!r} did not end within its deadline "
            f"of {self._entry.retrieve_timeout_ms} ms"
        )
        outcome = Outcome(plugin_id=self._entry.plugin_id, ok=False, error=text)
        self._fanout.settle(self._position, outcome)
        self.cancel(text)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        self._forget(self)
        if task.cancelled():  # before its first step, or by itself at its last
            outcome = failure(self._entry.plugin_id, asyncio.CancelledError())
        elif (error := task.exception()) is not None:
            outcome = failure(self._entry.plugin_id, error)
        else:
            outcome = task.result()
        if not self._fanout.settle(self._position, outcome) and self.operation == "update":
            self._log_late(outcome)

    def _log_late(self, outcome: Outcome) -> None:
        if not outcome.ok:
            self._tasks.logger.warning(
                "an update of plugin %s failed after its caller had left: %s",
                self._entry.plugin_id,
                outcome.error,
            )


def _expire(together: list[_Invocation]) -> None:
    for one in together:
        one.expire()
