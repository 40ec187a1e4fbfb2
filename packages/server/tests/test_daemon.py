"""A daemon on a real socket over a real store: the checklist of the daemon."""

from __future__ import annotations

import asyncio
import json
import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import (
    CHANGE_EVENT,
    CHECKPOINT,
    CREATE,
    DELETE,
    DOWNLOAD_CHUNK,
    HANDSHAKE,
    READ,
    RETRIEVE,
    SHUTDOWN,
    STATUS,
    SUBSCRIBE,
    SUBSCRIPTION_BOUNDARY,
    SUBSCRIPTION_CLOSED,
    UNSUBSCRIBE,
    UPDATE,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    UPLOAD_COMMIT,
)
from patchouli.server.testing import (
    Peer,
    Served,
    beginning,
    memo,
    params,
    ref,
    revised,
    serving,
    settings_of,
)

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 1_048_576
EMPTY: dict[str, Any] = {"meta": {}, "data": {}}


def client(*capabilities: str, versions: list[int] | None = None) -> dict[str, Any]:
    return {
        "client": {"name": "c", "version": "1", "instance_id": "i"},
        "protocol_versions": [1] if versions is None else versions,
        "capabilities": list(capabilities),
    }


async def require_served(peer: Peer) -> None:
    """The connection is alive: a valid request on it succeeds."""
    assert (await peer.result(STATUS, EMPTY))["data"]["ready"] is True


async def answer_to(peer: Peer, line: bytes) -> dict[str, Any]:
    peer.send_bytes(line + b"\n")
    return await peer.response()


# Handshake


@pytest.mark.scenario(3)
async def test_the_capabilities_are_those_that_both_know_in_our_order(served: Served) -> None:
    async with await Peer.connect(served.endpoint, capabilities=None) as peer:
        some = await peer.result(HANDSHAKE, client("unknown", "subscriptions"))
        every = await peer.result(
            HANDSHAKE, client("subscription-lifecycle", "subscriptions", "artifacts")
        )
        none = await peer.result(HANDSHAKE, client())

    assert some["capabilities"] == ["subscriptions"]
    assert every["capabilities"] == ["artifacts", "subscriptions", "subscription-lifecycle"]
    assert none["capabilities"] == []


async def test_a_handshake_tells_who_answers_and_what_the_limits_are(served: Served) -> None:
    async with await Peer.connect(served.endpoint, capabilities=None) as peer:
        result = await peer.result(HANDSHAKE, client())

    assert result == {
        "protocol_version": 1,
        "server": {"version": "0.1.0", "cluster_id": "local", "node_id": "local"},
        "capabilities": [],
        "limits": {
            "max_request_bytes": LIMIT,
            "max_artifact_chunk_bytes": 524_288,
            "max_result_items": 100,
            "idempotency_retention_seconds": 86_400,
            "change_retention_seconds": 604_800,
        },
    }


@pytest.mark.scenario(3)
async def test_a_handshake_without_our_version_fails_and_may_be_repeated(served: Served) -> None:
    async with await Peer.connect(served.endpoint, capabilities=None) as peer:
        refused = await peer.error(HANDSHAKE, client(versions=[2]))
        still_closed = await peer.error(STATUS, EMPTY)
        await peer.result(HANDSHAKE, client())
        await require_served(peer)
        failed_later = await peer.error(HANDSHAKE, client(versions=[2]))
        await require_served(peer)

    assert refused["code"] == -32006
    assert refused["data"]["reason"] == "UNSUPPORTED_CAPABILITY"
    assert still_closed["code"] == -32001
    assert failed_later["code"] == -32006


