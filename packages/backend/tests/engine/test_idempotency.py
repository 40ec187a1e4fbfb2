"""Mutations asked for twice: what is told again, what is refused, and what nobody remembers."""

from __future__ import annotations

import asyncio
import json

import pytest
from patchouli.backend import Engine, EngineError, load_policy
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

RETENTION_MS = 60_000
SCHEMA = {"type": "object", "required": ["text"]}
FIELDS = {
    "call": {"pointer": "/call", "schema": True},
    "seen": {"pointer": "/ctx/seen", "schema": True},
}
CAUSAL = {
    "consistency": {
        "acquire": {
            "allow_sources": ["authority"],
            "requirements": [{"kind": "causal_after", "token": "seen", "optional": True}],
        }
    }
}


@pytest.fixture
def keyed(policy, plain):
    """The builder of a policy whose mutations are named by `call`."""

    def build(*, schema=SCHEMA, **sections):
        sections.setdefault("idempotency", {"mode": "keyed", "key_by": ["call"]})
        return policy(schema=schema, fields=FIELDS, fallback=plain(**sections))

    return build


@pytest.fixture
async def desk(open_desk, keyed):
    return await open_desk(keyed())


@pytest.fixture
async def causal(open_desk, keyed):
    """An engine whose mutations may ask for a state besides being named."""
    return await open_desk(keyed(**CAUSAL))


def create(desk, value, name="a", *, call="1", **meta):
    meta = {**desk.meta, "call": call, **meta}
    data = CreateData(type="memo", id=name, value=value)
    return desk.engine.create(CreateParams(meta=meta, data=data))


def update(desk, bases, value, *, call="2", **meta):
    meta = {**desk.meta, "call": call, "base_versions": bases, **meta}
    data = UpdateData(ref=Ref(type="memo", id="a"), value=value)
    return desk.engine.update(UpdateParams(meta=meta, data=data))


def delete(desk, bases, *, call="3", **meta):
    meta = {**desk.meta, "call": call, "base_versions": bases, **meta}
    return desk.engine.delete(
        DeleteParams(meta=meta, data=DeleteData(ref=Ref(type="memo", id="a")))
    )


async def calls_of(desk, awaitable):
    desk.provider.calls.clear()
    return await awaitable, list(desk.provider.calls)


async def engine_with(desk, policy):
    """Return a desk at an engine over the same store, under another policy."""
    provider = type(desk.provider)(desk.provider.inner, desk.engine.runtime)
    engine = await Engine.start(
        load_policy(json.dumps(policy)), provider, clock=desk.clock, ids=SystemIds()
    )
    return type(desk)(engine, provider, desk.clock, desk.meta)


# The identity


@pytest.mark.parametrize("mutation", ["create", "update", "delete"])
async def test_a_mutation_without_its_identity_is_refused_before_anything_else(
    desk, refusal, mutation
):
    meta = {"team": "north", "base_versions": ["v"]}
    ref = Ref(type="memo", id="a")
    requests = {
        "create": lambda: desk.engine.create(
            CreateParams(meta=meta, data=CreateData(type="memo", id="a", value="no memo"))
        ),
        "update": lambda: desk.engine.update(
            UpdateParams(meta=meta, data=UpdateData(ref=ref, value="no memo"))
        ),
        "delete": lambda: desk.engine.delete(DeleteParams(meta=meta, data=DeleteData(ref=ref))),
    }

    error = await refusal(requests[mutation]())

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "meta/call")
    assert desk.provider.calls == []


async def test_reads_need_no_identity(desk):
    await create(desk, {"text": "a"})

    assert (await desk.read())[0] == "active"
    assert await desk.retrieve({}) == (["a"], None)


@pytest.mark.parametrize("call", [None, 7, {"n": 1}, ["x"], True])
async def test_an_identity_is_any_value(desk, call):
    first = await create(desk, {"text": "a"}, call=call)

    assert await create(desk, {"text": "a"}, call=call) == first


async def test_an_identity_belongs_to_one_scope(desk):
    await create(desk, {"text": "a"})

    other = await create(desk, {"text": "b"}, team="south")

    assert json.loads(other.entity.value_json) == {"text": "b"}


