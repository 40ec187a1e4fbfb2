"""Which refusal a request gets, with which facts, and which of two comes first."""

from __future__ import annotations

import json

import pytest
from patchouli.backend import ConfigurationError, Engine, Limits, engine, load_policy
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
    CorruptStoreError,
    DeadlineExceededError,
    IdentityTaken,
    StoreFullError,
    SystemIds,
    Unavailable,
    UnavailableError,
    UnitRefused,
    UnitState,
)

SCHEMA = {"type": "object", "required": ["text"]}
ENTITY_METHODS = ("create", "read", "retrieve", "update", "delete")
MUTATIONS = ("create", "update", "delete")


@pytest.fixture
def store() -> str:
    return "model"  # what is refused here is refused by the engine, whatever the store


@pytest.fixture
async def desk(open_desk, policy):
    return await open_desk(policy(schema=SCHEMA))


def asked(desk, method: str, meta: dict, *, kind: str = "memo", value: object = None):
    """Return a request that is in order but for what `meta`, `type` and `value` say."""
    ref = Ref(type=kind, id="a")
    value = {"text": "b"} if value is None else value
    match method:
        case "create":
            data = CreateData(type=kind, id="a", value=value)
            return desk.engine.create(CreateParams(meta=meta, data=data))
        case "read":
            return desk.engine.read(ReadParams(meta=meta, data=ReadData(ref=ref)))
        case "retrieve":
            data = RetrieveData(query="{}", types=(kind,))
            return desk.engine.retrieve(RetrieveParams(meta=meta, data=data))
        case "update":
            data = UpdateData(ref=ref, value=value)
            return desk.engine.update(UpdateParams(meta=meta, data=data))
        case "delete":
            return desk.engine.delete(DeleteParams(meta=meta, data=DeleteData(ref=ref)))
        case _:
            return desk.engine.subscribe(SubscribeParams(meta=meta, data=SubscribeData()))


META = {"team": "north", "base_versions": ["v"]}


@pytest.mark.parametrize("deadline", [None, -1, 1.0, "1", True, 2**64, [1]])
@pytest.mark.parametrize("method", [*ENTITY_METHODS, "subscribe"])
async def test_a_deadline_is_an_unsigned_integer(desk, refusal, method, deadline):
    error = await refusal(asked(desk, method, {**META, "deadline_unix_ms": deadline}))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/deadline_unix_ms")
    assert desk.provider.calls == []


@pytest.mark.parametrize("method", [*ENTITY_METHODS, "subscribe"])
async def test_a_deadline_that_has_passed_beats_everything_after_it(desk, refusal, method):
    now = desk.clock.unix_ms()

    for deadline in (0, now - 1, now):
        meta = {"deadline_unix_ms": deadline}
        error = await refusal(asked(desk, method, meta, kind="unknown", value=7))
        assert error.reason == "DEADLINE_EXCEEDED"
    assert desk.provider.calls == []


@pytest.mark.parametrize("method", ENTITY_METHODS)
async def test_an_unknown_type_beats_bad_metadata_and_a_bad_value(desk, refusal, method):
    error = await refusal(asked(desk, method, {}, kind="unknown", value=7))

    places = {"create": "data/type", "retrieve": "data/types"}
    assert error.reason == "INVALID_REQUEST"
    assert error.pointer == places.get(method, "data/ref/type")
    assert desk.provider.calls == []


@pytest.mark.parametrize("method", [*ENTITY_METHODS, "subscribe"])
async def test_bad_metadata_beats_a_bad_value(desk, refusal, method):
    invalid = await refusal(asked(desk, method, {"team": 7}, value=7))
    missing = await refusal(asked(desk, method, {}, value=7))

    assert (invalid.reason, invalid.pointer) == ("INVALID_REQUEST", "meta/team")
    assert (missing.reason, missing.pointer) == ("INVALID_REQUEST", "meta/team")


