"""Writes that come between the read and the commit of a mutation: who wins, what is lost."""

from __future__ import annotations

import asyncio

import pytest
from patchouli.backend.engine import ATTEMPTS


def competing(desk, *steps):
    """Let each step act between one read or race and the commit that follows it."""
    desk.provider.before_commit.extend(steps)


async def calls_of(desk, awaitable):
    desk.provider.calls.clear()
    result = await awaitable
    return result, list(desk.provider.calls)


def rival(desk, values):
    """Return a step that writes the next value, based on all heads of the moment."""

    async def write() -> None:
        with desk.provider.aside():
            heads = list(await desk.heads())
            await desk.update(heads, values.pop(0))

    return write


async def test_a_lost_race_costs_one_more_commit_and_no_read(desk):
    root = await desk.create({"text": "red apple", "mark": 1})
    competing(desk, rival(desk, [{"text": "red pear", "mark": 1}]))

    accepted, calls = await calls_of(desk, desk.update(root, {"text": "green apple", "mark": 1}))

    assert calls == ["read", "commit", "commit"]
    assert await desk.heads() == {accepted.version: {"text": "green pear", "mark": 1}}


async def test_a_race_lost_seven_times_is_won_at_the_eighth_attempt(desk):
    root = await desk.create({"words": {}, "text": ""})
    texts = [{"text": f"{number}"} for number in range(ATTEMPTS - 1)]
    competing(desk, *[rival(desk, texts)] * (ATTEMPTS - 1))

    accepted, calls = await calls_of(desk, desk.update(root, {"text": "mine"}, strategy="mvcc"))

    assert calls == ["read", *["commit"] * ATTEMPTS]
    assert accepted.version in await desk.heads()


@pytest.mark.parametrize("strategy", ["mvcc", "merge"])
async def test_eight_lost_races_are_a_conflict_with_the_current_versions(desk, refusal, strategy):
    root = await desk.create({"text": ""})
    texts = [{"text": f"{number}"} for number in range(ATTEMPTS)]
    competing(desk, *[rival(desk, texts)] * ATTEMPTS)

    error = await refusal(desk.update(root, {"text": "mine"}, strategy=strategy))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == tuple(await desk.heads())
    assert [value["text"] for value in (await desk.heads()).values()] == ["7"]
    assert len(await desk.changes()) == 1 + ATTEMPTS


async def test_eight_lost_races_of_a_delete_are_a_conflict(desk, refusal):
    root = await desk.create({"text": ""})
    texts = [{"text": f"{number}"} for number in range(ATTEMPTS)]
    competing(desk, *[rival(desk, texts)] * ATTEMPTS)

    error = await refusal(desk.delete(root, strategy="mvcc"))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == tuple(await desk.heads())


async def test_reject_gives_up_at_the_first_race(desk, refusal):
    root = await desk.create({"text": "a"})

    for mutation in (desk.update, desk.delete):
        (head,) = await desk.heads()
        competing(desk, rival(desk, [{"text": "b"}]))
        arguments = ([head],) if mutation == desk.delete else ([head], {"text": "c"})
        desk.provider.calls.clear()
        error = await refusal(mutation(*arguments, strategy="reject"))
        assert desk.provider.calls == ["read", "commit"]
        assert error.current_versions == tuple(await desk.heads())
    assert root.version not in await desk.heads()


async def test_a_delete_that_loses_a_race_stands_beside_the_winner(desk):
    root = await desk.create({"text": "a"})
    competing(desk, rival(desk, [{"text": "b"}]))

    tombstone, calls = await calls_of(desk, desk.delete(root))

    assert calls == ["read", "commit", "commit"]
    assert sorted((await desk.heads()).values(), key=str) == [None, {"text": "b"}]
    assert tombstone.version in await desk.heads()


async def test_a_delete_that_loses_a_race_is_refused_under_otherwise_reject(
    open_desk, policy, refusal
):
    desk = await open_desk(policy(conflict={"otherwise": "reject"}))
    root = await desk.create({"text": "a"})
    competing(desk, rival(desk, [{"text": "b"}]))

    error = await refusal(desk.delete(root))

    assert error.current_versions == tuple(await desk.heads())
    assert list((await desk.heads()).values()) == [{"text": "b"}]


async def test_an_update_meets_a_delete_that_came_between(desk):
    root = await desk.create({"text": "a"})

    async def delete() -> None:
        with desk.provider.aside():
            await desk.delete(root)

    competing(desk, delete)
    await desk.update(root, {"text": "b"})

    assert sorted((await desk.heads()).values(), key=str) == [None, {"text": "b"}]


async def test_of_two_creates_of_one_identity_one_wins(desk, refusal):
    winners = []

    async def create() -> None:
        winners.append(await desk.create({"text": "first"}))

    competing(desk, create)
    error = await refusal(desk.create({"text": "second"}))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == (winners[0].version,)
    assert await desk.heads() == {winners[0].version: {"text": "first"}}
    assert desk.provider.calls.count("commit") == 2


async def test_what_was_read_in_a_race_is_validated_again(open_desk, policy):
    """The merge of the second attempt violates the schema, which that of the first did not."""
    schema = {"properties": {"text": {"type": "string", "maxLength": 9}}}
    desk = await open_desk(policy(schema=schema))
    root = await desk.create({"text": "one"})
    competing(desk, rival(desk, [{"text": "one1 2345"}]))

    accepted = await desk.update(root, {"text": "one6 7890"})

    heads = await desk.heads()
    assert heads[accepted.version] == {"text": "one6 7890"}
    assert sorted(value["text"] for value in heads.values()) == ["one1 2345", "one6 7890"]


async def test_writers_that_collide_all_at_once_lose_nothing(desk):
    """Eight writers read together and commit together; each wins within its attempts."""
    root = await desk.create({"text": "", **{str(number): 0 for number in range(ATTEMPTS)}})
    everybody_read = asyncio.Event()
    arrived = 0

    async def wait_for_the_others() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == ATTEMPTS:
            everybody_read.set()
        await everybody_read.wait()

    competing(desk, *[wait_for_the_others] * ATTEMPTS)
    await asyncio.gather(
        *(desk.update(root, {"text": f"<{number}>", str(number): 1}) for number in range(ATTEMPTS))
    )

    texts = {value["text"] for value in (await desk.heads()).values()}
    assert len(texts) == 1
    (text,) = texts
    assert all(f"<{number}>" in text for number in range(ATTEMPTS))
    assert len(text) == 3 * ATTEMPTS
