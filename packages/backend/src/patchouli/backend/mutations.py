"""Create, update and delete: from what a request proposes to an accepted commit.

A create is one provider call, an update and a delete are two, and each race lost costs one more
commit. A create reads first where it must observe something (a causal token, a session), and where
its value is refused but could be the repetition of a mutation that was accepted under its
idempotency identity; else the lookup of the identity is part of its commit. What is decided between
the calls is decided by the pure package `mutation`.

No lock is needed: a mutation compares and swaps heads, and what it lost a race to comes back with
the answer, so that it resolves again and tries again, `ATTEMPTS` times in all. Mutations that
contend for one entity take turns, so that they win instead of racing on.

In a work unit all of this is the same, over the heads of the unit; the commit stages. What follows
a commit that closes a unit is told in `publication.py`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from patchouli.backend.answers import late, not_found, refused
from patchouli.backend.canonical import canonical
from patchouli.backend.errors import InvalidRequestError, OverloadedError
from patchouli.backend.idempotency import Identity, replayed, with_text
from patchouli.backend.mutation.candidate import base_versions, proposed_version, tombstone
from patchouli.backend.mutation.drift import StagedPolicy
from patchouli.backend.mutation.fingerprint import closing_request, request_fingerprint
from patchouli.backend.mutation.joining import carry_out
from patchouli.backend.mutation.reconcile import (
    ConflictPolicy,
    conflict,
    created,
    merge_update,
    resolve_delete,
    resolve_update,
)
from patchouli.backend.publication import Closing, Publication
from patchouli.backend.turns import Turns
from patchouli.backend.validation import ValueValidators
from patchouli.provider import (
    CausalToken,
    ChangeKind,
    Commit,
    Committed,
    Consistency,
    Drifted,
    EntityKey,
    Published,
    Raced,
    Reading,
    ReadPlan,
    Replayed,
    Staged,
    Unavailable,
    UnitRefused,
    UnitStaging,
    UnitState,
    VersionId,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from patchouli.backend.access import Access
    from patchouli.backend.answers import Answers
    from patchouli.backend.config.models import Policy
    from patchouli.backend.limits import Limits
    from patchouli.backend.mutation.fingerprint import Operation
    from patchouli.backend.mutation.reconcile import Resolution
    from patchouli.backend.policy.plan import Selection
    from patchouli.backend.results import EntityResult
    from patchouli.protocol import CreateData, DeleteData, UpdateData
    from patchouli.provider import (
        Clock,
        CommitOutcome,
        ControlKey,
        IdempotencyProbe,
        IdSource,
        Json,
        ScopeText,
        Version,
        WorkUnit,
    )

T = TypeVar("T")

ATTEMPTS = 8  # commits of one mutation; it lost eight races when it gives up


class Mutations:
    """The mutations of one engine that are under way. The caller has admitted each of them."""

    def __init__(
        self,
        policy: Policy,
        access: Access,
        answers: Answers,
        *,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
    ) -> None:
        self._access = access
        self._answers = answers
        self._clock = clock
        self._ids = ids
        self._retention_ms = policy.retention.idempotency_seconds * 1000
        self._max_queued = limits.max_queued
        self._validators = ValueValidators(policy)
        self._guards: dict[str, Callable[[ScopeText, Json], None]] = {}
        self._joins = ThreadPoolExecutor(limits.max_joins, thread_name_prefix="patchouli-join")
        self._turns = Turns()
        self.publication = Publication(access, self._validators, self._joins, clock=clock, ids=ids)
        self._queued = 0
        self._pointers = {
            alias: f"meta{field.pointer}" for alias, field in policy.meta_fields.items()
        }

    def guard(self, entity_type: str, check: Callable[[ScopeText, Json], None]) -> None:
        """Let `check` refuse values of `entity_type` that clients want to store in a scope."""
        self._guards[entity_type] = check

    def close(self) -> None:
        """Let go of the threads that join; for when no mutation is under way."""
        self._joins.shutdown(wait=False, cancel_futures=True)

    async def create(
        self, selection: Selection, deadline: int | None, data: CreateData
    ) -> EntityResult:
        """Return the first version of a new entity; see `Engine.create`."""
        value_json = canonical(data.value)
        entity_id = self._ids.entity_id() if data.id is None else data.id
        consistency = (
            selection.consistency(deadline_unix_ms=deadline, is_mutation=True)
            if selection.minimum_tokens or selection.sessions
            else None
        )
        identity, request = self._names(selection, "create", data.type, data.id, value_json)
        asked = _Asked(
            EntityKey(selection.scope.text, data.type, entity_id),
            selection,
            deadline,
            identity,
            request,
            self._refusal(data.type, data.value, selection, is_final=identity is None),
        )
        attempt = partial(self._try_create, asked, value_json, consistency)
        return await self._carry_out(asked, attempt)

    async def update(
        self, selection: Selection, deadline: int | None, data: UpdateData
    ) -> EntityResult:
        """Return the version that replaces the named bases; see `Engine.update`."""
        ref, value = data.ref, data.value
        update = _Update(value, canonical(value))
        consistency = selection.consistency(deadline_unix_ms=deadline, is_mutation=True)
        identity, request = self._names(selection, "update", ref.type, ref.id, update.value_json)
        asked = _Asked(
            EntityKey(selection.scope.text, ref.type, ref.id),
            selection,
            deadline,
            identity,
            request,
            self._refusal(ref.type, value, selection, is_final=identity is None),
        )
        return await self._replace(asked, update, consistency)

    async def delete(
        self, selection: Selection, deadline: int | None, data: DeleteData
    ) -> EntityResult:
        """Return the tombstone that replaces the named bases; see `Engine.delete`."""
        ref = data.ref
        consistency = selection.consistency(deadline_unix_ms=deadline, is_mutation=True)
        identity, request = self._names(selection, "delete", ref.type, ref.id, None)
        asked = _Asked(
            EntityKey(selection.scope.text, ref.type, ref.id),
            selection,
            deadline,
            identity,
            request,
            None,
        )
        return await self._replace(asked, None, consistency)

    def _names(
        self,
        selection: Selection,
        operation: Operation,
        entity_type: str,
        entity_id: str | None,
        value_json: str | None,
    ) -> tuple[Identity | None, str | None]:
        """Return how a repetition of the mutation is recognized: in general, and by its unit."""
        is_keyed, is_in_unit = selection.is_keyed, selection.unit is not None
        if not (is_keyed or is_in_unit):
            return None, None
        fingerprint = request_fingerprint(operation, entity_type, entity_id, value_json)
        identity = (
            Identity(selection.require_idempotency_key(), fingerprint, self._retention_ms)
            if is_keyed
            else None
        )
        if not is_in_unit:
            return identity, None
        return identity, closing_request(None if identity is None else identity.key, fingerprint)

    def _refusal(
        self, entity_type: str, value: Json, selection: Selection, *, is_final: bool
    ) -> InvalidRequestError | None:
        """Return why the value may not be stored, if so.

        Raises:
            InvalidRequestError: It may not, and that is final.
        """
        try:
            self._require_storable(entity_type, value, selection)
        except InvalidRequestError as refusal:
            if is_final:
                raise
            return refusal
        return None

    def _require_storable(self, entity_type: str, value: Json, selection: Selection) -> None:
        self._validators.require_valid(entity_type, value)
        if entity_type in self._guards:
            self._guards[entity_type](selection.scope.text, value)

    def _enter(self) -> None:
        """Count one more mutation under way; the caller takes it off again."""
        if self._queued >= self._max_queued:
            raise OverloadedError(
                "too many mutations are under way; try again later", retryable=True
            )
        self._queued += 1

    async def _carry_out(
        self, asked: _Asked, attempt: Callable[[], Awaitable[EntityResult | Unavailable]]
    ) -> EntityResult:
        """Return what `attempt` returns once it can observe what it has to.

        While it waits for that it holds no place among the mutations.
        """
        while True:
            self._enter()
            try:
                outcome = await (self._in_turn(asked, attempt) if asked.is_closing else attempt())
            finally:
                self._queued -= 1
            if not isinstance(outcome, Unavailable):
                return outcome
            await self._access.wait(asked.key.scope, outcome, asked.deadline)

    async def _in_turn(self, asked: _Asked, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt`, which is to close a unit, returns when its turn has come.

        So the one that sealed the unit also learns how it was published.
        """
        unit = asked.selection.unit
        assert unit is not None  # noqa: S101 -- only a request in a unit closes one
        await self._take_turn(unit.identity, asked.deadline)
        try:
            return await attempt()
        finally:
            self._turns.give_back(unit.identity)

    async def _try_create(
        self, asked: _Asked, value_json: str, consistency: Consistency | None
    ) -> EntityResult | Unavailable:
        if consistency is not None or asked.refusal is not None:
            plan = ReadPlan(
                key=asked.key,
                consistency=consistency or Consistency(deadline_unix_ms=asked.deadline),
                idempotency=self._probe(asked),
                unit=self._unit(asked),
            )
            found = await self._find(asked, plan)
            if not isinstance(found, Reading):
                return found
            if found.heads:
                raise conflict(found.heads)
        version = proposed_version(
            self._new_version(), value_json, (), now_unix_ms=self._clock.unix_ms()
        )
        commit, result = self._commit_of(asked, created(version))
        outcome = await self._access.commit(commit)
        if isinstance(outcome, Committed):
            return result
        if isinstance(outcome, Raced):
            raise conflict(outcome.heads)
        return await self._settled(asked, result, outcome)

    async def _replace(
        self, asked: _Asked, update: _Update | None, consistency: Consistency
    ) -> EntityResult:
        """Replace the bases that the request names, by an update or by a tombstone."""
        named = base_versions(
            asked.selection.base_versions,
            self._pointers[asked.selection.behavior.base_versions_alias],
        )
        attempt = partial(self._try_replace, asked, update, named, consistency)
        return await self._carry_out(asked, attempt)

    async def _try_replace(
        self,
        asked: _Asked,
        update: _Update | None,
        named: tuple[VersionId, ...] | InvalidRequestError,
        consistency: Consistency,
    ) -> EntityResult | Unavailable:
        key, selection = asked.key, asked.selection
        bases = () if isinstance(named, InvalidRequestError) else named
        merges = update is not None and selection.strategy == "merge" and selection.merge_rules
        plan = ReadPlan(
            key=key,
            consistency=consistency,
            base_versions=bases,
            with_divergence=bool(merges) and bool(bases),
            idempotency=self._probe(asked),
            unit=self._unit(asked),
        )
        retries = selection.strategy != "reject"
        has_turn = False
        try:
            if retries and self._turns.is_taken(key):
                await self._take_turn(key, asked.deadline)
                has_turn = True
            found: Reading | Raced | EntityResult | Unavailable = await self._find(asked, plan)
            if not isinstance(found, Reading):
                return found
            if not found.heads:
                raise not_found()
            if isinstance(named, InvalidRequestError):
                raise named
            for attempt in range(1, ATTEMPTS + 1):
                resolution = await self._resolve(selection, named, found, update)
                commit, result = self._commit_of(asked, resolution, plan, found.heads)
                outcome = await self._access.commit(commit)
                if isinstance(outcome, Committed):
                    return result
                if not isinstance(outcome, Raced):
                    return await self._settled(asked, result, outcome)
                found = outcome
                if retries and not has_turn and attempt < ATTEMPTS:
                    has_waited = await self._take_turn(key, asked.deadline)
                    has_turn = True
                    if has_waited:  # what the race brought is old by now
                        found = await self._find(asked, plan)
                        if not isinstance(found, Reading):
                            return found
            raise conflict(found.heads)
        finally:
            if has_turn:
                self._turns.give_back(key)

    def _probe(self, asked: _Asked) -> IdempotencyProbe | None:
        return None if asked.identity is None else asked.identity.probe(self._clock.unix_ms())

    def _unit(self, asked: _Asked) -> WorkUnit | None:
        unit = asked.selection.unit
        if unit is None:
            return None
        return unit.at(asked.selection.scope, now_unix_ms=self._clock.unix_ms())

    async def _find(self, asked: _Asked, plan: ReadPlan) -> Reading | EntityResult | Unavailable:
        """Return what the mutation meets, or its answer if it was accepted before.

        Raises:
            EngineError: Its identity is another mutation's, its value is refused, its unit does not
                take it, or it cannot be read.
        """
        found = await self._access.read(plan)
        if isinstance(found, Unavailable):
            return found
        if isinstance(found, UnitRefused):
            if asked.refusal is not None:
                raise asked.refusal
            if found.state is UnitState.CLOSING and asked.is_closing:
                return await self.publication.close(self._closing(asked, None))
            raise refused(found)
        if isinstance(found.record, Replayed):
            return await self._replayed(asked, found.record)
        if found.record is not None:
            raise refused(found.record)
        if asked.refusal is not None:
            raise asked.refusal
        return found

    async def _take_turn(self, key: EntityKey | ControlKey, deadline: int | None) -> bool:
        """Return when the mutations of an entity or a unit that lined up earlier are done."""
        left_ms = None if deadline is None else deadline - self._clock.unix_ms()
        try:
            return await self._turns.take(key, timeout_ms=left_ms)
        except TimeoutError as error:
            raise late() from error

    async def _resolve(
        self,
        selection: Selection,
        bases: tuple[VersionId, ...],
        found: Reading | Raced,
        update: _Update | None,
    ) -> Resolution:
        policy = ConflictPolicy(selection.strategy, selection.merge_rules, selection.otherwise)
        now = self._clock.unix_ms()
        if update is None:
            marker = tombstone(self._new_version(), bases, now_unix_ms=now)
            return resolve_delete(marker, found, policy)
        proposal = proposed_version(self._new_version(), update.value_json, bases, now_unix_ms=now)
        resolution = resolve_update(proposal, found, policy)
        if resolution is not None:
            return resolution
        steps = merge_update(
            proposal,
            update.value,
            found,
            policy,
            is_valid=partial(self._validators.is_valid, selection.entity_type),
            new_id=self._new_version,
        )
        return await asyncio.get_running_loop().run_in_executor(self._joins, carry_out, steps)

    def _commit_of(
        self,
        asked: _Asked,
        resolution: Resolution,
        read: ReadPlan | None = None,
        heads: Sequence[Version] = (),
    ) -> tuple[Commit, EntityResult]:
        """Return the commit that replaces `heads` as `resolution` says, and its answer.

        Should it be too late for that, what comes back brings what `read` brought.
        """
        selection, accepted = asked.selection, resolution.accepted
        expected_heads = tuple([head.id for head in heads])
        check(
            "I2 the new heads are new versions or present heads",
            lambda: (
                {new.id for new in resolution.new_versions}.union(expected_heads)
                >= {*resolution.head_versions}
            ),
        )
        result, record = self._answers.accepted(asked.key, selection, accepted), None
        if asked.identity is not None:
            result, result_json = with_text(result)
            record = asked.identity.record(result_json, accepted.recorded_at_unix_ms)
        commit = Commit(
            key=asked.key,
            expected_heads=expected_heads,
            new_versions=resolution.new_versions,
            head_versions=resolution.head_versions,
            accepted=accepted.id,
            kind=resolution.kind,
            causal_token=CausalToken(accepted.id),
            event_meta_json=self._answers.event_meta(selection, accepted.id),
            recorded_at_unix_ms=accepted.recorded_at_unix_ms,
            deadline_unix_ms=asked.deadline,
            ordering_key=selection.ordering_key,
            write_sessions=selection.write_sessions if selection.sessions else (),
            base_versions=() if read is None else read.base_versions,
            with_divergence=read is not None and read.with_divergence,
            idempotency=record,
            staging=None if selection.unit is None else self._staging(asked, accepted.id),
        )
        return commit, result

    async def _settled(
        self, asked: _Asked, result: EntityResult, outcome: CommitOutcome
    ) -> EntityResult:
        """Return the answer of a commit that was neither a race nor simply accepted.

        `result` is that of the version that it proposed.
        """
        match outcome:
            case Staged():
                return result
            case Published() | Drifted():
                return await self.publication.close(self._closing(asked, result), outcome)
            case Replayed():  # an equal request was faster, or nothing had to be read before
                return await self._replayed(asked, outcome)
            case _:
                raise refused(outcome)

    def _staging(self, asked: _Asked, accepted: VersionId) -> UnitStaging | None:
        """Return how the commit of `accepted` takes part in the unit of the request, if it has one.

        Whatever is needed to finish the unit without the request goes with it as text.
        """
        unit, selection = self._unit(asked), asked.selection
        if unit is None or asked.request is None:
            return None
        policy = StagedPolicy(
            conflict=ConflictPolicy(selection.strategy, selection.merge_rules, selection.otherwise),
            request=asked.request,
            accepted=accepted,
            identity=None if asked.identity is None else asked.identity.key,
        )
        return UnitStaging(
            unit=unit,
            conflict_policy_json=policy.text(),
            request_json=asked.request,
            close=asked.is_closing,
            holds_policy=selection.strategy == "reject",
        )

    def _closing(self, asked: _Asked, staged: EntityResult | None) -> Closing:
        unit = self._unit(asked)
        assert unit is not None  # noqa: S101 -- only a request in a unit closes one
        assert asked.request is not None  # noqa: S101 -- the same
        return Closing(
            unit=unit,
            request=asked.request,
            key=asked.key,
            deadline_unix_ms=asked.deadline,
            identity=asked.identity,
            staged=staged,
        )

    async def _replayed(self, asked: _Asked, record: Replayed) -> EntityResult:
        """Return the answer of a mutation that was accepted before.

        It may have been staged before without closing its unit: then its repetition that is to
        close it still does, and stages nothing again.
        """
        result = replayed(record.result_json)
        if not (record.is_staged and asked.is_closing):
            return result
        asked = asked._replace(key=asked.key._replace(id=result.entity.id))
        heads: tuple[Version, ...] = ()
        for _ in range(ATTEMPTS):
            found = await self._access.read(
                ReadPlan(
                    key=asked.key,
                    consistency=Consistency(deadline_unix_ms=asked.deadline),
                    idempotency=self._probe(asked),
                    unit=self._unit(asked),
                )
            )
            if not isinstance(found, Reading):
                raise refused(found)
            heads, known = found.heads, found.record
            if known is None:  # its time has ended since, and what it staged is in the way
                break
            if isinstance(known, Replayed) and known.is_staged:
                outcome = await self._access.commit(self._closing_commit(asked, result, heads))
                if isinstance(outcome, Published | Drifted):
                    return await self.publication.close(self._closing(asked, result), outcome)
                if isinstance(outcome, Raced):
                    continue
                known = outcome
            if isinstance(known, Replayed):  # the unit was published meanwhile
                return replayed(known.result_json)
            raise refused(known)
        raise conflict(heads)

    def _closing_commit(
        self, asked: _Asked, result: EntityResult, heads: Sequence[Version]
    ) -> Commit:
        """Return the commit that closes the unit in which `result` was staged, and does no more."""
        accepted = VersionId(result.entity.version)
        ids = tuple([head.id for head in heads])
        now = self._clock.unix_ms()
        assert asked.identity is not None  # noqa: S101 -- it has a record
        return Commit(
            key=asked.key,
            expected_heads=ids,
            new_versions=(),
            head_versions=ids,
            accepted=accepted,
            kind=ChangeKind.UPDATED,
            causal_token=CausalToken(accepted),
            event_meta_json=self._answers.event_meta(asked.selection, accepted),
            recorded_at_unix_ms=now,
            deadline_unix_ms=asked.deadline,
            ordering_key=asked.selection.ordering_key,
            idempotency=asked.identity.record(result.result_json or "", now),
            staging=self._staging(asked, accepted),
        )

    def _new_version(self) -> VersionId:
        return VersionId(self._ids.version_id())


class _Asked(NamedTuple):
    """What is settled about a mutation before its entity is looked at.

    `request` is how a work unit remembers who sealed it, None outside of units. `refusal` is what
    is wrong with the value; it is told unless an idempotency record answers.
    """

    key: EntityKey
    selection: Selection
    deadline: int | None
    identity: Identity | None
    request: str | None
    refusal: InvalidRequestError | None

    @property
    def is_closing(self) -> bool:
        """Whether the mutation is to close its unit."""
        return self.selection.unit is not None and self.selection.unit.is_closing


class _Update(NamedTuple):
    value: Json
    value_json: str