@pytest.mark.parametrize("method", ENTITY_METHODS)
async def test_an_unknown_strategy_is_refused_also_where_none_is_used(desk, refusal, method):
    error = await refusal(asked(desk, method, {**META, "strategy": "newest"}))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/strategy")


@pytest.mark.parametrize("method", ["create", "update"])
async def test_a_bad_value_beats_not_found_and_names_its_place(desk, refusal, method):
    error = await refusal(asked(desk, method, {"team": "north"}, value={"txt": 1}))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "entity_types.memo.value")
    assert desk.provider.calls == []


@pytest.mark.parametrize("method", ["update", "delete"])
@pytest.mark.parametrize("bases", [None, 7, [], [7], ["v", "v"]])
async def test_not_found_beats_bad_bases_and_bad_bases_beat_unknown_ones(
    desk, refusal, method, bases
):
    meta = {"team": "north"} if bases is None else {"team": "north", "base_versions": bases}

    assert (await refusal(asked(desk, method, meta))).reason == "NOT_FOUND"

    await desk.create({"text": "a"})
    error = await refusal(asked(desk, method, meta))
    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/base_versions")
    assert len(await desk.changes()) == 1


@pytest.mark.parametrize("method", ["read", "retrieve", "update", "delete"])
async def test_unavailable_state_is_overloaded_and_may_be_retried(desk, refusal, method):
    await desk.create({"text": "a"})
    desk.provider.answers.append(Unavailable(detail="not yet"))

    error = await refusal(asked(desk, method, META))

    assert (error.reason, error.retryable) == ("OVERLOADED", True)
    assert len(await desk.changes()) == 1


@pytest.mark.parametrize("method", ENTITY_METHODS)
async def test_a_deadline_that_passes_in_the_store_is_told_as_such(desk, refusal, method):
    desk.provider.answers.append(DeadlineExceededError("test", method, "too late"))

    assert (await refusal(asked(desk, method, META))).reason == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("failure", [UnavailableError, StoreFullError, CorruptStoreError])
@pytest.mark.parametrize("method", ENTITY_METHODS)
async def test_other_failures_of_the_store_pass_as_they_are(desk, method, failure):
    desk.provider.answers.append(failure("test", method, "broken"))

    with pytest.raises(failure):
        await asked(desk, method, META)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (UnitRefused(state=UnitState.EXPIRED), "WORK_UNIT_EXPIRED"),
        (UnitRefused(state=UnitState.CLOSING), "INVALID_REQUEST"),
        (UnitRefused(state=UnitState.COMMITTED), "INVALID_REQUEST"),
        (UnitRefused(state=UnitState.POLICY_MISMATCH), "INVALID_REQUEST"),
    ],
)
@pytest.mark.parametrize("method", ENTITY_METHODS)
async def test_a_refusing_work_unit_has_its_reason(desk, refusal, method, outcome, reason):
    desk.provider.answers.append(outcome)

    assert (await refusal(asked(desk, method, META))).reason == reason


async def test_a_taken_identity_is_an_idempotency_conflict(desk, refusal):
    desk.provider.answers.append(IdentityTaken())

    assert (await refusal(desk.create({"text": "a"}))).reason == "IDEMPOTENCY_CONFLICT"


@pytest.mark.parametrize("method", ["read", "retrieve"])
async def test_a_deadline_is_looked_at_once_more_after_the_store_answered(desk, refusal, method):
    await desk.create({"text": "a"})
    inner = getattr(desk.provider, method)

    async def late(plan):
        outcome = await inner(plan)
        desk.clock.now_unix_ms += 10
        return outcome

    setattr(desk.provider, method, late)
    meta = {**META, "deadline_unix_ms": desk.clock.unix_ms() + 10}

    assert (await refusal(asked(desk, method, meta))).reason == "DEADLINE_EXCEEDED"