# What is told again


@pytest.mark.scenario(9)
async def test_an_equal_create_is_told_the_same_and_makes_no_event(desk, refusal):
    first = await create(desk, {"text": "a"}, None)

    again = await create(desk, {"text": "a"}, None)
    error = await refusal(create(desk, {"text": "b"}, None))

    assert again == first
    assert again.result_json == first.result_json
    assert error.reason == "IDEMPOTENCY_CONFLICT"
    assert len(await desk.changes()) == 1


async def test_each_mutation_is_told_again_whatever_became_of_the_entity(desk):
    made = await create(desk, {"text": "a"})
    changed = await update(desk, [made.entity.version], {"text": "b"})
    gone = await delete(desk, [changed.entity.version])

    assert await create(desk, {"text": "a"}) == made
    assert await update(desk, [made.entity.version], {"text": "b"}) == changed
    assert await delete(desk, [changed.entity.version]) == gone

    assert gone.entity.value_json is None
    assert list(await desk.heads()) == [gone.entity.version]
    assert len(await desk.changes()) == 3


async def test_a_merged_update_is_told_again_as_it_was_merged(desk):
    made = await create(desk, {"text": "red apple"})
    await update(desk, [made.entity.version], {"text": "red pear"})

    merged = await update(desk, [made.entity.version], {"text": "green apple"}, call="4")
    again = await update(desk, [made.entity.version], {"text": "green apple"}, call="4")

    assert json.loads(again.entity.value_json) == {"text": "green pear"}
    assert again.result_json == merged.result_json


async def test_what_is_told_is_the_result_of_the_wire(causal):
    made = await create(causal, {"text": "ä\u0000", "n": 1.0})

    assert made.result_json is not None
    assert json.loads(made.result_json) == {
        "meta": {"ctx": {"seen": made.entity.version}},
        "data": {
            "entity": {
                "state": "active",
                "ref": {"type": "memo", "id": "a"},
                "version": made.entity.version,
                "value": {"text": "ä\u0000", "n": 1.0},
            }
        },
    }
    gone = await delete(causal, [made.entity.version])
    assert json.loads(gone.result_json)["data"] == {
        "entity": {
            "state": "deleted",
            "ref": {"type": "memo", "id": "a"},
            "version": gone.entity.version,
        }
    }


async def test_behaviors_without_identity_carry_no_stored_answer(open_desk):
    desk = await open_desk()

    made = await create(desk, {"text": "a"})

    assert made.result_json is None
    assert desk.provider.commits[0].idempotency is None


async def test_metadata_makes_no_other_mutation(causal):
    made = await create(causal, {"text": "a"})
    changed = await update(causal, [made.entity.version], {"text": "b"})

    later = causal.clock.unix_ms() + 1000
    for meta in (
        {"bases": [changed.entity.version]},
        {"bases": "malformed"},
        {"bases": ["unknown"], "strategy": "reject"},
        {"bases": [made.entity.version], "deadline_unix_ms": later},
        {"bases": [made.entity.version], "ctx": {"seen": made.entity.version}},
    ):
        bases = meta.pop("bases")
        assert await update(causal, bases, {"text": "b"}, **meta) == changed


async def test_records_survive_a_restart(desk):
    made = await create(desk, {"text": "a"})

    desk = await desk.restart()

    assert await create(desk, {"text": "a"}) == made


async def test_a_replay_is_told_when_the_schema_has_changed_since(desk, keyed):
    made = await create(desk, {"text": "a"})
    stricter = await engine_with(desk, keyed(schema={"type": "object", "required": ["title"]}))

    assert await create(stricter, {"text": "a"}) == made


# What is refused


