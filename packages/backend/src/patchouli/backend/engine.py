"""The engine: one policy over one provider, and one method for each request.

    admission.py    may the request begin: deadline, selection                      no provider call
    engine.py       life of the engine; read, retrieve, subscribe                   one call each
    mutations.py    create, update, delete: read, resolve, commit, again            one or two calls
    idempotency.py  how a repetition is recognized and what it is told              pure
    publication.py  how a work unit ends
    access.py       the provider's calls in the engine's words
    answers.py      metadata and views of results, words of refusals                pure

Every method follows the same line: deadline, selection, then plans that are pure values, and
provider calls. What is decided between the calls is decided by the pure modules `policy`,
`mutation` and `retrieval`. The engine keeps no business state.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from patchouli.backend.access import Access
from patchouli.backend.admission import Admission
from patchouli.backend.answers import Answers, not_found, state, views
from patchouli.backend.changes import ChangeFeeds, Subscription
from patchouli.backend.errors import UnsupportedCapabilityError
from patchouli.backend.limits import Limits
from patchouli.backend.mutations import Mutations
from patchouli.backend.policy.capabilities import require_capabilities
from patchouli.backend.policy.combining import combined_consistency, require_one_unit
from patchouli.backend.policy.selection import Selector
from patchouli.backend.publication import Recovery
from patchouli.backend.results import HitView, ReadResult, RetrieveResult
from patchouli.backend.retrieval import CursorSeal, parse_instruction
from patchouli.provider import (
    EntityKey,
    Page,
    Reading,
    ReadPlan,
    Retention,
    RetrievePlan,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend.config.load import LoadedPolicy
    from patchouli.backend.config.models import Policy
    from patchouli.backend.results import EntityResult
    from patchouli.protocol import (
        CreateParams,
        DeleteParams,
        JsonObject,
        ReadParams,
        RetrieveParams,
        SubscribeParams,
        UpdateParams,
    )
    from patchouli.provider import (
        Clock,
        Compaction,
        CompactionPlan,
        IdSource,
        Json,
        Provider,
        RuntimeGeneration,
        ScopeText,
    )

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
        self.recovery = Recovery(published=0, discarded=0)
        self._provider = provider
        self._selector = Selector(loaded.policy)
        self._admission = Admission(self._selector, clock)
        self._access = Access(provider, clock, max_awaiting=limits.max_awaiting)
        self._answers = Answers(loaded.policy, self._selector)
        self._mutations = Mutations(
            loaded.policy, self._access, self._answers, clock=clock, ids=ids, limits=limits
        )
        self._feeds = ChangeFeeds(
            provider,
            clock=clock,
            changes_seconds=loaded.policy.retention.changes_seconds,
            limits=limits,
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

        `warnings` are those of the policy. Work units that an earlier run sealed are published, or
        else discarded, before anything is admitted; `recovery` counts them.

        Raises:
            ConfigurationError: The provider does not offer what the policy asks for.
            ProviderError: It did not start, or is not healthy and was shut down again.
        """
        require_capabilities(policy.policy, provider.capabilities())
        runtime = await provider.initialize(
            Retention(
                changes_seconds=policy.policy.retention.changes_seconds,
                idempotency_seconds=policy.policy.retention.idempotency_seconds,
                history_seconds=policy.policy.history_seconds,
            )
        )
        try:
            await provider.health()
            engine = cls(
                policy,
                provider,
                runtime,
                clock=clock,
                ids=ids,
                limits=limits or Limits(),
                warnings=[f"{found.path}: {found.message}" for found in policy.warnings],
            )
            engine.recovery = await engine._mutations.publication.recover(runtime.sealed_units)
            return engine
        except BaseException as failure:
            try:
                await provider.shutdown()
            except Exception as cleanup:
                failure.add_note(f"shutting the provider down failed as well: {cleanup}")
            raise

    def guard(self, entity_type: str, check: Callable[[ScopeText, Json], None]) -> None:
        """Let `check` refuse values of `entity_type` that clients want to store in a scope."""
        self._mutations.guard(entity_type, check)

    async def create(self, params: CreateParams) -> EntityResult:
        """Return the first version of a new entity.

        Raises:
            VersionConflictError: The identity exists, deleted or not.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        data = params.data
        deadline = self._admission.deadline(params.meta)
        selection = self._admission.select(data.type, params.meta, deadline, at="data/type")
        return await self._mutations.create(selection, deadline, data)

    async def read(self, params: ReadParams) -> ReadResult:
        """Return every head of an entity.

        Raises:
            NotFoundError: The identity never existed.
            EngineError: As SPEC says for every read.
        """
        ref = params.data.ref
        deadline = self._admission.deadline(params.meta)
        selection = self._admission.select(ref.type, params.meta, deadline, at=_REF_TYPE)
        key = EntityKey(selection.scope.text, ref.type, ref.id)
        consistency = selection.consistency(deadline_unix_ms=deadline, is_mutation=False)
        while True:
            reading = await self._access.read(
                ReadPlan(key=key, consistency=consistency, unit=self._admission.unit(selection))
            )
            if isinstance(reading, Reading):
                break
            await self._access.wait(key.scope, reading, deadline)
        heads = reading.heads
        if not heads:
            raise not_found()
        self._admission.require_time(deadline)
        meta = self._answers.observed((selection,), reading.observation)
        return ReadResult(meta, state(heads), views(key, heads))

    async def retrieve(self, params: RetrieveParams) -> RetrieveResult:
        """Return one page of entities.

        Raises:
            InvalidRequestError: Among others, the query or its cursor is not valid.
            EngineError: As SPEC says for every read.
        """
        data = params.data
        deadline = self._admission.deadline(params.meta)
        types = self._admission.types(data.types)
        selections = [self._selector.select(name, params.meta) for name in types]
        self._admission.require_time(deadline)
        consistency = combined_consistency(selections, deadline_unix_ms=deadline)
        require_one_unit(selections)
        scope = selections[0].scope.text
        instruction = parse_instruction(data.query, self.limits)
        seal = CursorSeal(self.runtime.secret, instruction, scope=scope, types=types)
        after = None if instruction.cursor is None else seal.position(instruction.cursor)
        while True:
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
                unit=self._admission.unit(selections[0]),
            )
            page = await self._access.retrieve(plan)
            if isinstance(page, Page):
                break
            await self._access.wait(scope, page, deadline)
        self._admission.require_time(deadline)
        meta = self._answers.observed(selections, page.observation)
        if page.has_more and page.hits:
            meta["next_cursor"] = seal.cursor_after(page.hits[-1])
        return RetrieveResult(
            meta, tuple(HitView(hit.score, views(hit.key, hit.heads)) for hit in page.hits)
        )

    async def update(self, params: UpdateParams) -> EntityResult:
        """Return the version that replaces the named bases; its value may be a merge.

        Raises:
            NotFoundError: The identity never existed.
            VersionConflictError: A base is unknown, the conflict policy refuses what is
                concurrent, or eight races were lost.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        data = params.data
        deadline = self._admission.deadline(params.meta)
        selection = self._admission.select(data.ref.type, params.meta, deadline, at=_REF_TYPE)
        return await self._mutations.update(selection, deadline, data)

    async def delete(self, params: DeleteParams) -> EntityResult:
        """Return the tombstone that replaces the named bases.

        Raises:
            NotFoundError: The identity never existed.
            VersionConflictError: A base is unknown, the conflict policy refuses what is
                concurrent, or eight races were lost.
            EngineError: As SPEC says for every mutation; nothing was changed.
        """
        data = params.data
        deadline = self._admission.deadline(params.meta)
        selection = self._admission.select(data.ref.type, params.meta, deadline, at=_REF_TYPE)
        return await self._mutations.delete(selection, deadline, data)

    async def subscribe(self, params: SubscribeParams) -> Subscription:
        """Return a subscription to the changes of a scope, after a cursor or from now on.

        Raises:
            CursorExpiredError: The log does not reach back to the cursor, or is another one.
            EngineError: As SPEC says for every request.
        """
        deadline = self._admission.deadline(params.meta)
        scope = self._selector.scope(params.meta)
        wanted = params.data.filter
        types = None if wanted is None or wanted.types is None else frozenset(wanted.types)
        ids = None if wanted is None or wanted.ids is None else frozenset(wanted.ids)
        return await self._feeds.subscribe(
            scope.text,
            after_cursor=params.data.after_cursor,
            types=types,
            ids=ids,
            require_time=partial(self._admission.require_time, deadline),
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
        self._admission.require_time(deadline_unix_ms)
        await self._provider.checkpoint()
        self._admission.require_time(deadline_unix_ms)

    async def compact(
        self, plan: CompactionPlan, *, deadline_unix_ms: int | None = None
    ) -> Compaction:
        """Take one step of removing what is past its retention.

        Raises:
            DeadlineExceededError: The deadline had passed.
            UnsupportedCapabilityError: The provider does not compact on demand.
            ProviderError: It could not be done.
        """
        self._admission.require_time(deadline_unix_ms)
        try:
            return await self._provider.compact(plan)
        except UnsupportedError as error:
            raise UnsupportedCapabilityError(
                "the store removes what is past its retention by itself, not on demand",
                capabilities=["compaction"],
            ) from error

    @property
    def creates_begun(self) -> int:
        """How many creates have been handed to the provider, which accepts them in that order.

        One that counts before its first wait has nothing more to decide: the next create may be
        begun, and its own position among the changes stays. A create that closes a work unit does
        not count.
        """
        return self._access.creates_begun

    def stop_waiting(self) -> None:
        """Refuse what waits for a state that it must observe, and let nothing wait from now on.

        For a service that is about to stop: such requests would keep it until their deadlines.
        """
        self._access.stop_waiting()

    async def shutdown(self) -> None:
        """End all subscriptions and release the provider; for when no request is under way."""
        await self._feeds.aclose()
        self._mutations.close()
        await self._provider.shutdown()
