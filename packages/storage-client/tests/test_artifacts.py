"""Bytes in chunks, up and down."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import META, beginning, params
from patchouli.storage_client import (
    ArtifactChangedError,
    MalformedAnswerError,
    PatchouliRpcError,
    StorageClient,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BEGUN = {"meta": {}, "data": {"upload_id": "u1", "max_chunk_bytes": 4}}


class Counted:
    """Counts the requests of a client by method."""

    def __init__(self, client: StorageClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.methods: list[str] = []
        connection = client._link.connection
        assert connection is not None
        call = connection.call

        def counting(method: str, *rest: Any, **named: Any) -> Any:
            self.methods.append(method.split(".", 2)[2])
            return call(method, *rest, **named)

        monkeypatch.setattr(connection, "call", counting)


@pytest.mark.checklist("MS-75")
async def test_600000_bytes_go_up_in_two_chunks_and_come_down_whole(
    client: StorageClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(600_000)
    counted = Counted(client, monkeypatch)

    committed = await client.upload_artifact(params(beginning(id=name)), content)
    uploaded = list(counted.methods)
    downloaded = await client.download_artifact(META, name)

    assert uploaded == ["upload.begin@1", "upload.chunk@1", "upload.chunk@1", "upload.commit@1"]
    assert counted.methods[4:] == ["download.chunk@1", "download.chunk@1"]
    assert downloaded == content
    assert committed["data"]["entity"]["ref"] == {"type": "artifact", "id": name}


@pytest.mark.checklist("MS-76")
async def test_no_bytes_need_no_chunk(
    client: StorageClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(client, monkeypatch)

    await client.upload_artifact(params(beginning(id=name)), b"")

    assert counted.methods == ["upload.begin@1", "upload.commit@1"]
    assert await client.download_artifact(META, name) == b""


@pytest.mark.parametrize("size", [1, 524_287, 524_288, 524_289, 1_048_576])
async def test_chunks_end_where_they_should(client: StorageClient, name: str, size: int) -> None:
    content = os.urandom(size)

    await client.upload_artifact(params(beginning(id=name)), memoryview(content))

    assert await client.download_artifact(META, name) == content


async def test_a_source_gives_pieces_of_any_size(
    client: StorageClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [b"", os.urandom(10), bytearray(os.urandom(1_200_000)), b"", os.urandom(5)]
    counted = Counted(client, monkeypatch)

    async def source() -> AsyncIterator[bytes | bytearray]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    await client.upload_artifact(params(beginning(id=name)), source())

    assert await client.download_artifact(META, name) == b"".join(pieces)
    assert counted.methods.count("upload.chunk@1") == 3


async def test_a_source_that_fails_leaves_nothing_to_be_seen(
    client: StorageClient, name: str
) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"the beginning"
        raise OSError("the disk was pulled out")

    with pytest.raises(OSError, match="pulled out"):
        await client.upload_artifact(params(beginning(id=name)), source())

    with pytest.raises(PatchouliRpcError) as caught:
        await client.download_artifact(META, name)
    assert caught.value.reason == "NOT_FOUND"


async def test_a_source_of_text_is_refused_with_what_to_give_instead(
    client: StorageClient, name: str
) -> None:
    async def source() -> AsyncIterator[Any]:
        yield "text"

    with pytest.raises(TypeError, match=r"open.path, 'rb'.*not str"):
        await client.upload_artifact(params(beginning(id=name)), source())


async def test_metadata_goes_with_every_request_of_an_upload(raw: Any) -> None:
    client, peer = await raw.connect()
    uploading = asyncio.ensure_future(
        client.upload_artifact({"meta": {"user_id": "mira"}, "data": {}}, b"abcdef")
    )
    requests = []
    for answer in (
        BEGUN,
        {"meta": {}, "data": {"next_offset": 3}},  # it took less than it was sent
        {"meta": {}, "data": {"next_offset": 6}},
        {"meta": {}, "data": {"entity": {}}},
    ):
        requests.append(await peer.receive())
        peer.answer(requests[-1], answer)
    await uploading
    await client.close()

    assert [request["params"]["meta"] for request in requests] == [{"user_id": "mira"}] * 4
    assert [request["params"]["data"] for request in requests[1:]] == [
        {"upload_id": "u1", "offset": 0, "bytes_base64": "YWJjZA=="},
        {"upload_id": "u1", "offset": 3, "bytes_base64": "ZGVm"},
        {"upload_id": "u1"},
    ]


async def test_a_full_chunk_is_sent_before_more_bytes_are_taken(raw: Any) -> None:
    client, peer = await raw.connect()
    taken: list[bytes] = []

    async def source() -> AsyncIterator[bytes]:
        for piece in (b"abcdef", b"ghij"):
            taken.append(piece)
            yield piece

    uploading = asyncio.ensure_future(client.upload_artifact(params({}), source()))
    sent: list[tuple[int, bytes, int]] = []
    peer.answer(await peer.receive(), BEGUN)
    for following in (4, 8, 10):
        request = await peer.receive()
        data = request["params"]["data"]
        sent.append((data["offset"], base64.b64decode(data["bytes_base64"]), len(taken)))
        peer.answer(request, {"meta": {}, "data": {"next_offset": following}})
    peer.answer(await peer.receive(), {"meta": {}, "data": {"entity": {}}})
    await uploading
    await client.close()

    assert sent == [(0, b"abcd", 1), (4, b"efgh", 2), (8, b"ij", 2)]


@pytest.mark.parametrize("following", [0, -1, 5, "4", None, True])
async def test_an_upload_without_progress_ends(raw: Any, following: object) -> None:
    client, peer = await raw.connect()
    uploading = asyncio.ensure_future(client.upload_artifact(params({}), b"abcdef"))

    peer.answer(await peer.receive(), BEGUN)
    peer.answer(await peer.receive(), {"meta": {}, "data": {"next_offset": following}})

    with pytest.raises(MalformedAnswerError):
        await uploading
    await client.close()


@pytest.mark.parametrize(
    "data",
    [
        {},
        None,
        ["upload_id"],
        {"upload_id": 1, "max_chunk_bytes": 4},
        {"upload_id": "u"},
        {"upload_id": "u", "max_chunk_bytes": 0},
    ],
)
async def test_a_begin_that_names_no_upload_is_malformed(raw: Any, data: object) -> None:
    client, peer = await raw.connect()
    uploading = asyncio.ensure_future(client.upload_artifact(params({}), b"abcdef"))

    peer.answer(await peer.receive(), {"meta": {}, "data": data})

    with pytest.raises(MalformedAnswerError):
        await uploading
    await client.close()


@pytest.mark.checklist("MS-77")
async def test_a_head_that_changes_during_a_download_is_never_mixed_in(
    client: StorageClient, name: str
) -> None:
    first = await client.upload_artifact(params(beginning(id=name)), b"a" * 600_000)
    other = await client.upload_artifact(params(beginning()), b"b" * 600_000)
    pieces: list[bytes] = []

    async def download() -> None:
        async for piece in client.download_artifact_pieces(META, name):
            pieces.append(piece)
            value = other["data"]["entity"]["value"]
            await client.upsert(META, {"type": "artifact", "id": name}, value)

    with pytest.raises(PatchouliRpcError) as caught:
        await download()

    assert caught.value.reason == "NOT_FOUND"  # the version that it began with is no head
    assert set(b"".join(pieces)) == {ord("a")}
    with pytest.raises(PatchouliRpcError):
        await client.download_artifact(META, name, first["data"]["entity"]["version"])
    assert await client.download_artifact(META, name) == b"b" * 600_000


def chunk(content: bytes, **replaced: Any) -> dict[str, Any]:
    data = {
        "entity": {"version": "v1"},
        "offset": 0,
        "next_offset": len(content),
        "eof": False,
        "bytes_base64": base64.b64encode(content).decode(),
        **replaced,
    }
    return {"meta": {}, "data": data}


async def download(raw: Any, *answers: dict[str, Any], version: str | None = None) -> Any:
    """Return the requests of a download, and its bytes or its error."""
    client, peer = await raw.connect(
        limits={
            "max_request_bytes": 1000,
            "max_artifact_chunk_bytes": 4,
            "max_result_items": 1,
            "idempotency_retention_seconds": 0,
            "change_retention_seconds": 0,
        }
    )
    downloading = asyncio.ensure_future(client.download_artifact({"m": 1}, "a", version))
    requests: list[dict[str, Any]] = []
    for answer in answers:
        requests.append((await peer.receive())["params"])
        peer.answer({"id": len(requests) + 1}, answer)
    (result,) = await asyncio.gather(downloading, return_exceptions=True)
    await client.close()
    return requests, result


async def test_the_first_answer_pins_the_version(raw: Any) -> None:
    requests, content = await download(
        raw, chunk(b"abcd"), chunk(b"ef", offset=4, next_offset=6, eof=True)
    )

    assert content == b"abcdef"
    assert requests == [
        {"meta": {"m": 1}, "data": {"id": "a", "offset": 0, "max_bytes": 4}},
        {"meta": {"m": 1}, "data": {"id": "a", "offset": 4, "max_bytes": 4, "version": "v1"}},
    ]


@pytest.mark.checklist("MS-77")
async def test_another_version_in_an_answer_ends_the_download(raw: Any) -> None:
    second = chunk(b"ef", offset=4, next_offset=6, eof=True, entity={"version": "v2"})
    _, error = await download(raw, chunk(b"abcd"), second)
    _, named = await download(raw, chunk(b"abcd", eof=True), version="v7")

    assert isinstance(error, ArtifactChangedError)
    assert (error.pinned, error.found) == ("v1", "v2")
    assert isinstance(named, ArtifactChangedError)
    assert (named.pinned, named.found) == ("v7", "v1")


@pytest.mark.parametrize(
    "answer",
    [
        chunk(b"abcd", offset=1),
        chunk(b"abcd", next_offset=3),
        chunk(b"abcd", next_offset="4"),
        chunk(b"", eof=False),
        chunk(b"abcd", eof="no"),
        chunk(b"abcd", bytes_base64="a?"),
        chunk(b"abcd", bytes_base64=4),
        chunk(b"", bytes_base64=None, eof=True),
        chunk(b"", offset=False, eof=True),
        chunk(b"abcd", entity=None),
        chunk(b"abcd", entity="abc"),
        {},
        {"data": None},
        {"data": ["x"]},
        chunk(b"abcd", entity={"version": 4}),
    ],
)
async def test_a_chunk_that_was_not_asked_for_is_malformed(
    raw: Any, answer: dict[str, Any]
) -> None:
    _, error = await download(raw, answer)

    assert isinstance(error, MalformedAnswerError)
