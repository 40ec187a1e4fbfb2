from __future__ import annotations

import json

import pytest
from patchouli.protocol import (
    ErrorCode,
    Failure,
    JsonValue,
    MalformedMessageError,
    Notification,
    Request,
    RpcError,
    Success,
    encode_line,
    notification,
    parse_request,
    read_message,
    read_request,
    request,
    response,
)

WHOLE: dict[str, JsonValue] = {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": 1}}


def refusal(frame: JsonValue) -> RpcError:
    with pytest.raises(RpcError) as caught:
        parse_request(frame)
    assert caught.value.code is ErrorCode.NOT_A_REQUEST
    return caught.value


def line_refusal(line: bytes) -> tuple[ErrorCode, object]:
    with pytest.raises(RpcError) as caught:
        read_request(line)
    return caught.value.code, caught.value.request_id


def test_a_request_is_read_with_its_params_untouched() -> None:
    assert parse_request(WHOLE) == Request(1, "m", {"a": 1})


@pytest.mark.clause("envelope.unknown-members")
def test_further_members_are_ignored() -> None:
    assert parse_request(WHOLE | {"trace": [], "result": 1}) == Request(1, "m", {"a": 1})


@pytest.mark.clause("envelope.params")
def test_missing_params_are_an_empty_object() -> None:
    del (frame := dict(WHOLE))["params"]

    assert parse_request(frame).params == {}


@pytest.mark.clause("envelope.object")
@pytest.mark.parametrize("frame", [[], [WHOLE], "x", 1, 1.5, True, False, None])
def test_only_an_object_is_a_request(frame: JsonValue) -> None:
    assert refusal(frame).request_id is None


@pytest.mark.clause("envelope.version")
@pytest.mark.parametrize("version", ["1.0", "2", "", 2, 2.0, None, ["2.0"], {}])
def test_another_version_is_refused_with_the_id(version: JsonValue) -> None:
    assert refusal(WHOLE | {"jsonrpc": version}).request_id == 1


@pytest.mark.clause("envelope.version")
def test_a_missing_version_is_refused_with_the_id() -> None:
    assert refusal({"id": "r", "method": "m"}).request_id == "r"


@pytest.mark.clause("envelope.id")
@pytest.mark.parametrize("request_id", ["", "r-1", "\x00", 0, -1, -(2**63), 2**64 - 1])
def test_strings_and_integers_of_64_bits_are_ids(request_id: str | int) -> None:
    assert parse_request(WHOLE | {"id": request_id}).id == request_id


@pytest.mark.clause("envelope.id")
@pytest.mark.parametrize(
    "request_id", [None, True, False, 1.0, 1.5, [], [1], {}, 2**64, -(2**63) - 1]
)
def test_anything_else_is_no_id_and_is_not_echoed(request_id: JsonValue) -> None:
    assert refusal(WHOLE | {"id": request_id}).request_id is None


@pytest.mark.clause("envelope.no-client-notifications")
def test_a_request_without_id_is_refused() -> None:
    del (frame := dict(WHOLE))["id"]

    assert refusal(frame).request_id is None


@pytest.mark.clause("envelope.id")
def test_a_bad_id_beside_a_bad_version_is_not_echoed() -> None:
    assert refusal({"jsonrpc": "1.0", "id": {}, "method": "m"}).request_id is None


@pytest.mark.clause("envelope.method")
@pytest.mark.parametrize("method", [None, 1, True, [], {}])
def test_a_method_is_a_string(method: JsonValue) -> None:
    assert refusal(WHOLE | {"method": method}).request_id == 1


@pytest.mark.clause("envelope.method")
def test_a_response_is_no_request() -> None:
    assert refusal({"jsonrpc": "2.0", "id": 4, "result": {}}).request_id == 4


def test_a_line_is_read_in_one_step() -> None:
    assert read_request(b'{"jsonrpc":"2.0","id":"a","method":"m"}\r') == Request("a", "m", {})


@pytest.mark.clause("envelope.order")
@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        (b"\xff", ErrorCode.PARSE_ERROR, None),
        (b"\xef\xbb\xbf{}", ErrorCode.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"', ErrorCode.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"m"} {}', ErrorCode.PARSE_ERROR, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":NaN}', ErrorCode.PARSE_ERROR, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"m"}]', ErrorCode.NOT_A_REQUEST, None),
        (b"[]", ErrorCode.NOT_A_REQUEST, None),
        (b"1", ErrorCode.NOT_A_REQUEST, None),
        (b'{"id":1.0,"method":1}', ErrorCode.NOT_A_REQUEST, None),
        (b'{"id":1,"method":1}', ErrorCode.NOT_A_REQUEST, 1),
        (b'{"jsonrpc":"2.0","id":1}', ErrorCode.NOT_A_REQUEST, 1),
    ],
)
def test_the_first_failure_of_a_line_is_the_answer(
    line: bytes, code: ErrorCode, request_id: object
) -> None:
    assert line_refusal(line) == (code, request_id)


