"""What the model removes: whatever is past its retention and not needed by anything that stays.

A function here says what could go at a moment; `step` takes some of it out of the tables, a copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from patchouli.provider import Compaction, CompactionPlan, GraphNode, walk
from patchouli.provider_conformance.builders import ORIGIN
from patchouli.provider_conformance.tables import View

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import ControlKey, Cursor, EntityKey, Retention, ScopeText, VersionId
    from patchouli.provider_conformance.tables import Publication, Tables

BEFORE_EVERYTHING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Horizons:
    """What happened before these times is past its retention."""

    now_unix_ms: int
    changes_unix_ms: int
    history_unix_ms: int


def horizons(retention: Retention, now_unix_ms: int) -> Horizons:
    """Return the horizons at a moment; history that is kept for 0 seconds is kept for ever."""
    history_ms = retention.history_seconds * 1000
    return Horizons(
        now_unix_ms=now_unix_ms,
        changes_unix_ms=now_unix_ms - retention.changes_seconds * 1000,
        history_unix_ms=now_unix_ms - history_ms if history_ms else BEFORE_EVERYTHING,
    )


def step(tables: Tables, plan: CompactionPlan, at: Horizons) -> Compaction:
    """Remove at most `plan.limit` things: changes, then records, units and versions."""
    changes = aged_changes(tables, at)[: plan.limit]
    for entry in changes:
        tables.log[entry.change.cursor - 1] = replace(entry, is_pruned=True)
    room = plan.limit - len(changes)
    records = expired_records(tables, at)[:room]
    for identity in records:
        del tables.records[identity]
    room -= len(records)
    units = old_units(tables, at)[:room]
    for identity in units:
        del tables.units[identity]
    room -= len(units)
    versions = unneeded_versions(tables, at)[:room]
    for place in versions:
        del tables.versions[place]
    due = count_due(tables, at)
    return Compaction(
        changes=len(changes),
        idempotency_records=len(records),
        units=len(units),
        versions=len(versions),
        is_more_due=due > 0,
        due=due if plan.with_due else None,
    )


def count_due(tables: Tables, at: Horizons) -> int:
    """Return how many things could go."""
    return (
        len(aged_changes(tables, at))
        + len(expired_records(tables, at))
        + len(old_units(tables, at))
        + len(unneeded_versions(tables, at))
    )


def aged_changes(tables: Tables, at: Horizons) -> list[Publication]:
    """Return the changes that were recorded too long ago."""
    return [
        entry
        for entry in tables.log
        if not entry.is_pruned and entry.change.recorded_at_unix_ms < at.changes_unix_ms
    ]


def expired_records(tables: Tables, at: Horizons) -> list[ControlKey]:
    """Return the published records that have expired; staged ones go with their unit."""
    return [
        identity
        for identity, stored in tables.records.items()
        if stored.unit is None and stored.record.expires_at_unix_ms <= at.now_unix_ms
    ]


def old_units(tables: Tables, at: Horizons) -> list[ControlKey]:
    """Return the units that finished before the horizon of history."""
    return [
        identity
        for identity, unit in tables.units.items()
        if unit.finished_at_unix_ms is not None and unit.finished_at_unix_ms < at.history_unix_ms
    ]


def unneeded_versions(tables: Tables, at: Horizons) -> list[tuple[EntityKey, VersionId]]:
    """Return the published versions that nothing needs any more."""
    needed = {
        (key, version_id)
        for key in dict.fromkeys(key for key, _ in tables.versions)
        for version_id in needed_versions(tables, key, at)
    }
    return [
        place
        for place, stored in tables.versions.items()
        if stored.cursor is not None and place not in needed
    ]


def needed_versions(tables: Tables, key: EntityKey, at: Horizons) -> set[VersionId]:
    """Return the versions of `key` that stay: those with a reason of their own, and between them.

    What lies between them is what the walk from all of them meets, so that the walk from any few
    of them finds the same as before.
    """
    reasons = kept_for_themselves(tables, key, at)

    def find(wanted: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
        found = {v: tables.versions[key, v] for v in wanted if (key, v) in tables.versions}
        return {v: tables.node(stored) for v, stored in found.items()}

    _, walked = walk(sorted(reasons), find, limit=len(tables.versions))
    return reasons | {node.id for node in walked}


def kept_for_themselves(tables: Tables, key: EntityKey, at: Horizons) -> set[VersionId]:
    """Return the heads of `key`, and what a reader, a subscriber or a work unit may still name."""
    unfinished = [
        unit
        for unit in tables.units.values()
        if unit.unit.scope == key.scope and unit.state in ("open", "closing")
    ]
    through = min([pruned_through(tables, key.scope, at), *(unit.baseline for unit in unfinished)])
    heads = View(tables, key.scope, tables.frontier(key.scope)).head_ids(key)
    kept = set(heads)
    for (owner, version_id), stored in tables.versions.items():
        if owner != key:
            continue
        if stored.cursor is None:
            kept |= {version_id, *stored.version.parents}
        elif version_id not in kept:
            end = superseded_by(tables, key, version_id, stored.cursor).change
            if end.recorded_at_unix_ms >= at.history_unix_ms or end.cursor > through:
                kept.add(version_id)
    return {version_id for version_id in kept if (key, version_id) in tables.versions}


def superseded_by(
    tables: Tables, key: EntityKey, version_id: VersionId, published: Cursor
) -> Publication:
    """Return the publication since which `version_id`, which is no head, is none."""
    return next(
        entry
        for entry in tables.log
        if entry.key == key
        and entry.change.cursor >= published
        and version_id not in entry.change.head_versions
    )


def pruned_through(tables: Tables, scope: ScopeText, at: Horizons) -> Cursor:
    """Return the greatest cursor of `scope` that is pruned or could be."""
    return max(
        (
            entry.change.cursor
            for entry in tables.log
            if entry.key.scope == scope
            and (entry.is_pruned or entry.change.recorded_at_unix_ms < at.changes_unix_ms)
        ),
        default=ORIGIN,
    )