@pytest.mark.parametrize(
    "other",
    [
        lambda desk, _: create(desk, {"text": "b"}),
        lambda desk, _: create(desk, {"text": "a", "more": 1}),
        lambda desk, _: create(desk, {"text": "a"}, "b"),
        lambda desk, _: create(desk, {"text": "a"}, None),
        lambda desk, made: update(desk, [made.entity.version], {"text": "a"}, call="1"),
        lambda desk, made: delete(desk, [made.entity.version], call="1"),
        lambda desk, _: delete(desk, "malformed", call="1"),
        lambda desk, _: update(desk, ["unknown"], {"text": "a"}, call="1"),
    ],
    ids=["value", "member", "id", "no id", "update", "delete", "bad bases", "unknown base"],
)
async def test_another_mutation_under_the_identity_is_refused(desk, refusal, other):
    made = await create(desk, {"text": "a"})

    error = await refusal(other(desk, made))

    assert error.reason == "IDEMPOTENCY_CONFLICT"
    assert list(await desk.heads()) == [made.entity.version]
    assert len(await desk.changes()) == 1


async def test_an_id_that_is_given_is_not_one_that_was_chosen(desk, refusal):
    made = await create(desk, {"text": "a"}, None)

    error = await refusal(create(desk, {"text": "a"}, made.entity.id))

    assert error.reason == "IDEMPOTENCY_CONFLICT"


async def test_equal_data_is_equal_json(desk, refusal):
    await create(desk, {"text": "a", "n": 1, "m": [1.5]})

    assert await create(desk, {"m": [1.5], "n": 1, "text": "a"})
    error = await refusal(create(desk, {"text": "a", "n": 1.0, "m": [1.5]}))
    assert error.reason == "IDEMPOTENCY_CONFLICT"


async def test_the_lookup_comes_before_the_schema(desk, refusal):
    await create(desk, {"text": "a"})

    taken = await refusal(create(desk, {"bad": 1}))
    _, calls = await calls_of(desk, refusal(create(desk, {"bad": 1})))
    free = await refusal(create(desk, {"bad": 1}, call="9"))
    taken_update = await refusal(update(desk, ["v"], {"bad": 1}, call="1"))
    free_update = await refusal(update(desk, ["v"], {"bad": 1}, call="9"))

    assert (taken.reason, taken_update.reason) == ("IDEMPOTENCY_CONFLICT",) * 2
    assert calls == ["read"]
    assert (free.reason, free_update.reason) == ("INVALID_REQUEST",) * 2
    assert free.pointer.startswith("entity_types.memo.value")
    assert free_update.pointer == free.pointer


async def test_the_lookup_comes_before_the_entity(desk, refusal):
    await create(desk, {"text": "a"})
    missing = Ref(type="memo", id="missing")

    error = await refusal(
        desk.engine.update(
            UpdateParams(
                meta={"team": "north", "call": "1"}, data=UpdateData(ref=missing, value={})
            )
        )
    )

    assert error.reason == "IDEMPOTENCY_CONFLICT"


async def test_a_bad_value_beats_an_unknown_entity(desk, refusal):
    error = await refusal(update(desk, ["v"], {"bad": 1}))

    assert error.reason == "INVALID_REQUEST"


@pytest.mark.scenario(9)
async def test_a_replay_never_passes_over_what_must_be_observed(causal, refusal):
    made = await create(causal, {"text": "a"})
    unknown = {"ctx": {"seen": "unknown"}}

    errors = [
        await refusal(create(causal, {"text": "a"}, **unknown)),
        await refusal(create(causal, {"text": "other"}, **unknown)),
        await refusal(create(causal, {"bad": 1}, **unknown)),
        await refusal(update(causal, ["v"], {"text": "a"}, call="1", **unknown)),
        await refusal(delete(causal, ["v"], call="1", **unknown)),
    ]

    assert [error.reason for error in errors] == ["OVERLOADED"] * 5
    assert await create(causal, {"text": "a"}) == made
    assert await create(causal, {"text": "a"}, ctx={"seen": made.entity.version}) == made


# What nobody remembers


