"""The engine: one policy over one provider, and one method for each request.

Every method follows the same line: deadline, selection, what the behavior needs, then plans that
are pure values, one provider call for a read, a retrieval and a create, two for an update and a
delete, and one more commit for each race lost. What is decided between the calls is decided by the
pure modules `policy`, `mutation` and `retrieval`. The engine keeps no business state.

No lock is needed: a mutation compares and swaps heads, and what it lost a race to comes back with
the answer, so that it resolves again and tries again, `ATTEMPTS` times in all. Mutations that
contend for one entity take turns, so that they win instead of racing on.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from patchouli.backend.canonical import canonical
from patchouli.backend.changes import ChangeFeeds, Subscription
from patchouli.backend.errors import (
    DeadlineExceededError,
    EngineError,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnsupportedCapabilityError,
    WorkUnitExpiredError,
)
from patchouli.backend.limits import Limits
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
from patchouli.backend.policy.capabilities import ENGINE_CAPABILITIES, require_capabilities
from patchouli.backend.policy.combining import combined_consistency
from patchouli.backend.policy.selection import Selector
from patchouli.backend.results import (
    EntityResult,
    HitView,
    ReadResult,
    RetrieveResult,
    VersionView,
)
from patchouli.backend.retrieval import CursorSeal, parse_instruction
from patchouli.backend.turns import Turns
from patchouli.backend.validation import ValueValidators
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    Commit,
    Committed,
    EntityKey,
    IdentityTaken,
    Page,
    Raced,
    Reading,
    ReadPlan,
    Retention,
    RetrievePlan,
    Unavailable,
    UnitRefused,
    UnitState,
    VersionId,
    VersionState,
    check,
)
from patchouli.provider import DeadlineExceededError as ProviderDeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from patchouli.backend.config.load import LoadedPolicy
    from patchouli.backend.config.models import Policy
    from patchouli.backend.mutation.reconcile import Resolution
    from patchouli.backend.policy.plan import Selection
    from patchouli.backend.results import EntityState
    from patchouli.protocol import (
        CreateParams,
        DeleteParams,
        JsonObject,
        ReadParams,
        Ref,
        RetrieveParams,
        SubscribeParams,
        UpdateParams,
    )
    from patchouli.provider import (
        Clock,
        IdSource,
        Json,
        Observation,
        Provider,
        RuntimeGeneration,
        ScopeText,
        Version,
    )

ATTEMPTS = 8  # commits of one mutation; it lost eight races when it gives up

_DEADLINE = "deadline_unix_ms"
_DEADLINE_MAX = 2**64 - 1
_REF_TYPE = "data/ref/type"


class Engine:
    """One policy over one provider. Made by `start`; used from one event loop."""

    def __init__(
        self,
        loaded: LoadedPolicy,
        provider: Provider,
        runtime: RuntimeGeneration,
        *,
        clock: Clock,
        ids: IdSource,
        limits: Limits,
        warnings: list[str],
    ) -> None:
        self.policy: Policy = loaded.policy
        self.runtime = runtime
        self.kind = provider.kind
        self.limits = limits
        self.warnings = warnings
        self._provider = provider
        self._clock = clock
        self._ids = ids
        self._selector = Selector(loaded.policy)
        self._validators = ValueValidators(loaded.policy)
        self._feeds = ChangeFeeds(
            provider, clock=clock, changes_seconds=loaded.policy.retention.changes_seconds
        )
        self._joins = ThreadPoolExecutor(limits.max_joins, thread_name_prefix="patchouli-join")
        self._turns = Turns()
        self._queued = 0
        self._guards: dict[str, Callable[[ScopeText, Json], None]] = {}
        offered = provider.capabilities().both(ENGINE_CAPABILITIES)
        self._offered = frozenset(
            field.name for field in fields(offered) if getattr(offered, field.name)
        )
        self._pointers = {
            alias: f"meta{field.pointer}" for alias, field in loaded.policy.meta_fields.items()
        }
        self._is_flat = all(
            field.pointer == f"/{alias}" and "~" not in alias and "/" not in alias
            for alias, field in loaded.policy.meta_fields.items()
        )

    @classmethod
    async def start(
        cls,
        policy: LoadedPolicy,
        provider: Provider,
        *,
        clock: Clock,
        ids: IdSource,
        limits: Limits | None = None,
    ) -> Engine:
        """Return an engine that is ready: the policy fits the provider, and the provider is up.

        Behaviors whose needs cannot be met do not prevent the start: `warnings` names them, and
        a request that selects one is refused and changes nothing.

        Raises:
            ConfigurationError: The provider lacks what every engine, or some read, needs.
            ProviderError: It did not start, or is not healthy and was shut down again.
        """
        offered = provider.capabilities().both(ENGINE_CAPABILITIES)
        warnings = (*policy.warnings, *require_capabilities(policy.policy, offered))
        runtime = await provider.initialize(
            Retention(
                changes_seconds=policy.policy.retention.changes_seconds,
                idempotency_seconds=policy.policy.retention.idempotency_seconds,
                history_seconds=policy.policy.history_seconds,
            )
        )
        try:
            await provider.health()
            return cls(
                policy,
                provider,
                runtime,
                clock=clock,
                ids=ids,
                limits=limits or Limits(),
                warnings=[f"{found.path}: {found.message}" for found in warnings],
            )
        except BaseException as failure:
            try:
                await provider.shutdown()
            except Exception as cleanup:
                failure.add_note(f"shutting the provider down failed as well: {cleanup}")
            raise

    def guard(self, entity_type: str, check: Callable[[ScopeText, Json], None]) -> None:
        """Let `check` refuse values of `entity_type` that clients want to store in a scope."""
        self._guards[entity_type] = check

    async def create(self, params: CreateParams) -> EntityResult:
        """Return the first version of a new entity.

        Raises:
            VersionConflictError: The identity exists, deleted or not.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        data = params.data
        deadline = self._deadline(params.meta)
        selection = self._select(data.type, params.meta, deadline, at="data/type")
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
        return self._accepted(key, selection, version)

    async def read(self, params: ReadParams) -> ReadResult:
        """Return every head of an entity.

        Raises:
            NotFoundError: The identity never existed.
            EngineError: As SPEC says for every read.
        """
        ref = params.data.ref
        deadline = self._deadline(params.meta)
        selection = self._select(ref.type, params.meta, deadline, at=_REF_TYPE)
        key = EntityKey(selection.scope.text, ref.type, ref.id)
        reading = await self._read(
            ReadPlan(
                key=key,
                consistency=selection.consistency(deadline_unix_ms=deadline, is_mutation=False),
            )
        )
        heads = reading.heads
        if not heads:
            raise _not_found()
        self._require_time(deadline)
        variants = _views(key, heads)
        state = _state(heads)
        return ReadResult(self._observed((selection,), reading.observation), state, variants)

    async def retrieve(self, params: RetrieveParams) -> RetrieveResult:
        """Return one page of entities.

        Raises:
            InvalidRequestError: Among others, the query or its cursor is not valid.
            EngineError: As SPEC says for every read.
        """
        data = params.data
        deadline = self._deadline(params.meta)
        types = self._types(data.types)
        selections = [self._selector.select(name, params.meta) for name in types]
        self._require_time(deadline)
        for selection in selections:
            self._require_offered(selection)
        consistency = combined_consistency(selections, deadline_unix_ms=deadline)
        if not consistency.allowed_sources:
            raise _unsupported(("common_source",))
        scope = selections[0].scope.text
        instruction = parse_instruction(data.query, self.limits)
        seal = CursorSeal(self.runtime.secret, instruction, scope=scope, types=types)
        after = None if instruction.cursor is None else seal.position(instruction.cursor)
        plan = RetrievePlan(
            scope=scope,
            consistency=consistency,
            order=instruction.order,
            limit=data.limit,
            limit_bytes=self.limits.max_page_bytes,
            types=types,
            ids=instruction.ids,
            text=instruction.text,
            filters=instruction.filters,
            after=after,
        )
        try:
            page = await self._provider.retrieve(plan)
        except ProviderDeadlineExceededError as error:
            raise _late() from error
        if not isinstance(page, Page):
            raise _refused(page)
        self._require_time(deadline)
        meta = self._observed(selections, page.observation)
        if page.has_more and page.hits:
            meta["next_cursor"] = seal.cursor_after(page.hits[-1])
        return RetrieveResult(
            meta, tuple(HitView(hit.score, _views(hit.key, hit.heads)) for hit in page.hits)
        )

    async def update(self, params: UpdateParams) -> EntityResult:
        """Return the version that replaces the named bases; its value may be a merge.

        Raises:
            NotFoundError: The identity never existed.
            VersionConflictError: A base is unknown, the conflict policy refuses what is
                concurrent, or eight races were lost.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        ref, value = params.data.ref, params.data.value
        deadline = self._deadline(params.meta)
        selection = self._select(ref.type, params.meta, deadline, at=_REF_TYPE)
        self._require_storable(ref.type, value, selection)
        return await self._replace(ref, selection, deadline, _Update(value, canonical(value)))

    async def delete(self, params: DeleteParams) -> EntityResult:
        """Return the tombstone that replaces the named bases.

        Raises:
            NotFoundError: The identity never existed.
            VersionConflictError: A base is unknown, the conflict policy refuses what is
                concurrent, or eight races were lost.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        ref = params.data.ref
        deadline = self._deadline(params.meta)
        selection = self._select(ref.type, params.meta, deadline, at=_REF_TYPE)
        return await self._replace(ref, selection, deadline, None)

    async def subscribe(self, params: SubscribeParams) -> Subscription:
        """Return a subscription to the changes of a scope, after a cursor or from now on.

        Raises:
            CursorExpiredError: The log does not reach back to the cursor, or is another one.
            EngineError: As SPEC says for every request.
        """
        deadline = self._deadline(params.meta)
        scope = self._selector.scope(params.meta)
        wanted = params.data.filter
        types = None if wanted is None or wanted.types is None else frozenset(wanted.types)
        ids = None if wanted is None or wanted.ids is None else frozenset(wanted.ids)
        return await self._feeds.subscribe(
            scope.text,
            after_cursor=params.data.after_cursor,
            types=types,
            ids=ids,
            require_time=partial(self._require_time, deadline),
        )

    def scope(self, meta: JsonObject) -> ScopeText:
        """Return the scope that `meta` names.

        Raises:
            InvalidRequestError: A bound alias is invalid, or one of the scope is missing.
        """
        return self._selector.scope(meta).text

    async def checkpoint(self, deadline_unix_ms: int | None) -> None:
        """Flush everything into the main storage while service goes on.

        Raises:
            DeadlineExceededError: The deadline had passed before or after; the flush is harmless.
            ProviderError: It could not be completed.
        """
        self._require_time(deadline_unix_ms)
        await self._provider.checkpoint()
        self._require_time(deadline_unix_ms)

    async def shutdown(self) -> None:
        """End all subscriptions and release the provider; for when no request is under way."""
        await self._feeds.aclose()
        self._joins.shutdown(wait=False, cancel_futures=True)
        await self._provider.shutdown()

    # Admission

    def _deadline(self, meta: JsonObject) -> int | None:
        """Return the deadline of a request, which has not passed."""
        if _DEADLINE not in meta:
            return None
        deadline = meta[_DEADLINE]
        if type(deadline) is not int or not 0 <= deadline <= _DEADLINE_MAX:
            raise InvalidRequestError(
                f"meta/{_DEADLINE} must be an integer from 0 to 2^64 - 1",
                pointer=f"meta/{_DEADLINE}",
            )
        self._require_time(deadline)
        return min(deadline, INTEGER_MAX)

    def _require_time(self, deadline_unix_ms: int | None) -> None:
        if deadline_unix_ms is not None and self._clock.unix_ms() >= deadline_unix_ms:
            raise _late()

    def _select(
        self, entity_type: str, meta: JsonObject, deadline: int | None, *, at: str
    ) -> Selection:
        """Return the selection for the type that the request names `at` a pointer."""
        selection = self._selector.select(entity_type, meta, at=at)
        self._require_time(deadline)
        self._require_offered(selection)
        return selection

    def _require_offered(self, selection: Selection) -> None:
        needs = selection.behavior.needs
        if not needs <= self._offered:
            raise _unsupported(needs - self._offered)

    def _require_storable(self, entity_type: str, value: Json, selection: Selection) -> None:
        self._validators.require_valid(entity_type, value)
        if entity_type in self._guards:
            self._guards[entity_type](selection.scope.text, value)

    def _enter(self) -> None:
        """Count one more mutation under way; the caller takes it off again."""
        if self._queued >= self.limits.max_queued:
            raise OverloadedError(
                "too many mutations are under way; try again later", retryable=True
            )
        self._queued += 1

    def _types(self, named: Sequence[str] | None) -> tuple[str, ...]:
        """Return the entity types of a retrieval, ascending."""
        configured = self._selector.entity_types
        if named is None:
            return tuple(sorted(configured))
        if not named or not configured.issuperset(named):
            raise InvalidRequestError(
                f"data/types must name configured types: {', '.join(sorted(configured))}",
                pointer="data/types",
            )
        return tuple(sorted(set(named)))

    # Provider calls

    async def _read(self, plan: ReadPlan) -> Reading:
        try:
            outcome = await self._provider.read(plan)
        except ProviderDeadlineExceededError as error:
            raise _late() from error
        if type(outcome) is Reading:
            return outcome
        raise _refused(outcome)

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
            found: Reading | Raced = await self._read(plan)
            if not found.heads:
                raise _not_found()
            if isinstance(named, InvalidRequestError):
                raise named
            for attempt in range(1, ATTEMPTS + 1):
                resolution = await self._resolve(selection, bases, found, update)
                outcome = await self._commit(
                    self._commit_of(key, selection, resolution, deadline, plan, found.heads)
                )
                if type(outcome) is not Raced:
                    return self._accepted(key, selection, resolution.accepted)
                found = outcome
                if retries and not has_turn and attempt < ATTEMPTS:
                    has_waited = await self._take_turn(key, deadline)
                    has_turn = True
                    if has_waited:  # what the race brought is old by now
                        found = await self._read(plan)
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
            raise _late() from error

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
        try:
            outcome = await self._provider.commit(commit)
        except ProviderDeadlineExceededError as error:
            raise _late() from error
        if type(outcome) is Committed or type(outcome) is Raced:
            return outcome
        raise _refused(outcome)

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
            event_meta_json=self._event_meta(selection, accepted.id),
            recorded_at_unix_ms=accepted.recorded_at_unix_ms,
            deadline_unix_ms=deadline,
            ordering_key=selection.ordering_key,
            base_versions=() if read is None else read.base_versions,
            with_divergence=read is not None and read.with_divergence,
        )

    def _new_version(self) -> VersionId:
        return VersionId(self._ids.version_id())

    # Answers

    def _accepted(self, key: EntityKey, selection: Selection, version: Version) -> EntityResult:
        aliases = selection.behavior.causal_aliases
        meta = self._selector.write_meta(dict.fromkeys(aliases, version.id)) if aliases else {}
        return EntityResult(meta, VersionView(key.type, key.id, version.id, version.value_json))

    def _observed(
        self, selections: Sequence[Selection], observation: Observation
    ) -> dict[str, Json]:
        token = observation.causal_token
        aliases = [alias for found in selections for alias in found.causal_aliases]
        if token is None or not aliases:
            return {}
        return self._selector.write_meta(dict.fromkeys(aliases, token))

    def _event_meta(self, selection: Selection, token: str) -> str:
        """Return the metadata of the request as its change event carries it.

        Everything that was bound, where the request carried it; under the causal aliases the token
        of the change itself.
        """
        bindings = selection.bindings
        aliases = selection.behavior.causal_aliases
        if aliases:
            bindings = {**bindings, **dict.fromkeys(aliases, token)}
        return canonical(bindings if self._is_flat else self._selector.write_meta(bindings))


