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
from patchouli.protocol.errors import ErrorCode, RpcError
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
        section: The clause of SPEC that describes it.
    """

    __slots__ = ("capability", "name", "params", "result", "section")

    def __init__(
        self,
        name: str,
        params: type[P],
        result: type[BaseModel] | None,
        *,
        section: str,
        capability: Capability | None = None,
    ) -> None:
        self.name: Final = name
        self.params: Final = params
        self.result: Final = result
        self.capability: Final = capability
        self.section: Final = section

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


def _table(*methods: Method[BaseModel]) -> Mapping[str, Method[BaseModel]]:
    return MappingProxyType({method.name: method for method in methods})


METHODS: Final = _table(
    Method(HANDSHAKE, HandshakeParams, HandshakeResult, section="handshake.params"),
    Method(STATUS, StatusParams, StatusResult, section="control.status"),
    Method(CHECKPOINT, CheckpointParams, CheckpointResult, section="control.checkpoint"),
    Method(SHUTDOWN, ShutdownParams, ShutdownResult, section="control.shutdown"),
    Method(CREATE, CreateParams, CreateResult, section="entity.create"),
    Method(READ, ReadParams, ReadResult, section="entity.read"),
    Method(RETRIEVE, RetrieveParams, RetrieveResult, section="entity.retrieve"),
    Method(UPDATE, UpdateParams, UpdateResult, section="entity.update"),
    Method(DELETE, DeleteParams, DeleteResult, section="entity.delete"),
    Method(
        UPLOAD_BEGIN,
        UploadBeginParams,
        UploadBeginResult,
        section="artifact.begin",
        capability="artifacts",
    ),
    Method(
        UPLOAD_CHUNK,
        UploadChunkParams,
        UploadChunkResult,
        section="artifact.chunk",
        capability="artifacts",
    ),
    Method(
        UPLOAD_COMMIT,
        UploadCommitParams,
        UploadCommitResult,
        section="artifact.commit",
        capability="artifacts",
    ),
    Method(
        DOWNLOAD_CHUNK,
        DownloadChunkParams,
        DownloadChunkResult,
        section="artifact.download",
        capability="artifacts",
    ),
    Method(
        SUBSCRIBE,
        SubscribeParams,
        SubscribeResult,
        section="changes.subscribe",
        capability="subscriptions",
    ),
    Method(
        UNSUBSCRIBE,
        UnsubscribeParams,
        UnsubscribeResult,
        section="changes.unsubscribe",
        capability="subscriptions",
    ),
    Method(
        CHANGE_EVENT, ChangeEventParams, None, section="changes.event", capability="subscriptions"
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


def explain(error: ValidationError) -> str:
    """Return what is wrong first, in our own words: the member and what it should be."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
    return f"params{place} {_complaint(first)}"


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
