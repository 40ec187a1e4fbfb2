"""What many documents have in common, stored once: sets of shared leaves, numbers of places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import fold
from patchouli.provider_sqlite.connection import number_array
from patchouli.provider_sqlite.index_leaves import SEPARATOR
from patchouli.provider_sqlite.index_schema import PLACES_NUMBERED, documents_of
from patchouli.provider_sqlite.index_text import space_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider_sqlite.connection import Connection

REMEMBERED: Final = 16_384  # places, and sets of leaves, kept in memory; beyond, all are forgotten

_FIND_SHARED: Final = "SELECT shared_id FROM shared WHERE scope_id = ? AND leaves = ?"
_LAST_SHARED: Final = """
SELECT ifnull(max(shared_id), ?1) FROM shared WHERE shared_id BETWEEN ?1 AND ?2
"""
_ADD_SHARED: Final = "INSERT INTO shared (shared_id, scope_id, leaves, text) VALUES (?, ?, ?, ?)"
_INDEX_SHARED: Final = "INSERT INTO shared_index (rowid, text) VALUES (?, ?)"
_FORGET_SHARED: Final = (
    "DELETE FROM shared_index WHERE rowid IN (SELECT value FROM carray(?))",
    "DELETE FROM shared WHERE shared_id IN (SELECT value FROM carray(?))",
)
_FIND_PLACE: Final = "SELECT place_id FROM {database}place WHERE place = ?"
_LAST_PLACE: Final = "SELECT ifnull(max(place_id), 0) FROM {database}place"
_ADD_PLACE: Final = "INSERT INTO place (place_id, place) VALUES (?, ?)"


class Shared(NamedTuple):
    """A set of shared leaves of one scope; `total` is the length of all of them, folded."""

    shared_id: int
    total: int


class Terms:
    """The terms of an index that is being written."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._shared: dict[tuple[int, frozenset[str]], Shared] = {}
        self._prefixes: dict[str, str] = {}

    def shared(self, scope_id: int, leaves: frozenset[str]) -> Shared:
        """Return a set of leaves as it is stored in a scope; it is stored if it is new."""
        return self._shared.get((scope_id, leaves)) or self._store(scope_id, leaves)

    def prefix(self, place: str) -> str:
        """Return how the tokens of a place begin, numbering it if it is new."""
        found = self._prefixes.get(place)
        if found is None:
            if len(self._prefixes) >= REMEMBERED:
                self._prefixes.clear()
            self._prefixes[place] = found = f"{self._number(place)}="
        return found

    def forget_shared(self, shared_ids: Sequence[int]) -> None:
        """Remove sets that no document has any more."""
        self._shared.clear()
        ids = number_array(shared_ids)
        for statement in _FORGET_SHARED:
            self._connection.execute(statement, (ids,))

    def forget(self) -> None:
        """Drop what is remembered; what is stored is looked up again."""
        self._shared.clear()
        self._prefixes.clear()

    def _number(self, place: str) -> int:
        found: int | None = self._connection.execute(_FIND_PLACE.format(database=""), (place,)).get
        if found is not None:
            return found
        last: int = self._connection.execute(_LAST_PLACE.format(database="")).get
        if last >= PLACES_NUMBERED:
            return 0
        self._connection.execute(_ADD_PLACE, (last + 1, place))
        return last + 1

    def _store(self, scope_id: int, leaves: frozenset[str]) -> Shared:
        joined = SEPARATOR.join(sorted(leaves))
        folded = fold(joined)
        known: int | None = self._connection.execute(_FIND_SHARED, (scope_id, joined)).get
        if known is None:
            last: int = self._connection.execute(_LAST_SHARED, documents_of(scope_id)).get
            shared_id = last + 1
            text = space_out(folded) + SEPARATOR
            self._connection.execute(_ADD_SHARED, (shared_id, scope_id, joined, text))
            self._connection.execute(_INDEX_SHARED, (shared_id, text))
        else:
            shared_id = known
        if len(self._shared) >= REMEMBERED:
            self._shared.clear()
        stored = Shared(shared_id, len(folded) - max(0, len(leaves) - 1))
        self._shared[scope_id, leaves] = stored
        return stored


def find_prefix(connection: Connection, place: str) -> str | None:
    """Return how the tokens of a place begin in an attached index; None if no document has it."""
    found: int | None = connection.execute(_FIND_PLACE.format(database="idx."), (place,)).get
    if found is None:
        last: int = connection.execute(_LAST_PLACE.format(database="idx.")).get
        return "0=" if last >= PLACES_NUMBERED else None
    return f"{found}="
