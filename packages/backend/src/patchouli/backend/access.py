"""The provider as requests meet it: its calls, and the wait for a state that is not there yet.

A request may have to observe something: what a causal token stands for, or what its session has
seen. Where that is not there yet, and the request has a deadline, it waits until its scope has
moved and asks again. A request that waits holds nothing but itself: no turn, no place among the
mutations, no transaction.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from patchouli.backend.answers import late, refused
from patchouli.provider import DeadlineExceededError, UnitRefused

if TYPE_CHECKING:
    from patchouli.provider import (
        Clock,
        Commit,
        CommitOutcome,
        Cursor,
        Provider,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReadPlan,
        RetrieveOutcome,
        RetrievePlan,
        ScopeText,
        Unavailable,
    )

BETWEEN_TURNS_SECONDS = 0.0002  # so that who waits takes a quarter of the loop at most


class Access:
    """The calls of one provider that requests make."""

    def __init__(self, provider: Provider, clock: Clock, *, max_awaiting: int) -> None:
        self._provider = provider
        self._clock = clock
        self._max_awaiting = max_awaiting
        self._waits: set[asyncio.Task[None]] = set()
        self._next_turn = 0.0
        self._may_wait = True
        self.creates_begun = 0  # that were handed to the provider and do not close a unit

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Return what `plan` asks for, or why it cannot be observed.

        Raises:
            DeadlineExceededError: It could not be read in time.
        """
        try:
            return await self._provider.read(plan)
        except DeadlineExceededError as error:
            raise late() from error

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        """Return the page that `plan` asks for, or why it cannot be observed.

        Raises:
            DeadlineExceededError: It could not be read in time.
        """
        try:
            return await self._provider.retrieve(plan)
        except DeadlineExceededError as error:
            raise late() from error

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Return what became of `commit`.

        Raises:
            DeadlineExceededError: It was too late, and nothing was kept.
        """
        if not commit.expected_heads and (commit.staging is None or not commit.staging.close):
            self.creates_begun += 1
        try:
            return await self._provider.commit(commit)
        except DeadlineExceededError as error:
            raise late() from error

    async def publish(self, publish: Publish) -> PublishOutcome:
        """Return what became of a sealed work unit.

        Raises:
            DeadlineExceededError: It was too late, and nothing was published.
        """
        try:
            return await self._provider.publish(publish)
        except DeadlineExceededError as error:
            raise late() from error

    async def wait(
        self, scope: ScopeText, outcome: Unavailable | UnitRefused, deadline: int | None
    ) -> None:
        """Return when it may help to ask again for what was `outcome`.

        Raises:
            InvalidRequestError: The work unit does not take the request; nor will it.
            WorkUnitExpiredError: The same, because it expired.
            OverloadedError: The deadline passed first, there is nothing to wait for, or too many
                wait already.
            UnavailableError: The provider stops.
        """
        if (
            isinstance(outcome, UnitRefused)
            or deadline is None
            or outcome.frontier is None
            or not self._may_wait
            or len(self._waits) >= self._max_awaiting
        ):
            raise refused(outcome)
        left_ms = deadline - self._clock.unix_ms()
        # Not `asyncio.timeout`, which needs to be in a task: a read begins outside of one.
        moved = asyncio.create_task(self._moved(scope, outcome.frontier))
        self._waits.add(moved)
        try:
            await asyncio.wait([moved], timeout=max(0, left_ms) / 1000)
        finally:
            self._waits.discard(moved)
            if not moved.done():
                moved.cancel()
                await asyncio.wait([moved])
        if moved.cancelled():
            raise refused(outcome)
        moved.result()
        if self._clock.unix_ms() >= deadline:
            raise refused(outcome)

    def stop_waiting(self) -> None:
        """Let nobody wait any longer: what waits is refused now, and what comes at once."""
        self._may_wait = False
        for moved in self._waits:
            moved.cancel()

    async def _moved(self, scope: ScopeText, after: Cursor) -> None:
        """Return when `scope` is beyond `after` and it is the caller's turn to ask again.

        A commit wakes all who wait for its scope, and most of them in vain.
        """
        await self._provider.wait_for_changes(scope, after)
        now = asyncio.get_running_loop().time()
        turn = max(now, self._next_turn)
        self._next_turn = turn + BETWEEN_TURNS_SECONDS
        if turn > now:
            await asyncio.sleep(turn - now)
