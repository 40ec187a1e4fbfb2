"""One batch of entities taken from the truth into the index, in one transaction.

The truth is attached to the index connection and read in the same statements that fill the index,
so rows are walked, tokenized and written without the interpreter. Python sees a batch three times:
as one text of extracted leaves, which it folds and spaces out, as the array of those texts, and as
a list of numbers. Rows are not fetched one by one: each fetch would give the interpreter away and
wait for it again.

Documents are written in ascending order of their numbers, because a full-text table closes a
segment whenever the number goes back.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import fold, leaves
from patchouli.provider_sqlite.connection import number_array, text_array
from patchouli.provider_sqlite.index_leaves import EXTRACT, PART, TOKENS
from patchouli.provider_sqlite.index_schema import ENTITY_BITS, documents_of
from patchouli.provider_sqlite.index_text import NUL, SEPARATOR, space_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider_sqlite.connection import Connection

NAMES_REMEMBERED: Final = 8192  # spellings of member-name sets; beyond, all are forgotten
POLITE_STEP: Final = 64  # documents folded in one go; then others may have the interpreter

_ROW: Final = "\x1e"  # between the rows of one aggregated text

TEMPORARY: Final = (
    """CREATE TEMP TABLE batch (
        position INTEGER PRIMARY KEY, document_id INTEGER, entity_id INTEGER, scope_id INTEGER,
        type TEXT, id TEXT, recorded_at INTEGER, body TEXT, head_count INTEGER, state INTEGER)""",
    "CREATE TEMP TABLE texts (ordinal INTEGER PRIMARY KEY, text TEXT)",
    "CREATE TEMP TABLE numbers (ordinal INTEGER PRIMARY KEY, number INTEGER)",
    "CREATE TEMP TABLE removed (document_id INTEGER PRIMARY KEY, names_id INTEGER)",
)

_FILL: Final = f"""
INSERT INTO temp.batch (document_id, entity_id, scope_id, type, id, recorded_at, body,
                        head_count, state)
SELECT e.scope_id << {ENTITY_BITS} | e.entity_id, e.entity_id, e.scope_id, e.type, e.id,
       e.recorded_at, e.value, e.head_count, e.state
FROM carray(?) AS wanted CROSS JOIN truth.entity AS e ON e.entity_id = wanted.value
ORDER BY e.scope_id, e.entity_id
"""  # noqa: S608 - of constants
_EXTRACTED: Final = f"""
SELECT group_concat(position), group_concat(scope_id), group_concat(extracted, char(30))
FROM (SELECT position, scope_id, ({EXTRACT}) AS extracted
      FROM temp.batch WHERE head_count = 1 AND state = 0 ORDER BY position)
