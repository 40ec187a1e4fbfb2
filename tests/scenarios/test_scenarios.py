"""The numbered scenarios of the engine over the socket, in one run and with one for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenarios import policies
from tests.scenarios.desk import (
    Desk,
    knowledge,
    markers,
    refusal,
    structured,
    texts,
)
from tests.scenarios.store import check_unit_bounds, read_sessions

if TYPE_CHECKING:
    from collections.abc import Callable

U = {"transaction_id": "u-1"}
CLOSE = {"transaction_id": "u-1", "transaction_state": "commit"}
ME = {"plugin_route_id": "me"}
UNKNOWN = {"causal_token": "unknown"}
WEEK_MS = 604_800_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.scenario(1)
async def test_the_life_of_an_entity(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple"))
    assert (await desk.read()).state == "active"
    head = await desk.update(made, knowledge("green apple"))
    tombstone = await desk.delete(head)

    seen = await desk.read()
    assert (seen.state, seen.values) == ("deleted", {tombstone.version: None})
    contents = await desk.close()
    ((_, versions),) = contents.versions.items()
    assert versions.keys() == {made.version, head.version, tombstone.version}
    assert [version for version, stored in versions.items() if stored.is_head] == [
        tombstone.version
    ]
    assert [change.kind for change in contents.changes] == ["created", "updated", "deleted"]


@pytest.mark.scenario(2)
async def test_two_updates_of_one_base_merge_their_text_and_keep_their_metadata(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple"))
    await desk.update(made, knowledge("red pear", marker=1))
    await desk.update(made, knowledge("green apple", marker=2))

    seen = await desk.read()
    assert seen.state == "conflicted"
    assert texts(seen) == ["green pear", "green pear"]
    assert markers(seen) == [1, 2]
    await desk.update(seen.values, knowledge("green pear", marker=3))
    assert (await desk.read()).state == "active"


@pytest.mark.scenario(3)
async def test_equal_metadata_and_structured_contents_become_one_variant(desk: Desk) -> None:
    made = await desk.create(knowledge(structured({"a": 0, "b": 0}), marker=1))
    await desk.update(made, knowledge(structured({"a": 1, "b": 0}), marker=1))
    await desk.update(made, knowledge(structured({"a": 0, "b": 2}), marker=1))

    seen = await desk.read()
    assert seen.state == "active"
    assert list(seen.values.values()) == [knowledge(structured({"a": 1, "b": 2}), marker=1)]


@pytest.mark.scenario(4)
async def test_another_kind_of_content_is_another_variant(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear", marker=1))
    second = await desk.update(made, knowledge(structured("green apple"), marker=2))

    assert (await desk.read()).values == {
        first.version: knowledge("red pear", marker=1),
        second.version: knowledge(structured("green apple"), marker=2),
    }


@pytest.mark.scenario(5)
async def test_reject_refuses_a_stale_base_and_an_inexact_set(desk: Desk) -> None:
    made = await desk.create(knowledge("a"))
    head = await desk.update(made, knowledge("b"))

    for request in (
        desk.update(made, knowledge("c"), conflict_strategy="reject"),
        desk.update([made, head], knowledge("c"), conflict_strategy="reject"),
        desk.delete([made, head], conflict_strategy="reject"),
    ):
        error = await refusal(request)
        assert error.reason == "VERSION_CONFLICT"
        assert error.data["current_versions"] == [head.version]


@pytest.mark.scenario(6)
async def test_mvcc_keeps_the_exact_values_of_two_stale_writers(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear"), conflict_strategy="mvcc")
    second = await desk.update(made, knowledge("green apple"), conflict_strategy="mvcc")

    assert (await desk.read()).values == {
        first.version: knowledge("red pear"),
        second.version: knowledge("green apple"),
    }


@pytest.mark.scenario(7)
async def test_a_version_of_several_bases_has_as_many_parents(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple"))
    first = await desk.update(made, knowledge("red pear"), conflict_strategy="mvcc")
    second = await desk.update(made, knowledge("green apple"), conflict_strategy="mvcc")
    joined = await desk.update([second, first], knowledge("green pear"))

    ((_, versions),) = (await desk.close()).versions.items()
    assert set(versions[joined.version].parents) == {first.version, second.version}


@pytest.mark.scenario(8)
@pytest.mark.parametrize(
    ("base", "one", "other", "merged"),
    [
        ("红苹果", "红梨", "绿苹果", "绿梨"),
        ("красный дом", "красный сад", "синий дом", "синий сад"),
        ("تفاح أحمر", "كمثرى أحمر", "تفاح أخضر", "كمثرى أخضر"),
    ],
    ids=["Chinese", "Russian", "Arabic"],
)
async def test_text_of_any_script_merges(
    desk: Desk, base: str, one: str, other: str, merged: str
) -> None:
    made = await desk.create(knowledge(base))
    await desk.update(made, knowledge(one))
    await desk.update(made, knowledge(other))

    assert texts(await desk.read()) == [merged]


@pytest.mark.scenario(9)
async def test_a_repeated_mutation_is_answered_and_not_repeated(desk: Desk) -> None:
    desk.use(policies.keyed(policies.default()))
    made = await desk.create(knowledge("a"), call="1")

    assert await desk.create(knowledge("a"), call="1") == made
    error = await refusal(desk.create(knowledge("b"), call="1"))
    assert error.reason == "IDEMPOTENCY_CONFLICT"
    head = await desk.update(made, knowledge("c"), call="2")
    assert await desk.update(made, knowledge("c"), call="2") == head
    assert [change["kind"] for change in await desk.events(2)] == ["created", "updated"]
    assert len((await desk.close()).changes) == 2


@pytest.mark.scenario(9)
async def test_a_replay_does_not_get_around_a_causal_bound(desk: Desk) -> None:
    desk.use(policies.keyed(policies.causal()))
    made = await desk.create(knowledge("a"), call="1", **ME)

    error = await refusal(desk.create(knowledge("a"), call="1", **UNKNOWN, **ME))
    assert error.reason == "OVERLOADED"
    assert await desk.create(knowledge("a"), call="1", **ME) == made


@pytest.mark.scenario(10)
async def test_what_came_too_late_was_not_done(desk: Desk) -> None:
    error = await refusal(desk.create(knowledge("a"), deadline_unix_ms=0))

    assert error.reason == "DEADLINE_EXCEEDED"
    assert (await refusal(desk.read())).reason == "NOT_FOUND"


@pytest.mark.scenario(11)
async def test_a_causal_token_outlives_the_daemon(desk: Desk) -> None:
    desk.use(policies.causal())
    made = await desk.create(knowledge("a"), **ME)
    token = made.meta["causal_token"]

    assert token == made.version
    seen = await desk.read(causal_token=token, **ME)
    assert (seen.meta["causal_token"], list(seen.values)) == (token, [made.version])
    assert (await refusal(desk.read(**UNKNOWN, **ME))).reason == "OVERLOADED"


@pytest.mark.scenario(12)
async def test_a_retrieval_of_all_types_with_one_domain_comes_back(desk: Desk) -> None:
    await desk.create(knowledge("a"))

    assert await desk.find({}) == (["k"], None)
    types = ["knowledge", "artifact", "knowledge_relation"]
    assert await desk.find({}, types=types) == (["k"], None)


@pytest.mark.scenario(13)
async def test_a_unit_is_private_until_it_is_closed(desk: Desk) -> None:
    await desk.create(knowledge("a"), "a", **U)

    assert (await refusal(desk.read("a"))).reason == "NOT_FOUND"
    assert (await desk.read("a", **U)).state == "active"
    await desk.create(knowledge("b"), "b", **CLOSE)
    assert [(await desk.read(name)).state for name in "ab"] == ["active", "active"]
    for request in (
        desk.read("a", **U),
        desk.find({}, types=["knowledge"], **U),
        desk.create(knowledge("c"), "c", **U),
        desk.create(knowledge("c"), "c", **CLOSE),
    ):
        assert (await refusal(request)).reason == "INVALID_REQUEST"


@pytest.mark.scenario(14)
async def test_a_drifted_close_is_merged(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple", marker=0))
    await desk.read(**U)
    outside = await desk.update(made, knowledge("red pear", marker=1))
    closed = await desk.update(made, knowledge("green apple", marker=2), **CLOSE)

    seen = await desk.read()
    assert seen.state == "conflicted"
    assert outside.version not in seen.values
    assert texts(seen) == ["green pear", "green pear"]
    assert markers(seen) == [1, 2]
    assert seen.values[closed.version] == closed.value


@pytest.mark.scenario(15)
async def test_a_drifted_close_under_reject_names_the_outside_version(desk: Desk) -> None:
    made = await desk.create(knowledge("a"))
    await desk.read(**U)
    outside = await desk.update(made, knowledge("b"))
    error = await refusal(desk.update(made, knowledge("c"), conflict_strategy="reject", **CLOSE))

    assert error.reason == "VERSION_CONFLICT"
    assert "current_versions" not in error.data
    assert error.data["conflicts"] == [conflict("k", outside.version)]
    # A start discards a sealed unit that it cannot publish.
    reason = "INVALID_REQUEST" if desk.is_one_run else "WORK_UNIT_EXPIRED"
    assert (await refusal(desk.create(knowledge("d"), "d", **U))).reason == reason
    assert list((await desk.read()).values) == [outside.version]


@pytest.mark.scenario(16)
async def test_every_rejected_entity_is_named_the_closing_one_last(desk: Desk) -> None:
    a, b = [await desk.create(knowledge(name), name) for name in "ab"]
    strictly = {"conflict_strategy": "reject"}
    staged = await desk.update(a, knowledge("in a"), "a", **U, **strictly)
    await desk.update(b, knowledge("in b"), "b", **U, **strictly)
    outside_a = await desk.update(a, knowledge("out a"), "a")
    outside_b = await desk.update(b, knowledge("out b"), "b")
    error = await refusal(desk.update(staged, knowledge("last"), "a", **CLOSE, **strictly))

    assert error.data["conflicts"] == [
        conflict("b", outside_b.version),
        conflict("a", outside_a.version),
    ]


@pytest.mark.scenario(17)
async def test_two_members_merge_inside_the_unit(desk: Desk) -> None:
    made = await desk.create(knowledge("red apple", marker=0))
    await desk.update(made, knowledge("red pear", marker=1), **U)
    closed = await desk.update(made, knowledge("green apple", marker=2), **CLOSE)

    seen = await desk.read()
    assert texts(seen) == ["green pear", "green pear"]
    assert markers(seen) == [1, 2]
    assert closed.version in seen.values


@pytest.mark.scenario(18)
async def test_the_view_of_a_unit_is_fixed_by_its_first_request(
    desk: Desk, pass_time: Callable[[int], None]
) -> None:
    policy = policies.default()
    policy["retention"]["changes_seconds"] = 1
    desk.use(policy)
    a, b = [await desk.create(knowledge(f"old {name}"), name) for name in "ab"]
    await desk.read("a", **U)
    outside = await desk.update(b, knowledge("new b"), "b")
    pass_time(2000)
    await desk.subscribe()
    assert (await refusal(desk.subscribe("0"))).reason == "CURSOR_EXPIRED"

    assert list((await desk.read("b", **U)).values) == [b.version]
    await desk.update(a, knowledge("new a"), "a", **CLOSE)
    assert list((await desk.read("b")).values) == [outside.version]


@pytest.mark.scenario(19)
async def test_retrieval_in_a_unit_sees_what_is_staged_over_the_baseline(desk: Desk) -> None:
    made = await desk.create(knowledge("old a"), "a")
    await desk.create(knowledge("old b"), "b")
    await desk.update(made, knowledge("new a"), "a", **U)
    await desk.create(knowledge("new c"), "c", **U)
    await desk.create(knowledge("old d"), "d")

    for text, found, meta in [
        ("new", ["a", "c"], U),
        ("old", ["b"], U),
        ("old", ["a", "b", "d"], {}),
        ("new", [], {}),
    ]:
        query = {"where": {"/content/text": {"$contains": text}}, "order": "id_asc"}
        assert await desk.find(query, types=["knowledge"], **meta) == (found, None)
        query = {"text": text, "order": "id_asc"}
        assert await desk.find(query, types=["knowledge"], **meta) == (found, None)


@pytest.mark.scenario(20)
async def test_a_staged_record_dies_with_its_unit(
    desk: Desk, pass_time: Callable[[int], None]
) -> None:
    desk.use(policies.keyed(policies.short_lived(policies.default())))
    staged = await desk.create(knowledge("a"), call="1", **U)
    assert await desk.create(knowledge("a"), call="1", **U) == staged
    pass_time(policies.TTL_MS)

    error = await refusal(desk.create(knowledge("a"), call="1", **U))
    assert error.reason == "WORK_UNIT_EXPIRED"
    assert (await desk.create(knowledge("a"), call="1")).version != staged.version


@pytest.mark.scenario(21)
async def test_a_unit_of_another_policy_is_refused(desk: Desk) -> None:
    relation = {"type_": "knowledge_relation"}
    desk.use(policies.short_lived(policies.default(), "knowledge_relation"))
    staged = await desk.create(knowledge("a"), **U)

    assert (await refusal(desk.read(**relation, **U))).reason == "INVALID_REQUEST"
    assert (await refusal(desk.find({}, **U))).reason == "INVALID_REQUEST"
    assert list((await desk.read(**U)).values) == [staged.version]
    await desk.restart()
    desk.use(policies.short_lived(policies.default()))
    for request in (
        desk.read(**U),
        desk.update(staged, knowledge("b"), **CLOSE),
        desk.find({}, types=["knowledge"], **U),
    ):
        assert (await refusal(request)).reason == "INVALID_REQUEST"
    assert (await refusal(desk.read())).reason == "NOT_FOUND"


@pytest.mark.scenario(22)
async def test_the_events_of_a_unit_arrive_together_the_closing_entity_last(desk: Desk) -> None:
    before = await desk.subscribe()
    b = await desk.create(knowledge("b"), "b", **U)
    assert await desk.subscribe() == before
    a = await desk.create(knowledge("a"), "a", **CLOSE)

    first, second = await desk.events(2)
    assert [first["ref"]["id"], second["ref"]["id"]] == ["b", "a"]
    assert [first["kind"], second["kind"]] == ["created", "created"]
    assert [first["head_versions"], second["head_versions"]] == [[b.version], [a.version]]
    assert [list((await desk.read(name)).values) for name in "ab"] == [[a.version], [b.version]]


@pytest.mark.scenario(23)
@pytest.mark.parametrize(
    ("guarantees", "frontiers"),
    [
        (["read_your_writes"], (0, 2)),
        (["monotonic_reads"], (2, 0)),
        (["monotonic_reads", "read_your_writes"], (2, 2)),
    ],
    ids=["writes", "reads", "both"],
)
async def test_a_session_remembers_what_it_promises_and_nothing_else(
    desk: Desk, guarantees: list[str], frontiers: tuple[int, int]
) -> None:
    desk.use(policies.with_guarantees(policies.causal(), *guarantees))
    made = await desk.create(knowledge("a"), **ME)
    await desk.update(made, knowledge("b"), **ME)
    await desk.read(**ME)
    await desk.close()

    assert read_sessions(desk.home) == [frontiers]


@pytest.mark.scenario(24)
async def test_a_bound_above_the_baseline_of_a_unit_cannot_be_met_in_it(desk: Desk) -> None:
    """No policy combines units with tokens or sessions, so the store is asked by itself."""
    await desk.create(knowledge("a"), "a")
    await desk.read("a", **U)
    later = await desk.create(knowledge("b"), "b")
    await desk.close()

    await check_unit_bounds(desk.home, token=later.version)


@pytest.mark.scenario(25)
async def test_retrieval_by_ids_conditions_and_pages(desk: Desk) -> None:
    links = [{"type": "artifact", "id": "plan-1", "role": "source"}]
    for name, rank, artifact in [("a", 1, []), ("b", 2, links), ("c", 3, links), ("d", 4, [])]:
        await desk.create(knowledge(structured({"rank": rank}), artifact=artifact), name)

    where = {"/content/kind": "structured", "/content/value/rank": {"$gte": 2}}
    query = {"ids": ["a", "b", "d"], "where": where, "order": "id_asc"}
    assert await desk.find(query) == (["b", "d"], None)
    query = {"where": {"/artifact": {"$contains": links[0]}}, "order": "id_asc"}
    assert await desk.find(query) == (["b", "c"], None)

    ids, cursor = await desk.find({"order": "id_asc"}, limit=2)
    assert ids == ["a", "b"]
    query = {"order": "id_asc", "cursor": cursor}
    assert await desk.find(query, limit=2) == (["c", "d"], None)
    for refused in (
        {"order": "id_desc", "cursor": cursor},
        {"order": "id_asc", "ids": ["a"], "cursor": cursor},
        {"where": {"/a": {"$regex": "x"}}},
        "red apple",
    ):
        assert (await refusal(desk.find(refused))).reason == "INVALID_REQUEST"


@pytest.mark.scenario(26)
async def test_boundaries_at_and_before_the_pruned_change(
    desk: Desk, pass_time: Callable[[int], None]
) -> None:
    desk.use(policies.causal())
    made = await desk.create(knowledge("a"), **ME)
    before = await desk.subscribe()
    head = await desk.update(made, knowledge("b"), **ME)
    pruned_through = await desk.subscribe()
    pass_time(WEEK_MS + 1)
    last = await desk.update(head, knowledge("c"), **ME)

    assert await desk.subscribe(pruned_through) == pruned_through
    assert (await refusal(desk.subscribe(before))).reason == "CURSOR_EXPIRED"
    for old in (made, head):
        seen = await desk.read(causal_token=old.meta["causal_token"], **ME)
        assert list(seen.values) == [last.version]


def conflict(name: str, *versions: str) -> dict[str, object]:
    return {"ref": {"type": "knowledge", "id": name}, "current_versions": list(versions)}
