"""A provider that is obviously right: in memory, everything by filtering, nothing for speed.

It is the oracle of the stateful test and a store for tests that need one quickly. Each method
copies the tables, works on the copy and keeps it only when the outcome says that something was
kept. No method but `wait_for_changes` gives up control, so each is one atomic step.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from patchouli.provider import (
    Capabilities,
    ChangePage,
    ChangesPlan,
    Commit,
    CommitOutcome,
    Committed,
    Compaction,
    CompactionPlan,
    Consistency,
    Cursor,
    Hit,
    MisuseError,
    Observation,
    Order,
    OwnershipError,
    Page,
    Position,
    Provider,
    Publish,
    Published,
    PublishOutcome,
    Reading,
    ReadOutcome,
    ReadPlan,
    ReferencesPage,
    ReferencesPlan,
    Retention,
    RetrieveOutcome,
    RetrievePlan,
    RuntimeGeneration,
    ScopeText,
    Source,
    SystemIds,
    Unavailable,
    UnavailableError,
    UnitRefused,
    UnitState,
    VersionState,
    WorkUnit,
    holds,
    resolve,
    sort_key,
    text_score,
)
from patchouli.provider_conformance import compaction, mutations
from patchouli.provider_conformance.builders import FOREVER, ORIGIN
from patchouli.provider_conformance.tables import (
    SessionFrontiers,
    StoredUnit,
    Tables,
    View,
)

if TYPE_CHECKING:
    from patchouli.provider import Change, Clock, EntityKey

EVERYTHING = Capabilities(
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
_STATES = {"committed": UnitState.COMMITTED, "closing": UnitState.CLOSING}


@dataclass(slots=True, kw_only=True)
class ModelStorage:
    """What outlives a run of the model, as a file outlives a process."""

    tables: Tables = field(default_factory=Tables)
    owner: ModelProvider | None = None
    incarnation: str = field(default_factory=lambda: SystemIds().entity_id())
    secret: bytes = field(default_factory=lambda: os.urandom(32))


class ModelProvider(Provider):
    """The boundary over a `ModelStorage`; it claims everything but `replica` unless told less."""

    def __init__(
        self, storage: ModelStorage, clock: Clock, *, capabilities: Capabilities = EVERYTHING
    ) -> None:
        if storage.owner is not None:
            raise OwnershipError(self.kind, "open", "another provider owns the storage")
        storage.owner = self
        self._storage = storage
        self._clock = clock
        self._capabilities = capabilities
        self._retention = FOREVER
        self._is_running = False
        self._has_stopped = False
        self._published = asyncio.Event()

    @property
    def kind(self) -> str:
        """`model`."""
        return "model"

    def capabilities(self) -> Capabilities:
        """Return what it was told to claim."""
        return self._capabilities

    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        """Start a run."""
        if self._is_running or self._has_stopped:
            raise MisuseError(self.kind, "initialize", "it was started before")
        tables = self._begin()
        was_running = tables.is_running
        tables.generation += 1
        tables.is_running = True
        self._keep(tables)
        self._retention = retention
        self._is_running = True
        return RuntimeGeneration(
            generation=tables.generation,
            recovered_after_unclean_shutdown=was_running,
            incarnation=self._storage.incarnation,
            secret=self._storage.secret,
            sealed_units=tables.sealed_units(),
        )

    async def health(self) -> None:
        """Return if it runs."""
        self._admit("health")

    async def checkpoint(self) -> None:
        """Expire overdue units; there is nothing to flush."""
        self._admit("checkpoint")
        self._keep(self._begin())

    async def shutdown(self) -> None:
        """Record a clean stop and let go of the storage."""
        if self._has_stopped:
            return
        tables = self._begin()
        tables.is_running = False
        self._keep(tables)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the storage as a process does that ends without a word."""
        self._storage.owner = None
        self._is_running = False
        self._has_stopped = True
        self._published.set()

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        """See `Provider.read`."""
        self._admit("read")
        self._require_consistency(plan.consistency, "read")
        self._require_if(plan.idempotency is not None, "idempotency", "read")
        self._require_if(plan.unit is not None, "work_units", "read")
        tables = self._begin()
        waits_at = self._waits_at(plan.key.scope, plan.unit)
        view = self._enter(tables, plan.key.scope, plan.consistency, plan.unit, "read")
        if not isinstance(view, View):
            return self._refused(tables, view)
        probe = plan.idempotency
        known = (
            tables.record_of(probe.identity, probe.request_json, probe.now_unix_ms, view.unit)
            if probe is not None
            else None
        )
        if known is None and view.unit is not None and view.unit.state in _STATES:
            return self._refused(tables, UnitRefused(state=_STATES[view.unit.state]))
        observation = self._observe(view, plan.consistency, waits_at)
        if isinstance(observation, Unavailable):
            return observation
        self._keep(tables)
        if view.unit is not None and view.unit.state == "committed":
            return Reading(heads=(), observation=observation, record=known)
        bases = view.bases(plan.key, plan.base_versions)
        return Reading(
            heads=view.heads(plan.key),
            observation=observation,
            bases=bases,
            divergence=view.divergence(plan.key, bases) if plan.with_divergence else None,
            record=known,
        )

    async def commit(self, commit: Commit) -> CommitOutcome:
        """See `Provider.commit`."""
        self._admit("commit")
        self._require_if(commit.idempotency is not None, "idempotency", "commit")
        self._require_if(commit.staging is not None, "work_units", "commit")
        self._require_if(len(commit.write_sessions) > 0, "read_your_writes", "commit")
        tables, now = self._begin(), self._clock.unix_ms()
        outcome = (
            mutations.commit_now(tables, commit, now)
            if commit.staging is None
            else mutations.stage(tables, commit, commit.staging, now)
        )
        # A refusal keeps at most the opening or the expiry of the unit that it names.
        self._keep(tables)
        if isinstance(outcome, Committed | Published):
            self._wake()
        return outcome

    async def publish(self, publish: Publish) -> PublishOutcome:
        """See `Provider.publish`."""
        self._admit("publish")
        self._require("work_units", "publish")
        tables = self._begin()
        outcome = mutations.publish(tables, publish, self._clock.unix_ms())
        self._keep(tables)
        if isinstance(outcome, Published):
            self._wake()
        return outcome

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        """See `Provider.retrieve`."""
        self._admit("retrieve")
        self._require("retrieval", "retrieve")
        self._require_consistency(plan.consistency, "retrieve")
        self._require_if(plan.unit is not None, "work_units", "retrieve")
        tables = self._begin()
        waits_at = self._waits_at(plan.scope, plan.unit)
        view = self._enter(tables, plan.scope, plan.consistency, plan.unit, "retrieve")
        if not isinstance(view, View):
            return self._refused(tables, view)
        if view.unit is not None and view.unit.state in _STATES:
            return self._refused(tables, UnitRefused(state=_STATES[view.unit.state]))
        observation = self._observe(view, plan.consistency, waits_at)
        if isinstance(observation, Unavailable):
            return observation
        self._keep(tables)
        found = [hit for key in view.entities() if (hit := _hit(view, key, plan)) is not None]
        hits = _after(plan, _ordered(plan, found))
        page = _fill(plan, hits)
        return Page(hits=page, has_more=len(hits) > len(page), observation=observation)

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        """See `Provider.read_changes`."""
        self._admit("read_changes")
        self._require("change_stream", "read_changes")
        if plan.limit < 1:
            raise MisuseError(self.kind, "read_changes", "the limit is below 1")
        tables = self._begin()
        own = [entry for entry in tables.log if entry.key.scope == plan.scope]
        cutoff = plan.retained_after_unix_ms
        pruned = [
            e.change.cursor for e in own if e.is_pruned or e.change.recorded_at_unix_ms < cutoff
        ]
        passing = [
            entry.change
            for entry in own
            if entry.change.cursor > plan.after
            and entry.change.recorded_at_unix_ms >= cutoff
            and not entry.hidden
            and not entry.is_pruned
            and (plan.types is None or entry.key.type in plan.types)
            and (plan.ids is None or entry.key.id in plan.ids)
        ]
        found: list[Change] = []
        size = 0
        for change in passing[: plan.limit]:
            size += len(change.event_meta_json.encode())
            if found and plan.limit_bytes is not None and size > plan.limit_bytes:
                break
            found.append(change)
        is_full = len(found) == plan.limit or len(found) < len(passing)
        frontier = tables.frontier(plan.scope)
        return ChangePage(
            changes=tuple(found),
            frontier=frontier,
            reached=found[-1].cursor if is_full else frontier,
            pruned_through=max(pruned, default=ORIGIN),
            incarnation=self._storage.incarnation,
        )

    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        """See `Provider.wait_for_changes`."""
        self._require("change_stream", "wait_for_changes")
        while True:
            self._admit("wait_for_changes")
            published = self._published
            if self._storage.tables.frontier(scope) > after:
                return
            await published.wait()

    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        """See `Provider.read_references`."""
        self._admit("read_references")
        if plan.limit < 1:
            raise MisuseError(self.kind, "read_references", "the limit is below 1")
        versions = self._begin().versions
        keys = sorted({key for key, _ in versions if key.type == plan.type})
        if plan.after is not None:
            keys = [key for key in keys if key > plan.after]
        page = keys[: plan.limit]
        texts: set[str] = set()
        for (key, _), stored in versions.items():
            if key in page and stored.version.value_json is not None:
                with contextlib.suppress(LookupError):
                    named = resolve(json.loads(stored.version.value_json), plan.pointer)
                    texts.update([named] if isinstance(named, str) else [])
        reached = page[-1] if len(page) == plan.limit else None
        return ReferencesPage(texts=frozenset(texts), reached=reached)

    async def compact(self, plan: CompactionPlan) -> Compaction:
        """See `Provider.compact`."""
        self._admit("compact")
        if plan.limit < 1:
            raise MisuseError(self.kind, "compact", "the limit is below 1")
        tables = self._begin()
        at = compaction.horizons(self._retention, self._clock.unix_ms())
        outcome = compaction.step(tables, plan, at)
        self._keep(tables)
        return outcome

    def _begin(self) -> Tables:
        tables = self._storage.tables.copy()
        tables.sweep(self._clock.unix_ms())
        return tables

    def _keep(self, tables: Tables) -> None:
        self._storage.tables = tables

    def _wake(self) -> None:
        self._published.set()
        self._published = asyncio.Event()

    def _admit(self, operation: str) -> None:
        if not self._is_running:
            raise UnavailableError(self.kind, operation, "it does not run")

    def _require(self, claim: str, operation: str) -> None:
        self._capabilities.require(claim, provider=self.kind, operation=operation)

    # The name of the method says what the flag is.
    def _require_if(self, is_used: bool, claim: str, operation: str) -> None:  # noqa: FBT001 - above
        if is_used:
            self._require(claim, operation)

    def _require_consistency(self, consistency: Consistency, operation: str) -> None:
        used = {
            "causal_reads": len(consistency.minimum_tokens) > 0,
            "linearizable_reads": len(consistency.linearization_keys) > 0,
            "monotonic_reads": any(s.monotonic_reads for s in consistency.sessions),
            "read_your_writes": any(s.read_your_writes for s in consistency.sessions),
        }
        for claim, is_used in used.items():
            self._require_if(is_used, claim, operation)

    def _enter(
        self,
        tables: Tables,
        scope: ScopeText,
        consistency: Consistency,
        named: WorkUnit | None,
        operation: str,
    ) -> View | Unavailable | UnitRefused:
        now = self._clock.unix_ms()
        mutations.require_in_time(consistency.deadline_unix_ms, now, operation)
        if Source.AUTHORITY not in consistency.allowed_sources:
            return Unavailable(detail="the model answers from the authority alone")
        if named is None:
            return View(tables, scope, tables.frontier(scope))
        unit = mutations.enter(tables, named, now)
        return View(tables, scope, unit.baseline, unit) if isinstance(unit, StoredUnit) else unit

    def _refused(
        self, tables: Tables, outcome: Unavailable | UnitRefused
    ) -> Unavailable | UnitRefused:
        if isinstance(outcome, UnitRefused):
            self._keep(tables)  # the expiry of a unit persists
        return outcome

    def _waits_at(self, scope: ScopeText, named: WorkUnit | None) -> Cursor | None:
        """Return the frontier beyond which to ask again, None in a unit whose view is fixed."""
        tables = self._storage.tables
        is_fixed = named is not None and named.identity in tables.units
        return None if is_fixed else tables.frontier(scope)

    def _observe(
        self, view: View, consistency: Consistency, waits_at: Cursor | None
    ) -> Observation | Unavailable:
        """Check tokens and sessions, then advance the sessions with monotonic reads."""
        tables, scope = view.tables, view.scope
        for token in consistency.minimum_tokens:
            place = tables.tokens.get(token)
            if place is None or place[0] != scope or place[1] > view.frontier:
                detail = "a token is unknown or newer than the view"
                return Unavailable(detail=detail, frontier=waits_at)
        for session in consistency.sessions:
            known = tables.sessions.get((scope, session.key), SessionFrontiers())
            read = known.read if session.monotonic_reads else ORIGIN
            write = known.write if session.read_your_writes else ORIGIN
            if max(read, write) > view.frontier:
                return Unavailable(detail="a session is newer than the view", frontier=waits_at)
        monotonic = [s.key for s in consistency.sessions if s.monotonic_reads]
        tables.advance_read(scope, monotonic, view.frontier)
        return Observation(
            source=Source.AUTHORITY,
            frontier=view.frontier,
            causal_token=tables.token_at(scope, view.frontier),
        )


