"""How a work unit becomes visible: all of it in one transaction, one change an entity.

An entity *drifted* if its published heads are no longer those of the baseline. A unit without drift
is published; one with drift is sealed, and is published with new heads for exactly the entities
that drifted, if neither side moved meanwhile.

Publication turns what was staged for an entity into one commit: its new versions are all that the
unit staged, in their order, so that intermediate ones become history that was superseded by the
very change that published them. The usual ones among these commits are written by the statements of
`bulk.py`, for many entities at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import (
    CausalToken,
    Commit,
    Cursor,
    Discarded,
    Drifted,
    EntityKey,
    Published,
    PublishedEntity,
    UnitConflict,
    UnitRefused,
    UnitState,
    VersionId,
    VersionState,
    change_kind,
    check,
    surviving_heads,
)
from patchouli.provider_sqlite import bulk, heads
from patchouli.provider_sqlite.budget import Budget
from patchouli.provider_sqlite.codec import NO_IDS, ids_of, ids_text, version_of
from patchouli.provider_sqlite.heads import misuse
from patchouli.provider_sqlite.idempotency import publish_records, replace_result
from patchouli.provider_sqlite.reads import active_ids, ids
from patchouli.provider_sqlite.units import (
    END,
    expire,
    find_unit,
    forget_staged,
    require_usable,
)
from patchouli.provider_sqlite.units_view import read_view

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patchouli.provider import ChangeKind, Publish, Resolution, ScopeText, Version
    from patchouli.provider_sqlite.connection import Connection, SqlValue
    from patchouli.provider_sqlite.group import Group
    from patchouli.provider_sqlite.units import Unit
    from patchouli.provider_sqlite.units_view import UnitView

HIDDEN: Final = "hidden"  # the kind of a change that nobody is shown

# In the order of publication, with what is published of them now.
STAGED_ENTITIES: Final = """
SELECT w.type, w.id, w.heads, w.conflict_policy, w.token, w.event_meta, w.sessions, w.is_closing,
       e.entity_id, e.changed_cursor, e.head_count, e.version
