"""The one table from exceptions to the wire.

    EngineError, ProviderError     every leaf class has a row in WIRE
    CommandError (settings)        never on the wire: a command, or the start, cannot be done

An exception that has no row is a bug: it is logged once with its traceback and answered as an
internal error. Texts of the engine are its own words for the caller and are passed on; the text of
a store may name files and is replaced by ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from patchouli.backend import (
    ArtifactStoreError,
    ConfigurationError,
    CursorExpiredError,
    DeadlineExceededError,
    EngineError,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnsupportedCapabilityError,
    VersionConflictError,
    WorkUnitExpiredError,
)
from patchouli.protocol import EntityConflict, ErrorCode, RpcError
from patchouli.provider import (
    CorruptStoreError,
    FormatVersionError,
    MisuseError,
    OutcomeUnknownError,
    OwnershipError,
    ProviderError,
    StoreFullError,
    UnauthenticatedError,
    UnavailableError,
    UnsafeStoreError,
    UnsupportedError,
)
from patchouli.provider import DeadlineExceededError as StoreDeadlineExceededError

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERNAL: Final = RpcError(ErrorCode.INTERNAL_ERROR, "the request failed inside the daemon")


def _engine(code: ErrorCode) -> Callable[[Any], RpcError]:
    return lambda error: RpcError(code, error.message)


def _overloaded(error: OverloadedError) -> RpcError:
    return RpcError(ErrorCode.OVERLOADED, error.message, retryable=error.retryable)


def _version_conflict(error: VersionConflictError) -> RpcError:
    return RpcError(
        ErrorCode.VERSION_CONFLICT,
        error.message,
        current_versions=error.current_versions,
        conflicts=[
            EntityConflict(conflict.entity_type, conflict.entity_id, conflict.current_versions)
            for conflict in error.conflicts
        ],
    )


def _store(text: str, *, is_retryable: bool) -> Callable[[Any], RpcError]:
    return lambda _: RpcError(ErrorCode.OVERLOADED, text, retryable=is_retryable)


def _bug(_: Exception) -> RpcError:
    return INTERNAL


_DAMAGED: Final = "the store cannot be used; its operator finds the cause in the daemon's log"

_Row = Callable[[Any], RpcError]

WIRE: Mapping[type[Exception], _Row] = {
    InvalidRequestError: _engine(ErrorCode.INVALID_REQUEST),
    NotFoundError: _engine(ErrorCode.NOT_FOUND),
    VersionConflictError: _version_conflict,
    IdempotencyConflictError: _engine(ErrorCode.IDEMPOTENCY_CONFLICT),
    UnsupportedCapabilityError: _engine(ErrorCode.UNSUPPORTED_CAPABILITY),
    DeadlineExceededError: _engine(ErrorCode.DEADLINE_EXCEEDED),
    OverloadedError: _overloaded,
    CursorExpiredError: _engine(ErrorCode.CURSOR_EXPIRED),
    WorkUnitExpiredError: _engine(ErrorCode.WORK_UNIT_EXPIRED),
    ArtifactStoreError: _engine(ErrorCode.INTERNAL_ERROR),
    ConfigurationError: _bug,  # of the start only; no request may raise it
    StoreDeadlineExceededError: lambda _: RpcError(
        ErrorCode.DEADLINE_EXCEEDED, "the deadline passed before the store accepted the request"
    ),
    UnavailableError: _store(
        "the store cannot take the request now: too much waits for it, it stops, or it is out of "
        "reach; nothing was kept",
        is_retryable=True,
    ),
    OutcomeUnknownError: _store(
        "the answer of the store was lost; the request may or may not have been accepted",
        is_retryable=True,
    ),
    OwnershipError: _store("the store belongs to another process", is_retryable=True),
    StoreFullError: _store("the store has no room left; nothing was kept", is_retryable=True),
    UnauthenticatedError: _store("the store refuses the daemon's token", is_retryable=False),
    CorruptStoreError: _store(_DAMAGED, is_retryable=False),
    FormatVersionError: _store(_DAMAGED, is_retryable=False),
    UnsafeStoreError: _store(_DAMAGED, is_retryable=False),
    UnsupportedError: _bug,
    MisuseError: _bug,
}

# What a person has to look at: these are logged, the others are answers like any other.
LOGGED: Final = (
    ArtifactStoreError,
    ConfigurationError,
    CorruptStoreError,
    FormatVersionError,
    MisuseError,
    StoreFullError,
    UnauthenticatedError,
    UnsafeStoreError,
    UnsupportedError,
)


def to_wire(error: Exception) -> RpcError | None:
    """Return what a client is told of `error`, or None if it has no row and is a bug."""
    if isinstance(error, RpcError):
        return error
    if isinstance(error, EngineError | ProviderError):
        for base in type(error).__mro__:
            if base in WIRE:
                return WIRE[base](error)
    return None
