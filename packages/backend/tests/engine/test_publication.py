"""How a work unit ends: who is told what, what is published, what a repetition gets."""

from __future__ import annotations

import asyncio
import json

import pytest
from patchouli.backend.publication import ATTEMPTS

U = {"unit": "u"}
DONE = {"unit": "u", "state": "done"}
KEYED = {**DONE, "call": "k"}
TTL_MS = 10_000


def memo(text, mark=0):
    return {"text": text, "mark": mark}


async def drift(units, name="a"):
    """Return the root of an entity that is in the view of the unit and was changed outside."""
    root = await units.create(memo("red apple"), name)
    await units.read(name, **U)
    await units.update(root, memo("red pear"), name)
    return root


def outside(units, name="a"):
    """Return a step that changes an entity outside of the unit, from all its heads."""

    async def write():
        heads = await units.rival.heads(name)
        (value,) = heads.values()
        await units.rival.update(list(heads), {**value, "text": value["text"] + "!"}, name)

    return write


async def sealed(units, refusal, *, root=None, **meta):
    """Leave a unit sealed whose drift could be reconciled: its close ran out of time."""
    root = root or await drift(units)

    async def pass_the_deadline():
        units.clock.now_unix_ms += 100

    units.provider.before_publish.append(pass_the_deadline)
    deadline = units.clock.unix_ms() + 50
    meta = {**DONE, **meta, "deadline_unix_ms": deadline}
    closing = units.update(root, memo("green apple"), **meta)
    assert (await refusal(closing)).reason == "DEADLINE_EXCEEDED"
    assert list((await units.heads()).values()) == [memo("red pear")]
    return root


async def values(units, name="a"):
    return list((await units.heads(name)).values())


# What a close is answered


async def test_a_close_without_drift_is_answered_with_what_it_staged(units):
    await units.create(memo("b"), "b", **U)
    units.provider.calls.clear()

    closed = await units.create(memo("a"), **DONE)

    assert units.provider.calls == ["commit"]
    assert json.loads(closed.value_json) == memo("a")
    assert await units.heads() == {closed.version: memo("a")}


async def test_drift_elsewhere_does_not_change_the_answer(units):
    root = await drift(units, "b")
    await units.update(root, memo("green apple"), "b", **U)

    closed = await units.create(memo("a"), **DONE)

    assert await units.heads() == {closed.version: memo("a")}
    assert await values(units, "b") == [memo("green pear")]


async def test_a_reconciled_close_is_answered_with_what_became_of_its_version(units):
    root = await drift(units)
    units.provider.calls.clear()

    closed = await units.update(root, memo("green apple"), **DONE)

    assert units.provider.calls == ["read", "commit", "publish"]
    assert json.loads(closed.value_json) == memo("green pear")
    assert await units.heads() == {closed.version: memo("green pear")}


async def test_the_answer_of_a_reconciled_close_names_a_token_of_its_publication(units):
    root = await drift(units)
    closed = await units.update(root, memo("green apple"), **DONE)

    (resolution,) = units.provider.publications[-1].resolutions
    assert resolution.causal_token == closed.version
    *_, change = await units.changes()
    assert (change.kind, change.head_versions) == ("updated", (closed.version,))
    assert change.causal_token != closed.version  # that of the last mutation


async def test_a_drifted_delete_stands_beside_what_was_written_outside(units):
    root = await drift(units)

    closed = await units.delete(root, **DONE)

    assert closed.value_json is None
    heads = await units.heads()
    assert heads[closed.version] is None
    assert sorted(heads.values(), key=str) == [None, memo("red pear")]


async def test_what_one_side_resolved_does_not_come_back(units):
    root = await units.create(memo("0", 0))
    one = await units.update(root, memo("1", 1), strategy="mvcc")
    two = await units.update(root, memo("2", 2), strategy="mvcc")
    await units.read(**U)
    await units.update(one, memo("3", 3), strategy="mvcc")

    await units.update(two, memo("4", 4), **DONE, strategy="mvcc")

    assert sorted(value["mark"] for value in await values(units)) == [3, 4]


async def test_an_entity_touched_with_reject_stays_so(units, refusal):
    root = await drift(units)
    staged = await units.update(root, memo("b"), **U, strategy="reject")

    error = await refusal(units.update(staged, memo("c"), **DONE, strategy="mvcc"))

    assert [conflict.entity_id for conflict in error.conflicts] == ["a"]
    assert await values(units) == [memo("red pear")]


