"""Closing a work unit that has not drifted: publication in one step."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    DeadlineExceededError,
    Published,
    VersionState,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    found,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    NOW,
    SCOPE,
    create,
    delete,
    entity,
    read,
    update,
    version,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite
from patchouli.provider_conformance.suite.unit_steps import (
    CLOSING,
    IN_UNIT,
    A,
    B,
    C,
    kinds,
)

if TYPE_CHECKING:
    from patchouli.provider import Provider


@pytest.mark.requires("work_units")
class PublicationConformance(ProviderSuite):
    """A unit that has not drifted becomes visible in one step, one change an entity."""

    async def test_everything_becomes_visible_with_the_closing_entity_last(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(C, "c1", staging=IN_UNIT))
        await staged(provider, create(B, "b1", staging=IN_UNIT))
        await staged(provider, create(entity("a", kind="task"), "t1", staging=IN_UNIT))

        outcome = await published(provider, create(A, "a1", staging=CLOSING))

        assert [entity.key.id + entity.key.type for entity in outcome.entities] == [
            "bnote",
            "cnote",
            "atask",
            "anote",
        ]
        assert [[h.id for h in e.heads] for e in outcome.entities] == [
            ["b1"],
            ["c1"],
            ["t1"],
            ["a1"],
        ]
        assert (outcome.sealed_by, outcome.accepted) == ('"the close"', "a1")
        log = await all_changes(provider, SCOPE)
        assert [change.cursor for change in log] == [e.cursor for e in outcome.entities]
        assert [change.head_versions for change in log] == [("b1",), ("c1",), ("t1",), ("a1",)]
        assert await found(provider) == ["a", "a", "b", "c"]

    async def test_a_change_has_the_token_meta_and_time_of_the_last_mutation(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", event_meta_json='{"n":1}', staging=IN_UNIT))
        await staged(provider, update(A, "a1", "a2", event_meta_json='{"n":2}', staging=IN_UNIT))

        await published(provider, create(B, "b1", recorded_at_unix_ms=NOW + 7, staging=CLOSING))

        first, second = await all_changes(provider, SCOPE)
        assert (first.causal_token, first.event_meta_json) == ("token-a2", '{"n":2}')
        assert (first.recorded_at_unix_ms, second.recorded_at_unix_ms) == (NOW + 7, NOW + 7)

    async def test_two_mutations_of_an_entity_are_one_change_and_two_versions(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await published(provider, update(A, "a1", "a2", staging=CLOSING))

        seen = await reading(provider, read(A, "a1"))
        assert ([h.id for h in seen.heads], [b.id for b in seen.bases]) == (["a2"], ["a1"])
        assert await kinds(provider) == [("a", "created", ("a2",))]

    async def test_a_version_that_was_merged_at_once_is_published_and_is_no_head(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        both = update(A, "a1", "a2", staging=CLOSING)
        merged = version("m", parents=["a2", "a1"])
        plan = replace(
            both, new_versions=(*both.new_versions, merged), head_versions=version_ids(["m"])
        )

        outcome = await published(provider, plan)

        assert [[head.id for head in e.heads] for e in outcome.entities] == [["m"]]
        seen = await reading(provider, read(A, "a1", "a2"))
        assert [head.id for head in seen.heads] == ["m"]
        assert sorted(base.id for base in seen.bases) == ["a1", "a2"]

    async def test_kinds_follow_from_the_heads_before_and_after(self, provider: Provider) -> None:
        for name in "abcd":
            await committed(provider, create(entity(name), f"{name}1"))
        pair = update(entity("d"), "d1", "d2")
        twins = (*pair.new_versions, version("d3"))
        last = await committed(
            provider, replace(pair, new_versions=twins, head_versions=version_ids(["d2", "d3"]))
        )
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
        await staged(provider, delete(B, "b1", "b2", staging=IN_UNIT))
        split = update(C, "c1", "c3", staging=IN_UNIT)
        heads = version_ids(["c3", "c2"])
        await staged(
            provider,
            replace(split, new_versions=(*split.new_versions, version("c2")), head_versions=heads),
        )
        merged = update(entity("d"), "d2", "d4", staging=IN_UNIT)
        await staged(provider, replace(merged, expected_heads=version_ids(["d2", "d3"])))

        await published(provider, create(entity("e"), "e1", staging=CLOSING))

        assert await kinds(provider, last) == [
            ("a", "updated", ("a2",)),
            ("b", "deleted", ("b2",)),
            ("c", "conflicted", ("c2", "c3")),
            ("d", "resolved", ("d4",)),
            ("e", "created", ("e1",)),
        ]

    async def test_what_a_unit_created_and_deleted_shows_no_change_and_is_deleted(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await staged(provider, delete(A, "a1", "a2", staging=IN_UNIT))

        await published(provider, create(B, "b1", staging=CLOSING))

        assert await kinds(provider) == [("b", "created", ("b1",))]
        assert [h.state for h in (await reading(provider, read(A))).heads] == [VersionState.DELETED]
        assert await found(provider) == ["b"]

    async def test_a_reader_sees_all_of_a_unit_or_nothing(self, provider: Provider) -> None:
        names = [f"e{n}" for n in range(12)]
        for name in names:
            await staged(provider, create(entity(name), f"v-{name}", staging=IN_UNIT))
        closing = asyncio.create_task(provider.commit(create(A, "a1", staging=CLOSING)))

        counts: set[int] = set()
        while not closing.done():
            await asyncio.sleep(0)
            counts.add(len(await found(provider)))
            counts.add(len(await all_changes(provider, SCOPE)))
        counts.add(len(await found(provider)))

        assert isinstance(await closing, Published)
        assert counts <= {0, 13}

    async def test_a_late_close_publishes_and_stages_nothing(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        async with unchanged(provider, A, B):
            with pytest.raises(DeadlineExceededError):
                await provider.commit(create(B, "b1", staging=CLOSING, deadline_unix_ms=LATE))

        await published(provider, create(B, "b1", staging=CLOSING))
        assert await kinds(provider) == [("a", "created", ("a1",)), ("b", "created", ("b1",))]
