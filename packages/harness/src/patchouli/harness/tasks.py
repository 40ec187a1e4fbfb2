"""The tasks of a kernel: every one is referenced until it ends, and cut in one way."""

from __future__ import annotations

import asyncio
import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Awaitable, Coroutine

    from patchouli.harness.plugin import Logger

R = TypeVar("R")


class Tasks:
    """All tasks of one kernel."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace = grace_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

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

    async def cut(self, tasks: set[asyncio.Task[Any]], logger: Logger) -> None:
        """Cancel `tasks` and return when they have ended, or when the grace period has."""
        for task in tasks:
            task.cancel()
        if not tasks:
            return
        _, pending = await asyncio.wait(tasks, timeout=self._grace)
        for task in pending:
            name = task.get_name()
            logger.error("task %s goes on %g s after its cancellation", name, self._grace)


class RunTasks:
    """The tasks of one run, which is not over before they are.

    Attributes:
        logger: Where their failures are logged.
    """

    __slots__ = ("_kernel_tasks", "_tasks", "logger")

    def __init__(self, kernel_tasks: Tasks, logger: Logger) -> None:
        self.logger = logger
        self._kernel_tasks = kernel_tasks
        self._tasks: set[asyncio.Task[Any]] = set()

    def own(self, coro: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Run `coro` as a task of the run."""
        task = self._kernel_tasks.own(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def all(self) -> set[asyncio.Task[Any]]:
        """Return those that have not ended."""
        return {*self._tasks}

    async def cut(self, tasks: set[asyncio.Task[Any]]) -> None:
        """Cancel some and return when they have ended, or when the grace period has."""
        await self._kernel_tasks.cut(tasks, self.logger)


def for_task(result: Awaitable[R]) -> Coroutine[Any, Any, R]:
    """Return what a task can run.

    That is `result` itself if it is a coroutine: a task that is cancelled before its first step
    then closes it, and does not leave it behind in one that would have awaited it.
    """
    return result if inspect.iscoroutine(result) else _awaited(result)


async def _awaited(result: Awaitable[R]) -> R:
    return await result


def abandon(task: asyncio.Task[Any], logger: Logger, what: str) -> None:
    """Wait for `task` no longer; a failure that comes later is still logged."""

    def ended(task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s failed after it was abandoned", what, exc_info=error)

    task.add_done_callback(ended)


async def await_foreign(result: Awaitable[R]) -> R:
    """Await what others wrote; a cancellation of this task that they took for themselves is spent.

    A limit written by hand cancels the task that it runs in and raises something else. The task
    would look cancelled from then on, and a later cancellation that is foreign like its own.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        return await result
    except asyncio.CancelledError:
        before = sys.maxsize  # it goes on its way
        raise
    finally:
        while task is not None and task.cancelling() > before:
            task.uncancel()


def is_foreign(error: BaseException) -> bool:
    """Say whether `error` is the fault of what was awaited, so that the caller may contain it.

    It is not if it ends the caller as well: the cancellation of the current task, the closing of
    its coroutine, the end of the process. A cancellation that nobody told this task of is foreign.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or not task.cancelling()
    return not isinstance(error, GeneratorExit | KeyboardInterrupt | SystemExit)
