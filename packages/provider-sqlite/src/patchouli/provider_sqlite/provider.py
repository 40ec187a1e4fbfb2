"""The boundary's methods over one SQLite database."""

from __future__ import annotations

import asyncio
import os
import weakref
from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Final, TypeVar, cast

import apsw
from patchouli.provider import (
    Capabilities,
    Consistency,
    DeadlineExceededError,
    MisuseError,
    Provider,
    Raced,
    Reading,
    ReadPlan,
    RetrievePlan,
    SystemClock,
    Unavailable,
    UnavailableError,
    UnitRefused,
)
from patchouli.provider_sqlite import changes, reads, references
from patchouli.provider_sqlite.budget import Budget, OverBudgetError
from patchouli.provider_sqlite.commits import Lost
from patchouli.provider_sqlite.connection import Disk
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.group import Entered
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.lifecycle import SECRET_BYTES, Chance
from patchouli.provider_sqlite.limits import SqliteLimits
from patchouli.provider_sqlite.ownership import Ownership
from patchouli.provider_sqlite.store import Store
from patchouli.provider_sqlite.units import Enter
from patchouli.provider_sqlite.units_publishing import PublishUnit, Unkept
from patchouli.provider_sqlite.units_reads import read_in_unit
from patchouli.provider_sqlite.units_staging import Stage

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from patchouli.provider import (
        ChangePage,
        ChangesPlan,
        Clock,
        Commit,
        CommitOutcome,
        Compaction,
        CompactionPlan,
        Cursor,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReferencesPage,
        ReferencesPlan,
        Retention,
        RetrieveOutcome,
        RuntimeGeneration,
        ScopeText,
    )
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.control import Answer

T = TypeVar("T")
PlanT = TypeVar("PlanT", ReadPlan, RetrievePlan)

# A text with half of a surrogate pair and an integer beyond 64 bits fail before SQLite sees them; a
# damaged text fails when it has left SQLite.
_SQL_FAILURES: Final = (apsw.Error, UnicodeError, JSONDecodeError, OverflowError)

CAPABILITIES: Final = Capabilities(
    authority=True,
    change_stream=True,
    retrieval=True,
    idempotency=True,
    work_units=True,
    causal_reads=True,
    monotonic_reads=True,
    read_your_writes=True,
    linearizable_reads=True,
)


