"""What can go wrong on the wire, by code and reason.

    Exception
    ├─ ValueError
    │  ├─ JsonParseError (jsonvalue) ─ IntegerRangeError
    │  └─ MalformedMessageError    the server sent what this contract does not know
    └─ RpcError                    one answer `error` of SPEC `errors`, raised instead of returned

Clients decide on `code` and `reason`; `message` is for people. A code has one reason or none.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patchouli.protocol.jsonvalue import JsonObject, JsonValue


class ErrorCode(IntEnum):
    """The codes of `error.code`; -32008 is not assigned."""

    PARSE_ERROR = -32700
    NOT_A_REQUEST = -32600
    UNKNOWN_METHOD = -32601
    INTERNAL_ERROR = -32603
    INVALID_REQUEST = -32602
    UNAUTHENTICATED = -32001
    FORBIDDEN = -32002
    NOT_FOUND = -32003
    VERSION_CONFLICT = -32004
    IDEMPOTENCY_CONFLICT = -32005
    UNSUPPORTED_CAPABILITY = -32006
    DEADLINE_EXCEEDED = -32007
    OVERLOADED = -32009
    CURSOR_EXPIRED = -32010
    WORK_UNIT_EXPIRED = -32011

    @property
    def reason(self) -> Reason | None:
        """The reason that belongs to the code, or nothing for the four codes of JSON-RPC."""
        return _REASONS.get(self)


class Reason(StrEnum):
    """The values of `error.data.reason`."""

    INVALID_REQUEST = "INVALID_REQUEST"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    VERSION_CONFLICT = "VERSION_CONFLICT"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    UNSUPPORTED_CAPABILITY = "UNSUPPORTED_CAPABILITY"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    OVERLOADED = "OVERLOADED"
    CURSOR_EXPIRED = "CURSOR_EXPIRED"
    WORK_UNIT_EXPIRED = "WORK_UNIT_EXPIRED"

    @property
    def code(self) -> ErrorCode:
        """The code that belongs to the reason."""
        return ErrorCode[self.name]


_REASONS: Final[Mapping[ErrorCode, Reason]] = {reason.code: reason for reason in Reason}


class MalformedMessageError(ValueError):
    """A line or a result from the server is not what this contract says; a retry cannot help."""


class EntityConflict(NamedTuple):
    """One entity of a work unit that could not be published, with its current heads."""

    type: str
    id: str
    current_versions: tuple[str, ...]


class RpcError(Exception):
    """A request is answered by an error; whether a retry may help, `retryable` can say.

    Attributes:
        code: What went wrong.
        message: The same for people.
        current_versions: Heads of the request's entity, in a conflict about that one entity.
        conflicts: Every entity concerned, in a conflict about a work unit.
        retryable: Whether the same request may succeed later, where that is known.
        request_id: The id to answer to, where no `Request` could be made.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        current_versions: Sequence[str] = (),
        conflicts: Sequence[EntityConflict] = (),
        retryable: bool | None = None,
        request_id: str | int | None = None,
    ) -> None:
        super().__init__(code, message)
        if current_versions and conflicts:
            raise ValueError("a conflict is about one entity or about a unit, not both")
        if (current_versions or conflicts) and code is not ErrorCode.VERSION_CONFLICT:
            raise ValueError("only VERSION_CONFLICT carries versions")
        self.code: Final = code
        self.message: Final = message
        self.current_versions: Final = tuple(current_versions)
        self.conflicts: Final = tuple(conflicts)
        self.retryable: Final = retryable
        self.request_id: Final = request_id

    def __str__(self) -> str:
        return f"{self.reason or self.code.name}: {self.message}"

    @property
    def reason(self) -> Reason | None:
        """The reason of the code, or nothing for the four codes of JSON-RPC."""
        return self.code.reason

    @property
    def data(self) -> JsonObject | None:
        """`error.data`; nothing for the four codes of JSON-RPC (SPEC `errors.data`)."""
        reason = self.reason
        if reason is None:
            return None
        data: JsonObject = {"reason": reason.value}
        if self.current_versions:
            data["current_versions"] = list(self.current_versions)
        if self.conflicts:
            data["conflicts"] = [_conflict(conflict) for conflict in self.conflicts]
        if self.retryable is not None:
            data["retryable"] = self.retryable
        return data

    def error_object(self) -> JsonObject:
        """Return the member `error` of the response."""
        error: JsonObject = {"code": int(self.code), "message": self.message}
        data = self.data
        if data is not None:
            error["data"] = data
        return error

    def response(self, request_id: str | int | None = None) -> JsonObject:
        """Return the whole response to `request_id`, or else to the id the error carries."""
        answered: JsonValue = self.request_id if request_id is None else request_id
        return {"jsonrpc": "2.0", "id": answered, "error": self.error_object()}


def _conflict(conflict: EntityConflict) -> JsonObject:
    return {
        "ref": {"type": conflict.type, "id": conflict.id},
        "current_versions": list(conflict.current_versions),
    }