class _Update(NamedTuple):
    value: Json
    value_json: str


def _state(heads: Sequence[Version]) -> EntityState:
    if len(heads) > 1:
        return "conflicted"
    return "active" if heads[0].state is VersionState.ACTIVE else "deleted"


def _views(key: EntityKey, heads: Sequence[Version]) -> tuple[VersionView, ...]:
    return tuple([VersionView(key.type, key.id, head.id, head.value_json) for head in heads])


def _late() -> DeadlineExceededError:
    return DeadlineExceededError("the deadline passed before the request was accepted")


def _not_found() -> NotFoundError:
    return NotFoundError("the entity does not exist in this scope")


def _unsupported(names: Iterable[str]) -> UnsupportedCapabilityError:
    listed = sorted(names)
    return UnsupportedCapabilityError(
        f"the policy asks for what this server does not offer: {', '.join(listed)}",
        capabilities=listed,
    )


def _refused(outcome: object) -> EngineError:
    """Return the error of an outcome that is none of the expected ones."""
    match outcome:
        case Unavailable():
            return OverloadedError(
                "the state that the request must observe is not available here yet",
                retryable=True,
            )
        case UnitRefused(state=UnitState.EXPIRED):
            return WorkUnitExpiredError("the work unit expired and was discarded")
        case UnitRefused():
            return InvalidRequestError("the work unit does not take this request")
        case IdentityTaken():
            return IdempotencyConflictError("the idempotency identity belongs to another mutation")
        case _:
            raise TypeError(f"a provider answered with {type(outcome).__name__}")
