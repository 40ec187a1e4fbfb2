"""What a store keeps and gives back: versions, changes, observations, work units."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from patchouli.provider.record import record

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from patchouli.provider.divergence import Divergence
    from patchouli.provider.identity import (
        CausalToken,
        ControlKey,
        Cursor,
        EntityKey,
        ScopeText,
        VersionId,
    )


class VersionState(StrEnum):
    """Whether a version holds a value or marks a deletion."""

    ACTIVE = "active"
    DELETED = "deleted"


@record
class Version:
    """One immutable version of an entity.

    `value_json` is canonical JSON text for an active version and None for a deleted one.
    `parents` are versions of the same entity, in the order given by the engine: the bases that the
    mutation named, for a derived version the candidates it was made from, none for a create.
    """

    id: VersionId
    state: VersionState
    value_json: str | None
    parents: tuple[VersionId, ...]
    recorded_at_unix_ms: int


class ChangeKind(StrEnum):
    """What a published change did to the heads of its entity."""

    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"
    CONFLICTED = "conflicted"
    RESOLVED = "resolved"


def change_kind(*, previous_heads: int, new_heads: int, is_single_tombstone: bool) -> ChangeKind:
    """Return the kind of a publication from the head counts before and after it.

    One rule for every path: nothing before is `created`; several heads after are
    `conflicted`; one head after several is `resolved`; else the single head decides.
    """
    if previous_heads == 0:
        return ChangeKind.CREATED
    if new_heads > 1:
        return ChangeKind.CONFLICTED
    if previous_heads > 1:
        return ChangeKind.RESOLVED
    return ChangeKind.DELETED if is_single_tombstone else ChangeKind.UPDATED


@record
class Change:
    """One published change: the complete head set of an entity at a cursor."""

    cursor: Cursor
    type: str
    id: str
    kind: ChangeKind
    head_versions: tuple[VersionId, ...]
    causal_token: CausalToken
    event_meta_json: str
    recorded_at_unix_ms: int


class Source(StrEnum):
    """Where a read was answered from."""

    AUTHORITY = "authority"
    REPLICA = "replica"


@record
class Observation:
    """What a consistent read saw: the frontier of the scope and the token published there.

    `causal_token` is None exactly when `frontier` is 0.
    """

    source: Source
    frontier: Cursor
    causal_token: CausalToken | None


@record
class SealedUnit:
    """A work unit that was sealed by a drifted close and not yet finished."""

    identity: ControlKey
    scope: ScopeText
    policy_json: str
    expires_at_unix_ms: int


def surviving_heads(
    staged_heads: Iterable[Version],
    published_heads: Iterable[Version],
    superseded: Container[VersionId],
) -> tuple[Version, ...]:
    """Return the heads of a drifted entity that neither side replaced since the baseline.

    Ascending by id. A head that one side replaced is gone, although the other side still has it.
    """
    heads = {head.id: head for head in (*staged_heads, *published_heads)}
    return tuple(heads[head] for head in sorted(heads) if head not in superseded)


@record
class UnitConflict:
    """An entity of a sealed unit whose published heads are no longer those of its baseline.

    `superseded` names the versions that either side replaced since the baseline, so that heads
    which one side already resolved are left out. `divergence` is that of the active surviving heads
    (`surviving_heads`) if there are several, over what is published now and what the unit has
    staged.
    """

    key: EntityKey
    baseline_heads: tuple[VersionId, ...]
    staged_heads: tuple[Version, ...]
    published_heads: tuple[Version, ...]
    superseded: frozenset[VersionId]
    conflict_policy_json: str
    is_closing: bool
    divergence: Divergence | None = None