async def test_not_found_beats_a_deadline_that_passed_meanwhile(desk, refusal):
    inner = desk.provider.read

    async def late(plan):
        outcome = await inner(plan)
        desk.clock.now_unix_ms += 10
        return outcome

    desk.provider.read = late

    error = await refusal(desk.read(deadline_unix_ms=desk.clock.unix_ms() + 10))

    assert error.reason == "NOT_FOUND"


@pytest.mark.parametrize("method", MUTATIONS)
async def test_mutations_beyond_the_queue_are_overloaded(open_desk, policy, refusal, method):
    desk = await open_desk(policy(), limits=Limits(max_queued=1))
    root = await desk.create({"text": "a"})
    refusals = []

    async def meanwhile() -> None:
        refusals.append(await refusal(asked(desk, method, META)))

    desk.provider.before_commit.append(meanwhile)
    await desk.update(root, {"text": "b"})

    assert [(error.reason, error.retryable) for error in refusals] == [("OVERLOADED", True)]
    assert await desk.create({"text": "c"}, "c")  # the place is free again


async def test_a_failed_mutation_gives_its_place_in_the_queue_back(open_desk, policy, refusal):
    desk = await open_desk(policy(), limits=Limits(max_queued=1))
    await desk.create({"text": "a"})

    for _ in range(3):
        assert (await refusal(desk.create({"text": "a"}))).reason == "VERSION_CONFLICT"
        assert (await refusal(desk.update(["x"], {"text": "a"}))).reason == "VERSION_CONFLICT"
        assert (await refusal(desk.delete(["x"], "none"))).reason == "NOT_FOUND"


# Retrieval


async def test_a_retrieval_refuses_types_before_instructions(desk, refusal):
    for types in (["memo", "unknown"], ["unknown"]):
        error = await refusal(desk.retrieve("broken", types=types))
        assert (error.reason, error.pointer) == ("INVALID_REQUEST", "data/types")
    error = await refusal(desk.retrieve("broken"))
    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "data/query")
    assert desk.provider.calls == []


async def test_every_type_of_a_retrieval_must_be_selectable(open_desk, policy, plain, refusal):
    linked = plain(
        consistency={
            "acquire": {
                "allow_sources": ["authority"],
                "requirements": [{"kind": "linearizable", "key_by": ["desk"]}],
            }
        }
    )
    other = {"value_schema": True, "rules": [], "fallback": linked}
    fields = {"desk": {"pointer": "/desk", "schema": True}}
    desk = await open_desk(policy(fields=fields, types={"note": other}))

    error = await refusal(desk.retrieve({}))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/desk")
    assert await desk.retrieve({}, types=["memo"]) == ([], None)
    assert await desk.retrieve({}, desk="7") == ([], None)


# What is not offered


UNITS = {
    "consistency": {"snapshot": {"mode": "shared", "key_by": ["unit"]}},
    "publication": {
        "mode": "batch",
        "key_by": ["unit"],
        "close_when": {"kind": "marker", "field": "state", "equals": "commit"},
        "staging_ttl_ms": 1000,
        "on_expire": "discard",
    },
}
NEEDS = {
    "work_units": UNITS,
    "idempotency": {"idempotency": {"mode": "keyed", "key_by": ["unit"]}},
    "causal_reads": {
        "consistency": {
            "acquire": {
                "allow_sources": ["authority"],
                "requirements": [{"kind": "causal_after", "token": "state", "optional": True}],
            }
        }
    },
    "monotonic_reads": {
        "consistency": {"sessions": [{"key_by": ["unit"], "guarantees": ["monotonic_reads"]}]}
    },
    "read_your_writes": {
        "consistency": {"sessions": [{"key_by": ["unit"], "guarantees": ["read_your_writes"]}]}
    },
}


