"""What the model stores, and the views of it: plain dicts of immutable records, nothing forgotten.

A transaction is a copy. `Tables.copy` is shallow, records are replaced and never changed, so that
dropping a copy drops everything that was done to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from patchouli.provider import (
    INTEGER_MAX,
    CausalToken,
    Change,
    ControlKey,
    Cursor,
    Divergence,
    DivergenceNode,
    EntityKey,
    GraphNode,
    IdempotencyRecord,
    IdentityTaken,
    Replayed,
    ScopeText,
    SealedUnit,
    Version,
    VersionId,
    VersionState,
    WorkUnit,
    contract,
    walk,
)
from patchouli.provider_conformance.builders import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

NO_VERSION = VersionId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVersion:
    """A version with its place in the order of arrival; `cursor` is None while it is staged."""

    version: Version
    ordinal: int
    cursor: Cursor | None
    unit: ControlKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One entry of the log. It is `hidden` when nobody may see it as a change.

    That is so for an entity that was created and deleted inside one work unit. A pruned one is no
    longer shown; it stays because the model finds old heads by it.
    """

    key: EntityKey
    change: Change
    hidden: bool = False
    is_pruned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """An idempotency record; `unit` is the work unit that has staged it and not yet published."""

    record: IdempotencyRecord
    unit: ControlKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntity:
    """What a work unit holds of one entity.

    The last mutation decides all but `is_closing`, which stays once it is set, and the conflict
    policy, which stays when it was set by a mutation with `holds_policy`.
    """

    heads: tuple[VersionId, ...]
    conflict_policy_json: str
    holds_policy: bool
    causal_token: CausalToken
    event_meta_json: str
    write_sessions: tuple[ControlKey, ...]
    is_closing: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredUnit:
    """A work unit. `tokens` are those of all its mutations and resolutions, with their entity."""

    unit: WorkUnit
    baseline: Cursor
    state: Literal["open", "closing", "committed", "expired"] = "open"
    entities: Mapping[EntityKey, StagedEntity] = field(
        default_factory=dict[EntityKey, StagedEntity]
    )
    tokens: tuple[tuple[CausalToken, EntityKey], ...] = ()
    sealed_by: str = ""
    accepted: VersionId = NO_VERSION
    finished_at_unix_ms: int | None = None

    def is_overdue(self, now_unix_ms: int) -> bool:
        """Return whether the unit is unfinished and past its time."""
        is_unfinished = self.state in ("open", "closing")
        return is_unfinished and self.unit.expires_at_unix_ms <= now_unix_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFrontiers:
    """How far a session has read and written."""

    read: Cursor = ORIGIN
    write: Cursor = ORIGIN


@dataclass(slots=True, kw_only=True)
class Tables:
    """Everything that a store keeps."""

    generation: int = 0
    is_running: bool = False
    arrivals: int = 0
    versions: dict[tuple[EntityKey, VersionId], StoredVersion] = field(default_factory=dict)
    log: list[Publication] = field(default_factory=list)
    tokens: dict[CausalToken, tuple[ScopeText, Cursor]] = field(default_factory=dict)
    sessions: dict[tuple[ScopeText, ControlKey], SessionFrontiers] = field(default_factory=dict)
    records: dict[ControlKey, StoredRecord] = field(default_factory=dict)
    units: dict[ControlKey, StoredUnit] = field(default_factory=dict)

    def copy(self) -> Tables:
        """Return tables that can be changed while these stay as they are."""
        return replace(
            self,
            versions=dict(self.versions),
            log=list(self.log),
            tokens=dict(self.tokens),
            sessions=dict(self.sessions),
            records=dict(self.records),
            units=dict(self.units),
        )

    def frontier(self, scope: ScopeText) -> Cursor:
        """Return the cursor of the newest publication of `scope`, 0 if there is none."""
        own = (entry.change.cursor for entry in reversed(self.log) if entry.key.scope == scope)
        return next(own, ORIGIN)

    def token_at(self, scope: ScopeText, cursor: Cursor) -> CausalToken | None:
        """Return the token of the publication of `scope` at `cursor`."""
        if cursor == ORIGIN:
            return None
        entry = self.log[cursor - 1]
        return entry.change.causal_token if entry.key.scope == scope else None

    def expire(self, unit: StoredUnit, now_unix_ms: int) -> StoredUnit:
        """Discard what `unit` has staged and return it as it is then."""
        identity = unit.unit.identity
        self.versions = {k: v for k, v in self.versions.items() if v.unit != identity}
        self.records = {k: r for k, r in self.records.items() if r.unit != identity}
        expired = replace(
            unit, state="expired", entities={}, tokens=(), finished_at_unix_ms=now_unix_ms
        )
        self.units[identity] = expired
        return expired

    def sweep(self, now_unix_ms: int) -> None:
        """Expire every unit that is past its time."""
        for unit in list(self.units.values()):
            if unit.is_overdue(now_unix_ms):
                self.expire(unit, now_unix_ms)

    def add(
        self,
        key: EntityKey,
        new_versions: Iterable[Version],
        *,
        cursor: Cursor | None = None,
        unit: ControlKey | None = None,
    ) -> None:
        """Store versions, published at `cursor` or staged by `unit`."""
        for version in new_versions:
            self.arrivals += 1
            self.versions[key, version.id] = StoredVersion(
                version=version, ordinal=self.arrivals, cursor=cursor, unit=unit
            )

    def node(self, stored: StoredVersion) -> GraphNode:
        """Return a version as the walk sees it; what is staged comes after what is published."""
        return GraphNode(
            id=stored.version.id,
            parents=stored.version.parents,
            sequence=(stored.cursor or INTEGER_MAX, stored.ordinal),
        )

    def publish_staged(self, key: EntityKey, unit: ControlKey, cursor: Cursor) -> None:
        """Stamp every version of `key` that `unit` has staged, superseded ones included."""
        for place, stored in self.versions.items():
            if place[0] == key and stored.unit == unit:
                self.versions[place] = replace(stored, cursor=cursor, unit=None)

    def next_cursor(self) -> Cursor:
        """Return the cursor of the next publication."""
        return Cursor(len(self.log) + 1)

    def advance_write(
        self, scope: ScopeText, sessions: Iterable[ControlKey], cursor: Cursor
    ) -> None:
        """Move the write frontiers of `sessions`; they never go back."""
        for session in sessions:
            known = self.sessions.get((scope, session), SessionFrontiers())
            self.sessions[scope, session] = replace(known, write=max(known.write, cursor))

    def advance_read(
        self, scope: ScopeText, sessions: Iterable[ControlKey], cursor: Cursor
    ) -> None:
        """Move the read frontiers of `sessions`; they never go back."""
        for session in sessions:
            known = self.sessions.get((scope, session), SessionFrontiers())
            self.sessions[scope, session] = replace(known, read=max(known.read, cursor))

    def record_of(
        self, identity: ControlKey, request_json: str, now_unix_ms: int, unit: StoredUnit | None
    ) -> Replayed | IdentityTaken | None:
        """Return what is known under an idempotency identity, None if it is free.

        `unit` is the one that asks. A record of an overdue unit counts as absent even before the
        unit is swept.
        """
        known = self.records.get(identity)
        if known is None or known.record.expires_at_unix_ms <= now_unix_ms:
            return None
        if known.unit is not None:
            if self.units[known.unit].is_overdue(now_unix_ms):
                return None
            if unit is None or known.unit != unit.unit.identity:
                return IdentityTaken()
        if known.record.request_json != request_json:
            return IdentityTaken()
        return Replayed(result_json=known.record.result_json, is_staged=known.unit is not None)

    def sealed_units(self) -> tuple[SealedUnit, ...]:
        """Return the units that were sealed and not finished."""
        return tuple(
            SealedUnit(
                identity=unit.unit.identity,
                scope=unit.unit.scope,
                policy_json=unit.unit.policy_json,
                expires_at_unix_ms=unit.unit.expires_at_unix_ms,
            )
            for unit in self.units.values()
            if unit.state == "closing"
        )


