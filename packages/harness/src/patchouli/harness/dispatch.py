"""Events: the lists of listeners, and the five ways to run them.

Each dispatch works on the list as it was when the dispatch began. Listeners run in the context of
the caller, so that context variables reach them. What a listener leaves running is known to the
scope of the listener, which ends or awaits it when it stops.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from patchouli.harness.errors import Aborted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.harness.handlers import Handlers
    from patchouli.harness.plugin import Listener


class Registered:
    """A listener in a list."""

    __slots__ = ("event", "listener", "owner")

    def __init__(self, owner: Handlers, event: str, listener: Listener) -> None:
        self.owner = owner
        self.event = event
        self.listener = listener


class Dispatcher:
    """All listeners of one kernel, by event."""

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        self._lists: dict[str, dict[Registered, None]] = {}  # outermost first

    def add(self, registered: Registered, *, prepend: bool) -> None:
        """Have a listener called by every dispatch that begins from now on."""
        present = self._lists.setdefault(registered.event, {})
        if prepend:
            self._lists[registered.event] = {registered: None, **present}
        else:
            present[registered] = None

    def remove(self, registered: Registered) -> None:
        """Have no dispatch that begins from now on call a listener."""
        rest = self._lists[registered.event]
        del rest[registered]
        if not rest:
            del self._lists[registered.event]

    def listeners(self, event: str) -> tuple[Registered, ...]:
        """Return the listeners of `event` as they are now, outermost first."""
        return tuple(self._lists.get(event, ()))

    def notify(self, event: str, *args: object) -> None:
        """Call all; contain what they raise, but for what ends the process."""
        ending: BaseException | None = None
        for one in self.listeners(event):
            try:
                result = one.listener(*args)
            except (KeyboardInterrupt, SystemExit) as error:
                ending = error  # the others are told first
            except BaseException as error:
                one.owner.listener_failed(event, error)
            else:
                _let_run(one, result)
        if ending is not None:
            raise ending

    def announce(self, event: str, *args: object) -> None:
        """Call all until one raises."""
        for one in self.listeners(event):
            _let_run(one, one.listener(*args))

    async def gather(self, event: str, *args: object) -> None:
        """Call all, await all, then raise the first failure."""
        started = [_started(one, args) for one in self.listeners(event)]
        tasks = {one for one in started if isinstance(one, asyncio.Task)}
        await _ended(tasks)
        for failure in [_failure(one) for one in started]:
            if isinstance(failure, asyncio.CancelledError):
                # The caller was not cancelled, and must not look as if it were.
                raise Aborted(f"a listener of {event} was cancelled") from failure
            if failure is not None:
                raise failure

    async def serial(self, event: str, *args: object) -> Any:  # Any: events say what is returned
        """Await one after another until one returns something."""
        for one in self.listeners(event):
            result = one.listener(*args)
            if inspect.isawaitable(result):
                result = await one.owner.handle(result, event)
            if result is not None and result is not False:
                return result
        return None

    async def chain(self, event: str, *args: object, default: Callable[[], Any]) -> Any:
        """Nest all around `default`."""
        listeners = self.listeners(event)

        async def run_from(position: int) -> Any:
            if position == len(listeners):
                result = default()
                return await result if inspect.isawaitable(result) else result
            one = listeners[position]
            result = one.listener(*args, _once(lambda: run_from(position + 1)))
            if inspect.isawaitable(result):
                result = await one.owner.handle(result, event)
            return result

        return await run_from(0)


def _let_run(one: Registered, result: object) -> None:
    if inspect.isawaitable(result):
        one.owner.let_run(result, one.event)


def _started(one: Registered, args: tuple[object, ...]) -> asyncio.Task[Any] | BaseException | None:
    try:
        result = one.listener(*args)
    except BaseException as error:  # raised once all have ended
        return error
    if not inspect.isawaitable(result):
        return None
    return one.owner.follow(result, one.event)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    """Return when all tasks have ended; a cancellation cancels them too and is raised only then."""
    cancellation: asyncio.CancelledError | None = None
    while pending := {task for task in tasks if not task.done()}:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            if cancellation is None:  # one is enough, however often the caller is cancelled
                for task in pending:
                    task.cancel()
            cancellation = error
    if cancellation is not None:
        for task in tasks:
            _failure(task)  # so that none passes for one that nobody looked at
        raise cancellation


def _failure(started: asyncio.Task[Any] | BaseException | None) -> BaseException | None:
    if not isinstance(started, asyncio.Task):
        return started
    if started.cancelled():
        return asyncio.CancelledError()
    return started.exception()


def _once(run: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
    called = False

    def run_next() -> Awaitable[Any]:
        nonlocal called
        if called:
            raise RuntimeError("next() was called twice")
        called = True
        return run()

    return run_next
