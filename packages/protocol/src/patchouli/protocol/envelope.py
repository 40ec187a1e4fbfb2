"""The JSON-RPC 2.0 envelope: requests as a server reads them, answers as a client reads them.

The checks of a request stand in one order (SPEC `envelope.order`): JSON, an object, `id`,
`jsonrpc`, `method`. What comes after needs to know the connection and the method and is not done
here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from patchouli.protocol.errors import ErrorCode, MalformedMessageError, RpcError
from patchouli.protocol.jsonvalue import (
    MAX_INTEGER,
    MIN_INTEGER,
    IntegerRangeError,
    JsonParseError,
    parse_json,
)
from pydantic_core import from_json

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject, JsonValue

RequestId: TypeAlias = str | int


class Request(NamedTuple):
    """A request as it stands in its frame; `params` has not been looked at."""

    id: RequestId
    method: str
    params: JsonValue


class Success(NamedTuple):
    """The answer to a request that succeeded."""

    id: RequestId
    result: JsonValue


class Failure(NamedTuple):
    """The answer to a request that failed; `id` is None where the server could not read it.

    `code`, `reason` and `data` stand as they were sent: a later server may know more of them.
    """

    id: RequestId | None
    code: int
    message: str
    reason: str | None
    data: JsonObject


class Notification(NamedTuple):
    """A message that nobody answers."""

    method: str
    params: JsonValue


Message: TypeAlias = Success | Failure | Notification


def read_request(line: bytes) -> Request:
    """Return the request that a line holds.

    Raises:
        RpcError: PARSE_ERROR or NOT_A_REQUEST, with the id to echo or none.
    """
    try:
        frame = parse_json(line)
    except IntegerRangeError as error:
        raise _integer_refusal(line, error) from None
    except JsonParseError as error:
        raise RpcError(ErrorCode.PARSE_ERROR, str(error)) from None
    return parse_request(frame)


def parse_request(frame: JsonValue) -> Request:
    """Return the request that `frame` is; unknown members of it are ignored.

    Raises:
        RpcError: NOT_A_REQUEST; `request_id` is the id to echo, None where there is no valid one.
    """
    if type(frame) is not dict:
        raise RpcError(ErrorCode.NOT_A_REQUEST, "a frame holds one request object, no batch")
    request_id = frame.get("id")
    if type(request_id) is not str and not (
        type(request_id) is int and MIN_INTEGER <= request_id <= MAX_INTEGER
    ):
        raise RpcError(ErrorCode.NOT_A_REQUEST, "id must be a string or an integer of 64 bits")
    if frame.get("jsonrpc") != "2.0":
        raise RpcError(
            ErrorCode.NOT_A_REQUEST, 'jsonrpc must be the string "2.0"', request_id=request_id
        )
    method = frame.get("method")
    if type(method) is not str:
        raise RpcError(ErrorCode.NOT_A_REQUEST, "method must be a string", request_id=request_id)
    return Request(request_id, method, frame.get("params", {}))


def read_message(line: bytes) -> Message:
    """Return what the server says in a line.

    Raises:
        MalformedMessageError: It is no response and no notification.
    """
    try:
        frame = parse_json(line)
    except JsonParseError as error:
        raise MalformedMessageError(str(error)) from None
    if type(frame) is not dict or frame.get("jsonrpc") != "2.0":
        raise MalformedMessageError("the line is no JSON-RPC 2.0 object")
    if "method" in frame:
        method = frame["method"]
        if type(method) is not str or "id" in frame:
            raise MalformedMessageError("a notification has a method and no id")
        return Notification(method, frame.get("params", {}))
    if ("result" in frame) == ("error" in frame):
        raise MalformedMessageError("a response has either a result or an error")
    request_id = frame.get("id")
    if "error" in frame:
        if not (request_id is None or type(request_id) is str or type(request_id) is int):
            raise MalformedMessageError("an id is a string, an integer or null")
        return _failure(request_id, frame["error"])
    if not (type(request_id) is str or type(request_id) is int):
        raise MalformedMessageError("the id of a result is a string or an integer")
    return Success(request_id, frame["result"])


def request(request_id: RequestId, method: str, params: JsonObject) -> JsonObject:
    """Return the request object of a call."""
    return {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}


def response(request_id: RequestId, result: JsonObject) -> JsonObject:
    """Return the response object of a call that succeeded."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def notification(method: str, params: JsonObject) -> JsonObject:
    """Return the object of a message that nobody answers."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def _failure(request_id: RequestId | None, error: JsonValue) -> Failure:
    if type(error) is dict:
        code, message = error.get("code"), error.get("message")
        data = error.get("data", {})
        if type(code) is int and type(message) is str and type(data) is dict:
            reason = data.get("reason")
            return Failure(request_id, code, message, reason if type(reason) is str else None, data)
    raise MalformedMessageError("an error has a code, a message and perhaps an object of data")


def _integer_refusal(line: bytes, error: IntegerRangeError) -> RpcError:
    """Tell an id that is too long, which is a bad request, from such a number elsewhere."""
    frame: JsonValue = from_json(line, allow_inf_nan=False)
    if type(frame) is dict:
        request_id = frame.get("id")
        if type(request_id) is int and not MIN_INTEGER <= request_id <= MAX_INTEGER:
            return RpcError(ErrorCode.NOT_A_REQUEST, "id must fit into 64 bits")
    return RpcError(ErrorCode.PARSE_ERROR, str(error))