async def test_a_refused_mutation_leaves_its_identity_free(desk, refusal):
    other = await create(desk, {"text": "a"}, call="0")

    async def late() -> None:
        desk.clock.now_unix_ms += 10

    deadline = desk.clock.unix_ms() + 10
    assert (await refusal(create(desk, {"text": "b"}))).reason == "VERSION_CONFLICT"
    assert (await refusal(update(desk, "none", {"text": "b"}))).reason == "INVALID_REQUEST"
    unknown = await refusal(update(desk, ["unknown"], {"text": "b"}))
    assert unknown.current_versions == (other.entity.version,)
    desk.provider.before_commit.append(late)
    error = await refusal(create(desk, {"text": "c"}, "late", deadline_unix_ms=deadline))
    assert error.reason == "DEADLINE_EXCEEDED"

    assert await create(desk, {"text": "d"}, "d")
    assert await update(desk, [other.entity.version], {"text": "e"})
    assert len(await desk.changes()) == 3


async def test_a_mutation_of_a_missing_entity_leaves_its_identity_free(desk, refusal):
    assert (await refusal(update(desk, ["v"], {"text": "a"}, call="1"))).reason == "NOT_FOUND"
    assert (await refusal(delete(desk, ["v"], call="1"))).reason == "NOT_FOUND"

    assert await create(desk, {"text": "a"}, call="1")


async def test_an_identity_is_free_again_when_its_time_is_over(desk, refusal):
    made = await create(desk, {"text": "a"})

    desk.clock.now_unix_ms += RETENTION_MS - 1
    assert await create(desk, {"text": "a"}) == made
    desk.clock.now_unix_ms += 1
    anew = await create(desk, {"text": "b"}, "b")

    assert anew.entity.version != made.entity.version
    assert (await refusal(create(desk, {"text": "a"}))).reason == "IDEMPOTENCY_CONFLICT"


async def test_after_its_time_an_equal_create_meets_the_entity(desk, refusal):
    made = await create(desk, {"text": "a"})

    desk.clock.now_unix_ms += RETENTION_MS
    error = await refusal(create(desk, {"text": "a"}))

    assert error.current_versions == (made.entity.version,)


async def test_a_clock_that_jumps_loses_no_record_and_brings_none_back(desk, refusal):
    start = desk.clock.unix_ms()
    made = await create(desk, {"text": "a"})

    for jump in (-10 * RETENTION_MS, RETENTION_MS - 1, 0):
        desk.clock.now_unix_ms = start + jump
        assert await create(desk, {"text": "a"}) == made

    desk.clock.now_unix_ms = start + RETENTION_MS
    anew = await create(desk, {"text": "b"}, "b")
    for jump in (0, -10 * RETENTION_MS):
        desk.clock.now_unix_ms = start + jump
        assert await create(desk, {"text": "b"}, "b") == anew
        assert (await refusal(create(desk, {"text": "a"}))).reason == "IDEMPOTENCY_CONFLICT"


async def test_the_end_of_a_record_saturates(open_desk, keyed):
    document = keyed()
    document["retention"]["idempotency_seconds"] = 2**53 // 1000
    desk = await open_desk(document)
    desk.clock.now_unix_ms = 2**63 - 10

    await create(desk, {"text": "a"})

    assert desk.provider.commits[0].idempotency.expires_at_unix_ms == 2**63 - 1


# Races


async def test_of_many_equal_requests_one_is_accepted_and_all_are_told_so(desk):
    results = await asyncio.gather(*(create(desk, {"text": "a"}, None) for _ in range(20)))

    assert {result.result_json for result in results} == {results[0].result_json}
    assert len(await desk.changes()) == 1


async def test_of_different_requests_under_one_identity_one_is_accepted(desk):
    results = await asyncio.gather(
        *(create(desk, {"text": f"{n}"}, f"{n}") for n in range(10)), return_exceptions=True
    )

    refusals = [result for result in results if isinstance(result, EngineError)]
    assert [error.reason for error in refusals] == ["IDEMPOTENCY_CONFLICT"] * 9
    assert len(await desk.changes()) == 1


async def test_an_equal_update_that_was_faster_answers_for_both(desk):
    made = await create(desk, {"text": "a"})
    first = []

    async def be_faster() -> None:
        first.append(await update(desk.rival, [made.entity.version], {"text": "b"}))

    desk.provider.before_commit.append(be_faster)
    second = await update(desk, [made.entity.version], {"text": "b"})

    assert second.result_json == first[0].result_json
    assert list(await desk.heads()) == [second.entity.version]
    assert len(await desk.changes()) == 2


