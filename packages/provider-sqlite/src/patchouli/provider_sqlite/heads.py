"""The heads of one entity: compared with the expected ones, then replaced.

Where a head lies depends on their number alone (`schema.py`): one is inline in `entity`, several
are rows of `version`. A commit therefore moves versions between the two places:

    before   after    what moves
    1        1        the old head becomes a row, superseded; the new one takes its place
    1        several  the old head becomes a row; all new ones are rows
    several  1        the superseded rows are marked; a row that stays alone moves inline
    several  several  the superseded rows are marked; new ones are rows

New versions that are no head (candidates that a derived version replaced at once) are rows that
were superseded by the change that published them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import MisuseError, VersionState
from patchouli.provider_sqlite.codec import ids_text, state_number
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from patchouli.provider import Commit, PublishedEntity, Resolution, Version
    from patchouli.provider_sqlite.connection import Connection

STATE: Final = """
SELECT entity_id, head_count, version FROM entity WHERE scope_id = ? AND type = ? AND id = ?
"""
HEAD_IDS: Final = """
SELECT version FROM version
WHERE entity_id = ? AND superseded_cursor IS NULL
"""
KNOWN: Final = """
SELECT version FROM version
WHERE entity_id = ? AND version IN (SELECT value FROM json_each(?))
"""
INSERT_SINGLE: Final = """
INSERT INTO entity (entity_id, scope_id, type, id, changed_cursor, head_count,
                    version, published_cursor, ordinal, state, parents, recorded_at, value)
VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6, ?5, ?7, ?8, ?9, ?10, ?11)
"""
INSERT_SEVERAL: Final = """
INSERT INTO entity (entity_id, scope_id, type, id, changed_cursor, head_count)
VALUES (?, ?, ?, ?, ?, ?)
"""
UPDATE_SINGLE: Final = """
UPDATE entity SET changed_cursor = ?2, head_count = 1, version = ?3, published_cursor = ?2,
    ordinal = ?4, state = ?5, parents = ?6, recorded_at = ?7, value = ?8
WHERE entity_id = ?1
"""
UPDATE_SEVERAL: Final = """
UPDATE entity SET changed_cursor = ?2, head_count = ?3, version = NULL, published_cursor = NULL,
    ordinal = NULL, state = NULL, parents = NULL, recorded_at = NULL, value = NULL
WHERE entity_id = ?1
"""
UPDATE_CURSOR: Final = "UPDATE entity SET changed_cursor = ?2 WHERE entity_id = ?1"
ROW_FROM_INLINE: Final = """
INSERT INTO version (entity_id, version, published_cursor, ordinal, superseded_cursor,
                     superseded_at, state, parents, recorded_at, value)
SELECT entity_id, version, published_cursor, ordinal, ?2, ?3, state, parents, recorded_at, value
FROM entity WHERE entity_id = ?1
"""
INLINE_FROM_ROW: Final = """
UPDATE entity SET changed_cursor = ?2, head_count = 1, version = v.version,
    published_cursor = v.published_cursor, ordinal = v.ordinal, state = v.state,
    parents = v.parents, recorded_at = v.recorded_at, value = v.value
