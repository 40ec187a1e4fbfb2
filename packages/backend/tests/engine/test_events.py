"""What a mutation tells: change records, their metadata, and the subscriptions that carry them."""

from __future__ import annotations

import json

import pytest
from patchouli.protocol import (
    ChangeFilter,
    CreateData,
    CreateParams,
    ReadData,
    ReadParams,
    Ref,
    RetrieveData,
    RetrieveParams,
    SubscribeData,
    SubscribeParams,
)


async def metas(desk):
    return [json.loads(change.event_meta_json) for change in await desk.changes()]


async def test_an_event_carries_every_bound_alias_and_nothing_else(desk):
    root = await desk.create({"text": "a"}, trace="ignored", deadline_unix_ms=2**62)
    await desk.update(root, {"text": "b"}, strategy="mvcc")

    assert await metas(desk) == [
        {"team": "north"},
        {"team": "north", "strategy": "mvcc", "base_versions": [root.version]},
    ]


async def test_metadata_stands_where_requests_carry_it(open_desk, policy):
    fields = {
        "team": {"pointer": "/ctx/team", "schema": {"type": "string"}},
        "call": {"pointer": "/ctx/a~1b", "schema": True},
    }
    desk = await open_desk(policy(fields=fields), meta={"ctx": {"team": "north", "a/b": None}})

    await desk.create({"text": "a"})

    assert await metas(desk) == [{"ctx": {"team": "north", "a/b": None}}]
    assert desk.engine.scope(desk.meta) == '{"team":"north"}'


async def test_an_alias_with_the_name_of_another_member_stands_at_its_pointer(open_desk, policy):
    fields = {"team": {"pointer": "/group", "schema": {"type": "string"}}}
    desk = await open_desk(policy(fields=fields), meta={"group": "north"})

    await desk.create({"text": "a"})

    assert await metas(desk) == [{"group": "north"}]


async def test_a_change_carries_the_token_of_the_accepted_version(desk):
    root = await desk.create({"text": "red apple", "m": 0})
    await desk.update(root, {"text": "red pear", "m": 1})
    accepted = await desk.update(root, {"text": "green apple", "m": 2})

    last = (await desk.changes())[-1]
    assert last.causal_token == accepted.version
    assert last.head_versions[0] == accepted.version


async def test_a_subscription_brings_changes_in_order_to_everybody_in_scope(desk):
    early = await desk.create({"text": "a"})
    start = await desk.subscribe("0")
    now = await desk.subscribe()
    elsewhere = await desk.subscribe(team="south")

    await desk.update(early, {"text": "b"})

    (from_now,) = await now.next_events()
    from_start = list(await start.next_events())
    while len(from_start) < 2:
        from_start += await start.next_events()
    changes = [json.loads(event.change_json) for event in from_start]
    assert [change["kind"] for change in changes] == ["created", "updated"]
    assert changes[1]["ref"] == {"type": "memo", "id": "a"}
    assert from_now.cursor == changes[1]["cursor"] == now.cursor
    assert elsewhere.cursor.endswith(".0")
    for subscription in (start, now, elsewhere):
        subscription.close()


async def test_a_filter_leaves_out_what_does_not_match_both_members(desk):
    wanted = ChangeFilter(types=("memo",), ids=("b",))
    subscription = await desk.engine.subscribe(
        SubscribeParams(meta=desk.meta, data=SubscribeData(filter=wanted))
    )

    await desk.create({"text": "a"}, "a")
    await desk.create({"text": "b"}, "b")

    (event,) = await subscription.next_events()
    assert json.loads(event.change_json)["ref"]["id"] == "b"
    subscription.close()


async def test_a_subscription_that_is_late_is_refused(desk, refusal):
    inner = desk.provider.read_changes

    async def late(plan):
        page = await inner(plan)
        desk.clock.now_unix_ms += 10
        return page

    desk.provider.read_changes = late

    for cursor in (None, "malformed", "elsewhere.1"):
        error = await refusal(desk.subscribe(cursor, deadline_unix_ms=desk.clock.unix_ms() + 10))
        assert error.reason == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("cursor", ["x", "+5", "007", "a.b"])
async def test_a_malformed_cursor_is_refused(desk, refusal, cursor):
    assert (await refusal(desk.subscribe(cursor))).reason == "INVALID_REQUEST"


async def test_results_and_events_carry_tokens_where_requests_carry_them(open_desk, policy, plain):
    causal = plain(
        consistency={
            "acquire": {
                "allow_sources": ["authority"],
                "requirements": [{"kind": "causal_after", "token": "seen", "optional": True}],
            }
        }
    )
    fields = {"seen": {"pointer": "/ctx/seen", "schema": True}}
    desk = await open_desk(policy(fields=fields, fallback=causal))

    data = CreateData(type="memo", id="a", value={"text": "a"})
    made = await desk.engine.create(CreateParams(meta=desk.meta, data=data))
    ref = Ref(type="memo", id="a")
    found = await desk.engine.read(ReadParams(meta=desk.meta, data=ReadData(ref=ref)))
    page = await desk.engine.retrieve(RetrieveParams(meta=desk.meta, data=RetrieveData(query="{}")))

    carried = {"ctx": {"seen": made.entity.version}}
    assert (made.meta, found.meta, page.meta) == (carried, carried, carried)
    assert await metas(desk) == [{"team": "north", **carried}]
