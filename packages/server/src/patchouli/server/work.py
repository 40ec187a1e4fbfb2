"""Tasks that were admitted on somebody's behalf and must be drained rather than cut."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Work:
    """Owns every task of the daemon that outlives the call which began it.

    Attributes:
        ahead: How many requests are under way that were begun before the end of another one of
            their connection, which they might have waited for.
    """

    def __init__(self) -> None:
        self.ahead = 0
        self._tasks: Final[set[asyncio.Task[Any]]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, coroutine: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run `coroutine` to its end as a task."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self) -> None:
        """Return when no task is left, those that begin meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel what is left and return when it has ended."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)


_TAKEN: Final = object()


class Rest(Coroutine[Any, Any, None]):
    """A coroutine, or the rest of one that was driven by hand until it first had to wait.

    It hands on the future that the coroutine waits for, if there is one, then the coroutine itself.
    `finish` gets the outcome in the very step in which the coroutine ends, so nothing can come in
    between. A task of it that is cancelled before its first step ends the coroutine as well, which
    one that awaits the coroutine would leave behind.
    """

    __slots__ = ("_coroutine", "_finish", "_waited")

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, bytes],
        finish: Callable[[bytes], None],
        waited: object = _TAKEN,
    ) -> None:
        self._coroutine = coroutine
        self._waited: object = waited
        self._finish = finish

    def send(self, value: object, /) -> object:
        """Go on to the next wait."""
        if self._waited is not _TAKEN:
            waited, self._waited = self._waited, _TAKEN
            return waited
        try:
            return self._coroutine.send(value)
        except StopIteration as ended:
            self._finish(ended.value)
            raise StopIteration(None) from None

    def throw(self, *exception: Any) -> object:
        """Raise inside the coroutine, where it waits."""
        self._waited = _TAKEN
        try:
            return self._coroutine.throw(*exception)
        except StopIteration as ended:
            self._finish(ended.value)
            raise StopIteration(None) from None

    def close(self) -> None:
        """Give up the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        raise NotImplementedError("a Rest is run by a task")
