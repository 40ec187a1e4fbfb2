"""What commits and publications do to the tables of the model.

A function here changes the tables that it is given, which are a copy, and returns the outcome. The
caller keeps the copy or, after an exception, drops it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from patchouli.provider import (
    INTEGER_MAX,
    Change,
    ChangeKind,
    Commit,
    CommitOutcome,
    Committed,
    Cursor,
    DeadlineExceededError,
    Discarded,
    Drifted,
    EntityKey,
    IdempotencyRecord,
    IdentityTaken,
    MisuseError,
    Publish,
    Published,
    PublishedEntity,
    PublishOutcome,
    Raced,
    Replayed,
    Resolution,
    Staged,
    UnitConflict,
    UnitRefused,
    UnitStaging,
    UnitState,
    Version,
    VersionId,
    VersionState,
    WorkUnit,
    change_kind,
    surviving_heads,
)
from patchouli.provider_conformance.tables import (
    Publication,
    StagedEntity,
    StoredRecord,
    StoredUnit,
    Tables,
    View,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from patchouli.provider import CausalToken


def require_in_time(deadline_unix_ms: int | None, now_unix_ms: int, operation: str) -> None:
    """Return if the deadline has not passed.

    Raises:
        DeadlineExceededError: It has.
    """
    if deadline_unix_ms is not None and now_unix_ms >= deadline_unix_ms:
        raise DeadlineExceededError("model", operation, "the deadline has passed")


def commit_now(tables: Tables, commit: Commit, now_unix_ms: int) -> CommitOutcome:
    """Publish one entity immediately."""
    scope = commit.key.scope
    require_shape(commit.new_versions, commit.head_versions, commit.recorded_at_unix_ms)
    require(len(commit.new_versions) > 0, "there is no new version")
    if commit.idempotency is not None and (known := lookup(tables, commit.idempotency, None)):
        return known
    view = View(tables, scope, tables.frontier(scope))
    if set(view.head_ids(commit.key)) != set(commit.expected_heads):
        return raced(view, commit)
    require_consistent(view, commit.key, commit.new_versions, commit.head_versions, ())
    require_fresh_token(tables, commit.causal_token)
    cursor = tables.next_cursor()
    tables.add(commit.key, commit.new_versions, cursor=cursor)
    append(tables, commit.key, commit.kind, commit.head_versions, commit)
    tables.tokens[commit.causal_token] = (scope, cursor)
    tables.advance_write(scope, commit.write_sessions, cursor)
    if commit.idempotency is not None:
        tables.records[commit.idempotency.identity] = StoredRecord(
            record=commit.idempotency, unit=None
        )
    require_in_time(commit.deadline_unix_ms, now_unix_ms, "commit")
    return Committed(cursor=cursor)


def enter(tables: Tables, named: WorkUnit, now_unix_ms: int) -> StoredUnit | UnitRefused:
    """Open the named unit if it is absent, expire it if it is overdue, and return it.

    Raises:
        MisuseError: The unit would be overdue as it opens.
    """
    unit = tables.units.get(named.identity)
    if unit is None:
        if named.expires_at_unix_ms <= named.now_unix_ms:
            raise MisuseError("model", "enter", "the unit would be overdue as it opens")
        unit = StoredUnit(unit=named, baseline=tables.frontier(named.scope))
        tables.units[named.identity] = unit
        return unit
    if (unit.unit.scope, unit.unit.policy_json) != (named.scope, named.policy_json):
        return UnitRefused(state=UnitState.POLICY_MISMATCH)
    if unit.is_overdue(named.now_unix_ms):
        unit = tables.expire(unit, now_unix_ms)
    return UnitRefused(state=UnitState.EXPIRED) if unit.state == "expired" else unit


def stage(tables: Tables, commit: Commit, staging: UnitStaging, now_unix_ms: int) -> CommitOutcome:
    """Stage a commit in its unit, and publish or seal the unit if it closes it."""
    require_shape(commit.new_versions, commit.head_versions, commit.recorded_at_unix_ms)
    if not commit.new_versions:
        keeps_heads = set(commit.head_versions) == set(commit.expected_heads)
        require(staging.close and keeps_heads, "there is no new version")
        require(commit.idempotency is not None, "it does not say which mutation it repeats")
    unit = enter(tables, staging.unit, now_unix_ms)
    if isinstance(unit, UnitRefused):
        return unit
    known = lookup(tables, commit.idempotency, unit) if commit.idempotency else None
    is_staged_here = isinstance(known, Replayed) and known.is_staged
    if known is not None and not (staging.close and is_staged_here):
        return known
    if unit.state == "committed":
        return UnitRefused(state=UnitState.COMMITTED)
    if unit.state == "closing":
        if not staging.close:
            return UnitRefused(state=UnitState.CLOSING)
        return close(tables, unit, commit, now_unix_ms)
    if known is not None and commit.new_versions:
        return known
    view = View(tables, commit.key.scope, unit.baseline, unit)
    repeats = is_staged_here and commit.key in unit.entities
    require(bool(commit.new_versions) or repeats, "what it repeats is not staged here")
    if set(view.head_ids(commit.key)) != set(commit.expected_heads):
        return raced(view, commit)
    if commit.new_versions:
        unit = staged(tables, unit, commit, staging)
    if staging.close:
        unit = sealed(tables, unit, commit, staging)
        return close(tables, unit, commit, now_unix_ms)
    require_in_time(commit.deadline_unix_ms, now_unix_ms, "commit")
    return Staged()


def staged(tables: Tables, unit: StoredUnit, commit: Commit, staging: UnitStaging) -> StoredUnit:
    """Add the versions of `commit` to `unit`, and its record."""
    view = View(tables, commit.key.scope, unit.baseline, unit)
    require_consistent(view, commit.key, commit.new_versions, commit.head_versions, ())
    require_fresh_token(tables, commit.causal_token)
    tables.add(commit.key, commit.new_versions, unit=unit.unit.identity)
    if commit.idempotency is not None:
        tables.records[commit.idempotency.identity] = StoredRecord(
            record=commit.idempotency, unit=unit.unit.identity
        )
    earlier = unit.entities.get(commit.key)
    is_held = earlier is not None and earlier.holds_policy
    entity = StagedEntity(
        heads=commit.head_versions,
        conflict_policy_json=earlier.conflict_policy_json
        if earlier is not None and is_held and not staging.holds_policy
        else staging.conflict_policy_json,
        holds_policy=is_held or staging.holds_policy,
        causal_token=commit.causal_token,
        event_meta_json=commit.event_meta_json,
        write_sessions=commit.write_sessions,
        is_closing=earlier is not None and earlier.is_closing,
    )
    unit = replace(
        unit,
        entities={**unit.entities, commit.key: entity},
        tokens=(*unit.tokens, (commit.causal_token, commit.key)),
    )
    tables.units[unit.unit.identity] = unit
    return unit


def sealed(tables: Tables, unit: StoredUnit, commit: Commit, staging: UnitStaging) -> StoredUnit:
    """Seal `unit`, and mark the entity that closes it."""
    entity = replace(unit.entities[commit.key], is_closing=True)
    unit = replace(
        unit,
        entities={**unit.entities, commit.key: entity},
        state="closing",
        sealed_by=staging.request_json,
        accepted=commit.accepted,
    )
    tables.units[unit.unit.identity] = unit
    return unit


def close(
    tables: Tables, unit: StoredUnit, commit: Commit, now_unix_ms: int
) -> Published | Drifted:
    """Publish a sealed unit that has not drifted, or say what has."""
    conflicts = drift(tables, unit)
    outcome = (
        Drifted(conflicts=conflicts, sealed_by=unit.sealed_by)
        if conflicts
        else publish_unit(tables, unit, commit.recorded_at_unix_ms, now_unix_ms)
    )
    require_in_time(commit.deadline_unix_ms, now_unix_ms, "commit")
    return outcome


def publish(tables: Tables, plan: Publish, now_unix_ms: int) -> PublishOutcome:
    """Publish a sealed unit with resolutions of its drift, or discard it."""
    if plan.unit.identity not in tables.units:
        raise MisuseError("model", "publish", "the unit is not sealed")
    unit = enter(tables, plan.unit, now_unix_ms)
    if isinstance(unit, UnitRefused):
        return unit
    if unit.state == "committed":
        return UnitRefused(state=UnitState.COMMITTED)
    if unit.state == "open":
        raise MisuseError("model", "publish", "the unit is not sealed")
    if plan.discard:
        tables.expire(unit, now_unix_ms)
        require_in_time(plan.deadline_unix_ms, now_unix_ms, "publish")
        return Discarded()
    conflicts = drift(tables, unit)
    if not answers(plan.resolutions, conflicts):
        return Drifted(conflicts=conflicts, sealed_by=unit.sealed_by)
    for resolution in plan.resolutions:
        unit = resolved(tables, unit, resolution)
    for identity, result_json in plan.results:
        known = tables.records.get(identity)
        if known is not None and known.unit == unit.unit.identity:
            record = replace(known.record, result_json=result_json)
            tables.records[identity] = replace(known, record=record)
    outcome = publish_unit(tables, unit, plan.recorded_at_unix_ms, now_unix_ms)
    require_in_time(plan.deadline_unix_ms, now_unix_ms, "publish")
    return outcome


def drift(tables: Tables, unit: StoredUnit) -> tuple[UnitConflict, ...]:
    """Return the mutated entities whose published heads are not those of the baseline."""
    scope = unit.unit.scope
    before, now = View(tables, scope, unit.baseline), View(tables, scope, tables.frontier(scope))
    inside = View(tables, scope, unit.baseline, unit)
    together = View(tables, scope, tables.frontier(scope), unit)

    def conflict(key: EntityKey) -> UnitConflict:
        staged_heads, published_heads = inside.heads(key), now.heads(key)
        replaced = superseded(tables, unit, key)
        surviving = surviving_heads(staged_heads, published_heads, replaced)
        active = [head.id for head in surviving if head.state is VersionState.ACTIVE]
        return UnitConflict(
            key=key,
            baseline_heads=before.head_ids(key),
            staged_heads=staged_heads,
            published_heads=published_heads,
            superseded=replaced,
            conflict_policy_json=unit.entities[key].conflict_policy_json,
            is_closing=unit.entities[key].is_closing,
            divergence=together.walked(key, active) if len(active) > 1 else None,
        )

    return tuple(
        conflict(key)
        for key in in_publication_order(unit)
        if set(before.head_ids(key)) != set(now.head_ids(key))
    )


def superseded(tables: Tables, unit: StoredUnit, key: EntityKey) -> frozenset[VersionId]:
    """Return the versions that were heads on either side since the baseline and no longer are."""
    scope = unit.unit.scope
    outside = set(View(tables, scope, unit.baseline).head_ids(key))
    for entry in tables.log:
        if entry.key == key and entry.change.cursor > unit.baseline:
            outside.update(entry.change.head_versions)
    inside = set(View(tables, scope, unit.baseline).head_ids(key))
    inside.update(
        version_id
        for (owner, version_id), stored in tables.versions.items()
        if owner == key and stored.unit == unit.unit.identity
    )
    published = set(View(tables, scope, tables.frontier(scope)).head_ids(key))
    return frozenset((outside - published) | (inside - set(unit.entities[key].heads)))


def answers(resolutions: tuple[Resolution, ...], conflicts: tuple[UnitConflict, ...]) -> bool:
    """Return whether there is exactly one resolution for each conflict, made from its heads."""
    by_key = {resolution.key: resolution for resolution in resolutions}
    if len(resolutions) != len(conflicts) or set(by_key) != {c.key for c in conflicts}:
        return False
    return all(
        set(by_key[c.key].expected_published_heads) == {h.id for h in c.published_heads}
        and set(by_key[c.key].expected_staged_heads) == {h.id for h in c.staged_heads}
        for c in conflicts
    )


def resolved(tables: Tables, unit: StoredUnit, resolution: Resolution) -> StoredUnit:
    """Replace the staged heads of one drifted entity."""
    key, scope = resolution.key, unit.unit.scope
    now = View(tables, scope, tables.frontier(scope), unit)
    require_shape(resolution.new_versions, resolution.head_versions, 0)
    present = now.published_heads(key)
    require_consistent(now, key, resolution.new_versions, resolution.head_versions, present)
    tables.add(key, resolution.new_versions, unit=unit.unit.identity)
    entity = replace(unit.entities[key], heads=resolution.head_versions)
    unit = replace(unit, entities={**unit.entities, key: entity})
    if resolution.causal_token is not None:
        require_fresh_token(tables, resolution.causal_token)
        unit = replace(unit, tokens=(*unit.tokens, (resolution.causal_token, key)))
        tables.units[unit.unit.identity] = unit
    return unit


def publish_unit(
    tables: Tables, unit: StoredUnit, recorded_at_unix_ms: int, now_unix_ms: int
) -> Published:
    """Make everything that `unit` has staged visible, one change an entity."""
    scope, identity = unit.unit.scope, unit.unit.identity
    published: list[PublishedEntity] = []
    for key in in_publication_order(unit):
        entity = unit.entities[key]
        previous = View(tables, scope, tables.frontier(scope)).head_ids(key)
        heads = View(tables, scope, unit.baseline, unit).heads(key)
        is_single_tombstone = [head.state for head in heads] == [VersionState.DELETED]
        kind = change_kind(
            previous_heads=len(previous),
            new_heads=len(heads),
            is_single_tombstone=is_single_tombstone,
        )
        cursor = tables.next_cursor()
        change = Change(
            cursor=cursor,
            type=key.type,
            id=key.id,
            kind=kind,
            head_versions=tuple(head.id for head in heads),
            causal_token=entity.causal_token,
            event_meta_json=entity.event_meta_json,
            recorded_at_unix_ms=recorded_at_unix_ms,
        )
        tables.publish_staged(key, identity, cursor)
        is_hidden = not previous and is_single_tombstone
        tables.log.append(Publication(key=key, change=change, hidden=is_hidden))
        tables.tokens |= {token: (scope, cursor) for token, owner in unit.tokens if owner == key}
        tables.advance_write(scope, entity.write_sessions, cursor)
        published.append(PublishedEntity(key=key, cursor=cursor, heads=heads))
    for record_identity, stored in list(tables.records.items()):
        if stored.unit == identity:
            if stored.record.expires_at_unix_ms <= recorded_at_unix_ms:
                del tables.records[record_identity]
            else:
                tables.records[record_identity] = replace(stored, unit=None)
    tables.units[identity] = replace(unit, state="committed", finished_at_unix_ms=now_unix_ms)
    return Published(entities=tuple(published), sealed_by=unit.sealed_by, accepted=unit.accepted)


def in_publication_order(unit: StoredUnit) -> list[EntityKey]:
    """Return the mutated entities of `unit`: those of closing mutations last, else by type, id."""
    return sorted(unit.entities, key=lambda key: (unit.entities[key].is_closing, key.type, key.id))


def append(
    tables: Tables,
    key: EntityKey,
    kind: ChangeKind,
    head_versions: tuple[VersionId, ...],
    commit: Commit,
) -> None:
    """Append the change of an immediate commit to the log."""
    change = Change(
        cursor=Cursor(tables.next_cursor()),
        type=key.type,
        id=key.id,
        kind=kind,
        head_versions=head_versions,
        causal_token=commit.causal_token,
        event_meta_json=commit.event_meta_json,
        recorded_at_unix_ms=commit.recorded_at_unix_ms,
    )
    tables.log.append(Publication(key=key, change=change))


def raced(view: View, commit: Commit) -> Raced:
    """Return what another attempt at `commit` needs."""
    bases = view.bases(commit.key, commit.base_versions)
    return Raced(
        heads=view.heads(commit.key),
        bases=bases,
        divergence=view.divergence(commit.key, bases) if commit.with_divergence else None,
    )


def lookup(
    tables: Tables, record: IdempotencyRecord, unit: StoredUnit | None
) -> Replayed | IdentityTaken | None:
    """Return what is known under the identity of `record`, None if it is free."""
    return tables.record_of(record.identity, record.request_json, record.now_unix_ms, unit)


def require_shape(
    new_versions: tuple[Version, ...], head_versions: tuple[VersionId, ...], recorded_at: int
) -> None:
    """Return if a mutation is well formed whatever the store holds.

    Raises:
        MisuseError: It is not.
    """
    ids = [version.id for version in new_versions]
    require(len(head_versions) > 0, "there is no head")
    require(len(set(head_versions)) == len(head_versions), "a head is repeated")
    require(len(set(ids)) == len(ids), "a new version is repeated")
    for version in new_versions:
        is_active = version.state is VersionState.ACTIVE
        require(is_active == (version.value_json is not None), "value and state disagree")
        require(version.value_json is None or is_json(version.value_json), "no JSON")
        require(0 <= version.recorded_at_unix_ms <= INTEGER_MAX, "a time is out of range")
    require(0 <= recorded_at <= INTEGER_MAX, "a time is out of range")


def require_consistent(
    view: View,
    key: EntityKey,
    new_versions: tuple[Version, ...],
    head_versions: Iterable[VersionId],
    further_heads: Container[VersionId],
) -> None:
    """Return if a mutation fits what the view holds of the entity.

    Raises:
        MisuseError: A head or a parent does not exist, or a new version does.
    """
    present = view.head_ids(key)
    new = {version.id for version in new_versions}
    earlier: set[VersionId] = set()
    for version in new_versions:
        require((key, version.id) not in view.tables.versions, "a new version exists already")
        for parent in version.parents:
            is_known = parent in earlier or bool(view.find(key, [parent]))
            require(is_known, "a parent does not exist")
        earlier.add(version.id)
    for head in head_versions:
        require(head in new or head in present or head in further_heads, "a head does not exist")


def require_fresh_token(tables: Tables, token: CausalToken) -> None:
    """Return if no mutation and no resolution had the causal token before.

    Raises:
        MisuseError: One had.
    """
    staged_tokens = {staged for unit in tables.units.values() for staged, _ in unit.tokens}
    is_fresh = token not in tables.tokens and token not in staged_tokens
    require(is_fresh, "the causal token was used before")


def require(holds: bool, detail: str) -> None:  # noqa: FBT001 - reads as a claim
    """Return if the claim holds.

    Raises:
        MisuseError: It does not.
    """
    if not holds:
        raise MisuseError("model", "commit", detail)


def is_json(text: str) -> bool:
    """Return whether `text` is one JSON value, without the extensions that Python reads."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True
