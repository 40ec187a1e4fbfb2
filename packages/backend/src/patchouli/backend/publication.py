"""The end of a work unit: its publication, by who closes it, by who helps, or at the next start.

A closing mutation seals its unit. If nothing that the unit has mutated was changed by others, the
store publishes it in the same transaction. Otherwise the unit stays sealed, and whoever is there
finishes it: reads what has drifted, resolves it, and asks the store to publish exactly that,
`ATTEMPTS` times in all.

    the mutation that sealed the unit     success, or VERSION_CONFLICT with every entity in the way
    another closing mutation of it        finishes it if it can, and is INVALID_REQUEST itself
    the start of the engine               publishes it if it can, else discards it

Everything is decided from what the store brings: the two sides of each drifted entity and the
policy text that was staged with it (`mutation/drift.py`). So it does not matter who finishes. The
answer of a close is made from the publication, and what is stored for its repetition is published
with it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from patchouli.backend.answers import in_the_way, refused
from patchouli.backend.idempotency import replayed, with_text
from patchouli.backend.mutation.drift import parse_policy, reconcile
from patchouli.backend.mutation.joining import carry_out
from patchouli.backend.results import EntityResult, VersionView
from patchouli.provider import (
    Consistency,
    Discarded,
    Drifted,
    Publish,
    Published,
    Reading,
    ReadPlan,
    Replayed,
    UnitRefused,
    UnitState,
    VersionId,
    WorkUnit,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Executor

    from patchouli.backend.access import Access
    from patchouli.backend.idempotency import Identity
    from patchouli.backend.validation import ValueValidators
    from patchouli.provider import (
        Clock,
        ControlKey,
        EntityKey,
        IdSource,
        PublishOutcome,
        Resolution,
        SealedUnit,
        UnitConflict,
        Version,
    )

ATTEMPTS = 8  # publications of a drifted unit; it lost eight races when it gives up

_COMMITTED = UnitRefused(state=UnitState.COMMITTED)


class Closing(NamedTuple):
    """A closing mutation.

    `request` names it as a unit remembers who sealed it. `staged` is the answer that it gets where
    what it staged is published as it is; None if it staged nothing.
    """

    unit: WorkUnit
    request: str
    key: EntityKey
    deadline_unix_ms: int | None
    identity: Identity | None
    staged: EntityResult | None


class Recovery(NamedTuple):
    """How many sealed units of earlier runs were finished at the start, and how."""

    published: int
    discarded: int


class _Decision(NamedTuple):
    """How a drifted unit is to be published, or which of its entities refuse that."""

    resolutions: tuple[Resolution, ...]
    refused: tuple[UnitConflict, ...]
    final: EntityResult | None
    results: tuple[tuple[ControlKey, str], ...]


class _Finished(NamedTuple):
    """A unit that was published. `final` answers its close if that was reconciled."""

    published: Published
    final: EntityResult | None


class _Unfinished(NamedTuple):
    """A unit that stays sealed, and the entities in the way."""

    conflicts: tuple[UnitConflict, ...]
    sealed_by: str


class Publication:
    """The publication of the work units of one engine."""

    def __init__(
        self,
        access: Access,
        validators: ValueValidators,
        joins: Executor,
        *,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._access = access
        self._validators = validators
        self._joins = joins
        self._clock = clock
        self._ids = ids

    async def close(
        self, closing: Closing, outcome: Published | Drifted | None = None
    ) -> EntityResult:
        """Return the answer of a closing mutation whose unit is sealed.

        `outcome` is what its commit was answered, None if it found the unit sealed before.

        Raises:
            VersionConflictError: It sealed the unit, which cannot be published now; it names every
                entity in the way. What was staged is kept, until the unit expires.
            InvalidRequestError: It did not seal the unit.
            DeadlineExceededError: It has published nothing; the unit stays sealed.
            WorkUnitExpiredError: The unit expired meanwhile.
        """
        finished = await self._finish(closing.unit, closing.deadline_unix_ms, outcome)
        match finished:
            case _Finished(published, final):
                if published.sealed_by != closing.request:
                    raise refused(_COMMITTED)
                return final or self._staged(closing, published)
            case _Unfinished(conflicts, sealed_by):
                if sealed_by != closing.request:
                    raise refused(UnitRefused(state=UnitState.CLOSING))
                raise in_the_way(conflicts)
            case _:
                is_own = outcome is not None and outcome.sealed_by == closing.request
                if finished != _COMMITTED or not is_own or closing.staged is None:
                    raise refused(finished)
                return await self._published_by_another(closing, closing.staged)

    async def recover(self, units: Iterable[SealedUnit]) -> Recovery:
        """Finish the sealed units of earlier runs; for when no request is under way."""
        published = discarded = 0
        for sealed in units:
            unit = WorkUnit(
                identity=sealed.identity,
                scope=sealed.scope,
                policy_json=sealed.policy_json,
                now_unix_ms=self._clock.unix_ms(),
                expires_at_unix_ms=sealed.expires_at_unix_ms,
            )
            finished = await self._finish(unit, None, None)
            if isinstance(finished, _Finished):
                published += 1
            elif isinstance(finished, _Unfinished):
                await self._access.publish(self._publish(unit, None, discard=True))
                discarded += 1
            else:  # it expired, or another process was faster
                published += finished == _COMMITTED
                discarded += finished != _COMMITTED
        return Recovery(published, discarded)

    async def _finish(
        self, unit: WorkUnit, deadline: int | None, outcome: PublishOutcome | None
    ) -> _Finished | _Unfinished | UnitRefused:
        """Publish a sealed unit if its drift can be reconciled, and say what became of it."""
        final: EntityResult | None = None
        if outcome is None:
            outcome = await self._access.publish(self._publish(unit, deadline))
        for _ in range(ATTEMPTS):
            if not isinstance(outcome, Drifted):
                break
            decision = await asyncio.get_running_loop().run_in_executor(
                self._joins, self._decide, outcome
            )
            if decision.refused:
                return _Unfinished(decision.refused, outcome.sealed_by)
            final = decision.final
            outcome = await self._access.publish(self._publish(unit, deadline, decision))
        match outcome:
            case Published():
                return _Finished(outcome, final)
            case Drifted():
                return _Unfinished(outcome.conflicts, outcome.sealed_by)
            case Discarded():
                return UnitRefused(state=UnitState.EXPIRED)
            case UnitRefused():
                return outcome

    def _decide(self, drift: Drifted) -> _Decision:
        """Return how the entities of a drifted unit are reconciled; joins, so not on the loop."""
        now = self._clock.unix_ms()
        resolutions: list[Resolution] = []
        refusals: list[UnitConflict] = []
        final: EntityResult | None = None
        results: tuple[tuple[ControlKey, str], ...] = ()
        for conflict in drift.conflicts:
            policy = parse_policy(conflict.conflict_policy_json)
            reconciled = carry_out(
                reconcile(
                    conflict,
                    policy,
                    now_unix_ms=now,
                    is_valid=partial(self._validators.is_valid, conflict.key.type),
                    new_id=self._new_version,
                )
            )
            if reconciled is None:
                refusals.append(conflict)
                continue
            resolutions.append(reconciled.resolution)
            is_close = conflict.is_closing and policy.request == drift.sealed_by
            if is_close and reconciled.own is not None:
                final = _result(conflict.key, reconciled.own)
                if policy.identity is not None:
                    final, result_json = with_text(final)
                    results = ((policy.identity, result_json),)
        return _Decision(tuple(resolutions), tuple(refusals), final, results)

    def _publish(
        self,
        unit: WorkUnit,
        deadline: int | None,
        decision: _Decision | None = None,
        *,
        discard: bool = False,
    ) -> Publish:
        now = self._clock.unix_ms()
        return Publish(
            unit=replace(unit, now_unix_ms=now),
            resolutions=() if decision is None else decision.resolutions,
            results=() if decision is None else decision.results,
            recorded_at_unix_ms=now,
            deadline_unix_ms=deadline,
            discard=discard,
        )

    def _staged(self, closing: Closing, published: Published) -> EntityResult:
        """Return the answer of a close whose version was published as it was staged."""
        staged = closing.staged
        if staged is not None and staged.entity.version == published.accepted:
            return staged
        # The same request was made before and sealed the unit: its mutation counts, not this one.
        entity = published.entities[-1]
        version = next((head for head in entity.heads if head.id == published.accepted), None)
        if version is None:
            raise refused(_COMMITTED)
        return _result(entity.key, version)

    async def _published_by_another(self, closing: Closing, staged: EntityResult) -> EntityResult:
        """Return the answer of a close that another process helped to publish meanwhile."""
        accepted = VersionId(staged.entity.version)
        identity = closing.identity
        reading = await self._access.read(
            ReadPlan(
                key=closing.key,
                consistency=Consistency(),
                base_versions=(accepted,),
                idempotency=None if identity is None else identity.probe(self._clock.unix_ms()),
            )
        )
        if not isinstance(reading, Reading):
            raise refused(reading)
        if isinstance(reading.record, Replayed):
            return replayed(reading.record.result_json)
        if not reading.bases:  # an equal request before it had sealed the unit, and counts
            raise refused(_COMMITTED)
        derived = (head for head in reading.heads if accepted in head.parents)
        version = next(derived, None)
        if version is None:
            return staged
        return _result(closing.key, version)

    def _new_version(self) -> VersionId:
        return VersionId(self._ids.version_id())


def _result(key: EntityKey, version: Version) -> EntityResult:
    """Return the result of a mutation that brought about `version`, in a unit: without a token."""
    return EntityResult({}, VersionView(key.type, key.id, version.id, version.value_json))
