"""One transaction of the writer while it is under way: its counters, and what it puts off.

A group is made of *works*: commits, advances of sessions, and whatever a work unit asks of the
writer. Rows that many works of a group would write again and again (the frontier of a scope, the
frontiers of a session) are collected here and written once, by `finish`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from patchouli.provider import (
    Committed,
    DeadlineExceededError,
    Discarded,
    Drifted,
    Published,
    Staged,
)
from patchouli.provider_sqlite import bulk
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from patchouli.provider import Clock, ControlKey, ScopeText, VersionId
    from patchouli.provider_sqlite.connection import Connection, SqlValue

FIND_SCOPE: Final = "SELECT scope_id FROM scope WHERE text = ?"
INSERT_SCOPE: Final = "INSERT INTO scope (text) VALUES (?) RETURNING scope_id"
FRONTIER: Final = "SELECT frontier, frontier_token FROM scope WHERE scope_id = ?"


class Advanced:
    """The frontiers of the sessions are on disk."""


ADVANCED: Final = Advanced()


class Entered(NamedTuple):
    """A work unit was opened, was found, or expired because it was overdue; that is on disk."""

    is_opened: bool


KEEPING: Final = (Committed, Staged, Published, Drifted, Discarded, Advanced, Entered)
"""The answers that keep something of what was asked, and so must not be late."""


class Work(Protocol):
    """Something else than a commit that is done in the transaction of a group.

    `carry_out` runs on the writer's thread. It finds by reading whatever can refuse it, and raises
    a `ProviderError`, which is its answer, before its first write only. It reads and writes by
    `group.connection`, takes cursors and numbers from the group, and returns the answer. It may run
    again, in another transaction, when a work of its group fails or is late; so it keeps nothing
    outside the database.
    """

    @property
    def scope(self) -> ScopeText:
        """The scope whose waiters wake when the answer is a publication."""
        ...

    @property
    def deadline_unix_ms(self) -> int | None:
        """When it is too late for an answer that keeps something (`KEEPING`)."""
        ...

    @property
    def value_bytes(self) -> int:
        """About how much it writes; bounds a group."""
        ...

    @property
    def base_versions(self) -> tuple[VersionId, ...]:
        """The versions that its caller read before and builds on."""
        ...

    def carry_out(self, group: Group) -> object:
        """Do it and return the answer."""
        ...


class Frontier(NamedTuple):
    """Where a scope stands: its newest cursor and the token of the change there."""

    cursor: int
    token: str | None


class Group:
    """The works of one transaction, and what they count until it is committed."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        last_cursor: int,
        last_entity: int,
        known_scope: Callable[[str], int | None],
    ) -> None:
        self.connection = connection
        self.last_cursor = last_cursor
        self.last_entity = last_entity
        self.scope_ids: dict[str, int] = {}
        self._clock = clock
        self._known_scope = known_scope
        self._frontiers: dict[int, Frontier] = {}
        self._sessions: dict[tuple[int, ControlKey], tuple[int, int]] = {}

    def is_late(self, deadline_unix_ms: int | None) -> bool:
        """Return whether a deadline has passed."""
        return deadline_unix_ms is not None and self._clock.unix_ms() >= deadline_unix_ms

    def require_in_time(self, deadline_unix_ms: int | None) -> None:
        """Return if a deadline has not passed.

        Raises:
            DeadlineExceededError: It has.
        """
        if self.is_late(deadline_unix_ms):
            raise past_deadline()

    def unix_ms(self) -> int:
        """Return the time of the store's own clock."""
        return self._clock.unix_ms()

    def take_cursor(self) -> int:
        """Return the next cursor, which is given out to nobody else."""
        self.last_cursor += 1
        return self.last_cursor

    def take_entity(self) -> int:
        """Return the next number of an entity row, which is given out to nobody else."""
        self.last_entity += 1
        return self.last_entity

    def find_scope(self, text: str) -> int | None:
        """Return the number of a scope, None if it has no row yet."""
        found = self.scope_ids.get(text)
        if found is None:
            found = self._known_scope(text)
            if found is not None:
                self.scope_ids[text] = found
        return found

    def require_scope(self, text: str) -> int:
        """Return the number of a scope, with a new row if it has none."""
        found = self.find_scope(text)
        if found is None:
            found = self.scope_ids[text] = self.connection.execute(INSERT_SCOPE, (text,)).get
        return found

    def frontier(self, scope_id: int) -> Frontier:
        """Return where a scope stands after the works of this group so far."""
        moved = self._frontiers.get(scope_id)
        return moved or Frontier(*self.connection.execute(FRONTIER, (scope_id,)).get)

    def move_frontier(self, scope_id: int, cursor: int, token: str) -> None:
        """Have the scope stand at `cursor`, the newest that was taken in it."""
        self._frontiers[scope_id] = Frontier(cursor, token)

    def advance_sessions(
        self, scope_id: int, keys: Iterable[ControlKey], *, read: int = 0, write: int = 0
    ) -> None:
        """Move the frontiers of sessions up to these cursors; where they are further they stay."""
        for key in keys:
            known_read, known_write = self._sessions.get((scope_id, key), (0, 0))
            self._sessions[scope_id, key] = (max(known_read, read), max(known_write, write))

    def finish(self) -> None:
        """Write what was put off: each moved scope and each advanced session once."""
        cells: list[SqlValue] = []
        for scope_id, frontier in self._frontiers.items():
            cells += (scope_id, *frontier)
        bulk.MOVE_FRONTIERS.run(self.connection, cells)
        cells = []
        for (scope_id, key), cursors in self._sessions.items():
            cells += (scope_id, key, *cursors)
        bulk.ADVANCE_SESSIONS.run(self.connection, cells)


def past_deadline() -> DeadlineExceededError:
    """Return the failure of a work that is late."""
    return DeadlineExceededError(KIND, "commit", "the deadline passed; nothing was kept")
