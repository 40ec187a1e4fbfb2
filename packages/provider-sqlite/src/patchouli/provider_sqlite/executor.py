"""The threads of a store: one that writes, a few that read.

The writer takes everything that waits for it and does it as one group, so the more works wait, the
fewer syncs each costs: commits, advances of sessions, requests of work units (`group.py`). Its
answers go to the event loop in one call per group.

The cancellation rule: a commit that was handed over is done, whatever happens to the task that
waits for it, and the waiters for its change are woken by the writer's own answer. A read whose task
is cancelled, or whose deadline passes, is interrupted.

Nobody is left waiting: when a thread ends, for whatever reason, what it still had is failed, and
what is handed over afterwards is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import apsw
from patchouli.provider import Commit, ProviderError, UnavailableError
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.provider_sqlite.commits import Result
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.group import Work
    from patchouli.provider_sqlite.limits import SqliteLimits

    Publish = Callable[[Sequence[Commit | Work]], Sequence[Result]]
    Answer = Callable[[Sequence["Handed"], Sequence[Result]], None]

T = TypeVar("T")

INSIST_SECONDS: Final = 0.01


class Handed:
    """A work on its way to the writer, and the future of the task that waits for its answer."""

    __slots__ = ("future", "work")

    def __init__(self, work: Commit | Work, future: asyncio.Future[Result]) -> None:
        self.work = work
        self.future = future

    def value_bytes(self) -> int:
        """Return about how much it writes."""
        if isinstance(self.work, Commit):
            return sum(len(version.value_json or "") for version in self.work.new_versions)
        return self.work.value_bytes


class Runnable(Protocol):
    """Something that a thread runs and whose future it can fail instead."""

    def run(self) -> None:
        """Do it and answer."""
        ...

    def fail(self, error: Exception) -> None:
        """Answer with `error`."""
        ...


class ReaderTask(Protocol):
    """The same for a thread that lends its connection."""

    def run(self, connection: Connection) -> None:
        """Do it and answer."""
        ...

    def fail(self, error: Exception) -> None:
        """Answer with `error`."""
        ...


class Job(Generic[T]):
    """A function on its way to the writer, and the future of the task that waits for its result."""

    __slots__ = ("_function", "_loop", "future")

    def __init__(self, function: Callable[[], T], loop: asyncio.AbstractEventLoop) -> None:
        self._function = function
        self._loop = loop
        self.future: asyncio.Future[T] = loop.create_future()

    def run(self) -> None:
        """Call the function here and answer the future on its loop."""
        try:
            result = self._function()
        except Exception as error:
            self.fail(error)
        else:
            _call_on(self._loop, _resolve, self.future, result)

    def fail(self, error: Exception) -> None:
        """Answer the future with `error`."""
        _call_on(self._loop, _reject, self.future, error)


class Errand(Generic[T]):
    """A function on its way to the writer, for which another thread waits."""

    __slots__ = ("_done", "_error", "_function", "_result")

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._done = threading.Event()
        self._error: Exception | None = None
        self._result: list[T] = []

    def run(self) -> None:
        """Call the function here and let the other thread go on."""
        try:
            self._result.append(self._function())
        except Exception as error:
            self._error = error
        self._done.set()

    def fail(self, error: Exception) -> None:
        """Let the other thread raise `error`."""
        self._error = error
        self._done.set()

    def wait(self) -> T:
        """Return what the function returned, or raise what it raised."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


