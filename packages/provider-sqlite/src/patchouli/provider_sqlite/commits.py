"""Commits, several in one transaction, and the counters they draw from.

A transaction of many commits is synced once. Isolation inside it needs no savepoints: everything
that can refuse a commit is decided by reading, before its first write. Should a write fail all the
same (a text that is no JSON, a token used before, no room), the whole transaction is rolled back
and each of its commits is done again in a transaction of its own; that is rare, and as safe as it
is simple.

Two commits to one entity see each other in the order in which they came. A deadline is checked
before the first write of its commit and again before COMMIT; one that passed in between costs the
transaction, which is done again without it.
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
from patchouli.provider_sqlite import heads
from patchouli.provider_sqlite.codec import ids_text
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.lifecycle import read_last_cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Clock, Commit
    from patchouli.provider_sqlite.connection import Connection

INSERT_CHANGE: Final = """
INSERT INTO change (cursor, scope_id, entity_id, kind, heads, token, event_meta, recorded_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
FIND_SCOPE: Final = "SELECT scope_id FROM scope WHERE text = ?"
INSERT_SCOPE: Final = "INSERT INTO scope (text) VALUES (?) RETURNING scope_id"
MOVE_FRONTIER: Final = "UPDATE scope SET frontier = ?2, frontier_token = ?3 WHERE scope_id = ?1"
LAST_ENTITY: Final = "SELECT ifnull(max(entity_id), 0) FROM entity"
FENCE: Final = "UPDATE runtime SET last_cursor = ?"

SCOPES_REMEMBERED: Final = 10_000  # numbers of scopes kept in memory; beyond it all are forgotten


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

        What cannot be answered for all of them together is found out one by one.
        """
        try:
            return self._publish_group(commits)
        except OutcomeUnknownError as error:
            return [error] * len(commits)
        except (apsw.Error, UnicodeEncodeError, OverflowError) as error:
            self.roll_back()
            if len(commits) == 1:
                return [translate(error, "commit", system_errno=self._connection.system_errno)]
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
        results: dict[int, Result] = {}
        waiting = dict(enumerate(commits))
        while True:
            group = _Group(self._connection, self)
            self._connection.execute("BEGIN IMMEDIATE")
            for index, commit in waiting.items():
                results[index] = group.apply(commit)
            late = [
                index
                for index, commit in waiting.items()
                if isinstance(results[index], Committed) and self.is_late(commit)
            ]
            if not late:
                break
            self.roll_back()
            for index in late:
                results[index] = _past_deadline()
                del waiting[index]
        group.move_frontiers()
        self._commit(group)
        self._adopt(group)
        return [results[index] for index in range(len(commits))]

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

    def __init__(self, connection: Connection, ledger: Ledger) -> None:
        self._connection = connection
        self._ledger = ledger
        self._frontiers: dict[int, tuple[int, str]] = {}
        self.scope_ids: dict[str, int] = {}
        self.last_cursor = ledger.last_cursor
        self.last_entity = ledger.last_entity

    def apply(self, commit: Commit) -> Result:
        """Do one commit in the open transaction, or say why not and write nothing."""
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
        heads.replace(
            self._connection, commit, state, scope_id=scope_id, entity_id=entity_id, cursor=cursor
        )
        self._append_change(commit, scope_id, entity_id, cursor)
        return Committed(cursor=Cursor(cursor))

    def move_frontiers(self) -> None:
        """Write the new frontier of every scope of the group, once per scope."""
        for scope_id, (cursor, token) in self._frontiers.items():
            self._connection.execute(MOVE_FRONTIER, (scope_id, cursor, token))

    def _append_change(self, commit: Commit, scope_id: int, entity_id: int, cursor: int) -> None:
        self._connection.execute(
            INSERT_CHANGE,
            (
                cursor,
                scope_id,
                entity_id,
                commit.kind.value,
                ids_text(commit.head_versions),
                commit.causal_token,
                commit.event_meta_json,
                commit.recorded_at_unix_ms,
            ),
        )
        self._frontiers[scope_id] = (cursor, commit.causal_token)

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