FROM work_unit_entity w
LEFT JOIN entity e ON e.scope_id = ?2 AND e.type = w.type AND e.id = w.id
WHERE w.unit_id = ?1 ORDER BY w.is_closing, w.type, w.id
"""
STAGED_VERSIONS: Final = """
SELECT type, id, ordinal, token, version, state, value, parents, recorded_at
FROM work_unit_version WHERE unit_id = ?
"""
STAGED_IDS: Final = """
SELECT version FROM work_unit_version WHERE unit_id = ? AND type = ? AND id = ?
"""
# Heads at the baseline or later that are none any more. What was merged at once never was one.
SUPERSEDED_SINCE: Final = """
SELECT version FROM version INDEXED BY version_fate
WHERE entity_id = ?1 AND superseded_cursor > ?2 AND superseded_cursor > published_cursor
"""
IS_USED: Final = """(EXISTS (SELECT 1 FROM change WHERE token = :token)
    OR EXISTS (SELECT 1 FROM causal_token WHERE token = :token)
    OR EXISTS (SELECT 1 FROM work_unit_version WHERE token = :token))"""
SEAL: Final = """
UPDATE work_unit SET state = 'sealed', sealed_by = ?2, accepted = ?3 WHERE unit_id = ?1
"""
NAME_POSITIONS: Final = bulk.RowsStatement(
    "INSERT INTO causal_token (token, scope_id, cursor) SELECT column1, column2, column3 FROM",
    "WHERE column1 IS NOT NULL",
    width=3,
)


class StagedEntity(NamedTuple):
    """An entity that a unit mutated, and what is published of it; a row of `STAGED_ENTITIES`."""

    type: str
    id: str
    heads: str
    conflict_policy: str
    token: str
    event_meta: str
    sessions: str
    is_closing: int
    entity_id: int | None
    changed_cursor: int | None
    head_count: int | None
    version: str | None

    @property
    def name(self) -> tuple[str, str]:
        """Type and id."""
        return self.type, self.id


@dataclass(frozen=True, slots=True)
class Unkept:
    """An outcome that keeps nothing, so that it may be late although its type usually keeps."""

    outcome: Drifted


@dataclass(frozen=True, slots=True)
class PublishUnit:
    """The publication of a sealed unit with resolutions of its drift, or its end: a `Work`."""

    publish: Publish

    @property
    def scope(self) -> ScopeText:
        """The scope of the unit."""
        return self.publish.unit.scope

    @property
    def deadline_unix_ms(self) -> int | None:
        """That of the publication."""
        return self.publish.deadline_unix_ms

    @property
    def value_bytes(self) -> int:
        """The values of the resolutions."""
        versions = [v for resolution in self.publish.resolutions for v in resolution.new_versions]
        return sum(len(version.value_json or "") for version in versions)

    @property
    def base_versions(self) -> tuple[VersionId, ...]:
        """None."""
        return ()

    def carry_out(self, group: Group) -> Published | Unkept | Discarded | UnitRefused:
        """Publish or discard the unit, or say what its drift is now.

        Raises:
            DeadlineExceededError: It is late.
            MisuseError: The unit is not sealed, or a resolution contradicts itself or the store.
        """
        plan, connection = self.publish, group.connection
        unit = find_unit(connection, plan.unit.identity)
        if unit is None:
            raise misuse("the work unit is not sealed")
        usable = require_usable(group, unit, plan.unit)
        if isinstance(usable, UnitRefused):
            return usable
        if unit.state == "open":
            raise misuse("the work unit is not sealed")
        if unit.state == "committed":
            return UnitRefused(state=UnitState.COMMITTED)
        if plan.discard:
            group.require_in_time(plan.deadline_unix_ms)
            expire(connection, unit.unit_id, now_unix_ms=group.unix_ms())
            return Discarded()
        entities = read_staged(connection, unit)
        conflicts = drift(connection, unit, entities)
        if not _answers(plan.resolutions, conflicts):
            return Unkept(_drifted(unit, conflicts))
        _require_consistent(connection, unit, plan.resolutions)
        group.require_in_time(plan.deadline_unix_ms)
        for identity, result_json in plan.results:
            replace_result(connection, unit.unit_id, identity, result_json)
        resolutions = {(r.key.type, r.key.id): r for r in plan.resolutions}
        return publish_unit(
            group, unit, entities, recorded_at=plan.recorded_at_unix_ms, resolutions=resolutions
        )


def close(
    group: Group,
    unit: Unit,
    *,
    sealed_by: str,
    accepted: VersionId,
    recorded_at: int,
) -> Published | Drifted:
    """Publish `unit`, or if it has drifted, seal it and return how.

    A unit that is sealed already stays as it was sealed.
    """
    entities = read_staged(group.connection, unit)
    conflicts = drift(group.connection, unit, entities)
    if unit.sealed_by is None:
        unit = unit.sealed(sealed_by, accepted)
        if conflicts:
            group.connection.execute(SEAL, (unit.unit_id, sealed_by, accepted))
    if conflicts:
        return _drifted(unit, conflicts)
    return publish_unit(group, unit, entities, recorded_at=recorded_at)


def close_at_once(
    group: Group,
    unit: Unit,
    closing: Closing,
    *,
    sealed_by: str,
    accepted: VersionId,
    recorded_at: int,
) -> Published | None:
    """Publish an open `unit` with a mutation that is not staged; None if it may have drifted."""
    entities = read_staged(group.connection, unit)
    if any((entity.changed_cursor or 0) > unit.baseline for entity in (*entities, closing.entity)):
        return None
    check(
        "I33 only heads that were answered for are replaced",
        lambda: not drift(group.connection, unit, entities),
    )
    unit = unit.sealed(sealed_by, accepted)
    return publish_unit(group, unit, entities, recorded_at=recorded_at, closing=closing)


def read_staged(connection: Connection, unit: Unit) -> list[StagedEntity]:
    """Return the entities that `unit` mutated, in the order of publication."""
    rows = connection.execute(STAGED_ENTITIES, (unit.unit_id, unit.scope_id)).fetchall()
    return [StagedEntity(*row) for row in rows]


def drift(
    connection: Connection, unit: Unit, entities: Sequence[StagedEntity]
) -> tuple[UnitConflict, ...]:
    """Return what others published of `entities` since the baseline, in their order."""
    conflicts: list[UnitConflict] = []
    for entity in entities:
        if entity.changed_cursor is not None and entity.changed_cursor > unit.baseline:
            conflict = _conflict(connection, unit, entity)
            if conflict is not None:
                conflicts.append(conflict)
    return tuple(conflicts)


def publish_unit(
    group: Group,
    unit: Unit,
    entities: list[StagedEntity],
    *,
    recorded_at: int,
    closing: Closing | None = None,
    resolutions: Mapping[tuple[str, str], Resolution] | None = None,
) -> Published:
    """Make everything that `unit` has staged visible, and leave of the unit its name."""
    connection = group.connection
    publication = _Publication(group, unit, recorded_at)
    versions = _read_versions(connection, unit) if entities else {}
    if entities:
        forget_staged(connection, unit.unit_id)
    if closing is not None:
        last = closing.entity
        entities = [entity for entity in entities if entity.name != last.name]
        entities = sorted([*entities, last], key=lambda e: (e.is_closing, e.type, e.id))
        own = versions.setdefault(last.name, [])
        own += [StagedVersion(0, version, None) for version in closing.versions]
    for entity in entities:
        resolution = None if resolutions is None else resolutions.get(entity.name)
        publication.add(entity, versions[entity.name], resolution)
    publication.write()
    check("I31 the heads that are answered are those that are published", publication.is_shown)
    publish_records(connection, unit.unit_id, now_unix_ms=recorded_at)
    connection.execute(END, (unit.unit_id, "committed", group.unix_ms()))
    check("I34 a work unit leaves its name", lambda: not read_staged(connection, unit))
    return Published(
        entities=tuple(publication.published),
        sealed_by=unit.sealed_by or "",
        accepted=VersionId(unit.accepted or ""),
    )


def token_is_used(connection: Connection, token: CausalToken) -> bool:
    """Return whether a mutation had the causal token before, published or staged."""
    return bool(connection.execute(f"SELECT {IS_USED}", {"token": token}).get)


class Closing(NamedTuple):
    """The mutation that closes a unit, before anything of it is staged."""

    entity: StagedEntity
    versions: tuple[Version, ...]


class StagedVersion(NamedTuple):
    """A version that a unit staged, in its order; the first of a mutation has its token."""

    ordinal: int
    version: Version
    token: str | None


class _Publication:
    """The commits that a unit amounts to, on their way into the tables."""

    def __init__(self, group: Group, unit: Unit, recorded_at: int) -> None:
        self.published: list[PublishedEntity] = []
        self._group = group
        self._unit = unit
        self._recorded_at = recorded_at
        self._creates: list[bulk.Row] = []
        self._updates: list[bulk.Row] = []
        self._changes: list[SqlValue] = []
        self._names: list[SqlValue] = []

    def add(
        self, entity: StagedEntity, staged: list[StagedVersion], resolution: Resolution | None
    ) -> None:
        """Take the next cursor for an entity and note, or write, what becomes of it."""
        group, scope_id = self._group, self._unit.scope_id
        key = EntityKey(self._unit.scope, entity.type, entity.id)
        new = tuple(version for _, version, _ in staged)
        if resolution is not None:
            new += resolution.new_versions
            all_heads = self._heads(key, new, resolution.head_versions)
        elif len(new) == 1 and entity.heads == ids_text((new[0].id,)):
            all_heads = new
        else:
            all_heads = self._heads(key, new, ids_of(entity.heads))
        is_tombstone = len(all_heads) == 1 and all_heads[0].state is VersionState.DELETED
        previous = entity.head_count or 0
        kind = change_kind(
            previous_heads=previous, new_heads=len(all_heads), is_single_tombstone=is_tombstone
        )
        commit = self._commit(key, entity, new, ids(all_heads), kind)
        cursor = group.take_cursor()
        entity_id = group.take_entity() if entity.entity_id is None else entity.entity_id
        row = (cursor, scope_id, entity_id, commit)
        is_single = len(new) == 1 and len(all_heads) == 1 and all_heads[0] is new[0]
        if is_single and previous == 0 and not new[0].parents:
            self._creates.append(row)
        elif is_single and previous == 1:
            self._updates.append(row)
        else:
            self._replace(row, entity)
        shown = HIDDEN if previous == 0 and is_tombstone else kind.value
        self._changes += (cursor, scope_id, entity_id, shown, ids_text(ids(all_heads)))
        self._changes += (entity.token, entity.event_meta, self._recorded_at)
        tokens = [token for _, _, token in staged if token is not None and token != entity.token]
        if resolution is not None and resolution.causal_token is not None:
            tokens.append(resolution.causal_token)
        for token in tokens:
            self._names += (token, scope_id, cursor)
        group.move_frontier(scope_id, cursor, entity.token)
        if entity.sessions != NO_IDS:
            group.advance_sessions(scope_id, json.loads(entity.sessions), write=cursor)
        self.published.append(PublishedEntity(key=key, cursor=Cursor(cursor), heads=all_heads))

    def write(self) -> None:
        """Write what was noted."""
        connection = self._group.connection
        bulk.insert_entities(connection, self._creates)
        bulk.replace_heads(connection, self._updates)
        bulk.INSERT_CHANGES.run(connection, self._changes)
        NAME_POSITIONS.run(connection, self._names)

    def is_shown(self) -> bool:
        """Return whether the heads of every published entity are what is answered for it."""
        connection, scope_id = self._group.connection, self._unit.scope_id
        return all(
            heads.read_state(connection, scope_id, entity).heads == frozenset(ids(entity.heads))
            for entity in self.published
        )

    def _heads(
        self, key: EntityKey, new: Sequence[Version], head_ids: Sequence[VersionId]
    ) -> tuple[Version, ...]:
        """Return the new heads, ascending by id; those that are not new are read."""
        known = {version.id: version for version in new}
        kept = [head for head in head_ids if head not in known]
        if kept:
            view = self._view(key).with_all_published()
            known |= view.versions(kept, Budget())
        return tuple(known[head] for head in sorted(head_ids))

    def _view(self, key: EntityKey) -> UnitView:
        budget = Budget()
        return read_view(self._group.connection, self._unit, key, value_bytes=budget.value_bytes)

    def _replace(self, row: bulk.Row, entity: StagedEntity) -> None:
        """Replace the heads of an entity where it takes more than one row."""
        cursor, scope_id, entity_id, commit = row
        connection = self._group.connection
        state = heads.ABSENT
        if entity.entity_id is not None:
            state = heads.read_state(connection, scope_id, commit)
        heads.Replacement(
            connection=connection,
            commit=commit,
            state=state,
            scope_id=scope_id,
            entity_id=entity_id,
            cursor=cursor,
        ).carry_out()

    def _commit(
        self,
        key: EntityKey,
        entity: StagedEntity,
        new: tuple[Version, ...],
        head_versions: tuple[VersionId, ...],
        kind: ChangeKind,
    ) -> Commit:
        return Commit(
            key=key,
            expected_heads=(),
            new_versions=new,
            head_versions=head_versions,
            accepted=head_versions[0],
            kind=kind,
            causal_token=CausalToken(entity.token),
            event_meta_json=entity.event_meta,
            recorded_at_unix_ms=self._recorded_at,
        )


def _read_versions(
    connection: Connection, unit: Unit
) -> dict[tuple[str, str], list[StagedVersion]]:
    """Return what `unit` has staged of each entity, in order."""
    versions: dict[tuple[str, str], list[StagedVersion]] = {}
    for row in connection.execute(STAGED_VERSIONS, (unit.unit_id,)).fetchall():
        staged = StagedVersion(row[2], version_of(row[4:]), row[3])
        versions.setdefault((row[0], row[1]), []).append(staged)
    for several in versions.values():
        if len(several) > 1:
            several.sort(key=lambda staged: staged.ordinal)
    return versions


def _conflict(connection: Connection, unit: Unit, entity: StagedEntity) -> UnitConflict | None:
    """Return how an entity drifted, None if its heads are those of the baseline all the same."""
    key = EntityKey(unit.scope, entity.type, entity.id)
    budget = Budget()
    inside = read_view(connection, unit, key, value_bytes=budget.value_bytes)
    before = inside.without_staged()
    baseline_heads = before.head_ids()
    published = before.with_all_published().heads(budget)
    if baseline_heads == frozenset(ids(published)):
        return None
    staged = inside.heads(budget)
    since = connection.execute(SUPERSEDED_SINCE, (entity.entity_id, unit.baseline))
    own = connection.execute(STAGED_IDS, (unit.unit_id, entity.type, entity.id))
    replaced = {VersionId(row[0]) for row in since}
    replaced |= (baseline_heads | {VersionId(row[0]) for row in own}) - set(ids(staged))
    superseded = frozenset(replaced)
    active = active_ids(surviving_heads(staged, published, superseded))
    divergence = None
    if len(active) > 1:
        divergence = inside.with_all_published().divergence(active, budget)
    return UnitConflict(
        key=key,
        baseline_heads=tuple(sorted(baseline_heads)),
        staged_heads=staged,
        published_heads=published,
        superseded=superseded,
        conflict_policy_json=entity.conflict_policy,
        is_closing=bool(entity.is_closing),
        divergence=divergence,
    )


def _drifted(unit: Unit, conflicts: tuple[UnitConflict, ...]) -> Drifted:
    return Drifted(conflicts=conflicts, sealed_by=unit.sealed_by or "")


def _answers(resolutions: Sequence[Resolution], conflicts: Sequence[UnitConflict]) -> bool:
    """Return whether there is exactly one resolution for each conflict, made from its heads."""
    by_key = {resolution.key: resolution for resolution in resolutions}
    if len(resolutions) != len(conflicts) or set(by_key) != {c.key for c in conflicts}:
        return False
    return all(
        set(by_key[c.key].expected_published_heads) == set(ids(c.published_heads))
        and set(by_key[c.key].expected_staged_heads) == set(ids(c.staged_heads))
        for c in conflicts
    )


def _require_consistent(
    connection: Connection, unit: Unit, resolutions: Sequence[Resolution]
) -> None:
    """Return if the resolutions contradict neither themselves nor the store.

    Raises:
        MisuseError: One does.
    """
    tokens: set[CausalToken] = set()
    for resolution in resolutions:
        heads.require_consistent(resolution)
        view = read_view(connection, unit, resolution.key, value_bytes=-1).with_all_published()
        present = view.head_ids() | view.without_staged().head_ids()
        view.require_known(resolution.new_versions, resolution.head_versions, present)
        token = resolution.causal_token
        if token is not None:
            if token in tokens or token_is_used(connection, token):
                raise misuse("the causal token was used before")
            tokens.add(token)
