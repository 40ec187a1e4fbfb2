"""What is past its retention goes, in small steps between the groups of commits.

    changes      recorded before their horizon                        `changes.py`
    records      of idempotency that have ended                       `idempotency.py`
    units        that finished before the horizon of history
    versions     that were superseded before the horizon of history

A version that is past the horizon stays while something needs it: a retained change that has it as
a head, an unfinished work unit whose baseline or staged versions go back to it, or the walk between
versions that stay. Which ones can go is found out beside the writer, entity by entity, in one
snapshot each; the writer removes them if nothing has happened to the entity since (`Folding`).

*Time.* A step is one transaction. It removes no more than took `step_milliseconds` the last times,
and is synced like a group of commits: frames in the log that nobody syncs would be a gap before the
next group, should the disk fail then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import GraphNode, VersionId, walk
from patchouli.provider_sqlite import changes, idempotency
from patchouli.provider_sqlite.codec import ids_of, within
from patchouli.provider_sqlite.connection import transaction
from patchouli.provider_sqlite.units import expire_overdue

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from patchouli.provider import Clock, Retention
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.limits import SqliteLimits

# Superseded before the horizon, the oldest first; each entity that is met is looked at as a whole.
CANDIDATES: Final = """
SELECT superseded_at, entity_id FROM version INDEXED BY version_age
WHERE superseded_at < ?1 AND (superseded_at, entity_id) > (?2, ?3)
ORDER BY superseded_at, entity_id LIMIT 200
"""
ENTITY: Final = """
SELECT e.scope_id, e.type, e.id, e.changed_cursor, s.pruned_through,
       e.version, e.parents, e.published_cursor, e.ordinal
FROM entity e CROSS JOIN scope s ON s.scope_id = e.scope_id WHERE e.entity_id = ?
"""
VERSIONS: Final = """
SELECT version_row, version, ifnull(octet_length(value), 0),
       parents, published_cursor, ordinal, superseded_cursor, superseded_at
FROM version WHERE entity_id = ?
"""
BASELINE: Final = """
SELECT min(baseline_cursor) FROM work_unit INDEXED BY work_unit_expiry
WHERE state IN ('open', 'sealed') AND scope_id = ?
"""
STAGED: Final = """
SELECT w.version, w.parents, w.ordinal
FROM work_unit u INDEXED BY work_unit_expiry
CROSS JOIN work_unit_version w ON w.unit_id = u.unit_id AND w.type = ?2 AND w.id = ?3
WHERE u.state IN ('open', 'sealed') AND u.scope_id = ?1 ORDER BY w.unit_id, w.ordinal
"""
CHANGED: Final = "SELECT changed_cursor FROM entity WHERE entity_id = ?"
FORGET: Final = "DELETE FROM version WHERE version_row IN (SELECT value FROM json_each(?))"
NOTE_HORIZON: Final = "UPDATE runtime SET folded_before = max(folded_before, ?)"
FORGET_UNITS: Final = """
DELETE FROM work_unit WHERE unit_id IN (
    SELECT unit_id FROM work_unit INDEXED BY work_unit_end
    WHERE closed_at < ? ORDER BY closed_at LIMIT ?)
"""
AGED_BEYOND: Final = """
SELECT EXISTS (SELECT 1 FROM change INDEXED BY change_age WHERE recorded_at < ?1 AND cursor > ?2)
"""
DUE: Final = """
SELECT (SELECT count(*) FROM change INDEXED BY change_age WHERE recorded_at < ?1)
    + (SELECT count(*) FROM idempotency INDEXED BY idempotency_expiry
       WHERE unit_id IS NULL AND expires_at <= ?2)
    + (SELECT count(*) FROM work_unit INDEXED BY work_unit_end WHERE closed_at < ?3)
    + (SELECT count(*) FROM version INDEXED BY version_age WHERE superseded_at < ?3)
