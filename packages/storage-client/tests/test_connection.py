"""States, what ends a connection, and what a daemon says that it should not."""

from __future__ import annotations

import asyncio
import json
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import DaemonProcess, memo, params, ref
from patchouli.storage_client import (
    ClientClosedError,
    ClientConfig,
    ConnectFailedError,
    ConnectionLostError,
    DaemonUnavailable,
    MalformedAnswerError,
    MissingCapabilityError,
    PatchouliRpcError,
    ProtocolVersionError,
    StartupTimeoutError,
    StorageClient,
)

if TYPE_CHECKING:
    from pathlib import Path

DISTRIBUTION = "patchouli-storage-client"
STATUS_RESULT = {"meta": {}, "data": {"ready": True}}
HANDSHAKE_RESULT = {
    "protocol_version": 1,
    "server": {"version": "9", "cluster_id": "wood", "node_id": "oak"},
    "capabilities": [],
    "limits": {
        "max_request_bytes": 1000,
        "max_artifact_chunk_bytes": 10,
        "max_result_items": 1,
        "idempotency_retention_seconds": 0,
        "change_retention_seconds": 0,
    },
}


async def starting(raw: Any, client: StorageClient) -> tuple[asyncio.Future[None], Any]:
    start = asyncio.ensure_future(client.start())
    return start, await raw.accept()


@pytest.mark.checklist("MS-59")
async def test_the_handshake_asks_for_three_capabilities_and_lives_with_two(
    raw: Any, seen: Any
) -> None:
    client = StorageClient(raw.config)
    instances: set[str] = set()

    for _ in range(2):
        start, peer = await starting(raw, client)
        request = await peer.shake_hands(capabilities=["artifacts", "subscriptions"])
        await start
        instances.add(request["client"].pop("instance_id"))
        assert request == {
            "client": {"name": DISTRIBUTION, "version": version(DISTRIBUTION)},
            "protocol_versions": [1],
            "capabilities": ["artifacts", "subscriptions", "subscription-lifecycle"],
        }
        assert client.server is not None
        assert client.server.node_id == "oak"
        subscribing = asyncio.ensure_future(client.subscribe(params({}), seen))
        answer = {"meta": {}, "data": {"subscription_id": "s1", "cursor": "1"}}
        peer.answer(await peer.receive(), answer)
        await subscribing
        await client.close()

    assert len(instances) == 2


async def test_ids_increase_over_connections(raw: Any) -> None:
    client = StorageClient(raw.config)
    ids: list[int] = []

    for _ in range(2):
        start, peer = await starting(raw, client)
        request = await peer.receive()
        ids.append(request["id"])
        peer.answer(request, HANDSHAKE_RESULT)
        await start
        await client.close()

    assert ids == [1, 2]


async def test_a_call_needs_a_connection(config: ClientConfig) -> None:
    client = StorageClient(config)

    assert (client.state, client.server) == ("closed", None)
    for call in (
        lambda: client.status(),
        lambda: client.subscribe(params({}), lambda _: None),
        lambda: client.download_artifact({}, "a"),
        lambda: client.begin_artifact_upload(params({})),
    ):
        with pytest.raises(DaemonUnavailable) as caught:
            await call()
        assert caught.value.problem.startswith("the client is closed; call `start()`")
    await client.close()


