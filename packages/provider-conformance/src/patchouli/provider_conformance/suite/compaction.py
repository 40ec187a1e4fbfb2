"""Compaction: what is past its retention goes in small steps, and nothing that is needed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Compaction,
    CompactionPlan,
    Consistency,
    Drifted,
    IdempotencyRecord,
    MisuseError,
    Raced,
    Reading,
    Replayed,
    Retention,
    SessionRequirement,
    UnavailableError,
    UnitRefused,
    UnitState,
    UnsupportedError,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    found,
    head_ids,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    SCOPE,
    changes,
    commit,
    control,
    create,
    delete,
    entity,
    probe,
    read,
    record,
    staging,
    unit,
    update,
    version,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite
from patchouli.provider_conformance.suite.unit_control import after

if TYPE_CHECKING:
    from patchouli.provider import Commit, ControlKey, EntityKey, Provider
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import OpenProvider, Reopen, Start

A, B, C = entity("a"), entity("b"), entity("c")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)
CHANGES_MS, HISTORY_MS = 100_000, 1_000_000
RETENTION = Retention(
    changes_seconds=CHANGES_MS // 1000,
    idempotency_seconds=CHANGES_MS // 1000,
    history_seconds=HISTORY_MS // 1000,
)
UNIT = unit(expires_at_unix_ms=NOW + 10 * HISTORY_MS)
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
STEPS = 1_000  # more than any case needs; a compaction that never ends is cut off here


async def compacted(provider: Provider, *, limit: int = 100) -> Compaction:
    """Take steps until nothing more is due, and return what they removed together."""
    total = Compaction(changes=0, idempotency_records=0, units=0, versions=0, is_more_due=True)
    for _ in range(STEPS):
        step = await provider.compact(CompactionPlan(limit=limit))
        assert 0 <= freed(step) <= limit
        total = Compaction(
            changes=total.changes + step.changes,
            idempotency_records=total.idempotency_records + step.idempotency_records,
            units=total.units + step.units,
            versions=total.versions + step.versions,
            is_more_due=step.is_more_due,
        )
        if not step.is_more_due:
            return total
    raise AssertionError("the compaction does not end")


def freed(step: Compaction) -> int:
    """Return how much a step removed, whatever it is."""
    return step.changes + step.idempotency_records + step.units + step.versions


async def known(provider: Provider, key: EntityKey, *names: str) -> list[str]:
    """Return those of the named versions that can still be named as bases."""
    return sorted(base.id for base in (await reading(provider, read(key, *names))).bases)


async def updated(provider: Provider, key: EntityKey, *names: str, at: int = NOW) -> None:
    """Replace the single head of `key`, the first name, by each further one in turn."""
    for base, name in pairwise(names):
        await committed(provider, update(key, base, name, recorded_at_unix_ms=at))


def idempotent(identity: ControlKey, *, until: int) -> IdempotencyRecord:
    """Return a record that is kept until a moment."""
    return record(identity, expires_at_unix_ms=until)


class CompactionConformance(ProviderSuite):
    """Past its retention a thing is gone as if it had never been, and nothing else is."""

    @pytest.fixture
    def retention(self) -> Retention:
        """Short times, in the order that an engine keeps them."""
        return RETENTION

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """An initialised provider that compacts on demand."""
        provider = await start()
        try:
            await provider.compact(CompactionPlan(limit=1))
        except UnsupportedError:
            pytest.skip("not offered: compaction on demand")
        return provider

    async def test_an_empty_store_has_nothing_to_remove(self, provider: Provider) -> None:
        step = await provider.compact(CompactionPlan(limit=5, with_due=True))

        assert step == Compaction(
            changes=0, idempotency_records=0, units=0, versions=0, is_more_due=False, due=0
        )

    async def test_nothing_goes_within_its_time(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2", "a3")

        clock.now_unix_ms = NOW + CHANGES_MS
        async with unchanged(provider, A):
            assert freed(await compacted(provider)) == 0
        clock.now_unix_ms = NOW + HISTORY_MS
        await compacted(provider)

        assert await known(provider, A, "a1", "a2", "a3") == ["a1", "a2", "a3"]

    async def test_old_changes_go_and_leave_heads_tokens_and_cursors(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1"))
        await committed(provider, create(A_ELSEWHERE, "far"))
        last = await committed(provider, update(A, "a1", "a2"))
        before = await reading(provider, read(A, "a1"))

        clock.now_unix_ms = NOW + CHANGES_MS + 1
        total = await compacted(provider)
        provider = await reopen(provider)

        assert total.changes == 3
        page = await provider.read_changes(changes())
        assert (page.changes, page.frontier, page.pruned_through) == ((), last, last)
        assert await reading(provider, read(A, "a1")) == before
        assert await found(provider) == ["a"]
        assert await committed(provider, create(B, "b1")) > last
        assert [c.id for c in await all_changes(provider, SCOPE)] == ["b"]

    async def test_a_younger_change_stays_beside_old_ones(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        old = await committed(provider, create(A, "a1"))
        await committed(provider, create(B, "b1", recorded_at_unix_ms=NOW + 1))
        await committed(provider, create(A_ELSEWHERE, "far", recorded_at_unix_ms=NOW + 1))

        clock.now_unix_ms = NOW + CHANGES_MS + 1
        await compacted(provider)

        page = await provider.read_changes(changes())
        assert ([c.id for c in page.changes], page.pruned_through) == (["b"], old)
        assert (await provider.read_changes(changes(scope=OTHER_SCOPE))).pruned_through == 0

    async def test_superseded_versions_past_the_horizon_are_unknown_bases(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2")
        await updated(provider, A, "a2", "a3", "a4", at=NOW + 1)
        before = await reading(provider, read(A))

        clock.now_unix_ms = NOW + HISTORY_MS + 1
        total = await compacted(provider)

        assert total.versions == 1
        assert await known(provider, A, "a1", "a2", "a3", "a4") == ["a2", "a3", "a4"]
        stale = await provider.commit(create(A, "a9", base_versions=version_ids(["a1", "a2"])))
        assert isinstance(stale, Raced)
        assert [base.id for base in stale.bases] == ["a2"]
        with pytest.raises(MisuseError):
            await provider.commit(commit(A, version("a9", parents=["a1"]), expected=["a4"]))
        clock.now_unix_ms = NOW + HISTORY_MS + 2
        assert (await compacted(provider)).versions == 2
        assert await known(provider, A, "a1", "a2", "a3", "a4") == ["a4"]
        assert await reading(provider, read(A)) == before

    async def test_the_head_of_an_entity_stays_whatever_its_age(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1"))
        await committed(provider, commit(B, version("b1"), version("b2")))
        await committed(provider, create(C, "c1"))
        await committed(provider, delete(C, "c1", "c2"))
        before = [await reading(provider, read(key)) for key in (A, B, C)]

        clock.now_unix_ms = NOW + 100 * HISTORY_MS
        await compacted(provider)

        assert [await reading(provider, read(key)) for key in (A, B, C)] == before
        assert await found(provider) == ["a", "b"]
        await committed(provider, update(C, "c2", "c3"))

    async def test_what_lies_between_two_heads_stays(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "r0"))
        await updated(provider, A, "r0", "r1", "r2")
        await committed(provider, branch(A, "r2", "x1", "y1"))
        await committed(provider, keeping(A, "x1", "x2", stays="y1"))
        await committed(provider, keeping(A, "x2", "x3", stays="y1"))
        plan = read(A, "x3", with_divergence=True)
        before = (await reading(provider, plan)).divergence

        clock.now_unix_ms = NOW + HISTORY_MS + 1
        await compacted(provider)

        assert before is not None
        assert before.base == "r2"
        assert [node.id for node in before.nodes] == ["r2", "x1", "y1", "x2", "x3"]
        assert ids_and_parents(await reading(provider, plan)) == [
            ("r2", ()),
            ("x1", ("r2",)),
            ("x2", ("x1",)),
            ("x3", ("x2",)),
            ("y1", ("r2",)),
        ]
        assert await known(provider, A, "r0", "r1", "r2", "x1", "x2") == ["r2", "x1", "x2"]

    async def test_branches_that_have_met_again_go(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "r"))
        await committed(provider, branch(A, "r", "x", "y"))
        joined = version("m", parents=["x", "y"])
        await committed(provider, commit(A, joined, expected=["x", "y"]))

        clock.now_unix_ms = NOW + HISTORY_MS + 1

        assert (await compacted(provider)).versions == 3
        assert (await reading(provider, read(A, "m", "x", "y", "r"))).bases == (joined,)

    async def test_a_base_within_the_horizon_finds_its_divergence(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        """The dominator is past the horizon; a base that goes back to it is not."""
        await committed(provider, create(A, "r"))
        await committed(provider, branch(A, "r", "x", "y"))
        joined = version("m", parents=["x", "y"], recorded_at_unix_ms=NOW + 1)
        await committed(provider, commit(A, joined, expected=["x", "y"]))
        clock.now_unix_ms = NOW + HISTORY_MS + 1

        await compacted(provider)

        seen = await reading(provider, read(A, "x", with_divergence=True))
        assert [base.id for base in seen.bases] == ["x"]
        assert ids_and_parents(seen) == [
            ("m", ("x", "y")),
            ("r", ()),
            ("x", ("r",)),
            ("y", ("r",)),
        ]

    async def test_heads_that_a_retained_change_names_stay(
        self, provider: Provider, clock: ManualClock, open_provider: OpenProvider
    ) -> None:
        """Also where history is shorter than the log, which an engine does not ask for."""
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2", "a3")
        await provider.shutdown()
        provider = open_provider(clock)
        await provider.initialize(replace(RETENTION, history_seconds=1))
        clock.now_unix_ms = NOW + CHANGES_MS

        await compacted(provider)

        assert await known(provider, A, "a1", "a2") == ["a1", "a2"]
        assert (await all_changes(provider, SCOPE))[0].head_versions == ("a1",)
        await provider.shutdown()

    async def test_history_of_zero_seconds_is_kept_for_ever(
        self, provider: Provider, clock: ManualClock, open_provider: OpenProvider
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2")
        await provider.shutdown()
        provider = open_provider(clock)
        await provider.initialize(replace(RETENTION, history_seconds=0))
        clock.now_unix_ms = NOW + 100 * HISTORY_MS

        total = await compacted(provider)

        assert (total.changes, total.versions) == (2, 0)
        assert await known(provider, A, "a1") == ["a1"]
        await provider.shutdown()

    async def test_steps_are_bounded_and_add_up(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        names = [f"v{number}" for number in range(31)]
        await committed(provider, create(A, "v0"))
        await updated(provider, A, *names)
        clock.now_unix_ms = NOW + HISTORY_MS + 1
        due = (await provider.compact(CompactionPlan(limit=1, with_due=True))).due

        first = await provider.compact(CompactionPlan(limit=7))
        provider = await reopen(provider)
        rest = await compacted(provider, limit=7)
        again = await provider.compact(CompactionPlan(limit=7, with_due=True))

        assert due is not None
        assert due > 20
        assert (first.is_more_due, first.due) == (True, None)
        assert 1 + freed(first) + freed(rest) == 61  # 31 changes and 30 versions
        assert (freed(again), again.is_more_due, again.due) == (0, False, 0)
        assert await known(provider, A, *names) == ["v30"]

    @pytest.mark.parametrize("limit", [0, -1])
    async def test_a_limit_below_one_is_refused(self, provider: Provider, limit: int) -> None:
        with pytest.raises(MisuseError):
            await provider.compact(CompactionPlan(limit=limit))

    async def test_a_stopped_provider_does_not_compact(self, provider: Provider) -> None:
        await provider.shutdown()

        with pytest.raises(UnavailableError):
            await provider.compact(CompactionPlan(limit=1))

    async def test_a_clock_that_goes_back_brings_nothing_back(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1"))
        last = await committed(provider, update(A, "a1", "a2"))
        clock.now_unix_ms = NOW + HISTORY_MS + 1
        await compacted(provider)

        clock.now_unix_ms = NOW
        assert freed(await compacted(provider)) == 0

        page = await provider.read_changes(changes())
        assert (page.changes, page.pruned_through) == ((), last)
        assert await known(provider, A, "a1", "a2") == ["a2"]

    async def test_a_clock_that_was_ahead_for_a_while_loses_nothing(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        """What was recorded before the clock was put right is older than it looks, not younger."""
        await committed(provider, create(A, "a1", recorded_at_unix_ms=NOW + 50 * HISTORY_MS))
        await committed(provider, update(A, "a1", "a2", recorded_at_unix_ms=NOW + 50 * HISTORY_MS))
        await committed(provider, update(A, "a2", "a3"))

        clock.now_unix_ms = NOW + CHANGES_MS
        async with unchanged(provider, A):
            assert freed(await compacted(provider)) == 0

        assert await known(provider, A, "a1", "a2", "a3") == ["a1", "a2", "a3"]

    async def test_commits_and_steps_do_not_disturb_each_other(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        keys = [entity(f"e{number}") for number in range(4)]
        for key in keys:
            await committed(provider, create(key, f"{key.id}-0"))
        clock.now_unix_ms = now = NOW + HISTORY_MS + 1

        async def update_all(key: EntityKey) -> None:
            names = [f"{key.id}-{number}" for number in range(12)]
            await updated(provider, key, *names, at=now)

        async def compact_often() -> None:
            for _ in range(12):
                await provider.compact(CompactionPlan(limit=3))

        await asyncio.gather(compact_often(), *(update_all(key) for key in keys))
        await compacted(provider)

        assert [await head_ids(provider, key) for key in keys] == [[f"{k.id}-11"] for k in keys]
        assert len(await all_changes(provider, SCOPE)) == 44
        assert await known(provider, keys[0], "e0-0", "e0-10") == ["e0-0", "e0-10"]

    @pytest.mark.requires("causal_reads")
    async def test_causal_tokens_stay_valid(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2", "a3")
        clock.now_unix_ms = NOW + HISTORY_MS + 1
        await compacted(provider)

        provider = await reopen(provider)

        seen = await reading(provider, read(A, consistency=after("token-a1", "token-a2")))
        assert seen.observation.causal_token == "token-a3"
        with pytest.raises(MisuseError):
            await provider.commit(create(B, "a1"))

    @pytest.mark.requires("monotonic_reads", "work_units")
    async def test_sessions_stay_in_force(self, provider: Provider, clock: ManualClock) -> None:
        await reading(provider, read(A, unit=UNIT))
        await committed(provider, create(A, "a1"))
        requirement = SessionRequirement(
            key=control("session"), monotonic_reads=True, read_your_writes=False
        )
        consistency = Consistency(sessions=(requirement,))
        await reading(provider, read(A, consistency=consistency))

        clock.now_unix_ms = NOW + 5 * HISTORY_MS
        await compacted(provider)

        outcome = await provider.read(read(A, unit=UNIT, consistency=consistency))
        assert not isinstance(outcome, Reading)

    @pytest.mark.requires("idempotency")
    async def test_expired_records_go_and_others_stay(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        early, late = control("early"), control("late")
        until = NOW + CHANGES_MS
        await committed(provider, create(A, "a1", idempotency=idempotent(early, until=until)))
        await committed(provider, create(B, "b1", idempotency=idempotent(late, until=until + 1)))

        clock.now_unix_ms = until - 1
        assert (await compacted(provider)).idempotency_records == 0
        clock.now_unix_ms = until
        total = await compacted(provider)

        assert total.idempotency_records == 1
        assert await recorded(provider, late) == Replayed(result_json='"result"')
        clock.now_unix_ms = NOW
        assert await recorded(provider, early) is None  # a clock that goes back does not help

    @pytest.mark.requires("idempotency", "work_units")
    async def test_a_staged_record_stays_with_its_unit(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        identity = control("request")
        brief = idempotent(identity, until=NOW + 10)
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=brief))
        clock.now_unix_ms = NOW + 5 * HISTORY_MS

        total = await compacted(provider)

        assert total.idempotency_records == 0
        await published(provider, create(B, "b1", staging=CLOSING))  # dated before it ends
        assert await recorded(provider, identity) == Replayed(result_json='"result"')

    @pytest.mark.requires("work_units")
    async def test_identities_of_finished_units_are_unused_again(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        brief, other = unit("brief"), replace(UNIT, policy_json='{"policy":2}')
        await published(provider, create(A, "a1", staging=CLOSING))
        await staged(provider, create(B, "b1", staging=staging(brief)))
        clock.now_unix_ms = ended = brief.expires_at_unix_ms
        await provider.checkpoint()

        clock.now_unix_ms = NOW + HISTORY_MS
        assert (await compacted(provider)).units == 0
        refused = await provider.read(read(A, unit=UNIT))
        assert refused == UnitRefused(state=UnitState.COMMITTED)
        clock.now_unix_ms = NOW + HISTORY_MS + 1
        assert (await compacted(provider)).units == 1
        clock.now_unix_ms = ended + HISTORY_MS + 1
        assert (await compacted(provider)).units == 1
        provider = await reopen(provider)

        await staged(provider, update(A, "a1", "a2", staging=staging(other)))
        again = unit("brief", expires_at_unix_ms=clock.now_unix_ms + 1)
        await staged(provider, create(B, "b1", staging=staging(again)))

    @pytest.mark.requires("work_units")
    async def test_an_unfinished_unit_keeps_its_baseline(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2")
        await committed(provider, create(B, "b1"))
        await updated(provider, B, "b1", "b2")
        await staged(provider, update(A, "a2", "s1", staging=IN_UNIT))
        await updated(provider, A, "a2", "a3", "a4")
        await updated(provider, B, "b2", "b3", "b4")
        clock.now_unix_ms = NOW + 5 * HISTORY_MS

        total = await compacted(provider)
        provider = await reopen(provider)

        assert (total.changes, total.units, total.versions) == (8, 0, 2)
        seen = await reading(provider, read(B, "b1", "b2", unit=UNIT))
        assert [head.id for head in seen.heads] == ["b2"]
        assert [base.id for base in seen.bases] == ["b2"]
        assert await found(provider, unit=UNIT) == ["a", "b"]
        outcome = await provider.commit(create(C, "c1", staging=CLOSING))
        assert isinstance(outcome, Drifted)
        (conflict,) = outcome.conflicts
        assert (conflict.key, conflict.baseline_heads) == (A, ("a2",))
        assert "a2" in conflict.superseded
        assert conflict.divergence is not None
        assert conflict.divergence.base == "a2"
        assert [n.id for n in conflict.divergence.nodes if n.id[0] == "a"] == ["a2", "a3", "a4"]
        assert (await compacted(provider)).versions == 0  # a sealed one needs them as well

    @pytest.mark.requires("work_units")
    async def test_what_staged_versions_go_back_to_stays(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1"))
        await updated(provider, A, "a1", "a2", "a3")
        stale = commit(A, version("s1", parents=["a2"]), expected=["a3"], heads=["a3", "s1"])
        await staged(provider, replace(stale, staging=IN_UNIT))
        clock.now_unix_ms = NOW + 5 * HISTORY_MS

        await compacted(provider)

        await published(provider, create(B, "b1", staging=CLOSING))
        seen = await reading(provider, read(A, "a1", "a3", with_divergence=True))
        assert [base.id for base in seen.bases] == ["a3"]
        assert ids_and_parents(seen) == [("a2", ()), ("a3", ("a2",)), ("s1", ("a2",))]

    @pytest.mark.requires("work_units")
    async def test_a_discarded_unit_keeps_nothing(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        brief = unit("brief")
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "s1", staging=staging(brief)))
        await updated(provider, A, "a1", "a2")
        clock.now_unix_ms = NOW + HISTORY_MS + brief.expires_at_unix_ms

        total = await compacted(provider)

        assert (total.versions, await known(provider, A, "a1", "s1")) == (1, [])


def branch(key: EntityKey, base: str, *names: str) -> Commit:
    """Return a commit that replaces the single head `base` by several made from it."""
    return commit(key, *(version(name, parents=[base]) for name in names), expected=[base])


def keeping(key: EntityKey, base: str, name: str, *, stays: str) -> Commit:
    """Return a commit that replaces one of two heads."""
    new = version(name, parents=[base])
    return commit(key, new, expected=[base, stays], heads=[name, stays])


def ids_and_parents(seen: Reading) -> list[tuple[str, tuple[str, ...]]]:
    """Return the nodes of the divergence by id, with those parents that are among them."""
    assert seen.divergence is not None
    nodes = sorted(seen.divergence.nodes, key=lambda node: node.id)
    kept = {node.id for node in nodes}
    return [(n.id, tuple(p for p in n.parents if p in kept)) for n in nodes]


async def recorded(provider: Provider, identity: ControlKey) -> object:
    """Return what is known under an idempotency identity."""
    return (await reading(provider, read(A, idempotency=probe(identity)))).record
