"""A commit in a work unit: staged, and if it closes the unit, published or sealed with it.

All is one `Work`. The usual commit reads once and writes two rows, one for the entity and one for
the version. The one that closes a unit without drift is published with it and never staged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from patchouli.provider import IdentityTaken, Replayed, Staged, UnitRefused
from patchouli.provider_sqlite import heads
from patchouli.provider_sqlite.codec import ids_text, state_number
from patchouli.provider_sqlite.commits import LOST, Lost
from patchouli.provider_sqlite.heads import misuse
from patchouli.provider_sqlite.idempotency import find_record, store_records
from patchouli.provider_sqlite.units import (
    UNIT_COLUMNS,
    UNIT_WIDTH,
    new_unit,
    open_unit,
    require_usable,
    unit_of,
)
from patchouli.provider_sqlite.units_publishing import (
    IS_USED,
    Closing,
    StagedEntity,
    close,
    close_at_once,
)
from patchouli.provider_sqlite.units_view import ENTITY_COLUMNS, view_of

if TYPE_CHECKING:
    from patchouli.provider import (
        Commit,
        Drifted,
        Published,
        ScopeText,
        UnitStaging,
        VersionId,
    )
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.group import Group
    from patchouli.provider_sqlite.units import Unit
    from patchouli.provider_sqlite.units_view import UnitView

    # Any: only the text of the statement says what a row of `FIND` holds.
    FoundRow = tuple[Any, ...]

    Outcome = Staged | Published | Drifted | Replayed | IdentityTaken | UnitRefused | Lost

# The unit, the entity in it, and whether the token was used: all that the usual commit asks. The
# entity is found by the scope of the commit, so that it is there also if the unit is not.
FIND: Final = f"""
SELECT {UNIT_COLUMNS}, {ENTITY_COLUMNS}, w.versions, w.conflict_policy, w.holds_policy,
       {IS_USED}
FROM (SELECT 1) LEFT JOIN scope own ON own.text = :scope
LEFT JOIN work_unit u ON u.identity = :identity
LEFT JOIN scope s ON s.scope_id = u.scope_id
LEFT JOIN entity e ON e.scope_id = own.scope_id AND e.type = :type AND e.id = :id
LEFT JOIN work_unit_entity w ON w.unit_id = u.unit_id AND w.type = :type AND w.id = :id
"""  # noqa: S608 - of constants

STAGE_ENTITY: Final = """
INSERT INTO work_unit_entity (unit_id, type, id, heads, conflict_policy, holds_policy, token,
                              event_meta, sessions, is_closing, versions)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
