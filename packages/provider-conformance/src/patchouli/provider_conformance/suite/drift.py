"""Closing a work unit that others have overtaken: drift, resolutions, discarding."""

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
    Publish,
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
    FOREVER,
    LATE,
    NOW,
    SCOPE,
    create,
    entity,
    read,
    staging,
    tombstone,
    unit,
    update,
    version,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Provider, UnitConflict, Version
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import OpenProvider

A, B, C = entity("a"), entity("b"), entity("c")
UNIT = unit()
IN_UNIT = staging(UNIT)
CLOSING = staging(UNIT, close=True, request='"the close"')


def resolution(conflict: UnitConflict, *new: Version) -> Resolution:
    """Return a resolution of `conflict` whose heads are the new versions."""
    return Resolution(
        key=conflict.key,
        expected_published_heads=tuple(head.id for head in conflict.published_heads),
        expected_staged_heads=tuple(head.id for head in conflict.staged_heads),
        new_versions=new,
        head_versions=tuple(v.id for v in new),
    )


def publish(*resolutions: Resolution, discard: bool = False, late: bool = False) -> Publish:
    """Return the publication of the unit with some resolutions."""
    return Publish(
        unit=UNIT,
        resolutions=resolutions,
        recorded_at_unix_ms=NOW + 50,
        discard=discard,
        deadline_unix_ms=LATE if late else None,
    )


async def drifted(provider: Provider, *names: str) -> Drifted:
    """Seal a unit that has updated the named entities, after each was updated outside."""
    for name in names:
        await committed(provider, create(entity(name), f"{name}1"))
    for name in names:
        change = update(entity(name), f"{name}1", f"{name}2", event_meta_json=f'{{"in":"{name}"}}')
        await staged(provider, replace(change, staging=staging(UNIT, policy=f'"{name}"')))
    for name in names:
        await committed(provider, update(entity(name), f"{name}1", f"{name}9"))
    outcome = await provider.commit(create(entity("z"), "z1", staging=CLOSING))
    assert isinstance(outcome, Drifted), outcome
    return outcome


async def kinds(provider: Provider, after: int = 0) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return id, kind and heads of the changes beyond a cursor."""
    log = await all_changes(provider, SCOPE)
    return [(c.id, c.kind.value, tuple(c.head_versions)) for c in log if c.cursor > after]


def joined(name: str, *parents: str) -> Version:
    """Return a version derived from several heads."""
    return version(name, parents=parents, recorded_at_unix_ms=NOW + 50)


@pytest.mark.requires("work_units")
class DriftConformance(ProviderSuite):
    """A unit whose entities were changed by others is sealed until that is resolved."""

    async def test_a_drifted_close_names_every_drifted_entity_with_its_sides(
        self, provider: Provider
    ) -> None:
        outcome = await drifted(provider, "a", "b")

        assert outcome.sealed_by == '"the close"'
        first, second = outcome.conflicts
        assert (first.key, second.key) == (A, B)
        assert first.baseline_heads == ("a1",)
        assert [head.id for head in first.staged_heads] == ["a2"]
        assert [head.id for head in first.published_heads] == ["a9"]
        assert "a1" in first.superseded
        assert not first.superseded & {"a2", "a9"}
        assert (first.conflict_policy_json, second.conflict_policy_json) == ('"a"', '"b"')
        assert not first.is_closing
        assert await kinds(provider, 4) == []

    async def test_a_drifted_closing_entity_is_named_last(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await committed(provider, create(B, "b1"))
        await staged(provider, update(B, "b1", "b2", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a9"))
        await committed(provider, update(B, "b1", "b9"))

        outcome = await provider.commit(update(A, "a1", "a2", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        assert [(c.key, c.is_closing) for c in outcome.conflicts] == [(B, False), (A, True)]

    async def test_entities_that_were_only_read_do_not_drift(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await reading(provider, read(A, unit=UNIT))
        await committed(provider, update(A, "a1", "a9"))

        await published(provider, create(B, "b1", staging=CLOSING))

        assert await head_ids(provider, A) == ["a9"]

    async def test_an_entity_created_outside_drifts(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await committed(provider, create(A, "a9"))

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        (conflict,) = outcome.conflicts
        assert conflict.baseline_heads == ()
        assert [head.id for head in conflict.published_heads] == ["a9"]

    async def test_what_either_side_replaced_is_named(self, provider: Provider) -> None:
        first = version("h1"), version("h2"), version("h3")
        base = create(A, "h1")
        heads = version_ids(["h1", "h2", "h3"])
        await committed(provider, replace(base, new_versions=first, head_versions=heads))
        inside = replace(update(A, "h1", "i1", staging=IN_UNIT), expected_heads=heads)
        await staged(provider, replace(inside, head_versions=version_ids(["h2", "h3", "i1"])))
        outside = replace(update(A, "h2", "o1"), expected_heads=heads)
        await committed(provider, replace(outside, head_versions=version_ids(["h1", "h3", "o1"])))

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        (conflict,) = outcome.conflicts
        assert conflict.superseded & {"h1", "h2", "h3", "i1", "o1"} == {"h1", "h2"}

    async def test_a_sealed_unit_takes_no_more(self, provider: Provider) -> None:
        await drifted(provider, "a")

        refused = UnitRefused(state=UnitState.CLOSING)
        assert await provider.read(read(A, unit=UNIT)) == refused
        assert await provider.commit(create(C, "c1", staging=IN_UNIT)) == refused

    async def test_a_sealed_unit_is_reported_at_the_next_start(
        self, provider: Provider, open_provider: OpenProvider, clock: ManualClock
    ) -> None:
        await drifted(provider, "a")
        await provider.shutdown()
        again = open_provider(clock)

        run = await again.initialize(FOREVER)

        assert [(u.identity, u.scope, u.policy_json) for u in run.sealed_units] == [
            (UNIT.identity, UNIT.scope, UNIT.policy_json)
        ]
        assert run.sealed_units[0].expires_at_unix_ms == UNIT.expires_at_unix_ms
        outcome = await again.publish(publish())
        assert isinstance(outcome, Drifted)
        assert outcome.sealed_by == '"the close"'
        await again.shutdown()

    async def test_another_close_of_a_sealed_unit_stages_nothing(self, provider: Provider) -> None:
        await drifted(provider, "a")

        again = staging(UNIT, close=True, request='"another close"')
        outcome = await provider.commit(create(C, "c1", staging=again))

        assert isinstance(outcome, Drifted)
        assert outcome.sealed_by == '"the close"'
        assert [conflict.key for conflict in outcome.conflicts] == [A]

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
