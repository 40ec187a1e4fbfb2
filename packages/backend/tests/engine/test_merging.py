"""Merge groups on version graphs: who is merged with whom, from where, and what is kept of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from patchouli.backend import MergeRule, VersionConflictError, canonical
from patchouli.backend.mutation.joining import carry_out
from patchouli.backend.mutation.reconcile import (
    ConflictPolicy,
    Resolution,
    merge_update,
    resolve_update,
)
from patchouli.provider import (
    Cursor,
    Divergence,
    DivergenceNode,
    GraphNode,
    Observation,
    Reading,
    Source,
    Version,
    VersionId,
    VersionState,
    contract,
    walk,
)

BY_KIND = (MergeRule(path="/content", group_by=("/kind",)),)
ANY = (MergeRule(path="/content", group_by=()),)


def text(body: str, *, kind: Any = "text", **outside: Any) -> dict[str, Any]:
    return {"content": {"kind": kind, "text": body}, **outside}


class Graph:
    """Versions by name, in order of arrival; a value of None is a tombstone."""

    def __init__(self, **versions: tuple[list[str], Any]) -> None:
        self.versions: dict[str, Version] = {}
        self.nodes: dict[str, GraphNode] = {}
        for name, (parents, value) in versions.items():
            self.add(version_of(name, parents, value))

    def add(self, version: Version) -> None:
        self.versions[version.id] = version
        self.nodes[version.id] = GraphNode(
            id=version.id, parents=version.parents, sequence=(len(self.nodes), 0)
        )

    def found(self, heads: list[str], bases: list[str]) -> Reading:
        active = [head for head in heads if self.versions[head].value_json is not None]
        starts = [VersionId(name) for name in (*active, *bases)]
        base, walked = walk(starts, self._find)
        kept = contract(walked, starts if base is None else [*starts, base])
        nodes = [
            DivergenceNode(
                id=node.id,
                parents=node.parents,
                sequence=node.sequence,
                value_json=self.versions[node.id].value_json,
            )
            for node in kept
        ]
        return Reading(
            heads=tuple(self.versions[name] for name in sorted(heads)),
            observation=Observation(source=Source.AUTHORITY, frontier=Cursor(0), causal_token=None),
            bases=tuple(self.versions[name] for name in bases),
            divergence=Divergence(base=base, nodes=tuple(nodes)),
        )

    def _find(self, ids: Any) -> dict[VersionId, GraphNode]:
        return {name: self.nodes[name] for name in ids if name in self.nodes}


def version_of(name: str, parents: list[str], value: Any) -> Version:
    return Version(
        id=VersionId(name),
        state=VersionState.DELETED if value is None else VersionState.ACTIVE,
        value_json=None if value is None else canonical(value),
        parents=tuple(map(VersionId, parents)),
        recorded_at_unix_ms=1,
    )


def resolve(
    graph: Graph,
    heads: list[str],
    bases: list[str],
    value: Any,
    rules: Any = BY_KIND,
    *,
    name: str = "P",
    otherwise: Any = "mvcc",
    is_valid: Any = lambda _: True,
    drive: Any = carry_out,
) -> Resolution:
    numbers = count(1)
    proposal, found = version_of(name, bases, value), graph.found(heads, bases)
    policy = ConflictPolicy(strategy="merge", rules=rules, otherwise=otherwise)
    assert resolve_update(proposal, found, policy) is None
    return drive(
        merge_update(
            proposal,
            value,
            found,
            policy,
            is_valid=is_valid,
            new_id=lambda: VersionId(f"{name}{next(numbers)}"),
        )
    )


def shown(resolution: Resolution) -> dict[str, Any]:
    """Return what is new, by version: its text or content, and its parents."""
    return {
        version.id: (version.value_json, list(version.parents))
        for version in resolution.new_versions
    }


def test_a_merged_proposal_is_kept_as_a_parent_and_stands_before_its_children():
    graph = Graph(r=([], text("red apple", m=0)), c=(["r"], text("red pear", m=1)))

    found = resolve(graph, ["c"], ["r"], text("green apple", m=2))

    assert shown(found) == {
        "P": (canonical(text("green apple", m=2)), ["r"]),
        "P1": (canonical(text("green pear", m=2)), ["P", "c"]),
        "P2": (canonical(text("green pear", m=1)), ["P", "c"]),
    }
    assert found.head_versions == ("P1", "P2")
    assert found.accepted.id == "P1"


def test_equal_results_are_one_version_with_the_parents_of_all():
    graph = Graph(r=([], text("red apple")), c=(["r"], text("red pear")))

    found = resolve(graph, ["c"], ["r"], text("green apple"))

    assert shown(found) == {
        "P": (canonical(text("green apple")), ["r"]),
        "P1": (canonical(text("green pear")), ["P", "c"]),
    }
    assert found.head_versions == ("P1",)


def test_an_equal_content_merges_nothing_and_leaves_the_other_head_its_token():
    graph = Graph(r=([], text("a", m=0)), c=(["r"], text("b", m=1)))

    found = resolve(graph, ["c"], ["r"], text("b", m=2))

    assert shown(found) == {"P": (canonical(text("b", m=2)), ["r"])}
    assert found.head_versions == ("P", "c")


def test_an_equal_value_becomes_one_version_that_succeeds_both():
    graph = Graph(r=([], text("a")), c=(["r"], text("b")))

    found = resolve(graph, ["c"], ["r"], text("b"))

    assert shown(found) == {"P": (canonical(text("b")), ["r", "c"])}
    assert found.head_versions == ("P",)


def test_of_equal_contents_the_stored_one_enters_the_join():
    graph = Graph(
        r=([], text("apple", m=0)),
        c=(["r"], text("red apple", m=1)),
        d=(["r"], text("apple pie", m=2)),
    )

    found = resolve(graph, ["c", "d"], ["r"], text("red apple", m=3))

    assert shown(found) == {
        "P": (canonical(text("red apple pie", m=3)), ["r", "c", "d"]),
        "P1": (canonical(text("red apple pie", m=1)), ["c", "d"]),
        "P2": (canonical(text("red apple pie", m=2)), ["c", "d"]),
    }


def test_equal_contents_from_different_bases_keep_what_either_side_took_out():
    """One writer deleted the word, another one never had it; a third still has it."""
    graph = Graph(
        r=([], text("", m=0)),
        a=(["r"], text("word", m=0)),
        b=(["r"], text("", m=1)),
        c=(["a"], text("word more", m=2)),
    )

    found = resolve(graph, ["b", "c"], ["a"], text("", m=3))

    contents = {value for value, _ in shown(found).values()} - {canonical(text("", m=3))}
    assert contents == {canonical(text(" more", m=m)) for m in (1, 2, 3)}
    assert shown(found)["P1"][1] == ["P", "b", "c"]


def test_equal_contents_from_different_bases_are_there_once():
    graph = Graph(
        r=([], text("apple", m=0)),
        a=(["r"], text("apple!", m=0)),
        b=(["a"], text("red apple", m=1)),
        c=(["r"], text("apple pie", m=2)),
    )

    found = resolve(graph, ["b", "c"], ["r"], text("red apple", m=3))

    contents = {value for value, _ in shown(found).values()} - {canonical(text("red apple", m=3))}
    assert contents == {canonical(text("red apple pie", m=m)) for m in (1, 2, 3)}


def test_equal_heads_that_nothing_merges_with_become_one_new_version():
    graph = Graph(
        r=([], text("a")), c=(["r"], text("b")), d=(["r"], text("b")), e=(["r"], {"other": 1})
    )

    found = resolve(graph, ["c", "d", "e"], ["e"], {"other": 2})

    assert found.head_versions == ("P", "P1")
    assert shown(found)["P1"] == (canonical(text("b")), ["c", "d"])


@pytest.mark.scenario(4)
def test_other_discriminators_are_left_alone():
    graph = Graph(r=([], text("red apple")), c=(["r"], text("red pear")))

    found = resolve(graph, ["c"], ["r"], text("green apple", kind="note"))

    assert shown(found) == {"P": (canonical(text("green apple", kind="note")), ["r"])}
    assert found.head_versions == ("P", "c")


@pytest.mark.parametrize("kind", [1.0, True, "1", None, [1]])
def test_discriminators_are_compared_as_json(kind):
    graph = Graph(r=([], text("a", kind=1)), c=(["r"], text("ab", kind=1)))

    assert resolve(graph, ["c"], ["r"], text("ba", kind=kind)).head_versions == ("P", "c")
    assert len(resolve(graph, ["c"], ["r"], text("ba", kind=1)).head_versions) == 1


@pytest.mark.parametrize("value", [{}, {"content": "x"}, {"content": {"text": "ba"}}, 7, [1]])
def test_a_value_without_the_path_or_a_discriminator_takes_no_part(value):
    graph = Graph(r=([], text("a")), c=(["r"], text("ab")))

    assert resolve(graph, ["c"], ["r"], value).head_versions == ("P", "c")


def test_contents_without_a_common_ancestor_of_their_kind_are_not_merged():
    """Two branches that both became texts: one would win over the other as a whole."""
    graph = Graph(r=([], text("a", kind="list")), c=(["r"], text("ab")))

    found = resolve(graph, ["c"], ["r"], text("ba"))

    assert found.head_versions == ("P", "c")
    assert list(shown(found)) == ["P"]


def test_a_base_without_the_path_is_no_common_ancestor():
    graph = Graph(r=([], {}), c=(["r"], text("ab")))

    assert resolve(graph, ["c"], ["r"], text("ba")).head_versions == ("P", "c")


def test_what_shares_no_history_is_refused_under_otherwise_reject():
    graph = Graph(r=([], {}), c=(["r"], text("ab")))

    with pytest.raises(VersionConflictError) as caught:
        resolve(graph, ["c"], ["r"], text("ba"), otherwise="reject")

    assert caught.value.current_versions == ("c",)


@pytest.mark.parametrize("between", [text("x", kind="list"), {}, None])
def test_a_version_of_another_kind_on_the_way_is_passed_over(between):
    graph = Graph(
        r=([], text("red apple")),
        a=(["r"], between),
        b=(["a"], text("green apple")),
        c=(["r"], text("red pear")),
    )

    found = resolve(graph, ["b", "c"], ["b"], text("very green apple"))

    assert [value for value, _ in shown(found).values()][1:] == [canonical(text("very green pear"))]


def test_a_base_that_was_merged_before_is_the_nearest_common_ancestor():
    graph = Graph(
        r=([], text("a")),
        x=(["r"], text("ab")),
        y=(["r"], text("ca")),
        m=(["x", "y"], text("cab")),
        n=(["m"], text("cabd")),
    )
    joins = []

    def drive(steps):
        joins.append(next(steps))
        steps.close()
        return None

    resolve(graph, ["n"], ["m"], text("ecab"), drive=drive)

    assert joins[0].base == "m"
    assert [node.version for node in joins[0].nodes] == ["m", "n", "P"]


def test_later_edits_of_merged_variants_repeat_nothing():
    """Both variants of a merge hold the same inserted words by the same name."""
    graph = Graph(r=([], text("apple", m=0)), c=(["r"], text("red apple", m=1)))
    first = resolve(graph, ["c"], ["r"], text("apple pie", m=2))
    for version in first.new_versions:
        graph.add(version)
    assert first.head_versions == ("P1", "P2")

    second = resolve(graph, ["P1", "P2"], ["P1"], text("a red apple pie", m=2), name="Q")

    assert {value for value, _ in shown(second).values()} == {
        canonical(text("a red apple pie", m=2)),
        canonical(text("a red apple pie", m=1)),
    }


def test_an_invalid_merge_leaves_the_candidates_as_they_are():
    graph = Graph(r=([], text("one")), c=(["r"], text("one two")))

    def is_valid(value):
        return len(value["content"]["text"]) < 8

    found = resolve(graph, ["c"], ["r"], text("zero one"[1:]), is_valid=is_valid)
    assert found.head_versions == ("P", "c")
    assert list(shown(found)) == ["P"]

    with pytest.raises(VersionConflictError):
        resolve(graph, ["c"], ["r"], text("ero one"), is_valid=is_valid, otherwise="reject")


def test_one_invalid_member_keeps_its_whole_group_apart():
    graph = Graph(r=([], text("a", m=0)), c=(["r"], text("ab", m=1)))

    def is_valid(value):
        return value["m"] != 1 or value["content"]["text"] == "ab"

    assert resolve(graph, ["c"], ["r"], text("ca", m=2), is_valid=is_valid).head_versions == (
        "P",
        "c",
    )


def test_a_join_that_is_too_large_leaves_the_candidates_as_they_are():
    graph = Graph(r=([], text("a")), c=(["r"], text("ab")))

    def drive(steps):
        next(steps)
        with pytest.raises(StopIteration) as end:
            steps.send(None)
        return end.value.value

    assert resolve(graph, ["c"], ["r"], text("ca"), drive=drive).head_versions == ("P", "c")


def test_several_paths_merge_each_by_its_own_rule():
    rules = (
        MergeRule(path="/title", group_by=()),
        MergeRule(path="/parts/0/body", group_by=()),
        MergeRule(path="/a~1b", group_by=()),
    )

    def value(title, body, other):
        return {"title": title, "parts": [{"body": body}, 7], "a/b": other}

    graph = Graph(r=([], value("t", "b", "o")), c=(["r"], value("t1", "b1", "o1")))

    found = resolve(graph, ["c"], ["r"], value("2t", "2b", "2o"), rules)

    assert shown(found)["P1"] == (canonical(value("2t1", "2b1", "2o1")), ["P", "c"])
    assert found.head_versions == ("P1",)


def test_structured_contents_merge_member_by_member():
    graph = Graph(r=([], {"content": {"a": 0, "b": 0}}), c=(["r"], {"content": {"a": 1, "b": 0}}))

    found = resolve(graph, ["c"], ["r"], {"content": {"a": 0, "b": 2}}, ANY)

    assert shown(found)["P1"][0] == '{"content":{"a":1,"b":2}}'


def test_three_branches_merge_into_one():
    graph = Graph(
        r=([], text("one two three")),
        c=(["r"], text("one 2 three")),
        d=(["r"], text("one two 3")),
    )

    found = resolve(graph, ["c", "d"], ["r"], text("1 two three"))

    assert found.head_versions == ("P1",)
    assert shown(found)["P1"] == (canonical(text("1 2 3")), ["P", "c", "d"])


def test_a_long_run_of_versions_is_left_out_and_still_merges():
    graph = Graph(r=([], text("x")))
    for number in range(200):
        graph.add(
            version_of(f"v{number}", [f"v{number - 1}" if number else "r"], text(f"x{number}"))
        )

    found = resolve(graph, ["v199"], ["r"], text("yx"))

    assert shown(found)["P1"][0] == canonical(text("yx199"))


def test_heads_whose_ancestors_are_gone_stay_apart():
    graph = Graph(b=(["gone"], text("a")), c=(["gone"], text("ab")))

    found = resolve(graph, ["b", "c"], ["b"], text("ca"))

    assert found.head_versions == ("P", "c")


def test_a_stale_base_whose_ancestors_are_gone_is_an_unknown_base():
    graph = Graph(b=(["gone"], text("a")), c=(["gone"], text("ab")))

    with pytest.raises(VersionConflictError) as caught:
        resolve(graph, ["c"], ["b"], text("ca"))

    assert caught.value.current_versions == ("c",)


@pytest.mark.parametrize("seed", range(6))
def test_the_order_of_the_heads_does_not_matter(seed):
    names = ["c", "d", "e"]
    ordered = [names[(seed + step * (1 + seed // 3)) % 3] for step in range(3)]
    texts = {"c": "one 2 three", "d": "one two 3", "e": "0 one two three"}
    graph = Graph(r=([], text("one two three")))
    for name in ordered:
        graph.add(version_of(name, ["r"], text(texts[name])))

    found = resolve(graph, names, ["r"], text("one two three four"))

    assert found.accepted.value_json == canonical(text("0 one 2 3 four"))