async def test_else_the_last_mutation_decides(units):
    root = await drift(units)
    staged = await units.update(root, memo("b"), **U, strategy="merge")

    closed = await units.update(staged, memo("c"), **DONE, strategy="mvcc")

    assert sorted(value["text"] for value in await values(units)) == ["c", "red pear"]
    assert closed.version in await units.heads()


@pytest.mark.parametrize(("strategy", "is_refused"), [("merge", True), ("mvcc", False)])
async def test_otherwise_reject_refuses_differences_outside_the_merged_paths(
    open_units, refusal, strategy, is_refused
):
    units = await open_units(conflict={"otherwise": "reject"})
    root = await drift(units)
    closing = units.update(root, memo("green apple", 1), **DONE, strategy=strategy)

    if is_refused:
        assert [conflict.entity_id for conflict in (await refusal(closing)).conflicts] == ["a"]
    else:
        await closing
        assert len(await units.heads()) == 2


async def test_otherwise_reject_lets_what_merges_whole_pass(open_units):
    units = await open_units(conflict={"otherwise": "reject"})
    root = await drift(units)

    await units.update(root, memo("green apple"), **DONE)

    assert await values(units) == [memo("green pear")]


async def test_a_merge_that_violates_the_schema_leaves_both_sides(open_units):
    schema = {"properties": {"text": {"not": {"const": "green pear"}}}}
    units = await open_units(schema=schema)
    root = await drift(units)

    closed = await units.update(root, memo("green apple"), **DONE)

    assert sorted(value["text"] for value in await values(units)) == ["green apple", "red pear"]
    assert (await units.heads())[closed.version]["text"] == "green apple"


async def test_every_entity_in_the_way_is_named_and_the_others_are_not(units, refusal):
    roots = {name: await units.create(memo("red apple"), name) for name in "abc"}
    for name, strategy in [("a", "reject"), ("b", "merge"), ("c", "reject")]:
        await units.update(roots[name], memo("green apple"), name, **U, strategy=strategy)
        await units.update(roots[name], memo("red pear"), name)

    error = await refusal(units.create(memo("d"), "d", **DONE))

    assert [conflict.entity_id for conflict in error.conflicts] == ["a", "c"]
    for name in "abc":
        assert await values(units, name) == [memo("red pear")]
    assert (await refusal(units.read("d"))).reason == "NOT_FOUND"


# Races


async def test_a_race_lost_seven_times_is_won_at_the_eighth_attempt(units):
    root = await drift(units)
    units.provider.before_publish.extend([outside(units)] * (ATTEMPTS - 1))
    units.provider.calls.clear()

    closed = await units.update(root, memo("green apple"), **DONE)

    assert units.provider.calls == ["read", "commit", *["publish"] * ATTEMPTS]
    assert json.loads(closed.value_json) == memo("green pear" + "!" * (ATTEMPTS - 1))
    assert list(await units.heads()) == [closed.version]


async def test_eight_lost_races_are_a_conflict(units, refusal):
    root = await drift(units)
    units.provider.before_publish.extend([outside(units)] * ATTEMPTS)

    error = await refusal(units.update(root, memo("green apple"), **DONE))

    (conflict,) = error.conflicts
    assert conflict.current_versions == tuple(await units.heads())
    assert await values(units) == [memo("red pear" + "!" * ATTEMPTS)]
    # What was staged is kept: the same close succeeds when nobody is in the way.
    await units.update(root, memo("green apple"), **DONE)
    assert await values(units) == [memo("green pear" + "!" * ATTEMPTS)]


async def test_an_entity_that_drifts_during_the_reconciliation_is_reconciled_too(units):
    root = await drift(units)

    async def create_outside():
        await units.rival.create(memo("out", 1), "c")

    await units.create(memo("in", 2), "c", **U)
    units.provider.before_publish.append(create_outside)
    await units.update(root, memo("green apple"), **DONE)

    assert await values(units) == [memo("green pear")]
    assert sorted(value["mark"] for value in await values(units, "c")) == [1, 2]


