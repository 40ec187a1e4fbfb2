"""Why a request, or the start, was refused.

    EngineError                    reason                  may a retry help?
    ├─ InvalidRequestError         INVALID_REQUEST         no; the request must change
    ├─ NotFoundError               NOT_FOUND               no
    ├─ VersionConflictError        VERSION_CONFLICT        after reading the current versions
    ├─ IdempotencyConflictError    IDEMPOTENCY_CONFLICT    no; it belongs to another request
    ├─ UnsupportedCapabilityError  UNSUPPORTED_CAPABILITY  no
    ├─ DeadlineExceededError       DEADLINE_EXCEEDED       with a later deadline
    ├─ OverloadedError             OVERLOADED              when it says so
    ├─ CursorExpiredError          CURSOR_EXPIRED          no; begin again without the cursor
    ├─ WorkUnitExpiredError        WORK_UNIT_EXPIRED       no; begin another work unit
    ├─ ArtifactStoreError          INTERNAL                when the disk is mended
    └─ ConfigurationError          CONFIGURATION           no; start only, the document must change

Every request error but `DeadlineExceededError` on a drifted close means that nothing was changed.
Callers match the type and its `reason`, never the text. The text is for people: it says what is
wrong and what to do, and holds neither stored data nor words of a library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider import VersionId

EngineReason = Literal[
    "CONFIGURATION",
    "CURSOR_EXPIRED",
    "DEADLINE_EXCEEDED",
    "IDEMPOTENCY_CONFLICT",
    "INTERNAL",
    "INVALID_REQUEST",
    "NOT_FOUND",
    "OVERLOADED",
    "UNSUPPORTED_CAPABILITY",
    "VERSION_CONFLICT",
    "WORK_UNIT_EXPIRED",
]

ConfigurationErrorKind = Literal["File", "Json", "Schema", "Invalid", "Capability"]
"""What found the defect: reading, parsing or typed decoding, the schema, a rule, the provider."""


class EngineError(Exception):
    """A request was refused, or the engine was not started."""

    reason: ClassVar[EngineReason]
    retryable: bool = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequestError(EngineError):
    """Raised when the request itself is at fault; `pointer` says where, if one place is.

    `pointer` is a root (`meta`, `data`, or `entity_types.<type>.value` for an entity's value)
    followed by the JSON Pointer of the offending member.
    """

    reason = "INVALID_REQUEST"

    def __init__(self, message: str, *, pointer: str | None = None) -> None:
        super().__init__(message)
        self.pointer = pointer


class NotFoundError(EngineError):
    """Raised when an identity, a version or an upload does not exist in the view of the request."""

    reason = "NOT_FOUND"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityConflict:
    """The current versions of one entity that stands in the way."""

    entity_type: str
    entity_id: str
    current_versions: tuple[VersionId, ...]


class VersionConflictError(EngineError):
    """Raised when a mutation was not based on the current versions and may not be reconciled.

    It names them: `current_versions` of the one entity of the request, or `conflicts` with every
    affected entity of a work unit. At most one of the two is not empty.
    """

    reason = "VERSION_CONFLICT"

    def __init__(
        self,
        message: str,
        *,
        current_versions: Sequence[VersionId] = (),
        conflicts: Sequence[EntityConflict] = (),
    ) -> None:
        super().__init__(message)
        self.current_versions = tuple(current_versions)
        self.conflicts = tuple(conflicts)


class IdempotencyConflictError(EngineError):
    """Raised when the idempotency identity already belongs to a different mutation."""

    reason = "IDEMPOTENCY_CONFLICT"


class UnsupportedCapabilityError(EngineError):
    """Raised when the request needs what is not offered here; `capabilities` names it, sorted."""

    reason = "UNSUPPORTED_CAPABILITY"

    def __init__(self, message: str, *, capabilities: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.capabilities = tuple(sorted(capabilities))


class DeadlineExceededError(EngineError):
    """Raised when the deadline passed before the request was accepted; nothing of it was kept."""

    reason = "DEADLINE_EXCEEDED"


class OverloadedError(EngineError):
    """Raised when the request cannot be served now; `retryable` says whether waiting may help."""

    reason = "OVERLOADED"

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class CursorExpiredError(EngineError):
    """Raised when a change cursor is older than what is kept, or is not of this database."""

    reason = "CURSOR_EXPIRED"


class WorkUnitExpiredError(EngineError):
    """Raised when the work unit outlived its time; everything staged in it was discarded."""

    reason = "WORK_UNIT_EXPIRED"


class ArtifactStoreError(EngineError):
    """Raised when artifact bytes cannot be written or read, or contradict their entity."""

    reason = "INTERNAL"


class ConfigurationError(EngineError):
    """Raised when a configuration document, or what it asks of a provider, prevents the start.

    Attributes:
        kind: Which stage found the defect.
        path: Where it is: a JSON Pointer for kind `Schema`, else a dotted path; `""` is the root.
        rule: Name of the broken rule as `docs/configuration.md` lists it, e.g. `P22`.
        problem: What is wrong, without place and remedy.
        remedy: What to write instead.
        document: Name of the document, if it has one.
        line: Line of the place in the document, from 1, if it was read from text.
        column: Column of the place, from 1.
    """

    reason = "CONFIGURATION"

    def __init__(
        self,
        *,
        kind: ConfigurationErrorKind,
        path: str,
        rule: str,
        problem: str,
        remedy: str,
        document: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> None:
        place = ":".join(str(part) for part in (document, line, column) if part is not None)
        prefix = ": ".join(part for part in (place, path) if part)
        super().__init__(f"{prefix + ': ' if prefix else ''}{problem} ({rule}). {remedy}")
        self.kind: ConfigurationErrorKind = kind
        self.path = path
        self.rule = rule
        self.problem = problem
        self.remedy = remedy
        self.document = document
        self.line = line
        self.column = column
