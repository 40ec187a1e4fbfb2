"""Several heads of one entity, and who wins when two commits want to replace them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import ChangeKind, Committed, MisuseError, Raced, VersionState
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    head_ids,
    reading,
    unchanged,
)
from patchouli.provider_conformance.builders import (
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

A = entity("a")


class HeadsConformance(ProviderSuite):
    """Heads are replaced by compare-and-swap, and as sets."""

    async def test_heads_come_back_ascending_whatever_the_order_of_the_commit(
        self, provider: Provider
    ) -> None:
        made = [version(name) for name in ["m", "z", "B", "a", "10", "9"]]

        await committed(provider, commit(A, *made))

        assert await head_ids(provider, A) == ["10", "9", "B", "a", "m", "z"]

    async def test_the_change_keeps_the_order_of_the_commit(self, provider: Provider) -> None:
        await committed(provider, commit(A, version("m"), version("z"), version("a")))

        (change,) = await all_changes(provider, SCOPE)
        assert change.head_versions == ("m", "z", "a")

    async def test_expected_heads_match_in_any_order(self, provider: Provider) -> None:
        await committed(provider, commit(A, version("h1"), version("h2"), version("h3")))

        await committed(provider, commit(A, version("v4"), expected=["h3", "h1", "h2"]))

        assert await head_ids(provider, A) == ["v4"]

    @pytest.mark.parametrize(
        "expected", [[], ["h1"], ["h2"], ["h1", "h2", "h3"], ["h1", "old"], ["unknown"]]
    )
    async def test_expected_heads_that_are_not_the_heads_lose(
        self, provider: Provider, expected: list[str]
    ) -> None:
        await committed(provider, create(A, "old"))
        await committed(provider, commit(A, version("h1"), version("h2"), expected=["old"]))

        async with unchanged(provider, A):
            outcome = await provider.commit(commit(A, version("late"), expected=expected))

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["h1", "h2"]

    async def test_expected_heads_of_an_unknown_entity_lose_to_nothing(
        self, provider: Provider
    ) -> None:
        async with unchanged(provider, A):
            outcome = await provider.commit(commit(A, version("v2"), expected=["v1"]))

        assert outcome == Raced(heads=())

    async def test_a_lost_race_brings_the_heads_and_the_known_bases(
        self, provider: Provider
    ) -> None:
        first, second = version("v1", {"n": 1}), version("v2", {"n": 2}, parents=["v1"])
        await committed(provider, commit(A, first))
        await committed(provider, commit(A, second, expected=["v1"]))

        outcome = await provider.commit(update(A, "v1", "v3", base_versions=("v1", "unknown")))

        assert outcome == Raced(heads=(second,), bases=(first,))

    async def test_present_heads_can_stay(self, provider: Provider) -> None:
        await committed(provider, commit(A, version("h1"), version("h2")))

        await committed(
            provider,
            commit(
                A,
                version("h3", parents=["h1"]),
                expected=["h1", "h2"],
                heads=["h2", "h3"],
                kind=ChangeKind.CONFLICTED,
            ),
        )

        found = await reading(provider, read(A, "h1"))
        assert [head.id for head in found.heads] == ["h2", "h3"]
        assert [base.id for base in found.bases] == ["h1"]
        assert [c.head_versions for c in await all_changes(provider, SCOPE)][-1] == ("h2", "h3")

    @pytest.mark.parametrize("stays", [["h2"], ["h1", "h2"]])
    async def test_heads_without_a_new_version_are_refused(
        self, provider: Provider, stays: list[str]
    ) -> None:
        await committed(provider, commit(A, version("h1"), version("h2")))

        async with unchanged(provider, A):
            with pytest.raises(MisuseError):
                await provider.commit(commit(A, expected=["h1", "h2"], heads=stays))

    async def test_a_tombstone_stands_beside_active_heads(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1"))
        await committed(
            provider,
            commit(
                A,
                version("v2"),
                tombstone("v3", parents=["v1"]),
                expected=["v1"],
                heads=["v3", "v2"],
            ),
        )

        states = {head.id: head.state for head in (await reading(provider, read(A))).heads}
        assert states == {"v2": VersionState.ACTIVE, "v3": VersionState.DELETED}

    async def test_one_head_after_many_and_many_after_one(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        """Where heads are kept may depend on their number; what is read may not."""
        await committed(provider, create(A, "v1"))
        await committed(provider, commit(A, version("v2"), version("v3"), expected=["v1"]))
        await committed(provider, commit(A, version("v4"), expected=["v2", "v3"]))
        await committed(provider, update(A, "v4", "v5"))
        await committed(provider, commit(A, version("v6"), version("v7"), expected=["v5"]))

        again = await reopen(provider)

        bases = [f"v{n}" for n in range(1, 8)]
        found = await reading(again, read(A, *bases))
        assert [head.id for head in found.heads] == ["v6", "v7"]
        assert sorted(base.id for base in found.bases) == bases

    async def test_one_of_many_equal_commits_wins(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))

        outcomes = await asyncio.gather(
            *(provider.commit(update(A, "v0", f"v{number}")) for number in range(1, 51))
        )

        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        (winner,) = await head_ids(provider, A)
        for outcome in outcomes:
            if isinstance(outcome, Raced):
                assert [head.id for head in outcome.heads] == [winner]
        assert len(await all_changes(provider, SCOPE)) == 2

    async def test_one_of_many_equal_creates_wins(self, provider: Provider) -> None:
        outcomes = await asyncio.gather(
            *(provider.commit(create(A, f"v{number}")) for number in range(50))
        )

        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        assert len(await head_ids(provider, A)) == 1

    async def test_commits_to_different_entities_all_succeed(self, provider: Provider) -> None:
        keys = [entity(f"e{number}") for number in range(50)]

        outcomes = await asyncio.gather(
            *(provider.commit(create(key, f"v-{key.id}")) for key in keys)
        )

        cursors = [outcome.cursor for outcome in outcomes if isinstance(outcome, Committed)]
        assert len(set(cursors)) == 50
        assert [await head_ids(provider, key) for key in keys] == [[f"v-{k.id}"] for k in keys]

    async def test_a_refused_commit_does_not_disturb_those_beside_it(
        self, provider: Provider
    ) -> None:
        """A store may commit several callers together; each stands or falls alone."""
        keys = [entity(f"e{number}") for number in range(9)]
        await committed(provider, create(keys[4], "taken"))

        outcomes = await asyncio.gather(
            *(provider.commit(create(key, f"v-{key.id}")) for key in keys),
            provider.commit(commit(A, version("orphan", parents=["unknown"]))),
            return_exceptions=True,
        )

        assert [isinstance(outcome, Committed) for outcome in outcomes] == [
            *(number != 4 for number in range(9)),
            False,
        ]
        assert await head_ids(provider, A) == []
        assert len(await all_changes(provider, SCOPE)) == 9

    async def test_no_update_is_lost_under_contention(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0", {"count": 0}))

        async def increment(name: str) -> None:
            while True:
                (head,) = (await reading(provider, read(A))).heads
                count = int((head.value_json or "").removeprefix('{"count":').removesuffix("}"))
                new = f"{name}-{count + 1}"
                outcome = await provider.commit(update(A, head.id, new, {"count": count + 1}))
                if isinstance(outcome, Committed):
                    return

        await asyncio.gather(*(increment(f"w{number}") for number in range(12)))

        (head,) = (await reading(provider, read(A))).heads
        assert head.value_json == '{"count":12}'

    async def test_a_deleted_entity_races_like_any_other(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, delete(A, "v1", "v2"))

        outcome = await provider.commit(update(A, "v1", "v3"))

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["v2"]
