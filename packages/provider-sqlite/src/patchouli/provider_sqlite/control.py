"""Causal tokens and sessions: what a read must not be older than, and how far it takes a session.

On an authority the frontier of a scope is at or beyond every position that was ever published in
it, so for a read of the published heads a bound can fail by a token that is unknown only. In the
view of a work unit, whose baseline stands still, any bound can.

The read frontier of a session advances before the answer: a read that is ahead of the stored one
hands an `Advance` to the writer, which does all of a group in one transaction. A read that is not
writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from patchouli.provider import Cursor, Unavailable
from patchouli.provider_sqlite.codec import NO_IDS, ids_text
from patchouli.provider_sqlite.group import ADVANCED, Advanced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider import Consistency, ControlKey, ScopeText, VersionId
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.group import Group

T_co = TypeVar("T_co", covariant=True)

# A row for each token (its position, NULL where it is unknown) and for each session.
BOUNDS: Final = """
SELECT 1, t.key,
    ifnull((SELECT cursor FROM change WHERE token = t.value AND scope_id = ?1),
           (SELECT cursor FROM causal_token WHERE token = t.value AND scope_id = ?1)), NULL
FROM json_each(?2) t
UNION ALL
SELECT 0, k.key, s.read_cursor, s.write_cursor
FROM json_each(?3) k CROSS JOIN session s ON s.scope_id = ?1 AND s.key = k.value
"""


@dataclass(frozen=True, slots=True)
class Advance:
    """The read frontiers of some sessions of a scope, to be moved up to `cursor`: a `Work`."""

    scope: ScopeText
    keys: tuple[ControlKey, ...]
    cursor: int
    deadline_unix_ms: int | None

    @property
    def value_bytes(self) -> int:
        """Next to nothing."""
        return 0

    @property
    def base_versions(self) -> tuple[VersionId, ...]:
        """None."""
        return ()

    def carry_out(self, group: Group) -> Advanced:
        """Note the new frontiers; the group writes them once, for all its works.

        Raises:
            DeadlineExceededError: It is late.
        """
        group.require_in_time(self.deadline_unix_ms)
        group.advance_sessions(group.require_scope(self.scope), self.keys, read=self.cursor)
        return ADVANCED


class Answer(NamedTuple, Generic[T_co]):
    """What a read answers, once `advance`, if there is one, is on disk."""

    # A tuple, because every read makes one, and a frozen dataclass takes three times as long.
    outcome: T_co
    advance: Advance | None = None


def check_bounds(
    connection: Connection, consistency: Consistency, *, scope_id: int | None, frontier: int
) -> Unavailable | tuple[ControlKey, ...]:
    """Return why a view of `frontier` is too old, or the sessions whose read frontier is behind it.

    `scope_id` is None if the scope has no row. Costs nothing where nothing is asked, else one
    statement, by key.
    """
    tokens, sessions = consistency.minimum_tokens, consistency.sessions
    if not tokens and not sessions:
        return ()
    positions: list[int | None] = [None] * len(tokens)
    cursors = [(0, 0)] * len(sessions)
    keys = ids_text(session.key for session in sessions) if sessions else NO_IDS
    bindings = (scope_id, ids_text(tokens) if tokens else NO_IDS, keys)
    for is_token, number, first, second in connection.execute(BOUNDS, bindings):
        if is_token:
            positions[number] = first
        else:
            cursors[number] = (first, second)
    if any(position is None or position > frontier for position in positions):
        detail = "a causal token is unknown in this scope or newer than the view"
        return Unavailable(detail=detail, frontier=Cursor(frontier))
    behind: list[ControlKey] = []
    for session, (read, write) in zip(sessions, cursors, strict=True):
        required = max(read * session.monotonic_reads, write * session.read_your_writes)
        if required > frontier:
            detail = "a session has seen or written what is newer than the view"
            return Unavailable(detail=detail, frontier=Cursor(frontier))
        if session.monotonic_reads and read < frontier:
            behind.append(session.key)
    return tuple(behind)


def advance_of(
    scope: ScopeText, consistency: Consistency, keys: Sequence[ControlKey], frontier: int
) -> Advance | None:
    """Return the advance of the sessions `keys` by a read at `frontier`, None if there are none."""
    if not keys:
        return None
    return Advance(scope, tuple(keys), frontier, consistency.deadline_unix_ms)