@pytest.mark.clause("json.depth")
def test_the_request_object_is_the_first_level() -> None:
    inside = b'{"jsonrpc":"2.0","id":1,"method":"m","params":%s}'

    assert read_request(inside % (b"[" * 126 + b"]" * 126)).id == 1
    assert line_refusal(inside % (b"[" * 127 + b"]" * 127)) == (ErrorCode.PARSE_ERROR, None)
    assert line_refusal(inside % (b"[" * 10_000 + b"]" * 10_000)) == (ErrorCode.PARSE_ERROR, None)


@pytest.mark.clause("envelope.id")
@pytest.mark.parametrize("number", [b"18446744073709551616", b"-9223372036854775809", b"9" * 400])
def test_an_id_beyond_64_bits_is_no_parse_error(number: bytes) -> None:
    line = b'{"jsonrpc":"2.0","id":%s,"method":"m","params":{"a":%s}}'

    assert line_refusal(line % (number, number)) == (ErrorCode.NOT_A_REQUEST, None)
    assert line_refusal(line % (b"1", number)) == (ErrorCode.PARSE_ERROR, None)
    assert line_refusal(b"[" + number + b"]") == (ErrorCode.PARSE_ERROR, None)


def test_no_message_quotes_what_was_sent() -> None:
    for line in (
        b'{"secret":',
        b'{"jsonrpc":"secret","id":1}',
        b'{"jsonrpc":"2.0","id":{"secret":1}}',
        b'"secret',
        b'"\\ud800secret"',
    ):
        with pytest.raises(RpcError) as caught:
            read_request(line)
        assert "secret" not in caught.value.message


@pytest.mark.clause("envelope.response")
def test_built_messages_are_read_back() -> None:
    assert read_request(encode_line(request("a", "m", {"k": 1}))) == Request("a", "m", {"k": 1})
    assert read_message(encode_line(response(7, {"meta": {}}))) == Success(7, {"meta": {}})
    assert read_message(encode_line(notification("m", {"k": 1}))) == Notification("m", {"k": 1})


@pytest.mark.clause("envelope.response")
def test_an_error_is_read_with_its_reason_and_data() -> None:
    error = RpcError(ErrorCode.VERSION_CONFLICT, "heads moved", current_versions=["7e33"])

    assert read_message(encode_line(error.response(6))) == Failure(
        6,
        -32004,
        "heads moved",
        "VERSION_CONFLICT",
        {"reason": "VERSION_CONFLICT", "current_versions": ["7e33"]},
    )


@pytest.mark.clause("envelope.response")
def test_an_error_to_no_request_has_no_id() -> None:
    line = encode_line(RpcError(ErrorCode.PARSE_ERROR, "no JSON").response())

    assert read_message(line) == Failure(None, -32700, "no JSON", None, {})


@pytest.mark.clause("errors.data")
def test_codes_and_members_of_a_later_server_are_kept() -> None:
    line = (
        b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"?","data":{"reason":"NEW","k":2}}}'
    )

    assert read_message(line) == Failure(1, -1, "?", "NEW", {"reason": "NEW", "k": 2})


@pytest.mark.parametrize(
    "message",
    [
        [],
        {},
        {"jsonrpc": "1.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": ""}},
        {"jsonrpc": "2.0", "id": None, "result": {}},
        {"jsonrpc": "2.0", "id": 1.5, "result": {}},
        {"jsonrpc": "2.0", "id": True, "error": {"code": 1, "message": ""}},
        {"jsonrpc": "2.0", "id": 1, "error": None},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": "1", "message": ""}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "", "data": []}},
        {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {}},
        {"jsonrpc": "2.0", "method": 1},
    ],
)
def test_what_is_neither_response_nor_notification_is_refused(message: JsonValue) -> None:
    with pytest.raises(MalformedMessageError):
        read_message(json.dumps(message).encode())


def test_a_line_that_is_no_json_is_malformed() -> None:
    with pytest.raises(MalformedMessageError):
        read_message(b"{")