@pytest.mark.parametrize("meta", [DONE, KEYED])
async def test_who_sealed_the_unit_succeeds_though_another_process_published_it(units, meta):
    root = await drift(units)

    async def help_out():
        with pytest.raises(Exception, match="work unit"):
            await units.rival.create(memo("x"), "x", **DONE)

    units.provider.before_publish.append(help_out)
    closed = await units.update(root, memo("green apple"), **meta)

    assert await units.heads() == {closed.version: memo("green pear")}


async def test_what_became_of_an_equal_close_before_it_is_not_guessed(units, refusal):
    """It sealed nothing itself, and who published did not say what was published."""
    root = await drift(units)
    await units.update(root, memo("green apple"), **U)

    async def pass_the_deadline():
        units.clock.now_unix_ms += 100

    async def help_out():
        await refusal(units.rival.create(memo("x"), "x", **DONE))

    units.provider.before_publish.extend([pass_the_deadline, help_out])
    late = units.create(memo("new"), "new", **DONE, deadline_unix_ms=units.clock.unix_ms() + 50)
    assert (await refusal(late)).reason == "DEADLINE_EXCEEDED"

    again = await refusal(units.create(memo("new"), "new", **DONE))

    assert again.reason == "INVALID_REQUEST"
    assert await values(units, "new") == [memo("new")]


async def test_a_unit_that_expires_between_seal_and_publication_is_gone(units, refusal):
    root = await drift(units)

    async def outlive_it():
        units.clock.now_unix_ms += TTL_MS

    units.provider.before_publish.append(outlive_it)
    error = await refusal(units.update(root, memo("green apple"), **DONE))

    assert error.reason == "WORK_UNIT_EXPIRED"
    assert await values(units) == [memo("red pear")]


async def test_of_two_closing_mutations_one_succeeds(units):
    await units.create(memo("a"), **U)

    answers = await asyncio.gather(
        *(units.create(memo(name), name, **DONE) for name in "bc"), return_exceptions=True
    )

    refused = [getattr(answer, "reason", None) for answer in answers]
    assert sorted(map(str, refused)) == ["INVALID_REQUEST", "None"]
    assert len(await units.changes()) == 2


async def test_closing_mutations_of_a_drifted_unit_wait_for_each_other(units):
    """The second one meets the unit only when the first one knows how it ended."""
    root = await drift(units)
    second = []

    async def arrive():
        second.append(asyncio.create_task(units.create(memo("b"), "b", **DONE)))
        await asyncio.sleep(0)

    units.provider.before_publish.append(arrive)
    closed = await units.update(root, memo("green apple"), **DONE)
    (answer,) = await asyncio.gather(*second, return_exceptions=True)

    assert getattr(answer, "reason", None) == "INVALID_REQUEST"
    assert await units.heads() == {closed.version: memo("green pear")}


async def test_a_deadline_ends_the_wait_for_another_close(units, refusal):
    root = await drift(units)
    refusals = []

    async def arrive():
        late = units.create(memo("b"), "b", **DONE, deadline_unix_ms=units.clock.unix_ms() + 1)
        refusals.append((await refusal(late)).reason)

    units.provider.before_publish.append(arrive)
    await units.update(root, memo("green apple"), **DONE)

    assert refusals == ["DEADLINE_EXCEEDED"]


# Sealed units and who may still close them


async def test_a_deadline_on_a_drifted_close_publishes_nothing_and_a_repetition_does(
    units, refusal
):
    root = await sealed(units, refusal)

    closed = await units.update(root, memo("green apple"), **DONE)

    assert await units.heads() == {closed.version: memo("green pear")}
    again = await refusal(units.update(root, memo("green apple"), **DONE))
    assert again.reason == "INVALID_REQUEST"  # nothing says any longer who it was


async def test_another_closing_mutation_helps_and_is_refused(units, refusal):
    root = await sealed(units, refusal)

    error = await refusal(units.create(memo("x"), "x", **DONE))

    assert error.reason == "INVALID_REQUEST"
    assert await values(units) == [memo("green pear")]
    assert (await refusal(units.read("x"))).reason == "NOT_FOUND"
    assert (await refusal(units.update(root, memo("y"), **DONE))).reason == "INVALID_REQUEST"


