"""The tasks that the service holds on behalf of plugins, so that none is without a reference.

Plugin code that was cancelled may go on for as long as it likes: it is named in the log once, after
the grace, and its late result is dropped. Nobody waits for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from patchouli.harness import Logger

R = TypeVar("R")


class Tasks:
    """Every task of one service, whoever waits for it."""

    __slots__ = ("_held", "grace", "logger")

    def __init__(self, *, grace: float, logger: Logger) -> None:
        self.grace = grace  # s
        self.logger = logger
        self._held: set[asyncio.Task[Any]] = set()  # Any: tasks of every kind

    def start(self, coro: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Run `coro` as a task that is held until it ends."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._held.add(task)
        task.add_done_callback(self._held.discard)
        return task

    def cancel(self, task: asyncio.Task[Any], plugin_id: str, why: str) -> None:
        """Cancel `task`, and name its plugin if it still runs after the grace."""
        if task.done():
            return
        task.cancel(why)
        timer = self.watch(f"a cancelled task of plugin {plugin_id} goes on: {task.get_name()}")
        task.add_done_callback(lambda _: timer.cancel())

    def watch(self, message: str) -> asyncio.TimerHandle:
        """Log `message` after the grace, unless the handle is cancelled before."""
        loop = asyncio.get_running_loop()
        return loop.call_later(self.grace, self.logger.warning, "%s", message)


def is_cancelled_itself() -> bool:
    """Say whether the current task was cancelled, rather than code in it having raised so."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
