"""The tasks of one service, and the one place where it runs code of others.

Foreign code may do what it likes with the task that it finds itself in: cancel it, leave a
cancellation in it for later, never end. So the tasks that keep a subscription going run none of it:
it gets a task of its own, and they see its result or an `Exception`. A `CancelledError` in such a
task then means one thing: somebody outside cancelled it, as a loop that is torn down does.

Foreign code that was cancelled may go on for as long as it likes: it is named in the log once,
after the grace, and its late result is dropped. Nobody waits for it.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from patchouli.memory_service.results import as_exception

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from patchouli.harness import Logger

R = TypeVar("R")


class Steps:
    """Names who takes longer than the grace for one of many steps, of which none overlap.

    One timer watches over all of them: one each would cost more than a short step itself.
    """

    __slots__ = ("_args", "_began", "_message", "_tasks", "_time", "_timer")

    def __init__(self, tasks: Tasks, message: str, args: tuple[object, ...]) -> None:
        self._tasks = tasks
        self._message = message
        self._args = args
        self._time = asyncio.get_running_loop().time
        self._began: float | None = None  # the step under way
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Watch over a step from now on."""
        self._began = self._time()
        if self._timer is None:
            self._arm(self._began)

    def end(self) -> None:
        """Say that there is no step under way."""
        self._began = None

    def _arm(self, began: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(began + self._tasks.grace, self._look, began)

    def _look(self, began: float) -> None:
        self._timer = None
        if self._began == began:
            self._tasks.logger.warning(self._message, *self._args)
        elif self._began is not None:  # a later step than the one that armed the timer
            self._arm(self._began)


class Tasks:
    """Every task of one service, whoever waits for it, so that none is without a reference."""

    __slots__ = ("_held", "grace", "logger")

    def __init__(self, *, grace: float, logger: Logger) -> None:
        self.grace = grace  # s
        self.logger = logger
        self._held: set[asyncio.Task[Any]] = set()  # Any: tasks of every kind

    def start(self, coro: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """Run `coro` as a task that is held until it ends."""
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._held.add(task)
        task.add_done_callback(self._ended)
        return task

    async def run(self, call: Callable[[], Awaitable[R] | R], who: str, doing: str) -> R:
        """Return what foreign code answers; who takes longer than the grace is named in the log.

        Raises:
            Exception: What it raised, or what stands for that if it was no `Exception`.
        """
        task, answer = self.begin(call, who, doing)
        timer = self.watch("%s takes long to %s", who, doing)
        try:
            await asyncio.wait({task})
        finally:
            timer.cancel()
        if not answer.done():  # cancelled before its first step
            raise as_exception(asyncio.CancelledError())
        return answer.result()

    def begin(
        self, call: Callable[[], Awaitable[R] | R], who: str, doing: str
    ) -> tuple[asyncio.Task[None], asyncio.Future[R]]:
        """Run foreign code; return its task, and its answer or the `Exception` in place of one.

        A task that is cancelled before its first step leaves no answer.
        """
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        return self.start(self._foreign(call, who, answer), f"patchouli {doing}: {who}"), answer

    def cancel(self, task: asyncio.Task[Any], plugin_id: str, why: str) -> None:
        """Cancel `task`, and name its plugin if it still runs after the grace."""
        if task.done():
            return
        task.cancel(why)
        name = task.get_name()
        timer = self.watch("a cancelled task of plugin %s goes on: %s", plugin_id, name)
        task.add_done_callback(lambda _: timer.cancel())

    def watch(self, message: str, *args: object) -> asyncio.TimerHandle:
        """Log `message` after the grace, unless the handle is cancelled before."""
        loop = asyncio.get_running_loop()
        return loop.call_later(self.grace, self.logger.warning, message, *args)

    def steps(self, message: str, *args: object) -> Steps:
        """Return what logs `message` for each step that takes longer than the grace."""
        return Steps(self, message, args)

    def caught(self, error: BaseException, who: str) -> None:
        """Write down what foreign code raised, and raise it again if it ends the program."""
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.logger.error("%s ends the program: %r", who, error)
            raise error
        self.logger.debug("%s failed", who, exc_info=error)

    async def _foreign(
        self, call: Callable[[], Awaitable[R] | R], who: str, answer: asyncio.Future[R]
    ) -> None:
        try:
            made = call()
            answer.set_result(await made if inspect.isawaitable(made) else cast("R", made))
        except BaseException as error:  # foreign code
            answer.set_exception(as_exception(error))
            answer.exception()  # who waits for it may have been cancelled
            self.caught(error, who)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._held.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, Exception):  # anything else ends the program, and has been named
            self.logger.error("task %s failed: %s", task.get_name(), error, exc_info=error)
