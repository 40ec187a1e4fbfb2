"""Who waits for changes of which scope, and their wake-up by the commits themselves.

`answer` is called on the event loop, once for each group of commits that is on disk. It gives the
waiting tasks their results and wakes the waiters of the scopes that moved, in one step: no task can
be cancelled in between, so no wake-up depends on a task that commits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from patchouli.provider import (
    Commit,
    Committed,
    ProviderError,
    Published,
    UnavailableError,
)
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import ScopeText
    from patchouli.provider_sqlite.commits import Result
    from patchouli.provider_sqlite.executor import Handed


class Wakeups:
    """The waiters for changes of one store; used on its event loop only."""

    def __init__(self) -> None:
        self._waiters: dict[ScopeText, set[asyncio.Future[None]]] = {}
        self._has_stopped = False

    async def wait(self, scope: ScopeText) -> None:
        """Return when a change of `scope` has been published after this call.

        The caller reads the frontier first and calls this without giving up the loop in between.

        Raises:
            UnavailableError: The store stops.
        """
        if self._has_stopped:
            raise _stopping()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters.setdefault(scope, set())
        waiters.add(future)
        try:
            await future
        finally:
            waiters.discard(future)
            if not waiters and self._waiters.get(scope) is waiters:
                del self._waiters[scope]

    def answer(self, group: Sequence[Handed], results: Sequence[Result]) -> None:
        """Give every commit of the group its result and wake the waiters of its scope."""
        for handed, result in zip(group, results, strict=True):
            future = handed.future
            if isinstance(result, Committed | Published) and self._waiters:
                work = handed.work
                self._wake(work.key.scope if isinstance(work, Commit) else work.scope)
            if future.done():
                continue  # its task was cancelled and does not want the result any more
            if isinstance(result, ProviderError):
                future.set_exception(result)
            else:
                future.set_result(result)

    def stop(self) -> None:
        """Fail everybody who waits, now and later."""
        self._has_stopped = True
        for waiters in self._waiters.values():
            for future in waiters:
                if not future.done():
                    future.set_exception(_stopping())

    def _wake(self, scope: ScopeText) -> None:
        for future in self._waiters.get(scope, ()):
            if not future.done():
                future.set_result(None)


def _stopping() -> UnavailableError:
    return UnavailableError(KIND, "wait_for_changes", "the store stops")
