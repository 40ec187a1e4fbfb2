"""What work units cost, in counts.

None of it may depend on how many units, changes or versions there ever were, and a close costs what
its unit holds.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import apsw
import pytest
from patchouli.provider import Committed, Page, Published, Reading, ScopeText, Staged
from patchouli.provider_conformance import ManualClock
from patchouli.provider_conformance.builders import (
    SCOPE,
    create,
    entity,
    read,
    retrieve,
    staging,
    unit,
    update,
)
from patchouli.provider_sqlite.bulk import ROWS_LIMIT

if TYPE_CHECKING:
    from patchouli.provider import Commit, WorkUnit
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.testing import Cost, Watched

STAGE = 5  # BEGIN, look-up, entity, version, COMMIT
OPENING = 2  # the frontier of the scope, the row of the unit
UNIT = unit()


@pytest.fixture(autouse=True)
def _without_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count what happens in production, where invariants are not checked."""
    monkeypatch.setattr("patchouli.provider_sqlite.units_publishing.check", lambda *_: None)


async def staged(watched: Watched, commit: Commit, work_unit: WorkUnit = UNIT) -> None:
    outcome = await watched.provider.commit(replace(commit, staging=staging(work_unit)))
    assert isinstance(outcome, Staged), outcome


async def closed(watched: Watched, commit: Commit, work_unit: WorkUnit = UNIT) -> None:
    closing = replace(commit, staging=staging(work_unit, close=True))
    assert isinstance(await watched.provider.commit(closing), Published)


async def test_only_the_first_read_of_a_unit_writes(watched: Watched) -> None:
    with watched.counted() as opening:
        await watched.provider.read(read(entity("warm"), unit=UNIT))
    with watched.counted() as plain:
        await watched.provider.read(read(entity("warm"), unit=UNIT))

    assert opening.written() == ["work_unit"]
    assert opening.counts() == (7, 1, 1)
    assert plain.counts() == (1, 0, 0)


async def test_a_read_in_a_unit_is_few_look_ups_wherever_its_heads_are(watched: Watched) -> None:
    await watched.provider.commit(create(entity("later"), "l1"))
    await watched.provider.read(read(entity("warm"), unit=UNIT))
    await watched.provider.commit(update(entity("later"), "l1", "l2"))
    await staged(watched, create(entity("own"), "o1"))
    asked = [
        read(entity("absent"), unit=UNIT),
        read(entity("warm"), "warm", with_divergence=True, unit=UNIT),
        read(entity("later"), unit=UNIT),
        read(entity("own"), unit=UNIT),
        read(entity("own"), "o1", with_divergence=True, unit=UNIT),
    ]

    costs: list[tuple[int, int, int]] = []
    for plan in asked:
        with watched.counted() as cost:
            assert isinstance(await watched.provider.read(plan), Reading)
        costs.append(cost.counts())

    assert costs == [(1, 0, 0), (1, 0, 0), (2, 0, 0), (2, 0, 0), (2, 0, 0)]


async def test_a_read_in_an_open_unit_never_gives_up_the_loop(watched: Watched) -> None:
    await watched.provider.read(read(entity("warm"), unit=UNIT))
    steps = watched.provider.read(read(entity("warm"), unit=UNIT))

    with pytest.raises(StopIteration) as end:
        steps.send(None)

    assert isinstance(end.value.value, Reading)


async def test_staging_writes_a_row_in_two_tables(watched: Watched) -> None:
    with watched.counted() as opening:
        await staged(watched, create(entity("a"), "a1"))
    with watched.counted() as creating:
        await staged(watched, create(entity("b"), "b1"))
    with watched.counted() as updating:
        await staged(watched, update(entity("b"), "b1", "b2"))

    assert opening.written() == ["work_unit", "work_unit_entity", "work_unit_version"]
    assert creating.written() == ["work_unit_entity", "work_unit_version"]
    assert opening.counts() == (STAGE + OPENING, 1, 1)
    assert creating.counts() == (STAGE, 1, 1)
    assert updating.counts() == (STAGE + 1, 1, 1), "it is known that the version is new"


async def test_members_that_stage_at_once_share_a_sync(watched: Watched) -> None:
    await watched.provider.read(read(entity("warm"), unit=UNIT))
    made = [create(entity(f"e{n}"), f"v{n}") for n in range(50)]

    cost = await watched.together(*(lambda c=c: staged(watched, c) for c in made))

    assert cost.counts()[1:] == (1, 1)


@pytest.mark.parametrize("size", [2, 20, 200])
async def test_a_unit_syncs_less_than_its_writes_one_by_one(watched: Watched, size: int) -> None:
    """Members stage at once; the close publishes all with one more sync and one more hop."""
    made = [create(entity(f"e{n}"), f"v{n}") for n in range(size)]

    members = await watched.together(*(lambda c=c: staged(watched, c) for c in made[:-1]))
    with watched.counted() as closing:
        await closed(watched, made[-1])

    assert (members.syncs, closing.syncs) == (1, 1)
    assert (members.hops, closing.hops) == (1, 1)


