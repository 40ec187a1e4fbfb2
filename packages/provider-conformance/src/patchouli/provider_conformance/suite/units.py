"""Work units before they are closed: opening, the fixed view, staging, refusal, expiry."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Consistency,
    DeadlineExceededError,
    MisuseError,
    Raced,
    Source,
    Unavailable,
)
from patchouli.provider_conformance.asking import (
    committed,
    found,
    head_ids,
    page_of,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    SCOPE,
    changes,
    create,
    delete,
    entity,
    read,
    retrieve,
    staging,
    unit,
    update,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider, WorkUnit
    from patchouli.provider_conformance.suite.base import Reopen

A, B, C = entity("a"), entity("b"), entity("c")
UNIT = unit()
OTHER_UNIT = unit("other")
IN_UNIT = staging(UNIT)
CLOSING = staging(UNIT, close=True)


async def heads_in(provider: Provider, work_unit: WorkUnit, name: str) -> list[str]:
    """Return the ids of the heads of an entity in the view of a unit."""
    plan = read(entity(name), unit=work_unit)
    return [head.id for head in (await reading(provider, plan)).heads]


@pytest.mark.requires("work_units")
class UnitViewConformance(ProviderSuite):
    """A unit reads the scope as it was when it was opened, and over it what it has staged."""

    async def test_a_read_of_an_unknown_entity_opens_the_unit(self, provider: Provider) -> None:
        cursor = await committed(provider, create(B, "b1"))

        seen = await reading(provider, read(A, unit=UNIT))
        await committed(provider, create(A, "later"))

        assert seen.heads == ()
        assert (seen.observation.frontier, seen.observation.causal_token) == (cursor, "token-b1")
        assert await heads_in(provider, UNIT, "a") == []

    async def test_a_retrieval_opens_the_unit(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))

        await page_of(provider, retrieve(unit=UNIT))
        await committed(provider, update(A, "a1", "a2"))

        assert await heads_in(provider, UNIT, "a") == ["a1"]

    async def test_a_staging_commit_opens_the_unit(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))

        await staged(provider, create(B, "b1", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a2"))

        assert await heads_in(provider, UNIT, "a") == ["a1"]

    async def test_a_refused_create_opens_the_unit(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))

        outcome = await provider.commit(create(A, "a9", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a2"))

        assert isinstance(outcome, Raced)
        assert await heads_in(provider, UNIT, "a") == ["a1"]

    async def test_what_is_unavailable_late_or_wrong_opens_nothing(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1"))
        late = Consistency(deadline_unix_ms=LATE)
        nowhere = Consistency(allowed_sources=frozenset({Source.REPLICA}))

        with pytest.raises(DeadlineExceededError):
            await provider.read(read(A, unit=UNIT, consistency=late))
        if not provider.capabilities().replica:
            outcome = await provider.read(read(A, unit=UNIT, consistency=nowhere))
            assert isinstance(outcome, Unavailable)
        with pytest.raises(DeadlineExceededError):
            await provider.commit(create(B, "b1", staging=IN_UNIT, deadline_unix_ms=LATE))
        with pytest.raises(MisuseError):
            await provider.commit(create(B, "b1", staging=IN_UNIT, head_versions=()))
        await committed(provider, update(A, "a1", "a2"))

        assert await heads_in(provider, UNIT, "a") == ["a2"]
        assert await heads_in(provider, UNIT, "b") == []

    async def test_a_unit_that_would_be_overdue_is_not_opened(self, provider: Provider) -> None:
        overdue = replace(UNIT, expires_at_unix_ms=UNIT.now_unix_ms)

        with pytest.raises(MisuseError):
            await provider.read(read(A, unit=overdue))

        assert await heads_in(provider, UNIT, "a") == []

    async def test_what_is_staged_shows_in_the_unit_and_nowhere_else(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1", {"t": "old"}))
        await reading(provider, read(A, unit=OTHER_UNIT))

        async with unchanged(provider, A, B):
            await staged(provider, update(A, "a1", "a2", {"t": "new"}, staging=IN_UNIT))
            await staged(provider, create(B, "b1", {"t": "new"}, staging=IN_UNIT))

        assert await heads_in(provider, UNIT, "a") == ["a2"]
        assert await heads_in(provider, UNIT, "b") == ["b1"]
        assert await heads_in(provider, OTHER_UNIT, "a") == ["a1"]
        assert await heads_in(provider, OTHER_UNIT, "b") == []
        assert await found(provider, text="new") == []
        assert (await reading(provider, read(A, "a2"))).bases == ()

    async def test_an_entity_touched_late_is_seen_as_it_was_at_the_opening(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1"))
        await committed(provider, create(B, "b1"))
        await reading(provider, read(A, unit=UNIT))
        for number in range(1, 4):
            await committed(provider, update(B, f"b{number}", f"b{number + 1}"))
        await committed(provider, create(C, "c1"))

        seen = await reading(provider, read(B, "b1", "b2", "b4", unit=UNIT))

        assert [head.id for head in seen.heads] == ["b1"]
        assert [base.id for base in seen.bases] == ["b1"]
        assert await heads_in(provider, UNIT, "c") == []

    async def test_several_heads_of_the_baseline_are_seen(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        two = update(A, "a1", "a2")
        twins = (*two.new_versions, replace(two.new_versions[0], id=version_ids(["a3"])[0]))
        await committed(
            provider, replace(two, new_versions=twins, head_versions=version_ids(["a2", "a3"]))
        )
        await reading(provider, read(B, unit=UNIT))
        await committed(
            provider, replace(update(A, "a2", "a4"), expected_heads=version_ids(["a2", "a3"]))
        )

        assert await heads_in(provider, UNIT, "a") == ["a2", "a3"]

    async def test_staged_versions_are_bases_and_parents_in_their_unit(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
        await staged(provider, update(A, "a2", "a3", staging=IN_UNIT))

        seen = await reading(provider, read(A, "a1", "a2", unit=UNIT, with_divergence=True))

        assert sorted(base.id for base in seen.bases) == ["a1", "a2"]
        assert seen.divergence is not None
        assert seen.divergence.base == "a1"
        assert [node.id for node in seen.divergence.nodes] == ["a1", "a2", "a3"]

    async def test_staged_versions_are_unknown_parents_elsewhere(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))

        with pytest.raises(MisuseError):
            await provider.commit(
                replace(update(A, "a2", "a3"), expected_heads=version_ids(["a1"]))
            )

    async def test_a_stale_mutation_meets_the_heads_of_the_unit(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))

        outcome = await provider.commit(
            update(A, "a1", "a3", staging=IN_UNIT, base_versions=version_ids(["a1"]))
        )

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["a2"]
        assert [base.id for base in outcome.bases] == ["a1"]
        assert await heads_in(provider, UNIT, "a") == ["a2"]

    async def test_a_retrieval_in_a_unit_overlays_the_baseline(self, provider: Provider) -> None:
        for name in "abcd":
            await committed(provider, create(entity(name), f"{name}1", {"t": f"word {name}"}))
        await staged(provider, update(A, "a1", "a2", {"t": "other a"}, staging=IN_UNIT))
        await staged(provider, delete(B, "b1", "b2", staging=IN_UNIT))
        await staged(provider, create(entity("e"), "e1", {"t": "word e"}, staging=IN_UNIT))
        await committed(provider, update(C, "c1", "c2", {"t": "changed"}))
        await committed(provider, create(entity("f"), "f1", {"t": "word f"}))

        assert await found(provider, unit=UNIT, text="word") == ["c", "d", "e"]
        assert await found(provider, unit=UNIT, text="other") == ["a"]
        assert await found(provider, unit=UNIT) == ["a", "c", "d", "e"]
        assert await found(provider, text="word") == ["a", "b", "d", "f"]
        assert [hit.heads[0].id for hit in (await page_of(provider, retrieve(unit=UNIT))).hits] == [
            "a2",
            "c1",
            "d1",
            "e1",
        ]

    async def test_an_entity_touched_late_is_seen_as_it_was_though_its_changes_were_pruned(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "a1", recorded_at_unix_ms=10))
        await reading(provider, read(B, unit=UNIT))
        await committed(provider, update(A, "a1", "a2", recorded_at_unix_ms=10))
        await provider.read_changes(changes(retained_after_unix_ms=11))
        await provider.checkpoint()

        assert await heads_in(provider, UNIT, "a") == ["a1"]

    async def test_a_unit_survives_a_restart(self, provider: Provider, reopen: Reopen) -> None:
        await committed(provider, create(A, "a1"))
        await staged(provider, create(B, "b1", staging=IN_UNIT))
        await committed(provider, update(A, "a1", "a2"))

        again = await reopen(provider)

        assert await heads_in(again, UNIT, "a") == ["a1"]
        assert await heads_in(again, UNIT, "b") == ["b1"]
        await published(again, create(C, "c1", staging=CLOSING))
        assert await head_ids(again, B) == ["b1"]

    async def test_a_staged_mutation_does_not_wake_and_a_publication_does(
        self, provider: Provider
    ) -> None:
        cursor = await committed(provider, create(A, "a1"))
        waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, cursor))
        await asyncio.sleep(0)

        await staged(provider, create(B, "b1", staging=IN_UNIT))
        await asyncio.sleep(0)
        is_woken_by_staging = waiter.done()
        await published(provider, create(C, "c1", staging=CLOSING))

        assert not is_woken_by_staging
        await asyncio.wait_for(waiter, 5)