class Writer:
    """The thread that owns the write connection.

    `answer` is called on the loop, once for each group that is on disk.
    """

    def __init__(
        self, limits: SqliteLimits, loop: asyncio.AbstractEventLoop, answer: Answer
    ) -> None:
        self._limits = limits
        self._loop = loop
        self._queue: SimpleQueue[Handed | Runnable | None] = SimpleQueue()
        self._has_ended = False
        self._waiting = 0  # counted on the loop, cancelled waiters included
        self._publish = _not_started
        self._answer = answer
        self._thread = threading.Thread(
            target=self._work, name="patchouli-sqlite-writer", daemon=True
        )
        self._thread.start()

    def serve(self, publish: Publish) -> None:
        """Do commits with `publish` from now on; called on the thread itself."""
        self._publish = publish

    def hand_over(self, work: Commit | Work) -> asyncio.Future[Result]:
        """Return the future of a work that will be done, in the order of these calls.

        Raises:
            UnavailableError: Too many commits wait.
        """
        if self._waiting >= self._limits.waiting_commits:
            raise UnavailableError(KIND, "commit", "too many commits wait; try again later")
        self._waiting += 1
        handed = Handed(work, self._loop.create_future())
        self._put(handed)
        return handed.future

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future of a function that runs between two groups of commits."""
        job = Job(function, self._loop)
        self._put(job)
        return job.future

    def run(self, function: Callable[[], T]) -> T:
        """Return what a function returns between two groups; for threads, never for the loop.

        Raises:
            UnavailableError: The writer has ended.
        """
        errand = Errand(function)
        self._put(errand)
        return errand.wait()

    def stop(self) -> None:
        """Let the thread end when it has done what was handed over before."""
        self._put(None)

    def join(self) -> None:
        """Wait for the end of the thread."""
        self._thread.join()

    def _put(self, item: Handed | Runnable | None) -> None:
        self._queue.put(item)
        if self._has_ended:
            self._refuse_waiting()

    def _work(self) -> None:
        try:
            while True:
                group, job = self._gather()
                if group:
                    self._do(group)
                if job is not None:
                    job.run()
                elif not group:
                    return
        finally:
            self._has_ended = True
            self._refuse_waiting()

    def _gather(self) -> tuple[list[Handed], Runnable | None]:
        """Wait for work; return what goes together, and the job that came after it."""
        group: list[Handed] = []
        size = 0
        item = self._queue.get()
        while isinstance(item, Handed):
            group.append(item)
            size += item.value_bytes()
            if len(group) >= self._limits.group_commits or size >= self._limits.group_bytes:
                return group, None
            try:
                item = self._queue.get_nowait()
            except Empty:
                return group, None
        if item is None and group:
            self._queue.put(None)  # the end comes after the group
        return group, item

    def _do(self, group: Sequence[Handed]) -> None:
        try:
            results = self._publish([handed.work for handed in group])
        except BaseException as error:
            failure = ProviderError(KIND, "commit", "the writer met an unexpected error")
            failure.__cause__ = error
            self._answer_all(group, [failure] * len(group))
            if not isinstance(error, Exception):
                raise
        else:
            self._answer_all(group, results)

    def _answer_all(self, group: Sequence[Handed], results: Sequence[Result]) -> None:
        _call_on(self._loop, self._deliver, group, results)

    def _deliver(self, group: Sequence[Handed], results: Sequence[Result]) -> None:
        self._waiting -= len(group)
        self._answer(group, results)

    def _refuse_waiting(self) -> None:
        error = UnavailableError(KIND, "commit", "the store has stopped")
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                return
            if isinstance(item, Handed):
                self._answer_all([item], [error])
            elif item is not None:
                item.fail(error)


class Read(Generic[T]):
    """A function of a reader's connection, which can be interrupted while it runs."""

    __slots__ = ("_connection", "_function", "_is_stopped", "_lock", "_loop", "future")

    def __init__(
        self, function: Callable[[Connection], T], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._function = function
        self._loop = loop
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._is_stopped = False
        self.future: asyncio.Future[T] = loop.create_future()

    def run(self, connection: Connection) -> None:
        """Call the function here and answer the future on its loop."""
        with self._lock:
            if self._is_stopped:
                self.fail(UnavailableError(KIND, "read", "it was interrupted"))
                return
            self._connection = connection
        try:
            result = self._function(connection)
        except Exception as error:
            self.fail(error)
        else:
            _call_on(self._loop, _resolve, self.future, result)
        finally:
            with self._lock:  # from here on an interruption would hit the next read
                self._connection = None

    def interrupt(self) -> None:
        """Stop the statement that runs for this read, or keep it from starting; on the loop.

        SQLite forgets an interruption that comes between two statements, so this comes back until
        the read has ended.
        """
        with self._lock:
            self._is_stopped = True
            if self._connection is None:
                return
            self._connection.interrupt()
        self._loop.call_later(INSIST_SECONDS, self.interrupt)

    def fail(self, error: Exception) -> None:
        """Answer the future with `error`."""
        _call_on(self._loop, _reject, self.future, error)


class Readers:
    """A few threads, each with a connection of its own that it opens when it is first used."""

    def __init__(
        self,
        limits: SqliteLimits,
        loop: asyncio.AbstractEventLoop,
        connect: Callable[[], Connection],
    ) -> None:
        self._limits = limits
        self._loop = loop
        self._connect = connect
        self._queue: SimpleQueue[ReaderTask | None] = SimpleQueue()
        self._waiting = 0
        self._has_ended = False
        self._live = limits.readers
        self._live_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._work, name=f"patchouli-sqlite-reader-{n}", daemon=True)
            for n in range(limits.readers)
        ]
        for thread in self._threads:
            thread.start()

    async def run(
        self,
        function: Callable[[Connection], T],
        *,
        operation: str,
        seconds_left: float | None = None,
    ) -> T:
        """Return what `function` returns on a reader thread.

        Raises:
            UnavailableError: Too many reads wait, or the store stops.
            TimeoutError: `seconds_left` passed before it was done.
        """
        if self._waiting >= self._limits.waiting_reads:
            raise UnavailableError(KIND, operation, "too many reads wait; try again later")
        read = Read(function, self._loop)
        self._waiting += 1
        # Not asyncio.timeout: the first steps of a request may run outside of any task.
        timer = (
            None
            if seconds_left is None
            else self._loop.call_later(seconds_left, _reject, read.future, TimeoutError())
        )
        try:
            self._put(read)
            return await read.future
        except BaseException:
            read.interrupt()
            read.future.cancel()  # nobody is left to take its outcome
            raise
        finally:
            self._waiting -= 1
            if timer is not None:
                timer.cancel()

    def stop(self) -> None:
        """Let every thread end when it has done what was handed over before."""
        for _ in self._threads:
            self._put(None)

    def join(self) -> None:
        """Wait for the end of the threads."""
        for thread in self._threads:
            thread.join()

    def _put(self, item: ReaderTask | None) -> None:
        self._queue.put(item)
        if self._has_ended:
            self._refuse_waiting()

    def _work(self) -> None:
        connection: Connection | None = None
        try:
            while (read := self._queue.get()) is not None:
                try:
                    connection = connection or self._connect()
                except apsw.Error as error:
                    read.fail(error)
                else:
                    read.run(connection)
        finally:
            if connection is not None:
                connection.close()
            with self._live_lock:
                self._live -= 1
                self._has_ended = self._live == 0
            if self._has_ended:
                self._refuse_waiting()

    def _refuse_waiting(self) -> None:
        error = UnavailableError(KIND, "read", "the store has stopped")
        while True:
            try:
                read = self._queue.get_nowait()
            except Empty:
                return
            if read is not None:
                read.fail(error)


def _not_started(_: Sequence[Commit | Work]) -> Sequence[Result]:
    raise UnavailableError(KIND, "commit", "the store has not started")


def _resolve(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _reject(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: object
) -> None:
    """Call `function` on the loop; a loop that was closed has nobody left who waits."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)
