"""Work units request by request: what opens one, what each of its states takes, who sees what."""

from __future__ import annotations

import asyncio
import json

import pytest

U = {"unit": "u"}
DONE = {"unit": "u", "state": "done"}
SCHEMA = {"properties": {"text": {"type": "string"}}}
TTL_MS = 10_000


@pytest.fixture
async def units(open_units):
    return await open_units(schema=SCHEMA)


# What opens a unit


OPENING = {
    "read": lambda units, root: units.read("root", **U),
    "a read of nothing": lambda units, root: units.read("nothing", **U),
    "retrieve": lambda units, root: units.retrieve({}, **U),
    "create": lambda units, root: units.create({}, "new", **U),
    "a create of what exists": lambda units, root: units.create({}, "root", **U),
    "update": lambda units, root: units.update(root, {}, "root", **U),
    "an update of nothing": lambda units, root: units.update(root, {}, "nothing", **U),
    "an update without bases": lambda units, root: units.update(None, {}, "root", **U),
    "an update of an unknown base": lambda units, root: units.update(["x"], {}, "root", **U),
    "delete": lambda units, root: units.delete(root, "root", **U),
    "a repetition": lambda units, root: units.create({}, "keyed", **U, call="1"),
    "a taken identity": lambda units, root: units.create({"x": 1}, "keyed", **U, call="1"),
    "a bad keyed value": lambda units, root: units.create({"text": 1}, "new", **U, call="2"),
}
NOT_OPENING = {
    "a bad value": lambda units, root: units.create({"text": 1}, "new", **U),
    "a bad query": lambda units, root: units.retrieve("x", **U),
    "a bad deadline": lambda units, root: units.read("root", **U, deadline_unix_ms="x"),
    "a past deadline": lambda units, root: units.read("root", **U, deadline_unix_ms=0),
    "an unknown type": lambda units, root: units.read("root", kind="x", **U),
    "an unknown strategy": lambda units, root: units.update(root, {}, "root", **U, strategy="x"),
}


async def is_open(units) -> bool:
    """Return whether the unit was opened before: an entity made now is not in its view then."""
    await units.create({"text": "probe"}, "probe")
    return "probe" not in (await units.retrieve({}, **U))[0]


@pytest.mark.parametrize("ask", OPENING.values(), ids=OPENING)
async def test_any_request_that_reaches_the_store_opens_the_unit(units, refusal, ask):
    root = await units.create({"text": "root"}, "root")
    await units.create({}, "keyed", call="1")

    await asyncio.gather(ask(units, root), return_exceptions=True)

    assert await is_open(units)


@pytest.mark.parametrize("ask", NOT_OPENING.values(), ids=NOT_OPENING)
async def test_a_request_that_is_refused_before_does_not_open_it(units, refusal, ask):
    root = await units.create({"text": "root"}, "root")

    await refusal(ask(units, root))

    assert not await is_open(units)


async def test_a_deadline_that_passes_in_the_store_opens_nothing(units, refusal):
    async def pass_the_deadline():
        units.clock.now_unix_ms += 10

    units.provider.before_commit.append(pass_the_deadline)
    late = units.create({}, "new", **U, deadline_unix_ms=units.clock.unix_ms() + 5)

    assert (await refusal(late)).reason == "DEADLINE_EXCEEDED"
    assert not await is_open(units)


async def test_types_with_one_key_share_a_unit(units, refusal):
    await units.create({}, "a", **U)
    await units.create({}, "b", kind="note", **DONE)

    assert [(change.type, change.id) for change in await units.changes()] == [
        ("memo", "a"),
        ("note", "b"),
    ]


async def test_a_unit_belongs_to_its_scope(units):
    await units.create({"text": "north"}, "a", **U)
    await units.create({"text": "south"}, "a", team="south", **DONE)

    assert (await units.read("a", team="south"))[0] == "active"
    assert [v.value_json for v in (await units.read("a", **U))[1]] == ['{"text":"north"}']


# What each state takes


def every_request(units, root, **meta):
    """Return one request of each kind, none of them closing."""
    return {
        "read": units.read("root", **meta),
        "retrieve": units.retrieve({}, types=[units.type], **meta),
        "create": units.create({}, "new", **meta),
        "update": units.update(root, {}, "root", **meta),
        "delete": units.delete(root, "root", **meta),
        "keyed create": units.create({}, "new", **meta, call="k1"),
        "keyed update": units.update(root, {}, "root", **meta, call="k2"),
        "keyed delete": units.delete(root, "root", **meta, call="k3"),
    }


def every_closing(units, root, **meta):
    requests = every_request(units, root, **meta, state="done")
    for name in ("read", "retrieve"):
        requests.pop(name).close()
    return requests


async def reasons(requests, refusal):
    return {name: (await refusal(request)).reason for name, request in requests.items()}


async def seal(units, refusal, **meta):
    """Leave the unit sealed: its only mutation drifted and may not be reconciled."""
    root = await units.create({"text": "1"}, "root")
    await units.read("root", **U)
    await units.update(root, {"text": "2"}, "root")
    closing = units.update(root, {"text": "3"}, "root", **DONE, strategy="reject", **meta)
    error = await refusal(closing)
    assert error.reason == "VERSION_CONFLICT"
    return root


