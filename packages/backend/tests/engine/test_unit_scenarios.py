"""The numbered scenarios about work units, on a policy by which a request may belong to one."""

from __future__ import annotations

import pytest

U = {"unit": "u"}
DONE = {"unit": "u", "state": "done"}


@pytest.mark.scenario(13)
async def test_a_unit_is_private_until_it_is_closed(units, refusal):
    await units.create({"text": "a"}, "a", **U)

    assert (await refusal(units.read("a"))).reason == "NOT_FOUND"
    assert (await units.read("a", **U))[0] == "active"

    units = await units.restart()
    assert (await units.read("a", **U))[0] == "active"
    await units.create({"text": "b"}, "b", **DONE)

    assert [(await units.read(name))[0] for name in "ab"] == ["active", "active"]
    for request in (units.read("a", **U), units.retrieve({}, **U), units.create({}, "c", **U)):
        assert (await refusal(request)).reason == "INVALID_REQUEST"


@pytest.mark.scenario(14)
async def test_a_drifted_close_is_merged(units):
    root = await units.create({"text": "red apple", "mark": 0})
    await units.read(**U)
    outside = await units.update(root, {"text": "red pear", "mark": 1})

    closed = await units.update(root, {"text": "green apple", "mark": 2}, **DONE)

    heads = await units.heads()
    assert closed.version in heads
    assert outside.version not in heads
    assert sorted(heads.values(), key=str) == [
        {"text": "green pear", "mark": 1},
        {"text": "green pear", "mark": 2},
    ]
    assert heads[closed.version]["mark"] == 2


@pytest.mark.scenario(15)
async def test_a_drifted_close_under_reject_names_the_outside_version(units, refusal):
    root = await units.create({"text": "a"})
    await units.read(**U)
    outside = await units.update(root, {"text": "b"})

    error = await refusal(units.update(root, {"text": "c"}, **DONE, strategy="reject"))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == ()
    assert [(c.entity_type, c.entity_id, c.current_versions) for c in error.conflicts] == [
        ("memo", "a", (outside.version,))
    ]
    assert (await refusal(units.create({}, "b", **U))).reason == "INVALID_REQUEST"
    assert list(await units.heads()) == [outside.version]


@pytest.mark.scenario(16)
async def test_every_rejected_entity_is_named_the_closing_one_last(units, refusal):
    roots = {name: await units.create({"text": name}, name) for name in "ab"}
    staged = {
        name: await units.update(roots[name], {"text": "in"}, name, **U, strategy="reject")
        for name in "ab"
    }
    outside = {name: await units.update(roots[name], {"text": "out"}, name) for name in "ab"}

    closing = units.update(staged["a"], {"text": "again"}, "a", **DONE, strategy="reject")
    error = await refusal(closing)

    assert [(c.entity_id, c.current_versions) for c in error.conflicts] == [
        ("b", (outside["b"].version,)),
        ("a", (outside["a"].version,)),
    ]


@pytest.mark.scenario(17)
async def test_two_members_merge_inside_the_unit(units):
    root = await units.create({"text": "red apple", "mark": 0})
    await units.update(root, {"text": "red pear", "mark": 1}, **U)
    closed = await units.update(root, {"text": "green apple", "mark": 2}, **DONE)

    heads = await units.heads()
    assert len(heads) == 2
    assert {value["text"] for value in heads.values()} == {"green pear"}
    assert closed.version in heads


@pytest.mark.scenario(18)
async def test_the_view_of_a_unit_is_fixed_by_its_first_request(units):
    first = await units.create({"text": "1"}, "a")
    await units.create({"text": "1"}, "b")
    assert await units.read("a", **U)
    outside = await units.update(list(await units.heads("b")), {"text": "2"}, "b")
    units.clock.now_unix_ms += 1
    await units.subscribe()

    assert [value.value_json for value in (await units.read("b", **U))[1]] == ['{"text":"1"}']
    await units.update(first, {"text": "3"}, "a", **DONE)
    assert list(await units.heads("b")) == [outside.version]


@pytest.mark.scenario(19)
async def test_retrieval_in_a_unit_sees_what_is_staged_over_the_baseline(units):
    root = await units.create({"text": "old a"}, "a")
    await units.create({"text": "old b"}, "b")
    await units.update(root, {"text": "new a"}, "a", **U)
    await units.create({"text": "new c"}, "c", **U)
    await units.create({"text": "late"}, "d")

    assert await units.retrieve({"text": "new", "order": "id_asc"}, **U) == (["a", "c"], None)
    assert await units.retrieve({"text": "old", "order": "id_asc"}, **U) == (["b"], None)
    assert await units.retrieve({"order": "id_asc"}, **U) == (["a", "b", "c"], None)
    assert await units.retrieve({"text": "old", "order": "id_asc"}) == (["a", "b"], None)


@pytest.mark.scenario(20)
async def test_a_staged_record_dies_with_its_unit(units, refusal):
    mutation = {"value": {"text": "a"}, "name": "a", "call": "1"}
    await units.create(**mutation, **U)
    units.clock.now_unix_ms += 10_000

    assert (await refusal(units.create(**mutation, **U))).reason == "WORK_UNIT_EXPIRED"
    assert (await units.create(**mutation)).id == "a"


@pytest.mark.scenario(21)
@pytest.mark.parametrize("call", [{}, {"call": "1"}])
async def test_a_unit_of_another_policy_is_refused(open_units, refusal, call):
    desk = await open_units(note={"ttl_ms": 9_999})
    await desk.create({"text": "a"}, **U)

    for request in (
        desk.create({"text": "a"}, kind="note", **U, **call),
        desk.create({"text": "a"}, kind="note", **DONE, **call),
        desk.read(kind="note", **U, **call),
        desk.retrieve({}, types=["note"], **U, **call),
        desk.retrieve({}, **U),
    ):
        assert (await refusal(request)).reason == "INVALID_REQUEST"


@pytest.mark.scenario(22)
async def test_the_events_of_a_unit_arrive_together_the_closing_entity_last(units):
    await units.create({"text": "b"}, "b", **U)
    assert await units.changes() == []
    await units.create({"text": "a"}, "a", **DONE)

    changes = await units.changes()
    assert [(change.id, change.kind) for change in changes] == [("b", "created"), ("a", "created")]
    assert [(await units.read(name))[0] for name in "ab"] == ["active", "active"]