@pytest.mark.scenario(4)
async def test_nothing_is_served_before_the_handshake(served: Served) -> None:
    async with await Peer.connect(served.endpoint, capabilities=None) as peer:
        known = await peer.error(STATUS, EMPTY)
        unknown = await peer.error("patchouli.nothing@1", {})
        await peer.handshake()
        unknown_later = await peer.error("patchouli.nothing@1", {})

    assert (known["code"], known["data"]) == (-32001, {"reason": "UNAUTHENTICATED"})
    assert (unknown["code"], unknown["data"]) == (-32001, {"reason": "UNAUTHENTICATED"})
    assert unknown_later["code"] == -32601
    assert "data" not in unknown_later


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        (SUBSCRIBE, "subscriptions"),
        (UNSUBSCRIBE, "subscriptions"),
        (UPLOAD_BEGIN, "artifacts"),
        (UPLOAD_CHUNK, "artifacts"),
        (UPLOAD_COMMIT, "artifacts"),
        (DOWNLOAD_CHUNK, "artifacts"),
    ],
)
async def test_a_method_of_a_capability_that_was_not_negotiated_is_refused(
    served: Served, method: str, needed: str
) -> None:
    async with await served.connect() as peer:
        # Even with params of the wrong shape: the capability is looked at first.
        refused = await peer.error(method, {"meta": 1})
        await peer.handshake(needed)
        served_now = await peer.error(method, {"meta": 1})

    assert (refused["code"], refused["data"]["reason"]) == (-32006, "UNSUPPORTED_CAPABILITY")
    assert served_now["code"] == -32602


@pytest.mark.clause("handshake.again")
async def test_a_handshake_that_drops_subscriptions_ends_the_open_ones(served: Served) -> None:
    async with (
        await served.connect("subscriptions") as watcher,
        await served.connect() as writer,
    ):
        opened = await watcher.result(SUBSCRIBE, params({}))
        await watcher.handshake()
        await writer.result(CREATE, params(memo("a")))
        await watcher.handshake("subscriptions")
        again = await watcher.result(SUBSCRIBE, params({}))
        await writer.result(CREATE, params(memo("b")))
        event = await watcher.notification()

    assert watcher.notifications == []
    assert opened["data"]["subscription_id"] != again["data"]["subscription_id"]
    assert event["params"]["data"]["change"]["ref"]["id"] == "b"


# Lines