FROM version v WHERE entity.entity_id = ?1 AND v.entity_id = ?1 AND v.version = ?3
"""
DELETE_ROW: Final = "DELETE FROM version WHERE entity_id = ? AND version = ?"
SUPERSEDE: Final = """
UPDATE version SET superseded_cursor = ?3, superseded_at = ?4
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
"""
INSERT_ROW: Final = """
INSERT INTO version (entity_id, version, published_cursor, ordinal, superseded_cursor,
                     superseded_at, state, parents, recorded_at, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


class EntityState(NamedTuple):
    """An entity as the writer finds it: its key in the tables and its present heads."""

    entity_id: int | None
    heads: frozenset[str]


ABSENT: Final = EntityState(None, frozenset())


def read_state(
    connection: Connection, scope_id: int, commit: Commit | PublishedEntity
) -> EntityState:
    """Return the present heads of the entity that `commit` is about."""
    row = connection.execute(STATE, (scope_id, commit.key.type, commit.key.id)).get
    if row is None:
        return ABSENT
    entity_id, head_count, version = row
    if head_count == 1:
        return EntityState(entity_id, frozenset((version,)))
    rows = connection.execute(HEAD_IDS, (entity_id,))
    return EntityState(entity_id, frozenset(row[0] for row in rows))


def require_consistent(commit: Commit | Resolution) -> None:
    """Return if `commit` does not contradict itself.

    Raises:
        MisuseError: No heads, a repeated head or version, a value that does not fit the state, a
            parent that comes after its child.
    """
    heads = commit.head_versions
    if not heads or len(set(heads)) != len(heads):
        raise misuse("the new heads are empty or repeated")
    later = {version.id for version in commit.new_versions}
    if len(later) != len(commit.new_versions):
        raise misuse("a new version is repeated")
    for version in commit.new_versions:
        if (version.state is VersionState.ACTIVE) != (version.value_json is not None):
            raise misuse("an active version needs a value and a deleted one has none")
        if not later.isdisjoint(version.parents):
            raise misuse("a version is older than its parent")
        later.discard(version.id)


def require_known(connection: Connection, commit: Commit, state: EntityState) -> None:
    """Return if heads and parents of `commit` exist and its new versions do not.

    Raises:
        MisuseError: A head is neither new nor present, a parent is unknown, a version is repeated.
    """
    new = {version.id for version in commit.new_versions}
    if not new.isdisjoint(state.heads):
        raise misuse("a new version exists already")
    if not state.heads.union(new).issuperset(commit.head_versions):
        raise misuse("a head is neither a new version nor a present head")
    parents = {parent for version in commit.new_versions for parent in version.parents}
    older = parents - new - state.heads
    if state.entity_id is None:
        if older:
            raise misuse("a parent is unknown")
        return
    wanted = ids_text(older | new)
    known = {row[0] for row in connection.execute(KNOWN, (state.entity_id, wanted))}
    if known != older:
        raise misuse("a parent is unknown or a new version exists already")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The heads of `commit` on their way to becoming the heads of the entity as of `cursor`.

    `entity_id` is the row of the entity, also if that is yet to be created. A failure leaves the
    transaction half done; the caller rolls it back.
    """

    connection: Connection
    commit: Commit
    state: EntityState
    scope_id: int
    entity_id: int
    cursor: int

    def carry_out(self) -> None:
        """Write the row of the entity and the rows of its versions."""
        heads = frozenset(self.commit.head_versions)
        new = list(enumerate(self.commit.new_versions))
        inline = next((row for row in new if heads == frozenset((row[1].id,))), None)
        if self.state.entity_id is None:
            self._create(inline)
        else:
            self._leave_old_heads()
            self._move_entity(inline)
        superseded = (self.cursor, self.commit.recorded_at_unix_ms)
        for ordinal, version in new:
            if inline is None or version is not inline[1]:
                fate = (None, None) if version.id in heads else superseded
                key = (self.entity_id, version.id, self.cursor, ordinal)
                self.connection.execute(INSERT_ROW, (*key, *fate, *_content(version)))

    def _create(self, inline: tuple[int, Version] | None) -> None:
        name = self.commit.key
        key = (self.entity_id, self.scope_id, name.type, name.id, self.cursor)
        if inline is None:
            self.connection.execute(INSERT_SEVERAL, (*key, len(self.commit.head_versions)))
        else:
            ordinal, version = inline
            self.connection.execute(INSERT_SINGLE, (*key, version.id, ordinal, *_content(version)))

    def _leave_old_heads(self) -> None:
        """Mark the heads that go, and give a row to an inline head that does not stay alone."""
        heads, now = self.state.heads, (self.cursor, self.commit.recorded_at_unix_ms)
        leaving = heads.difference(self.commit.head_versions)
        if len(heads) > 1:
            if leaving:
                self.connection.execute(SUPERSEDE, (self.entity_id, ids_text(leaving), *now))
        elif leaving:
            self.connection.execute(ROW_FROM_INLINE, (self.entity_id, *now))
        elif len(self.commit.head_versions) > 1:
            self.connection.execute(ROW_FROM_INLINE, (self.entity_id, None, None))

    def _move_entity(self, inline: tuple[int, Version] | None) -> None:
        """Bring the row of an existing entity to the new heads."""
        key = (self.entity_id, self.cursor)
        heads = self.commit.head_versions
        if inline is not None:
            ordinal, version = inline
            content = (version.id, ordinal, *_content(version))
            self.connection.execute(UPDATE_SINGLE, (*key, *content))
        elif len(heads) > 1:
            self.connection.execute(UPDATE_SEVERAL, (*key, len(heads)))
        elif len(self.state.heads) > 1:  # one of the present heads stays alone
            head = next(iter(heads))
            self.connection.execute(INLINE_FROM_ROW, (*key, head))
            self.connection.execute(DELETE_ROW, (self.entity_id, head))
        else:
            self.connection.execute(UPDATE_CURSOR, key)


def _content(version: Version) -> tuple[int, str, int, str | None]:
    return (
        state_number(version),
        ids_text(version.parents),
        version.recorded_at_unix_ms,
        version.value_json,
    )


def misuse(detail: str) -> MisuseError:
    """Return the failure of a commit that contradicts itself or the store."""
    return MisuseError(KIND, "commit", detail)
