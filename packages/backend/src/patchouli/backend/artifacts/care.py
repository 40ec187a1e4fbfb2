"""The timer of the library: it collects what nothing names, and checks each object now and then.

The check goes by the clock and keeps no state: the period is divided into as many turns as there
are directories of objects, and each directory is read in its turn, whatever happened before. A
daemon that does not run in a turn catches up in the next period.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from patchouli.backend.artifacts.collection import PAUSE_PER_STEP, check_objects, collect
from patchouli.backend.artifacts.library import SHARDS
from patchouli.backend.artifacts.threads import on_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from patchouli.backend.artifacts.collection import Checked, Collected
    from patchouli.backend.artifacts.library import ArtifactLibrary
    from patchouli.provider import Clock, ReferencesPage, ReferencesPlan

FIRST_COLLECTION_SECONDS: Final = 600  # after the start, at most: it need not be quick then


@dataclass(frozen=True, slots=True, kw_only=True)
class CareSchedule:
    """When what is done; a period of 0 seconds means never.

    Attributes:
        grace_seconds: How long an object stays that nothing names.
        collect_seconds: From one collection to the next.
        check_seconds: In which each object is read once.
    """

    grace_seconds: int = 86_400
    collect_seconds: int = 21_600
    check_seconds: int = 2_592_000


class Caretaker:
    """The timer of one library, from `start` to `aclose`.

    `read_references` must tell what the versions of all scopes name that keep artifacts here.
    `tell` is given each result, and each failure, after which the next turn comes as usual.
    """

    def __init__(
        self,
        library: ArtifactLibrary,
        read_references: Callable[[ReferencesPlan], Awaitable[ReferencesPage]],
        *,
        incarnation: str,
        schedule: CareSchedule,
        clock: Clock,
        tell: Callable[[Collected | Checked | Exception], None],
    ) -> None:
        self._library: Final = library
        self._read_references: Final = read_references
        self._incarnation: Final = incarnation
        self._schedule: Final = schedule
        self._clock: Final = clock
        self._tell: Final = tell
        self._tasks: Final[list[asyncio.Task[None]]] = []

    def start(self) -> None:
        """Begin."""
        if self._schedule.collect_seconds:
            self._tasks.append(asyncio.create_task(self._collect_again_and_again()))
        if self._schedule.check_seconds:
            self._tasks.append(asyncio.create_task(self._check_by_turns()))

    async def aclose(self) -> None:
        """End, after the step that is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def collect(self) -> Collected | None:
        """Collect once; None while the library serves this database for less than the grace time.

        Raises:
            ProviderError: The store cannot tell what is named.
            EngineError: The file system refuses.
        """
        now = self._clock.unix_ms()
        before = now - self._schedule.grace_seconds * 1000
        since = await on_thread(
            lambda: self._library.serves_since(self._incarnation, now_unix_ms=now)
        )
        if since > before:
            return None
        return await collect(
            self._library, self._read_references, before_unix_ms=before, pace=PAUSE_PER_STEP
        )

    async def _collect_again_and_again(self) -> None:
        seconds = min(self._schedule.collect_seconds, FIRST_COLLECTION_SECONDS)
        while True:
            await asyncio.sleep(seconds)
            await self._told(self.collect())
            seconds = self._schedule.collect_seconds

    async def _check_by_turns(self) -> None:
        turn_ms = max(1, self._schedule.check_seconds * 1000 // SHARDS)
        while True:
            turn, passed_ms = divmod(self._clock.unix_ms(), turn_ms)
            await asyncio.sleep((turn_ms - passed_ms) / 1000)
            shard = (turn + 1) % SHARDS
            shards = range(shard, shard + 1)
            await self._told(check_objects(self._library.root, shards, pace=PAUSE_PER_STEP))

    async def _told(self, work: Coroutine[None, None, Collected | Checked | None]) -> None:
        try:
            result = await work
        except Exception as error:  # the top of a task: the next turn comes all the same
            self._tell(error)
        else:
            if result is not None:
                self._tell(result)