async def opened(units, refusal):
    root = await units.create({}, "root")
    await units.read("root", **U)
    return root


async def committed(units, refusal):
    root = await units.create({}, "root")
    await units.create({}, "other", **DONE)
    return root


async def expired(units, refusal):
    root = await units.create({}, "root")
    await units.create({}, "other", **U)
    units.clock.now_unix_ms += TTL_MS
    return root


async def expired_when_sealed(units, refusal):
    root = await seal(units, refusal)
    units.clock.now_unix_ms += TTL_MS
    return root


STATES = {
    "closing": (seal, "INVALID_REQUEST"),
    "committed": (committed, "INVALID_REQUEST"),
    "expired": (expired, "WORK_UNIT_EXPIRED"),
    "expired when sealed": (expired_when_sealed, "WORK_UNIT_EXPIRED"),
}


@pytest.mark.parametrize(("reach", "reason"), STATES.values(), ids=STATES)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_ended_unit_takes_nothing(units, refusal, reach, reason, is_restarted):
    root = await reach(units, refusal)
    if is_restarted:
        units = await units.restart()
        if reach is seal:  # what cannot be published is discarded at the start
            reason = "WORK_UNIT_EXPIRED"

    for requests in (every_request(units, root, **U), every_closing(units, root, **U)):
        found = await reasons(requests, refusal)
        assert found == dict.fromkeys(found, reason)


@pytest.mark.parametrize("reach", [opened, *(reach for reach, _ in STATES.values())])
async def test_another_policy_is_refused_in_every_state(open_units, refusal, reach):
    units = await open_units(note={"ttl_ms": TTL_MS + 1})
    root = await reach(units, refusal)
    units.type = "note"

    for requests in (every_request(units, root, **U), every_closing(units, root, **U)):
        found = await reasons(requests, refusal)
        assert found == dict.fromkeys(found, "INVALID_REQUEST")


@pytest.mark.parametrize("reach", [reach for reach, _ in STATES.values()], ids=STATES)
@pytest.mark.parametrize("meta", [U, DONE, {**U, "call": "k"}, {**DONE, "call": "k"}])
async def test_a_bad_value_is_told_before_the_state_of_the_unit(units, refusal, reach, meta):
    root = await reach(units, refusal)

    for request in (
        units.create({"text": 1}, "new", **meta),
        units.update(root, {"text": 1}, "root", **meta),
    ):
        error = await refusal(request)
        assert (error.reason, error.pointer) == ("INVALID_REQUEST", "entity_types.memo.value/text")


async def test_a_unit_lives_to_its_last_millisecond_and_is_never_extended(units, refusal):
    await units.create({}, "a", **U)
    units.clock.now_unix_ms += TTL_MS - 1
    assert (await units.read("a", **U))[0] == "active"
    units.clock.now_unix_ms += 1

    assert (await refusal(units.read("a", **U))).reason == "WORK_UNIT_EXPIRED"
    units.clock.now_unix_ms -= TTL_MS  # a clock that goes back brings nothing back
    assert (await refusal(units.read("a", **U))).reason == "WORK_UNIT_EXPIRED"
    assert (await refusal(units.read("a"))).reason == "NOT_FOUND"
    assert await units.changes() == []


# What is seen and staged


async def test_conflict_rules_hold_over_the_heads_of_the_unit(units, refusal):
    root = await units.create({"text": "a"}, "a")
    await units.read("a", **U)
    outside = await units.update(root, {"text": "b"}, "a")
    staged = await units.update(root, {"text": "c"}, "a", **U, strategy="reject")

    error = await refusal(units.update(root, {"text": "d"}, "a", **U, strategy="reject"))
    assert error.current_versions == (staged.version,)
    error = await refusal(units.update([outside], {"text": "d"}, "a", **U))
    assert error.current_versions == (staged.version,)  # a later outside version is unknown here
    error = await refusal(units.create({}, "a", **U))
    assert error.current_versions == (staged.version,)
    assert (await refusal(units.delete(staged, "a"))).current_versions == (outside.version,)


async def test_what_others_published_since_is_not_there(units, refusal):
    await refusal(units.read("b", **U))
    outside = await units.create({"text": "out"}, "b")

    assert (await refusal(units.read("b", **U))).reason == "NOT_FOUND"
    assert (await refusal(units.update(outside, {}, "b", **U))).reason == "NOT_FOUND"
    inside = await units.create({"text": "in"}, "b", **U)
    assert [v.version for v in (await units.read("b", **U))[1]] == [inside.version]
    assert [v.version for v in (await units.read("b"))[1]] == [outside.version]


async def test_units_do_not_see_each_other(units, refusal):
    await units.create({"text": "1"}, "a", unit="one")
    await units.create({"text": "2"}, "a", unit="two")

    seen = [(await units.read("a", unit=name))[1][0].value_json for name in ("one", "two")]
    assert seen == ['{"text":"1"}', '{"text":"2"}']
    assert (await refusal(units.read("a", unit="three"))).reason == "NOT_FOUND"


