"""What the listeners of one run have left running, and how a stop gets rid of it.

Nobody waits for what a notified listener left: it is a task of the run and is cut. What somebody
awaits, a caller of the other modes, must not be cut from outside: the run waits for it, but in one
stop not longer than one limit, however many handlers hang and however often it has to look: the
first look sets the deadline of them all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from patchouli.harness.tasks import for_task

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from patchouli.harness.tasks import RunTasks


class _Awaited(NamedTuple):
    """What a listener left that somebody awaits."""

    task: asyncio.Task[Any] | None  # in which it runs
    event: str


class Handlers:
    """What the listeners of one run have left running."""

    __slots__ = ("_awaited", "_deadline", "_limit", "_notified", "_tasks")

    def __init__(self, tasks: RunTasks, *, limit: float) -> None:
        self._tasks = tasks
        self._limit = limit  # s, for all waits of a stop together
        self._deadline: float | None = None  # by the clock of the loop
        self._notified: set[asyncio.Task[Any]] = set()
        self._awaited: dict[asyncio.Future[Any], _Awaited] = {}

    def callers(self) -> set[asyncio.Task[Any] | None]:
        """Return the tasks of others in which handlers run that a stop waits for."""
        return {handler.task for handler in self._awaited.values()}

    def let_run(self, result: Awaitable[Any], event: str) -> None:
        """Run what a notified listener left, until it ends or the run stops."""
        task = self._tasks.own(for_task(result), f"{event} listener")
        self._notified.add(task)

        def ended(task: asyncio.Task[Any]) -> None:
            self._notified.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self.listener_failed(event, error)

        task.add_done_callback(ended)

    def follow(self, result: Awaitable[Any], event: str) -> asyncio.Task[Any]:
        """Run what a gathered listener left; the run does not stop while it lasts."""
        task = asyncio.create_task(for_task(result), name=f"{event} listener")
        self._awaited[task] = _Awaited(task, event)
        task.add_done_callback(lambda task: self._awaited.pop(task, None))
        return task

    async def handle(self, result: Awaitable[Any], event: str) -> Any:
        """Await what a listener left; the run does not stop while it lasts."""
        done = asyncio.get_running_loop().create_future()
        self._awaited[done] = _Awaited(asyncio.current_task(), event)
        try:
            return await result
        finally:
            self._awaited.pop(done, None)
            done.set_result(None)

    def listener_failed(self, event: str, error: BaseException) -> None:
        """Log what a listener raised that reaches nobody."""
        self._tasks.logger.error("a listener of %s failed: %s", event, error, exc_info=error)

    async def ended(self) -> None:
        """Cut what notified listeners left and wait for the other handlers until the deadline.

        A stop comes here for every listener, since events may be told while it lasts, and whoever
        disposes of one then comes too. What has not ended in time is logged and abandoned, so that
        it holds nothing up a second time.
        """
        notified, self._notified = self._notified, set()
        await self._tasks.cut(notified)
        if not self._awaited:
            return
        loop = asyncio.get_running_loop()
        if self._deadline is None:
            self._deadline = loop.time() + self._limit
        left = max(0, self._deadline - loop.time())
        _, pending = await asyncio.wait(set(self._awaited), timeout=left)
        for one in pending:
            if (handler := self._awaited.pop(one, None)) is not None:  # else another wait did so
                self._tasks.logger.error("a handler of %s goes on and is abandoned", handler.event)
