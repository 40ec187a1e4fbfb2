"""The part of the version graph that a mutation needs to join branches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import KEEP_ALL_LIMIT, WALK_LIMIT, Divergence, Raced
from patchouli.provider_conformance.asking import committed, reading
from patchouli.provider_conformance.builders import (
    commit,
    create,
    delete,
    entity,
    read,
    update,
    version,
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import EntityKey, Provider
    from patchouli.provider_conformance.suite.base import Reopen

A = entity("a")


def shape(divergence: Divergence | None) -> dict[str, tuple[str, ...]]:
    """Return the parents of each node, after a look at what holds of every divergence."""
    assert divergence is not None
    sequences = {node.id: node.sequence for node in divergence.nodes}
    assert list(sequences.values()) == sorted(set(sequences.values()))
    for node in divergence.nodes:
        assert all(sequences[parent] < node.sequence for parent in node.parents)
    return {node.id: tuple(node.parents) for node in divergence.nodes}


async def line(provider: Provider, key: EntityKey, first: int, last: int) -> None:
    """Extend the linear run of `key` from version `v<first>` to version `v<last>`."""
    for number in range(first, last):
        await committed(provider, update(key, f"v{number}", f"v{number + 1}"))


async def diverged(provider: Provider, *bases: str) -> Divergence | None:
    """Return the divergence of the heads of the entity and `bases`."""
    return (await reading(provider, read(A, *bases, with_divergence=True))).divergence


class DivergenceConformance(ProviderSuite):
    """A divergence is exact and costs what lies between, never what lies before."""

    async def test_equal_sets_have_no_divergence(self, provider: Provider) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, commit(A, version("h1"), version("h2"), expected=["v1"]))

        assert await diverged(provider, "h2", "h1") is None

    async def test_nothing_is_walked_unless_asked_for(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 2)

        assert (await reading(provider, read(A, "v0"))).divergence is None

    async def test_one_stale_base_is_the_base_of_the_walk(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 5)

        divergence = await diverged(provider, "v2")

        assert divergence is not None
        assert divergence.base == "v2"
        assert shape(divergence) == {"v2": (), "v3": ("v2",), "v4": ("v3",), "v5": ("v4",)}
        assert [node.value_json for node in divergence.nodes] == [
            '{"text":"v2"}',
            '{"text":"v3"}',
            '{"text":"v4"}',
            '{"text":"v5"}',
        ]

    async def test_two_bases_of_two_branches_meet_at_the_fork(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await committed(provider, create(A, "root"))
        await committed(provider, update(A, "root", "fork"))
        left, right = version("left", parents=["fork"]), version("right", parents=["fork"])
        await committed(provider, commit(A, left, right, expected=["fork"]))
        newer = [version("left2", parents=["left"]), version("right2", parents=["right"])]
        await committed(provider, commit(A, *newer, expected=["left", "right"]))

        divergence = await diverged(await reopen(provider), "left", "right")

        assert divergence is not None
        assert divergence.base == "fork"
        assert shape(divergence) == {
            "fork": (),
            "left": ("fork",),
            "right": ("fork",),
            "left2": ("left",),
            "right2": ("right",),
        }

    async def test_active_heads_diverge_without_a_stale_base(self, provider: Provider) -> None:
        await committed(provider, create(A, "root"))
        heads = [version("left", parents=["root"]), version("right", parents=["root"])]
        await committed(provider, commit(A, *heads, expected=["root"]))

        divergence = await diverged(provider, "left")

        assert divergence is not None
        assert divergence.base == "root"
        assert shape(divergence) == {"root": (), "left": ("root",), "right": ("root",)}

    async def test_a_criss_cross_goes_back_behind_both_crossings(self, provider: Provider) -> None:
        await committed(provider, create(A, "root"))
        sides = [version("a", parents=["root"]), version("b", parents=["root"])]
        await committed(provider, commit(A, *sides, expected=["root"]))
        crossed = [version("ab", parents=["a", "b"]), version("ba", parents=["b", "a"])]
        await committed(provider, commit(A, *crossed, expected=["a", "b"]))

        divergence = await diverged(provider, "ab")

        assert divergence is not None
        assert divergence.base == "root"
        assert shape(divergence) == {
            "root": (),
            "a": ("root",),
            "b": ("root",),
            "ab": ("a", "b"),
            "ba": ("b", "a"),
        }

    async def test_versions_that_were_merged_at_once_are_on_the_way(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "v1"))
        await committed(provider, update(A, "v1", "other"))
        mine, merged = version("mine", parents=["v1"]), version("m", parents=["mine", "other"])
        await committed(provider, commit(A, mine, merged, expected=["other"], heads=["m"]))

        divergence = await diverged(provider, "mine")

        assert divergence is not None
        assert divergence.base == "v1"
        assert shape(divergence) == {
            "v1": (),
            "other": ("v1",),
            "mine": ("v1",),
            "m": ("mine", "other"),
        }

    async def test_unrelated_versions_have_no_base(self, provider: Provider) -> None:
        await committed(provider, create(A, "one"))
        await committed(provider, commit(A, version("two"), expected=["one"]))

        divergence = await diverged(provider, "one")

        assert divergence is not None
        assert divergence.base is None
        assert shape(divergence) == {"one": (), "two": ()}

    async def test_a_tombstone_head_does_not_take_part(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 1)
        await committed(provider, delete(A, "v1", "gone"))

        divergence = await diverged(provider, "v0")

        assert divergence is not None
        assert divergence.base == "v0"
        assert shape(divergence) == {"v0": ()}

    async def test_a_tombstone_on_the_way_has_no_value(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await committed(provider, delete(A, "v0", "gone"))
        await committed(provider, update(A, "gone", "v2"))

        divergence = await diverged(provider, "v0")

        assert divergence is not None
        assert divergence.base == "v0"
        assert [(n.id, n.value_json) for n in divergence.nodes] == [
            ("v0", '{"text":"v0"}'),
            ("gone", None),
            ("v2", '{"text":"v2"}'),
        ]

    async def test_unknown_bases_are_left_out_of_the_walk(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 2)

        divergence = await diverged(provider, "unknown", "v1")

        assert divergence is not None
        assert divergence.base == "v1"
        assert shape(divergence) == {"v1": (), "v2": ("v1",)}

    async def test_a_lost_race_brings_its_divergence(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 2)

        outcome = await provider.commit(
            update(A, "v0", "late", base_versions=version_ids(["v0"]), with_divergence=True)
        )

        assert isinstance(outcome, Raced)
        assert outcome.divergence == await diverged(provider, "v0")
        assert shape(outcome.divergence) == {"v0": (), "v1": ("v0",), "v2": ("v1",)}

    async def test_a_lost_race_with_the_present_heads_as_bases_has_none(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, "v0"))

        outcome = await provider.commit(
            commit(A, version("late"), base_versions=version_ids(["v0"]), with_divergence=True)
        )

        assert isinstance(outcome, Raced)
        assert outcome.divergence is None

    async def test_a_walk_of_the_longest_kept_length_is_complete(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, KEEP_ALL_LIMIT - 1)

        assert len(shape(await diverged(provider, "v0"))) == KEEP_ALL_LIMIT

    async def test_a_longer_walk_leaves_out_its_linear_runs(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        await line(provider, A, 0, 40)
        sides = [version("left", parents=["v40"]), version("v41", parents=["v40"])]
        await committed(provider, commit(A, *sides, expected=["v40"]))
        joined = version("v42", parents=["left", "v41"])
        await committed(provider, commit(A, joined, expected=["left", "v41"]))
        await line(provider, A, 42, 80)

        divergence = await diverged(provider, "v0")

        assert divergence is not None
        assert divergence.base == "v0"
        assert shape(divergence) == {"v0": (), "v40": ("v0",), "v42": ("v40",), "v80": ("v42",)}
        assert [node.value_json for node in divergence.nodes][1] == '{"text":"v40"}'

    @pytest.mark.slow
    async def test_a_base_beyond_the_bound_of_the_walk_has_no_base(
        self, provider: Provider
    ) -> None:
        width, near, far = 64, 60, WALK_LIMIT // 64 + 1
        await committed(provider, create(A, "root"))
        parents, heads = ["root"] * width, ["root"]
        for layer in range(far):
            names = [f"v{layer}-{n}" for n in range(width)]
            new = [version(n, parents=[p]) for n, p in zip(names, parents, strict=True)]
            await committed(provider, commit(A, *new, expected=heads))
            parents = heads = names
            if layer + 1 == near:
                within = await diverged(provider, "root")
                assert within is not None
                assert within.base == "root"
                assert shape(within) == {"root": ()} | dict.fromkeys(names, ("root",))

        beyond = await diverged(provider, "root")

        assert beyond is not None
        assert beyond.base is None
