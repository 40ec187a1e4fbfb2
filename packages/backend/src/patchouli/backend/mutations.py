"""Create, update and delete: from what a request proposes to an accepted commit.

A create is one provider call, an update and a delete are two, and each race lost costs one more
commit. What is decided between the calls is decided by the pure package `mutation`.

No lock is needed: a mutation compares and swaps heads, and what it lost a race to comes back with
the answer, so that it resolves again and tries again, `ATTEMPTS` times in all. Mutations that
contend for one entity take turns, so that they win instead of racing on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from patchouli.backend.answers import late, not_found, refused
from patchouli.backend.canonical import canonical
from patchouli.backend.errors import InvalidRequestError, OverloadedError
from patchouli.backend.mutation.candidate import base_versions, proposed_version, tombstone
from patchouli.backend.mutation.joining import carry_out
from patchouli.backend.mutation.reconcile import (
    ConflictPolicy,
    conflict,
    created,
    merge_update,
    resolve_delete,
    resolve_update,
)
from patchouli.backend.turns import Turns
from patchouli.backend.validation import ValueValidators
from patchouli.provider import (
    CausalToken,
    Commit,
    Committed,
    EntityKey,
    Raced,
    Reading,
    ReadPlan,
    VersionId,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.backend.access import Access
    from patchouli.backend.answers import Answers
    from patchouli.backend.config.models import Policy
    from patchouli.backend.limits import Limits
    from patchouli.backend.mutation.reconcile import Resolution
    from patchouli.backend.policy.plan import Selection
    from patchouli.backend.results import EntityResult
    from patchouli.protocol import CreateData, DeleteData, Ref, UpdateData
    from patchouli.provider import Clock, IdSource, Json, ScopeText, Version

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
        self._max_queued = limits.max_queued
        self._validators = ValueValidators(policy)
        self._guards: dict[str, Callable[[ScopeText, Json], None]] = {}
        self._joins = ThreadPoolExecutor(limits.max_joins, thread_name_prefix="patchouli-join")
        self._turns = Turns()
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
        self._require_storable(data.type, data.value, selection)
        entity_id = self._ids.entity_id() if data.id is None else data.id
        key = EntityKey(selection.scope.text, data.type, entity_id)
        self._enter()
        try:
            version = proposed_version(
                VersionId(self._ids.version_id()),
                canonical(data.value),
                (),
                now_unix_ms=self._clock.unix_ms(),
            )
            outcome = await self._commit(
                self._commit_of(key, selection, created(version), deadline)
            )
        finally:
            self._queued -= 1
        if type(outcome) is Raced:
            raise conflict(outcome.heads)
        return self._answers.accepted(key, selection, version)

    async def update(
        self, selection: Selection, deadline: int | None, data: UpdateData
    ) -> EntityResult:
        """Return the version that replaces the named bases; see `Engine.update`."""
        ref, value = data.ref, data.value
        self._require_storable(ref.type, value, selection)
        return await self._replace(ref, selection, deadline, _Update(value, canonical(value)))

    async def delete(
        self, selection: Selection, deadline: int | None, data: DeleteData
    ) -> EntityResult:
        """Return the tombstone that replaces the named bases; see `Engine.delete`."""
        return await self._replace(data.ref, selection, deadline, None)

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

    async def _replace(
        self, ref: Ref, selection: Selection, deadline: int | None, update: _Update | None
    ) -> EntityResult:
        """Replace the bases that the request names, by an update or by a tombstone."""
        key = EntityKey(selection.scope.text, ref.type, ref.id)
        named = base_versions(
            selection.base_versions, self._pointers[selection.behavior.base_versions_alias]
        )
        bases = () if isinstance(named, InvalidRequestError) else named
        with_divergence = (
            update is not None
            and selection.strategy == "merge"
            and bool(selection.merge_rules)
            and bool(bases)
        )
        retries = selection.strategy != "reject"
        has_turn = False
        self._enter()
        try:
            if retries and self._turns.is_taken(key):
                await self._take_turn(key, deadline)
                has_turn = True
            plan = ReadPlan(
                key=key,
                consistency=selection.consistency(deadline_unix_ms=deadline, is_mutation=True),
                base_versions=bases,
                with_divergence=with_divergence,
            )
            found: Reading | Raced = await self._access.read(plan)
            if not found.heads:
                raise not_found()
            if isinstance(named, InvalidRequestError):
                raise named
            for attempt in range(1, ATTEMPTS + 1):
                resolution = await self._resolve(selection, bases, found, update)
                outcome = await self._commit(
                    self._commit_of(key, selection, resolution, deadline, plan, found.heads)
                )
                if type(outcome) is not Raced:
                    return self._answers.accepted(key, selection, resolution.accepted)
                found = outcome
                if retries and not has_turn and attempt < ATTEMPTS:
                    has_waited = await self._take_turn(key, deadline)
                    has_turn = True
                    if has_waited:  # what the race brought is old by now
                        found = await self._access.read(plan)
            raise conflict(found.heads)
        finally:
            if has_turn:
                self._turns.give_back(key)
            self._queued -= 1

    async def _take_turn(self, key: EntityKey, deadline: int | None) -> bool:
        """Return when the mutations of an entity that lined up earlier are done."""
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

    async def _commit(self, commit: Commit) -> Committed | Raced:
        outcome = await self._access.commit(commit)
        if type(outcome) is Committed or type(outcome) is Raced:
            return outcome
        raise refused(outcome)

    def _commit_of(
        self,
        key: EntityKey,
        selection: Selection,
        resolution: Resolution,
        deadline: int | None,
        read: ReadPlan | None = None,
        heads: Sequence[Version] = (),
    ) -> Commit:
        """Return the commit of `resolution`, which replaces `heads`.

        Should it be too late for that, its answer brings what `read` brought.
        """
        accepted = resolution.accepted
        expected_heads = tuple([head.id for head in heads])
        check(
            "I2 the new heads are new versions or present heads",
            lambda: (
                {new.id for new in resolution.new_versions}.union(expected_heads)
                >= {*resolution.head_versions}
            ),
        )
        return Commit(
            key=key,
            expected_heads=expected_heads,
            new_versions=resolution.new_versions,
            head_versions=resolution.head_versions,
            accepted=accepted.id,
            kind=resolution.kind,
            causal_token=CausalToken(accepted.id),
            event_meta_json=self._answers.event_meta(selection, accepted.id),
            recorded_at_unix_ms=accepted.recorded_at_unix_ms,
            deadline_unix_ms=deadline,
            ordering_key=selection.ordering_key,
            base_versions=() if read is None else read.base_versions,
            with_divergence=read is not None and read.with_divergence,
        )

    def _new_version(self) -> VersionId:
        return VersionId(self._ids.version_id())


class _Update(NamedTuple):
    value: Json
    value_json: str
