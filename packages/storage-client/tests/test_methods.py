"""Every method against a real daemon."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import parse_json
from patchouli.server.testing import META, memo, params, ref, revised
from patchouli.storage_client import (
    MalformedAnswerError,
    NotJsonError,
    PatchouliRpcError,
    RequestTooLarge,
    StorageClient,
)
from patchouli.storage_client.wire import request_line

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.checklist("MS-59")
async def test_all_capabilities_are_granted_and_the_node_is_told(client: StorageClient) -> None:
    assert client.server is not None
    assert client.server.capabilities == {"artifacts", "subscriptions", "subscription-lifecycle"}
    assert client.server.node_id == client.server.server.node_id == "local"
    assert client.server.limits.max_artifact_chunk_bytes == 524_288


@pytest.mark.checklist("MS-60")
async def test_status_checkpoint_and_compaction_are_passed_through(client: StorageClient) -> None:
    status = await client.status()
    checkpoint = await client.checkpoint()
    compaction = await client.compact(limit=10, with_due=True)

    assert status["meta"] == {}
    assert status["data"]["ready"] is True
    assert status["data"]["provider"] == "sqlite"
    assert checkpoint == {"meta": {}, "data": {"completed": True}}
    assert compaction["data"]["is_more_due"] is False
    assert compaction["data"]["due"] == 0


async def test_an_entity_lives_from_create_to_delete(client: StorageClient, name: str) -> None:
    created = (await client.create(params(memo(name, {"text": "graue Erbsen"}))))["data"]["entity"]
    read = (await client.read(params(ref(name))))["data"]
    updated = await client.update(
        params(revised(name, {"text": "Zuckererbsen"}), base_versions=[created["version"]])
    )
    deleted = await client.delete(
        params(ref(name), base_versions=[updated["data"]["entity"]["version"]])
    )

    assert read == {"state": "active", "variants": [created]}
    assert updated["data"]["entity"]["value"] == {"text": "Zuckererbsen"}
    assert deleted["data"]["entity"]["state"] == "deleted"
    assert (await client.read(params(ref(name))))["data"]["state"] == "deleted"


@pytest.mark.checklist("MS-69")
async def test_a_refusal_has_method_code_data_and_reason(client: StorageClient, name: str) -> None:
    await client.create(params(memo(name)))

    with pytest.raises(PatchouliRpcError) as caught:
        await client.create(params(memo(name)))

    error = caught.value
    assert (error.method, error.code) == ("patchouli.entity.create@1", -32004)
    assert error.reason == "VERSION_CONFLICT"
    assert isinstance(error.data, dict)
    assert error.data["current_versions"] == list(error.current_versions)
    assert len(error.current_versions) == 1


async def test_many_calls_are_under_way_at_once(client: StorageClient, name: str) -> None:
    names = [f"{name}-{number}" for number in range(100)]

    created = await asyncio.gather(*(client.create(params(memo(one))) for one in names))

    assert [answer["data"]["entity"]["ref"]["id"] for answer in created] == names


async def test_more_than_the_socket_holds_is_sent_in_the_order_of_the_calls(
    client: StorageClient, name: str, seen: Any
) -> None:
    names = [f"{name}-{number}" for number in range(40)]
    await client.subscribe(params({"filter": {"ids": names}}), seen)

    await asyncio.gather(
        *(client.create(params(memo(one, {"text": "x" * 200_000}))) for one in names)
    )

    await seen.until(40)
    assert seen.ids == names


@pytest.mark.checklist("MS-61")
async def test_an_instruction_travels_as_json_text_beside_types_and_limit(
    raw: Any,
) -> None:
    client, peer = await raw.connect()
    instruction = {"text": "Größe 樱桃", "where": {"/n": {"$gt": 3}, "/m": [1, 2]}}

    asking = asyncio.ensure_future(
        client.query({"user_id": "mira"}, instruction, types=["memo"], limit=7)
    )
    request = await peer.receive()
    peer.answer(request, {"meta": {}, "data": {"hits": []}})
    await asking
    bare = asyncio.ensure_future(client.query({}, {}))
    second = await peer.receive()
    peer.answer(second, {"meta": {}, "data": {"hits": []}})
    await bare
    await client.close()

    assert request["method"] == "patchouli.entity.retrieve@1"
    assert request["params"]["meta"] == {"user_id": "mira"}
    data = request["params"]["data"]
    text = data.pop("query")
    assert json.loads(text) == instruction
    assert text == '{"text":"Größe 樱桃","where":{"/n":{"$gt":3},"/m":[1,2]}}'
    assert data == {"types": ["memo"], "limit": 7}
    assert second["params"]["data"] == {"query": "{}"}


@pytest.mark.checklist("MS-62")
async def test_pages_come_in_order_to_the_end(client: StorageClient, name: str) -> None:
    ids = [f"{name}-{number}" for number in range(5)]
    for one in ids:
        await client.create(params(memo(one)))
    instruction = {"ids": ids, "order": "id_asc"}

    pages = [page async for page in client.query_pages(META, instruction, limit=2)]
    cursor = pages[0]["meta"].get("next_cursor")
    assert cursor is not None
    rest = [
        page async for page in client.query_pages(META, {**instruction, "cursor": cursor}, limit=2)
    ]

    found = [[hit["variants"][0]["ref"]["id"] for hit in page["data"]["hits"]] for page in pages]
    assert found == [ids[:2], ids[2:4], ids[4:]]
    assert [page["data"] for page in rest] == [page["data"] for page in pages[1:]]


@pytest.mark.parametrize("answer", [{}, {"meta": None}, {"meta": {"next_cursor": None}}])
async def test_a_page_that_does_not_say_what_follows_is_malformed(raw: Any, answer: object) -> None:
    client, peer = await raw.connect()

    async def first_and_next() -> list[Any]:
        return [page async for page in client.query_pages(META, {"text": "a"})]

    paging = asyncio.ensure_future(first_and_next())
    peer.answer(await peer.receive(), answer)

    with pytest.raises(MalformedAnswerError):
        await paging
    await client.close()


@pytest.mark.parametrize("wrong", ["window", None, {}, {"data": {}}, {"query": "{}"}])
async def test_what_is_not_shaped_as_a_method_takes_it_is_shown(
    client: StorageClient, wrong: Any
) -> None:
    for call in (client.retrieve, client.unsubscribe, client.begin_artifact_upload):
        with pytest.raises(TypeError, match="'meta': …, 'data': …"):
            await call(wrong)
    with pytest.raises(TypeError, match="'meta': …, 'data': …"):
        await client.subscribe(wrong, print)
    with pytest.raises(TypeError, match="called"):
        await client.subscribe(params({}), wrong)
    if not isinstance(wrong, dict):
        with pytest.raises(TypeError, match="an instruction must be"):
            await client.query(META, wrong)


async def test_one_text_is_not_taken_for_several_names(client: StorageClient) -> None:
    with pytest.raises(TypeError, match="types must be a list"):
        await client.query(META, {"text": "a"}, types="memo")
    with pytest.raises(TypeError, match="ids must be a list"):
        await client.retrieve_by_ids(META, "a")


@pytest.mark.checklist("MS-63")
async def test_entities_are_found_by_ids(client: StorageClient, name: str) -> None:
    for one in ("a", "b", "c"):
        await client.create(params(memo(f"{name}-{one}")))

    page = await client.retrieve_by_ids(META, [f"{name}-a", f"{name}-c"], types=["memo"], limit=10)

    found = {hit["variants"][0]["ref"]["id"] for hit in page["data"]["hits"]}
    assert found == {f"{name}-a", f"{name}-c"}


@pytest.mark.checklist("MS-64")
async def test_the_last_mutation_of_a_unit_closes_it(client: StorageClient) -> None:
    seen: list[Any] = []
    base = {"transaction_id": "t", "nested": {"n": 1}}

    def mutation(result: str) -> Callable[[Any], Any]:
        async def mutate(meta: dict[str, Any]) -> str:
            seen.append(json.loads(json.dumps(meta)))
            meta["nested"]["n"] = 2
            meta["added"] = True
            return result

        return mutate

    results = await client.run_work_unit(
        base, {"transaction_state": "commit"}, [mutation("one"), mutation("two")]
    )

    assert results == ("one", "two")
    assert seen == [base, {**base, "transaction_state": "commit"}]
    assert base == {"transaction_id": "t", "nested": {"n": 1}}


@pytest.mark.parametrize(
    ("meta", "close_meta", "count"),
    [
        pytest.param({}, {}, 0, marks=pytest.mark.checklist("MS-65"), id="no mutation"),
        pytest.param({"t": 1}, {}, 2, id="nothing that closes"),
        pytest.param(
            {"t": 1, "s": "open"},
            {"s": "commit"},
            2,
            marks=pytest.mark.checklist("MS-66"),
            id="closed from the beginning",
        ),
    ],
)
async def test_a_unit_that_cannot_be_closed_runs_nothing(
    client: StorageClient, meta: dict[str, Any], close_meta: dict[str, Any], count: int
) -> None:
    ran: list[int] = []

    async def mutate(_: object) -> None:
        ran.append(1)

    with pytest.raises(ValueError, match=r"work unit|close_meta"):
        await client.run_work_unit(meta, close_meta, [mutate] * count)

    assert ran == []


async def test_a_failure_ends_the_unit_and_publishes_nothing(
    client: StorageClient, name: str
) -> None:
    ran: list[str] = []

    def create(one: str) -> Callable[[Any], Any]:
        async def mutate(meta: dict[str, Any]) -> None:
            ran.append(one)
            await client.create(
                {"meta": meta, "data": {"type": "knowledge", "id": one, "value": 1}}
            )

        return mutate

    with pytest.raises(PatchouliRpcError) as caught:
        await client.run_work_unit(
            {**META, "transaction_id": name},
            {"transaction_state": "commit"},
            [create(f"{name}-1"), create(f"{name}-2")],
        )

    assert caught.value.reason == "INVALID_REQUEST"
    assert ran == [f"{name}-1"]


@pytest.mark.checklist("MS-79")
async def test_a_unit_is_invisible_before_its_close(
    client: StorageClient,
    name: str,
    knowledge: Callable[..., dict[str, Any]],
    relation: Callable[[str, str], dict[str, Any]],
) -> None:
    outside: list[str | None] = []

    async def first(meta: dict[str, Any]) -> Any:
        data = {"type": "knowledge", "id": name, "value": knowledge("cress grows fast")}
        return await client.create({"meta": meta, "data": data})

    async def second(meta: dict[str, Any]) -> Any:
        try:
            await client.read(params({"ref": {"type": "knowledge", "id": name}}))
        except PatchouliRpcError as error:
            outside.append(error.reason)
        value = relation(name, name)
        data = {"type": "knowledge_relation", "id": name, "value": value}
        return await client.create({"meta": meta, "data": data})

    await client.run_work_unit(
        {**META, "transaction_id": name}, {"transaction_state": "commit"}, [first, second]
    )

    assert outside == ["NOT_FOUND"]
    for kind in ("knowledge", "knowledge_relation"):
        read = await client.read(params({"ref": {"type": kind, "id": name}}))
        assert read["data"]["state"] == "active"


@pytest.mark.checklist("MS-87")
async def test_a_line_that_is_too_long_is_not_sent(client: StorageClient, name: str) -> None:
    limit = 1_048_576
    await client.create(params(memo(f"{name}-0")))

    with pytest.raises(RequestTooLarge) as caught:
        await client.create(params(memo(name, {"text": "x" * limit})))
    with pytest.raises(PatchouliRpcError) as unknown:
        await client.read(params(ref(name)))

    assert caught.value.limit_bytes == limit
    assert caught.value.size_bytes > limit
    assert unknown.value.reason == "NOT_FOUND"
    assert client.state == "ready"


@pytest.mark.checklist("MS-87")
async def test_the_limit_is_exact(client: StorageClient, name: str) -> None:
    async def create(size: int) -> None:
        await client.create(params(memo(f"{name}-{size}", {"text": "x" * size})))

    with pytest.raises(RequestTooLarge) as caught:
        await create(1_048_576)
    surplus = caught.value.size_bytes - 1_048_576
    # Both numbers have seven digits, so that both lines are of the same length but for the text.
    fitting = 1_048_576 - surplus

    await create(fitting)
    with pytest.raises(RequestTooLarge):
        await create(fitting + 1)


def holding_itself() -> list[Any]:
    circle: list[Any] = []
    circle += [circle, circle]
    return circle


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        pytest.param([1, float("nan")], "/1", "finite", id="NaN"),
        pytest.param({"b~/": {1, 2}}, "/b~0~1", "set", id="a set"),
        pytest.param(["", {"t": "\ud800"}], "/1/t", "surrogate", id="half a surrogate pair"),
        pytest.param({"t": {"\udfff": 1}}, "/t", "surrogate", id="half a surrogate pair as a key"),
        pytest.param([2**64], "/0", "64 bits", id="an integer beyond 64 bits"),
        pytest.param(-(2**63) - 1, "", "64 bits", id="a negative integer beyond 64 bits"),
        pytest.param(json.loads("[" * 130 + "]" * 130), "/0" * 123, "nested", id="too deep"),
        pytest.param({"in": holding_itself()}, "/in/0", "itself", id="what holds itself"),
        pytest.param({1: "a", "1": "b"}, "", "the key 1,", id="keys that would become one"),
        pytest.param([{"k": {None: 1}}], "/0/k", "the key None", id="a key that is None"),
        pytest.param({"k": ({True: 1},)}, "/k/0", "the key True", id="a key that is true"),
        pytest.param({"k": {1.5: 1}}, "/k", "the key 1.5", id="a key that is a number"),
        pytest.param({"k": {(1, 2): 1}}, "/k", "the key (1, 2)", id="a key that is a tuple"),
    ],
)
async def test_what_is_no_json_of_the_wire_is_refused_before_it_is_sent(
    client: StorageClient, name: str, value: Any, path: str, problem: str
) -> None:
    with pytest.raises(NotJsonError) as caught:
        await client.create(params(memo(name, {"value": value})))
    assert caught.value.path == "/data/value/value" + path
    assert problem in caught.value.problem
    assert caught.value.path in str(caught.value)

    with pytest.raises(NotJsonError) as caught:
        await client.query(META, {"text": value})
    assert caught.value.path.startswith("/data/query/text" + path)

    with pytest.raises(PatchouliRpcError) as unknown:
        await client.read(params(ref(name)))
    assert unknown.value.reason == "NOT_FOUND"


async def test_what_is_nested_beyond_recursion_is_refused(client: StorageClient, name: str) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(NotJsonError, match="nested"):
        await client.create(params(memo(name, {"value": deep})))
    while deep:
        deep = deep[0]


@pytest.mark.parametrize("inmost", [7, "x", [], {}])
def test_as_many_levels_as_the_wire_has_pass(inmost: Any) -> None:
    deepest = inmost
    for _ in range(125 if isinstance(inmost, list | dict) else 126):
        deepest = {"a": deepest}

    # The daemon reads lines with this parser; the request itself is the first level.
    assert parse_json(request_line(1, "m", deepest))
    with pytest.raises(NotJsonError):
        request_line(1, "m", {"a": deepest})


async def test_what_is_as_good_as_json_is_sent_as_json(client: StorageClient, name: str) -> None:
    class Text(StrEnum):
        KEY = "key"

    class Number(IntEnum):
        ONE = 1

    value: Any = {
        Text.KEY: Text.KEY,
        "read-only": MappingProxyType({"in": (Number.ONE, -0.0)}),
        "ordered": OrderedDict(k=[{}, True, None]),
    }

    created = await client.create(params(memo(name, value)))

    assert created["data"]["entity"]["value"] == {
        "key": "key",
        "read-only": {"in": [1, 0]},
        "ordered": {"k": [{}, True, None]},
    }


async def test_large_integers_and_long_digits_in_texts_pass(
    client: StorageClient, name: str
) -> None:
    value = {"most": 2**64 - 1, "least": -(2**63), "text": "9" * 40, "braces": "{[" * 200}

    created = await client.create(params(memo(name, value)))

    assert created["data"]["entity"]["value"] == value


async def test_an_answer_above_64_kib_arrives_whole(client: StorageClient, name: str) -> None:
    value = {"text": "ü" * 400_000}

    await client.create(params(memo(name, value)))

    read = await client.read(params(ref(name)))
    assert read["data"]["variants"][0].get("value") == value


async def test_a_call_that_is_cancelled_is_forgotten(client: StorageClient, name: str) -> None:
    creating = asyncio.ensure_future(client.create(params(memo(name))))
    await asyncio.sleep(0)  # it was sent

    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating

    read = await client.read(params(ref(name)))
    assert read["data"]["state"] == "active"
    assert client._link.connection is not None
    assert client._link.connection._calls == {}


async def test_a_deadline_is_a_matter_of_metadata(client: StorageClient, name: str) -> None:
    with pytest.raises(PatchouliRpcError) as caught:
        await client.create(params(memo(name), deadline_unix_ms=1))

    assert caught.value.reason == "DEADLINE_EXCEEDED"


async def test_a_record_is_created_found_changed_and_deleted(
    client: StorageClient, name: str, knowledge: Callable[..., dict[str, Any]]
) -> None:
    identity = {"ref": {"type": "knowledge", "id": name}}
    value = knowledge(f"山椒と柚子 {name}")

    created = await client.create(params({"type": "knowledge", "id": name, "value": value}))
    read = await client.read(params(identity))
    found = await client.query(META, {"text": f"柚子 {name}"}, types=["knowledge"])
    changed = await client.update(
        params(
            {**identity, "value": knowledge("ゆず")},
            base_versions=[created["data"]["entity"]["version"]],
        )
    )
    await client.delete(params(identity, base_versions=[changed["data"]["entity"]["version"]]))
    gone = await client.read(params(identity))

    assert created["data"]["entity"]["state"] == "active"
    assert read["data"]["variants"] == [created["data"]["entity"]]
    assert [hit["variants"][0]["ref"]["id"] for hit in found["data"]["hits"]] == [name]
    assert gone["data"]["state"] == "deleted"
    assert [variant["state"] for variant in gone["data"]["variants"]] == ["deleted"]
