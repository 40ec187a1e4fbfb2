"""What many documents have in common, stored once: sets of member names, numbers of places."""

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
    from patchouli.provider_sqlite.index_leaves import Shape

REMEMBERED: Final = 16_384  # places, and sets of names, kept in memory; beyond, all are forgotten

_FIND_NAMES: Final = "SELECT names_id FROM names WHERE scope_id = ? AND names = ?"
_LAST_NAMES: Final = "SELECT ifnull(max(names_id), ?1) FROM names WHERE names_id BETWEEN ?1 AND ?2"
_ADD_NAMES: Final = "INSERT INTO names (names_id, scope_id, names, text) VALUES (?, ?, ?, ?)"
_INDEX_NAMES: Final = "INSERT INTO names_index (rowid, text) VALUES (?, ?)"
_FORGET_NAMES: Final = (
    "DELETE FROM names_index WHERE rowid IN (SELECT value FROM carray(?))",
    "DELETE FROM names WHERE names_id IN (SELECT value FROM carray(?))",
)
_FIND_PLACE: Final = "SELECT place_id FROM {database}place WHERE place = ?"
_LAST_PLACE: Final = "SELECT ifnull(max(place_id), 0) FROM {database}place"
_ADD_PLACE: Final = "INSERT INTO place (place_id, place) VALUES (?, ?)"


class Names(NamedTuple):
    """A set of member names of one scope; `total` is the length of all of them, folded."""

    names_id: int
    total: int


class Terms:
    """The terms of an index that is being written."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: dict[tuple[int, frozenset[str]], Names] = {}
        self._prefixes: dict[str, str] = {}

    def names(self, scope_id: int, shape: Shape) -> Names:
        """Return the names of a shape as stored in a scope; they are stored if they are new."""
        key = (scope_id, shape.names_and_container)
        return self._names.get(key) or self._store_names(scope_id, shape)

    def prefix(self, place: str) -> str:
        """Return how the tokens of a place begin, numbering it if it is new."""
        found = self._prefixes.get(place)
        if found is None:
            if len(self._prefixes) >= REMEMBERED:
                self._prefixes.clear()
            self._prefixes[place] = found = f"{self._number(place)}="
        return found

    def forget_names(self, names_ids: Sequence[int]) -> None:
        """Remove sets of names that no document has any more."""
        self._names.clear()
        ids = number_array(names_ids)
        for statement in _FORGET_NAMES:
            self._connection.execute(statement, (ids,))

    def forget(self) -> None:
        """Drop what is remembered; what is stored is looked up again."""
        self._names.clear()
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

    def _store_names(self, scope_id: int, shape: Shape) -> Names:
        names = sorted(shape.names)
        joined = SEPARATOR.join(names)
        folded = fold(joined)
        known: int | None = self._connection.execute(_FIND_NAMES, (scope_id, joined)).get
        if known is None:
            names_id: int = self._connection.execute(_LAST_NAMES, documents_of(scope_id)).get + 1
            text = space_out(folded) + SEPARATOR
            self._connection.execute(_ADD_NAMES, (names_id, scope_id, joined, text))
            self._connection.execute(_INDEX_NAMES, (names_id, text))
        else:
            names_id = known
        if len(self._names) >= REMEMBERED:
            self._names.clear()
        stored = Names(names_id, len(folded) - max(0, len(names) - 1))
        self._names[scope_id, shape.names_and_container] = stored
        return stored


def find_prefix(connection: Connection, place: str) -> str | None:
    """Return how the tokens of a place begin in an attached index; None if no document has it."""
    found: int | None = connection.execute(_FIND_PLACE.format(database="idx."), (place,)).get
    if found is None:
        last: int = connection.execute(_LAST_PLACE.format(database="idx.")).get
        return "0=" if last >= PLACES_NUMBERED else None
    return f"{found}="
