"""Failures of a store.

    ProviderError(provider, operation)     reason             may a retry help?
    ├─ DeadlineExceededError               deadline_exceeded  no; nothing was changed
    ├─ UnavailableError                    unavailable        yes
    ├─ OutcomeUnknownError                 unavailable        with an idempotency identity
    ├─ OwnershipError                      unavailable        when the other process has ended
    ├─ UnauthenticatedError                unauthenticated    with other credentials
    ├─ StoreFullError                      internal           when there is room again
    ├─ CorruptStoreError                   internal           never
    ├─ FormatVersionError                  internal           never
    ├─ UnsafeStoreError                    internal           when the permissions are mended
    ├─ UnsupportedError                    internal           never
    └─ MisuseError                         internal           never; the caller has a bug

Callers match the type and its `reason`. The text is for people; it names the operation, what is
wrong and what to do, and never carries a stored value.
"""

from __future__ import annotations

from typing import ClassVar, Literal

ErrorReason = Literal["internal", "deadline_exceeded", "unauthenticated", "unavailable"]


class ProviderError(Exception):
    """A store could not do what was asked, and nothing of it was kept unless a subclass says so."""

    reason: ClassVar[ErrorReason] = "internal"
    retryable: ClassVar[bool] = False

    def __init__(self, provider: str, operation: str, detail: str) -> None:
        super().__init__(provider, operation, detail)
        self.provider = provider
        self.operation = operation
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.provider} {self.operation} failed: {self.detail}"


class DeadlineExceededError(ProviderError):
    """Raised when the deadline of a plan passed before the store accepted it; nothing was kept."""

    reason = "deadline_exceeded"


class UnavailableError(ProviderError):
    """Raised when the store cannot be reached, is stopping or has stopped; a retry may help."""

    reason = "unavailable"
    retryable = True


class OutcomeUnknownError(UnavailableError):
    """Raised when a mutation was sent and its answer was lost: it may or may not have happened."""


class OwnershipError(UnavailableError):
    """Raised when another process owns the storage; the first one is not disturbed."""


class UnauthenticatedError(ProviderError):
    """Raised when a remote store does not accept the credentials."""

    reason = "unauthenticated"


class StoreFullError(ProviderError):
    """Raised when there is no room for a write; nothing was kept, reads still work."""

    retryable = True


class CorruptStoreError(ProviderError):
    """Raised when stored data contradicts itself or is not readable; a retry does not help."""


class FormatVersionError(ProviderError):
    """Raised when a database belongs to another program or to a newer release."""


class UnsafeStoreError(ProviderError):
    """Raised when other users could read or replace the files of the store."""


class UnsupportedError(ProviderError):
    """Raised when a plan uses something that the provider does not claim in its capabilities."""


class MisuseError(ProviderError):
    """Raised when a plan contradicts itself or the store, e.g. a head that does not exist."""
