"""The numbered scenarios that need no state beyond versions and changes, on the shipped policy."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

METADATA: dict[str, Any] = {
    "core": {
        "schema": "patchouli.knowledge@1",
        "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": None},
        "origin": {
            "provider": None,
            "binding": None,
            "native_type": None,
            "native_id": None,
            "native_revision": None,
        },
        "time": {
            "event_at": None,
            "source_created_at": None,
            "source_updated_at": None,
            "observed_at": "2031-03-02T09:20:00Z",
            "ingested_at": "2031-03-02T09:20:03Z",
        },
        "lifecycle": {"status": "active", "expires_at": None},
        "provenance": [],
    },
    "extensions": {},
}


def knowledge(content: Any, *, marker: int | None = None, **members: Any) -> dict[str, Any]:
    metadata = copy.deepcopy(METADATA)
    if marker is not None:
        metadata["extensions"] = {"acme.marker": {"n": marker}}
    if isinstance(content, str):
        content = {"kind": "text", "text": content}
    return {
        "content": content,
        "metadata": metadata,
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "unknown"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "long_term",
            "retrieval": ["exact"],
            "actionability": "informational",
        },
        **members,
    }


def structured(value: Any) -> dict[str, Any]:
    return {"kind": "structured", "value": value}


@pytest.fixture
def desk(facts):
    facts.type = "knowledge"
    return facts


def marker_of(value: Any) -> int:
    return value["metadata"]["extensions"]["acme.marker"]["n"]


@pytest.mark.scenario(1)
async def test_the_life_of_an_entity(desk):
    made = await desk.create(knowledge("red apple"))
    assert (await desk.read())[0] == "active"

    head = await desk.update(made, knowledge("green apple"))
    tombstone = await desk.delete(head)

    state, variants = await desk.read()
    assert (state, variants) == ("deleted", (tombstone,))
    assert [change.kind for change in await desk.changes()] == ["created", "updated", "deleted"]
    assert [change.head_versions for change in await desk.changes()] == [
        (made.version,),
        (head.version,),
        (tombstone.version,),
    ]
    assert [len(commit.new_versions) for commit in desk.provider.commits] == [1, 1, 1]


@pytest.mark.scenario(2)
async def test_two_updates_of_one_base_merge_their_text_and_keep_their_metadata(desk):
    made = await desk.create(knowledge("red apple"))
    await desk.update(made, knowledge("red pear", marker=1))
    await desk.update(made, knowledge("green apple", marker=2))

    state, variants = await desk.read()
    heads = await desk.heads()
    assert (state, len(variants)) == ("conflicted", 2)
    assert [value["content"]["text"] for value in heads.values()] == ["green pear"] * 2
    assert sorted(map(marker_of, heads.values())) == [1, 2]

    await desk.update(heads, knowledge("green pear", marker=3))
    assert (await desk.read())[0] == "active"


@pytest.mark.scenario(3)
async def test_equal_metadata_and_structured_contents_become_one_variant(desk):
    made = await desk.create(knowledge(structured({"a": 0, "b": 0}), marker=1))
    await desk.update(made, knowledge(structured({"a": 1, "b": 0}), marker=1))
    await desk.update(made, knowledge(structured({"a": 0, "b": 2}), marker=1))

    assert (await desk.read())[0] == "active"
    (value,) = (await desk.heads()).values()
    assert value == knowledge(structured({"a": 1, "b": 2}), marker=1)


@pytest.mark.scenario(4)
async def test_another_kind_of_content_is_another_variant(desk):
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear", marker=1))
    second = await desk.update(made, knowledge(structured("green apple"), marker=2))

    assert await desk.heads() == {
        first.version: knowledge("red pear", marker=1),
        second.version: knowledge(structured("green apple"), marker=2),
    }


@pytest.mark.scenario(5)
async def test_reject_refuses_a_stale_base_and_an_inexact_set(desk, refusal):
    made = await desk.create(knowledge("a"))
    head = await desk.update(made, knowledge("b"))

    for bases in ([made], [made, head]):
        for mutation in (
            desk.update(bases, knowledge("c"), conflict_strategy="reject"),
            desk.delete(bases, conflict_strategy="reject"),
        ):
            error = await refusal(mutation)
            assert error.reason == "VERSION_CONFLICT"
            assert error.current_versions == (head.version,)


@pytest.mark.scenario(6)
async def test_mvcc_keeps_the_exact_values_of_two_stale_writers(desk):
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear"), conflict_strategy="mvcc")
    second = await desk.update(made, knowledge("green apple"), conflict_strategy="mvcc")

    assert await desk.heads() == {
        first.version: knowledge("red pear"),
        second.version: knowledge("green apple"),
    }


@pytest.mark.scenario(7)
async def test_a_version_of_several_bases_has_as_many_parents(desk):
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear"), conflict_strategy="mvcc")
    second = await desk.update(made, knowledge("green apple"), conflict_strategy="mvcc")

    bases = [second, first]
    await desk.update(bases, knowledge("green pear"))

    (version,) = desk.provider.commits[-1].new_versions
    assert version.parents == (second.version, first.version)


@pytest.mark.scenario(8)
@pytest.mark.parametrize(
    ("base", "one", "other", "merged"),
    [
        ("红苹果", "红梨", "绿苹果", "绿梨"),
        ("красный дом", "красный сад", "синий дом", "синий сад"),
        ("🍎🍐", "🍎🍐🍊", "🍋🍎🍐", "🍋🍎🍐🍊"),
        ("é👩‍👩‍👧", "é👩‍👩‍👧!", "¡é👩‍👩‍👧", "¡é👩‍👩‍👧!"),
        ("تفاح أحمر", "كمثرى أحمر", "تفاح أخضر", "كمثرى أخضر"),
    ],
)
async def test_text_of_any_script_merges(desk, base, one, other, merged):
    made = await desk.create(knowledge(base))
    await desk.update(made, knowledge(one))
    await desk.update(made, knowledge(other))

    (value,) = (await desk.heads()).values()
    assert value["content"]["text"] == merged


@pytest.mark.scenario(12)
async def test_a_retrieval_of_all_types_with_one_domain_comes_back(desk):
    await desk.create(knowledge("a"))

    assert await desk.retrieve({}) == (["a"], None)
    (plan,) = desk.provider.retrievals
    assert plan.types == ("artifact", "knowledge", "knowledge_relation")
    assert len(plan.consistency.linearization_keys) == 1


@pytest.mark.scenario(25)
async def test_retrieval_by_ids_conditions_and_pages(desk, refusal):
    links = [{"type": "artifact", "id": "plan-1", "role": "source"}]
    for name, rank, artifact in [("a", 1, []), ("b", 2, links), ("c", 3, links), ("d", 4, [])]:
        value = knowledge(structured({"rank": rank}), artifact=artifact)
        await desk.create(value, name)

    where = {"/content/kind": "structured", "/content/value/rank": {"$gte": 2}}
    found = await desk.retrieve({"ids": ["a", "b", "d"], "where": where, "order": "id_asc"})
    assert found == (["b", "d"], None)
    found = await desk.retrieve({"where": {"/artifact": {"$contains": links[0]}}})
    assert sorted(found[0]) == ["b", "c"]

    ids, cursor = await desk.retrieve({"order": "id_asc"}, limit=2)
    assert ids == ["a", "b"]
    query = {"order": "id_asc", "cursor": cursor}
    assert await desk.retrieve(query, limit=2) == (["c", "d"], None)

    for query in (
        {"order": "id_desc", "cursor": cursor},
        {"order": "id_asc", "ids": ["a"], "cursor": cursor},
        {"where": {"/a": {"$regex": "x"}}},
        "red apple",
    ):
        assert (await refusal(desk.retrieve(query))).reason == "INVALID_REQUEST"


@pytest.mark.scenario(26)
async def test_boundaries_at_and_before_the_pruned_change(desk, refusal):
    made = await desk.create(knowledge("a"))
    subscription = await desk.subscribe()
    at = subscription.cursor
    subscription.close()
    head = await desk.update(made, knowledge("b"))
    later = await desk.subscribe()
    pruned_through = later.cursor
    later.close()
    desk.clock.now_unix_ms += 604_800_000 + 1
    await desk.update(head, knowledge("c"))

    assert (await desk.subscribe(pruned_through)).cursor == pruned_through
    assert (await refusal(desk.subscribe(at))).reason == "CURSOR_EXPIRED"
    assert [json.loads(v.value_json)["content"]["text"] for v in (await desk.read())[1]] == ["c"]
