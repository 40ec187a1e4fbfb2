"""A commit in a work unit: staged, and if it closes the unit, published or sealed with it.

All is one `Work`. What can be said against the commit is found by reading, so that the usual one
writes two rows, one for the entity and one for the version, in tables that are clustered by the
unit.
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
    open_unit,
    require_usable,
    unit_of,
)
from patchouli.provider_sqlite.units_publishing import IS_USED, close
from patchouli.provider_sqlite.units_view import ENTITY_COLUMNS, ENTITY_JOINS, view_of

if TYPE_CHECKING:
    from patchouli.provider import Commit, Drifted, Published, ScopeText, UnitStaging
    from patchouli.provider_sqlite.group import Group
    from patchouli.provider_sqlite.units import Unit

    Outcome = Staged | Published | Drifted | Replayed | IdentityTaken | UnitRefused | Lost

# The unit, the entity in it, and whether the token was used: all that the usual commit asks.
FIND: Final = f"""
SELECT {UNIT_COLUMNS}, {ENTITY_COLUMNS}, {IS_USED}
FROM work_unit u CROSS JOIN scope s ON s.scope_id = u.scope_id {ENTITY_JOINS}
WHERE u.identity = :identity
"""  # noqa: S608 - of constants

# The last mutation decides, but a policy that holds stays, and so does the mark of a close.
STAGE_ENTITY: Final = """
INSERT INTO work_unit_entity (unit_id, type, id, heads, conflict_policy, holds_policy, token,
                              event_meta, sessions, is_closing, versions)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (unit_id, type, id) DO UPDATE SET heads = excluded.heads,
    conflict_policy = iif(holds_policy > excluded.holds_policy,
                          conflict_policy, excluded.conflict_policy),
    holds_policy = max(holds_policy, excluded.holds_policy),
    token = excluded.token, event_meta = excluded.event_meta, sessions = excluded.sessions,
    is_closing = max(is_closing, excluded.is_closing), versions = versions + excluded.versions
RETURNING versions
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

    def carry_out(self, group: Group) -> Outcome:
        """Stage the commit, and publish or seal the unit if it closes it, or say why not.

        Raises:
            DeadlineExceededError: It is late.
            MisuseError: It contradicts itself or the store.
        """
        commit, staging = self.commit, self.staging
        self._require_shape()
        row = self._find(group)
        if row is None:
            open_unit(group, staging.unit)
            row = self._find(group)
        unit = require_usable(group, unit_of(row[:UNIT_WIDTH]), staging.unit)
        if isinstance(unit, UnitRefused):
            return unit
        if commit.key.scope != unit.scope:
            raise misuse("the entity and the work unit have different scopes")
        known = self._known(group, unit)
        repeats = isinstance(known, Replayed) and known.is_staged
        if known is not None and not (staging.close and repeats):
            return known
        end = unit.end()
        if end is not None:
            is_sealed = unit.state == "sealed"
            return self._close(group, unit) if is_sealed and staging.close else end
        if known is not None and commit.new_versions:
            return known
        *entity, token_is_used = row[UNIT_WIDTH:]
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
            self._stage(group, unit)
        else:
            group.require_in_time(commit.deadline_unix_ms)
            key = (unit.unit_id, commit.key.type, commit.key.id)
            group.connection.execute(MARK_CLOSING, key)
        return self._close(group, unit) if staging.close else Staged()

    def _require_shape(self) -> None:
        commit, staging = self.commit, self.staging
        heads.require_consistent(commit)
        if commit.new_versions:
            return
        keeps_heads = set(commit.head_versions) == set(commit.expected_heads)
        if not staging.close or not keeps_heads or commit.idempotency is None:
            raise misuse("a commit without new versions repeats one that was staged, and closes")

    # Any: a row of `FIND`; only the text of the statement says what it yields.
    def _find(self, group: Group) -> Any:
        key = self.commit.key
        names = {"identity": self.staging.unit.identity, "type": key.type, "id": key.id}
        asked = names | {"bytes": -1, "token": self.commit.causal_token}
        return group.connection.execute(FIND, asked).fetchone()

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

    def _stage(self, group: Group, unit: Unit) -> None:
        commit, staging, connection = self.commit, self.staging, group.connection
        key = (unit.unit_id, commit.key.type, commit.key.id)
        policy = (staging.conflict_policy_json, staging.holds_policy)
        meta = (commit.causal_token, commit.event_meta_json, ids_text(commit.write_sessions))
        count = len(commit.new_versions)
        bindings = (*key, ids_text(commit.head_versions), *policy, *meta, staging.close, count)
        ordinal: int = connection.execute(STAGE_ENTITY, bindings).get - count
        token: str | None = commit.causal_token
        for version in commit.new_versions:
            name = (version.id, ordinal, state_number(version), ids_text(version.parents))
            content = (version.recorded_at_unix_ms, token, version.value_json)
            connection.execute(STAGE_VERSION, (*key, *name, *content))
            ordinal += 1
            token = None
        if commit.idempotency is not None:
            store_records(connection, [commit.idempotency], unit_id=unit.unit_id)

    def _close(self, group: Group, unit: Unit) -> Published | Drifted:
        return close(
            group,
            unit,
            sealed_by=self.staging.request_json,
            accepted=self.commit.accepted,
            recorded_at=self.commit.recorded_at_unix_ms,
        )