async def test_another_update_that_was_faster_takes_the_identity(desk, refusal):
    made = await create(desk, {"text": "a"})

    async def be_faster() -> None:
        await update(desk.rival, [made.entity.version], {"text": "b"})

    desk.provider.before_commit.append(be_faster)
    error = await refusal(update(desk, [made.entity.version], {"text": "c"}))

    assert error.reason == "IDEMPOTENCY_CONFLICT"
    assert list((await desk.heads()).values()) == [{"text": "b"}]


async def test_a_race_stores_the_answer_of_the_attempt_that_won(desk):
    made = await create(desk, {"text": "red apple"})

    async def be_faster() -> None:
        await update(desk.rival, [made.entity.version], {"text": "red pear"}, call="other")

    desk.provider.before_commit.append(be_faster)
    merged = await update(desk, [made.entity.version], {"text": "green apple"})

    assert json.loads(merged.entity.value_json) == {"text": "green pear"}
    assert await update(desk, ["any"], {"text": "green apple"}) == merged


async def test_equal_updates_that_take_turns_are_one(desk):
    """Those that read before the first commit meet its record there, and the others before."""
    made = await create(desk, {"text": "a"})

    results = await asyncio.gather(
        *(update(desk, [made.entity.version], {"text": "b"}) for _ in range(20))
    )

    assert {result.result_json for result in results} == {results[0].result_json}
    assert len(await desk.changes()) == 2


async def test_a_mutation_that_waited_for_its_turn_looks_for_its_record_again(desk):
    """It lost a race, lined up, and meanwhile an equal one was accepted."""
    made = await create(desk, {"text": "a"})
    base = [made.entity.version]
    tasks = []

    async def race() -> None:
        await update(desk.rival, base, {"text": "r"}, call="r", strategy="mvcc")

    async def arrive() -> None:
        """The first is at its second attempt; the second has lost a race and is in line."""
        await update(desk.rival, base, {"text": "s"}, call="s", strategy="mvcc")
        tasks.append(asyncio.create_task(second()))
        for _ in range(3):
            await asyncio.sleep(0)

    async def second():
        return await update(desk, base, {"text": "x"}, call="x", strategy="mvcc")

    desk.provider.before_commit.extend([race, arrive])
    first = await update(desk, base, {"text": "x"}, call="x", strategy="mvcc")
    (again,) = await asyncio.gather(*tasks)

    assert again.result_json == first.result_json


# Costs


async def test_the_calls_of_a_keyed_mutation_are_those_of_a_plain_one(desk):
    made, calls = await calls_of(desk, create(desk, {"text": "a"}))
    assert calls == ["commit"]
    _, calls = await calls_of(desk, create(desk, {"text": "a"}))
    assert calls == ["commit"]
    changed, calls = await calls_of(desk, update(desk, [made.entity.version], {"text": "b"}))
    assert calls == ["read", "commit"]
    _, calls = await calls_of(desk, update(desk, [made.entity.version], {"text": "b"}))
    assert calls == ["read"]
    _, calls = await calls_of(desk, delete(desk, [changed.entity.version]))
    assert calls == ["read", "commit"]


async def test_a_create_reads_only_where_it_must_observe_something(causal):
    made, calls = await calls_of(causal, create(causal, {"text": "a"}))
    assert calls == ["commit"]
    seen = {"ctx": {"seen": made.entity.version}}
    _, calls = await calls_of(causal, create(causal, {"text": "b"}, "b", call="b", **seen))
    assert calls == ["read", "commit"]
    _, calls = await calls_of(causal, create(causal, {"text": "b"}, "b", call="b", **seen))
    assert calls == ["read"]


async def test_a_record_does_not_grow_with_the_request(desk):
    await create(desk, {"text": "a" * 100_000})

    (record,) = [commit.idempotency for commit in desk.provider.commits]
    assert len(record.request_json) < 100