@pytest.mark.parametrize("kind", ["update", "delete", "keyed", "create"])
async def test_any_other_closing_mutation_helps(units, refusal, kind):
    root = await sealed(units, refusal)
    other = {
        "update": lambda: units.update(root, memo("other"), **DONE),
        "delete": lambda: units.delete(root, **DONE),
        "keyed": lambda: units.update(root, memo("green apple"), **KEYED),
        "create": lambda: units.create(memo("green apple"), **DONE),
    }[kind]

    assert (await refusal(other())).reason == "INVALID_REQUEST"
    assert await values(units) == [memo("green pear")]


async def test_a_mutation_that_does_not_close_does_not_help(units, refusal):
    root = await sealed(units, refusal)

    for request in (
        units.read(**U),
        units.retrieve({}, **U),
        units.update(root, memo("green apple"), **U),
    ):
        assert (await refusal(request)).reason == "INVALID_REQUEST"
    assert await values(units) == [memo("red pear")]


async def test_a_rejected_close_may_be_repeated_and_keeps_what_it_staged(units, refusal):
    root = await drift(units)
    conflicts = []
    for _ in range(2):
        closing = units.update(root, memo("b"), **KEYED, strategy="reject")
        conflicts.append((await refusal(closing)).conflicts)
        await outside(units)()

    assert [conflict.entity_id for found in conflicts for conflict in found] == ["a", "a"]
    assert conflicts[0] != conflicts[1]  # the versions of the moment
    # Its record is kept too: it answers a repetition that does not close.
    replay = await units.update(root, memo("b"), **U, call="k")
    assert json.loads(replay.value_json) == memo("b")
    other = await refusal(units.update(root, memo("c"), **U, call="k"))
    assert other.reason == "IDEMPOTENCY_CONFLICT"
    # Another closing mutation is not told whose conflicts they are.
    error = await refusal(units.create(memo("x"), "x", **DONE))
    assert (error.reason, getattr(error, "conflicts", None)) == ("INVALID_REQUEST", None)


async def test_a_rejected_unit_ends_when_it_expires(units, refusal):
    root = await drift(units)
    await refusal(units.update(root, memo("b"), **KEYED, strategy="reject"))
    units.clock.now_unix_ms += TTL_MS

    again = await refusal(units.update(root, memo("b"), **KEYED, strategy="reject"))
    assert again.reason == "WORK_UNIT_EXPIRED"
    assert await values(units) == [memo("red pear")]
    await units.create(memo("new"), "new", call="k")


async def test_an_unkeyed_create_without_an_id_may_close_again(units, refusal):
    """Its repetition is told the identity that was made for the first."""
    root = await drift(units)
    await units.update(root, memo("green apple"), **U)

    async def pass_the_deadline():
        units.clock.now_unix_ms += 100

    units.provider.before_publish.append(pass_the_deadline)
    deadline = units.clock.unix_ms() + 50
    late = units.create(memo("new"), None, **DONE, deadline_unix_ms=deadline)
    assert (await refusal(late)).reason == "DEADLINE_EXCEEDED"

    closed = await units.create(memo("new"), None, **DONE)

    assert await units.heads(closed.id) == {closed.version: memo("new")}
    assert len(await units.changes()) == 4


# Repetitions of keyed mutations


async def test_a_repeated_close_of_a_committed_unit_is_replayed(units, refusal):
    closed = await units.create(memo("a"), **KEYED)

    assert await units.create(memo("a"), **KEYED) == closed
    assert await units.create(memo("a"), **U, call="k") == closed
    assert await units.create(memo("a"), call="k") == closed
    assert (await refusal(units.create(memo("b"), **KEYED))).reason == "IDEMPOTENCY_CONFLICT"
    assert len(await units.changes()) == 1


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_replay_says_what_the_reconciled_close_said(units, is_restarted):
    root = await drift(units)
    closed = await units.update(root, memo("green apple"), **KEYED)
    if is_restarted:
        units = await units.restart()

    assert await units.update(root, memo("green apple"), **KEYED) == closed
    assert json.loads(closed.value_json) == memo("green pear")


async def test_whoever_publishes_stores_the_answer_of_who_sealed(units, refusal):
    root = await sealed(units, refusal, **KEYED)
    await refusal(units.create(memo("x"), "x", **DONE))

    replay = await units.update(root, memo("green apple"), **KEYED)

    assert await units.heads() == {replay.version: memo("green pear")}


