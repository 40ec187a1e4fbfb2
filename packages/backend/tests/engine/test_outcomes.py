"""What becomes of updates and deletes, strategy by strategy: the whole matrix of SPEC."""

from __future__ import annotations

import pytest


async def two_heads(desk):
    """Return a root and two heads that were both based on it."""
    root = await desk.create({"text": "red apple", "mark": 0})
    one = await desk.update(root, {"text": "one", "mark": 1}, strategy="mvcc")
    other = await desk.update(root, {"text": "other", "mark": 2}, strategy="mvcc")
    return root, one, other


async def conflict_of(refusal, awaitable) -> tuple[str, ...]:
    error = await refusal(awaitable)
    assert error.reason == "VERSION_CONFLICT"
    assert error.conflicts == ()
    assert list(error.current_versions) == sorted(error.current_versions)
    return error.current_versions


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_an_update_of_the_only_head_becomes_the_only_head(desk, strategy):
    root = await desk.create({"text": "a"})

    accepted = await desk.update(root, {"text": "b"}, strategy=strategy)

    assert await desk.heads() == {accepted.version: {"text": "b"}}


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_an_update_of_all_heads_resolves_the_conflict(desk, strategy):
    _, one, other = await two_heads(desk)

    accepted = await desk.update([one, other], {"text": "c"}, strategy=strategy)

    assert await desk.heads() == {accepted.version: {"text": "c"}}
    assert (await desk.changes())[-1].kind == "resolved"


@pytest.mark.parametrize("strategy", ["mvcc", "merge"])
async def test_more_bases_than_heads_are_enough(desk, strategy):
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    accepted = await desk.update([root, head], {"text": "c"}, strategy=strategy)

    assert await desk.heads() == {accepted.version: {"text": "c"}}


async def test_reject_takes_the_exact_heads_and_nothing_more(desk, refusal):
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    for bases in ([root, head], [root]):
        update = desk.update(bases, {"text": "c"}, strategy="reject")
        assert await conflict_of(refusal, update) == (head.version,)
        delete = desk.delete(bases, strategy="reject")
        assert await conflict_of(refusal, delete) == (head.version,)
    assert await desk.heads() == {head.version: {"text": "b"}}
    assert len(await desk.changes()) == 2


@pytest.mark.parametrize("otherwise", ["mvcc", "reject"])
async def test_mvcc_keeps_what_is_concurrent_whatever_otherwise_says(open_desk, policy, otherwise):
    desk = await open_desk(policy(conflict={"otherwise": otherwise}))
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    accepted = await desk.update(root, {"text": "b"}, strategy="mvcc")

    # Equal values are not made one: mvcc compares nothing.
    assert await desk.heads() == {head.version: {"text": "b"}, accepted.version: {"text": "b"}}
    assert (await desk.changes())[-1].kind == "conflicted"


async def test_merge_joins_the_text_and_keeps_other_differences_apart(desk):
    root = await desk.create({"text": "red apple", "mark": 0})
    head = await desk.update(root, {"text": "red pear", "mark": 1})

    accepted = await desk.update(root, {"text": "green apple", "mark": 2})

    heads = await desk.heads()
    assert heads[accepted.version] == {"text": "green pear", "mark": 2}
    assert sorted(value["mark"] for value in heads.values()) == [1, 2]
    assert {value["text"] for value in heads.values()} == {"green pear"}
    assert head.version not in heads


async def test_merge_makes_equal_results_one(desk):
    root = await desk.create({"text": "red apple"})
    await desk.update(root, {"text": "red pear"})

    accepted = await desk.update(root, {"text": "green apple"})

    assert accepted.value_json == '{"text":"green pear"}'
    assert await desk.heads() == {accepted.version: {"text": "green pear"}}
    assert (await desk.changes())[-1].kind == "updated"


async def test_equal_edits_enter_a_merge_once(desk):
    root = await desk.create({"text": "apple"})
    await desk.update(root, {"text": "red apple"})

    accepted = await desk.update(root, {"text": "red apple"})

    assert await desk.heads() == {accepted.version: {"text": "red apple"}}


