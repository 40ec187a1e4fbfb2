"""How work units refuse: another policy, after the end, past their time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Publish,
    UnitRefused,
    UnitState,
)
from patchouli.provider_conformance.asking import (
    committed,
    head_ids,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    create,
    entity,
    read,
    retrieve,
    staging,
    unit,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider, WorkUnit
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Reopen

A, B, C = entity("a"), entity("b"), entity("c")
UNIT = unit()
OTHER_UNIT = unit("other")
IN_UNIT = staging(UNIT)
CLOSING = staging(UNIT, close=True)


async def refusal(provider: Provider, work_unit: WorkUnit) -> list[UnitState | None]:
    """Return how a read, a retrieval, a staging and a closing mutation are refused."""
    outcomes = [
        await provider.read(read(C, unit=work_unit)),
        await provider.retrieve(retrieve(unit=work_unit)),
        await provider.commit(create(C, "refused", staging=staging(work_unit))),
        await provider.commit(create(C, "refused", staging=staging(work_unit, close=True))),
    ]
    return [outcome.state if isinstance(outcome, UnitRefused) else None for outcome in outcomes]


@pytest.mark.requires("work_units")
class UnitStateConformance(ProviderSuite):
    """A unit is used under its own policy only, once, and until it expires."""

    @pytest.mark.parametrize(
        "other", [replace(UNIT, policy_json='{"policy":2}'), replace(UNIT, scope=OTHER_SCOPE)]
    )
    async def test_another_policy_or_scope_is_refused_in_every_state(
        self, provider: Provider, clock: ManualClock, other: WorkUnit
    ) -> None:
        mismatch = [UnitState.POLICY_MISMATCH] * 4
        await reading(provider, read(A, unit=UNIT))
        assert await refusal(provider, other) == mismatch
        await published(provider, create(A, "a1", staging=CLOSING))
        assert await refusal(provider, other) == mismatch

    async def test_a_committed_unit_is_refused_for_ever(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await published(provider, create(A, "a1", staging=CLOSING))

        again = await reopen(provider)

        assert await refusal(again, UNIT) == [UnitState.COMMITTED] * 4
        assert await head_ids(again, C) == []
        outcome = await again.publish(Publish(unit=UNIT, recorded_at_unix_ms=NOW))
        assert outcome == UnitRefused(state=UnitState.COMMITTED)

    async def test_an_overdue_unit_is_discarded_when_it_is_used(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        overdue = replace(UNIT, now_unix_ms=UNIT.expires_at_unix_ms)

        async with unchanged(provider, A):
            assert await refusal(provider, overdue) == [UnitState.EXPIRED] * 4

        assert await refusal(provider, UNIT) == [UnitState.EXPIRED] * 4
        await committed(provider, create(A, "a1"))  # version and token are free again

    @pytest.mark.parametrize("is_restarted", [False, True])
    async def test_an_overdue_unit_is_discarded_by_the_clock_of_the_provider(
        self, provider: Provider, clock: ManualClock, reopen: Reopen, *, is_restarted: bool
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        clock.now_unix_ms = UNIT.expires_at_unix_ms
        if is_restarted:
            provider = await reopen(provider)
        else:
            await provider.checkpoint()

        assert await refusal(provider, UNIT) == [UnitState.EXPIRED] * 4
        assert await head_ids(provider, A) == []

    async def test_a_unit_is_open_until_the_last_millisecond(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        clock.now_unix_ms = UNIT.expires_at_unix_ms - 1
        await provider.checkpoint()
        last = replace(UNIT, now_unix_ms=clock.now_unix_ms)

        await published(provider, create(B, "b1", staging=staging(last, close=True)))

        assert await head_ids(provider, A) == ["a1"]

    async def test_a_later_request_does_not_extend_the_unit(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        longer = replace(UNIT, expires_at_unix_ms=UNIT.expires_at_unix_ms * 2)
        await reading(provider, read(A, unit=longer))

        clock.now_unix_ms = UNIT.expires_at_unix_ms

        late = replace(longer, now_unix_ms=clock.now_unix_ms)
        assert await refusal(provider, late) == [UnitState.EXPIRED] * 4

    async def test_a_committed_unit_does_not_expire(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await published(provider, create(A, "a1", staging=CLOSING))

        clock.now_unix_ms = UNIT.expires_at_unix_ms
        await provider.checkpoint()

        assert await refusal(provider, UNIT) == [UnitState.COMMITTED] * 4
        assert await head_ids(provider, A) == ["a1"]