class SqliteProvider(Provider):
    """A store in one SQLite database, owned by this process from construction to `shutdown`.

    Construction checks and creates the files and takes the lock; it does not touch the database.

    Raises:
        OwnershipError: Another process owns the database.
        UnsafeStoreError: Other users could read or replace its files.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        limits: SqliteLimits | None = None,
        index_limits: IndexLimits | None = None,
        disk: Disk | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._limits = SqliteLimits() if limits is None else limits
        self._index_limits = IndexLimits() if index_limits is None else index_limits
        self._disk = Disk() if disk is None else disk
        self._entropy = entropy
        self._ownership = Ownership.acquire(path, disk=self._disk)
        self._store: Store | None = None
        self._has_begun = False
        self._has_stopped = False
        self._admission = _Admission()
        # A provider that is dropped lets go of its files, and leaves the run without a clean stop.
        self._release = weakref.finalize(self, self._ownership.release)
        self._release.atexit = False  # the end of the process releases everything by itself

    @property
    def kind(self) -> str:
        """`sqlite`."""
        return KIND

    def capabilities(self) -> Capabilities:
        """Return what this store can do."""
        return CAPABILITIES

    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        """Start a run: one transaction makes or migrates the tables and counts the generation.

        Raises:
            FormatVersionError: The database belongs to another program or a newer release.
            CorruptStoreError: It cannot be read.
            UnavailableError: It cannot be used now.
        """
        if self._has_begun or self._has_stopped:
            raise MisuseError(KIND, "initialize", "the store was started before")
        self._has_begun = True
        store = Store(
            self._ownership,
            clock=self._clock,
            limits=self._limits,
            index_limits=self._index_limits,
            disk=self._disk,
        )
        chance = Chance(self._entropy(16).hex(), self._entropy(SECRET_BYTES))
        try:
            run = await store.open(chance, retention)
        except BaseException:
            self._has_stopped = True
            raise
        self._store = store
        self._release.detach()
        self._release = weakref.finalize(self, store.drop)
        self._release.atexit = False
        return run

    async def health(self) -> None:
        """Return if the database answers a query.

        Raises:
            ProviderError: It does not.
        """
        connection = self._require("health").inline
        try:
            connection.execute("SELECT generation FROM runtime").fetchall()
        except apsw.Error as error:
            raise translate(error, "health") from error

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """Return the heads of an entity, on the event loop: a few look-ups by key, no waiting.

        Only a divergence that needs a long walk goes to a reader thread. Only a read that takes a
        session further than it was, or is the first in its work unit, waits for the writer.
        """
        store = self._require("read")
        if plan.unit is None:
            answer = await self._read(store, plan)
            if answer is not None:  # always so outside of units; the usual read is done here
                return answer.outcome if answer.advance is None else await self._kept(store, answer)
        return await self._settled(store, plan, partial(self._read, store))

    async def commit(self, commit: Commit) -> CommitOutcome:
        """Replace the heads of an entity, durably, in a transaction shared with other commits.

        Raises:
            DeadlineExceededError: The deadline passed before acceptance; nothing was kept.
            MisuseError: The commit contradicts itself or the store.
            StoreFullError: There is no room; nothing was kept.
            UnavailableError: Too many commits wait, or the store stops; nothing was kept.
            OutcomeUnknownError: The disk failed in a way that leaves open what is on it.
        """
        store = self._require("commit")
        work = commit if commit.staging is None else Stage(commit, commit.staging)
        with self._admission:
            result = await store.writer.hand_over(work)
            if isinstance(result, Lost):
                return await self._raced(store, commit)
            return cast("CommitOutcome", result)

    async def publish(self, publish: Publish) -> PublishOutcome:
        """Publish a sealed work unit, or discard it, durably, in the transaction of a group.

        Raises:
            DeadlineExceededError: The deadline passed before acceptance; the unit stays sealed.
            MisuseError: The unit is not sealed, or a resolution contradicts itself or the store.
            StoreFullError: There is no room; the unit stays sealed.
            UnavailableError: Too many commits wait, or the store stops; the unit stays sealed.
            OutcomeUnknownError: The disk failed in a way that leaves open what is on it.
        """
        store = self._require("publish")
        with self._admission:
            result = await store.writer.hand_over(PublishUnit(publish))
        outcome = result.outcome if isinstance(result, Unkept) else result
        return cast("PublishOutcome", outcome)

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        """Return one page from the index and, for what it has not seen yet, from the truth.

        Raises:
            DeadlineExceededError: The deadline passed.
        """
        store = self._require("retrieve")
        return await self._settled(store, plan, partial(self._retrieve, store))

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        """Return a page of the change log, read on a reader thread."""
        store = self._require("read_changes")
        if plan.limit < 1:
            raise MisuseError(KIND, "read_changes", "the limit is below 1")
        incarnation = store.incarnation
        return await self._on_reader(
            store,
            "read_changes",
            lambda connection: changes.read_changes(connection, plan, incarnation=incarnation),
        )

    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        """Return when `scope` has a change beyond `after`.

        Raises:
            UnavailableError: The store stops.
        """
        store = self._require("wait_for_changes")
        try:
            frontier = changes.read_frontier(store.inline, scope)
        except _SQL_FAILURES as error:
            raise translate(error, "wait_for_changes") from error
        if frontier <= after:
            # Nothing gives up the loop between the look and the wait, and the writer's answers
            # come through the loop: no commit can fall between the two.
            await store.wakeups.wait(scope)

    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        """Return what versions name, read on a reader thread."""
        return await self._on_reader(
            self._require("read_references"),
            "read_references",
            lambda connection: references.read_references(connection, plan),
        )

    async def compact(self, plan: CompactionPlan) -> Compaction:
        """Remove some of what is past its retention, looked for beside the writer.

        Raises:
            MisuseError: The limit is below 1.
        """
        store = self._require("compact")
        if plan.limit < 1:
            raise MisuseError(KIND, "compact", "the limit is below 1")
        with self._admission:
            try:
                return await store.compact(plan)
            except _SQL_FAILURES as error:
                raise translate(error, "compact") from error

    async def checkpoint(self) -> None:
        """Move the write-ahead log into the database and sync it.

        Raises:
            UnavailableError: A reader or another program kept it from being complete.
        """
        store = self._require("checkpoint")
        with self._admission:
            await store.checkpoint()

    async def shutdown(self) -> None:
        """Stop cleanly: admitted calls end first, then the run is closed and the lock released.

        Raises:
            ProviderError: A step failed; all others were done nevertheless.
        """
        if self._has_stopped:
            return
        self._has_stopped = True
        store = self._store
        if store is None:
            self._ownership.release()
            return
        store.wakeups.stop()
        try:
            await self._admission.drain()
        finally:
            await store.close()
        self._release.detach()

    async def abandon(self) -> None:
        """Let go of the storage at once, as the end of the process would: no clean stop is noted.

        For tests, and for a start that failed further up and must not look like a clean stop.
        """
        if self._has_stopped:
            return
        self._has_stopped = True
        self._release.detach()
        if self._store is None:
            self._ownership.release()
        else:
            await self._store.abandon()

    async def _retrieve(self, store: Store, plan: RetrievePlan) -> Answer[RetrieveOutcome] | None:
        return await self._on_reader(
            store,
            "retrieve",
            lambda connection: store.index.retrieve(
                cast("apsw.Connection", connection), plan, clock=self._clock
            ),
            deadline_unix_ms=plan.consistency.deadline_unix_ms,
        )

    async def _raced(self, store: Store, commit: Commit) -> Raced | UnitRefused:
        """Return the present heads, read after the race was lost."""
        plan = ReadPlan(
            key=commit.key,
            consistency=Consistency(),
            base_versions=commit.base_versions,
            with_divergence=commit.with_divergence,
            unit=None if commit.staging is None else commit.staging.unit,
        )
        reading = await self._settled(store, plan, partial(self._read, store))
        if isinstance(reading, Unavailable):
            raise UnavailableError(KIND, "commit", reading.detail)
        if isinstance(reading, UnitRefused):  # its unit was closed meanwhile
            return reading
        return Raced(heads=reading.heads, bases=reading.bases, divergence=reading.divergence)

    async def _settled(
        self, store: Store, plan: PlanT, ask: Callable[[PlanT], Awaitable[Answer[T] | None]]
    ) -> T | Unavailable:
        """Return the outcome of a read when what it leaves behind is on disk.

        That is an opened or expired work unit, which comes before it can be answered, and the
        sessions that it takes further.
        """
        while (answer := await ask(plan)) is None:
            unit, consistency = plan.unit, plan.consistency
            if unit is None:
                raise UnavailableError(KIND, "read", "it has no answer")
            with self._admission:
                entered = await store.writer.hand_over(Enter(unit, consistency))
            if isinstance(entered, Unavailable):
                return entered
            if isinstance(entered, Entered) and entered.is_opened:  # by its bounds, at the baseline
                met = replace(consistency, minimum_tokens=(), sessions=())
                plan = replace(plan, consistency=met)
        return await self._kept(store, answer)

    async def _kept(self, store: Store, answer: Answer[T]) -> T:
        """Return the outcome of a read when the sessions that it takes further are on disk."""
        if answer.advance is not None:
            with self._admission:
                await store.writer.hand_over(answer.advance)
        return answer.outcome

    async def _read(
        self, store: Store, plan: ReadPlan
    ) -> Answer[Reading | Unavailable | UnitRefused] | None:
        limits = self._limits
        budget = Budget(limits.inline_look_ups, limits.inline_value_bytes)
        try:
            return self._look_up(store.inline, plan, budget)
        except (OverBudgetError, apsw.BusyError):
            return await self._on_reader(
                store,
                "read",
                lambda connection: self._look_up(connection, plan, Budget()),
                deadline_unix_ms=plan.consistency.deadline_unix_ms,
            )
        except _SQL_FAILURES as error:
            raise translate(error, "read") from error

    def _look_up(
        self, connection: Connection, plan: ReadPlan, budget: Budget
    ) -> Answer[Reading | Unavailable | UnitRefused] | None:
        if plan.unit is None:
            return reads.read(connection, plan, clock=self._clock, budget=budget)
        return read_in_unit(connection, plan, plan.unit, clock=self._clock, budget=budget)

    async def _on_reader(
        self,
        store: Store,
        operation: str,
        function: Callable[[Connection], T],
        *,
        deadline_unix_ms: int | None = None,
    ) -> T:
        seconds_left = None
        if deadline_unix_ms is not None:
            seconds_left = (deadline_unix_ms - self._clock.unix_ms()) / 1000
        with self._admission:
            try:
                return await store.readers.run(
                    function, operation=operation, seconds_left=seconds_left
                )
            except TimeoutError as error:
                detail = "the deadline passed while it was read"
                raise DeadlineExceededError(KIND, operation, detail) from error
            except _SQL_FAILURES as error:
                raise translate(error, operation) from error

    def _require(self, operation: str) -> Store:
        if self._store is None or self._has_stopped:
            state = "has stopped" if self._has_stopped else "has not started"
            raise UnavailableError(KIND, operation, f"the store {state}")
        return self._store


class _Admission:
    """How many calls are under way, so that `shutdown` does not close the store under them."""

    def __init__(self) -> None:
        self._calls = 0
        self._none_left: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls and self._none_left is not None:
            self._none_left.set()

    async def drain(self) -> None:
        """Return when no call is under way; the caller lets no new one in."""
        self._none_left = asyncio.Event()
        if self._calls:
            await self._none_left.wait()