@dataclass(frozen=True, slots=True)
class View:
    """One scope as it was published at `frontier`, and over it what `unit` has staged."""

    tables: Tables
    scope: ScopeText
    frontier: Cursor
    unit: StoredUnit | None = None

    def published_heads(self, key: EntityKey) -> tuple[VersionId, ...]:
        """Return the heads of `key` at the frontier, in ascending order."""
        for entry in reversed(self.tables.log):
            if entry.key == key and entry.change.cursor <= self.frontier:
                return tuple(sorted(entry.change.head_versions))
        return ()

    def head_ids(self, key: EntityKey) -> tuple[VersionId, ...]:
        """Return the staged heads of `key`, else the published ones, in ascending order."""
        if self.unit is not None and key in self.unit.entities:
            return tuple(sorted(self.unit.entities[key].heads))
        return self.published_heads(key)

    def heads(self, key: EntityKey) -> tuple[Version, ...]:
        """Return the heads of `key` in ascending order."""
        return tuple(self.tables.versions[key, head].version for head in self.head_ids(key))

    def find(self, key: EntityKey, wanted: Iterable[VersionId]) -> dict[VersionId, StoredVersion]:
        """Return those of the `wanted` versions of `key` that this view knows."""
        identity = self.unit.unit.identity if self.unit is not None else None
        found: dict[VersionId, StoredVersion] = {}
        for version_id in wanted:
            stored = self.tables.versions.get((key, version_id))
            if stored is None:
                continue
            if stored.cursor is None:
                is_known = identity is not None and stored.unit == identity
            else:
                is_known = stored.cursor <= self.frontier
            if is_known:
                found[version_id] = stored
        return found

    def bases(self, key: EntityKey, wanted: Sequence[VersionId]) -> tuple[Version, ...]:
        """Return the known ones of the named base versions."""
        return tuple(stored.version for stored in self.find(key, wanted).values())

    def divergence(self, key: EntityKey, bases: Iterable[Version]) -> Divergence | None:
        """Return the divergence of the active heads and the bases, None if they are the same."""
        active = [head.id for head in self.heads(key) if head.state is VersionState.ACTIVE]
        base_ids = [base.id for base in bases]
        return None if set(active) == set(base_ids) else self.walked(key, [*active, *base_ids])

    def walked(self, key: EntityKey, starts: Sequence[VersionId]) -> Divergence:
        """Return the divergence of `starts`, versions of `key` that this view knows."""

        def find(wanted: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
            return {
                version_id: self.tables.node(stored)
                for version_id, stored in self.find(key, wanted).items()
            }

        base, walked = walk(starts, find)
        kept = contract(walked, starts if base is None else [*starts, base])
        return Divergence(
            base=base,
            nodes=tuple(
                DivergenceNode(
                    id=node.id,
                    parents=node.parents,
                    sequence=node.sequence,
                    value_json=self.tables.versions[key, node.id].version.value_json,
                )
                for node in kept
            ),
        )

    def entities(self) -> list[EntityKey]:
        """Return every entity of the scope that has heads in this view."""
        known = dict.fromkeys(key for key, _ in self.tables.versions if key.scope == self.scope)
        return [key for key in known if self.head_ids(key)]