"""  # noqa: S608 - of constants
_EXTRACTED_ONE: Final = f"""
SELECT position, scope_id, ({EXTRACT}) FROM temp.batch
WHERE head_count = 1 AND state = 0 ORDER BY position
"""  # noqa: S608 - of constants
_BODY: Final = "SELECT body FROM temp.batch WHERE position = ?"
_RESPELL: Final = "UPDATE temp.batch SET body = ?2 WHERE position = ?1"

_NOTE_REMOVED: Final = """
INSERT INTO temp.removed SELECT d.document_id, d.names_id
FROM temp.batch AS b CROSS JOIN document AS d ON d.document_id = b.document_id
"""
_REMOVE: Final = (
    "DELETE FROM text_index WHERE rowid IN (SELECT document_id FROM temp.removed)",
    "DELETE FROM leaf_index WHERE rowid IN (SELECT document_id FROM temp.removed)",
    "DELETE FROM document WHERE document_id IN (SELECT document_id FROM temp.removed)",
)
_REMOVE_ASIDE: Final = """
DELETE FROM aside WHERE (scope_id, entity_id) IN (SELECT scope_id, entity_id FROM temp.batch)
"""
_UNUSED_NAMES: Final = """
SELECT group_concat(DISTINCT names_id) FROM temp.removed
WHERE NOT EXISTS (SELECT 1 FROM document AS d WHERE d.names_id = removed.names_id)
"""
_FORGET_NAMES: Final = (
    "DELETE FROM names_index WHERE rowid IN (SELECT value FROM carray(?))",
    "DELETE FROM names WHERE names_id IN (SELECT value FROM carray(?))",
)

_ADD_SHELVES: Final = """
INSERT OR IGNORE INTO shelf (scope_id, type) SELECT DISTINCT scope_id, type FROM temp.batch
"""
_ADD_DOCUMENTS: Final = """
INSERT INTO document (document_id, shelf_id, recorded_at, id, names_id, total, text)
SELECT b.document_id, s.shelf_id, b.recorded_at, b.id, n.number, c.number, t.text
FROM temp.texts AS t
CROSS JOIN temp.numbers AS p ON p.ordinal = 3 * t.ordinal - 2
CROSS JOIN temp.numbers AS n ON n.ordinal = 3 * t.ordinal - 1
CROSS JOIN temp.numbers AS c ON c.ordinal = 3 * t.ordinal
CROSS JOIN temp.batch AS b ON b.position = p.number
CROSS JOIN shelf AS s ON s.scope_id = b.scope_id AND s.type = b.type
ORDER BY t.ordinal
"""
_ADD_TEXTS: Final = """
INSERT INTO text_index (rowid, text)
SELECT d.document_id, d.text
FROM temp.batch AS b CROSS JOIN document AS d ON d.document_id = b.document_id ORDER BY b.position
"""
_ADD_LEAVES: Final = f"""
INSERT INTO leaf_index (rowid, leaves)
SELECT document_id, ({TOKENS}) FROM temp.batch AS b
WHERE EXISTS (SELECT 1 FROM document AS d WHERE d.document_id = b.document_id) ORDER BY position
"""  # noqa: S608 - of constants
_ADD_ASIDE: Final = """
INSERT INTO aside (scope_id, entity_id)
SELECT scope_id, entity_id FROM temp.batch AS b
WHERE (head_count > 1 OR (head_count = 1 AND state = 0))
    AND NOT EXISTS (SELECT 1 FROM document AS d WHERE d.document_id = b.document_id)
