"""The recipes that bring an entity to a state, whatever it was in."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import META, memo, params, ref, revised
from patchouli.storage_client import MalformedAnswerError, PatchouliRpcError, StorageClient

if TYPE_CHECKING:
    from patchouli.storage_client import Ref

WAIT_SECONDS = 10.0


def identity(name: str) -> Ref:
    return {"type": "memo", "id": name}


async def heads(client: StorageClient, name: str) -> dict[str, Any]:
    return dict((await client.read(params(ref(name))))["data"])


async def test_an_upsert_creates_replaces_and_revives(client: StorageClient, name: str) -> None:
    for value in ("one", "two"):
        await client.upsert(META, identity(name), value)
        assert [v["value"] for v in (await heads(client, name))["variants"]] == [value]
    await client.remove(META, identity(name))
    assert (await heads(client, name))["state"] == "deleted"

    revived = await client.upsert(META, identity(name), "three")

    assert revived["data"]["entity"]["value"] == "three"
    assert (await heads(client, name))["variants"] == [revived["data"]["entity"]]


async def conflicted(client: StorageClient, name: str) -> None:
    """Make `name` an entity with two heads."""
    created = await client.create(params(memo(name, 0)))
    base = [created["data"]["entity"]["version"]]
    for value in (1, 2):
        await client.update(
            params(revised(name, value), base_versions=base, conflict_strategy="mvcc")
        )
    assert (await heads(client, name))["state"] == "conflicted"


async def test_an_upsert_resolves_a_conflict(client: StorageClient, name: str) -> None:
    await conflicted(client, name)

    await client.upsert(META, identity(name), "settled")

    assert (await heads(client, name))["state"] == "active"


async def test_a_removal_deletes_all_heads(client: StorageClient, name: str) -> None:
    await conflicted(client, name)

    await client.remove(META, identity(name))

    assert (await heads(client, name))["state"] == "deleted"


async def test_upserts_at_the_same_time_leave_one_head(client: StorageClient, name: str) -> None:
    results = await asyncio.gather(
        *(client.upsert(META, identity(name), number) for number in range(5))
    )

    assert len({answer["data"]["entity"]["version"] for answer in results}) == 5
    assert (await heads(client, name))["state"] == "active"


@pytest.mark.checklist("MS-91")
@pytest.mark.parametrize("existed", [True, False])
async def test_what_is_deleted_is_read_once_and_not_written(raw: Any, existed: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    client, peer = await raw.connect()

    removing = asyncio.ensure_future(client.remove(META, identity("m")))
    request = await peer.receive()
    if existed:
        tombstone = {"state": "deleted", "ref": identity("m"), "version": "v9"}
        peer.answer(request, {"meta": {}, "data": {"state": "deleted", "variants": [tombstone]}})
    else:
        error = {"code": -32003, "message": "unknown", "data": {"reason": "NOT_FOUND"}}
        peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    result = await removing
    await client.close()

    assert result is None
    assert request["method"] == "patchouli.entity.read@1"
    assert await peer.is_closed()  # and nothing else was sent before that


@pytest.mark.checklist("MS-91")
async def test_a_deleted_entity_gets_no_second_tombstone(client: StorageClient, name: str) -> None:
    await client.upsert(META, identity(name), 1)
    await client.remove(META, identity(name))
    before = await heads(client, name)

    assert await client.remove(META, identity(name)) is None

    assert await heads(client, name) == before


async def test_a_race_that_is_always_lost_ends(raw: Any) -> None:
    client, peer = await raw.connect()
    sent: list[dict[str, Any]] = []

    upserting = asyncio.ensure_future(client.upsert(META, identity("m"), 1))
    for number in range(6):
        request = await peer.receive()
        sent.append(request)
        data = {"reason": "VERSION_CONFLICT", "current_versions": [f"v{number}"]}
        error = {"code": -32004, "message": "conflict", "data": data}
        peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
    with pytest.raises(PatchouliRpcError) as caught:
        await upserting
    await client.close()

    assert caught.value.current_versions == ("v5",)
    assert [request["method"].split(".")[2] for request in sent] == [
        "create@1",
        *(["update@1"] * 5),
    ]
    bases = [request["params"]["meta"].get("base_versions") for request in sent]
    assert bases == [None, ["v0"], ["v1"], ["v2"], ["v3"], ["v4"]]
    assert {request["params"]["meta"]["conflict_strategy"] for request in sent} == {"reject"}


async def test_a_removal_that_is_always_late_ends(raw: Any) -> None:
    client, peer = await raw.connect()
    deletes: list[dict[str, Any]] = []

    removing = asyncio.ensure_future(client.remove(META, identity("m")))
    for number in range(5):
        head = {"state": "active", "ref": identity("m"), "version": f"v{number}", "value": 1}
        found = {"state": "active", "variants": [head]}
        peer.answer(await peer.receive(), {"meta": {}, "data": found})
        deletes.append(await peer.receive())
        data = {"reason": "VERSION_CONFLICT", "current_versions": [f"v{number + 1}"]}
        error = {"code": -32004, "message": "conflict", "data": data}
        peer.send({"jsonrpc": "2.0", "id": deletes[-1]["id"], "error": error})
    with pytest.raises(PatchouliRpcError) as caught:
        await asyncio.wait_for(removing, WAIT_SECONDS)
    await client.close()

    assert caught.value.current_versions == ("v5",)
    assert {request["method"] for request in deletes} == {"patchouli.entity.delete@1"}
    bases = [request["params"]["meta"]["base_versions"] for request in deletes]
    assert bases == [["v0"], ["v1"], ["v2"], ["v3"], ["v4"]]


async def test_other_refusals_are_not_repeated(client: StorageClient, name: str) -> None:
    with pytest.raises(PatchouliRpcError) as caught:
        await client.upsert(META, {"type": "unheard-of", "id": name}, 1)

    assert caught.value.reason == "INVALID_REQUEST"


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": None},
        {"data": {"state": "active"}},
        {"data": {"state": "active", "variants": None}},
        {"data": {"state": "active", "variants": [{"value": 1}]}},
    ],
)
async def test_a_removal_goes_by_no_answer_without_heads(raw: Any, answer: object) -> None:
    client, peer = await raw.connect()
    removing = asyncio.ensure_future(client.remove(META, identity("a")))
    peer.answer(await peer.receive(), answer)

    with pytest.raises(MalformedAnswerError):
        await removing
    await client.close()


@pytest.mark.parametrize("wrong", [{}, {"type": "memo"}, None, "a"])
async def test_what_names_no_entity_is_named(client: StorageClient, wrong: Any) -> None:
    with pytest.raises(TypeError, match="'type': …, 'id': …"):
        await client.upsert(META, wrong, 1)
    with pytest.raises(TypeError, match="'type': …, 'id': …"):
        await client.remove(META, wrong)
