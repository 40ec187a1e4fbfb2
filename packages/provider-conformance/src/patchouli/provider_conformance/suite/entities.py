"""Creating, reading, updating and deleting one entity, and what a store must refuse to keep."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    ChangeKind,
    Committed,
    Raced,
    Source,
    VersionState,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    head_ids,
    reading,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    NEVER,
    NOW,
    OTHER_SCOPE,
    SCOPE,
    commit,
    create,
    delete,
    entity,
    read,
    tombstone,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider
    from patchouli.provider_conformance.suite.base import Reopen

A, B = entity("a"), entity("b")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)

UNUSUAL_TEXTS = {
    "empty members": '{"":"","a":{}}',
    "escapes": r'{"t":"\"\\\/\b\f\n\r\t\u0000\u001f"}',
    "beyond the basic plane": '{"t":"😀\U0010ffff"}',
    "combining": '{"t":"e\u0301 é"}',
    "large and small numbers": "[18446744073709551615,-9223372036854775808,1e-300,0.1]",
    "a float that is whole": "[1.0,1]",
    "bare": '"text"',
    "null": "null",
    "long": '"' + "x" * 200_000 + '"',
}


class EntityConformance(ProviderSuite):
    """One entity: what goes in comes out, and what contradicts itself does not go in."""

    async def test_an_unknown_entity_has_no_heads(self, provider: Provider) -> None:
        found = await reading(provider, read(A, "v1"))

        assert found.heads == ()
        assert found.bases == ()
        assert found.record is None
        assert found.observation.source is Source.AUTHORITY
        assert found.observation.frontier == 0
        assert found.observation.causal_token is None

    async def test_commits_are_accepted_in_the_order_in_which_they_were_begun(
        self, provider: Provider
    ) -> None:
        names = [f"e{(7 * n) % 20}" for n in range(20)]

        outcomes = await asyncio.gather(
            *(provider.commit(create(entity(name), f"{name}-1")) for name in names)
        )

        log = await all_changes(provider, SCOPE)
        assert [change.id for change in log] == names
        assert outcomes == [Committed(cursor=change.cursor) for change in log]

    async def test_of_two_creates_begun_at_once_the_first_is_accepted(
        self, provider: Provider
    ) -> None:
        first, second = await asyncio.gather(
            provider.commit(create(A, "v1")), provider.commit(create(A, "v2"))
        )

        assert isinstance(first, Committed)
        assert isinstance(second, Raced)
        assert [head.id for head in second.heads] == ["v1"]

    async def test_a_created_entity_is_read_with_its_frontier_and_token(
        self, provider: Provider
    ) -> None:
        made = version("v1", {"text": "hello"}, recorded_at_unix_ms=NOW + 5)

        cursor = await committed(provider, commit(A, made, causal_token=CausalToken("here")))

        found = await reading(provider, read(A))
        assert found.heads == (made,)
        assert cursor >= 1
        assert found.observation.frontier == cursor
        assert found.observation.causal_token == "here"

    async def test_an_existing_entity_cannot_be_created_again(self, provider: Provider) -> None:
        await committed(provider, create(A))

        async with unchanged(provider, A):
            outcome = await provider.commit(create(A))

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["v1"]

    async def test_an_update_replaces_the_head_and_keeps_the_base_readable(
        self, provider: Provider
    ) -> None:
        first, second = version("v1"), version("v2", parents=["v1"])
        await committed(provider, commit(A, first))

        await committed(provider, commit(A, second, expected=["v1"]))

        found = await reading(provider, read(A, "v1"))
        assert found.heads == (second,)
        assert found.bases == (first,)

    async def test_a_delete_leaves_a_tombstone_as_the_head(self, provider: Provider) -> None:
        await committed(provider, create(A))

        await committed(provider, delete(A, "v1", "v2"))

        found = await reading(provider, read(A))
        assert found.heads == (tombstone("v2", parents=["v1"]),)
        assert found.heads[0].value_json is None

    async def test_a_deleted_entity_still_exists_and_can_be_revived(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A))
        await committed(provider, delete(A, "v1", "v2"))

        refused = await provider.commit(create(A, "v3"))
        await committed(provider, update(A, "v2", "v4"))

        assert isinstance(refused, Raced)
        assert [head.state for head in refused.heads] == [VersionState.DELETED]
        assert await head_ids(provider, A) == ["v4"]

    async def test_an_entity_can_begin_with_a_tombstone(self, provider: Provider) -> None:
        await committed(provider, commit(A, tombstone("v1")))

        assert [h.state for h in (await reading(provider, read(A))).heads] == [VersionState.DELETED]

    async def test_named_bases_are_those_known_of_this_entity(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, create(B, "other"))
        await committed(provider, create(A_ELSEWHERE, "elsewhere"))

        found = await reading(provider, read(A, "unknown", "v1", "other", "elsewhere"))

        assert [base.id for base in found.bases] == ["v1"]

    async def test_the_same_type_and_id_in_another_scope_is_another_entity(
        self, provider: Provider
    ) -> None:
        here = await committed(provider, create(A, "v1"))
        there = await committed(provider, create(A_ELSEWHERE, "v2"))

        assert there > here
        assert (await reading(provider, read(A))).observation.frontier == here
        assert (await reading(provider, read(A_ELSEWHERE))).observation.frontier == there
        assert await head_ids(provider, A) == ["v1"]
        assert await head_ids(provider, A_ELSEWHERE) == ["v2"]

    async def test_type_and_id_are_compared_exactly(self, provider: Provider) -> None:
        keys = [
            entity(name, kind=kind)
            for kind, name in [
                ("note", "x"),
                ("Note", "x"),
                ("note", "X"),
                ("note", "x "),
                ("note", "x\0"),
                ("note", "x\0y"),
                ("note", "é"),
                ("note", "e\N{COMBINING ACUTE ACCENT}"),
                ("note", "1"),
                ("note", "1.0"),
                ("note", "😀"),
            ]
        ]
        for number, key in enumerate(keys):
            await committed(provider, create(key, f"v{number}"))

        for number, key in enumerate(keys):
            assert await head_ids(provider, key) == [f"v{number}"]

    @pytest.mark.parametrize("text", UNUSUAL_TEXTS.values(), ids=UNUSUAL_TEXTS.keys())
    async def test_values_and_metadata_come_back_byte_for_byte(
        self, provider: Provider, reopen: Reopen, text: str
    ) -> None:
        made = replace(version("v1"), value_json=text)
        await committed(provider, commit(A, made, event_meta_json='{"m":' + text + "}"))

        again = await reopen(provider)

        assert (await reading(again, read(A))).heads == (made,)
        (change,) = await all_changes(again, SCOPE)
        assert change.event_meta_json == '{"m":' + text + "}"

    async def test_parents_come_back_in_the_order_given(self, provider: Provider) -> None:
        heads = [version("left"), version("right"), version("middle")]
        await committed(provider, commit(A, *heads))
        joined = version("joined", parents=["right", "left", "middle"])

        await committed(provider, commit(A, joined, expected=["left", "middle", "right"]))

        (head,) = (await reading(provider, read(A))).heads
        assert head.parents == ("right", "left", "middle")

    async def test_a_parent_may_be_any_earlier_version(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, update(A, "v1", "v2"))

        await committed(provider, commit(A, version("v3", parents=["v1"]), expected=["v2"]))

        assert (await reading(provider, read(A))).heads[0].parents == ("v1",)

    async def test_a_version_that_was_merged_at_once_is_kept_and_is_no_head(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, update(A, "v1", "other"))
        proposal = version("proposal", parents=["v1"])
        merged = version("merged", parents=["proposal", "other"])

        await committed(provider, commit(A, proposal, merged, expected=["other"], heads=["merged"]))

        found = await reading(await reopen(provider), read(A, "proposal", "other"))
        assert found.heads == (merged,)
        assert sorted(base.id for base in found.bases) == ["other", "proposal"]
        assert next(base for base in found.bases if base.id == "proposal") == proposal

    async def test_the_largest_integers_are_kept(self, provider: Provider) -> None:
        made = version("v1", recorded_at_unix_ms=INTEGER_MAX)

        await committed(provider, commit(A, made, deadline_unix_ms=NEVER))

        assert (await reading(provider, read(A))).heads == (made,)

    async def test_a_change_kind_is_kept_as_given(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        for number, kind in enumerate(ChangeKind, start=1):
            await committed(provider, update(A, f"v{number - 1}", f"v{number}", kind=kind))

        kinds = [change.kind for change in await all_changes(provider, SCOPE)]
        assert kinds == [ChangeKind.CREATED, *ChangeKind]