async def test_a_call_while_connecting_is_unavailable(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    await peer.receive()

    assert client.state == "connecting"
    with pytest.raises(DaemonUnavailable):
        await client.status()

    await client.close()
    with pytest.raises(ClientClosedError):
        await start


@pytest.mark.checklist("MS-72")
@pytest.mark.parametrize("capability", ["artifacts", "subscriptions"])
async def test_a_missing_capability_is_found_here(raw: Any, capability: str) -> None:
    client, peer = await raw.connect(capabilities=["subscription-lifecycle"])
    calls = {
        "artifacts": [
            client.begin_artifact_upload,
            client.upload_artifact_chunk,
            client.commit_artifact_upload,
            client.download_artifact_chunk,
            lambda given: client.upload_artifact(given, b"x"),
            lambda given: client.download_artifact(given["meta"], "a"),
        ],
        "subscriptions": [
            lambda given: client.subscribe(given, lambda _: None),
            client.unsubscribe,
        ],
    }[capability]

    for call in calls:
        with pytest.raises(MissingCapabilityError) as caught:
            await call(params({}))
        assert caught.value.capability == capability
    await client.close()

    assert await peer.is_closed()  # without having been asked for anything


@pytest.mark.checklist("MS-73")
async def test_without_auto_start_a_missing_daemon_is_unavailable(folder: Path) -> None:
    client = StorageClient(ClientConfig(endpoint=str(folder / "nobody"), auto_start=False))

    with pytest.raises(DaemonUnavailable) as caught:
        await client.start()

    assert caught.value.endpoint == str(folder / "nobody")
    assert client.state == "closed"


@pytest.mark.checklist("MS-73")
async def test_a_socket_that_a_crash_has_left_is_unavailable(daemon: DaemonProcess) -> None:
    daemon.kill()
    assert daemon.endpoint.exists()

    with pytest.raises(DaemonUnavailable):
        await StorageClient(ClientConfig(endpoint=str(daemon.endpoint), auto_start=False)).start()


async def test_a_place_that_cannot_be_connected_to_is_no_reason_to_start_a_daemon(
    folder: Path,
) -> None:
    for endpoint in (folder / ("long" * 50), folder / "file" / "below"):
        (folder / "file").touch()
        client = StorageClient(ClientConfig(endpoint=str(endpoint), command="not-run"))
        with pytest.raises(ConnectFailedError):
            await client.start()


@pytest.mark.checklist("MS-88")
async def test_starts_at_the_same_time_share_one_connection(raw: Any) -> None:
    client, peer = await raw.connect()
    await peer.close()
    lost = asyncio.ensure_future(client.status())
    with pytest.raises((ConnectionLostError, DaemonUnavailable)):
        await lost
    assert client.state == "lost"

    both = [asyncio.ensure_future(client.start()) for _ in range(2)]
    again = await raw.accept()
    await again.shake_hands()
    await asyncio.gather(*both)
    await client.start()

    assert client.state == "ready"
    assert raw.connections == 2
    await client.close()


async def test_a_failed_start_leaves_the_state_that_it_found(raw: Any) -> None:
    client, peer = await raw.connect()
    await peer.close()
    with pytest.raises((ConnectionLostError, DaemonUnavailable)):
        await client.status()

    start, second = await starting(raw, client)
    assert client.state == "connecting"
    await second.shake_hands(protocol_version=2)
    with pytest.raises(ProtocolVersionError) as caught:
        await start

    assert caught.value.version == 2
    assert client.state == "lost"
    assert await second.is_closed()
    await client.close()
    assert client.state == "closed"


async def test_who_leaves_does_not_end_the_start_of_the_others(raw: Any) -> None:
    client = StorageClient(raw.config)
    first, peer = await starting(raw, client)
    second = asyncio.ensure_future(client.start())
    request = await peer.receive()

    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    peer.answer(request, HANDSHAKE_RESULT)
    await second

    assert client.state == "ready"
    await client.close()


async def test_a_start_that_nobody_waits_for_ends(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    await peer.receive()

    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start

    assert client.state == "closed"
    assert await peer.is_closed()
    await client.close()


async def test_close_ends_a_start_and_another_start_is_possible(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    await peer.receive()

    await client.close()
    with pytest.raises(ClientClosedError):
        await start
    assert client.state == "closed"
    assert await peer.is_closed()

    start, peer = await starting(raw, client)
    await peer.shake_hands()
    await start
    assert client.state == "ready"
    await client.close()


async def test_close_fails_the_calls_under_way(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, peer = await raw.connect()
    calls = [asyncio.ensure_future(client.status()) for _ in range(2)]
    await peer.receive()

    await asyncio.gather(client.close(), client.close())

    for call in calls:
        with pytest.raises(ClientClosedError):
            await call
    assert caplog.records == []


@pytest.mark.checklist("MS-89")
async def test_a_peer_that_never_answers_the_handshake_is_given_up(folder: Path, raw: Any) -> None:
    config = ClientConfig(endpoint=str(raw.endpoint), startup_timeout_ms=50, command="not-run")
    client = StorageClient(config)

    with pytest.raises(StartupTimeoutError) as caught:
        await client.start()

    assert caught.value.timeout_ms == 50
    assert "50 ms" in str(caught.value)
    assert client.state == "closed"


async def test_answers_are_matched_by_id_in_any_order(raw: Any) -> None:
    client, peer = await raw.connect()
    calls = [asyncio.ensure_future(client.status()) for _ in range(3)]
    requests = [await peer.receive() for _ in range(3)]

    for number in (2, 0, 1):
        peer.answer(requests[number], {"meta": {}, "data": {"number": number}})
    answers = await asyncio.gather(*calls)

    assert [answer["data"] for answer in answers] == [{"number": n} for n in range(3)]
    await client.close()


async def test_lines_come_in_pieces_together_blank_and_with_white_space(raw: Any) -> None:
    client, peer = await raw.connect()
    calls = [asyncio.ensure_future(client.status()) for _ in range(2)]
    requests = [await peer.receive() for _ in range(2)]
    lines = b"\n \r\n" + b"\n\n".join(
        json.dumps({"jsonrpc": "2.0", "id": one["id"], "result": STATUS_RESULT}).encode() + b" \r"
        for one in requests
    )

    for byte in lines + b"\n":
        peer.send_bytes(bytes([byte]))
        await asyncio.sleep(0)

    assert await asyncio.gather(*calls) == [STATUS_RESULT] * 2
    await client.close()


async def test_answers_that_nobody_waits_for_are_ignored(raw: Any) -> None:
    client, peer = await raw.connect()
    call = asyncio.ensure_future(client.status())
    request = await peer.receive()

    for unknown in (None, 999, "1", 1.0, True, [1], {"a": 1}):
        peer.send({"jsonrpc": "2.0", "id": unknown, "result": {}})
    peer.send({"jsonrpc": "2.0"}, {"jsonrpc": "2.0", "id": None, "error": {"code": 1}})
    peer.answer(request, STATUS_RESULT)

    assert await call == STATUS_RESULT
    await client.close()


async def test_the_answer_to_a_cancelled_call_is_ignored(raw: Any) -> None:
    client, peer = await raw.connect()
    call = asyncio.ensure_future(client.status())
    request = await peer.receive()

    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    peer.answer(request, STATUS_RESULT)
    second = asyncio.ensure_future(client.status())
    peer.answer(await peer.receive(), {"meta": {}, "data": {"second": True}})

    assert (await second)["data"] == {"second": True}
    await client.close()


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"jsonrpc":"2.0","id":NaN}',
        b"[]",
        b"7",
        b'"\xff"',
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
    ],
)
async def test_a_line_that_is_no_message_ends_the_connection(
    raw: Any, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client, peer = await raw.connect()
    call = asyncio.ensure_future(client.status())
    request = await peer.receive()

    answer = {"jsonrpc": "2.0", "id": request["id"], "result": STATUS_RESULT}
    peer.send_bytes(line + b"\n" + json.dumps(answer).encode() + b"\n")
    with pytest.raises(ConnectionLostError) as caught:
        await call

    assert isinstance(caught.value.__cause__, MalformedAnswerError)
    assert client.state == "lost"
    assert await peer.is_closed()
    assert len(caplog.records) == 1
    await client.close()


async def test_a_line_beyond_the_cap_ends_the_connection(raw: Any) -> None:
    client = StorageClient(raw.config, receive_limit_bytes=1000)
    start, peer = await starting(raw, client)
    await peer.shake_hands()
    await start
    calls = [asyncio.ensure_future(client.status()) for _ in range(2)]
    first = await peer.receive()

    fitting = b'{"jsonrpc":"2.0","id":%d,"result":{"a":"%s"}}'
    empty = len(fitting % (first["id"], b""))
    peer.send_bytes(fitting % (first["id"], b"x" * (1000 - empty)) + b"\n")
    assert len((await calls[0])["a"]) == 1000 - empty  # type: ignore[typeddict-item] -- played
    peer.send_bytes(b" " * 1001)
    with pytest.raises(ConnectionLostError):
        await calls[1]

    assert client.state == "lost"
    await client.close()


async def test_the_cap_is_64_mib(raw: Any) -> None:
    client, peer = await raw.connect()
    call = asyncio.ensure_future(client.status())
    request = await peer.receive()

    long = "x" * (64 * 1024 * 1024 - 60)
    peer.answer(request, {"a": long})

    assert dict(await call) == {"a": long}
    await client.close()


@pytest.mark.parametrize(
    "answer",
    [
        {"result": None},
        {"result": []},
        {},
        {"error": None},
        {"error": {"code": "x", "message": "m"}},
        {"error": {"code": -1}},
    ],
)
async def test_an_answer_without_result_or_error_fails_its_call_alone(
    raw: Any, answer: dict[str, Any]
) -> None:
    client, peer = await raw.connect()
    call, other = (asyncio.ensure_future(client.status()) for _ in range(2))
    first, second = [await peer.receive() for _ in range(2)]

    peer.send({"jsonrpc": "2.0", "id": first["id"], **answer})
    peer.answer(second, STATUS_RESULT)

    with pytest.raises(MalformedAnswerError):
        await call
    assert await other == STATUS_RESULT
    assert client.state == "ready"
    await client.close()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"reason": "OVERLOADED", "retryable": True}, "OVERLOADED"),
        ({"reason": 7}, None),
        ("text", None),
        (None, None),
    ],
)
@pytest.mark.checklist("MS-69")
async def test_the_data_of_an_error_may_be_anything(
    raw: Any, data: object, reason: str | None
) -> None:
    client, peer = await raw.connect()
    call = asyncio.ensure_future(client.checkpoint())
    request = await peer.receive()

    error = {"code": -32009, "message": "later", "data": data}
    peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})

    with pytest.raises(PatchouliRpcError) as caught:
        await call
    found = caught.value
    assert (found.method, found.code, found.rpc_message) == (
        "patchouli.control.checkpoint@1",
        -32009,
        "later",
    )
    assert (found.data, found.reason) == (data, reason)
    assert found.current_versions == ()
    await client.close()