"""
_CLEAR: Final = (
    "DELETE FROM temp.batch",
    "DELETE FROM temp.texts",
    "DELETE FROM temp.numbers",
    "DELETE FROM temp.removed",
)

_FIND_NAMES: Final = "SELECT names_id FROM names WHERE scope_id = ? AND names = ?"
_LAST_NAMES: Final = "SELECT ifnull(max(names_id), ?1) FROM names WHERE names_id BETWEEN ?1 AND ?2"
_ADD_NAMES: Final = "INSERT INTO names (names_id, scope_id, names, text) VALUES (?, ?, ?, ?)"
_INDEX_NAMES: Final = "INSERT INTO names_index (rowid, text) VALUES (?, ?)"


class NamesSet(NamedTuple):
    """The member names of a value, as they are stored once for all values that share them."""

    names_id: int
    names: frozenset[str]
    total: int


class LaidOut(NamedTuple):
    """What is stored of one document beside its row in the truth."""

    position: int
    names_id: int
    total: int
    text: str


class Batches:
    """The part of an index that writes, over a connection to which the truth is attached."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._names: dict[tuple[int, str], NamesSet] = {}
        for statement in TEMPORARY:
            connection.execute(statement)

    def take(self, entity_ids: Sequence[int]) -> None:
        """Make the index say of these entities what the truth says. Must run in a transaction."""
        for statement in _CLEAR:
            self._connection.execute(statement)
        if not entity_ids:
            return
        self._connection.execute(_FILL, (number_array(entity_ids),))
        self._remove()
        self._connection.execute(_ADD_SHELVES)
        laid_out = self._lay_out()
        if laid_out:
            self._add(laid_out)
        self._connection.execute(_ADD_ASIDE)
        self._forget_names()

    def forget(self) -> None:
        """Drop what was remembered of a transaction that was rolled back."""
        self._names.clear()

    def _remove(self) -> None:
        self._connection.execute(_REMOVE_ASIDE)
        self._connection.execute(_NOTE_REMOVED)
        if self._connection.changes():
            for statement in _REMOVE:
                self._connection.execute(statement)

    def _forget_names(self) -> None:
        unused: str | None = self._connection.execute(_UNUSED_NAMES).get
        if unused is not None:
            self._names.clear()
            ids = number_array([int(names_id) for names_id in unused.split(",")])
            for statement in _FORGET_NAMES:
                self._connection.execute(statement, (ids,))

    def _add(self, laid_out: Sequence[LaidOut]) -> None:
        texts = [document.text for document in laid_out]
        numbers = [number for document in laid_out for number in document[:3]]
        self._connection.execute(
            "INSERT INTO temp.texts (text) SELECT value FROM carray(?)", (text_array(texts),)
        )
        self._connection.execute(
            "INSERT INTO temp.numbers (number) SELECT value FROM carray(?)",
            (number_array(numbers),),
        )
        for statement in (_ADD_DOCUMENTS, _ADD_TEXTS, _ADD_LEAVES):
            self._connection.execute(statement)

    def _lay_out(self) -> list[LaidOut]:
        laid_out: list[LaidOut] = []
        for count, (position, scope_id, extracted) in enumerate(self._extracted()):
            document = self._document_or_none(position, scope_id, extracted)
            if document is not None:
                laid_out.append(document)
            if count % POLITE_STEP == POLITE_STEP - 1:
                time.sleep(0)
        return laid_out

    def _extracted(self) -> Iterable[tuple[int, int, str]]:
        positions, scopes, texts = self._connection.execute(_EXTRACTED).fetchall()[0]
        if positions is None:
            return ()
        rows = texts.split(_ROW)
        numbers = list(map(int, positions.split(",")))
        if len(rows) != len(numbers):  # a leaf holds the character between the rows
            return self._connection.execute(_EXTRACTED_ONE).fetchall()
        return zip(numbers, map(int, scopes.split(",")), rows, strict=True)

    def _document_or_none(self, position: int, scope_id: int, extracted: str) -> LaidOut | None:
        """Return how a value is laid out; None if it holds a character that we separate with."""
        parts = extracted.split(PART)
        if len(parts) != 6 or NUL in extracted:
            return None
        names, name_count, scalars, scalar_count, odd_numbers, has_escapes = parts
        if not (_is_split(names, name_count) and _is_split(scalars, scalar_count)):
            return None
        found = self._names.get((scope_id, names)) or self._names_of(
            scope_id, names, is_empty=name_count == "0"
        )
        if odd_numbers != "0" or has_escapes != "0":
            own = self._spelled(position) - found.names
            if any(SEPARATOR in leaf or NUL in leaf for leaf in own):
                return None
        elif scalar_count == "0":
            own = frozenset[str]()
        else:
            own = set(scalars.split(SEPARATOR)) - found.names
        folded = fold(SEPARATOR.join(own))
        total = found.total + len(folded) - max(0, len(own) - 1)
        return LaidOut(position, found.names_id, total, space_out(folded) + SEPARATOR)

    def _spelled(self, position: int) -> set[str]:
        """Return the leaves of a value as Python spells them; its tokens come from there, too."""
        value = json.loads(self._connection.execute(_BODY, (position,)).get)
        canonical = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self._connection.execute(_RESPELL, (position, canonical))
        return set(leaves(value))

    def _names_of(self, scope_id: int, spelled: str, *, is_empty: bool) -> NamesSet:
        names = frozenset(() if is_empty else spelled.split(SEPARATOR))
        joined = SEPARATOR.join(sorted(names))
        folded = fold(joined)
        known: int | None = self._connection.execute(_FIND_NAMES, (scope_id, joined)).get
        if known is None:
            names_id: int = self._connection.execute(_LAST_NAMES, documents_of(scope_id)).get + 1
            text = space_out(folded) + SEPARATOR
            self._connection.execute(_ADD_NAMES, (names_id, scope_id, joined, text))
            self._connection.execute(_INDEX_NAMES, (names_id, text))
        else:
            names_id = known
        if len(self._names) >= NAMES_REMEMBERED:
            self._names.clear()
        found = NamesSet(names_id, names, len(folded) - max(0, len(names) - 1))
        self._names[scope_id, spelled] = found
        return found


def _is_split(text: str, count: str) -> bool:
    """Return whether the separators in `text` are only those between its `count` leaves."""
    return text.count(SEPARATOR) == max(0, int(count) - 1)
