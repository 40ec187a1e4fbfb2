"""What a call costs, in counts: statements, steps of SQLite's machine, syncs, hops between threads.

None of them may depend on how many versions an entity had, how many changes the log holds, or how
many scopes there are.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.provider import Committed, Reading, ScopeText
from patchouli.provider_conformance.builders import (
    FOREVER,
    create,
    delete,
    entity,
    read,
    update,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.testing import Cost, Watched

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from patchouli.provider import ReadPlan
    from patchouli.provider_conformance import ManualClock

CREATE_STATEMENTS = 5  # BEGIN, entity, change, frontier of the scope, COMMIT
UPDATE_STATEMENTS = 7  # BEGIN, state, old head, new head, change, frontier, COMMIT


async def committed(call: Coroutine[Any, Any, object]) -> None:
    assert isinstance(await call, Committed)


async def test_a_create_is_one_sync_one_hop_and_a_row_in_two_tables(watched: Watched) -> None:
    with watched.counted() as cost:
        await committed(watched.provider.commit(create(entity("a"), "v1")))

    assert cost.written() == ["entity", "change"]
    assert cost.counts() == (CREATE_STATEMENTS, 1, 1)


async def test_an_update_and_a_delete_cost_little_more(watched: Watched) -> None:
    await committed(watched.provider.commit(create(entity("a"), "v1")))

    with watched.counted() as updating:
        await committed(watched.provider.commit(update(entity("a"), "v1", "v2")))
    with watched.counted() as deleting:
        await committed(watched.provider.commit(delete(entity("a"), "v2", "v3")))

    assert updating.counts() == (UPDATE_STATEMENTS, 1, 1)
    assert deleting.counts() == (UPDATE_STATEMENTS, 1, 1)


async def test_a_read_is_one_statement_without_a_hop_or_a_sync(watched: Watched) -> None:
    await committed(watched.provider.commit(create(entity("a"), "v1")))

    with watched.counted() as plain:
        await watched.provider.read(read(entity("a")))
    with watched.counted() as for_update:
        await watched.provider.read(read(entity("a"), "v1", with_divergence=True))

    assert plain.counts() == (1, 0, 0)
    assert for_update.counts() == (1, 0, 0)


async def test_a_read_with_an_older_base_has_few_statements(watched: Watched) -> None:
    await committed(watched.provider.commit(create(entity("a"), "v1")))
    await committed(watched.provider.commit(update(entity("a"), "v1", "v2")))

    with watched.counted() as cost:
        found = await watched.provider.read(read(entity("a"), "v1"))

    assert isinstance(found, Reading)
    assert [base.id for base in found.bases] == ["v1"]
    assert cost.counts() == (2, 0, 0)


async def test_a_read_never_gives_up_the_loop(watched: Watched) -> None:
    await committed(watched.provider.commit(create(entity("a"), "v1")))
    steps = watched.provider.read(read(entity("a")))

    with pytest.raises(StopIteration) as end:
        steps.send(None)

    assert isinstance(end.value.value, Reading)


async def test_a_group_of_commits_shares_statements_sync_and_hop(watched: Watched) -> None:
    provider = watched.provider
    store = provider._store
    assert store is not None
    gate = threading.Event()
    with watched.counted() as cost:
        held = store.writer.call(gate.wait)
        async with asyncio.TaskGroup() as tasks:
            for number in range(50):
                made = create(entity(f"e{number}"), f"v{number}")
                tasks.create_task(committed(provider.commit(made)))
            await asyncio.sleep(0)  # every task has handed its commit over
            gate.set()
        await held

    assert cost.counts() == (CREATE_STATEMENTS, 1, 2), "one hop is that of the gate"


async def grown(watched: Watched, key_updates: int, others: int) -> None:
    provider = watched.provider
    for number in range(key_updates):
        head = f"v{number}"
        await committed(provider.commit(update(entity("a"), head, f"v{number + 1}")))
    await asyncio.gather(
        *(
            committed(
                provider.commit(
                    create(entity(f"o{n}", scope=ScopeText(f'{{"n":{n % 40}}}')), f"o{n}")
                )
            )
            for n in range(others)
        )
    )


async def test_no_cost_grows_with_versions_changes_or_scopes(watched: Watched) -> None:
    provider = watched.provider
    await committed(provider.commit(create(entity("a"), "v0")))
    await grown(watched, 1, 0)

    async def measured(head: int) -> list[Cost]:
        with watched.counted() as reading:
            await provider.read(read(entity("a"), f"v{head}", with_divergence=True))
        with watched.counted() as updating:
            await committed(provider.commit(update(entity("a"), f"v{head}", f"v{head + 1}")))
        with watched.counted() as creating:
            await committed(provider.commit(create(entity(f"n{head}"), f"n{head}")))
        return [reading, updating, creating]

    before = await measured(1)
    for head in range(2, 302):
        await committed(provider.commit(update(entity("a"), f"v{head}", f"v{head + 1}")))
    await grown(watched, 0, 200)
    after = await measured(302)

    assert [cost.counts() for cost in after] == [cost.counts() for cost in before]
    assert [cost.steps for cost in after] == [cost.steps for cost in before]


async def test_a_read_beyond_its_budget_goes_to_another_thread(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = SqliteLimits(inline_look_ups=4, inline_value_bytes=100)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits)
    await provider.initialize(FOREVER)
    long, walk = entity("long"), entity("walk")
    await committed(provider.commit(create(long, "long", "x" * 101)))
    await committed(provider.commit(create(walk, "v0", "short")))
    for number in range(10):
        await committed(provider.commit(update(walk, f"v{number}", f"v{number + 1}", "short")))
    plans = [
        read(long),
        read(walk, "v0", with_divergence=True),
        read(walk, "v8", with_divergence=True),
        read(walk),
    ]

    async def gives_up_the_loop(plan: ReadPlan) -> bool:
        steps = provider.read(plan)
        try:
            steps.send(None)
        except StopIteration:
            return False
        steps.close()
        return True

    assert [await gives_up_the_loop(plan) for plan in plans] == [True, True, False, False]
    found = await provider.read(plans[1])
    assert isinstance(found, Reading)
    assert found.divergence is not None
    assert found.divergence.base == "v0"
    assert len(found.divergence.nodes) == 11
    await provider.shutdown()


async def test_every_statement_is_compiled_once(watched: Watched) -> None:
    """However many commits come together, and whichever kinds of them."""
    provider = watched.provider
    store = provider._store
    assert store is not None

    async def mixed(first: int) -> None:
        for size in (1, 2, 3, 5, 9, 17, 33, 64, 70):
            names = [f"e{first}-{size}-{n}" for n in range(size)]
            for step in range(3):
                made = [
                    create(entity(name), f"{name}-0")
                    if step == 0
                    else update(entity(name), f"{name}-{step - 1}", f"{name}-{step}")
                    for name in names
                ]
                gate = threading.Event()
                held = store.writer.call(gate.wait)
                async with asyncio.TaskGroup() as tasks:
                    for commit in made:
                        tasks.create_task(committed(provider.commit(commit)))
                    await asyncio.sleep(0)
                    gate.set()
                await held
        await provider.read(read(entity(names[0]), f"{names[0]}-0", with_divergence=True))

    await mixed(0)
    before = [connection.cache_stats() for connection in watched.connections]
    await mixed(1)
    after = [connection.cache_stats() for connection in watched.connections]

    for earlier, later in zip(before, after, strict=True):
        assert later["misses"] == earlier["misses"]
        assert later["evictions"] == earlier["evictions"]
        assert later["too_big"] == 0
        assert later["hits"] > earlier["hits"]
