"""What idempotency, causal tokens and sessions cost, in counts.

None of it may depend on how many records, changes, sessions or scopes there ever were.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Committed,
    CompactionPlan,
    Consistency,
    Reading,
    Replayed,
    ScopeText,
    SessionRequirement,
)
from patchouli.provider_conformance.builders import (
    control,
    create,
    entity,
    probe,
    read,
    record,
    retrieve,
    update,
)

if TYPE_CHECKING:
    from patchouli.provider import Commit, ReadPlan
    from patchouli.provider_sqlite.testing import Cost, Watched

ONCE = 7  # BEGIN, look-up, entity, change, record, frontier of the scope, COMMIT
LOOK_UP = 3  # BEGIN, look-up, COMMIT of nothing
ADVANCE = 3  # BEGIN, sessions, COMMIT


def once(name: str, *, scope: ScopeText | None = None) -> Commit:
    """Create an entity under an identity of its own."""
    key = entity(name) if scope is None else entity(name, scope=scope)
    return create(key, name, idempotency=record(control(f"request-{name}", scope=key.scope)))


def within(*names: str, tokens: tuple[str, ...] = ()) -> Consistency:
    """Require both guarantees of sessions, and tokens."""
    sessions = tuple(
        SessionRequirement(key=control(name), monotonic_reads=True, read_your_writes=True)
        for name in names
    )
    return Consistency(
        sessions=sessions, minimum_tokens=tuple(CausalToken(token) for token in tokens)
    )


async def committed(watched: Watched, commit: Commit) -> None:
    assert isinstance(await watched.provider.commit(commit), Committed)


async def test_an_idempotent_create_adds_a_look_up_and_a_row(watched: Watched) -> None:
    with watched.counted() as cost:
        await committed(watched, once("a"))

    assert cost.written() == ["entity", "change", "idempotency"]
    assert cost.counts() == (ONCE, 1, 1)


async def test_a_replay_writes_nothing(watched: Watched) -> None:
    await committed(watched, once("a"))

    with watched.counted() as by_commit:
        assert isinstance(await watched.provider.commit(once("a")), Replayed)
    with watched.counted() as by_read:
        question = probe(control("request-a"))
        found = await watched.provider.read(read(entity("a"), idempotency=question))

    assert isinstance(found, Reading)
    assert isinstance(found.record, Replayed)
    assert by_commit.counts() == (LOOK_UP, 0, 1)
    assert by_read.counts() == (2, 0, 0)


async def test_idempotent_creates_of_a_group_share_their_statements(watched: Watched) -> None:
    made = [once(f"e{n}") for n in range(50)]

    first = await watched.together(*(lambda c=c: watched.provider.commit(c) for c in made))
    again = await watched.together(*(lambda c=c: watched.provider.commit(c) for c in made))

    assert first.counts() == (ONCE, 1, 1)
    assert again.counts() == (LOOK_UP, 0, 1)


async def test_bounds_of_a_read_are_one_statement(watched: Watched) -> None:
    await committed(watched, once("a"))
    tokens = within(tokens=("token-a", "token-warm"))
    known = within("one", "two", tokens=("token-a",))
    await watched.provider.read(read(entity("a"), consistency=known))  # takes the sessions there
    everything = read(entity("a"), consistency=known, idempotency=probe(control("request-a")))

    with watched.counted() as after_tokens:
        await watched.provider.read(read(entity("a"), consistency=tokens))
    with watched.counted() as in_sessions:
        await watched.provider.read(read(entity("a"), consistency=known))
    with watched.counted() as with_all:
        await watched.provider.read(everything)

    assert after_tokens.counts() == (2, 0, 0)
    assert in_sessions.counts() == (2, 0, 0)
    assert with_all.counts() == (3, 0, 0)


async def test_a_read_that_is_ahead_of_its_session_is_synced_once(watched: Watched) -> None:
    plan = read(entity("a"), consistency=within("one", "two"))

    with watched.counted() as ahead:
        await watched.provider.read(plan)
    with watched.counted() as level:
        await watched.provider.read(plan)
    await committed(watched, create(entity("a"), "a"))
    with watched.counted() as ahead_again:
        await watched.provider.retrieve(retrieve(consistency=within("one", "two")))
    with watched.counted() as level_again:
        await watched.provider.read(plan)

    assert ahead.counts() == (2 + ADVANCE, 1, 1)
    assert ahead_again.counts()[:2] == (ADVANCE, 1)
    assert level.counts() == level_again.counts() == (2, 0, 0)


async def test_session_reads_of_a_group_share_a_sync(watched: Watched) -> None:
    plans = [read(entity("a"), consistency=within(f"s{n % 30}")) for n in range(50)]

    cost = await watched.together(*(lambda p=p: watched.provider.read(p) for p in plans))

    assert cost.counts() == (50 * 2 + ADVANCE, 1, 1)


async def test_written_sessions_of_a_group_are_one_statement(watched: Watched) -> None:
    made = [
        create(entity(f"e{n}"), f"v{n}", write_sessions=(control(f"s{n % 7}"),)) for n in range(50)
    ]

    cost = await watched.together(*(lambda c=c: watched.provider.commit(c) for c in made))

    assert cost.written() == ["entity", "change", "session"]
    assert cost.counts() == (6, 1, 1)


async def test_no_cost_grows_with_records_changes_sessions_or_scopes(watched: Watched) -> None:
    async def measured(name: str) -> list[Cost]:
        costs: list[Cost] = []
        session = within("mine", tokens=("token-warm",))
        for call in (
            lambda: watched.provider.commit(once(name)),
            lambda: watched.provider.commit(once(name)),
            lambda: watched.provider.read(read(entity(name), consistency=session)),
            lambda: watched.provider.read(
                read(
                    entity(name), consistency=session, idempotency=probe(control(f"request-{name}"))
                )
            ),
            lambda: watched.provider.commit(
                update(entity(name), name, f"{name}-2", write_sessions=(control("mine"),))
            ),
        ):
            with watched.counted() as cost:
                await call()
            costs.append(cost)
        return costs

    await measured("first")
    before = await measured("before")
    for first in range(0, 400, 100):
        await asyncio.gather(
            *(
                watched.provider.commit(once(f"e{n}", scope=ScopeText(f'{{"n":{n % 40}}}')))
                for n in range(first, first + 100)
            ),
            *(
                watched.provider.read(read(entity("warm"), consistency=within(f"s{n}")))
                for n in range(first, first + 100)
            ),
        )
    after = await measured("after")

    assert [cost.counts() for cost in after] == [cost.counts() for cost in before]
    assert [cost.steps for cost in after] == [cost.steps for cost in before]


async def test_a_look_for_what_is_old_costs_the_same_whatever_there_is(watched: Watched) -> None:
    store = watched.provider._store
    assert store is not None

    async def measured() -> Cost:
        assert await asyncio.to_thread(store.index.wait_until_caught_up, 5)
        with watched.counted() as cost:
            step = await watched.provider.compact(CompactionPlan(limit=100))
        assert not step.is_more_due
        return cost

    await committed(watched, create(entity("a"), "v0"))
    await committed(watched, update(entity("a"), "v0", "v"))
    await committed(watched, once("e"))
    before = await measured()
    for number in range(200):
        head = "v" + "+" * number
        await committed(watched, update(entity("a"), head, f"{head}+"))
        await committed(watched, once(f"e{number}"))
    after = await measured()

    assert after.syncs == 0
    assert after.counts() == before.counts()
    assert after.steps == before.steps


async def test_a_read_with_all_bounds_never_gives_up_the_loop(watched: Watched) -> None:
    await committed(watched, once("a"))
    plan: ReadPlan = read(
        entity("a"),
        consistency=within("one", tokens=("token-a",)),
        idempotency=probe(control("request-a")),
    )
    await watched.provider.read(plan)
    steps = watched.provider.read(plan)

    with pytest.raises(StopIteration) as end:
        steps.send(None)

    assert isinstance(end.value.value, Reading)
