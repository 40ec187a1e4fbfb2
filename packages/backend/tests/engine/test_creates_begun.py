"""Which creates count as begun: those that can no longer be overtaken by one that comes later."""

from __future__ import annotations

import asyncio

U = {"unit": "u"}


async def test_a_create_counts_once_it_is_with_the_provider(units):
    await units.create({"text": "a"}, "a")
    await units.create({"text": "b"}, "b", call="1")
    await units.create({"text": "c"}, "c", **U)

    assert units.engine.creates_begun == 3


async def test_a_create_that_closes_its_unit_may_still_be_overtaken(units):
    await units.create({"text": "a"}, "a", **U, state="done")

    assert units.engine.creates_begun == 0


async def test_updates_deletes_and_what_fails_on_its_own_do_not_count(units, refusal):
    first = await units.create({"text": "a"}, "a")
    await units.delete(await units.update(first, {"text": "b"}))
    await refusal(units.create({"text": "c"}, "c", kind="unknown"))

    assert units.engine.creates_begun == 1


async def test_it_counts_before_it_first_waits(units):
    calls = [asyncio.ensure_future(units.create({"n": n}, f"e{n}")) for n in range(5)]
    reached = asyncio.Event()

    async def wait_for_all():
        if units.engine.creates_begun == 5:
            reached.set()
        await asyncio.wait_for(reached.wait(), 5)

    units.provider.before_commit.extend([wait_for_all] * 5)
    await asyncio.gather(*calls)

    log = [change.id for change in await units.changes()]
    assert sorted(log) == [f"e{n}" for n in range(5)]
