"""What opens a work unit, what does not, and what a request of another policy meets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    DeadlineExceededError,
    IdentityTaken,
    MisuseError,
    Publish,
    Reading,
    Replayed,
    UnitRefused,
    UnitState,
)
from patchouli.provider_conformance.asking import (
    committed,
    head_ids,
    published,
    reading,
    staged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    NOW,
    OTHER_SCOPE,
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
from patchouli.provider_conformance.suite.unit_steps import drifted

if TYPE_CHECKING:
    from patchouli.provider import Provider, WorkUnit
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Abandon, Start

A, B, C = entity("a"), entity("b"), entity("c")
UNIT = unit()
OTHERS = [replace(UNIT, policy_json='{"policy":2}'), replace(UNIT, scope=OTHER_SCOPE)]
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
IDENTITY = control("request")


async def is_opened_before_the_update(provider: Provider) -> bool:
    """Update an entity outside, and return whether the unit still shows what it was before."""
    await committed(provider, update(C, "c1", "c2"))
    seen = await reading(provider, read(C, unit=UNIT))
    return [head.id for head in seen.heads] == ["c1"]


@pytest.mark.requires("work_units")
class UnitOpeningConformance(ProviderSuite):
    """The first request that reaches the store fixes policy and baseline, however it ends."""

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """A provider with an entity of which the baseline of a unit can be told."""
        provider = await start()
        await committed(provider, create(C, "c1"))
        return provider

    @pytest.mark.requires("idempotency")
    @pytest.mark.parametrize("request_json", ['"request"', '"other"'])
    async def test_a_request_that_its_record_answers_opens_the_unit(
        self, provider: Provider, request_json: str
    ) -> None:
        await committed(provider, create(A, "a1", idempotency=record(IDENTITY)))
        known = Replayed(result_json='"result"') if request_json == '"request"' else IdentityTaken()

        again = create(A, "a2", staging=IN_UNIT, idempotency=record(IDENTITY, request_json))

        assert await provider.commit(again) == known
        assert await is_opened_before_the_update(provider)

    @pytest.mark.requires("idempotency")
    async def test_a_question_whether_a_request_is_known_opens_the_unit(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1", idempotency=record(IDENTITY)))

        seen = await reading(provider, read(A, unit=UNIT, idempotency=probe(IDENTITY)))

        assert seen.record == Replayed(result_json='"result"')
        assert [head.id for head in seen.heads] == ["a1"]
        assert await is_opened_before_the_update(provider)

    async def test_a_closing_commit_opens_and_publishes_at_once(self, provider: Provider) -> None:
        done = await published(provider, update(C, "c1", "c2", staging=CLOSING))

        assert [entity.key for entity in done.entities] == [C]
        assert await head_ids(provider, C) == ["c2"]

    async def test_a_publication_opens_nothing(self, provider: Provider) -> None:
        for discard in (False, True):
            plan = Publish(unit=UNIT, recorded_at_unix_ms=NOW, discard=discard)
            with pytest.raises(MisuseError):
                await provider.publish(plan)

        assert not await is_opened_before_the_update(provider)

    async def test_a_late_close_opens_nothing(self, provider: Provider) -> None:
        with pytest.raises(DeadlineExceededError):
            await provider.commit(create(A, "a1", staging=CLOSING, deadline_unix_ms=LATE))

        assert not await is_opened_before_the_update(provider)

    @pytest.mark.parametrize("other", OTHERS)
    async def test_another_policy_or_scope_is_refused_by_a_publication(
        self, provider: Provider, other: WorkUnit
    ) -> None:
        mismatch = UnitRefused(state=UnitState.POLICY_MISMATCH)
        plan = Publish(unit=other, recorded_at_unix_ms=NOW)
        opened = replace(UNIT, identity=control("opened"))
        await reading(provider, read(A, unit=opened))
        of_opened = replace(other, identity=opened.identity)
        assert await provider.publish(replace(plan, unit=of_opened)) == mismatch
        await drifted(provider, "a")

        assert await provider.publish(plan) == mismatch
        assert await provider.publish(replace(plan, discard=True)) == mismatch

    @pytest.mark.parametrize("other", OTHERS)
    async def test_another_policy_or_scope_is_refused_in_sealed_and_expired_units(
        self, provider: Provider, clock: ManualClock, other: WorkUnit
    ) -> None:
        mismatch = UnitRefused(state=UnitState.POLICY_MISMATCH)
        await drifted(provider, "a")
        for closing in (False, True):
            plan = create(A, "x", staging=staging(other, close=closing))
            assert await provider.commit(plan) == mismatch
        assert await provider.retrieve(retrieve(unit=other)) == mismatch
        clock.now_unix_ms = UNIT.expires_at_unix_ms
        await provider.checkpoint()

        overdue = replace(other, now_unix_ms=clock.now_unix_ms)
        assert await provider.read(read(A, unit=overdue)) == mismatch

    @pytest.mark.requires("idempotency")
    async def test_another_policy_is_refused_before_a_record_is_looked_up(
        self, provider: Provider
    ) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        mismatch = UnitRefused(state=UnitState.POLICY_MISMATCH)

        other = replace(UNIT, policy_json='{"policy":2}')
        question = read(A, unit=other, idempotency=probe(IDENTITY))
        assert await provider.read(question) == mismatch
        assert await provider.commit(replace(mine, staging=staging(other))) == mismatch

    @pytest.mark.requires("idempotency")
    async def test_a_committed_unit_is_read_as_its_record_and_no_more(
        self, provider: Provider
    ) -> None:
        await published(provider, create(A, "a1", staging=CLOSING, idempotency=record(IDENTITY)))

        question = read(A, "a1", unit=UNIT, idempotency=probe(IDENTITY), with_divergence=True)
        seen = await reading(provider, question)

        assert seen.record == Replayed(result_json='"result"')
        assert (seen.heads, seen.bases, seen.divergence) == ((), (), None)

    async def test_what_was_answered_survives_the_end_of_the_process(
        self, provider: Provider, start: Start, abandon: Abandon
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await abandon(provider)
        provider = await start()

        seen = await reading(provider, read(A, unit=UNIT))
        assert [head.id for head in seen.heads] == ["a1"]
        await published(provider, create(B, "b1", staging=CLOSING))
        await abandon(provider)
        provider = await start()
        assert await head_ids(provider, A) == ["a1"]
        outcome = await provider.read(read(A, unit=UNIT))
        assert outcome == UnitRefused(state=UnitState.COMMITTED)

    async def test_a_baseline_that_was_answered_survives_the_end_of_the_process(
        self, provider: Provider, start: Start, abandon: Abandon
    ) -> None:
        assert isinstance(await provider.read(read(A, unit=UNIT)), Reading)
        await abandon(provider)

        assert await is_opened_before_the_update(await start())
