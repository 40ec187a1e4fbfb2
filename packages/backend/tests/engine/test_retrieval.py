"""Retrieval end to end: what is found, in which order, in which pages."""

from __future__ import annotations

import pytest
from patchouli.backend import Limits
from patchouli.protocol import RetrieveData, RetrieveParams


async def test_a_hit_shows_all_heads_though_only_one_matches(desk):
    root = await desk.create({"text": "red", "n": 0})
    one = await desk.update(root, {"text": "green", "n": 1}, strategy="mvcc")
    tombstone = await desk.delete(root, strategy="mvcc")

    data = RetrieveData(query='{"text":"GREEN"}')
    found = await desk.engine.retrieve(RetrieveParams(meta=desk.meta, data=data))

    (hit,) = found.hits
    assert hit.score > 0
    assert hit.variants == tuple(sorted([one, tombstone], key=lambda head: head.version))
    assert found.meta == {}


async def test_conditions_hold_for_one_and_the_same_head(desk):
    root = await desk.create({"text": "r", "a": 0, "b": 0})
    await desk.update(root, {"text": "r", "a": 1, "b": 0}, strategy="mvcc")
    await desk.update(root, {"text": "r", "a": 0, "b": 1}, strategy="mvcc")

    assert (await desk.retrieve({"where": {"/a": 1}}))[0] == ["a"]
    assert (await desk.retrieve({"where": {"/a": 1, "/b": 1}}))[0] == []
    assert (await desk.retrieve({"where": {"/a": {"$gte": 0, "$lt": 1}}}))[0] == ["a"]
    assert (await desk.retrieve({"where": {"/a": 1.0}}))[0] == ["a"]


async def test_superseded_and_deleted_values_are_not_found(desk):
    root = await desk.create({"text": "first"})
    head = await desk.update(root, {"text": "second"})
    assert (await desk.retrieve({"text": "first"}))[0] == []
    assert (await desk.retrieve({"text": "second"}))[0] == ["a"]

    await desk.delete(head)
    assert (await desk.retrieve({"text": "second"}))[0] == []
    assert (await desk.retrieve({}))[0] == []


async def test_pages_follow_each_other_without_gap_and_repetition(desk):
    for number in range(7):
        desk.clock.now_unix_ms += number % 2
        await desk.create({"text": "fern " * (number + 1)}, f"m{number}")

    for order in ("relevance", "newest", "oldest", "id_asc", "id_desc"):
        query = {"text": "fern", "order": order}
        whole, cursor = await desk.retrieve(query, limit=100)
        assert cursor is None
        assert sorted(whole) == [f"m{number}" for number in range(7)]
        found, cursor = await desk.retrieve(query, limit=2)
        while cursor is not None:
            page, cursor = await desk.retrieve({**query, "cursor": cursor}, limit=2)
            assert page
            found += page
        assert found == whole


async def test_a_page_ends_early_at_its_byte_bound_and_goes_on(open_desk, policy):
    desk = await open_desk(policy(), limits=Limits(max_page_bytes=250))
    for name in "abcd":
        await desk.create({"text": "x" * 100}, name)

    first, cursor = await desk.retrieve({"order": "id_asc"})
    second, end = await desk.retrieve({"order": "id_asc", "cursor": cursor})

    assert (first, second, end) == (["a", "b"], ["c", "d"], None)


async def test_one_hit_larger_than_the_bound_is_a_page(open_desk, policy):
    desk = await open_desk(policy(), limits=Limits(max_page_bytes=10))
    for name in "ab":
        await desk.create({"text": "x" * 100}, name)

    first, cursor = await desk.retrieve({"order": "id_asc"})

    assert first == ["a"]
    assert (await desk.retrieve({"order": "id_asc", "cursor": cursor})) == (["b"], None)


async def test_types_restrict_and_unconfigured_types_are_never_returned(open_desk, policy):
    other = policy()["entity_types"]["memo"]
    desk = await open_desk(policy(types={"note": other}))
    await desk.create({"text": "a"}, "a")
    await desk.create({"text": "b"}, "b", kind="note")

    assert await desk.retrieve({"order": "id_asc"}) == (["a", "b"], None)
    assert await desk.retrieve({}, types=["note", "note"]) == (["b"], None)
    assert [plan.types for plan in desk.provider.retrievals] == [("memo", "note"), ("note",)]


async def test_scopes_are_searched_apart(desk):
    await desk.create({"text": "ferns"})

    assert (await desk.retrieve({"text": "ferns"}, team="south"))[0] == []


async def test_a_cursor_does_not_cross_scopes(desk, refusal):
    for name in "ab":
        await desk.create({"text": "ferns"}, name)
        await desk.create({"text": "ferns"}, name, team="south")
    _, cursor = await desk.retrieve({}, limit=1)

    error = await refusal(desk.retrieve({"cursor": cursor}, team="south"))

    assert (error.reason, error.pointer) == ("INVALID_REQUEST", "data/query/cursor")


@pytest.mark.parametrize("text", ["f", "fe", "FERN", "ﬁ", '"', "\\", "line\nbreak", "植", "植物"])
async def test_text_is_found_as_typed_whatever_its_length(desk, text):
    await desk.create({"text": 'fern ﬁg " \\ line\nbreak 植物'})
    await desk.create({"text": "none of it"} if len(text) > 2 else {"text": "_"}, "b")

    assert (await desk.retrieve({"text": text}))[0] == ["a"]
