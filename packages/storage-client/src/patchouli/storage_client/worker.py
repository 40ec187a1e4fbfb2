"""The thread of the façade: an event loop with a client in it, and calls from other threads.

    made ─begin─▶ running ─end─▶ ending ─▶ ended

Nothing that a handler or a call raises ends the thread, not even what would end a program: of a
call it is raised where the call was made, of a handler it is logged. At the end the client is
closed, calls under way and those that come too late fail, and tasks are cancelled and awaited.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from concurrent import futures
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from patchouli.storage_client.errors import ClientClosedError
from patchouli.storage_client.tasks import end_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.storage_client.client import StorageClient

T = TypeVar("T")

THREAD_NAME: Final = "patchouli-storage-client"
# In which a thread begins whose launch was interrupted, if there is one.
LAUNCH_SECONDS: Final = 1.0


class Worker:
    """A thread with an event loop that a client is in, which is closed with it."""

    def __init__(self, client: StorageClient) -> None:
        self.is_ending = False
        self.is_started = False  # once the client has been ready
        self.starting: Final[set[object]] = set()  # who waits for it to be
        self.process_id: Final = os.getpid()
        self._client: Final = client
        self._end: Final = asyncio.Event()
        self._begun: Final[Future[None]] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: Final[set[_Call[Any]]] = set()
        self._is_ended = False
        # A daemon: who forgets to close a client can still end the program.
        self._thread: Final = threading.Thread(target=self._serve, name=THREAD_NAME, daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether calls can be run in it."""
        return self._loop is not None and not self.is_ending

    @property
    def is_current(self) -> bool:
        """Whether the caller is in the thread."""
        return threading.current_thread() is self._thread

    def begin(self) -> None:
        """Return when calls can run; a worker that cannot begin has ended.

        Raises:
            RuntimeError: There can be no more threads.
            Exception: There can be no event loop, for want of descriptors for example.
        """
        try:
            try:
                self._thread.start()
            except RuntimeError as error:
                self._begun.set_exception(error)
            self._begun.result()
        except BaseException:
            self.end()
            raise

    def run(self, work: Callable[[StorageClient], Awaitable[T]]) -> T:
        """Return what comes of the awaitable that `work` makes, or raise what is raised in it."""
        # An interrupt may come between any two steps, so the call can be cancelled before it began.
        call = _Call(partial(work, self._client))
        try:
            self._calls.add(call)
            self._schedule(partial(self._begin, call))
            return call.outcome.result()
        except BaseException:
            if not call.outcome.done():
                self._schedule(call.cancel)
            raise
        finally:
            self._calls.discard(call)

    def end(self) -> None:
        """Return when the thread is gone; again, too, as the first call may be interrupted."""
        self.is_ending = True
        self._schedule(self._end.set)
        # `Thread.start` may be interrupted before or after there is a thread, and does not say.
        is_launched = bool(futures.wait([self._begun], LAUNCH_SECONDS).done)
        if is_launched and self._thread.ident is not None:
            self._thread.join()
        self._is_ended = True
        self._fail_calls()  # those that other threads have made in the last moment

    def _serve(self) -> None:
        try:
            loop = asyncio.new_event_loop()
        except BaseException as error:
            self._begun.set_exception(error)
            return
        with closing(loop):
            staying = loop.create_task(self._stay())
            while not staying.done():
                # A task that raises one of these throws it through the loop as well. Whoever made
                # the task is told, and the loop goes on where it was.
                with suppress(KeyboardInterrupt, SystemExit):
                    loop.run_until_complete(staying)

    async def _stay(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begun.set_result(None)
        if not self.is_ending:  # else `end` may have come before there was a loop to tell
            await self._end.wait()
        await self._client.close()
        self._fail_calls()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        await end_tasks(left, cancelled=left)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()

    def _begin(self, call: _Call[Any]) -> None:
        if self.is_ending:
            call.fail()
        else:
            call.begin()

    def _schedule(self, step: Callable[[], object]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(step)
        if self._is_ended:
            self._fail_calls()

    def _fail_calls(self) -> None:
        for call in list(self._calls):
            call.fail()


class _Call(Generic[T]):
    """Work that runs in the thread of the façade while another one waits for it."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self.outcome: Final[Future[T]] = Future()
        self._work: Final = work
        self._task: asyncio.Task[T] | None = None
        self._is_cancelled = False

    def begin(self) -> None:
        if not self._is_cancelled:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def fail(self) -> None:
        with suppress(InvalidStateError):  # it has ended in the same moment
            self.outcome.set_exception(ClientClosedError())

    async def _run(self) -> T:
        work = self._work()
        if not inspect.isawaitable(work):
            raise TypeError(f"what is run must return a coroutine, not {type(work).__name__}")
        return await work

    def _ended(self, task: asyncio.Task[T]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        with suppress(InvalidStateError):
            if error is None:
                self.outcome.set_result(task.result())
            else:
                self.outcome.set_exception(error)