async def test_merge_supersedes_some_heads_and_joins_the_rest(desk):
    root, one, other = await two_heads(desk)

    accepted = await desk.update(one, {"text": "one more", "mark": 2})

    heads = await desk.heads()
    assert accepted.version in heads
    assert one.version not in heads
    assert other.version not in heads
    assert {value["mark"] for value in heads.values()} == {2}
    assert len(heads) == 1
    assert root.version not in heads


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_a_concurrent_tombstone_stays_beside_the_new_head(desk, refusal, strategy):
    root = await desk.create({"text": "a"})
    tombstone = await desk.delete(root)
    update = desk.update(root, {"text": "b"}, strategy=strategy)

    if strategy == "reject":
        assert await conflict_of(refusal, update) == (tombstone.version,)
        return
    accepted = await update

    assert await desk.heads() == {tombstone.version: None, accepted.version: {"text": "b"}}
    change = (await desk.changes())[-1]
    assert change.kind == "conflicted"
    assert change.head_versions == (tombstone.version, accepted.version)


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_a_concurrent_tombstone_is_refused_under_otherwise_reject(
    open_desk, policy, refusal, strategy
):
    desk = await open_desk(policy(conflict={"otherwise": "reject"}))
    root = await desk.create({"text": "a"})
    tombstone = await desk.delete(root)

    update = desk.update(root, {"text": "b"}, strategy=strategy)

    assert await conflict_of(refusal, update) == (tombstone.version,)
    assert await desk.heads() == {tombstone.version: None}


async def test_otherwise_reject_takes_what_merges_into_one_head(open_desk, policy):
    desk = await open_desk(policy(conflict={"otherwise": "reject"}))
    root = await desk.create({"text": "red apple", "mark": 1})
    await desk.update(root, {"text": "red pear", "mark": 1})

    accepted = await desk.update(root, {"text": "green apple", "mark": 1})

    assert await desk.heads() == {accepted.version: {"text": "green pear", "mark": 1}}


async def test_otherwise_reject_refuses_a_difference_outside_the_merged_paths(
    open_desk, policy, refusal
):
    desk = await open_desk(policy(conflict={"otherwise": "reject"}))
    root = await desk.create({"text": "red apple", "mark": 0})
    head = await desk.update(root, {"text": "red pear", "mark": 1})

    update = desk.update(root, {"text": "green apple", "mark": 2})

    assert await conflict_of(refusal, update) == (head.version,)
    assert list(await desk.heads()) == [head.version]


async def test_otherwise_reject_refuses_a_difference_where_no_path_merges(
    open_desk, policy, refusal
):
    desk = await open_desk(policy(conflict={"otherwise": "reject", "merge": []}))
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    assert await conflict_of(refusal, desk.update(root, {"text": "c"})) == (head.version,)
    same = await desk.update(root, {"text": "b"})
    assert await desk.heads() == {same.version: {"text": "b"}}


@pytest.mark.parametrize("otherwise", ["mvcc", "reject"])
@pytest.mark.parametrize("value", [{}, {"text": "a"}, {"text": {"kind": "list"}}])
async def test_an_uncontended_update_is_never_refused(open_desk, policy, otherwise, value):
    grouped = [{"path": "/text", "strategy": "automerge", "group_by": ["/kind"]}]
    desk = await open_desk(policy(conflict={"otherwise": otherwise, "merge": grouped}))
    root = await desk.create({"text": {"kind": "text", "body": "x"}})

    accepted = await desk.update(root, value)

    assert await desk.heads() == {accepted.version: value}


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_an_unknown_base_is_a_conflict_in_every_strategy(desk, refusal, strategy):
    root = await desk.create({"text": "a"})

    for bases in (["unknown"], [root, "unknown"]):
        update = desk.update(bases, {"text": "b"}, strategy=strategy)
        assert await conflict_of(refusal, update) == (root.version,)
        delete = desk.delete(bases, strategy=strategy)
        assert await conflict_of(refusal, delete) == (root.version,)


async def test_the_version_of_another_entity_is_an_unknown_base(desk, refusal):
    root = await desk.create({"text": "a"})
    stranger = await desk.create({"text": "b"}, "b")

    assert await conflict_of(refusal, desk.update(stranger, {"text": "c"})) == (root.version,)


@pytest.mark.parametrize("strategy", ["reject", "mvcc", "merge"])
async def test_an_unknown_identity_is_not_found_in_every_strategy(desk, refusal, strategy):
    update = await refusal(desk.update(["v"], {"text": "b"}, strategy=strategy))
    delete = await refusal(desk.delete(["v"], strategy=strategy))

    assert (update.reason, delete.reason) == ("NOT_FOUND", "NOT_FOUND")


async def test_tombstones_stay_while_the_active_heads_merge(desk):
    root = await desk.create({"text": "red apple"})
    tombstone = await desk.delete(root)
    await desk.update(root, {"text": "red pear"}, strategy="mvcc")

    accepted = await desk.update(root, {"text": "green apple"})

    assert await desk.heads() == {tombstone.version: None, accepted.version: {"text": "green pear"}}
    assert (await desk.changes())[-1].head_versions == (tombstone.version, accepted.version)


