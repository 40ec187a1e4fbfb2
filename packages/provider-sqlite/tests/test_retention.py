"""What is past its retention goes, by itself and on demand, and nothing that is needed does."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchouli.provider import (
    Committed,
    CompactionPlan,
    MisuseError,
    Raced,
    Reading,
    Retention,
    Staged,
)
from patchouli.provider_conformance.builders import (
    NOW,
    ManualClock,
    commit,
    control,
    create,
    entity,
    read,
    record,
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.codec import within
from patchouli.provider_sqlite.retention import Pace
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from patchouli.provider import Divergence
    from patchouli.provider_sqlite.retention import Folding

A, B = entity("a"), entity("b")
DAY_MS = 86_400_000
RETENTION = Retention(changes_seconds=60, idempotency_seconds=60, history_seconds=86_400)
QUIET = SqliteLimits(prune_interval_seconds=3600)


@pytest.fixture
async def provider(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteProvider]:
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=QUIET)
    await provider.initialize(RETENTION)
    yield provider
    await provider.shutdown()
    check_truth(tmp_path / "db")


async def chain(provider: SqliteProvider, *names: str) -> None:
    """Create `a` and replace its head again and again."""
    assert isinstance(await provider.commit(create(A, names[0])), Committed)
    for base, name in pairwise(names):
        assert isinstance(await provider.commit(update(A, base, name)), Committed)


async def compacted(provider: SqliteProvider) -> int:
    """Compact to the end and return how many versions went."""
    versions = 0
    while (step := await provider.compact(CompactionPlan(limit=1000))).is_more_due:
        versions += step.versions
    return versions


async def bases(provider: SqliteProvider, *names: str) -> list[str]:
    found = await provider.read(read(A, *names))
    assert isinstance(found, Reading)
    return [base.id for base in found.bases]


async def found_to_go(provider: SqliteProvider) -> Folding:
    """Return what the first look finds, after everything that is only aged has gone."""
    store = provider._store
    assert store is not None
    assert await asyncio.to_thread(store.index.wait_until_caught_up, 5)
    while (await store.writer.call(lambda: store._remove_aged(limit=1000))).has_more:
        pass
    folding, _ = await store.readers.run(store._require_compactor().find, operation="compact")
    assert folding is not None
    return folding


async def removed(provider: SqliteProvider, folding: Folding) -> int:
    store = provider._store
    assert store is not None
    return await store.writer.call(lambda: store._remove_versions(folding, 1000))


async def test_what_an_entity_got_since_the_look_is_looked_at_again(
    provider: SqliteProvider, clock: ManualClock
) -> None:
    await chain(provider, "v1", "v2", "v3")
    clock.now_unix_ms += 2 * DAY_MS
    folding = await found_to_go(provider)
    # Between the look and the removal somebody goes on from a version that was found to go.
    beside = version("v4", parents=["v1"])
    await provider.commit(commit(A, beside, expected=["v3"], heads=["v3", "v4"]))

    assert len(folding.versions) == 2
    assert await removed(provider, folding) == 0
    assert await compacted(provider) == 0
    found = await provider.read(read(A, with_divergence=True))
    assert isinstance(found, Reading)
    assert found.divergence is not None
    assert found.divergence.base == "v1"


async def test_what_a_unit_staged_since_the_look_is_looked_at_again(
    provider: SqliteProvider, clock: ManualClock
) -> None:
    await chain(provider, "v1", "v2", "v3")
    clock.now_unix_ms += 2 * DAY_MS
    folding = await found_to_go(provider)
    now = clock.now_unix_ms
    within = staging(unit(now_unix_ms=now, expires_at_unix_ms=now + DAY_MS))
    beside = version("v4", parents=["v1"])
    plan = commit(A, beside, expected=["v3"], heads=["v3", "v4"], staging=within)
    assert await provider.commit(plan) == Staged()

    assert await removed(provider, folding) == 0
    assert await compacted(provider) == 0
    assert await bases(provider, "v1", "v2", "v3") == ["v1", "v2", "v3"]


async def test_a_base_that_goes_between_read_and_commit_is_a_lost_race(
    provider: SqliteProvider, clock: ManualClock
) -> None:
    await chain(provider, "v1", "v2")
    clock.now_unix_ms += 2 * DAY_MS
    assert await bases(provider, "v1") == ["v1"]
    assert await compacted(provider) == 1
    stale = version("v3", parents=["v1"])
    plan: dict[str, Any] = {"expected": ["v2"], "heads": ["v2", "v3"]}

    for own in (None, staging(unit(now_unix_ms=NOW, expires_at_unix_ms=NOW + 9 * DAY_MS))):
        named = await provider.commit(commit(A, stale, base_versions=("v1",), staging=own, **plan))
        with pytest.raises(MisuseError):
            await provider.commit(commit(A, stale, staging=own, **plan))

        assert isinstance(named, Raced)
        assert named.bases == ()
        assert [head.id for head in named.heads] == ["v2"]


async def test_a_base_that_goes_is_a_lost_race_in_a_work_unit_too(
    provider: SqliteProvider, clock: ManualClock
) -> None:
    await chain(provider, "v1", "v2")
    clock.now_unix_ms += 2 * DAY_MS
    now = clock.now_unix_ms
    within_unit = staging(unit(now_unix_ms=now, expires_at_unix_ms=now + DAY_MS))
    opened = await provider.read(read(A, "v1", unit=within_unit.unit))
    assert isinstance(opened, Reading)
    assert [base.id for base in opened.bases] == ["v1"]
    assert await compacted(provider) == 1

    stale = version("v3", parents=["v1"])
    lost = await provider.commit(
        commit(
            A,
            stale,
            expected=["v2"],
            heads=["v2", "v3"],
            base_versions=("v1",),
            staging=within_unit,
        )
    )

    assert isinstance(lost, Raced)
    assert ([head.id for head in lost.heads], lost.bases) == (["v2"], ())


async def test_everything_goes_by_itself(tmp_path: Path, clock: ManualClock) -> None:
    limits = SqliteLimits(prune_interval_seconds=0.01, history_interval_seconds=0.0, prune_step=2)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits)
    await provider.initialize(RETENTION)
    await chain(provider, "v1", "v2", "v3", "v4", "v5")
    closing = staging(unit(expires_at_unix_ms=NOW + 10 * DAY_MS), close=True)
    await provider.commit(create(B, "b1", staging=closing))
    for number in range(5):
        known = record(control(f"r{number}"), expires_at_unix_ms=NOW + 1000)
        await provider.commit(create(entity(f"e{number}"), f"w{number}", idempotency=known))
    store = provider._store
    assert store is not None
    assert store.index.wait_until_caught_up(5)
    clock.now_unix_ms += 3 * DAY_MS
    passed = threading.Event()
    fold = store._housekeeper._fold_step
    compactor = store._require_compactor()

    def watched(connection: Any) -> bool:
        has_more = fold(connection)
        if not has_more and compactor.count_due(connection) == 0:
            passed.set()
        return has_more

    store._housekeeper._fold_step = watched
    assert await asyncio.to_thread(passed.wait, 20)

    left = store.inline.execute("""
        SELECT (SELECT count(*) FROM change), (SELECT count(*) FROM idempotency),
            (SELECT count(*) FROM work_unit), (SELECT count(*) FROM version)
    """).get
    assert left == (0, 0, 0, 0)
    await provider.shutdown()
    check_truth(tmp_path / "db")


@dataclass
class RunningClock(ManualClock):
    """A clock whose monotonic time is set by the test."""

    seconds: float = 0.0
    now_unix_ms: int = NOW

    def monotonic(self) -> float:
        return self.seconds


def test_a_step_is_as_large_as_its_time_allows() -> None:
    clock = RunningClock()
    pace = Pace(clock, most=1000, seconds=0.002)
    sizes: list[int] = []

    for per_thing in [0.0, 0.0, 0.000_1, 0.000_1, 0.000_01, 0.000_01, 0.01, 0.01, 0.0]:
        number = pace.size
        with pace.measured(number):
            clock.seconds += number * per_thing
        sizes.append(pace.size)

    assert sizes == [128, 256, 20, 40, 80, 160, 4, 4, 8]


def test_a_step_that_had_little_to_do_says_nothing_about_a_larger_one() -> None:
    pace = Pace(RunningClock(), most=1000, seconds=0.002)

    with pace.measured(3):
        pass

    assert pace.size == 64


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([], 0), ([5], 1), ([50], 1), ([5, 5, 1], 2), ([5, 6], 1), ([1, 1, 1, 1], 3)],
)
def test_what_is_removed_at_once_is_bounded_in_bytes(sizes: list[int], expected: int) -> None:
    assert within(sizes, most=3, most_bytes=10) == expected


async def test_long_answers_and_values_go_one_by_one(tmp_path: Path, clock: ManualClock) -> None:
    limits = SqliteLimits(prune_interval_seconds=3600, step_bytes=1000)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits)
    await provider.initialize(RETENTION)
    long = "x" * 900
    assert isinstance(await provider.commit(create(A, "v0", long)), Committed)
    for number in range(4):
        known = record(control(f"r{number}"), result_json=f'"{long}"', expires_at_unix_ms=NOW + 1)
        plan = update(A, f"v{number}", f"v{number + 1}", long, idempotency=known)
        assert isinstance(await provider.commit(plan), Committed)
    clock.now_unix_ms += 2 * DAY_MS
    steps: list[tuple[int, int]] = []

    while True:
        step = await provider.compact(CompactionPlan(limit=100))
        steps.append((step.idempotency_records, step.versions))
        if not step.is_more_due:
            break

    assert [step for step in steps if any(step)] == [(1, 0)] * 3 + [(1, 1)] + [(0, 1)] * 3
    await provider.shutdown()


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Draw steps: which versions a new one goes back to, which heads it replaces, and its age."""
    length = draw(st.integers(1, 14))
    steps: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    for number in range(length):
        some = st.lists(st.integers(0, max(number - 1, 0)), max_size=3, unique=True)
        parents = draw(some) if number else []
        replaced = draw(some) if number else []
        steps.append((tuple(parents), tuple(replaced), draw(st.sampled_from([0, 1, 3]))))
    return steps


