"""Turns of mutations that contend for one entity, or close one work unit.

Compare-and-swap alone lets one of n simultaneous mutations win a round and makes all others decide
anew, n rounds long; with merges that is work without end, and who loses eight times gives up. So a
mutation that lost a race lines up for its entity and tries again when the one before it is done,
and while there is a line, new mutations of that entity join it before they read.

Nothing is correct because of a turn: it keeps apart what would collide inside one process, and what
does not line up (another process, a mutation that had read before the line began) still meets the
compare-and-swap. Without contention there is no line and nothing to wait for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, EntityKey


class Turns:
    """The lines of one event loop. The members of a line are bounded by the engine's queue."""

    def __init__(self) -> None:
        # A line is there while somebody has the turn; it holds those who wait for it.
        self._lines: dict[EntityKey | ControlKey, deque[asyncio.Future[None]]] = {}

    def is_taken(self, key: EntityKey | ControlKey) -> bool:
        """Return whether a mutation of the entity `key` has the turn now."""
        return bool(self._lines) and key in self._lines

    async def take(self, key: EntityKey | ControlKey, *, timeout_ms: int | None) -> bool:
        """Return when the caller has the turn for `key`, saying whether it had to wait.

        The turn has to be given back. A caller that is cancelled, or out of time, has none.

        Raises:
            TimeoutError: The turn did not come within `timeout_ms`.
        """
        line = self._lines.get(key)
        if line is None:
            self._lines[key] = deque()
            return False
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        timer = None if timeout_ms is None else loop.call_later(timeout_ms / 1000, _expire, turn)
        line.append(turn)
        try:
            await turn
        except BaseException:
            if turn.cancelled() or turn.exception() is not None:
                with contextlib.suppress(ValueError):  # `give_back` has passed over it already
                    line.remove(turn)
            else:
                self.give_back(key)  # it came in the same instant
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return True

    def give_back(self, key: EntityKey | ControlKey) -> None:
        """Pass the turn for `key` on to who has waited longest, if anybody waits."""
        line = self._lines[key]
        while line:
            turn = line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._lines[key]


def _expire(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_exception(TimeoutError())