"""

STAGED_LAST: Final = 1 << 62  # the place of what is staged in the order of publication
LOOKED_AT_ONCE: Final = 32  # entities between two looks whether the store stops
LEAST_STEP: Final = 4
FIRST: Final = (-1, 0)  # before every candidate
ENTITIES_REMEMBERED: Final = 100_000
VERSIONS_BETWEEN_PAUSES: Final = 256
PAUSE_SECONDS: Final = 0.0005
# A clock that is set back by less than this finds the records that had ended by then.
RECORD_GRACE_MS: Final = 60_000


class Freed(NamedTuple):
    """How much a step removed; `has_more` says that some of it was left for the next one."""

    changes: int = 0
    records: int = 0
    units: int = 0
    swept: int = 0
    has_more: bool = False

    @property
    def total(self) -> int:
        """Everything that a compaction counts."""
        return self.changes + self.records + self.units


@dataclass(frozen=True, slots=True)
class Horizons:
    """What happened before these times is past its retention; history may have no horizon."""

    now: int
    changes: int
    history: int


class Unneeded(NamedTuple):
    """A version that can go: where it lies, its id, and the bytes of its value."""

    row: int
    version: VersionId
    value_bytes: int


@dataclass(frozen=True, slots=True)
class Folding:
    """Versions of an entity that nothing needs, as long as `changed` and `staged` are the same."""

    entity_id: int
    scope_id: int
    type: str
    id: str
    changed: int
    staged: tuple[str, ...]
    versions: tuple[Unneeded, ...]

    def is_valid(self, connection: Connection) -> bool:
        """Return whether the entity is what it was as this was found out."""
        staged = connection.execute(STAGED, (self.scope_id, self.type, self.id))
        return (
            connection.execute(CHANGED, (self.entity_id,)).get == self.changed
            and tuple(row[0] for row in staged) == self.staged
        )


class Pace:
    """How many things a step may remove, from how long the last ones took."""

    def __init__(self, clock: Clock, *, most: int, seconds: float) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self.size = min(most, 64)

    @contextmanager
    def measured(self, number: int) -> Generator[None]:
        """Learn from a step that tries to remove `number` things."""
        started = self._clock.monotonic()
        yield
        taken = self._clock.monotonic() - started
        if taken > self._seconds:
            self.size = max(min(LEAST_STEP, self._most), int(number * self._seconds / taken))
        elif number >= self.size:
            self.size = min(self._most, 2 * self.size)


class Compactor:
    """The compaction of one store.

    `remove_aged` and `remove` run on the writer's thread, `find` on any other one.
    """

    def __init__(self, retention: Retention, *, clock: Clock, limits: SqliteLimits) -> None:
        self._retention = retention
        self._clock = clock
        self._limits = limits
        seconds = limits.step_milliseconds / 1000
        self._aged = Pace(clock, most=limits.prune_step, seconds=seconds)
        self._versions = Pace(clock, most=limits.prune_step, seconds=seconds)
        self._removals = 0  # counted by the writer
        self._rests: deque[Folding] = deque()  # of which a step left some
        self._looking = threading.Lock()
        # All below is read and written under this lock, which the writer never takes.
        self._place = FIRST
        self._candidates: list[tuple[int, int]] = []
        self._looked_at: set[int] = set()
        self._removals_before = 0

    def horizons(self) -> Horizons:
        """Return the horizons of now; -1 where nothing is ever past one."""
        now, history = self._clock.unix_ms(), self._retention.history_seconds
        return Horizons(
            now=now,
            changes=max(0, now - self._retention.changes_seconds * 1000),
            history=max(-1, now - history * 1000) if history else -1,
        )

    def remove_aged(
        self, connection: Connection, *, through: int, limit: int, grace_ms: int = 0
    ) -> Freed:
        """Expire overdue units and remove what is past its age, about `limit` things at most.

        Changes beyond the cursor `through` stay, whatever their age, and records that ended less
        than `grace_ms` ago.
        """
        at = self.horizons()
        limit = min(limit, self._aged.size)
        limit_bytes = self._limits.step_bytes
        with transaction(connection), self._aged.measured(limit):
            swept = expire_overdue(connection, now_unix_ms=at.now)
            pruned, has_long_changes = changes.prune(
                connection,
                recorded_before_unix_ms=at.changes,
                through=through,
                limit=limit,
                limit_bytes=limit_bytes,
            )
            records, has_long_records = idempotency.purge(
                connection,
                ended_by_unix_ms=at.now - grace_ms,
                limit=limit - pruned,
                limit_bytes=limit_bytes,
            )
            units = _forget_units(connection, before=at.history, limit=limit - pruned - records)
        is_cut_off = has_long_changes or has_long_records
        freed = Freed(
            changes=pruned,
            records=records,
            units=units,
            swept=swept,
            has_more=is_cut_off or swept > 0 or pruned + records + units == limit,
        )
        if freed.swept or freed.changes or freed.units:
            self._removals += 1  # versions may have become free
        return freed

    def find(self, connection: Connection) -> tuple[Folding | None, bool]:
        """Return versions that can go, and whether to ask again.

        When a pass has come to its end, another one is worth it if something was removed meanwhile.
        """
        horizon = self.horizons().history
        with self._looking:
            for _ in range(LOOKED_AT_ONCE):
                if self._rests:
                    return self._rests.popleft(), True
                entity_id = self._next_entity(connection, horizon)
                if entity_id is None:
                    before, self._removals_before = self._removals_before, self._removals
                    return None, before != self._removals_before
                found = _find_in(connection, entity_id, horizon)
                if found is not None:
                    return found, True
        return None, True

    def remove(self, connection: Connection, folding: Folding, *, limit: int) -> list[VersionId]:
        """Remove at most `limit` of the found versions, none if their entity has changed."""
        most = min(limit, self._versions.size)
        sizes = [version.value_bytes for version in folding.versions[:most]]
        number = within(sizes, most=most, most_bytes=self._limits.step_bytes)
        gone, left = folding.versions[:number], folding.versions[number:]
        with transaction(connection), self._versions.measured(number):
            is_valid = folding.is_valid(connection)
            if is_valid:
                connection.execute(FORGET, (f"[{','.join(str(one.row) for one in gone)}]",))
                connection.execute(NOTE_HORIZON, (self.horizons().history,))
        self._removals += 1
        if is_valid and left:
            self._rests.append(replace(folding, versions=left))
        return [one.version for one in gone] if is_valid else []

    def has_aged_beyond(self, connection: Connection, cursor: int) -> bool:
        """Return whether a change beyond `cursor` is past its age."""
        return bool(connection.execute(AGED_BEYOND, (self.horizons().changes, cursor)).get)

    def count_due(self, connection: Connection) -> int:
        """Return how much is past its horizon, with what will have to stay."""
        at = self.horizons()
        return connection.execute(DUE, (at.changes, at.now, at.history)).get

    def _next_entity(self, connection: Connection, horizon: int) -> int | None:
        """Return the next entity that has a candidate and was not looked at in this pass."""
        while True:
            while self._candidates:
                self._place = self._candidates.pop()
                entity_id = self._place[1]
                if entity_id not in self._looked_at:
                    if len(self._looked_at) >= ENTITIES_REMEMBERED:
                        self._looked_at.clear()  # to be looked at twice does no harm
                    self._looked_at.add(entity_id)
                    return entity_id
            self._candidates = connection.execute(CANDIDATES, (horizon, *self._place)).fetchall()
            self._candidates.reverse()
            if not self._candidates:
                self._place = FIRST
                self._looked_at.clear()
                return None


def _forget_units(connection: Connection, *, before: int, limit: int) -> int:
    connection.execute(FORGET_UNITS, (before, limit))
    return connection.changes()


def _find_in(connection: Connection, entity_id: int, horizon: int) -> Folding | None:
    """Return the versions of an entity that can go, None if all have to stay."""
    connection.execute("BEGIN")
    try:
        entity = connection.execute(ENTITY, (entity_id,)).fetchone()
        if entity is None:
            return None
        scope_id, type_, id_, changed, pruned_through, *inline = entity
        stored = connection.execute(VERSIONS, (entity_id,)).fetchall()
        baseline: int | None = connection.execute(BASELINE, (scope_id,)).get
        staged = connection.execute(STAGED, (scope_id, type_, id_)).fetchall()
    finally:
        connection.execute("COMMIT")
    through = pruned_through if baseline is None else min(pruned_through, baseline)
    courtesy = _Courtesy()
    nodes: dict[VersionId, GraphNode] = {}
    for _, version, _, *rest, _, _ in stored:
        courtesy.give_way()
        nodes[version] = _node(version, *rest)
    if inline[0] is not None:
        nodes[inline[0]] = _node(*inline)
    reasons = {
        version
        for _, version, _, _, _, _, superseded, superseded_at in stored
        if superseded is None or superseded > through or superseded_at >= horizon
    }
    if inline[0] is not None:
        reasons.add(inline[0])
    for version, parents, ordinal in staged:
        nodes[version] = _node(version, parents, STAGED_LAST, ordinal)
        reasons.update((version, *ids_of(parents)))
    needed = _between(nodes, reasons)
    versions = tuple(Unneeded(*row[:3]) for row in stored if row[1] not in needed)
    if not versions:
        return None
    return Folding(
        entity_id=entity_id,
        scope_id=scope_id,
        type=type_,
        id=id_,
        changed=changed,
        staged=tuple(row[0] for row in staged),
        versions=versions,
    )


class _Courtesy:
    """Lets other threads have the interpreter while one entity with a long history is looked at."""

    def __init__(self) -> None:
        self._count = 0

    def give_way(self) -> None:
        """Called for each version; a thread that only computes would keep the loop waiting."""
        self._count += 1
        if self._count % VERSIONS_BETWEEN_PAUSES == 0:
            time.sleep(PAUSE_SECONDS)


def _node(version: VersionId, parents: str, cursor: int, ordinal: int) -> GraphNode:
    return GraphNode(id=version, parents=ids_of(parents), sequence=(cursor, ordinal))


def _between(nodes: Mapping[VersionId, GraphNode], reasons: Iterable[VersionId]) -> set[VersionId]:
    """Return `reasons` and what the walk from all of them meets.

    The walk from any few of them meets nothing else, so it finds what it found before.
    """
    courtesy = _Courtesy()

    def find(wanted: Sequence[VersionId]) -> dict[VersionId, GraphNode]:
        courtesy.give_way()
        return {version: nodes[version] for version in wanted if version in nodes}

    known = sorted(version for version in reasons if version in nodes)
    _, walked = walk(known, find, limit=len(nodes))
    return {*known, *(node.id for node in walked)}
