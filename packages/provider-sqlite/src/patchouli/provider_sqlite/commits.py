"""Commits, several in one transaction, and the counters they draw from.

A transaction of many commits is synced once. Isolation inside it needs no savepoints:

1. The plain commits of the group (a create of one version, one head replaced by one version; each
   entity and each idempotency identity once) are done with a few statements for all of them; of
   creates those before the first one that is not plain, so that they keep their order.
2. The others are done one by one, in the order in which they came. Whatever can refuse one of them
   is found by reading, before its first write.
3. If a statement fails all the same, the transaction is rolled back. What step 1 refused is tried
   again by step 2 alone; what step 2 refused is done again commit by commit, each in a transaction
   of its own, and the commit that fails there fails alone.

So no commit can take another one with it, and the usual ones pay nothing for that. Two commits to
one entity see each other in the order in which they came. A deadline is checked when its commit is
about to be written and again before COMMIT; one that passed in between costs the transaction, which
is done again without it.

*Other works.* Whatever else must be written shares the transaction, the sync and the hop of the
group: it is handed to the writer (`executor.Writer.hand_over`) as a `Work` (`group.py`), an object
with `scope`, `deadline_unix_ms`, `value_bytes` and `carry_out(group) -> answer`. It is done in step
2, in its turn, and obeys the same rule: before its first write it has read whatever can refuse it,
and raises a `ProviderError` if something does. Requests of a work unit are such works: one that
opens a unit, stages, closes or publishes inserts its rows with `group.connection`, takes cursors
with `group.take_cursor`, moves the frontier with `group.move_frontier`, advances sessions with
`group.advance_sessions`, and returns the outcome of the boundary, which is given to the caller as
it is. Answers of the types in `KEEPING` are subject to
the deadline; `Published` wakes the waiters of `scope`, as `Committed` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import apsw
from patchouli.provider import (
    Commit,
    Committed,
    Cursor,
    MisuseError,
    OutcomeUnknownError,
    ProviderError,
)
from patchouli.provider_sqlite import bulk, heads
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.group import FIND_SCOPE, KEEPING, Group, Work, past_deadline
from patchouli.provider_sqlite.idempotency import find_record, find_records, store_records
from patchouli.provider_sqlite.lifecycle import read_last_cursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider import (
        Clock,
        ControlKey,
        EntityKey,
        IdempotencyRecord,
        IdentityTaken,
        Replayed,
        VersionId,
    )
    from patchouli.provider_sqlite.connection import Connection

LAST_ENTITY: Final = "SELECT ifnull(max(entity_id), 0) FROM entity"
FENCE: Final = "UPDATE runtime SET last_cursor = ?"

REMOVED_REMEMBERED: Final = 10_000  # versions that compaction removed; beyond it all are forgotten
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

Result = object
"""`Lost` or an outcome of the boundary; a `ProviderError` is raised to the caller."""


class Ledger:
    """The writer's side of the truth: its connection, and the counters of the database."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self._scope_ids: dict[str, int] = {}
        self._removed: set[VersionId] = set()
        self.last_cursor = read_last_cursor(connection)
        self.last_entity: int = connection.execute(LAST_ENTITY).get

    def publish(self, works: Sequence[Commit | Work]) -> Sequence[Result]:
        """Do `works` in order, durably, and answer each as if it had been alone.

        If one of them may be at fault, they are done again one by one; a failure that is nobody's
        fault is everybody's answer.
        """
        try:
            return self._publish_group(works)
        except OutcomeUnknownError as error:
            return [error] * len(works)
        except (apsw.Error, TypeError, ValueError, OverflowError) as error:
            if len(works) == 1 or not isinstance(error, _FAULTS):
                errno = self._connection.system_errno
                return [translate(error, "commit", system_errno=errno)] * len(works)
        finally:
            self.roll_back()
        return [result for work in works for result in self.publish([work])]

    def note_removed(self, versions: Iterable[VersionId]) -> None:
        """Remember versions that compaction has just removed, so that who still names one is told.

        A commit whose base went between its read and now has lost a race, and made no mistake.
        """
        if len(self._removed) > REMOVED_REMEMBERED:
            self._removed.clear()
        self._removed.update(versions)

    def find_scope(self, text: str) -> int | None:
        """Return the number of a scope, None if it has no row."""
        number = self._scope_ids.get(text)
        return self._connection.execute(FIND_SCOPE, (text,)).get if number is None else number

    def roll_back(self) -> None:
        """Leave the transaction, if SQLite has not left it already."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _publish_group(self, works: Sequence[Commit | Work]) -> Sequence[Result]:
        results: list[Result] = [LOST] * len(works)
        waiting = list(range(len(works)))
        with_bulk = True
        while True:
            group = self._begin()
            try:
                _Works(group, works, results).apply(waiting, with_bulk=with_bulk)
            except apsw.ConstraintError:
                if not with_bulk:
                    raise
                self.roll_back()
                with_bulk = False
                continue
            late = [
                index
                for index in waiting
                if group.is_late(works[index].deadline_unix_ms)
                and isinstance(results[index], KEEPING)
            ]
            if not late:
                break
            self.roll_back()
            for index in late:
                results[index] = past_deadline()
            waiting = [index for index in waiting if index not in late]
        group.finish()
        self._commit(group)
        self._adopt(group)
        if self._removed:
            self._excuse(works, results)
        return results

    def _excuse(self, works: Sequence[Commit | Work], results: list[Result]) -> None:
        """Have a commit try again that named a base which was removed since it was read."""
        for index, work in enumerate(works):
            if isinstance(results[index], MisuseError) and not self._removed.isdisjoint(
                work.base_versions
            ):
                results[index] = LOST

    def _begin(self) -> Group:
        group = Group(
            self._connection,
            clock=self._clock,
            last_cursor=self.last_cursor,
            last_entity=self.last_entity,
            known_scope=self.find_scope,
        )
        self._connection.execute("BEGIN IMMEDIATE")
        return group

    def _commit(self, group: Group) -> None:
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

    def _adopt(self, group: Group) -> None:
        """Take over what the committed `group` counted."""
        self.last_cursor = group.last_cursor
        self.last_entity = group.last_entity
        if len(self._scope_ids) + len(group.scope_ids) > SCOPES_REMEMBERED:
            self._scope_ids.clear()
        self._scope_ids.update(group.scope_ids)


class _Works:
    """The works of a group on their way into its transaction, with the results that they get."""

    def __init__(self, group: Group, works: Sequence[Commit | Work], results: list[Result]) -> None:
        self._group = group
        self._connection = group.connection
        self._works = works
        self._results = results

    def apply(self, indexes: Sequence[int], *, with_bulk: bool) -> None:
        """Do the works of these indexes in the open transaction and note their results."""
        group = self._group
        rest = self._apply_plain(indexes) if with_bulk else indexes
        for index in rest:
            work = self._works[index]
            try:
                if isinstance(work, Commit):
                    self._results[index] = self._apply_one(work)
                else:
                    self._results[index] = work.carry_out(group)
            except ProviderError as error:
                self._results[index] = error

    def _apply_plain(self, indexes: Sequence[int]) -> list[int]:
        """Do the plain commits with few statements; return the indexes of the others, in order."""
        creates: list[tuple[int, Commit]] = []
        updates: list[tuple[int, Commit]] = []
        rest: list[int] = []
        seen: set[EntityKey | ControlKey] = set()
        keeps_order = True  # of creates, as long as none of them is among the others
        for index in indexes:
            commit = self._works[index]
            if not isinstance(commit, Commit):
                rest.append(index)
                continue
            record = commit.idempotency
            number = len(seen) + (1 if record is None else 2)
            seen.add(commit.key)
            if record is not None:
                seen.add(record.identity)
            if len(seen) == number and not self._group.is_late(commit.deadline_unix_ms):
                if bulk.is_plain_create(commit) and keeps_order:
                    creates.append((index, commit))
                    continue
                if bulk.is_plain_update(commit):
                    updates.append((index, commit))
                    continue
            rest.append(index)
            keeps_order = keeps_order and bool(commit.expected_heads)
        self._answer_known(creates, updates)
        rows = self._create_plain(creates) + self._update_plain(updates)
        bulk.append_changes(self._connection, rows)
        for cursor, scope_id, _, commit in rows:
            self._note(commit, scope_id, cursor)
        records = [row[3].idempotency for row in rows]
        store_records(self._connection, [record for record in records if record is not None])
        return rest

    def _answer_known(self, *commits: list[tuple[int, Commit]]) -> None:
        """Take out of the lists what was accepted before, or is under an identity of another."""
        asked = [
            (index, commit.idempotency)
            for some in commits
            for index, commit in some
            if commit.idempotency is not None
        ]
        if not asked:
            return
        own = self._group.unix_ms()
        known = find_records(self._connection, asked, own_unix_ms=own)
        for index, result in known.items():
            self._results[index] = result
        for some in commits:
            some[:] = [(index, commit) for index, commit in some if index not in known]

    def _create_plain(self, creates: Sequence[tuple[int, Commit]]) -> list[bulk.Row]:
        rows: list[bulk.Row] = []
        group = self._group
        for index, commit in creates:
            scope_id = group.require_scope(commit.key.scope)
            cursor = group.take_cursor()
            rows.append((cursor, scope_id, group.take_entity(), commit))
            self._results[index] = Committed(cursor=Cursor(cursor))
        bulk.insert_entities(self._connection, rows)
        return rows

    def _update_plain(self, updates: Sequence[tuple[int, Commit]]) -> list[bulk.Row]:
        group = self._group
        asked = [(group.find_scope(commit.key.scope) or 0, commit) for _, commit in updates]
        states = bulk.read_single_heads(self._connection, asked)
        rows: list[bulk.Row] = []
        for position, (index, commit) in enumerate(updates):
            state = states.get(position)
            if state is None or state.version != commit.expected_heads[0]:
                self._results[index] = LOST
            elif state.has_new_version:
                self._results[index] = heads.misuse("a new version exists already")
            else:
                cursor = group.take_cursor()
                rows.append((cursor, asked[position][0], state.entity_id, commit))
                self._results[index] = Committed(cursor=Cursor(cursor))
        bulk.replace_heads(self._connection, rows)
        return rows

    def _apply_one(self, commit: Commit) -> Result:
        """Do one commit, or say why not and write nothing.

        Raises:
            DeadlineExceededError: It is late.
            MisuseError: It contradicts itself or the store.
        """
        group = self._group
        heads.require_consistent(commit)
        if not commit.new_versions:
            raise heads.misuse("a commit without new versions closes a work unit, and names none")
        known = self._known(commit.idempotency)
        if known is not None:
            return known
        scope = group.find_scope(commit.key.scope)
        state = heads.ABSENT if scope is None else heads.read_state(self._connection, scope, commit)
        if state.heads != frozenset(commit.expected_heads):
            return LOST
        heads.require_known(self._connection, commit, state)
        group.require_in_time(commit.deadline_unix_ms)
        scope_id = group.require_scope(commit.key.scope)
        cursor = group.take_cursor()
        entity_id = group.take_entity() if state.entity_id is None else state.entity_id
        heads.Replacement(
            connection=self._connection,
            commit=commit,
            state=state,
            scope_id=scope_id,
            entity_id=entity_id,
            cursor=cursor,
        ).carry_out()
        bulk.append_changes(self._connection, [(cursor, scope_id, entity_id, commit)])
        self._note(commit, scope_id, cursor)
        if commit.idempotency is not None:
            store_records(self._connection, [commit.idempotency])
        return Committed(cursor=Cursor(cursor))

    def _known(self, record: IdempotencyRecord | None) -> Replayed | IdentityTaken | None:
        if record is None:
            return None
        return find_record(
            self._connection,
            record.identity,
            record.request_json,
            now_unix_ms=record.now_unix_ms,
            own_unix_ms=self._group.unix_ms(),
        )

    def _note(self, commit: Commit, scope_id: int, cursor: int) -> None:
        self._group.move_frontier(scope_id, cursor, commit.causal_token)
        self._group.advance_sessions(scope_id, commit.write_sessions, write=cursor)
