"""Writes that come between the read and the commit of a mutation: who wins, what is lost."""

from __future__ import annotations

import asyncio

import pytest
from patchouli.backend.mutations import ATTEMPTS


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
        await desk.rival.update(list(await desk.rival.heads()), values.pop(0))

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
        await desk.rival.delete(root)

    competing(desk, delete)
    await desk.update(root, {"text": "b"})

    assert sorted((await desk.heads()).values(), key=str) == [None, {"text": "b"}]


async def test_of_two_creates_of_one_identity_one_wins(desk, refusal):
    winners = []

    async def create() -> None:
        winners.append(await desk.rival.create({"text": "first"}))

    competing(desk, create)
    error = await refusal(desk.create({"text": "second"}))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == (winners[0].version,)
    assert await desk.heads() == {winners[0].version: {"text": "first"}}
    assert desk.provider.calls == ["commit", "read"]


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


# Contention inside one engine


def read_together(desk, number):
    """Let `number` mutations commit only when all of them have read."""
    everybody_read = asyncio.Event()
    arrived = 0

    async def wait_for_the_others() -> None:
        nonlocal arrived
        arrived += 1
        if arrived == number:
            everybody_read.set()
        await everybody_read.wait()

    competing(desk, *[wait_for_the_others] * number)


@pytest.mark.parametrize("strategy", ["mvcc", "merge"])
async def test_more_writers_than_attempts_all_succeed(desk, strategy):
    writers = 2 * ATTEMPTS
    root = await desk.create({"text": ""})
    read_together(desk, writers)
    letters = [chr(0x4E00 + number) for number in range(writers)]
    desk.provider.calls.clear()

    accepted = await asyncio.gather(
        *(desk.update(root, {"text": letter}, strategy=strategy) for letter in letters)
    )

    assert len({entity.version for entity in accepted}) == writers
    texts = [value["text"] for value in (await desk.heads()).values()]
    assert sorted("".join(texts)) == letters
    assert len(texts) == (1 if strategy == "merge" else writers)
    # Whoever had to wait reads once more; nobody commits in vain twice.
    assert desk.provider.calls.count("read") <= 2 * writers
    assert desk.provider.calls.count("commit") == 2 * writers - 1


async def test_a_mutation_that_arrives_later_lines_up_before_it_reads(desk):
    root = await desk.create({"text": "a"})
    order = []
    later = []

    async def arrive() -> None:
        """Arrive while the first one, which lost a race, is at its second attempt."""
        later.append(asyncio.create_task(desk.update(root, {"text": "later"}, strategy="mvcc")))
        await asyncio.sleep(0)
        order.append(desk.provider.calls.count("read"))

    competing(desk, rival(desk, [{"text": "rival"}]), arrive)
    desk.provider.calls.clear()

    await desk.update(root, {"text": "first"}, strategy="mvcc")
    await asyncio.gather(*later)

    assert order == [1]
    assert desk.provider.calls == ["read", "commit", "commit", "read", "commit"]
    assert len(await desk.heads()) == 3


async def test_a_deadline_ends_the_wait_for_a_turn(desk, refusal):
    root = await desk.create({"text": "a"})
    refusals = []

    async def arrive() -> None:
        late = desk.update(root, {"text": "b"}, deadline_unix_ms=desk.clock.unix_ms() + 1)
        refusals.append(await refusal(late))

    competing(desk, rival(desk, [{"text": "rival"}]), arrive)
    await desk.update(root, {"text": "first"}, strategy="mvcc")

    assert [error.reason for error in refusals] == ["DEADLINE_EXCEEDED"]
    assert await desk.update(list(await desk.heads()), {"text": "c"})


async def test_a_cancelled_mutation_leaves_the_line_to_the_others(desk):
    root = await desk.create({"text": "a"})
    line = []

    async def arrive() -> None:
        for text in ("one", "two", "three"):
            update = desk.update(root, {"text": text}, strategy="mvcc")
            line.append(asyncio.create_task(update))
        await asyncio.sleep(0)
        line[1].cancel()

    competing(desk, rival(desk, [{"text": "rival"}]), arrive)
    await desk.update(root, {"text": "first"}, strategy="mvcc")
    results = await asyncio.gather(*line, return_exceptions=True)

    assert [type(result).__name__ for result in results] == [
        "VersionView",
        "CancelledError",
        "VersionView",
    ]
    texts = {value["text"] for value in (await desk.heads()).values()}
    assert texts == {"first", "one", "three", "rival"}