async def divergences(
    provider: SqliteProvider, names: list[str]
) -> dict[tuple[str, ...], tuple[list[str], Divergence | None]]:
    """Return heads and divergence for none of the versions as bases, for each and for each pair."""
    asked = [(), *((name,) for name in names), *combinations(names, 2)]
    told: dict[tuple[str, ...], tuple[list[str], Divergence | None]] = {}
    for some in asked:
        found = await provider.read(read(A, *some, with_divergence=True))
        assert isinstance(found, Reading)
        assert {base.id for base in found.bases} == set(some)
        told[some] = ([head.id for head in found.heads], found.divergence)
    return told


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=histories())
async def test_what_stays_diverges_as_before(
    steps: list[tuple[tuple[int, ...], tuple[int, ...], int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Whatever the graph of versions, and whichever of them are named as bases."""
    path = tmp_path_factory.mktemp("store") / "db"
    clock = ManualClock()
    provider = SqliteProvider(path, clock=clock, limits=QUIET)
    await provider.initialize(RETENTION)
    heads: list[str] = []
    age = 3
    for number, (parents, replaced, older) in enumerate(steps):
        age = min(age, older)  # time goes on: no step is older than the one before
        new = version(f"v{number:02}", parents=[f"v{parent:02}" for parent in parents])
        stay = [head for head in heads if int(head[1:]) not in replaced]
        recorded_at = NOW - age * DAY_MS
        plan = commit(
            A, new, expected=heads, heads=[*stay, new.id], recorded_at_unix_ms=recorded_at
        )
        assert isinstance(await provider.commit(plan), Committed)
        heads = [*stay, new.id]
    clock.now_unix_ms = NOW + DAY_MS // 2
    everything = [f"v{number:02}" for number in range(len(steps))]
    before = await divergences(provider, everything)

    went = await compacted(provider)
    left = await bases(provider, *everything)

    assert went == len(everything) - len(left)
    assert set(heads) <= set(left)
    after = await divergences(provider, left)
    assert after == {some: before[some] for some in after}
    await provider.shutdown()
    check_truth(path)
