"""The document of a version against documents that were kept from the first version on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.automerge import Document
from patchouli.backend import export_document
from patchouli.provider import Version, VersionId, VersionState


def version(name: str, value: Any, *parents: str) -> Version:
    """Return a version; without a value it is a deletion."""
    return Version(
        id=VersionId(name),
        state=VersionState.DELETED if value is None else VersionState.ACTIVE,
        value_json=None if value is None else json.dumps(value),
        parents=tuple(map(VersionId, parents)),
        recorded_at_unix_ms=1,
    )


def value_of(data: bytes) -> Any:
    return json.loads(Document.load(data).json())


def test_a_document_says_what_its_version_says_and_holds_what_came_before() -> None:
    first = version("v1", {"text": "red apple"})
    versions = [
        first,
        version("v2", {"text": "red pear"}, "v1"),
        version("v3", {"text": "green apple"}, "v1"),
        version("v4", {"text": "green pear"}, "v2", "v3"),
        version("v5", {"text": "somewhere else"}, "v3"),
    ]

    export = export_document(versions, VersionId("v4"))
    before = export_document([first], VersionId("v1"))

    document = Document.load(export.data)
    assert json.loads(document.json()) == {"text": "green pear"}
    assert json.loads(document.json_at(before.heads)) == {"text": "red apple"}
    assert tuple(document.heads()) == export.heads
    assert export.versions == 4
    assert "else" not in document.json()


def test_the_edges_of_the_graph_are_those_of_the_changes() -> None:
    base, left, right = (
        version("v1", {"n": 1}),
        version("v2", {"n": 2}, "v1"),
        version("v3", {"n": 3}, "v1"),
    )
    ends = {name: export_document([base, left, right], VersionId(name)) for name in ("v2", "v3")}

    merged = export_document(
        [base, left, right, version("v4", {"n": 4}, "v3", "v2")], VersionId("v4")
    )

    document = Document.load(merged.data)
    assert json.loads(document.json_at(ends["v2"].heads)) == {"n": 2}
    assert json.loads(document.json_at(ends["v3"].heads)) == {"n": 3}
    both = Document.load(ends["v2"].data)
    both.merge(Document.load(ends["v3"].data))
    assert sorted(both.heads()) == sorted([*ends["v2"].heads, *ends["v3"].heads])
    again = Document.load(merged.data)
    again.merge(both)
    assert again.heads() == document.heads()


def test_the_same_versions_give_the_same_bytes_in_any_order() -> None:
    versions = [
        version("v1", {"text": "a b c"}),
        version("v2", {"text": "a b"}, "v1"),
        version("v3", {"text": "b c"}, "v1"),
        version("v4", {"text": "b"}, "v2", "v3"),
    ]

    one = export_document(versions, VersionId("v4"))
    other = export_document(reversed(versions), VersionId("v4"))

    assert one == other


def test_deletions_and_equal_values_are_no_changes() -> None:
    versions = [
        version("v1", {"n": 1}),
        version("v2", None, "v1"),
        version("v3", {"n": 1}, "v2"),
    ]

    assert (
        export_document(versions, VersionId("v3")).heads
        == export_document(versions, VersionId("v1")).heads
    )
    with pytest.raises(ValueError, match="v2"):
        export_document(versions, VersionId("v2"))


def test_what_is_no_longer_retained_begins_a_history() -> None:
    versions = [version("v3", {"n": 3}, "v1", "v2"), version("v4", {"n": 4}, "v3")]

    export = export_document(versions, VersionId("v4"))

    assert value_of(export.data) == {"n": 4}
    assert export.versions == 2


def test_a_version_that_begins_after_a_deletion_alone_is_a_document() -> None:
    versions = [version("v1", None), version("v2", [1, "zwei", None], "v1")]

    assert value_of(export_document(versions, VersionId("v2")).data) == [1, "zwei", None]


def test_a_value_that_no_document_can_hold_is_told() -> None:
    versions = [version("v1", "x"), version("v2", "x" * (4 << 20), "v1")]

    with pytest.raises(ValueError, match="v2"):
        export_document(versions, VersionId("v2"))


def test_a_version_that_is_unknown_is_told() -> None:
    with pytest.raises(KeyError):
        export_document([version("v1", {})], VersionId("v2"))


@pytest.mark.slow
def test_a_long_history_is_exported_step_by_step() -> None:
    versions = [version("0", {"text": "x"})]
    versions += [
        version(str(number), {"text": "x" * (number % 7)}, str(number - 1))
        for number in range(1, 1500)
    ]
    steps: list[float] = []

    export = export_document(versions, VersionId("1499"), progress=steps.append)

    assert value_of(export.data) == {"text": "x" * (1499 % 7)}
    assert len(steps) == 1500
    assert steps[-1] == 1.0


@st.composite
def graphs(draw: st.DrawFn) -> list[Version]:
    values = st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=6,
    )
    versions = [version("0", {"value": draw(values)})]
    for number in range(1, draw(st.integers(1, 8))):
        names = [found.id for found in versions]
        parents = draw(st.lists(st.sampled_from(names), max_size=3, unique=True))
        is_deletion = number > 1 and draw(st.integers(0, 9)) == 0
        value = None if is_deletion else {"value": draw(values)}
        versions.append(version(str(number), value, *parents))
    return versions


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(graphs())
def test_every_version_equals_the_document_that_was_kept(versions: list[Version]) -> None:
    kept: dict[str, Document | None] = {}
    for found in versions:
        document: Document | None = None
        for parent in sorted(found.parents):
            other = kept[parent]
            if other is not None and document is not None:
                document.merge(other)
            elif other is not None:
                document = other.fork()
        if found.value_json is not None:
            actor = f"other-{found.id}".encode()
            if document is None:
                document = Document.from_json(found.value_json, actor=actor)
            else:
                document.replace(found.value_json, actor=actor)
        kept[found.id] = document

    for found in versions:
        if found.value_json is None:
            continue
        export = export_document(versions, found.id)
        document = kept[found.id]
        assert document is not None
        exported = Document.load(export.data)
        assert json.loads(exported.json()) == json.loads(found.value_json)
        assert exported.json() == document.json()
        assert len(exported.heads()) == len(export.heads)
        if sum(not each.parents for each in versions) == 1:
            # Of documents without common history the actors decide whose value stands, and so
            # whether a version that names several says anything new.
            assert len(exported.heads()) == len(document.heads())
