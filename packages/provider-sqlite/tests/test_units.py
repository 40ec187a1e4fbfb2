"""Work units of this store: what they leave behind, what they meet in a group, how they end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Committed,
    Consistency,
    Discarded,
    Drifted,
    MisuseError,
    Published,
    Raced,
    Reading,
    Replayed,
    Staged,
    Unavailable,
    UnitRefused,
    UnitState,
)
from patchouli.provider_conformance.asking import all_changes, found, head_ids, reading, staged
from patchouli.provider_conformance.builders import (
    FOREVER,
    NOW,
    OTHER_SCOPE,
    SCOPE,
    ManualClock,
    commit,
    control,
    create,
    delete,
    entity,
    probe,
    read,
    record,
    retrieve,
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_conformance.suite.unit_steps import joined, publish, resolution
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.changes import prune
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from patchouli.provider import CommitOutcome
    from patchouli.provider_sqlite.store import Store

UNIT = unit()
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
A, B, C = entity("a"), entity("b"), entity("c")
HELD = (
    "SELECT count(*) FROM work_unit_entity",
    "SELECT count(*) FROM work_unit_version",
    "SELECT count(*) FROM idempotency WHERE unit_id IS NOT NULL",
)


@pytest.fixture
async def provider(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteProvider]:
    provider = SqliteProvider(tmp_path / "db", clock=clock)
    await provider.initialize(FOREVER)
    yield provider
    await provider.shutdown()
    check_truth(tmp_path / "db")


def store_of(provider: SqliteProvider) -> Store:
    assert provider._store is not None
    return provider._store


def rows(provider: SqliteProvider) -> list[int]:
    """Return how much open units hold: entities, versions, records."""
    connection = store_of(provider).inline
    return [connection.execute(sql).get for sql in HELD]


def units(provider: SqliteProvider) -> list[tuple[object, ...]]:
    """Return what is known of every unit."""
    sql = "SELECT state, policy, sealed_by, accepted FROM work_unit ORDER BY unit_id"
    return store_of(provider).inline.execute(sql).fetchall()


@asynccontextmanager
async def held(provider: SqliteProvider) -> AsyncIterator[None]:
    """Hold the writer, so that everything that is handed over inside is one group."""
    gate = threading.Event()
    job = store_of(provider).writer.call(gate.wait)
    try:
        yield
        await asyncio.sleep(0)
    finally:
        gate.set()
    await job


async def grouped(
    provider: SqliteProvider, *calls: Callable[[], Awaitable[object]]
) -> list[object]:
    """Return the answers to calls that are done in one group, in their order."""
    async with held(provider):
        tasks = [asyncio.ensure_future(call()) for call in calls]
        await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks))


async def sealed(provider: SqliteProvider) -> Drifted:
    """Seal the unit with a drift of A."""
    await provider.commit(create(A, "a1"))
    mine = update(A, "a1", "a2", idempotency=record(control("mine")))
    await staged(provider, replace(mine, staging=IN_UNIT))
    await provider.commit(update(A, "a1", "a9"))
    outcome = await provider.commit(create(B, "b1", staging=CLOSING))
    assert isinstance(outcome, Drifted)
    return outcome


async def test_a_committed_unit_leaves_its_name_only(provider: SqliteProvider) -> None:
    await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(control("one"))))
    await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
    assert rows(provider) == [1, 2, 1]

    await provider.commit(create(B, "b1", staging=CLOSING))

    assert rows(provider) == [0, 0, 0]
    assert units(provider) == [("committed", UNIT.policy_json, None, None)]


async def test_a_sealed_unit_leaves_its_name_only_when_it_is_published(
    provider: SqliteProvider,
) -> None:
    (conflict,) = (await sealed(provider)).conflicts
    assert rows(provider) == [2, 2, 1]

    outcome = await provider.publish(publish(resolution(conflict, joined("m", "a2", "a9"))))

    assert isinstance(outcome, Published)
    assert rows(provider) == [0, 0, 0]
    assert units(provider) == [("committed", UNIT.policy_json, None, None)]


@pytest.mark.parametrize("how", ["discard", "use", "sweep", "start", "stop"])
async def test_an_end_without_publication_leaves_the_name_only(
    tmp_path: Path, clock: ManualClock, how: str
) -> None:
    provider = SqliteProvider(tmp_path / "db", clock=clock)
    await provider.initialize(FOREVER)
    await sealed(provider)
    clock.now_unix_ms = NOW if how == "discard" else UNIT.expires_at_unix_ms
    match how:
        case "discard":
            assert isinstance(await provider.publish(publish(discard=True)), Discarded)
        case "use":
            refused = UnitRefused(state=UnitState.EXPIRED)
            assert await provider.retrieve(retrieve(unit=UNIT)) == refused
        case "sweep":
            store = store_of(provider)
            await store._on_writer("sweep", store._prune_step)
        case _:
            await (provider.abandon() if how == "start" else provider.shutdown())
            clock.now_unix_ms -= how == "stop"  # the stop has expired it
            provider = SqliteProvider(tmp_path / "db", clock=clock)
            assert (await provider.initialize(FOREVER)).sealed_units == ()

    assert rows(provider) == [0, 0, 0]
    assert units(provider) == [("expired", UNIT.policy_json, None, None)]
    assert await head_ids(provider, A) == ["a9"]
    assert await head_ids(provider, B) == []
    await provider.shutdown()
    check_truth(tmp_path / "db")


async def test_an_expiry_that_was_told_stands_when_the_clock_is_set_back(
    provider: SqliteProvider, clock: ManualClock
) -> None:
    await staged(provider, create(A, "a1", staging=IN_UNIT))
    expired = UnitRefused(state=UnitState.EXPIRED)
    clock.now_unix_ms = UNIT.expires_at_unix_ms
    assert await provider.read(read(A, unit=UNIT)) == expired

    clock.now_unix_ms = NOW

    assert await provider.read(read(A, unit=UNIT)) == expired
    assert await provider.commit(create(B, "b1", staging=CLOSING)) == expired


async def test_a_unit_opens_at_what_its_group_published_before_it(
    provider: SqliteProvider,
) -> None:
    outcomes = await grouped(
        provider,
        lambda: provider.commit(create(A, "a1")),
        lambda: provider.read(read(A, unit=UNIT)),
        lambda: provider.commit(create(B, "b1", staging=staging(unit("other")))),
    )

    assert [type(outcome) for outcome in outcomes] == [Committed, Reading, Staged]
    await provider.commit(update(A, "a1", "a2"))
    seen = await reading(provider, read(A, unit=unit("other")))
    assert [head.id for head in seen.heads] == ["a1"]
    assert (seen.observation.frontier, seen.observation.causal_token) == (1, "token-a1")


async def test_a_unit_may_begin_and_end_in_one_group(provider: SqliteProvider) -> None:
    outcomes = await grouped(
        provider,
        lambda: provider.commit(create(A, "a1", staging=IN_UNIT)),
        lambda: provider.commit(update(A, "a1", "a2", staging=IN_UNIT)),
        lambda: provider.commit(create(A, "a9", staging=IN_UNIT)),
        lambda: provider.commit(create(B, "b1", staging=CLOSING)),
        lambda: provider.commit(create(C, "c1", staging=IN_UNIT)),
    )

    assert [type(outcome) for outcome in outcomes] == [
        Staged,
        Staged,
        UnitRefused,  # raced, and when the heads are read for it the unit is closed
        Published,
        UnitRefused,
    ]
    assert await head_ids(provider, A) == ["a2"]
    assert [change.id for change in await all_changes(provider, SCOPE)] == ["a", "b"]


async def test_works_of_a_group_fail_alone(provider: SqliteProvider) -> None:
    """A value that is no JSON is refused by the schema, and takes nothing else with it."""
    broken = version("x1", parents=())
    bad = commit(C, replace(broken, value_json="{"), staging=IN_UNIT)

    async def refused() -> object:
        with pytest.raises(MisuseError):
            await provider.commit(bad)
        return None

    outcomes = await grouped(
        provider,
        lambda: provider.commit(create(A, "a1", staging=IN_UNIT)),
        refused,
        lambda: provider.commit(create(B, "b1")),
    )

    assert [type(outcome) for outcome in outcomes] == [Staged, type(None), Committed]
    assert rows(provider) == [1, 1, 0]


@pytest.mark.parametrize("again", ["staged", "published", "pruned"])
async def test_a_token_is_given_once_whoever_had_it_first(
    provider: SqliteProvider, again: str
) -> None:
    if again == "staged":
        await staged(provider, create(A, "a1", staging=IN_UNIT))
    else:
        await provider.commit(create(A, "a1"))
    if again == "pruned":
        store = store_of(provider)
        await store._on_writer("prune", lambda: prune_all(store))
    token = CausalToken("token-a1")

    with pytest.raises(MisuseError):
        await provider.commit(create(B, "b1", staging=staging(unit("other")), causal_token=token))
    with pytest.raises(MisuseError):
        await provider.commit(create(B, "b1", causal_token=token))


def prune_all(store: Store) -> None:
    connection = store._write
    assert connection is not None
    prune(connection, recorded_before_unix_ms=NOW + 1, through=99, limit=9)
    assert connection.execute("SELECT count(*) FROM change").get == 0


async def test_a_resolution_has_a_token_of_its_own(provider: SqliteProvider) -> None:
    (conflict,) = (await sealed(provider)).conflicts
    good = resolution(conflict, joined("m", "a2", "a9"))
    for used in ("token-a1", "token-a2", "token-b1"):
        with pytest.raises(MisuseError):
            await provider.publish(publish(replace(good, causal_token=CausalToken(used))))

    done = await provider.publish(publish(replace(good, causal_token=CausalToken("token-m"))))

    assert isinstance(done, Published)
    tokens = tuple(map(CausalToken, ("token-m", "token-a2", "token-b1")))
    await reading(provider, read(A, consistency=Consistency(minimum_tokens=tokens)))
    with pytest.raises(MisuseError):
        await provider.commit(create(C, "c1", causal_token=CausalToken("token-m")))


async def test_what_nobody_is_shown_is_a_position_all_the_same(provider: SqliteProvider) -> None:
    """The index and the subscribers pass it, and its token stands for it."""
    await staged(provider, create(A, "a1", staging=IN_UNIT))
    outcome = await provider.commit(delete(A, "a1", "a2", staging=CLOSING))

    assert isinstance(outcome, Published)
    cursor = outcome.entities[-1].cursor
    assert await all_changes(provider, SCOPE) == []
    store = store_of(provider)
    assert await asyncio.to_thread(store.index.wait_until_caught_up, 5)
    assert store.index.watermark == cursor
    seen = await reading(provider, read(A))
    assert (seen.observation.frontier, seen.observation.causal_token) == (cursor, "token-a2")
    await asyncio.wait_for(provider.wait_for_changes(SCOPE, type(cursor)(cursor - 1)), 5)
    await provider.commit(create(B, "b1"))
    assert [change.cursor for change in await all_changes(provider, SCOPE)] == [cursor + 1]
    assert await found(provider) == ["b"]


async def test_a_published_unit_is_found_at_once_and_by_the_index(
    provider: SqliteProvider,
) -> None:
    store = store_of(provider)
    await provider.commit(create(A, "a1", {"t": "former words"}))
    await staged(provider, update(A, "a1", "a2", {"t": "latter words"}, staging=IN_UNIT))
    await provider.commit(create(B, "b1", {"t": "latter day"}, staging=CLOSING))

    at_once = await found(provider, text="latter")
    assert await asyncio.to_thread(store.index.wait_until_caught_up, 5)

    assert at_once == await found(provider, text="latter") == ["a", "b"]
    assert await found(provider, text="former") == []


async def test_a_staged_mutation_that_is_repeated_to_close_closes(
    provider: SqliteProvider,
) -> None:
    mine = record(control("mine"), result_json='"first"')
    first = create(A, "a1", staging=IN_UNIT, idempotency=mine)
    await staged(provider, first)
    plan = read(A, unit=UNIT, idempotency=probe(control("mine")))
    known = (await reading(provider, plan)).record
    assert known == Replayed(result_json='"first"', is_staged=True)

    closing = commit(
        A,
        expected=["a1"],
        heads=["a1"],
        accepted=first.accepted,
        staging=CLOSING,
        idempotency=mine,
        causal_token=CausalToken("token-close"),
    )
    outcome = await provider.commit(closing)

    assert isinstance(outcome, Published)
    assert [(e.key, [head.id for head in e.heads]) for e in outcome.entities] == [(A, ["a1"])]
    assert outcome.accepted == "a1"
    assert [c.causal_token for c in await all_changes(provider, SCOPE)] == ["token-a1"]
    assert await provider.commit(closing) == Replayed(result_json='"first"')


async def test_a_deep_divergence_in_a_unit_leaves_the_loop(
    tmp_path: Path, clock: ManualClock
) -> None:
    limits = SqliteLimits(inline_look_ups=4, inline_value_bytes=100)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits)
    await provider.initialize(FOREVER)
    await provider.commit(create(A, "v0", "short"))
    await provider.commit(create(B, "long", "x" * 200))
    for number in range(8):
        step = update(A, f"v{number}", f"v{number + 1}", "short", staging=IN_UNIT)
        await staged(provider, step)
    for plan in (read(A, "v0", unit=UNIT, with_divergence=True), read(B, unit=UNIT)):
        steps = provider.read(plan)
        assert steps.send(None) is not None, "it waits for another thread"
        steps.close()

    seen = await reading(provider, read(A, "v0", unit=UNIT, with_divergence=True))

    assert seen.divergence is not None
    assert (seen.divergence.base, len(seen.divergence.nodes)) == ("v0", 9)
    (long,) = (await reading(provider, read(B, unit=UNIT))).heads
    assert len(long.value_json or "") == 202
    await provider.shutdown()


async def test_an_entity_that_changed_often_since_is_read_beside_the_loop(
    provider: SqliteProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.provider_sqlite.units_view.FAR", 5)
    await provider.commit(create(A, "a0"))
    await reading(provider, read(A, unit=UNIT))

    async def leaves_the_loop() -> bool:
        steps = provider.read(read(A, unit=UNIT))
        try:
            steps.send(None)
        except StopIteration:
            return False
        steps.close()
        return True

    leaves: list[bool] = []
    for number in range(7):
        await provider.commit(update(A, f"a{number}", f"a{number + 1}"))
        leaves.append(await leaves_the_loop())

    assert leaves == [False] * 5 + [True] * 2
    assert [head.id for head in (await reading(provider, read(A, unit=UNIT))).heads] == ["a0"]


async def test_a_lost_race_in_a_unit_brings_the_divergence_of_its_view(
    provider: SqliteProvider,
) -> None:
    await provider.commit(create(A, "a1"))
    await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
    await provider.commit(update(A, "a1", "a9"))

    late = update(A, "a1", "a3", staging=IN_UNIT, with_divergence=True)
    outcome = await provider.commit(replace(late, base_versions=late.expected_heads))

    assert isinstance(outcome, Raced)
    assert [head.id for head in outcome.heads] == ["a2"]
    assert outcome.divergence is not None
    assert [node.id for node in outcome.divergence.nodes] == ["a1", "a2"]


async def test_waiting_helps_until_a_unit_is_open(provider: SqliteProvider) -> None:
    await provider.commit(create(A, "a1"))
    unknown = Consistency(minimum_tokens=(CausalToken("not yet"),))

    before = await provider.read(read(A, unit=UNIT, consistency=unknown))
    await provider.read(read(A, unit=UNIT))
    after = await provider.retrieve(retrieve(unit=UNIT, consistency=unknown))

    assert isinstance(before, Unavailable)
    assert isinstance(after, Unavailable)
    assert (before.frontier, after.frontier) == (1, None)


async def test_two_first_reads_open_one_unit(provider: SqliteProvider) -> None:
    outcomes = await grouped(
        provider,
        lambda: provider.read(read(A, unit=UNIT)),
        lambda: provider.commit(create(A, "a1")),
        lambda: provider.retrieve(retrieve(unit=UNIT)),
        lambda: provider.read(read(A, unit=UNIT)),
    )

    assert not any(isinstance(outcome, UnitRefused) for outcome in outcomes)
    assert len(units(provider)) == 1


async def test_a_unit_and_its_entities_are_of_one_scope(provider: SqliteProvider) -> None:
    elsewhere = create(entity("a", scope=OTHER_SCOPE), "a1", staging=IN_UNIT)

    with pytest.raises(MisuseError):
        await provider.commit(elsewhere)

    assert units(provider) == []


async def outcome_of(call: Awaitable[CommitOutcome]) -> str:
    return type(await call).__name__


async def test_of_two_units_that_overlap_the_second_drifts(provider: SqliteProvider) -> None:
    await provider.commit(create(A, "a1"))
    other = unit("other")
    for name, own in (("x", UNIT), ("y", other)):
        await staged(provider, update(A, "a1", f"a-{name}", staging=staging(own)))

    first = await outcome_of(provider.commit(create(B, "b1", staging=staging(UNIT, close=True))))
    second = await outcome_of(provider.commit(create(C, "c1", staging=staging(other, close=True))))

    assert (first, second) == ("Published", "Drifted")
    assert await head_ids(provider, A) == ["a-x"]
    assert await head_ids(provider, C) == []