@pytest.mark.parametrize("capability", NEEDS)
async def test_a_policy_that_the_provider_cannot_keep_prevents_the_start(
    open_desk, policy, plain, refusal, capability
):
    """Also where one rule alone asks for it, and whatever requests would select."""
    rule = {
        "name": "special",
        "when": {"all_present": ["unit"]},
        "behavior": plain(**NEEDS[capability]),
    }
    fields = {
        "unit": {"pointer": "/unit", "schema": True},
        "state": {"pointer": "/state", "schema": True},
    }
    document = policy(fields=fields, rules=[rule])

    error = await refusal(open_desk(document, lacks=[capability]))

    assert (error.reason, error.kind, error.rule) == (
        "CONFIGURATION",
        "Capability",
        f"M-{capability}",
    )
    assert error.path.startswith("entity_types.memo.rules[0].behavior.")
    assert await (await open_desk(document, name="other")).create({"text": "a"})


async def test_what_prevents_the_start_is_found_before_the_provider_is_touched(desk, policy, plain):
    provider = type(desk.provider)(desk.provider.inner, desk.engine.runtime)
    provider.lacks = frozenset({"idempotency"})
    keyed = policy(
        fields={"unit": {"pointer": "/unit", "schema": True}},
        fallback=plain(**NEEDS["idempotency"]),
    )

    with pytest.raises(ConfigurationError):
        await Engine.start(
            load_policy(json.dumps(keyed)), provider, clock=desk.clock, ids=SystemIds()
        )

    assert provider.calls == []


async def test_the_warnings_of_the_policy_are_told_with_their_places(desk):
    warnings = desk.engine.warnings

    assert warnings
    assert any(found.startswith("entity_types.memo.fallback.conflict.") for found in warnings)


@pytest.mark.parametrize("claim", ["change_stream", "retrieval", "authority"])
async def test_a_provider_without_the_basics_prevents_the_start(open_desk, refusal, claim):
    error = await refusal(open_desk(lacks=[claim]))

    assert (error.reason, error.kind, error.rule) == ("CONFIGURATION", "Capability", f"M-{claim}")


async def test_a_linearizable_policy_needs_a_provider_that_is(open_desk, policy, plain, refusal):
    linearizable = plain(
        consistency={
            "acquire": {
                "allow_sources": ["authority"],
                "requirements": [{"kind": "linearizable", "key_by": []}],
            }
        }
    )

    error = await refusal(open_desk(policy(fallback=linearizable), lacks=["linearizable_reads"]))

    assert (error.kind, error.rule) == ("Capability", "M-linearizable_reads")


async def test_an_unhealthy_provider_is_shut_down_and_the_first_failure_is_told(desk, policy):
    failing, cleanup = (UnavailableError("test", name, name) for name in ("health", "shutdown"))
    fresh = type(desk.provider)(desk.provider.inner)
    fresh.answers.extend([failing, cleanup])

    async def initialize(retention):
        return desk.engine.runtime

    fresh.initialize = initialize

    with pytest.raises(UnavailableError) as caught:
        await Engine.start(
            load_policy(json.dumps(policy())),
            fresh,
            clock=desk.clock,
            ids=SystemIds(),
        )

    assert caught.value is failing
    assert fresh.calls == ["health", "shutdown"]
    assert "shutdown" in caught.value.__notes__[0]


async def test_a_start_that_fails_after_the_provider_began_shuts_it_down(desk, policy, monkeypatch):
    fresh = type(desk.provider)(desk.provider.inner, desk.engine.runtime)

    def fail(policy):
        raise MemoryError

    monkeypatch.setattr(engine, "Selector", fail)
    with pytest.raises(MemoryError):
        await Engine.start(
            load_policy(json.dumps(policy())), fresh, clock=desk.clock, ids=SystemIds()
        )

    assert fresh.calls == ["initialize", "health", "shutdown"]


async def test_checkpoint_looks_at_its_deadline_before_and_after(desk, refusal):
    await desk.engine.checkpoint(None)
    await desk.engine.checkpoint(desk.clock.unix_ms() + 1)
    assert desk.provider.calls == ["checkpoint"] * 2

    error = await refusal(desk.engine.checkpoint(desk.clock.unix_ms()))
    assert error.reason == "DEADLINE_EXCEEDED"
    assert desk.provider.calls == ["checkpoint"] * 2
