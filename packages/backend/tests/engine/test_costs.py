"""How often the provider is asked, method by method, and what is asked of it."""

from __future__ import annotations

import pytest


@pytest.fixture
def calls(desk):
    async def count(awaitable):
        desk.provider.calls.clear()
        await awaitable
        return desk.provider.calls

    return count


async def test_a_create_is_one_call(desk, calls):
    assert await calls(desk.create({"text": "a"})) == ["commit"]


async def test_a_refused_create_is_one_call(desk, calls, refusal):
    await desk.create({"text": "a"})

    assert await calls(refusal(desk.create({"text": "b"}))) == ["commit"]


async def test_a_read_is_one_call(desk, calls):
    await desk.create({"text": "a"})

    assert await calls(desk.read()) == ["read"]


async def test_a_retrieval_is_one_call(desk, calls):
    await desk.create({"text": "a"})

    assert await calls(desk.retrieve({})) == ["retrieve"]


async def test_an_update_and_a_delete_are_two_calls(desk, calls):
    root = await desk.create({"text": "a"})
    assert await calls(desk.update(root, {"text": "b"})) == ["read", "commit"]
    (head,) = await desk.heads()
    assert await calls(desk.delete([head])) == ["read", "commit"]


async def test_a_merge_is_two_calls(desk, calls):
    root = await desk.create({"text": "red apple"})
    await desk.update(root, {"text": "red pear"})

    assert await calls(desk.update(root, {"text": "green apple"})) == ["read", "commit"]


async def test_what_fails_on_its_own_asks_nothing(desk, calls, refusal):
    assert await calls(refusal(desk.read(strategy=1))) == []
    assert await calls(refusal(desk.retrieve("no"))) == []
    assert await calls(refusal(desk.update(["v"], {"text": "a"}, deadline_unix_ms=0))) == []


async def test_history_is_asked_for_only_where_it_may_be_merged(open_desk, policy):
    desk = await open_desk(policy())
    await desk.create({"text": "a"})
    for strategy in ("merge", "mvcc", "reject"):
        (head, *_) = await desk.heads()
        await desk.update([head], {"text": strategy}, strategy=strategy)
    (head, *_) = await desk.heads()
    await desk.delete([head])
    asked = [plan.with_divergence for plan in desk.provider.reads if plan.base_versions]
    assert asked == [True, False, False, False]

    bare = await open_desk(policy(conflict={"merge": []}), name="bare")
    root = await bare.create({"text": "a"})
    await bare.update(root, {"text": "b"})
    assert not any(plan.with_divergence for plan in bare.provider.reads)


async def test_a_commit_carries_the_new_versions_and_nothing_else(desk):
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})
    for number in range(5):
        head = await desk.update(head, {"text": f"{number}"})

    assert [len(commit.new_versions) for commit in desk.provider.commits] == [1] * 7
    assert desk.provider.commits[-1].expected_heads == desk.provider.commits[-2].head_versions


async def test_a_page_asks_for_the_response_bound(open_desk, policy):
    desk = await open_desk(policy())
    await desk.retrieve({}, limit=7)

    (plan,) = desk.provider.retrievals
    assert (plan.limit, plan.limit_bytes) == (7, 4 * 1024 * 1024)


# Work units


@pytest.fixture
def counted(units):
    async def count(awaitable):
        units.provider.calls.clear()
        await awaitable
        return list(units.provider.calls)

    return count


@pytest.mark.parametrize("unit", [{"unit": "u"}, {"unit": "u", "call": "k"}])
async def test_a_request_of_a_unit_costs_what_it_costs_outside(units, counted, unit):
    assert await counted(units.create({"text": "a"}, **unit)) == ["commit"]
    bases = [variant.version for variant in (await units.read(**unit))[1]]
    assert await counted(units.read(**unit)) == ["read"]
    assert await counted(units.retrieve({}, **unit)) == ["retrieve"]
    unit = {**unit, "call": "l"} if "call" in unit else unit
    assert await counted(units.update(bases, {"text": "b"}, **unit)) == ["read", "commit"]


async def test_a_close_costs_no_call_more(units, counted):
    for number in range(5):
        await units.create({}, f"{number}", unit="u")

    assert await counted(units.create({}, unit="u", state="done")) == ["commit"]


async def test_a_drifted_close_is_one_call_more_however_many_entities_drifted(units, counted):
    roots = [await units.create({"text": "red apple"}, f"{number}") for number in range(5)]
    for root in roots:
        await units.update(root, {"text": "red pear"}, root.id, unit="u")
        await units.update(root, {"text": "green apple"}, root.id)

    closing = units.create({}, unit="u", state="done")
    assert await counted(closing) == ["commit", "publish"]
    assert len(units.provider.publications[-1].resolutions) == 5


async def test_a_closing_repetition_asks_what_was_staged(units, counted):
    await units.create({}, unit="u", call="k")

    closing = units.create({}, unit="u", call="k", state="done")
    assert await counted(closing) == ["commit", "read", "commit"]