STAGE_AGAIN: Final = """
UPDATE work_unit_entity SET heads = ?4, conflict_policy = ?5, holds_policy = ?6, token = ?7,
    event_meta = ?8, sessions = ?9, is_closing = max(is_closing, ?10), versions = ?11
WHERE unit_id = ?1 AND type = ?2 AND id = ?3
"""
STAGE_VERSION: Final = """
INSERT INTO work_unit_version (unit_id, type, id, version, ordinal, state, parents, recorded_at,
                               token, value)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
MARK_CLOSING: Final = """
UPDATE work_unit_entity SET is_closing = 1 WHERE unit_id = ? AND type = ? AND id = ?
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A commit in a work unit: a `Work`."""

    commit: Commit
    staging: UnitStaging

    @property
    def scope(self) -> ScopeText:
        """The scope of the entity and of the unit."""
        return self.commit.key.scope

    @property
    def deadline_unix_ms(self) -> int | None:
        """That of the commit."""
        return self.commit.deadline_unix_ms

    @property
    def value_bytes(self) -> int:
        """The values of the new versions."""
        return sum(len(version.value_json or "") for version in self.commit.new_versions)

    @property
    def base_versions(self) -> tuple[VersionId, ...]:
        """Those of the commit."""
        return self.commit.base_versions

    def carry_out(self, group: Group) -> Outcome:
        """Stage the commit, and publish or seal the unit if it closes it, or say why not.

        Raises:
            DeadlineExceededError: It is late.
            MisuseError: It contradicts itself or the store.
        """
        named = self.staging.unit
        self._require_shape()
        row = self._find(group)
        is_new = row[0] is None
        unit = new_unit(group, named) if is_new else unit_of(row[:UNIT_WIDTH])
        usable = unit if is_new else require_usable(group, unit, named)
        if isinstance(usable, UnitRefused):
            return usable
        answer = self._answer(group, unit, row)
        # From here on nothing is refused, and the unit is open whatever the answer.
        if is_new:
            unit = open_unit(group, unit, named)
        return self._stage(group, unit, answer) if isinstance(answer, _Mutation) else answer

    def _answer(self, group: Group, unit: Unit, row: FoundRow) -> _Mutation | Outcome:
        """Return what becomes of the entity, or why nothing of it is to be staged.

        A commit that closes a sealed unit is asked for its time as one that does.

        Raises:
            DeadlineExceededError: It is late.
            MisuseError: It contradicts the store.
        """
        commit, staging = self.commit, self.staging
        if commit.key.scope != unit.scope:
            raise misuse("the entity and the work unit have different scopes")
        known = self._known(group, unit)
        repeats = isinstance(known, Replayed) and known.is_staged
        if known is not None and not (staging.close and repeats):
            return known
        end = unit.end()
        if end is not None:
            if unit.state != "sealed" or not staging.close:
                return end
            group.require_in_time(commit.deadline_unix_ms)
            return self._close(group, unit)
        if known is not None and commit.new_versions:
            return known
        *entity, versions, policy, holds_policy, token_is_used = row[UNIT_WIDTH:]
        view = view_of(group.connection, unit, commit.key, entity)
        if not commit.new_versions and not (repeats and view.staged is not None):
            raise misuse("what the commit repeats is not staged in the work unit")
        present = view.head_ids()
        if present != frozenset(commit.expected_heads):
            return LOST
        if commit.new_versions:
            view.require_known(commit.new_versions, commit.head_versions, present)
            if token_is_used:
                raise misuse("the causal token was used before")
        group.require_in_time(commit.deadline_unix_ms)
        return _Mutation(view, versions or 0, policy if holds_policy else None)

    def _require_shape(self) -> None:
        commit, staging = self.commit, self.staging
        heads.require_consistent(commit)
        if commit.new_versions:
            return
        keeps_heads = set(commit.head_versions) == set(commit.expected_heads)
        if not staging.close or not keeps_heads or commit.idempotency is None:
            raise misuse("a commit without new versions repeats one that was staged, and closes")

    def _find(self, group: Group) -> FoundRow:
        key = self.commit.key
        names = {"scope": key.scope, "type": key.type, "id": key.id}
        asked = {"identity": self.staging.unit.identity, "token": self.commit.causal_token}
        return group.connection.execute(FIND, names | asked | {"bytes": -1}).fetchone()

    def _known(self, group: Group, unit: Unit) -> Replayed | IdentityTaken | None:
        record = self.commit.idempotency
        if record is None:
            return None
        return find_record(
            group.connection,
            record.identity,
            record.request_json,
            now_unix_ms=record.now_unix_ms,
            own_unix_ms=group.unix_ms(),
            unit_id=unit.unit_id,
        )

    def _stage(self, group: Group, unit: Unit, mutation: _Mutation) -> Outcome:
        """Stage what was found good, or publish the unit with it at once."""
        commit, staging, connection = self.commit, self.staging, group.connection
        if commit.idempotency is not None and commit.new_versions:
            store_records(connection, [commit.idempotency], unit_id=unit.unit_id)
        if not commit.new_versions:
            connection.execute(MARK_CLOSING, (unit.unit_id, commit.key.type, commit.key.id))
            return self._close(group, unit)
        if staging.close:
            published = close_at_once(
                group,
                unit,
                self._closing(mutation),
                sealed_by=staging.request_json,
                accepted=commit.accepted,
                recorded_at=commit.recorded_at_unix_ms,
            )
            if published is not None:
                return published
        self._write(connection, unit, mutation)
        return self._close(group, unit) if staging.close else Staged()

    def _write(self, connection: Connection, unit: Unit, mutation: _Mutation) -> None:
        commit, staging = self.commit, self.staging
        key = (unit.unit_id, commit.key.type, commit.key.id)
        ordinal = mutation.versions
        policy = (mutation.policy_of(staging), staging.holds_policy or mutation.held is not None)
        meta = (commit.causal_token, commit.event_meta_json, ids_text(commit.write_sessions))
        last = (*policy, *meta, staging.close, ordinal + len(commit.new_versions))
        sql = STAGE_ENTITY if mutation.view.staged is None else STAGE_AGAIN
        connection.execute(sql, (*key, ids_text(commit.head_versions), *last))
        token: str | None = commit.causal_token
        for version in commit.new_versions:
            name = (version.id, ordinal, state_number(version), ids_text(version.parents))
            content = (version.recorded_at_unix_ms, token, version.value_json)
            connection.execute(STAGE_VERSION, (*key, *name, *content))
            ordinal += 1
            token = None

    def _closing(self, mutation: _Mutation) -> Closing:
        """Return the mutation as it is published with the unit, without having been staged."""
        commit, view = self.commit, mutation.view
        entity = StagedEntity(
            type=view.type,
            id=view.id,
            heads=ids_text(commit.head_versions),
            conflict_policy=mutation.policy_of(self.staging),
            token=commit.causal_token,
            event_meta=commit.event_meta_json,
            sessions=ids_text(commit.write_sessions),
            is_closing=1,
            entity_id=view.entity_id,
            changed_cursor=view.changed_cursor,
            head_count=view.head_count,
            version=None if view.inline is None else view.inline[0],
        )
        return Closing(entity, commit.new_versions)

    def _close(self, group: Group, unit: Unit) -> Published | Drifted:
        return close(
            group,
            unit,
            sealed_by=self.staging.request_json,
            accepted=self.commit.accepted,
            recorded_at=self.commit.recorded_at_unix_ms,
        )


@dataclass(frozen=True, slots=True)
class _Mutation:
    """A commit that nothing speaks against, with what its unit holds of the entity.

    `versions` counts what was staged before, and `held` is the conflict policy that stays.
    """

    view: UnitView
    versions: int
    held: str | None

    def policy_of(self, staging: UnitStaging) -> str:
        """Return the conflict policy of the entity after this mutation."""
        if self.held is None or staging.holds_policy:
            return staging.conflict_policy_json
        return self.held