# Deletes


@pytest.mark.parametrize("strategy", ["mvcc", "merge"])
async def test_a_stale_delete_leaves_the_tombstone_beside_the_head(desk, strategy):
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    tombstone = await desk.delete(root, strategy=strategy)

    assert tombstone.value_json is None
    assert await desk.heads() == {head.version: {"text": "b"}, tombstone.version: None}
    assert (await desk.read())[0] == "conflicted"
    change = (await desk.changes())[-1]
    assert (change.kind, change.head_versions) == (
        "conflicted",
        (head.version, tombstone.version),
    )


@pytest.mark.parametrize("strategy", ["mvcc", "merge"])
async def test_a_stale_delete_is_refused_under_otherwise_reject(
    open_desk, policy, refusal, strategy
):
    desk = await open_desk(policy(conflict={"otherwise": "reject"}))
    root = await desk.create({"text": "a"})
    head = await desk.update(root, {"text": "b"})

    delete = desk.delete(root, strategy=strategy)

    assert await conflict_of(refusal, delete) == (head.version,)


async def test_a_delete_of_all_heads_resolves_the_conflict(desk):
    _, one, other = await two_heads(desk)

    tombstone = await desk.delete([one, other])

    assert await desk.heads() == {tombstone.version: None}
    assert (await desk.read())[0] == "deleted"
    assert (await desk.changes())[-1].kind == "resolved"


async def test_a_deleted_identity_can_be_deleted_again(desk):
    root = await desk.create({"text": "a"})
    first = await desk.delete(root)

    second = await desk.delete(first)

    assert second.version != first.version
    assert await desk.heads() == {second.version: None}
    assert (await desk.changes())[-1].kind == "deleted"


async def test_an_update_with_the_tombstone_as_base_revives(desk):
    root = await desk.create({"text": "a"})
    tombstone = await desk.delete(root)

    revived = await desk.update(tombstone, {"text": "b"})

    assert await desk.heads() == {revived.version: {"text": "b"}}
    assert (await desk.read())[0] == "active"
    assert (await desk.changes())[-1].kind == "updated"


async def test_two_tombstones_are_a_conflict(desk):
    root = await desk.create({"text": "a"})
    await desk.delete(root)
    await desk.delete(root)

    state, variants = await desk.read()

    assert state == "conflicted"
    assert [variant.value_json for variant in variants] == [None, None]
    assert [variant.version for variant in variants] == sorted(v.version for v in variants)


# Creates


async def test_a_create_on_any_existing_identity_is_a_conflict(desk, refusal):
    root = await desk.create({"text": "a"})
    assert await conflict_of(refusal, desk.create({"text": "b"})) == (root.version,)

    one = await desk.update(root, {"text": "b"}, strategy="mvcc")
    other = await desk.update(root, {"text": "c"}, strategy="mvcc")
    both = tuple(sorted([one.version, other.version]))
    for strategy in ("reject", "mvcc", "merge"):
        create = desk.create({"text": "d"}, strategy=strategy)
        assert await conflict_of(refusal, create) == both

    tombstone = await desk.delete([one, other])
    assert await conflict_of(refusal, desk.create({"text": "e"})) == (tombstone.version,)


async def test_a_create_without_an_id_gets_one(desk):
    made = await desk.create({"text": "a"}, None)

    assert len(made.id) == 36
    assert made.id.split("-")[2].startswith("4")
    assert await desk.heads(made.id) == {made.version: {"text": "a"}}


@pytest.mark.parametrize("name", [" ", "\0", "é", "a/b", "x" * 1000])
async def test_any_non_empty_text_is_an_id(desk, name):
    made = await desk.create({"text": "a"}, name)

    assert made.id == name
    assert list(await desk.heads(name)) == [made.version]


async def test_what_is_stored_is_the_canonical_text(desk):
    made = await desk.create({"b": 1, "a": [1.0, "é", None], "text": {}})

    assert made.value_json == '{"a":[1.0,"é",null],"b":1,"text":{}}'
    _, (head,) = await desk.read()
    assert head.value_json == made.value_json


async def test_scopes_do_not_see_each_other(desk, refusal):
    await desk.create({"text": "a"})

    assert (await refusal(desk.read(team="south"))).reason == "NOT_FOUND"
    await desk.create({"text": "b"}, team="south")
    assert len(await desk.changes()) == 1
