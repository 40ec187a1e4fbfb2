"""Random mutations under few identities, against a model of what is remembered.

All of them use the strategy `reject`, so that an entity has one head and what becomes of a mutation
that is not a repetition is plain.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchouli.backend import Engine, EngineError, EntityResult, load_policy
from patchouli.protocol import (
    CreateData,
    CreateParams,
    DeleteData,
    DeleteParams,
    Ref,
    UpdateData,
    UpdateParams,
)
from patchouli.provider import SystemIds
from patchouli.provider_conformance.builders import ManualClock
from patchouli.provider_conformance.model import ModelProvider, ModelStorage
from patchouli.provider_sqlite import SqliteProvider

RETENTION_MS = 60_000
SCHEMA = {"type": "object", "required": ["text"]}
MUTATION = st.fixed_dictionaries(
    {
        "operation": st.sampled_from(["create", "update", "delete"]),
        "call": st.sampled_from(["1", "2", "3"]),
        "name": st.sampled_from(["a", "b"]),
        "chosen": st.booleans(),
        "value": st.sampled_from([{"text": "x"}, {"text": "y"}, {"bad": 1}]),
        "bases": st.sampled_from(["head", "head", "head", "unknown", "malformed"]),
        "times": st.sampled_from([1, 1, 3]),
        "seen": st.sampled_from([None, None, None, "known", "unknown"]),
    }
)
JUMP = st.sampled_from([0, 1, RETENTION_MS // 2, RETENTION_MS - 1, RETENTION_MS, -RETENTION_MS])
STEP = MUTATION | JUMP | st.just("restart")


@dataclass
class Record:
    request: Any
    result_json: str
    expires: int


class Model:
    """What should be remembered, and the head of each entity; None marks a deleted one."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.heads: dict[str, str] = {}
        self.accepted = 0
        self.token: str | None = None

    def record_of(self, call: str, now: int) -> Record | None:
        known = self.records.get(call)
        return known if known is not None and known.expires > now else None

    def expected(self, step: dict[str, Any], request: Any, now: int) -> str:
        """Return the reason of the refusal, or `replay` or `accept`."""
        if step["seen"] == "unknown":
            return "OVERLOADED"
        record = self.record_of(step["call"], now)
        if record is not None:
            return "replay" if record.request == request else "IDEMPOTENCY_CONFLICT"
        if step["operation"] != "delete" and "bad" in step["value"]:
            return "INVALID_REQUEST"
        exists = step["name"] in self.heads
        if step["operation"] == "create":
            return "accept" if step["chosen"] or not exists else "VERSION_CONFLICT"
        if not exists:
            return "NOT_FOUND"
        outcomes = {"malformed": "INVALID_REQUEST", "unknown": "VERSION_CONFLICT"}
        return outcomes.get(step["bases"], "accept")

    def may_go_back(self, now: int, jump: int) -> bool:
        """Return whether no record would come back by a jump of the clock: nothing says of those
        whether they are still there.
        """
        return all(not now + jump < record.expires <= now for record in self.records.values())


def request_of(step: dict[str, Any]) -> Any:
    """Return what makes the mutation another one: all but its metadata."""
    is_create = step["operation"] == "create"
    name = None if is_create and step["chosen"] else step["name"]
    return step["operation"], name, None if step["operation"] == "delete" else step["value"]


class World:
    """An engine, the model of what it remembers, and the comparison."""

    def __init__(self, open_store: Any, policy: Any) -> None:
        self.clock = ManualClock()
        self.model = Model()
        self._open_store = open_store
        self._policy = load_policy(json.dumps(policy))

    async def start(self) -> None:
        self.provider = self._open_store(self.clock)
        self.engine = await Engine.start(
            self._policy, self.provider, clock=self.clock, ids=SystemIds()
        )

    async def run(self, steps: list[Any]) -> None:
        await self.start()
        for step in steps:
            if step == "restart":
                await self.engine.shutdown()
                await self.start()
            elif isinstance(step, int):
                if step > 0 or self.model.may_go_back(self.clock.unix_ms(), step):
                    self.clock.now_unix_ms += step
            else:
                await self.mutate(step)
        await self.engine.shutdown()

    async def mutate(self, step: dict[str, Any]) -> None:
        """Ask for the mutation, or for several of it at once, of which one alone is accepted."""
        model, request, now = self.model, request_of(step), self.clock.unix_ms()
        expected = model.expected(step, request, now)
        results = await asyncio.gather(*(self.ask(step) for _ in range(step["times"])))

        if expected not in ("accept", "replay"):
            assert [getattr(result, "reason", result) for result in results] == [expected] * len(
                results
            )
            return
        texts = {result.result_json for result in results if isinstance(result, EntityResult)}
        assert len(texts) == 1, results
        assert all(isinstance(result, EntityResult) for result in results)
        (text,) = texts
        if expected == "replay":
            assert text == model.records[step["call"]].result_json
            return
        entity = results[0].entity
        model.accepted += 1
        model.heads[entity.id] = model.token = entity.version
        model.records[step["call"]] = Record(request, text, now + RETENTION_MS)

    async def ask(self, step: dict[str, Any]) -> EntityResult | EngineError:
        head = self.model.heads.get(step["name"], "none")
        bases = {"head": [head], "unknown": ["unknown"], "malformed": head}[step["bases"]]
        tokens = {"known": self.model.token, "unknown": "unknown", None: None}
        token = tokens[step["seen"]]
        meta: Any = {
            "team": "t",
            "call": step["call"],
            "strategy": "reject",
            "base_versions": bases,
            **({} if token is None else {"seen": token}),
        }
        ref = Ref(type="memo", id=step["name"])
        try:
            if step["operation"] == "create":
                name = None if step["chosen"] else step["name"]
                made = CreateData(type="memo", id=name, value=step["value"])
                return await self.engine.create(CreateParams(meta=meta, data=made))
            if step["operation"] == "update":
                changed = UpdateData(ref=ref, value=step["value"])
                return await self.engine.update(UpdateParams(meta=meta, data=changed))
            return await self.engine.delete(DeleteParams(meta=meta, data=DeleteData(ref=ref)))
        except EngineError as error:
            return error


@pytest.fixture
def keyed(policy, plain):
    fallback = plain(
        idempotency={"mode": "keyed", "key_by": ["call"]},
        consistency={
            "acquire": {
                "allow_sources": ["authority"],
                "requirements": [{"kind": "causal_after", "token": "seen", "optional": True}],
            }
        },
    )
    fields = {name: {"pointer": f"/{name}", "schema": True} for name in ("call", "seen")}
    return policy(schema=SCHEMA, fields=fields, fallback=fallback)


@given(steps=st.lists(STEP, min_size=1, max_size=30))
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_what_is_told_again_is_what_was_told(keyed, steps):
    storage = ModelStorage()
    world = World(lambda clock: ModelProvider(storage, clock), keyed)
    asyncio.run(world.run(steps))

    assert len(storage.tables.log) == world.model.accepted


@given(steps=st.lists(STEP, min_size=5, max_size=30))
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@pytest.mark.slow
def test_what_is_told_again_is_what_was_told_on_disk(keyed, tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("db") / "db"
    world = World(lambda clock: SqliteProvider(path, clock=clock), keyed)
    asyncio.run(world.run(steps))
