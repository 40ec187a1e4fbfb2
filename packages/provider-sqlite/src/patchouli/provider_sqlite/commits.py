"""Commits, several in one transaction, and the counters they draw from.

A transaction of many commits is synced once. Isolation inside it needs no savepoints:

1. The plain commits of the group (a create of one version, one head replaced by one version; each
   entity once) are done with a few statements for all of them.
2. The others are done one by one, in the order in which they came. Whatever can refuse one of them
   is found by reading, before its first write.
3. If a statement fails all the same, the transaction is rolled back. What step 1 refused is tried
   again by step 2 alone; what step 2 refused is done again commit by commit, each in a transaction
   of its own, and the commit that fails there fails alone.

So no commit can take another one with it, and the usual ones pay nothing for that. Two commits to
one entity see each other in the order in which they came. A deadline is checked when its commit is
about to be written and again before COMMIT; one that passed in between costs the transaction, which
is done again without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import apsw
from patchouli.provider import (
    Committed,
    Cursor,
    DeadlineExceededError,
    MisuseError,
    OutcomeUnknownError,
    ProviderError,
)
from patchouli.provider_sqlite import bulk, heads
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.lifecycle import read_last_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Clock, Commit, EntityKey
    from patchouli.provider_sqlite.connection import Connection, SqlValue

FIND_SCOPE: Final = "SELECT scope_id FROM scope WHERE text = ?"
INSERT_SCOPE: Final = "INSERT INTO scope (text) VALUES (?) RETURNING scope_id"
LAST_ENTITY: Final = "SELECT ifnull(max(entity_id), 0) FROM entity"
FENCE: Final = "UPDATE runtime SET last_cursor = ?"

SCOPES_REMEMBERED: Final = 10_000  # numbers of scopes kept in memory; beyond it all are forgotten


# What one commit can do to a transaction: break a rule of the schema, be too large for SQLite or
# for the room that is left, hold what is no text or no number.
_FAULTS: Final = (
    apsw.ConstraintError,
    apsw.TooBigError,
    apsw.FullError,
    TypeError,
    ValueError,
    OverflowError,
)


class Lost:
    """The heads were not the expected ones. What the caller needs to know is read afterwards."""


LOST: Final = Lost()
Result = Committed | Lost | ProviderError


class Ledger:
    """The writer's side of the truth: its connection, and the counters of the database."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._scope_ids: dict[str, int] = {}
        self.last_cursor = read_last_cursor(connection)
        self.last_entity: int = connection.execute(LAST_ENTITY).get

    def publish(self, commits: Sequence[Commit]) -> Sequence[Result]:
        """Do `commits` in order, durably, and answer each as if it had been alone.

        If one of them may be at fault, they are done again one by one; a failure that is nobody's
        fault is everybody's answer.
        """
        try:
            return self._publish_group(commits)
        except OutcomeUnknownError as error:
            return [error] * len(commits)
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            if len(commits) == 1 or not isinstance(error, _FAULTS):
                errno = self._connection.system_errno
                return [translate(error, "commit", system_errno=errno)] * len(commits)
        finally:
            self.roll_back()
        return [result for commit in commits for result in self.publish([commit])]

    def is_late(self, commit: Commit) -> bool:
        """Return whether the deadline of `commit` has passed."""
        deadline = commit.deadline_unix_ms
        return deadline is not None and self._clock.unix_ms() >= deadline

    def find_scope(self, text: str) -> int | None:
        """Return the number of a scope, None if nothing was ever published in it."""
        number = self._scope_ids.get(text)
        return self._connection.execute(FIND_SCOPE, (text,)).get if number is None else number

    def roll_back(self) -> None:
        """Leave the transaction, if SQLite has not left it already."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _publish_group(self, commits: Sequence[Commit]) -> Sequence[Result]:
        results: list[Result] = [LOST] * len(commits)
        waiting = list(range(len(commits)))
        with_bulk = True
        while True:
            group = _Group(self._connection, self, commits, results)
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                group.apply(waiting, with_bulk=with_bulk)
            except apsw.ConstraintError:
                if not with_bulk:
                    raise
                self.roll_back()
                with_bulk = False
                continue
            late = [
                index
                for index in waiting
                if self.is_late(commits[index]) and isinstance(results[index], Committed)
            ]
            if not late:
                break
            self.roll_back()
            for index in late:
                results[index] = _past_deadline()
            waiting = [index for index in waiting if index not in late]
        group.move_frontiers()
        self._commit(group)
        self._adopt(group)
        return results

    def _commit(self, group: _Group) -> None:
        """End the transaction durably, or raise with the certainty that it left nothing behind.

        A COMMIT that fails in the disk may have written its frames, and a crash before the next
        commit would bring them back. So another small commit takes their place in the log at once.

        Raises:
            OutcomeUnknownError: The disk refuses that one, too.
        """
        try:
            self._connection.execute("COMMIT")
        except apsw.IOError as error:
            self.roll_back()
            try:
                self._connection.execute(FENCE, (group.last_cursor + 1,))
            except apsw.Error:
                self.roll_back()
                detail = "the disk failed while it was written; read before trying again"
                raise OutcomeUnknownError(KIND, "commit", detail) from error
            self.last_cursor = group.last_cursor + 1
            raise

    def _adopt(self, group: _Group) -> None:
        """Take over what the committed `group` counted."""
        self.last_cursor = group.last_cursor
        self.last_entity = group.last_entity
        if len(self._scope_ids) + len(group.scope_ids) > SCOPES_REMEMBERED:
            self._scope_ids.clear()
        self._scope_ids.update(group.scope_ids)


class _Group:
    """The commits of one transaction, and what they count until it is committed."""

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger,
        commits: Sequence[Commit],
        results: list[Result],
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._commits = commits
        self._results = results
        self._frontiers: dict[int, tuple[int, str]] = {}
        self.scope_ids: dict[str, int] = {}
        self.last_cursor = ledger.last_cursor
        self.last_entity = ledger.last_entity

    def apply(self, indexes: Sequence[int], *, with_bulk: bool) -> None:
        """Do the commits of these indexes in the open transaction and note their results."""
        rest = self._apply_plain(indexes) if with_bulk else indexes
        for index in rest:
            self._results[index] = self._apply_one(self._commits[index])

    def move_frontiers(self) -> None:
        """Write the new frontier of every scope of the group, once per scope."""
        cells: list[SqlValue] = []
        for scope_id, (cursor, token) in self._frontiers.items():
            cells += (scope_id, cursor, token)
        bulk.MOVE_FRONTIERS.run(self._connection, cells)

    def _apply_plain(self, indexes: Sequence[int]) -> list[int]:
        """Do the plain commits with few statements; return the indexes of the others, in order."""
        creates: list[int] = []
        updates: list[int] = []
        rest: list[int] = []
        seen: set[EntityKey] = set()
        number = 0
        for index in indexes:
            commit = self._commits[index]
            seen.add(commit.key)
            number += 1
            if len(seen) < number or self._ledger.is_late(commit):
                number = len(seen)
                rest.append(index)
            elif bulk.is_plain_create(commit):
                creates.append(index)
            elif bulk.is_plain_update(commit):
                updates.append(index)
            else:
                rest.append(index)
        rows = self._create_plain(creates) + self._update_plain(updates)
        bulk.append_changes(self._connection, rows)
        for cursor, scope_id, _, commit in rows:
            self._frontiers[scope_id] = (cursor, commit.causal_token)
        return rest

    def _create_plain(self, indexes: Sequence[int]) -> list[bulk.Row]:
        rows: list[bulk.Row] = []
        for index in indexes:
            commit = self._commits[index]
            scope = self._find_scope(commit.key.scope)
            scope_id = self._create_scope(commit.key.scope) if scope is None else scope
            self.last_cursor += 1
            self.last_entity += 1
            rows.append((self.last_cursor, scope_id, self.last_entity, commit))
            self._results[index] = Committed(cursor=Cursor(self.last_cursor))
        bulk.insert_entities(self._connection, rows)
        return rows

    def _update_plain(self, indexes: Sequence[int]) -> list[bulk.Row]:
        asked: list[tuple[int, Commit]] = []
        for index in indexes:
            commit = self._commits[index]
            asked.append((self._find_scope(commit.key.scope) or 0, commit))
        states = bulk.read_single_heads(self._connection, asked)
        rows: list[bulk.Row] = []
        for position, (index, (scope_id, commit)) in enumerate(zip(indexes, asked, strict=True)):
            state = states.get(position)
            if state is None or state.version != commit.expected_heads[0]:
                self._results[index] = LOST
            elif state.has_new_version:
                self._results[index] = heads.misuse("a new version exists already")
            else:
                self.last_cursor += 1
                rows.append((self.last_cursor, scope_id, state.entity_id, commit))
                self._results[index] = Committed(cursor=Cursor(self.last_cursor))
        bulk.replace_heads(self._connection, rows)
        return rows

    def _apply_one(self, commit: Commit) -> Result:
        """Do one commit, or say why not and write nothing."""
        scope = self._find_scope(commit.key.scope)
        state = heads.ABSENT if scope is None else heads.read_state(self._connection, scope, commit)
        if state.heads != frozenset(commit.expected_heads):
            return LOST
        try:
            heads.require_consistent(commit)
            heads.require_known(self._connection, commit, state)
        except MisuseError as error:
            return error
        if self._ledger.is_late(commit):
            return _past_deadline()
        scope_id = self._create_scope(commit.key.scope) if scope is None else scope
        self.last_cursor = cursor = self.last_cursor + 1
        entity_id = state.entity_id
        if entity_id is None:
            self.last_entity = entity_id = self.last_entity + 1
        heads.Replacement(
            connection=self._connection,
            commit=commit,
            state=state,
            scope_id=scope_id,
            entity_id=entity_id,
            cursor=cursor,
        ).carry_out()
        bulk.append_changes(self._connection, [(cursor, scope_id, entity_id, commit)])
        self._frontiers[scope_id] = (cursor, commit.causal_token)
        return Committed(cursor=Cursor(cursor))

    def _find_scope(self, text: str) -> int | None:
        found = self.scope_ids.get(text)
        if found is None:
            found = self._ledger.find_scope(text)
            if found is not None:
                self.scope_ids[text] = found
        return found

    def _create_scope(self, text: str) -> int:
        scope_id: int = self._connection.execute(INSERT_SCOPE, (text,)).get
        self.scope_ids[text] = scope_id
        return scope_id


def _past_deadline() -> DeadlineExceededError:
    return DeadlineExceededError(KIND, "commit", "the deadline passed; nothing was kept")
