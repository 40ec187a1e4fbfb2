"""Finishing a sealed work unit: resolutions, discarding, expiry."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    ChangeKind,
    DeadlineExceededError,
    Discarded,
    Drifted,
    MisuseError,
    Published,
    Resolution,
    UnitRefused,
    UnitState,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    head_ids,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    SCOPE,
    create,
    entity,
    read,
    tombstone,
    update,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite
from patchouli.provider_conformance.suite.unit_steps import (
    CLOSING,
    IN_UNIT,
    UNIT,
    A,
    B,
    C,
    drifted,
    joined,
    kinds,
    publish,
    resolution,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Provider
    from patchouli.provider_conformance.builders import ManualClock


@pytest.mark.requires("work_units")
class ResolutionConformance(ProviderSuite):
    """A sealed unit is published with a resolution for each drifted entity, or discarded."""

    async def test_a_resolution_is_published_with_the_meta_of_the_last_mutation(
        self, provider: Provider
    ) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts

        outcome = await provider.publish(publish(resolution(conflict, joined("m", "a2", "a9"))))

        assert isinstance(outcome, Published)
        assert [(e.key, [h.id for h in e.heads]) for e in outcome.entities] == [
            (A, ["m"]),
            (entity("z"), ["z1"]),
        ]
        assert (outcome.sealed_by, outcome.accepted) == ('"the close"', "z1")
        change = (await all_changes(provider, SCOPE))[-2]
        assert (change.kind, change.head_versions) == (ChangeKind.UPDATED, ("m",))
        assert (change.causal_token, change.event_meta_json) == ("token-a2", '{"in":"a"}')
        seen = await reading(provider, read(A, "a1", "a2", "a9"))
        assert [head.parents for head in seen.heads] == [("a2", "a9")]
        assert sorted(base.id for base in seen.bases) == ["a1", "a2", "a9"]

    async def test_a_resolution_may_keep_the_heads_of_both_sides(self, provider: Provider) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        both = replace(resolution(conflict), head_versions=version_ids(["a9", "a2"]))

        outcome = await provider.publish(publish(both))

        assert isinstance(outcome, Published)
        assert await head_ids(provider, A) == ["a2", "a9"]
        assert (await kinds(provider))[-2] == ("a", "conflicted", ("a2", "a9"))

    async def test_a_race_during_the_resolution_publishes_nothing(self, provider: Provider) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        await committed(provider, update(A, "a9", "a10"))

        async with unchanged(provider, A, B, entity("z")):
            outcome = await provider.publish(publish(resolution(conflict, joined("m", "a2"))))

        assert isinstance(outcome, Drifted)
        (now,) = outcome.conflicts
        assert [head.id for head in now.published_heads] == ["a10"]
        corrected = await provider.publish(publish(resolution(now, joined("m", "a2", "a10"))))
        assert isinstance(corrected, Published)
        assert await head_ids(provider, A) == ["m"]

    async def test_resolutions_must_be_those_of_the_drifted_entities(
        self, provider: Provider
    ) -> None:
        first, second = (await drifted(provider, "a", "b")).conflicts
        for_a = resolution(first, joined("ma", "a2", "a9"))
        for_b = resolution(second, joined("mb", "b2", "b9"))
        for_c = replace(for_b, key=C)
        stale = replace(for_b, expected_staged_heads=version_ids(["b1"]))
        wrong: list[Sequence[Resolution]] = [
            [],
            [for_a],
            [for_a, for_a],
            [for_a, for_c],
            [for_a, for_b, for_c],
            [for_a, stale],
        ]

        async with unchanged(provider, A, B, C, entity("z")):
            for resolutions in wrong:
                assert isinstance(await provider.publish(publish(*resolutions)), Drifted)

        assert isinstance(await provider.publish(publish(for_b, for_a)), Published)

    async def test_a_resolution_with_unknown_heads_or_parents_is_refused(
        self, provider: Provider
    ) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        good = resolution(conflict, joined("m", "a2", "a9"))
        wrong = [
            replace(good, head_versions=()),
            replace(good, head_versions=version_ids(["m", "m"])),
            replace(good, head_versions=version_ids(["ghost"])),
            resolution(conflict, joined("m", "ghost")),
            resolution(conflict, replace(tombstone("m"), value_json="{}")),
        ]

        async with unchanged(provider, A, entity("z")):
            for resolved in wrong:
                with pytest.raises(MisuseError):
                    await provider.publish(publish(resolved))

        assert isinstance(await provider.publish(publish(good)), Published)

    async def test_a_late_publication_leaves_the_unit_sealed(self, provider: Provider) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        good = resolution(conflict, joined("m", "a2", "a9"))

        async with unchanged(provider, A, entity("z")):
            with pytest.raises(DeadlineExceededError):
                await provider.publish(publish(good, late=True))

        assert isinstance(await provider.publish(publish(good)), Published)

    async def test_an_open_or_absent_unit_cannot_be_published(self, provider: Provider) -> None:
        with pytest.raises(MisuseError):
            await provider.publish(publish())
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        with pytest.raises(MisuseError):
            await provider.publish(publish())

        await published(provider, create(B, "b1", staging=CLOSING))

    async def test_a_sealed_unit_can_be_discarded(self, provider: Provider) -> None:
        await drifted(provider, "a")

        async with unchanged(provider, A, entity("z")):
            assert await provider.publish(publish(discard=True)) == Discarded()

        expired = UnitRefused(state=UnitState.EXPIRED)
        assert await provider.read(read(A, unit=UNIT)) == expired
        assert await provider.publish(publish()) == expired
        await committed(provider, create(entity("z"), "z1"))  # version and token are free again

    async def test_a_sealed_unit_expires(self, provider: Provider, clock: ManualClock) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        clock.now_unix_ms = UNIT.expires_at_unix_ms
        overdue = replace(UNIT, now_unix_ms=clock.now_unix_ms)
        plan = publish(resolution(conflict, joined("m", "a2", "a9")))

        async with unchanged(provider, A, entity("z")):
            outcome = await provider.publish(replace(plan, unit=overdue))

        assert outcome == UnitRefused(state=UnitState.EXPIRED)
