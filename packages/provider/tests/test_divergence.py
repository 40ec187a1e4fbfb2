from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.provider import KEEP_ALL_LIMIT, GraphNode, VersionId, contract, walk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MISSING = VersionId("folded away")


@dataclass
class Graph:
    nodes: dict[VersionId, GraphNode]
    calls: int = 0

    def find(self, ids: Sequence[VersionId]) -> Mapping[VersionId, GraphNode]:
        self.calls += 1
        return {i: self.nodes[i] for i in ids if i in self.nodes}


def graph(**parents: str) -> Graph:
    """Make a graph from `child="parent parent"`, oldest first."""
    return Graph(
        {
            VersionId(name): GraphNode(
                id=VersionId(name),
                parents=tuple(VersionId(p) for p in names.split()),
                sequence=(position, 0),
            )
            for position, (name, names) in enumerate(parents.items(), start=1)
        }
    )


def ids(nodes: Sequence[GraphNode]) -> list[str]:
    return [node.id for node in nodes]


def line(length: int) -> Graph:
    return graph(**{f"v{n}": f"v{n - 1}" if n else "" for n in range(length)})


@st.composite
def graphs(draw: st.DrawFn, min_size: int = 1, max_size: int = 12) -> Graph:
    """Random histories: several roots, merges, folded parents, several versions a commit."""
    size = draw(st.integers(min_size, max_size))
    nodes: dict[VersionId, GraphNode] = {}
    position, ordinal = 1, 0
    for number in range(size):
        older = list(nodes)
        parents = draw(st.lists(st.sampled_from(older), unique=True, max_size=3)) if older else []
        if draw(st.integers(0, 9)) == 0:
            parents.append(MISSING)
        # A commit adds several versions now and then; none of them descends from another of it.
        shares_commit = (
            number > 0
            and draw(st.booleans())
            and all(p == MISSING or nodes[p].sequence[0] < position for p in parents)
        )
        position, ordinal = (position, ordinal + 1) if shares_commit else (position + 1, 0)
        name = VersionId(f"v{number}")
        nodes[name] = GraphNode(id=name, parents=tuple(parents), sequence=(position, ordinal))
    return Graph(nodes)


def reachable(
    nodes: Mapping[VersionId, GraphNode], starts: Sequence[VersionId], without: VersionId | None
) -> set[VersionId]:
    found: set[VersionId] = set()
    pending = [s for s in starts if s != without]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [p for p in nodes[node].parents if p in nodes and p != without]
    return found


def is_end(nodes: Mapping[VersionId, GraphNode], node: VersionId) -> bool:
    parents = nodes[node].parents
    return not parents or any(p not in nodes for p in parents)


def dominator(
    nodes: Mapping[VersionId, GraphNode], starts: Sequence[VersionId]
) -> VersionId | None:
    """Find by trial the newest version whose removal cuts every start off from every root."""
    common = [
        node
        for node in reachable(nodes, starts, None)
        if not any(is_end(nodes, n) for n in reachable(nodes, starts, node))
    ]
    return max(common, key=lambda node: nodes[node].sequence, default=None)


def nearest_kept(
    nodes: Mapping[VersionId, GraphNode], node: VersionId, kept: set[VersionId]
) -> tuple[VersionId, ...]:
    found: list[VersionId] = []
    for parent in nodes[node].parents:
        if parent in kept:
            found.append(parent)
        elif parent in nodes:
            found.extend(nearest_kept(nodes, parent, kept))
    return tuple(dict.fromkeys(found))


def test_a_single_version_is_its_own_base() -> None:
    base, nodes = walk([VersionId("v2")], line(3).find)

    assert base == "v2"
    assert ids(nodes) == ["v2"]


def test_a_fork_meets_at_its_origin() -> None:
    base, nodes = walk(
        [VersionId("left"), VersionId("right")],
        graph(old="", origin="old", left="origin", right="origin").find,
    )

    assert base == "origin"
    assert ids(nodes) == ["origin", "left", "right"]


def test_an_ancestor_among_the_starts_is_the_base() -> None:
    base, nodes = walk(
        [VersionId("v1"), VersionId("v3")], graph(v0="", v1="v0", v2="v1", v3="v2").find
    )

    assert base == "v1"
    assert ids(nodes) == ["v1", "v2", "v3"]


def test_a_criss_cross_goes_back_behind_both_crossings() -> None:
    crossed = graph(root="", a="root", b="root", ab="a b", ba="b a")

    base, nodes = walk([VersionId("ab"), VersionId("ba")], crossed.find)

    assert base == "root"
    assert ids(nodes) == ["root", "a", "b", "ab", "ba"]


def test_unrelated_roots_have_no_base() -> None:
    base, nodes = walk([VersionId("one"), VersionId("two")], graph(one="", two="").find)

    assert base is None
    assert ids(nodes) == ["one", "two"]


def test_a_root_before_the_meeting_point_leaves_no_base() -> None:
    base, _ = walk(
        [VersionId("a"), VersionId("b")], graph(root="", alone="", a="root alone", b="root").find
    )

    assert base is None


