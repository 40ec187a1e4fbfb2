"""Closing a work unit that others have overtaken: drift, resolutions, discarding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Drifted,
    Published,
    Raced,
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
)
from patchouli.provider_conformance.builders import (
    FOREVER,
    SCOPE,
    create,
    delete,
    read,
    retrieve,
    staging,
    update,
    version,
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
    from patchouli.provider import Provider
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import OpenProvider, Reopen


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
        assert len(await kinds(provider)) == 4  # nothing of the unit is published

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

    @pytest.mark.parametrize(
        ("holds", "expected"),
        [
            ([False, False, False], '"2"'),
            ([True, False, False], '"0"'),
            ([False, True, False], '"1"'),
            ([True, False, True], '"2"'),
            ([True, True, False], '"1"'),
        ],
    )
    async def test_a_policy_that_is_held_is_replaced_by_a_held_one_only(
        self, provider: Provider, reopen: Reopen, holds: list[bool], expected: str
    ) -> None:
        await committed(provider, create(A, "a1"))
        for number, is_held in enumerate(holds):
            how = staging(UNIT, policy=f'"{number}"', holds=is_held)
            base, name = (f"s{number - 1}" if number else "a1"), f"s{number}"
            meta = f'{{"n":{number}}}'
            await staged(provider, update(A, base, name, event_meta_json=meta, staging=how))
        await committed(provider, update(A, "a1", "a9"))
        provider = await reopen(provider)

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        assert [c.conflict_policy_json for c in outcome.conflicts] == [expected]
        done = await provider.publish(
            publish(resolution(outcome.conflicts[0], joined("m", "s2", "a9")))
        )
        assert isinstance(done, Published)
        assert (await all_changes(provider, SCOPE))[-2].event_meta_json == '{"n":2}'

    async def test_a_lost_race_in_the_unit_leaves_what_was_staged_as_it_was(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1"))
        first = staging(UNIT, policy='"first"')
        meta = '{"n":1}'
        await staged(provider, update(A, "a1", "a2", event_meta_json=meta, staging=first))
        await committed(provider, update(A, "a1", "a9"))
        lost = staging(UNIT, policy='"lost"', holds=True)
        assert isinstance(await provider.commit(update(A, "a1", "a3", staging=lost)), Raced)

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        (conflict,) = outcome.conflicts
        assert conflict.conflict_policy_json == '"first"'
        await provider.publish(publish(resolution(conflict, joined("m", "a2", "a9"))))
        change = (await all_changes(provider, SCOPE))[-2]
        assert (change.causal_token, change.event_meta_json) == ("token-a2", meta)

    async def test_a_conflict_brings_the_versions_between_its_surviving_heads(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
        await staged(provider, update(A, "a2", "a3", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a9"))

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        (divergence,) = [conflict.divergence for conflict in outcome.conflicts]
        assert divergence is not None
        assert divergence.base == "a1"
        assert {node.id: node.parents for node in divergence.nodes} == {
            "a1": (),
            "a2": ("a1",),
            "a3": ("a2",),
            "a9": ("a1",),
        }
        assert all(node.value_json is not None for node in divergence.nodes)
        assert await provider.publish(publish()) == outcome

    async def test_a_single_surviving_head_has_no_divergence(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, delete(A, "a1", "a2", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a9"))

        outcome = await provider.commit(create(B, "b1", staging=CLOSING))

        assert isinstance(outcome, Drifted)
        assert [conflict.divergence for conflict in outcome.conflicts] == [None]

    async def test_a_sealed_unit_takes_no_more(self, provider: Provider) -> None:
        await drifted(provider, "a")

        refused = UnitRefused(state=UnitState.CLOSING)
        assert await provider.read(read(A, unit=UNIT)) == refused
        assert await provider.retrieve(retrieve(unit=UNIT)) == refused
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
