"""The tasks that run on behalf of a client: its owner ends them, so that none outlives it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

T = TypeVar("T")

GRACE_SECONDS: Final = 5.0  # in which a cancelled task has to end

_log: Final = logging.getLogger(__name__)  # noqa: TID251 -- structlog is no dependency of a client


class Tasks:
    """Handlers that wait, requests that several callers share, and the start under way."""

    def __init__(self) -> None:
        self._running: Final[set[asyncio.Future[Any]]] = set()
        self._requests: Final[set[asyncio.Future[Any]]] = set()

    def start(self, work: Awaitable[T], *, is_request: bool = False) -> asyncio.Future[T]:
        """Return a task of `work`, or the future that it is, kept until it ends.

        A request ends with its connection, and so is not cancelled: those who share it would be
        told of a cancellation that none of them has asked for.
        """
        task = asyncio.ensure_future(work)
        self._running.add(task)
        if is_request:
            self._requests.add(task)
        task.add_done_callback(self._discard)
        return task

    async def aclose(self) -> None:
        """Wait for the end of the requests, and of the others, which are cancelled.

        The connection has ended before this. The task that calls this goes on.
        """
        ending = self._running - {asyncio.current_task()}
        await end_tasks(ending, cancelled=ending - self._requests)

    def _discard(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        self._requests.discard(task)
        if not task.cancelled():
            task.exception()  # who shares the task has it; nobody else needs to be told


async def end_tasks(
    ending: Iterable[asyncio.Future[Any]], *, cancelled: Iterable[asyncio.Future[Any]]
) -> None:
    """Cancel some tasks and wait for the end of more; one that refuses is reported and left."""
    for task in cancelled:
        task.cancel()
    if tasks := set(ending):
        _, staying = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
        for task in staying:
            _log.warning("a task of the storage client did not end when it was cancelled: %r", task)
