"""What a provider answers. An alternative that a correct caller must expect is a value."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from patchouli.provider.record import record

if TYPE_CHECKING:
    from patchouli.provider.divergence import Divergence
    from patchouli.provider.identity import Cursor, EntityKey, VersionId
    from patchouli.provider.records import (
        Change,
        Observation,
        SealedUnit,
        UnitConflict,
        Version,
    )


@record
class Unavailable:
    """No allowed source can serve the asked consistency now; nothing was changed.

    `frontier` is the one that was too old: when the scope is beyond it, the answer may be another
    one. None means that waiting will not help, as in the view of an open work unit.
    """

    detail: str
    frontier: Cursor | None = None


@record
class Replayed:
    """The mutation was accepted before; `result_json` is the stored answer.

    `is_staged` says that it is part of the work unit of the request, which is not published yet.
    A request that is to close the unit still has to.
    """

    result_json: str
    is_staged: bool = False


@record
class IdentityTaken:
    """The idempotency identity belongs to another mutation, or is staged elsewhere."""


class UnitState(StrEnum):
    """Why a work unit does not take a request."""

    CLOSING = "closing"
    POLICY_MISMATCH = "policy_mismatch"
    COMMITTED = "committed"
    EXPIRED = "expired"


@record
class UnitRefused:
    """The work unit is not open to this request."""

    state: UnitState


@record
class Reading:
    """Heads of one entity at one snapshot, ascending by id; none if it never existed there.

    `bases` are the named base versions that are known in the view. `divergence` is present only if
    it was asked for and the active heads differ from the bases. `record` is the outcome of the
    idempotency probe, None when there was none or the identity is free. In a committed work unit
    the record is all that is read: there are no heads.
    """

    heads: tuple[Version, ...]
    observation: Observation
    bases: tuple[Version, ...] = ()
    divergence: Divergence | None = None
    record: Replayed | IdentityTaken | None = None


@record
class Committed:
    """The change is published at `cursor`, and on disk."""

    cursor: Cursor


@record
class Staged:
    """The versions are in their open work unit, and on disk."""


@record
class PublishedEntity:
    """One entity of a published unit with its new heads, ascending by id."""

    key: EntityKey
    cursor: Cursor
    heads: tuple[Version, ...]


@record
class Published:
    """Every mutation of the unit is visible, and on disk; entities in publication order.

    `sealed_by` is the fingerprint of the request that closed the unit and `accepted` the version
    which that request staged.
    """

    entities: tuple[PublishedEntity, ...]
    sealed_by: str
    accepted: VersionId


@record
class Raced:
    """The heads were not the expected ones; nothing was changed.

    Brings what another attempt needs: the present heads, the known bases and, if asked for, their
    divergence.
    """

    heads: tuple[Version, ...]
    bases: tuple[Version, ...] = ()
    divergence: Divergence | None = None


@record
class Drifted:
    """The unit is sealed, and these entities were published by others since its baseline."""

    conflicts: tuple[UnitConflict, ...]
    sealed_by: str


@record
class Discarded:
    """The unit is expired and everything it had staged is gone."""


ReadOutcome = Reading | Unavailable | UnitRefused
CommitOutcome = (
    Committed | Staged | Published | Replayed | IdentityTaken | Raced | Drifted | UnitRefused
)
PublishOutcome = Published | Drifted | Discarded | UnitRefused


@record
class Hit:
    """An entity found by a retrieval: all its heads, ascending by id, matching or not.

    `score` and `recorded_at_unix_ms` are the greatest of its matching heads.
    """

    key: EntityKey
    heads: tuple[Version, ...]
    score: float
    recorded_at_unix_ms: int


@record
class Page:
    """Hits in order; `has_more` says that at least one further entity matched."""

    hits: tuple[Hit, ...]
    has_more: bool
    observation: Observation


RetrieveOutcome = Page | Unavailable | UnitRefused


@record
class ChangePage:
    """Changes of a scope with the frontier and the pruning horizon of the same snapshot.

    `pruned_through` is the greatest cursor that is no longer kept in this scope, 0 if none. A
    position `c` can be resumed iff `pruned_through <= c <= frontier`. `reached` is the cursor up to
    which the log was looked through: the last change of a page that ended at a limit, else the
    frontier.
    """

    changes: tuple[Change, ...]
    frontier: Cursor
    reached: Cursor
    pruned_through: Cursor
    incarnation: str


@record
class ReferencesPage:
    """The strings that some entities' versions have at the pointer, each once.

    `reached` is the last of these entities, None if no other one follows.
    """

    texts: frozenset[str]
    reached: EntityKey | None


@record
class Compaction:
    """What one step of compaction removed, and whether another one would remove more.

    `units` are the identities of finished work units, `versions` superseded ones. `due` is about
    how many of all kinds are left, None if it was not asked for; some of them may have to stay for
    the sake of others.
    """

    changes: int
    idempotency_records: int
    units: int
    versions: int
    is_more_due: bool
    due: int | None = None


@record
class RuntimeGeneration:
    """The run that `initialize` started.

    `generation` grows by one with each start of the store. `incarnation` names the database itself:
    a copy that was restored or replaced carries another one. `secret` (32 bytes) never leaves the
    engine; it authenticates paging cursors.
    """

    generation: int
    recovered_after_unclean_shutdown: bool
    incarnation: str
    secret: bytes
    sealed_units: tuple[SealedUnit, ...] = ()