async def closing_cost(watched: Watched, size: int, *, versions: int, name: str) -> Cost:
    """Return what the close of a unit costs with so many entities, each of so many versions."""
    work_unit = unit(name)
    for number in range(size - 1):
        key, base = entity(f"{name}-{number}"), f"{name}-{number}"
        await staged(watched, create(key, f"{base}-0"), work_unit)
        for step in range(1, versions):
            await staged(watched, update(key, f"{base}-{step - 1}", f"{base}-{step}"), work_unit)
    last = create(entity(f"{name}-last"), f"{name}-last")
    with watched.counted() as cost:
        await closed(watched, last, work_unit)
    return cost


async def test_a_close_of_usual_mutations_takes_statements_by_the_dozen(watched: Watched) -> None:
    small = await closing_cost(watched, 2, versions=1, name="two")
    large = await closing_cost(watched, ROWS_LIMIT, versions=1, name="many")

    assert large.counts() == small.counts()
    assert small.counts()[0] < 20


@pytest.mark.slow
async def test_a_close_costs_what_its_unit_holds(watched: Watched) -> None:
    sizes = (10, 20, 30)
    costs = [await closing_cost(watched, size, versions=2, name=f"of-{size}") for size in sizes]

    statements = [len(cost.statements) for cost in costs]
    steps = [cost.steps for cost in costs]
    assert statements[2] - statements[1] == statements[1] - statements[0]
    assert steps[2] - steps[1] <= 1.2 * (steps[1] - steps[0])
    assert {cost.counts()[1:] for cost in costs} == {(1, 1)}


async def updated(watched: Watched, name: str, times: int) -> str:
    """Replace the head of an entity so many times; return its head then."""
    key = entity(name)
    found = await watched.provider.read(read(key))
    assert isinstance(found, Reading)
    (head,) = (str(head.id) for head in found.heads)
    for _ in range(times):
        name, number = head.rsplit(".", 1)
        base, head = head, f"{name}.{int(number) + 1}"
        assert isinstance(await watched.provider.commit(update(key, base, head)), Committed)
    return head


@pytest.mark.slow
async def test_no_cost_grows_with_units_changes_or_versions(watched: Watched) -> None:
    provider = watched.provider
    for name in ("a", "b"):
        await provider.commit(create(entity(name), f"{name}.0"))

    async def measured(name: str) -> list[Cost]:
        """Return what each request costs of a unit that is open while others write."""
        work_unit, head = unit(name), await updated(watched, "a", 1)
        await provider.read(read(entity("a"), unit=work_unit))
        await updated(watched, "b", 2)
        costs: list[Cost] = []
        for call in (
            lambda: provider.read(read(entity("b"), unit=work_unit)),
            lambda: provider.read(read(entity("a"), head, unit=work_unit)),
            lambda: staged(watched, update(entity("a"), head, f"{name}-own"), work_unit),
            lambda: provider.read(read(entity("a"), head, unit=work_unit)),
            lambda: staged(watched, create(entity(f"m-{name}"), f"m-{name}"), work_unit),
            lambda: closed(watched, create(entity(f"n-{name}"), f"n-{name}"), work_unit),
        ):
            with watched.counted() as cost:
                await call()
            costs.append(cost)
        await provider.commit(update(entity("a"), f"{name}-own", f"{name}.0"))
        return costs

    await measured("first")
    before = await measured("earlier")
    await updated(watched, "a", 150)
    await updated(watched, "b", 150)
    for number in range(60):
        elsewhere = ScopeText(f'{{"n":{number % 7}}}')
        other = unit(f"u{number}", scope=elsewhere if number % 3 else SCOPE)
        call = staged if number % 2 else closed
        key = entity(f"e{number}", scope=other.scope)
        await call(watched, create(key, f"e{number}"), other)
    after = await measured("in the end")

    assert [cost.counts() for cost in after] == [cost.counts() for cost in before]
    assert [cost.steps for cost in after] == [cost.steps for cost in before]


@pytest.mark.slow
async def test_a_retrieval_in_a_unit_costs_what_changed_since_its_baseline(
    watched: Watched,
) -> None:
    """And the page: as much among a thousand entities as among ten."""
    provider = watched.provider
    store = provider._store
    assert store is not None

    async def cost_of(name: str) -> int:
        await asyncio.to_thread(store.index.wait_until_caught_up, 5)
        work_unit = unit(name)
        await provider.read(read(entity("warm"), unit=work_unit))
        for number in range(5):
            await provider.commit(create(entity(f"z-{name}-{number}"), f"z-{name}-{number}"))
        await staged(watched, create(entity(f"own-{name}"), f"own-{name}"), work_unit)
        await asyncio.to_thread(store.index.wait_until_caught_up, 5)
        steps = 0

        def counted(connection: Connection) -> int:
            nonlocal steps

            def note(event: dict[str, Any]) -> None:
                nonlocal steps
                steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

            traced = cast("apsw.Connection", connection)
            traced.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
            plan = retrieve(unit=work_unit, limit=5)
            answer = store.index.retrieve(connection, plan, clock=ManualClock())
            traced.trace_v2(0, None)
            assert answer is not None
            assert isinstance(answer.outcome, Page)
            assert len(answer.outcome.hits) == 5
            return steps

        return await store.readers.run(counted, operation="retrieve")

    for number in range(10):
        await provider.commit(create(entity(f"a{number}"), f"a{number}"))
    await cost_of("first")
    few = await cost_of("few")
    for number in range(1000):
        await provider.commit(create(entity(f"m{number:04}"), f"m{number}"))
    many = await cost_of("many")

    assert many <= 1.5 * few