@pytest.mark.parametrize(
    "replaced",
    [
        {"server": None},
        {"server": {"version": "1", "cluster_id": "a"}},
        {"capabilities": "artifacts"},
        {"limits": {}},
        {"limits": {"max_request_bytes": True}},
    ],
)
async def test_a_malformed_handshake_is_refused(raw: Any, replaced: dict[str, Any]) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)

    await peer.shake_hands(**replaced)

    with pytest.raises(MalformedAnswerError):
        await start
    assert await peer.is_closed()


@pytest.mark.parametrize("version", [2, "1", True, None])
async def test_another_protocol_version_is_refused(raw: Any, version: object) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)

    await peer.shake_hands(protocol_version=version)

    with pytest.raises(ProtocolVersionError):
        await start
    assert client.state == "closed"


async def test_a_handshake_that_is_refused_is_an_error_of_the_daemon(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    request = await peer.receive()

    error = {"code": -32006, "message": "no", "data": {"reason": "UNSUPPORTED_CAPABILITY"}}
    peer.send({"jsonrpc": "2.0", "id": request["id"], "error": error})

    with pytest.raises(PatchouliRpcError) as caught:
        await start
    assert caught.value.method == "patchouli.protocol.handshake@1"
    assert await peer.is_closed()


async def test_a_connection_that_is_ended_without_a_word_is_unavailable(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)

    await peer.close()

    with pytest.raises(DaemonUnavailable):
        await start


async def test_a_daemon_with_too_many_connections_says_so(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    await peer.receive()

    error = {"code": -32009, "message": "full", "data": {"reason": "OVERLOADED"}}
    peer.send({"jsonrpc": "2.0", "id": None, "error": error})
    await peer.close()

    with pytest.raises(PatchouliRpcError) as caught:
        await start
    assert (caught.value.reason, caught.value.method) == (
        "OVERLOADED",
        "patchouli.protocol.handshake@1",
    )


async def test_a_connection_that_ends_behind_the_handshake_is_not_ready(raw: Any) -> None:
    client = StorageClient(raw.config)
    start, peer = await starting(raw, client)
    request = await peer.receive()

    line = json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": HANDSHAKE_RESULT})
    peer.send_bytes(line.encode() + b"\nnonsense\n")

    with pytest.raises(ConnectionLostError):
        await start
    assert client.state == "closed"


async def test_every_call_fails_with_an_error_of_its_own(
    raw: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client, peer = await raw.connect()
    calls = [asyncio.ensure_future(client.status()) for _ in range(3)]
    for _ in calls:
        await peer.receive()

    await peer.close()
    errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in errors] == [ConnectionLostError] * 3
    assert len({id(error) for error in errors}) == 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    with pytest.raises(DaemonUnavailable):
        await client.status()
    await client.close()


async def test_a_call_that_waits_for_room_keeps_its_turn_and_may_go(raw: Any) -> None:
    client, peer = await raw.connect(
        limits={
            "max_request_bytes": 64 * 1024 * 1024,
            "max_artifact_chunk_bytes": 10,
            "max_result_items": 1,
            "idempotency_retention_seconds": 0,
            "change_retention_seconds": 0,
        }
    )
    filler = "x" * (8 * 1024 * 1024)
    calls = [
        asyncio.ensure_future(client.create(params(memo(str(number), filler))))
        for number in range(4)
    ]
    await asyncio.sleep(0)
    assert client._link.connection is not None
    assert client._link.connection._is_full
    assert len(client._link.connection._waiting) == 3

    calls[2].cancel()
    received: list[str] = []
    for _ in range(3):
        request = await peer.receive()
        received.append(request["params"]["data"]["id"])
        peer.answer(request, STATUS_RESULT)
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert received == ["0", "1", "3"]
    assert isinstance(results[2], asyncio.CancelledError)
    await client.close()


async def test_a_call_that_waits_for_room_fails_with_the_connection(raw: Any) -> None:
    client, peer = await raw.connect()
    filler = "x" * 1_000_000
    calls = [
        asyncio.ensure_future(client.create(params(memo(str(number), filler))))
        for number in range(8)
    ]
    await asyncio.sleep(0)
    assert client._link.connection is not None
    assert client._link.connection._waiting

    await peer.close()
    results = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(result) for result in results} == {ConnectionLostError}
    await client.close()


async def test_a_restarted_daemon_is_found_by_start(daemon: DaemonProcess) -> None:
    client = StorageClient(ClientConfig(endpoint=str(daemon.endpoint), auto_start=False))
    await client.start()
    await client.create(params(memo("kept")))
    reading = asyncio.ensure_future(client.subscribe(params({}), lambda _: None))
    subscription = await reading

    daemon.kill()
    await subscription.wait_closed()
    with pytest.raises(DaemonUnavailable):
        await client.start()
    assert client.state == "lost"
    daemon.start()
    await client.start()

    assert (await client.read(params(ref("kept"))))["data"]["state"] == "active"
    assert (await client.status())["data"]["recovered_after_unclean_shutdown"] is True
    await client.close()
