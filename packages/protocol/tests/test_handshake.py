from __future__ import annotations

import pytest
from patchouli.protocol import (
    HANDSHAKE,
    METHODS,
    ErrorCode,
    HandshakeParams,
    JsonObject,
    JsonValue,
    RpcError,
    negotiate,
)

PARAMS: JsonObject = {
    "client": {"name": "orchard", "version": "3.2.0", "instance_id": "orchard-91"},
    "protocol_versions": [1],
    "capabilities": ["subscriptions", "compression"],
}
RESULT: JsonObject = {
    "protocol_version": 1,
    "server": {"version": "1.0.0", "cluster_id": "local", "node_id": "node-oak"},
    "capabilities": ["subscriptions"],
    "limits": {
        "max_request_bytes": 1048576,
        "max_artifact_chunk_bytes": 524288,
        "max_result_items": 100,
        "idempotency_retention_seconds": 86400,
        "change_retention_seconds": 604800,
    },
}


def parsed(params: JsonValue) -> HandshakeParams:
    model = METHODS[HANDSHAKE].parse_params(params)
    assert isinstance(model, HandshakeParams)
    return model


def test_params_have_neither_meta_nor_data() -> None:
    assert parsed(PARAMS).client.instance_id == "orchard-91"
    assert METHODS[HANDSHAKE].parse_result(RESULT).model_dump(mode="json") == RESULT


@pytest.mark.clause("handshake.params")
def test_members_of_a_later_version_are_ignored() -> None:
    client: JsonObject = {"name": "o", "version": "1", "instance_id": "o-1", "pid": 7}

    assert parsed(PARAMS | {"client": client, "meta": {}, "auth": None}).client.name == "o"
    assert METHODS[HANDSHAKE].parse_result(RESULT | {"more": 1}).model_dump(mode="json") == RESULT


@pytest.mark.clause("handshake.params")
@pytest.mark.parametrize("member", ["client", "protocol_versions", "capabilities"])
def test_each_member_is_required(member: str) -> None:
    refuse({name: value for name, value in PARAMS.items() if name != member})
    refuse(PARAMS | {member: None})


@pytest.mark.clause("handshake.params")
@pytest.mark.parametrize("member", ["name", "version", "instance_id"])
def test_the_client_says_who_it_is(member: str) -> None:
    client: JsonObject = {"name": "o", "version": "1", "instance_id": "o-1"}

    for wrong in ("", None, 1):
        refuse(PARAMS | {"client": client | {member: wrong}})
    del client[member]
    refuse(PARAMS | {"client": client})


@pytest.mark.clause("handshake.params")
@pytest.mark.parametrize(
    "versions", [[], [0], [65536], [-1], [1, 1], [1.0], [True], ["1"], 1, "1", [[1]], {}]
)
def test_versions_are_integers_none_twice(versions: JsonValue) -> None:
    refuse(PARAMS | {"protocol_versions": versions})


@pytest.mark.clause("handshake.params")
@pytest.mark.parametrize("capabilities", [["a", "a"], [1], [None], "artifacts", {}, [["a"]]])
def test_capabilities_are_strings_none_twice(capabilities: JsonValue) -> None:
    refuse(PARAMS | {"capabilities": capabilities})


@pytest.mark.clause("handshake.capabilities")
@pytest.mark.parametrize(
    ("wanted", "negotiated"),
    [
        ([], ()),
        (["unknown", "subscriptions"], ("subscriptions",)),
        (["subscriptions", "", "artifacts"], ("artifacts", "subscriptions")),
        (
            ["subscription-lifecycle", "subscriptions", "artifacts"],
            ("artifacts", "subscriptions", "subscription-lifecycle"),
        ),
    ],
)
def test_what_both_sides_know_is_negotiated_in_the_servers_order(
    wanted: list[JsonValue], negotiated: tuple[str, ...]
) -> None:
    assert negotiate(parsed(PARAMS | {"capabilities": wanted})) == negotiated


@pytest.mark.clause("handshake.capabilities")
def test_what_a_server_does_not_offer_is_not_negotiated() -> None:
    params = parsed(PARAMS | {"capabilities": ["artifacts", "subscriptions"]})

    assert negotiate(params, offered=["subscriptions"]) == ("subscriptions",)


@pytest.mark.clause("handshake.version")
def test_a_client_without_version_1_is_refused() -> None:
    assert negotiate(parsed(PARAMS | {"protocol_versions": [3, 2, 1]})) == ("subscriptions",)
    with pytest.raises(RpcError) as caught:
        negotiate(parsed(PARAMS | {"protocol_versions": [2, 65535]}))
    assert caught.value.code is ErrorCode.UNSUPPORTED_CAPABILITY


def refuse(params: JsonValue) -> None:
    with pytest.raises(RpcError) as caught:
        parsed(params)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