async def test_a_keyed_close_of_a_sealed_unit_is_repeated(units, refusal):
    root = await sealed(units, refusal, **KEYED)

    closed = await units.update(root, memo("green apple"), **KEYED)

    assert await units.heads() == {closed.version: memo("green pear")}
    assert await units.update(root, memo("green apple"), **KEYED) == closed


async def test_a_staged_mutation_is_replayed_in_its_unit_and_nowhere_else(units, refusal):
    staged = await units.create(memo("a"), **U, call="k")

    assert await units.create(memo("a"), **U, call="k") == staged
    other = units.create(memo("b"), **U, call="k")
    assert (await refusal(other)).reason == "IDEMPOTENCY_CONFLICT"
    for elsewhere in ({"call": "k"}, {"call": "k", "unit": "v"}):
        request = units.create(memo("a"), **elsewhere)
        assert (await refusal(request)).reason == "IDEMPOTENCY_CONFLICT"
    assert (await units.read(**U))[1] == (staged,)


async def test_an_identity_used_outside_answers_in_a_unit(units, refusal):
    made = await units.create(memo("a"), call="k")

    assert await units.create(memo("a"), **U, call="k") == made
    assert await units.create(memo("a"), **KEYED) == made  # and closes nothing
    assert (await refusal(units.create(memo("b"), **KEYED))).reason == "IDEMPOTENCY_CONFLICT"
    await units.create(memo("b"), "b", **U)


@pytest.mark.parametrize("name", ["a", None])
async def test_a_closing_repetition_closes_and_stages_nothing_again(units, name):
    staged = await units.create(memo("a"), name, **U, call="k")
    await units.create(memo("b"), "b", **U)

    closed = await units.create(memo("a"), name, **KEYED)

    assert closed == staged
    assert [change.id for change in await units.changes()] == ["b", staged.id]
    assert await units.heads(staged.id) == {staged.version: memo("a")}
    assert await units.create(memo("a"), name, **KEYED) == staged


@pytest.mark.parametrize("kind", ["update", "delete"])
async def test_a_closing_repetition_of_an_update_or_a_delete(units, kind):
    root = await units.create(memo("a"))
    mutation = units.delete if kind == "delete" else units.update
    arguments = (root,) if kind == "delete" else (root, memo("b"))
    staged = await mutation(*arguments, **U, call="k")

    closed = await mutation(*arguments, **KEYED)

    assert closed == staged
    assert list(await units.heads()) == [staged.version]


async def test_a_closing_repetition_is_reconciled_like_a_close(units):
    root = await drift(units)
    staged = await units.update(root, memo("green apple"), **U, call="k")

    closed = await units.update(root, memo("green apple"), **KEYED)

    assert closed.version != staged.version
    assert await units.heads() == {closed.version: memo("green pear")}
    assert await units.update(root, memo("green apple"), **KEYED) == closed


async def test_a_closing_repetition_of_what_was_replaced_in_its_unit(units):
    """Its version was published and superseded at once; its answer is what it was."""
    root = await drift(units)
    staged = await units.update(root, memo("green apple"), **U, call="k")
    last = await units.update(staged, memo("so green apple"), **U, call="l")

    closed = await units.update(root, memo("green apple"), **KEYED)

    assert closed == staged
    assert await values(units) == [memo("so green pear")]
    assert await units.update(root, memo("green apple"), **KEYED) == staged
    assert await units.update(staged, memo("so green apple"), **U, call="l") == last


async def test_a_closing_repetition_that_loses_a_race_in_its_unit_tries_again(units):
    staged = await units.create(memo("a"), **U, call="k")

    async def other_member():
        await units.rival.update(staged, memo("b"), **U)

    units.provider.before_commit.append(other_member)
    closed = await units.create(memo("a"), **KEYED)

    assert closed == staged
    assert await values(units) == [memo("b")]


async def test_a_closing_repetition_whose_unit_another_process_published_is_replayed(units):
    staged = await units.create(memo("a"), **U, call="k")

    async def nothing():
        pass

    async def close():
        await units.rival.create(memo("a"), **KEYED)

    units.provider.before_commit.extend([nothing, close])
    closed = await units.create(memo("a"), **KEYED)

    assert closed == staged
    assert units.provider.calls == ["commit", "commit", "read", "commit"]
    assert await units.heads() == {staged.version: memo("a")}


