"""Stores that break one promise each, to see that the checkers notice.

They stand between the engine and the real store of a daemon. One of them breaks nothing: a replica
that lags behind as far as the sessions of its readers allow.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from patchouli.provider import Committed, Cursor, Published, Raced, Reading
from patchouli.server import assemble
from patchouli.server.testing import serving, settings_of

from tests.histories.history import HistoryError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    import pytest
    from patchouli.provider import (
        Commit,
        CommitOutcome,
        EntityKey,
        Provider,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReadPlan,
    )
    from patchouli.server.testing import Served

MOST_ROUNDS: Final = 20  # of a store with a bug, until it shows


class Between:
    """A store that passes everything on."""

    def __init__(self, store: Provider) -> None:
        self._store: Final = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynccontextmanager
async def serving_with(
    between: Callable[[Provider], Any], home: Path, patch: pytest.MonkeyPatch
) -> AsyncGenerator[Served]:
    """Yield a daemon whose store is behind another one."""
    open_store = assemble._open_store

    def open_between(*arguments: Any) -> Any:
        return between(open_store(*arguments))

    patch.setattr(assemble, "_open_store", open_between)
    async with serving(settings_of(home)) as served:
        yield served


async def require_found_out(record: Callable[[int], Awaitable[Callable[[], object]]]) -> None:
    """Return if the check of one of the histories that `record` makes refuses it."""
    for number in range(MOST_ROUNDS):
        check = await record(number)
        try:
            check()
        except HistoryError:
            return
    raise AssertionError("nobody noticed")


def is_plain(plan: ReadPlan) -> bool:
    """Whether the read is the whole request, outside of units."""
    return not plan.base_versions and plan.unit is None and plan.idempotency is None


class StaleReads(Between):
    """Every third read of an entity is answered with what the one before it was told."""

    def __init__(self, store: Provider) -> None:
        super().__init__(store)
        self._last: Final[dict[EntityKey, Reading]] = {}
        self._count = 0

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Read, or repeat an answer."""
        outcome = await self._store.read(plan)
        if not is_plain(plan) or not isinstance(outcome, Reading):
            return outcome
        last = self._last.get(plan.key)
        self._last[plan.key] = outcome
        self._count += 1
        return last if last is not None and self._count % 3 == 0 else outcome


class LostUpdates(Between):
    """A mutation that lost its race overwrites the heads that won it."""

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit, whatever the heads are."""
        outcome = await self._store.commit(commit)
        if isinstance(outcome, Raced) and commit.expected_heads and outcome.heads:
            kept = {head.id for head in outcome.heads} | {new.id for new in commit.new_versions}
            heads = tuple(head for head in commit.head_versions if head in kept)
            expected = tuple(head.id for head in outcome.heads)
            return await self._store.commit(
                replace(commit, expected_heads=expected, head_versions=heads)
            )
        return outcome


class ForgottenRecords(Between):
    """Every second mutation leaves no record of its identity."""

    def __init__(self, store: Provider) -> None:
        super().__init__(store)
        self._count = 0

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit, and forget who asked for it now and then."""
        self._count += 1
        if self._count % 2:
            commit = replace(commit, idempotency=None)
        return await self._store.commit(commit)


class TornPublications(Between):
    """A unit is published in two steps: its first entity after readers saw all the others.

    The close is answered when all of it is there, so every entity by itself looks right.
    """

    def __init__(self, store: Provider) -> None:
        super().__init__(store)
        self._before: Final[dict[EntityKey, Reading]] = {}
        self._late: Final[dict[EntityKey, asyncio.Event]] = {}
        self._early: Final[dict[EntityKey, EntityKey]] = {}  # to the one that its unit holds back

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Read, or show what was before the publication."""
        outcome = await self._store.read(plan)
        if not is_plain(plan) or not isinstance(outcome, Reading):
            return outcome
        if plan.key in self._late:
            if plan.key not in self._early.values():
                self._late[plan.key].set()
            return self._before[plan.key]
        self._early.pop(plan.key, None)
        self._before[plan.key] = outcome
        return outcome

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit, and hold back a part of what a unit published."""
        return await self._torn(await self._store.commit(commit))

    async def publish(self, publish: Publish) -> PublishOutcome:
        """Publish, and hold back a part of it."""
        return await self._torn(await self._store.publish(publish))

    async def _torn(self, outcome: Any) -> Any:
        if not isinstance(outcome, Published) or len(outcome.entities) < 2:
            return outcome
        first, *others = (entity.key for entity in outcome.entities)
        if first not in self._before:
            return outcome
        self._late[first] = asyncio.Event()
        self._early.update(dict.fromkeys(others, first))
        with suppress(TimeoutError):  # nobody reads any more
            await asyncio.wait_for(self._late[first].wait(), 1)
        del self._late[first]
        for other in others:
            self._early.pop(other, None)
        return outcome


class MovingBaselines(Between):
    """A unit sees what is published now wherever it has staged nothing."""

    def __init__(self, store: Provider) -> None:
        super().__init__(store)
        self._staged: Final[set[tuple[str, EntityKey]]] = set()

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Read in the unit, or beside it."""
        outcome = await self._store.read(plan)
        if plan.unit is None or (plan.unit.identity, plan.key) in self._staged:
            return outcome
        if plan.base_versions or not isinstance(outcome, Reading):
            return outcome
        return await self._store.read(replace(plan, unit=None))

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit, and note what is staged."""
        if commit.staging is not None:
            self._staged.add((commit.staging.unit.identity, commit.key))
        return await self._store.commit(commit)


class LaggingReplica(Between):
    """Reads that ask for no linearization are as old as their sessions and tokens allow.

    It keeps account of sessions itself, and can be told to forget a part of it.
    """

    def __init__(self, store: Provider, *, forgets: str = "nothing") -> None:
        super().__init__(store)
        self._forgets: Final = forgets
        self._past: Final[dict[EntityKey, list[Reading]]] = {}
        self._read: Final[dict[str, int]] = {}
        self._written: Final[dict[str, int]] = {}
        self._tokens: Final[dict[str, int]] = {}

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Answer with the oldest answer that is allowed."""
        asked = plan.consistency
        least = max([self._least(plan), *map(self._token, asked.minimum_tokens)])
        outcome = await self._store.read(plan)
        if not isinstance(outcome, Reading):
            return outcome
        observation = outcome.observation
        if observation.causal_token is not None:
            self._tokens[observation.causal_token] = observation.frontier
        if not is_plain(plan) or asked.linearization_keys:
            return outcome
        past = self._past.setdefault(plan.key, [])
        past.append(outcome)
        answer = next(old for old in past if old.observation.frontier >= least)
        for session in asked.sessions:
            known = self._read.get(session.key, 0)
            self._read[session.key] = max(known, answer.observation.frontier)
        return answer

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Commit, and note where its sessions are."""
        outcome = await self._store.commit(commit)
        if isinstance(outcome, Committed):
            self._tokens[commit.causal_token] = outcome.cursor
            for key in commit.write_sessions:
                self._written[key] = max(self._written.get(key, 0), outcome.cursor)
        return outcome

    def _least(self, plan: ReadPlan) -> int:
        least = [Cursor(0)]
        for session in plan.consistency.sessions:
            if session.monotonic_reads and self._forgets != "reads":
                least.append(Cursor(self._read.get(session.key, 0)))
            if session.read_your_writes and self._forgets != "writes":
                least.append(Cursor(self._written.get(session.key, 0)))
        return max(least)

    def _token(self, token: str) -> int:
        return 0 if self._forgets == "tokens" else self._tokens.get(token, 0)
