"""The methods of the wire, one row each, with the models of their `params` and its `result`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar, cast

from patchouli.protocol.artifacts import (
    DownloadChunkParams,
    DownloadChunkResult,
    UploadBeginParams,
    UploadBeginResult,
    UploadChunkParams,
    UploadChunkResult,
    UploadCommitParams,
    UploadCommitResult,
)
from patchouli.protocol.changes import (
    ChangeEventParams,
    SubscribeParams,
    SubscribeResult,
    SubscriptionBoundaryParams,
    SubscriptionClosedParams,
    UnsubscribeParams,
    UnsubscribeResult,
)
from patchouli.protocol.constants import (
    CHANGE_EVENT,
    CHECKPOINT,
    COMPACT,
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
    Capability,
)
from patchouli.protocol.control import (
    CheckpointParams,
    CheckpointResult,
    CompactParams,
    CompactResult,
    ShutdownParams,
    ShutdownResult,
    StatusParams,
    StatusResult,
)
from patchouli.protocol.entities import (
    CreateParams,
    CreateResult,
    DeleteParams,
    DeleteResult,
    ReadParams,
    ReadResult,
    RetrieveParams,
    RetrieveResult,
    UpdateParams,
    UpdateResult,
)
from patchouli.protocol.errors import ErrorCode, MalformedMessageError, RpcError
from patchouli.protocol.handshake import HandshakeParams, HandshakeResult
from patchouli.protocol.jsonvalue import MAX_INTEGER
from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.protocol.jsonvalue import JsonObject, JsonValue
    from pydantic_core import ErrorDetails

P = TypeVar("P", bound=BaseModel)


class Method(Generic[P]):
    """One method: its name, its models, the capability that it needs and its SPEC clause.

    Attributes:
        name: With its version suffix, as it stands in `method`.
        params: The model of `params`.
        result: The model of `result`; None for a notification.
        capability: What a client must have negotiated to call or to receive it.
        errors: With which codes it may be answered, besides those of a frame that is no request.
        section: The clause of SPEC that describes it.
    """

    __slots__ = ("capability", "errors", "name", "params", "result", "section")

    def __init__(
        self,
        name: str,
        params: type[P],
        result: type[BaseModel] | None,
        *,
        section: str,
        errors: tuple[ErrorCode, ...] = (),
        capability: Capability | None = None,
    ) -> None:
        self.name: Final = name
        self.params: Final = params
        self.result: Final = result
        self.capability: Final = capability
        self.section: Final = section
        self.errors: Final = errors

    def __repr__(self) -> str:
        return f"Method({self.name!r})"

    @property
    def is_notification(self) -> bool:
        """Whether the server sends it and nobody answers."""
        return self.result is None

    def parse_params(self, params: JsonValue) -> P:
        """Return the `params` of a call as its model.

        Raises:
            RpcError: INVALID_REQUEST; the message names the member and what it should be.
        """
        try:
            # The validator itself: the classmethod around it costs a tenth of a read request.
            return cast("P", self.params.__pydantic_validator__.validate_python(params))
        except ValidationError as error:
            raise RpcError(ErrorCode.INVALID_REQUEST, explain(error)) from None

    def parse_result(self, result: JsonValue) -> BaseModel:
        """Return the `result` of a response as its model.

        Raises:
            MalformedMessageError: It is not of the method's shape.
        """
        if self.result is None:
            raise TypeError(f"{self.name} is a notification and has no result")
        try:
            return self.result.model_validate(result)
        except ValidationError as error:
            raise MalformedMessageError(explain(error, root="result")) from None


def _table(*methods: Method[BaseModel]) -> Mapping[str, Method[BaseModel]]:
    return MappingProxyType({method.name: method for method in methods})


_ALWAYS = (
    ErrorCode.UNAUTHENTICATED,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.DEADLINE_EXCEEDED,
    ErrorCode.OVERLOADED,
    ErrorCode.INTERNAL_ERROR,
)
_GATED = (*_ALWAYS, ErrorCode.UNSUPPORTED_CAPABILITY)
# What the policy selects may be served by no source, or belong to a work unit that is over.
_SELECTED = (*_GATED, ErrorCode.WORK_UNIT_EXPIRED)
_MUTATION = (*_SELECTED, ErrorCode.VERSION_CONFLICT, ErrorCode.IDEMPOTENCY_CONFLICT)

_MANY_FAULTS = 100
_LONGEST_NAME = 64  # characters of a member's name that a message repeats

METHODS: Final = _table(
    Method(
        HANDSHAKE,
        HandshakeParams,
        HandshakeResult,
        section="handshake.params",
        errors=(
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNSUPPORTED_CAPABILITY,
            ErrorCode.INTERNAL_ERROR,
        ),
    ),
    Method(
        STATUS,
        StatusParams,
        StatusResult,
        section="control.status",
        errors=_ALWAYS,
    ),
    Method(
        CHECKPOINT,
        CheckpointParams,
        CheckpointResult,
        section="control.checkpoint",
        errors=_ALWAYS,
    ),
    Method(
        COMPACT,
        CompactParams,
        CompactResult,
        section="control.compact",
        errors=_ALWAYS,
    ),
    Method(
        SHUTDOWN,
        ShutdownParams,
        ShutdownResult,
        section="control.shutdown",
        errors=_ALWAYS,
    ),
    Method(
        CREATE,
        CreateParams,
        CreateResult,
        section="entity.create",
        errors=_MUTATION,
    ),
    Method(
        READ,
        ReadParams,
        ReadResult,
        section="entity.read",
        errors=(*_SELECTED, ErrorCode.NOT_FOUND),
    ),
    Method(
        RETRIEVE,
        RetrieveParams,
        RetrieveResult,
        section="entity.retrieve",
        errors=_SELECTED,
    ),
    Method(
        UPDATE,
        UpdateParams,
        UpdateResult,
        section="entity.update",
        errors=(*_MUTATION, ErrorCode.NOT_FOUND),
    ),
    Method(
        DELETE,
        DeleteParams,
        DeleteResult,
        section="entity.delete",
        errors=(*_MUTATION, ErrorCode.NOT_FOUND),
    ),
    Method(
        UPLOAD_BEGIN,
        UploadBeginParams,
        UploadBeginResult,
        section="artifact.begin",
        capability="artifacts",
        errors=_GATED,
    ),
    Method(
        UPLOAD_CHUNK,
        UploadChunkParams,
        UploadChunkResult,
        section="artifact.chunk",
        capability="artifacts",
        errors=(*_GATED, ErrorCode.NOT_FOUND),
    ),
    Method(
        UPLOAD_COMMIT,
        UploadCommitParams,
        UploadCommitResult,
        section="artifact.commit",
        capability="artifacts",
        errors=(*_MUTATION, ErrorCode.NOT_FOUND),
    ),
    Method(
        DOWNLOAD_CHUNK,
        DownloadChunkParams,
        DownloadChunkResult,
        section="artifact.download",
        capability="artifacts",
        errors=(*_SELECTED, ErrorCode.NOT_FOUND, ErrorCode.VERSION_CONFLICT),
    ),
    Method(
        SUBSCRIBE,
        SubscribeParams,
        SubscribeResult,
        section="changes.subscribe",
        capability="subscriptions",
        errors=(*_GATED, ErrorCode.CURSOR_EXPIRED),
    ),
    Method(
        UNSUBSCRIBE,
        UnsubscribeParams,
        UnsubscribeResult,
        section="changes.unsubscribe",
        capability="subscriptions",
        errors=_GATED,
    ),
    Method(
        CHANGE_EVENT,
        ChangeEventParams,
        None,
        section="changes.event",
        capability="subscriptions",
    ),
    Method(
        SUBSCRIPTION_CLOSED,
        SubscriptionClosedParams,
        None,
        section="changes.closed",
        capability="subscription-lifecycle",
    ),
    Method(
        SUBSCRIPTION_BOUNDARY,
        SubscriptionBoundaryParams,
        None,
        section="changes.boundary",
        capability="subscription-lifecycle",
    ),
)


def parse_deadline(meta: JsonObject) -> int | None:
    """Return `meta.deadline_unix_ms`, or None where it is absent.

    Raises:
        RpcError: INVALID_REQUEST; it is there and no integer from 0 to 2^64 - 1.
    """
    if "deadline_unix_ms" not in meta:
        return None
    deadline = meta["deadline_unix_ms"]
    if type(deadline) is int and 0 <= deadline <= MAX_INTEGER:
        return deadline
    raise RpcError(
        ErrorCode.INVALID_REQUEST,
        "params.meta.deadline_unix_ms must be an integer from 0 to 2^64 - 1",
    )


def explain(error: ValidationError, *, root: str = "params") -> str:
    """Return what is wrong first, in our own words: the member and what it should be.

    Of a request with very many faults only that is said: the list of them cannot be had in part,
    and to build it can take seconds.
    """
    if error.error_count() > _MANY_FAULTS:
        return f"{root} have more than {_MANY_FAULTS} faults"
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step[:_LONGEST_NAME]}"
        for step in first["loc"]
    )
    return f"{root}{place} {_complaint(first)}"


_COMPLAINTS: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_type": "must be a string",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "has not the required form",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "is_instance_of": "must be an object",
    "tuple_type": "must be an array",
    "list_type": "must be an array",
    "too_short": "has too few items",
    "too_long": "has too many items",
    "duplicate_item": "must not hold an item twice",
    "union_tag_not_found": "is missing what kind it is",
    "union_tag_invalid": "is of an unknown kind",
}


def _complaint(finding: ErrorDetails) -> str:
    kind = finding["type"]
    limits = finding.get("ctx", {})
    if kind == "literal_error":
        return f"must be {limits['expected']}"
    if kind == "greater_than_equal":
        return f"must be at least {limits['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {limits['le']}"
    return _COMPLAINTS.get(kind, "is not valid")