async def test_a_closing_repetition_whose_record_ends_meanwhile_meets_what_it_staged(
    open_desk, unit_policy, refusal
):
    policy = unit_policy()
    policy["retention"]["idempotency_seconds"] = 1
    units = await open_desk(policy)
    staged = await units.create(memo("a"), **U, call="k")

    async def outlast_the_record():
        units.clock.now_unix_ms += 1000

    units.provider.before_commit.append(outlast_the_record)
    error = await refusal(units.create(memo("a"), **KEYED))

    assert error.reason == "VERSION_CONFLICT"
    assert error.current_versions == (staged.version,)
    assert (await units.read(**U))[0] == "active"  # the unit is open


async def test_a_closing_repetition_in_a_unit_that_another_sealed_is_refused(units, refusal):
    root = await drift(units)
    staged = await units.create(memo("s"), "s", **U, call="k")
    await sealed(units, refusal, root=root)

    error = await refusal(units.create(memo("s"), "s", **KEYED))

    assert error.reason == "INVALID_REQUEST"
    assert await values(units) == [memo("green pear")]  # it helped
    assert await units.create(memo("s"), "s", **KEYED) == staged  # and is published now


async def test_a_repetition_that_does_not_close_is_replayed_in_a_sealed_unit(units, refusal):
    root = await drift(units)
    staged = await units.create(memo("s"), "s", **U, call="k")
    await sealed(units, refusal, root=root)

    assert await units.create(memo("s"), "s", **U, call="k") == staged
    assert await values(units) == [memo("red pear")]


# The next start


async def test_a_sealed_unit_is_published_at_the_next_start(units, refusal):
    root = await sealed(units, refusal, **KEYED)

    units = await units.restart()

    assert units.engine.recovery == (1, 0)
    replay = await units.update(root, memo("green apple"), **KEYED)
    assert await units.heads() == {replay.version: memo("green pear")}
    assert (await refusal(units.create({}, "b", **U))).reason == "INVALID_REQUEST"


async def test_the_next_start_keeps_what_was_asked_and_validates_by_what_it_has(
    units, refusal, unit_policy
):
    """Strategy and paths are those of the requests; the schema is that of the day."""
    root = await sealed(units, refusal, **KEYED)
    schema = {"properties": {"text": {"not": {"const": "green pear"}}}}

    units = await units.restart(
        unit_policy(schema=schema, conflict={"merge": [], "otherwise": "reject"})
    )

    assert units.engine.recovery == (1, 0)
    assert sorted(value["text"] for value in await values(units)) == ["green apple", "red pear"]
    replay = await units.update(root, memo("green apple"), **KEYED)
    assert json.loads(replay.value_json) == memo("green apple")


async def test_a_type_that_is_no_longer_configured_is_published_unmerged(
    units, refusal, unit_policy
):
    await sealed(units, refusal)
    before = units.key()
    policy = unit_policy()
    del policy["entity_types"]["memo"]

    units = await units.restart(policy)

    assert units.engine.recovery == (1, 0)
    *_, change = await units.changes()
    assert (change.type, change.id, len(change.head_versions)) == (before.type, before.id, 2)


async def test_a_unit_that_cannot_be_published_is_discarded_at_the_next_start(units, refusal):
    root = await drift(units)
    await refusal(units.update(root, memo("b"), **KEYED, strategy="reject"))

    units = await units.restart()

    assert units.engine.recovery == (0, 1)
    assert await values(units) == [memo("red pear")]
    assert (await refusal(units.create({}, "b", **U))).reason == "WORK_UNIT_EXPIRED"
    await units.create(memo("free again"), "free", call="k")


async def test_an_overdue_sealed_unit_is_not_published_at_the_next_start(units, refusal):
    await sealed(units, refusal)
    units.clock.now_unix_ms += TTL_MS

    units = await units.restart()

    assert units.engine.recovery == (0, 0)
    assert await values(units) == [memo("red pear")]


async def test_an_open_unit_lives_on(units):
    await units.create(memo("a"), **U)

    units = await units.restart()

    assert units.engine.recovery == (0, 0)
    await units.create(memo("b"), "b", **DONE)
    assert await values(units) == [memo("a")]
