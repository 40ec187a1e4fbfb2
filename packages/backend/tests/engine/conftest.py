"""Engines on real stores, and a desk at which a test speaks to one in JSON values."""

from __future__ import annotations

import json
from collections import deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import Engine, EngineError, Limits, VersionView, load_policy, read_resource
from patchouli.protocol import (
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    ReadData,
    ReadParams,
    Ref,
    RetrieveData,
    RetrieveParams,
    SubscribeData,
    SubscribeParams,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import (
    ChangePage,
    ChangesPlan,
    Cursor,
    EntityKey,
    Provider,
    ScopeText,
    SystemIds,
)
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_sqlite import SqliteProvider

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from patchouli.provider import (
        Capabilities,
        Commit,
        CommitOutcome,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReadPlan,
        ReferencesPage,
        ReferencesPlan,
        Retention,
        RetrieveOutcome,
        RetrievePlan,
        RuntimeGeneration,
    )

    Step = Callable[[], Awaitable[object]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Watched(Provider):
    """A provider that notes what it is asked and lets a test act between two calls."""

    def __init__(self, inner: Provider, running: RuntimeGeneration | None = None) -> None:
        self.inner = inner
        self.running = running
        self.calls: list[str] = []
        self.commits: list[Commit] = []
        self.reads: list[ReadPlan] = []
        self.retrievals: list[RetrievePlan] = []
        self.publications: list[Publish] = []
        self.before_commit: deque[Step] = deque()
        self.before_publish: deque[Step] = deque()
        self.answers: deque[Any] = deque()
        self.lacks: frozenset[str] = frozenset()

    @property
    def kind(self) -> str:
        return self.inner.kind

    def capabilities(self) -> Capabilities:
        claims = self.inner.capabilities()
        return type(claims)(
            **{
                name: getattr(claims, name) and name not in self.lacks
                for name in type(claims).__dataclass_fields__
            }
        )

    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        self.calls.append("initialize")
        return self.running or await self.inner.initialize(retention)

    async def health(self) -> None:
        self.calls.append("health")
        self._answer()
        await self.inner.health()

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        self.calls.append("read")
        self.reads.append(plan)
        return self._answer() or await self.inner.read(plan)

    async def commit(self, commit: Commit) -> CommitOutcome:
        self.calls.append("commit")
        self.commits.append(commit)
        if self.before_commit:
            await self.before_commit.popleft()()
        return self._answer() or await self.inner.commit(commit)

    async def publish(self, publish: Publish) -> PublishOutcome:
        self.calls.append("publish")
        self.publications.append(publish)
        if self.before_publish:
            await self.before_publish.popleft()()
        return self._answer() or await self.inner.publish(publish)

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        self.calls.append("retrieve")
        self.retrievals.append(plan)
        return self._answer() or await self.inner.retrieve(plan)

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        return await self.inner.read_changes(plan)

    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        await self.inner.wait_for_changes(scope, after)

    async def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        return await self.inner.read_references(plan)

    async def checkpoint(self) -> None:
        self.calls.append("checkpoint")
        await self.inner.checkpoint()

    async def shutdown(self) -> None:
        self.calls.append("shutdown")
        self._answer()
        if self.running is None:
            await self.inner.shutdown()

    def _answer(self) -> Any:
        """Return the outcome that the test wants for this call, or raise it, once."""
        answer = self.answers.popleft() if self.answers else None
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Desk:
    """One engine, asked and answered in plain JSON values; `meta` goes into every request."""

    def __init__(self, engine: Engine, provider: Watched, clock: ManualClock, meta: Any) -> None:
        self.engine = engine
        self.provider = provider
        self.clock = clock
        self.meta = meta
        self.type = "memo"
        self.rival: Desk = self
        self.restart: Callable[..., Awaitable[Desk]]

    async def create(
        self, value: Any, name: str | None = "a", *, kind: str | None = None, **meta: Any
    ) -> VersionView:
        data = CreateData(type=kind or self.type, id=name, value=value)
        return (await self.engine.create(CreateParams(meta=self._meta(meta), data=data))).entity

    async def update(
        self, bases: Any, value: Any, name: str = "a", *, kind: str | None = None, **meta: Any
    ) -> VersionView:
        data = UpdateData(ref=Ref(type=kind or self.type, id=name), value=value)
        meta = self._meta(meta, bases)
        return (await self.engine.update(UpdateParams(meta=meta, data=data))).entity

    async def delete(
        self, bases: Any, name: str = "a", *, kind: str | None = None, **meta: Any
    ) -> VersionView:
        data = DeleteData(ref=Ref(type=kind or self.type, id=name))
        meta = self._meta(meta, bases)
        return (await self.engine.delete(DeleteParams(meta=meta, data=data))).entity

    async def read(self, name: str = "a", *, kind: str | None = None, **meta: Any) -> Any:
        """Return the state and the variants."""
        data = ReadData(ref=Ref(type=kind or self.type, id=name))
        found = await self.engine.read(ReadParams(meta=self._meta(meta), data=data))
        return found.state, found.variants

    async def heads(self, name: str = "a", *, kind: str | None = None) -> dict[str, Any]:
        """Return the value of each head by version; None for a tombstone."""
        _, variants = await self.read(name, kind=kind)
        return {variant.version: value_of(variant) for variant in variants}

    async def retrieve(
        self, query: Any, *, types: Any = None, limit: int = 10, **meta: Any
    ) -> tuple[list[str], str | None]:
        """Return the ids of one page and the cursor of the next."""
        text = query if isinstance(query, str) else json.dumps(query)
        data = RetrieveData(query=text, types=types, limit=limit)
        found = await self.engine.retrieve(RetrieveParams(meta=self._meta(meta), data=data))
        cursor: Any = found.meta.get("next_cursor")
        return [hit.variants[0].id for hit in found.hits], cursor

    async def changes(self) -> list[Any]:
        """Return every retained change of the scope."""
        scope = self.engine.scope(self.meta)
        page = await self.provider.read_changes(
            ChangesPlan(scope=scope, after=Cursor(0), limit=1000, retained_after_unix_ms=0)
        )
        return list(page.changes)

    async def subscribe(self, after_cursor: str | None = None, **meta: Any) -> Any:
        data = SubscribeData(after_cursor=after_cursor)
        return await self.engine.subscribe(SubscribeParams(meta=self._meta(meta), data=data))

    def key(self, name: str = "a", *, kind: str | None = None) -> EntityKey:
        return EntityKey(self.engine.scope(self.meta), kind or self.type, name)

    def _meta(self, meta: dict[str, Any], bases: Any = ...) -> dict[str, Any]:
        named = {} if bases is ... or bases is None else {self.base_member: _versions(bases)}
        return {**self.meta, **named, **meta}

    base_member = "base_versions"


def _versions(bases: Any) -> Any:
    if isinstance(bases, VersionView):
        return [bases.version]
    if isinstance(bases, list | tuple | set | dict):
        return [base.version if isinstance(base, VersionView) else base for base in bases]
    return bases


def value_of(variant: VersionView) -> Any:
    return None if variant.value_json is None else json.loads(variant.value_json)


@pytest.fixture(params=["model", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    """The kind of provider; tests of the engine alone override it."""
    return request.param


@pytest.fixture
async def open_desk(store: str, tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Desk]]]:
    """Start engines that are shut down at the end of the test."""
    async with AsyncExitStack() as stack:

        async def open_(
            policy: Any = None,
            *,
            meta: Any = None,
            lacks: Any = (),
            limits: Limits | None = None,
            name: str = "db",
        ) -> Desk:
            clock, storage = ManualClock(), ModelStorage()

            def open_store() -> Provider:
                if store == "model":
                    return ModelProvider(storage, clock)
                return SqliteProvider(tmp_path / name, clock=clock)

            meta = {"team": "north"} if meta is None else meta

            async def seated(provider: Watched, policy: Any) -> Desk:
                loaded = load_policy(json.dumps(memo_policy() if policy is None else policy))
                provider.lacks = frozenset(lacks)
                engine = await Engine.start(
                    loaded, provider, clock=clock, ids=SystemIds(), limits=limits
                )
                stack.push_async_callback(engine.shutdown)
                provider.calls.clear()
                return Desk(engine, provider, clock, meta)

            async def start(policy: Any) -> Desk:
                inner = open_store()
                desk = await seated(Watched(inner), policy)
                # Another engine over the same store, as if in another process.
                desk.rival = await seated(Watched(inner, desk.engine.runtime), policy)

                async def restart(other_policy: Any = None) -> Desk:
                    """Stop both engines and return one over the same store, at the same time."""
                    await desk.rival.engine.shutdown()
                    await desk.engine.shutdown()
                    return await start(other_policy or policy)

                desk.restart = restart
                return desk

            return await start(policy)

        yield open_


@pytest.fixture
async def desk(open_desk: Any) -> Desk:
    """An engine with one type, `memo`, whose text merges and whose values are free."""
    return await open_desk()


@pytest.fixture
async def facts(open_desk: Any) -> Desk:
    """An engine with the shipped default policy."""
    return await open_desk(
        json.loads(read_resource("patchouli.default.json")),
        meta={"workspace_id": "atlas", "user_id": "mira"},
    )


BEHAVIOR: dict[str, Any] = {
    "consistency": {
        "snapshot": {"mode": "request"},
        "acquire": {"allow_sources": ["authority"], "requirements": []},
        "sessions": [],
        "commit": {"ordering": {"kind": "none"}},
    },
    "idempotency": {"mode": "disabled"},
    "conflict": {
        "default_strategy": "merge",
        "strategy_from": "strategy",
        "base_versions": "bases",
        "merge": [{"path": "/text", "strategy": "automerge", "group_by": []}],
        "otherwise": "mvcc",
    },
    "publication": {"mode": "immediate"},
}


def behavior(**sections: Any) -> dict[str, Any]:
    """Return the plain behavior with members of its sections replaced."""
    return {name: {**members, **sections.get(name, {})} for name, members in BEHAVIOR.items()}


def memo_policy(
    *,
    schema: Any = True,
    conflict: Any = None,
    fields: Any = None,
    rules: Any = (),
    types: Any = None,
    fallback: Any = None,
) -> dict[str, Any]:
    """Return a policy with the type `memo`; the memo's text merges."""
    return {
        "$schema": "./patchouli.schema.json",
        "version": 1,
        "retention": {"idempotency_seconds": 60, "changes_seconds": 60},
        "meta_fields": {
            "team": {"pointer": "/team", "schema": {"type": "string"}},
            "strategy": {"pointer": "/strategy", "schema": True},
            "bases": {"pointer": "/base_versions", "schema": True},
            **(fields or {}),
        },
        "entity_identity": {"scope_by": ["team"]},
        "entity_types": {
            "memo": {
                "value_schema": schema,
                "rules": list(rules),
                "fallback": fallback or behavior(conflict=conflict or {}),
            },
            **(types or {}),
        },
    }


def build_unit_policy(*, note: Any = None, **memo: Any) -> dict[str, Any]:
    """Return a policy under which requests that name a `unit` belong to it.

    `state: "done"` closes it. Mutations that name a `call` are keyed by it, in a unit or not. The
    types `memo` and `note` share their units unless `note` says otherwise.
    """
    fields = {name: {"pointer": f"/{name}", "schema": True} for name in ("unit", "state", "call")}
    types = {"memo": unit_type(**memo), "note": unit_type(**{**memo, **(note or {})})}
    return memo_policy(fields=fields, types=types)


def unit_type(
    *, conflict: Any = None, schema: Any = True, ttl_ms: int = 10_000, has_units: bool = True
) -> dict[str, Any]:
    shared = {"snapshot": {"mode": "shared", "key_by": ["unit"]}}
    keyed = {"mode": "keyed", "key_by": ["call"]}
    publication = {
        "mode": "batch",
        "key_by": ["unit"],
        "close_when": {"kind": "marker", "field": "state", "equals": "done"},
        "staging_ttl_ms": ttl_ms,
        "on_expire": "discard",
    }
    common = {"conflict": conflict or {}}
    in_unit = {**common, "consistency": shared, "publication": publication}
    rules = [
        (["unit", "call"], behavior(**in_unit, idempotency=keyed)),
        (["unit"], behavior(**in_unit)),
        (["call"], behavior(**common, idempotency=keyed)),
    ]
    return {
        "value_schema": schema,
        "rules": [
            {"name": "_".join(present), "when": {"all_present": present}, "behavior": found}
            for present, found in rules
            if has_units or "unit" not in present
        ],
        "fallback": behavior(**common),
    }


@pytest.fixture
def unit_policy() -> Callable[..., dict[str, Any]]:
    """The builder of policies with work units."""
    return build_unit_policy


@pytest.fixture
def open_units(open_desk: Any) -> Callable[..., Awaitable[Desk]]:
    """Start engines whose policy has work units, with `limits` and changes to the policy."""

    async def open_(*, limits: Limits | None = None, **changes: Any) -> Desk:
        return await open_desk(build_unit_policy(**changes), limits=limits)

    return open_


@pytest.fixture
async def units(open_units: Any) -> Desk:
    """An engine with the types `memo` and `note`, immediate and in work units."""
    return await open_units()


@pytest.fixture
def policy() -> Callable[..., dict[str, Any]]:
    """The builder of policies with the type `memo`."""
    return memo_policy


@pytest.fixture
def plain() -> Callable[..., dict[str, Any]]:
    """The builder of behaviors."""
    return behavior


async def refused(awaitable: Awaitable[object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await awaitable
    return caught.value


@pytest.fixture
def refusal() -> Callable[[Awaitable[object]], Awaitable[EngineError]]:
    """Await what must fail with an engine error, and return the error."""
    return refused


@pytest.fixture
def values() -> Callable[[VersionView], Any]:
    return value_of