def _hit(view: View, key: EntityKey, plan: RetrievePlan) -> Hit | None:
    if plan.types is not None and key.type not in plan.types:
        return None
    if plan.ids is not None and key.id not in plan.ids:
        return None
    heads = view.heads(key)
    scores: list[float] = []
    times: list[int] = []
    for head in heads:
        if head.state is VersionState.DELETED or head.value_json is None:
            continue
        value = json.loads(head.value_json)
        score = 0.0 if plan.text is None else text_score(value, plan.text)
        if score is not None and all(holds(condition, value) for condition in plan.filters):
            scores.append(score)
            times.append(head.recorded_at_unix_ms)
    if not scores:
        return None
    return Hit(key=key, heads=heads, score=max(scores), recorded_at_unix_ms=max(times))


def _position(hit: Hit) -> Position:
    return Position(
        score=hit.score,
        recorded_at_unix_ms=hit.recorded_at_unix_ms,
        type=hit.key.type,
        id=hit.key.id,
    )


def _ordered(plan: RetrievePlan, hits: list[Hit]) -> list[Hit]:
    return sorted(
        hits,
        key=lambda hit: sort_key(plan.order, _position(hit)),
        reverse=plan.order is Order.ID_DESCENDING,
    )


def _after(plan: RetrievePlan, hits: list[Hit]) -> list[Hit]:
    if plan.after is None:
        return hits
    start = sort_key(plan.order, plan.after)
    if plan.order is Order.ID_DESCENDING:
        return [hit for hit in hits if sort_key(plan.order, _position(hit)) < start]
    return [hit for hit in hits if sort_key(plan.order, _position(hit)) > start]


def _fill(plan: RetrievePlan, hits: list[Hit]) -> tuple[Hit, ...]:
    """Return the hits of one page: at least one, then as many as both bounds allow."""
    size = 0
    for number, hit in enumerate(hits[: plan.limit]):
        size += sum(len((head.value_json or "").encode()) for head in hit.heads)
        if number > 0 and size > plan.limit_bytes:
            return tuple(hits[:number])
    return tuple(hits[: plan.limit])