ROWS: list[tuple[str, bytes, int, Any]] = [
    ("invalid UTF-8", b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700, None),
    ("a byte order mark", b"\xef\xbb\xbf{}", -32700, None),
    ("no JSON", b"hello", -32700, None),
    ("trailing garbage", b'{"jsonrpc":"2.0","id":1,"method":"x"} x', -32700, None),
    ("half an object", b'{"jsonrpc":"2.0"', -32700, None),
    ("a lone surrogate", b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}', -32700, None),
    ("NaN", b'{"jsonrpc":"2.0","id":1,"method":"x","params":NaN}', -32700, None),
    ("Infinity", b'{"jsonrpc":"2.0","id":1,"method":"x","params":-Infinity}', -32700, None),
    ("beyond double", b'{"jsonrpc":"2.0","id":1,"method":"x","params":1e999}', -32700, None),
    (
        "128 levels",
        b'{"jsonrpc":"2.0","id":1,"method":"x","params":' + b"[" * 127 + b"]" * 127 + b"}",
        -32700,
        None,
    ),
    ("10,000 levels", b"[" * 10_000 + b"]" * 10_000, -32700, None),
    ("a batch", b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', -32600, None),
    ("an empty batch", b"[]", -32600, None),
    ("a string", b'"x"', -32600, None),
    ("a number", b"1", -32600, None),
    ("null", b"null", -32600, None),
    ("no jsonrpc", b'{"id":7,"method":"x"}', -32600, 7),
    ("another jsonrpc", b'{"jsonrpc":"1.0","id":7,"method":"x"}', -32600, 7),
    ("jsonrpc as number", b'{"jsonrpc":2.0,"id":"s","method":"x"}', -32600, "s"),
    ("no id", b'{"jsonrpc":"2.0","method":"x"}', -32600, None),
    ("id null", b'{"jsonrpc":"2.0","id":null,"method":"x"}', -32600, None),
    ("id true", b'{"jsonrpc":"2.0","id":true,"method":"x"}', -32600, None),
    ("id array", b'{"jsonrpc":"2.0","id":[1],"method":"x"}', -32600, None),
    ("id object", b'{"jsonrpc":"2.0","id":{},"method":"x"}', -32600, None),
    ("id fraction", b'{"jsonrpc":"2.0","id":1.5,"method":"x"}', -32600, None),
    (
        "id beyond 64 bits",
        b'{"jsonrpc":"2.0","id":18446744073709551616,"method":"x"}',
        -32600,
        None,
    ),
    ("no method", b'{"jsonrpc":"2.0","id":7}', -32600, 7),
    ("method as number", b'{"jsonrpc":"2.0","id":7,"method":1}', -32600, 7),
    ("a response", b'{"jsonrpc":"2.0","id":7,"result":{}}', -32600, 7),
]


@pytest.mark.scenario(5)
@pytest.mark.parametrize(
    ("line", "code", "echoed"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
async def test_a_line_that_is_no_request_is_answered_and_the_connection_goes_on(
    peer: Peer, line: bytes, code: int, echoed: Any
) -> None:
    answer = await answer_to(peer, line)

    assert answer["error"]["code"] == code
    assert answer["id"] == echoed
    assert "data" not in answer["error"]
    await require_served(peer)


@pytest.mark.scenario(5)
@pytest.mark.parametrize("blank", [b"", b"   ", b"\t", b"\r"])
async def test_a_blank_line_is_ignored(peer: Peer, blank: bytes) -> None:
    peer.send_bytes(blank + b"\n")

    await require_served(peer)


@pytest.mark.scenario(5)
@pytest.mark.parametrize("request_id", [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, "", 'ü "\\', "7"])
async def test_an_id_comes_back_as_it_was(peer: Peer, request_id: int | str) -> None:
    peer.send(STATUS, EMPTY, request_id=request_id)

    assert (await peer.response())["id"] == request_id


def padded(size: int) -> bytes:
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": STATUS, "params": EMPTY}).encode()
    return line + b" " * (size - len(line))


@pytest.mark.clause("framing.limit")
@pytest.mark.scenario(6)
async def test_a_line_of_the_limit_is_served_and_one_byte_more_is_not(peer: Peer) -> None:
    exact = await answer_to(peer, padded(LIMIT))
    beyond = await answer_to(peer, padded(LIMIT + 1))

    assert "result" in exact
    assert (beyond["id"], beyond["error"]["code"]) == (None, -32600)
    assert "data" not in beyond["error"]
    await require_served(peer)


@pytest.mark.clause("framing.oversized")
@pytest.mark.scenario(6)
async def test_an_endless_line_is_answered_once_and_not_kept(peer: Peer) -> None:
    for _ in range(100):
        peer.send_bytes(b"x" * LIMIT)
        await peer.drain()
    peer.send_bytes(b"\n")

    answer = await peer.response()

    assert (answer["id"], answer["error"]["code"]) == (None, -32600)
    await require_served(peer)


@pytest.mark.scenario(7)
async def test_connections_are_counted(served: Served) -> None:
    async with await served.connect() as one, await served.connect():
        counted = (await one.result(STATUS, EMPTY))["data"]["active_connections"]

    assert counted == 2


@pytest.mark.scenario(7)
async def test_a_hundred_requests_at_once_are_answered_in_order(peer: Peer) -> None:
    ids = [peer.send(CREATE, params(memo(f"m-{number}"))) for number in range(50)]
    ids += [peer.send(READ, params(ref(f"m-{number}"))) for number in range(50)]

    answers = [await peer.response() for _ in ids]

    assert [answer["id"] for answer in answers] == ids
    assert all("result" in answer for answer in answers)


# Params


@pytest.mark.scenario(8)
@pytest.mark.parametrize(
    ("method", "data"),
    [
        (STATUS, {}),
        (CHECKPOINT, {}),
        (SHUTDOWN, {}),
        (CREATE, memo("late")),
        (READ, ref("late")),
        (RETRIEVE, {"query": "{}"}),
        (UPDATE, revised("late", 1)),
        (DELETE, ref("late")),
        (SUBSCRIBE, {}),
        (UNSUBSCRIBE, {"subscription_id": "s"}),
        (UPLOAD_CHUNK, {"upload_id": "u", "offset": 0, "bytes_base64": "AA=="}),
        (UPLOAD_COMMIT, {"upload_id": "u"}),
        (DOWNLOAD_CHUNK, {"id": "a", "version": None, "offset": 0, "max_bytes": 1}),
    ],
)
async def test_a_deadline_is_looked_at_before_the_method(
    served: Served, peer: Peer, method: str, data: dict[str, Any]
) -> None:
    late = await peer.error(method, params(data, deadline_unix_ms=0))
    malformed = [
        await peer.error(method, params(data, deadline_unix_ms=value))
        for value in (-1, 1.5, "1", None, True, 10.0)
    ]

    assert (late["code"], late["data"]) == (-32007, {"reason": "DEADLINE_EXCEEDED"})
    assert {error["code"] for error in malformed} == {-32602}
    assert {error["data"]["reason"] for error in malformed} == {"INVALID_REQUEST"}
    assert not served.stop.is_wanted.is_set()


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        [{}, {}],
        "x",
        {},
        {"meta": {}},
        {"data": {}},
        {"meta": [], "data": {}},
        {"meta": {}, "data": []},
        {"meta": {}, "data": {}, "more": 1},
        {"meta": {}, "data": {"more": 1}},
    ],
)
async def test_params_have_one_shape(peer: Peer, wrong: Any) -> None:
    error = await peer.error(STATUS, wrong)

    assert (error["code"], error["data"]) == (-32602, {"reason": "INVALID_REQUEST"})
    assert "pydantic" not in error["message"]
    await require_served(peer)


# Entities


async def test_a_value_comes_back_as_it_was_sent(peer: Peer) -> None:
    value = {
        "text": '窓側 \u0000 "quoted" \U0001f33f\n',
        "numbers": [0, -1, 1.0, 1, 1e300, 0.1, 2**64 - 1, -(2**63)],
        "nested": {"": [None, True, False, {}, []]},
    }

    created = await peer.result(CREATE, params(memo("m", value)))
    read = await peer.result(READ, params(ref("m")))

    entity = created["data"]["entity"]
    assert entity["value"] == value
    assert [type(number) for number in entity["value"]["numbers"]] == [
        type(number) for number in value["numbers"]
    ]
    assert read == {"meta": {}, "data": {"state": "active", "variants": [entity]}}


async def test_a_conflict_is_told_with_the_current_versions(peer: Peer) -> None:
    first = (await peer.result(CREATE, params(memo("m"))))["data"]["entity"]["version"]
    again = await peer.error(CREATE, params(memo("m")))

    assert again["code"] == -32004
    assert again["data"]["reason"] == "VERSION_CONFLICT"
    assert again["data"]["current_versions"] == [first]


async def test_a_tombstone_has_no_value(peer: Peer) -> None:
    created = (await peer.result(CREATE, params(memo("m"))))["data"]["entity"]
    deleted = (await peer.result(DELETE, params(ref("m"), base_versions=[created["version"]])))[
        "data"
    ]["entity"]

    assert deleted == {
        "state": "deleted",
        "ref": {"type": "memo", "id": "m"},
        "version": deleted["version"],
    }


async def test_what_was_created_is_found_at_once(peer: Peer) -> None:
    await peer.result(CREATE, params(memo("m", {"text": "green tea on trains"})))

    found = await peer.result(RETRIEVE, params({"query": '{"text":"tea on"}'}))

    hits = found["data"]["hits"]
    assert [hit["variants"][0]["ref"]["id"] for hit in hits] == ["m"]


@pytest.mark.scenario(28)
async def test_requests_of_many_connections_are_served_side_by_side(served: Served) -> None:
    async def work(number: int) -> list[dict[str, Any]]:
        async with await served.connect() as peer:
            for item in range(10):
                peer.send(CREATE, params(memo(f"{number}-{item}")))
                peer.send(READ, params(ref(f"{number}-{item}")))
            return [await peer.response() for _ in range(20)]

    answers = await asyncio.gather(*(work(number) for number in range(100)))

    assert all("result" in answer for some in answers for answer in some)


async def test_one_connection_too_many_is_told_so_and_closed(home: Path) -> None:
    async with serving(settings_of(home, max_connections=2)) as served:
        async with await served.connect() as one, await served.connect():
            async with await Peer.connect(served.endpoint, capabilities=None) as third:
                told = await third.receive()
                assert await third.is_closed()
            await require_served(one)
        async with await served.connect() as later:
            await require_served(later)

    assert told["id"] is None
    assert told["error"]["code"] == -32009
    assert told["error"]["data"] == {"reason": "OVERLOADED", "retryable": True}


@pytest.mark.scenario(28)
async def test_of_three_hundred_connections_as_many_as_allowed_are_served(served: Served) -> None:
    async def ask() -> dict[str, Any]:
        peer = await Peer.connect(served.endpoint, capabilities=None)
        peers.append(peer)
        peer.send(HANDSHAKE, client())
        return await peer.receive()

    peers: list[Peer] = []
    answers = await asyncio.gather(*(ask() for _ in range(300)))
    served_ones = [answer for answer in answers if "result" in answer]
    refused = [answer["error"] for answer in answers if "error" in answer]
    for peer in peers:
        await peer.close()

    assert len(served_ones) == 256
    assert {error["code"] for error in refused} == {-32009}


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_it_also_serves_on_the_loop_of_the_standard_library(home: Path) -> None:
    async with serving(settings_of(home, event_outbox_bytes=4096)) as served:
        async with (
            await served.connect("subscriptions") as watcher,
            await served.connect() as writer,
        ):
            await watcher.result(SUBSCRIBE, params({}, **LOUD))
            watcher.pause_reading()
            await write_many(writer)
            watcher.send(STATUS, EMPTY)
            watcher.resume_reading()
            answer = await watcher.response()
            events = [await watcher.notification() for _ in range(MANY)]
            writer.send_bytes(padded(LIMIT) + b"\n")
            large = await writer.response()
            writer.send(STATUS, EMPTY)
            writer.send_eof()
            last = await writer.response()
            assert await writer.is_closed()
        served.stop.accept()
        await served.daemon.end()

    assert "result" in answer
    assert len(set(cursors(events))) == MANY
    assert "result" in large
    assert "result" in last


async def test_who_does_not_shake_hands_is_disconnected(home: Path) -> None:
    async with (
        serving(settings_of(home, handshake_ms=1)) as served,
        await Peer.connect(served.endpoint, capabilities=None) as silent,
    ):
        assert await silent.is_closed()


@pytest.mark.clause("framing.response-size")
async def test_a_page_ends_at_its_bound_and_the_next_one_goes_on(peer: Peer) -> None:
    for number in range(6):
        await peer.result(CREATE, params(memo(f"m-{number}", "x" * 900_000)))

    first = await peer.result(RETRIEVE, params({"query": '{"order":"id_asc"}', "limit": 100}))
    query = {"order": "id_asc", "cursor": first["meta"]["next_cursor"]}
    second = await peer.result(RETRIEVE, params({"query": json.dumps(query), "limit": 100}))

    found = [
        hit["variants"][0]["ref"]["id"] for page in (first, second) for hit in page["data"]["hits"]
    ]
    assert 1 <= len(first["data"]["hits"]) <= 5
    assert found == [f"m-{number}" for number in range(6)]


UPLOAD = beginning(media_type="text/plain")


@pytest.mark.scenario(18)
@pytest.mark.clause("artifact.limits")
async def test_uploads_have_a_number_and_a_size(served: Served, peer: Peer) -> None:
    for _ in range(16):
        await peer.result(UPLOAD_BEGIN, params(UPLOAD))
    one_more = await peer.error(UPLOAD_BEGIN, params(UPLOAD))
    async with await served.connect("artifacts") as other:
        elsewhere = await other.call(UPLOAD_BEGIN, params(UPLOAD))
        too_large = await other.error(
            UPLOAD_BEGIN, params({**UPLOAD, "expected_byte_length": 2**30 + 1})
        )

    assert (one_more["code"], one_more["data"]["reason"]) == (-32009, "OVERLOADED")
    assert "result" in elsewhere
    assert too_large["code"] == -32602


async def test_the_uploads_of_a_connection_end_with_it(served: Served, home: Path) -> None:
    async with await served.connect("artifacts") as peer:
        begun = await peer.result(UPLOAD_BEGIN, params(UPLOAD))
        chunk = {"upload_id": begun["data"]["upload_id"], "offset": 0, "bytes_base64": "QUJD"}
        await peer.result(UPLOAD_CHUNK, params(chunk))
        parts = home / "data" / "artifacts" / "uploads"
        assert len(list(parts.iterdir())) == 1
    served.stop.accept()
    await served.daemon.end()

    assert list(parts.iterdir()) == []


# Changes

# Events carry the metadata of their request, so that a long user makes long events.
LOUD: dict[str, Any] = {"user_id": "mira" * 4000}
MANY = 150


async def write_many(writer: Peer) -> None:
    """Make many loud changes, more bytes of events than socket buffers take."""
    for number in range(MANY):
        writer.send(CREATE, params(memo(f"m-{number}"), **LOUD))
    for _ in range(MANY):
        assert "result" in await writer.response()


@pytest.mark.scenario(10)
async def test_a_change_of_another_connection_is_told_until_the_subscription_ends(
    served: Served, peer: Peer
) -> None:
    async with await served.connect() as writer:
        opened = (await peer.result(SUBSCRIBE, params({})))["data"]
        created = (await writer.result(CREATE, params(memo("m"))))["data"]["entity"]
        event = await peer.notification()
        first = await peer.result(UNSUBSCRIBE, params(opened_id(opened)))
        second = await peer.result(UNSUBSCRIBE, params(opened_id(opened)))
        await writer.result(CREATE, params(memo("n")))
        await require_served(peer)

    assert event["method"] == CHANGE_EVENT
    assert event["params"]["meta"] == {"workspace_id": "atlas", "user_id": "mira"}
    assert event["params"]["data"]["subscription_id"] == opened["subscription_id"]
    change = event["params"]["data"]["change"]
    assert change.pop("cursor") != opened["cursor"]
    assert change == {
        "ref": {"type": "memo", "id": "m"},
        "kind": "created",
        "head_versions": [created["version"]],
    }
    assert first["data"] == {"removed": True}
    assert second["data"] == {"removed": False}
    assert peer.notifications == []


def opened_id(opened: dict[str, Any]) -> dict[str, Any]:
    return {"subscription_id": opened["subscription_id"]}


async def test_the_response_comes_before_the_first_event(served: Served, peer: Peer) -> None:
    async with await served.connect() as writer:
        for number in range(20):
            await writer.result(CREATE, params(memo(f"m-{number}")))

    peer.send(SUBSCRIBE, params({"after_cursor": "0"}))
    first = await peer.receive()
    events = [await peer.notification() for _ in range(20)]

    assert first["result"]["data"]["cursor"] == "0" or "." in first["result"]["data"]["cursor"]
    assert [event["params"]["data"]["change"]["ref"]["id"] for event in events] == [
        f"m-{number}" for number in range(20)
    ]


async def test_own_changes_are_told_after_the_response_that_made_them_or_before(
    peer: Peer,
) -> None:
    await peer.result(SUBSCRIBE, params({"filter": {"ids": ["b"]}}))
    await peer.result(CREATE, params(memo("a")))
    await peer.result(CREATE, params(memo("b")))

    event = await peer.notification()

    assert event["params"]["data"]["change"]["ref"]["id"] == "b"


@pytest.mark.clause("changes.resume")
@pytest.mark.scenario(13)
async def test_a_reader_that_comes_back_misses_nothing(served: Served) -> None:
    async with await served.connect() as writer:
        async with await served.connect("subscriptions") as reader:
            await reader.result(SUBSCRIBE, params({}))
            await writer.result(CREATE, params(memo("a")))
            cursor = (await reader.notification())["params"]["data"]["change"]["cursor"]
        await writer.result(CREATE, params(memo("b")))
        async with await served.connect("subscriptions") as reader:
            resumed = await reader.result(SUBSCRIBE, params({"after_cursor": cursor}))
            await writer.result(CREATE, params(memo("c")))
            events = [await reader.notification() for _ in range(2)]

    assert resumed["data"]["cursor"] == cursor
    assert [event["params"]["data"]["change"]["ref"]["id"] for event in events] == ["b", "c"]


@pytest.mark.scenario(13)
async def test_a_cursor_that_cannot_be_followed_is_refused(peer: Peer) -> None:
    opened = await peer.result(SUBSCRIBE, params({}))
    incarnation = opened["data"]["cursor"].rpartition(".")[0]

    ahead = await peer.error(SUBSCRIBE, params({"after_cursor": f"{incarnation}.999"}))
    foreign = await peer.error(SUBSCRIBE, params({"after_cursor": "elsewhere.0"}))
    malformed = await peer.error(SUBSCRIBE, params({"after_cursor": "+5"}))

    assert (ahead["code"], ahead["data"]["reason"]) == (-32010, "CURSOR_EXPIRED")
    assert (foreign["code"], foreign["data"]["reason"]) == (-32010, "CURSOR_EXPIRED")
    assert malformed["code"] == -32602


@pytest.mark.clause("changes.limits")
async def test_one_subscription_too_many_is_refused(home: Path) -> None:
    async with (
        serving(settings_of(home, max_subscriptions=2)) as served,
        await served.connect("subscriptions") as peer,
    ):
        first = await peer.result(SUBSCRIBE, params({}))
        await peer.result(SUBSCRIBE, params({}))
        refused = await peer.error(SUBSCRIBE, params({}))
        await peer.result(UNSUBSCRIBE, params(opened_id(first["data"])))
        await peer.result(SUBSCRIBE, params({}))

    assert (refused["code"], refused["data"]["reason"]) == (-32009, "OVERLOADED")


@pytest.mark.clause("changes.slow")
@pytest.mark.clause("transport.isolation")
@pytest.mark.scenario(11)
async def test_a_subscriber_that_never_reads_delays_nobody(home: Path) -> None:
    settings = settings_of(home, event_outbox_bytes=4096)
    async with serving(settings) as served:
        async with (
            await served.connect("subscriptions") as deaf,
            await served.connect("subscriptions") as watcher,
            await served.connect() as writer,
        ):
            await deaf.result(SUBSCRIBE, params({}, **LOUD))
            await watcher.result(SUBSCRIBE, params({}, **LOUD))
            deaf.pause_reading()
            await write_many(writer)
            seen = [await watcher.notification() for _ in range(MANY)]
            held = next(
                connection for connection in served.daemon.connections if not connection.has_room
            )
            assert 0 < held.unread_bytes < 200_000

            # What it asks is still answered once it reads, and nothing of the rest is lost.
            asked = deaf.send(STATUS, EMPTY)
            deaf.resume_reading()
            status = await deaf.response()
            missed = [await deaf.notification() for _ in range(MANY)]

        assert status["id"] == asked
        assert cursors(missed) == cursors(seen)


def cursors(events: list[dict[str, Any]]) -> list[str]:
    return [event["params"]["data"]["change"]["cursor"] for event in events]


@pytest.mark.scenario(11)
async def test_stopping_does_not_wait_for_a_subscriber_that_never_reads(home: Path) -> None:
    settings = settings_of(home, event_outbox_bytes=4096, drain_ms=100)
    async with serving(settings) as served, await served.connect("subscriptions") as deaf:
        await deaf.result(SUBSCRIBE, params({}, **LOUD))
        deaf.pause_reading()
        async with await served.connect() as writer:
            await write_many(writer)
        served.stop.accept()
        await asyncio.wait_for(served.daemon.end(), 20)

    assert not served.endpoint.exists()


@pytest.mark.clause("framing.whole")
@pytest.mark.clause("changes.unsubscribe")
@pytest.mark.scenario(12)
async def test_unsubscribing_while_events_wait_cuts_no_line(home: Path) -> None:
    settings = settings_of(home, event_outbox_bytes=4096)
    async with (
        serving(settings) as served,
        await served.connect("subscriptions") as reader,
        await served.connect() as writer,
    ):
        opened = await reader.result(SUBSCRIBE, params({}, **LOUD))
        reader.pause_reading()
        await write_many(writer)
        reader.send(UNSUBSCRIBE, params(opened_id(opened["data"])), request_id="bye")
        reader.resume_reading()
        answer = await reader.response()  # every line before it was read as JSON
        told = len(reader.notifications)
        await require_served(reader)

    assert answer == {
        "jsonrpc": "2.0",
        "id": "bye",
        "result": {"meta": {}, "data": {"removed": True}},
    }
    assert told < MANY
    assert len(reader.notifications) == told


@pytest.mark.clause("changes.boundary")
async def test_positions_past_a_filter_are_told_to_who_asked_for_it(home: Path) -> None:
    async with (
        serving(settings_of(home, boundary_ms=1)) as served,
        await served.connect("subscriptions", "subscription-lifecycle") as watcher,
        await served.connect("subscriptions") as writer,
    ):
        opened = (await watcher.result(SUBSCRIBE, params({"filter": {"ids": ["z"]}})))["data"]
        await writer.result(SUBSCRIBE, params({}))
        await writer.result(CREATE, params(memo("a")))
        cursor = (await writer.notification())["params"]["data"]["change"]["cursor"]
        boundary = await watcher.notification()

    assert boundary == {
        "jsonrpc": "2.0",
        "method": SUBSCRIPTION_BOUNDARY,
        "params": {
            "meta": {},
            "data": {"subscription_id": opened["subscription_id"], "cursor": cursor},
        },
    }


@pytest.mark.clause("changes.closed")
async def test_who_asked_for_it_is_told_that_the_daemon_stops(home: Path) -> None:
    async with (
        serving(settings_of(home)) as served,
        await served.connect("subscriptions", "subscription-lifecycle") as told,
        await served.connect("subscriptions") as not_told,
    ):
        opened = (await told.result(SUBSCRIBE, params({})))["data"]
        await not_told.result(SUBSCRIBE, params({}))
        served.stop.accept()
        await served.daemon.end()

        closed = await told.notification()
        assert await told.is_closed()
        assert await not_told.is_closed()

    assert closed == {
        "jsonrpc": "2.0",
        "method": SUBSCRIPTION_CLOSED,
        "params": {
            "meta": {},
            "data": {
                "subscription_id": opened["subscription_id"],
                "cursor": opened["cursor"],
                "reason": "SERVER_STOPPING",
            },
        },
    }


# End


@pytest.mark.clause("control.shutdown")
@pytest.mark.scenario(14)
async def test_shutdown_is_answered_then_everything_ends(home: Path) -> None:
    async with (
        serving(settings_of(home)) as served,
        await served.connect() as asking,
        await served.connect("subscriptions") as idle,
    ):
        await idle.result(SUBSCRIBE, params({}))
        answer = await asking.result(SHUTDOWN, EMPTY)
        assert served.stop.is_wanted.is_set()
        await served.daemon.end()
        assert await asking.is_closed()
        assert await idle.is_closed()
    async with serving(settings_of(home)) as again, await again.connect() as peer:
        status = (await peer.result(STATUS, EMPTY))["data"]

    assert answer == {"meta": {}, "data": {"accepted": True}}
    assert not served.endpoint.exists()
    assert status["generation"] == 2
    assert status["recovered_after_unclean_shutdown"] is False


@pytest.mark.clause("control.shutdown")
async def test_requests_behind_a_shutdown_are_refused_and_change_nothing(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        peer.send(SHUTDOWN, EMPTY)
        peer.send(CREATE, params(memo("late")))
        answers = [await peer.response() for _ in range(2)]
        await served.daemon.end()
    async with serving(settings_of(home)) as again, await again.connect() as peer:
        missing = await peer.error(READ, params(ref("late")))

    assert "result" in answers[0]
    assert answers[1]["error"]["code"] == -32009
    assert answers[1]["error"]["data"] == {"reason": "OVERLOADED", "retryable": True}
    assert missing["code"] == -32003


@pytest.mark.scenario(14)
async def test_while_it_stops_nobody_can_connect(home: Path) -> None:
    async with serving(settings_of(home)) as served:
        served.stop.accept()
        await served.daemon.end()
        with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
            await Peer.connect(served.endpoint)


@pytest.mark.scenario(15)
async def test_what_was_begun_before_the_stop_is_done_and_answered(home: Path) -> None:
    async with serving(settings_of(home)) as served, await served.connect() as peer:
        for number in range(200):
            peer.send(CREATE, params(memo(f"m-{number}")))
        first = await peer.response()
        served.stop.accept()
        ending = asyncio.ensure_future(served.daemon.end())
        answers = [first, *[await peer.response() for _ in range(199)]]
        await ending
    async with serving(settings_of(home)) as again, await again.connect() as peer:
        kept = [await peer.call(READ, params(ref(f"m-{number}"))) for number in range(200)]

    # What was answered with success is there, and what was refused is not.
    assert ["result" in answer for answer in answers] == ["result" in read for read in kept]


async def test_checkpoint_is_answered_when_it_is_done(peer: Peer) -> None:
    await peer.result(CREATE, params(memo("m")))

    assert await peer.result(CHECKPOINT, EMPTY) == {"meta": {}, "data": {"completed": True}}


async def test_status_tells_how_this_run_is(served: Served, peer: Peer) -> None:
    data = (await peer.result(STATUS, EMPTY))["data"]

    assert data.pop("pid") > 0
    assert abs(data.pop("started_at_unix_ms") - time.time_ns() // 1_000_000) < 600_000
    assert data == {
        "ready": True,
        "provider": "sqlite",
        "generation": 1,
        "recovered_after_unclean_shutdown": False,
        "active_connections": 1,
    }
    assert stat.S_IMODE(served.endpoint.stat().st_mode) == 0o600