async def test_a_staged_version_is_a_base_before_and_after_the_publication(units):
    first = await units.create({"text": "one"}, "a", **U)
    second = await units.update(first, {"text": "one two"}, "a", **U)
    await units.update(second, {"text": "one two three"}, "a", **DONE)

    await units.update(first, {"text": "zero one"}, "a")

    assert list((await units.heads("a")).values()) == [{"text": "zero one two three"}]


async def test_one_change_an_entity_with_the_metadata_of_its_last_mutation(units):
    first = await units.create({"text": "1"}, "a", **U)
    second = await units.update(first, {"text": "2"}, "a", **U, strategy="mvcc")
    await units.create({"text": "b"}, "b", **DONE)

    change, _ = await units.changes()
    assert (change.id, change.kind, change.head_versions) == ("a", "created", (second.version,))
    assert change.causal_token == second.version
    assert json.loads(change.event_meta_json) == {
        **units.meta,
        **U,
        "strategy": "mvcc",
        "base_versions": [first.version],
    }


async def test_what_is_created_and_deleted_in_a_unit_is_no_change(units):
    made = await units.create({"text": "a"}, "a", **U)
    await units.delete(made, "a", **U)
    await units.create({"text": "b"}, "b", **DONE)

    assert [change.id for change in await units.changes()] == ["b"]
    assert (await units.read("a"))[0] == "deleted"
    assert await units.retrieve({}) == (["b"], None)


@pytest.mark.parametrize("kind", ["create", "update", "delete"])
async def test_any_mutation_closes(units, kind):
    root = await units.create({"text": "root"}, "root")
    await units.create({"text": "staged"}, "staged", **U)

    closing = {
        "create": lambda: units.create({"text": "last"}, "last", **DONE),
        "update": lambda: units.update(root, {"text": "last"}, "root", **DONE),
        "delete": lambda: units.delete(root, "root", **DONE),
    }[kind]
    closed = await closing()

    assert (await units.read("staged"))[0] == "active"
    assert closed.version in await units.heads(closed.id)


async def test_a_marker_on_a_read_closes_nothing(units):
    await units.create({"text": "a"}, "a", **U)
    await units.read("a", **DONE)
    await units.retrieve({}, **DONE)

    assert await units.changes() == []
    assert (await units.read("a", **U))[0] == "active"


async def test_a_closing_mutation_that_fails_leaves_the_unit_open(units, refusal):
    root = await units.create({"text": "root"}, "root")
    await units.create({}, "a", **U)

    async def pass_the_deadline():
        units.clock.now_unix_ms += 10

    for request, reason in (
        (units.create({"text": 1}, "b", **DONE), "INVALID_REQUEST"),
        (units.create({}, "a", **DONE), "VERSION_CONFLICT"),
        (units.update(root, {}, "nothing", **DONE), "NOT_FOUND"),
        (units.update(None, {}, "root", **DONE), "INVALID_REQUEST"),
        (units.update(["x"], {}, "root", **DONE), "VERSION_CONFLICT"),
    ):
        assert (await refusal(request)).reason == reason
    units.provider.before_commit.append(pass_the_deadline)
    late = units.create({}, "b", **DONE, deadline_unix_ms=units.clock.unix_ms() + 5)
    assert (await refusal(late)).reason == "DEADLINE_EXCEEDED"

    await units.create({}, "c", **U)
    await units.create({}, "d", **DONE)
    assert [change.id for change in await units.changes()] == ["root", "a", "c", "d"]


async def test_a_retrieval_has_one_view(open_units, refusal):
    units = await open_units(note={"has_units": False})
    await units.create({"text": "a"}, "a", **U)

    for types in (None, ["memo", "note"]):
        error = await refusal(units.retrieve({}, types=types, **U))
        assert (error.reason, error.pointer) == ("INVALID_REQUEST", "data/types")
    assert await units.retrieve({}, types=["memo"], **U) == (["a"], None)
    assert await units.retrieve({}, types=["note"], **U) == ([], None)


async def test_pages_of_a_unit_go_on_over_its_view(units):
    for name in "abc":
        await units.create({"text": name}, name, **U)
    query = {"order": "id_asc"}
    ids, cursor = await units.retrieve(query, limit=2, **U)
    await units.create({"text": "late"}, "bb")

    assert ids == ["a", "b"]
    assert await units.retrieve({**query, "cursor": cursor}, limit=2, **U) == (["c"], None)


async def test_members_that_race_in_a_unit_merge_in_it(units):
    root = await units.create({"text": "red apple"}, "a", **U)

    async def other_member():
        await units.rival.update(root, {"text": "red pear"}, "a", **U)

    units.provider.before_commit.append(other_member)
    units.provider.calls.clear()
    await units.update(root, {"text": "green apple"}, "a", **DONE)

    assert units.provider.calls == ["read", "commit", "commit"]
    assert list((await units.heads("a")).values()) == [{"text": "green pear"}]