def test_a_folded_parent_before_the_meeting_point_leaves_no_base() -> None:
    base, _ = walk([VersionId("a"), VersionId("b")], graph(root="", a="root gone", b="root").find)

    assert base is None


def test_a_folded_parent_of_the_base_does_not_matter() -> None:
    base, _ = walk([VersionId("a"), VersionId("b")], graph(root="gone", a="root", b="root").find)

    assert base == "root"


def test_unknown_starts_are_left_out() -> None:
    base, nodes = walk([VersionId("gone"), VersionId("v1")], line(2).find)

    assert base == "v1"
    assert ids(nodes) == ["v1"]


def test_no_start_has_no_base() -> None:
    assert walk([], line(2).find) == (None, [])


@pytest.mark.parametrize(("limit", "base"), [(10, "v0"), (9, None)])
def test_a_walk_at_the_limit_ends_and_one_past_it_has_no_base(limit: int, base: str | None) -> None:
    found, nodes = walk([VersionId("v9"), VersionId("v0")], line(10).find, limit=limit)

    assert found == base
    assert len(nodes) == 10


def test_the_walk_reads_what_lies_between_and_nothing_older() -> None:
    long = line(1000)

    walk([VersionId("v999"), VersionId("v989")], long.find)

    assert long.calls == 10  # once for the starts, then once for each of the nine parents between


def test_a_short_walk_keeps_every_version() -> None:
    _, nodes = walk([VersionId("v0"), VersionId(f"v{KEEP_ALL_LIMIT - 1}")], line(100).find)

    assert contract(nodes, [VersionId("v0"), VersionId("v63")]) == nodes
    assert len(nodes) == KEEP_ALL_LIMIT


def test_a_long_walk_leaves_out_its_linear_runs() -> None:
    _, nodes = walk([VersionId("v0"), VersionId("v64")], line(100).find)

    kept = contract(nodes, [VersionId("v0"), VersionId("v64")])

    assert [(node.id, node.parents) for node in kept] == [("v0", ()), ("v64", ("v0",))]


def test_parents_of_a_kept_version_are_not_repeated() -> None:
    runs = graph(root="", a="root", b="root", joined="a b")
    _, nodes = walk([VersionId("root"), VersionId("joined")], runs.find)

    kept = contract(nodes, [VersionId("root"), VersionId("joined")], keep_all_limit=1)

    assert [(node.id, node.parents) for node in kept] == [("root", ()), ("joined", ("root",))]


@given(graphs(), st.data())
def test_the_base_is_the_nearest_common_dominator(history: Graph, data: st.DataObject) -> None:
    starts = data.draw(st.lists(st.sampled_from(list(history.nodes)), min_size=1, max_size=4))

    base, _ = walk(starts, history.find)

    assert base == dominator(history.nodes, starts)


@given(graphs(), st.data())
def test_the_walk_holds_exactly_what_lies_above_the_base(
    history: Graph, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.sampled_from(list(history.nodes)), min_size=1, max_size=4))

    base, nodes = walk(starts, history.find)

    assert nodes == sorted(nodes, key=lambda node: node.sequence)
    if base is None:
        assert set(starts) <= set(ids(nodes)) <= reachable(history.nodes, starts, None)
    else:
        assert set(ids(nodes)) == reachable(history.nodes, starts, base) | {base}


@given(graphs(min_size=2), st.data())
def test_some_of_the_starts_find_their_own_base_inside_the_walk(
    history: Graph, data: st.DataObject
) -> None:
    """Candidates are joined in groups, and each group has a base of its own."""
    starts = data.draw(
        st.lists(st.sampled_from(list(history.nodes)), min_size=2, max_size=4, unique=True)
    )
    base, nodes = walk(starts, history.find)
    kept = contract(nodes, {*starts, *([base] if base else [])}, keep_all_limit=0)

    for group in combinations(starts, 2):
        own = dominator(history.nodes, group)
        assert walk(group, Graph({n.id: n for n in nodes}).find)[0] == own
        if base is not None:
            assert walk(group, Graph({n.id: n for n in kept}).find)[0] == own


@given(graphs(max_size=20), st.data())
def test_contraction_keeps_forks_merges_and_nearest_ancestors(
    history: Graph, data: st.DataObject
) -> None:
    starts = data.draw(st.lists(st.sampled_from(list(history.nodes)), min_size=1, max_size=3))
    base, nodes = walk(starts, history.find)
    keep = {*starts, *([base] if base else [])}
    inside = {node.id: node for node in nodes}
    children = [parent for node in nodes for parent in node.parents]
    expected = {
        node.id
        for node in nodes
        if node.id in keep
        or children.count(node.id) != 1
        or len([p for p in node.parents if p in inside]) != 1
    }

    kept = contract(nodes, keep, keep_all_limit=0)

    assert {node.id for node in kept} == expected
    assert [node.sequence for node in kept] == sorted(inside[i].sequence for i in expected)
    for node in kept:
        assert node.parents == nearest_kept(inside, node.id, expected)
