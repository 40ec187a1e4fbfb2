"""Joins of version graphs as writers make them, against two oracles.

The first oracle is arithmetic on sets: every character of these texts is written once in the whole
history, so what must be in a merged text follows from who inserted and who deleted it. The second
keeps the full Automerge history of every version from the first one on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from patchouli.automerge import Document, JoinNode, join

# How long an example takes is the business of the machine.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Characters that are all different, from several planes; none of them joins with its neighbours.
POOL = [chr(code) for start in (0x4E00, 0x1F600, 0x0410, 0x61) for code in range(start, start + 24)]


@dataclass
class History:
    """Versions as they come to be, with what each of them inserted and deleted."""

    nodes: list[JoinNode] = field(default_factory=list)
    inserted: dict[str, set[str]] = field(default_factory=dict)
    deleted: dict[str, set[str]] = field(default_factory=dict)

    def add(self, version: str, parents: tuple[str, ...], old: str, new: str) -> None:
        self.nodes.append(JoinNode(version=version, parents=parents, json=json.dumps(new)))
        self.inserted[version] = set(new) - set(old)
        self.deleted[version] = set(old) - set(new)

    def joined(self, candidates: list[str]) -> str:
        base = self.nodes[0].version
        text = join(path="/t", base=base, nodes=self.nodes, candidates=candidates)
        result = json.loads(text)
        assert isinstance(result, str)
        return result

    def text(self, version: str) -> str:
        return json.loads(next(node.json for node in self.nodes if node.version == version))

    def ancestry(self, versions: list[str]) -> set[str]:
        seen: set[str] = set()
        waiting = list(versions)
        while waiting:
            version = waiting.pop()
            if version not in seen:
                seen.add(version)
                waiting += next(n.parents for n in self.nodes if n.version == version)
        return seen

    def living(self, candidates: list[str]) -> set[str]:
        """Characters that someone inserted and nobody deleted, as far as `candidates` know."""
        known = self.ancestry(candidates)
        inserted = set[str]().union(*(self.inserted[version] for version in known))
        deleted = set[str]().union(*(self.deleted[version] for version in known))
        return inserted - deleted


@st.composite
def histories(draw: st.DrawFn, *, merges: bool = True) -> tuple[History, list[str]]:
    """A history of up to ten versions, and some of them as candidates.

    Each version edits the text of one version, or what several versions merge to.
    """
    pool = iter(draw(st.permutations(POOL)))
    history = History()
    history.add("base", (), "", "".join(next(pool) for _ in range(draw(st.integers(0, 12)))))
    for number in range(draw(st.integers(2, 9))):
        versions = [node.version for node in history.nodes]
        most = min(3, len(versions)) if merges else 1
        parents = draw(st.lists(st.sampled_from(versions), min_size=1, max_size=most, unique=True))
        old = history.joined(parents)
        new = list(old)
        for _ in range(draw(st.integers(0, 2))):
            start = draw(st.integers(0, len(new)))
            stop = draw(st.integers(start, min(len(new), start + 3)))
            new[start:stop] = [next(pool) for _ in range(draw(st.integers(0, 3)))]
        name = draw(st.sampled_from("abcdef"))
        history.add(f"{name}{number}", tuple(parents), old, "".join(new))
    versions = [node.version for node in history.nodes]
    candidates = draw(st.lists(st.sampled_from(versions), min_size=1, max_size=4, unique=True))
    return history, candidates


def has_equal_contents(history: History, candidates: list[str]) -> bool:
    """Candidates with one content count once, and then some of the history counts for nothing."""
    texts = [history.text(version) for version in candidates]
    return len(set(texts)) < len(texts)


@pytest.mark.slow
@settings(RELAXED, max_examples=150)
@given(histories())
def test_nothing_is_doubled_nothing_lost_and_nothing_comes_back(
    made: tuple[History, list[str]],
) -> None:
    history, candidates = made
    result = history.joined(candidates)

    assert len(set(result)) == len(result)
    if not has_equal_contents(history, candidates):
        assert set(result) == history.living(candidates)


@pytest.mark.slow
@settings(RELAXED, max_examples=100)
@given(histories(), st.data())
def test_no_order_of_arguments_changes_the_result(
    made: tuple[History, list[str]], data: st.DataObject
) -> None:
    history, candidates = made
    expected = history.joined(candidates)

    for _ in range(3):
        nodes = [
            JoinNode(
                version=node.version,
                parents=tuple(data.draw(st.permutations(node.parents))),
                json=node.json,
            )
            for node in data.draw(st.permutations(history.nodes))
        ]
        named = data.draw(st.permutations(candidates * 2))

        again = join(path="/t", base="base", nodes=nodes, candidates=named)

        assert json.loads(again) == expected


@pytest.mark.slow
@settings(RELAXED, max_examples=100)
@given(histories(), st.data())
def test_a_merge_that_became_a_version_merges_like_the_versions_it_was_made_of(
    made: tuple[History, list[str]], data: st.DataObject
) -> None:
    history, candidates = made
    others = [node.version for node in history.nodes]
    other = data.draw(st.sampled_from(others))
    merged = history.joined(candidates)
    direct = history.joined([*candidates, other])
    history.add("merged", tuple(candidates), merged, merged)

    through = history.joined(["merged", other])

    assert history.joined(["merged", *candidates]) == merged
    if not has_equal_contents(history, [*candidates, other, "merged"]):
        assert through == direct


def keeping_everything(history: History) -> dict[str, Document]:
    """The document of every version, with its whole history from the first version on."""
    documents: dict[str, Document] = {}
    for node in history.nodes:
        actor = node.version.encode()
        if node.parents:
            document = documents[node.parents[0]].fork()
            for parent in node.parents[1:]:
                document.merge(documents[parent])
            document.replace(node.json, actor=actor)
        else:
            document = Document.from_json(node.json, actor=actor)
        documents[node.version] = document
    return documents


@pytest.mark.slow
@settings(RELAXED, max_examples=100)
@given(histories(merges=False))
def test_a_full_history_holds_the_same_characters(made: tuple[History, list[str]]) -> None:
    history, candidates = made
    documents = keeping_everything(history)
    oracle = documents[candidates[0]].fork()
    for version in candidates[1:]:
        oracle.merge(documents[version])

    if not has_equal_contents(history, candidates):
        assert sorted(history.joined(candidates)) == sorted(json.loads(oracle.json()))


@st.composite
def word_edits(draw: st.DrawFn, word: st.SearchStrategy[str]) -> tuple[History, list[str]]:
    """A text, and writers that each change words of their own in one or more steps."""
    words = draw(st.lists(word, min_size=4, max_size=24))
    history = History()
    history.add("base", (), "", " ".join(words))
    writers = draw(st.integers(2, 4))
    owner = [draw(st.integers(-1, writers - 1)) for _ in words]
    heads: list[str] = []
    for writer in range(writers):
        own = [at for at, writer_at in enumerate(owner) if writer_at == writer]
        current, head = list(words), "base"
        for step in range(draw(st.integers(1, 3))):
            old = " ".join(current)
            for at in own[step:]:
                current[at] = draw(st.one_of(st.just(""), word))
            version = f"v{writer}.{step}"
            history.add(version, (head,), old, " ".join(current))
            head = version
        heads.append(head)
    return history, heads


def merged_in_full(history: History, heads: list[str]) -> str:
    documents = keeping_everything(history)
    oracle = documents[heads[0]].fork()
    for head in heads:
        oracle.merge(documents[head])
    return json.loads(oracle.json())


# Each word is of one letter that is seldom another's, so that there is one way to read an edit.
SELDOM = st.integers(0x4E00, 0x9F00).flatmap(lambda code: st.just(chr(code) * (1 + code % 3)))
COMMON = st.sampled_from(["abcd", "абвг", "字词句文", "áẽîöů"]).flatmap(
    lambda script: st.text(script, min_size=1, max_size=6)
)


@pytest.mark.slow
@settings(RELAXED, max_examples=150)
@given(word_edits(SELDOM))
def test_edits_of_different_words_equal_the_full_history(made: tuple[History, list[str]]) -> None:
    history, heads = made
    text = history.text("base")
    assume(all(text.count(word) == 1 for word in text.split()))

    if not has_equal_contents(history, heads):
        assert history.joined(heads) == merged_in_full(history, heads)


@pytest.mark.slow
@settings(RELAXED, max_examples=150)
@given(word_edits(COMMON))
def test_edits_that_can_be_read_in_several_ways_keep_the_same_letters(
    made: tuple[History, list[str]],
) -> None:
    history, heads = made

    if not has_equal_contents(history, heads):
        assert sorted(history.joined(heads)) == sorted(merged_in_full(history, heads))


@pytest.mark.slow
@settings(RELAXED, max_examples=50)
@given(
    st.dictionaries(st.text(max_size=4), st.integers(0, 3), max_size=6),
    st.lists(
        st.dictionaries(st.text(max_size=4), st.one_of(st.none(), st.integers(4, 9)), max_size=4),
        min_size=2,
        max_size=4,
    ),
)
def test_of_each_member_some_version_decides(
    base: dict[str, int], edits: list[dict[str, int | None]]
) -> None:
    versions = [
        {name: value for name, value in {**base, **edit}.items() if value is not None}
        for edit in edits
    ]
    nodes = [JoinNode(version="base", parents=(), json=json.dumps(base))]
    nodes += [
        JoinNode(version=f"v{number}", parents=("base",), json=json.dumps(value))
        for number, value in enumerate(versions)
    ]
    candidates = [node.version for node in nodes[1:]]

    result = json.loads(join(path="", base="base", nodes=nodes, candidates=candidates))

    for name in {name for value in (base, *versions) for name in value}:
        changed = [value.get(name) for value in versions if value.get(name) != base.get(name)]
        written = [value for value in changed if value is not None]
        expected = written or changed or [base.get(name)]
        assert result.get(name) in expected
