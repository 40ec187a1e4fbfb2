"""Clocks that jump: nothing that has ended comes back, and nothing that has not is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Consistency,
    IdentityTaken,
    Order,
    Replayed,
    SessionRequirement,
    Unavailable,
    UnitRefused,
    UnitState,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    head_ids,
    page_of,
    published,
    reading,
    staged,
)
from patchouli.provider_conformance.builders import (
    FOREVER,
    NOW,
    SCOPE,
    changes,
    control,
    create,
    entity,
    probe,
    read,
    record,
    retrieve,
    staging,
    unit,
    update,
)
from patchouli.provider_conformance.suite.base import ProviderSuite
from patchouli.provider_conformance.suite.unit_control import after
from patchouli.provider_conformance.suite.unit_steps import drifted

if TYPE_CHECKING:
    from patchouli.provider import Provider
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import OpenProvider, Reopen

A, B = entity("a"), entity("b")
DAY = 86_400_000
UNIT = unit()
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
IDENTITY = control("request")
OVERDUE = UnitRefused(state=UnitState.EXPIRED)


class ClockConformance(ProviderSuite):
    """Time decides what has ended; the order of commits is none of its business."""

    async def test_changes_keep_their_order_when_the_clock_goes_back(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1", recorded_at_unix_ms=NOW + DAY))
        clock.now_unix_ms = NOW - DAY
        provider = await reopen(provider)
        await committed(provider, update(A, "a1", "a2", recorded_at_unix_ms=NOW - DAY))
        await committed(provider, create(B, "b1", recorded_at_unix_ms=NOW))

        log = await all_changes(provider, SCOPE)

        assert [change.head_versions for change in log] == [("a1",), ("a2",), ("b1",)]
        assert [change.cursor for change in log] == sorted({change.cursor for change in log})
        assert await head_ids(provider, A) == ["a2"]
        newest = await page_of(provider, retrieve(order=Order.NEWEST))
        assert [hit.key for hit in newest.hits] == [B, A]

    async def test_a_cut_off_of_a_clock_that_ran_ahead_removes_what_it_names(
        self, provider: Provider
    ) -> None:
        """A change that was pruned for one reader need not come back for the next."""
        first = await committed(provider, create(A, "a1"))
        ahead = await provider.read_changes(changes(retained_after_unix_ms=NOW + 1))
        assert (ahead.changes, ahead.pruned_through) == ((), first)

        await committed(provider, create(B, "b1", recorded_at_unix_ms=NOW + 2))

        page = await provider.read_changes(changes(first, retained_after_unix_ms=NOW))
        assert [change.id for change in page.changes] == ["b"]
        assert await head_ids(provider, A) == ["a1"]

    async def test_generations_count_whatever_the_clock_says(
        self, provider: Provider, clock: ManualClock, open_provider: OpenProvider
    ) -> None:
        await provider.shutdown()
        for number, now in enumerate((NOW + DAY, NOW - DAY, 0), start=2):
            clock.now_unix_ms = now
            provider = open_provider(clock)
            run = await provider.initialize(FOREVER)
            await provider.shutdown()
            assert (run.generation, run.recovered_after_unclean_shutdown) == (number, False)

    @pytest.mark.requires("causal_reads")
    async def test_tokens_do_not_age(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1", recorded_at_unix_ms=0))
        for now in (NOW + 1000 * DAY, 0):
            clock.now_unix_ms = now
            provider = await reopen(provider)
            await provider.checkpoint()
            await reading(provider, read(A, consistency=after("token-a1")))

    @pytest.mark.requires("idempotency")
    async def test_a_record_is_judged_by_the_time_of_each_request(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await committed(provider, create(A, "a1", idempotency=record(IDENTITY)))
        again = create(A, "a2", idempotency=record(IDENTITY))

        for now in (NOW - DAY, NOW + DAY - 1):
            clock.now_unix_ms = now
            assert await recorded(provider, now_unix_ms=now) == Replayed(result_json='"result"')
            mine = replace(again, idempotency=record(IDENTITY, now_unix_ms=now))
            assert await provider.commit(mine) == Replayed(result_json='"result"')
        clock.now_unix_ms = NOW + DAY
        assert await recorded(provider, now_unix_ms=NOW + DAY) is None

    @pytest.mark.requires("idempotency")
    async def test_an_identity_that_was_used_again_keeps_its_second_record(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1", idempotency=record(IDENTITY)))
        later = NOW + DAY
        anew = record(
            IDENTITY,
            '"second"',
            result_json='"new"',
            now_unix_ms=later,
            expires_at_unix_ms=later + DAY,
        )
        clock.now_unix_ms = later
        await committed(provider, create(B, "b1", idempotency=anew))

        clock.now_unix_ms = NOW
        provider = await reopen(provider)

        assert await recorded(provider) == IdentityTaken()
        assert await recorded(provider, '"second"') == Replayed(result_json='"new"')

    @pytest.mark.requires("work_units")
    async def test_a_unit_is_the_same_when_the_clock_goes_back(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))

        clock.now_unix_ms = NOW - 30 * DAY
        provider = await reopen(provider)
        earlier = replace(UNIT, now_unix_ms=clock.now_unix_ms)

        seen = await reading(provider, read(A, unit=earlier))
        assert [head.id for head in seen.heads] == ["a2"]
        await published(provider, create(B, "b1", staging=staging(earlier, close=True)))

    @pytest.mark.requires("work_units")
    async def test_a_unit_that_was_over_stays_over_when_the_clock_goes_back(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        sealed, brief = UNIT, unit("brief")
        await drifted(provider, "a")
        await staged(provider, create(B, "b1", staging=staging(brief)))
        clock.now_unix_ms = UNIT.expires_at_unix_ms
        await provider.checkpoint()

        clock.now_unix_ms = NOW
        for _ in range(2):
            assert await provider.read(read(A, unit=sealed)) == OVERDUE
            assert await provider.read(read(B, unit=brief)) == OVERDUE
            closing = create(B, "b2", staging=staging(brief, close=True))
            assert await provider.commit(closing) == OVERDUE
            provider = await reopen(provider)
        assert await head_ids(provider, B) == []

    @pytest.mark.requires("work_units")
    async def test_a_use_by_a_clock_that_is_ahead_ends_the_unit_for_good(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        ahead = replace(UNIT, now_unix_ms=UNIT.expires_at_unix_ms)
        assert await provider.read(read(A, unit=ahead)) == OVERDUE

        assert await provider.read(read(A, unit=UNIT)) == OVERDUE
        assert await provider.commit(create(B, "b1", staging=CLOSING)) == OVERDUE

    @pytest.mark.requires("work_units")
    async def test_what_an_overdue_unit_had_staged_is_gone_before_any_sweep(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        clock.now_unix_ms = UNIT.expires_at_unix_ms

        await committed(provider, create(A, "a1", causal_token=CausalToken("another")))
        assert await head_ids(provider, A) == ["a1"]
        late = replace(UNIT, now_unix_ms=clock.now_unix_ms)
        assert await provider.read(read(A, unit=late)) == OVERDUE

    @pytest.mark.requires("work_units")
    async def test_a_caller_whose_clock_is_late_does_not_publish_an_overdue_unit(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        clock.now_unix_ms = UNIT.expires_at_unix_ms

        assert UNIT.now_unix_ms < clock.now_unix_ms
        assert await provider.commit(create(B, "b1", staging=CLOSING)) == OVERDUE
        assert await head_ids(provider, A) == []

    @pytest.mark.requires("work_units")
    async def test_an_overdue_sealed_unit_is_not_reported_at_the_next_start(
        self, provider: Provider, clock: ManualClock, open_provider: OpenProvider
    ) -> None:
        await drifted(provider, "a")
        await provider.shutdown()
        clock.now_unix_ms = UNIT.expires_at_unix_ms
        provider = open_provider(clock)

        run = await provider.initialize(FOREVER)

        assert run.sealed_units == ()
        late = replace(UNIT, now_unix_ms=clock.now_unix_ms)
        assert await provider.read(read(A, unit=late)) == OVERDUE
        await provider.shutdown()

    @pytest.mark.requires("work_units", "monotonic_reads")
    async def test_sessions_do_not_age(
        self, provider: Provider, clock: ManualClock, reopen: Reopen
    ) -> None:
        brief = unit(expires_at_unix_ms=NOW + 1000 * DAY)
        await reading(provider, read(A, unit=brief))
        await committed(provider, create(A, "a1"))
        requirement = SessionRequirement(
            key=control("session"), monotonic_reads=True, read_your_writes=False
        )
        mine = Consistency(sessions=(requirement,))
        await reading(provider, read(A, consistency=mine))

        for now in (NOW + 100 * DAY, 0):
            clock.now_unix_ms = now
            provider = await reopen(provider)
            outcome = await provider.read(read(A, unit=brief, consistency=mine))
            assert isinstance(outcome, Unavailable)


async def recorded(
    provider: Provider, request: str = '"request"', *, now_unix_ms: int = NOW
) -> Replayed | IdentityTaken | None:
    """Return what is known under the identity."""
    question = probe(IDENTITY, request, now_unix_ms=now_unix_ms)
    return (await reading(provider, read(A, idempotency=question))).record
