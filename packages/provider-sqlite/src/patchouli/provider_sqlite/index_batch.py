"""One batch of entities taken from the truth into the index, in one transaction.

The truth is attached to the index connection and its rows are copied into a temporary table first,
so that a batch pins the log of the truth no longer than that takes. From there rows are walked,
tokenized and written by SQL, without the interpreter. Python sees a batch as one text
of all leaves and gives back two arrays of texts, to be tokenized as they are: that is the part that
folding and splitting text needs, and no row is fetched or written one by one. Each single fetch
would give the interpreter away and wait for it again.

Documents are written in ascending order of their numbers, because a full-text table closes a
segment whenever the number goes back.
"""

from __future__ import annotations

import json
import time
from itertools import compress
from typing import TYPE_CHECKING, Final

from patchouli.provider_sqlite.connection import number_array, text_array
from patchouli.provider_sqlite.index_leaves import (
    CONTAINER,
    EXTRACT,
    PART,
    SEPARATOR,
    WHOLE_VALUE,
    shape_of,
    shape_of_nodes,
    tokens_of,
    walk,
)
from patchouli.provider_sqlite.index_numbers import number_tokens
from patchouli.provider_sqlite.index_patterns import Pattern
from patchouli.provider_sqlite.index_schema import ENTITY_BITS
from patchouli.provider_sqlite.index_terms import Terms
from patchouli.provider_sqlite.index_text import NUL, lay_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.provider_sqlite.connection import Connection

PATTERNS_REMEMBERED: Final = 2048  # each some KB; beyond, all are forgotten
# Documents laid out before others may have the interpreter. The event loop and the writer of the
# truth need it every few hundred microseconds; making them ask for it costs 5 ms each time.
POLITE_STEP: Final = 2

_ROW: Final = "\x1e"  # between the rows of one aggregated text
_RESERVED: Final = (NUL, CONTAINER, PART, _ROW, SEPARATOR)

TEMPORARY: Final = (
    """CREATE TEMP TABLE batch (
        position INTEGER PRIMARY KEY, document_id INTEGER, entity_id INTEGER, scope_id INTEGER,
        type TEXT, id TEXT, recorded_at INTEGER, head_count INTEGER, state INTEGER, body TEXT)""",
    "CREATE TEMP TABLE texts (ordinal INTEGER PRIMARY KEY, text TEXT)",
    "CREATE TEMP TABLE tokens (ordinal INTEGER PRIMARY KEY, tokens TEXT)",
    "CREATE TEMP TABLE numbers (ordinal INTEGER PRIMARY KEY, number INTEGER)",
    "CREATE TEMP TABLE removed (document_id INTEGER PRIMARY KEY, shared_id INTEGER)",
)

_FILL: Final = f"""
INSERT INTO temp.batch (document_id, entity_id, scope_id, type, id, recorded_at, head_count, state,
                        body)
SELECT e.scope_id << {ENTITY_BITS} | e.entity_id, e.entity_id, e.scope_id, e.type, e.id,
       e.recorded_at, e.head_count, e.state, e.value
FROM carray(?) AS wanted CROSS JOIN truth.entity AS e ON e.entity_id = wanted.value
ORDER BY e.scope_id, e.entity_id
"""  # noqa: S608 - of constants
_EXTRACTED: Final = f"""
SELECT group_concat(position), group_concat(scope_id), group_concat(extracted, char(30))
FROM (SELECT position, scope_id, ({EXTRACT}) AS extracted
      FROM temp.batch WHERE head_count = 1 AND state = 0 ORDER BY position)
"""  # noqa: S608 - of constants
_BODY: Final = "SELECT body FROM temp.batch WHERE position = ?"

_NOTE_REMOVED: Final = """
INSERT INTO temp.removed SELECT d.document_id, d.shared_id
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
_UNUSED_SHARED: Final = """
SELECT group_concat(DISTINCT shared_id) FROM temp.removed
WHERE NOT EXISTS (SELECT 1 FROM document AS d WHERE d.shared_id = removed.shared_id)
"""

_ADD_SHELVES: Final = """
INSERT OR IGNORE INTO shelf (scope_id, type) SELECT DISTINCT scope_id, type FROM temp.batch
"""
_HOLD_TEXTS: Final = "INSERT INTO temp.texts (text) SELECT value FROM carray(?)"
_HOLD_TOKENS: Final = "INSERT INTO temp.tokens (tokens) SELECT value FROM carray(?)"
_HOLD_NUMBERS: Final = "INSERT INTO temp.numbers (number) SELECT value FROM carray(?)"
_ADD_DOCUMENTS: Final = """
INSERT INTO document (document_id, shelf_id, recorded_at, id, shared_id, total, text)
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
SELECT b.document_id, t.text
FROM temp.texts AS t
CROSS JOIN temp.numbers AS p ON p.ordinal = 3 * t.ordinal - 2
CROSS JOIN temp.batch AS b ON b.position = p.number
ORDER BY t.ordinal
"""
_ADD_LEAVES: Final = """
INSERT INTO leaf_index (rowid, leaves)
SELECT b.document_id, t.tokens
FROM temp.tokens AS t
CROSS JOIN temp.numbers AS p ON p.ordinal = 3 * t.ordinal - 2
CROSS JOIN temp.batch AS b ON b.position = p.number
ORDER BY t.ordinal
"""
_ADD_CONFLICTED: Final = """
INSERT INTO aside (scope_id, entity_id) SELECT scope_id, entity_id FROM temp.batch
WHERE head_count > 1
"""
_ADD_ASIDE: Final = """
INSERT INTO aside (scope_id, entity_id) SELECT scope_id, entity_id FROM temp.batch
WHERE position IN (SELECT value FROM carray(?))
"""
_CLEAR: Final = (
    "DELETE FROM temp.batch",
    "DELETE FROM temp.texts",
    "DELETE FROM temp.tokens",
    "DELETE FROM temp.numbers",
    "DELETE FROM temp.removed",
)


class Documents:
    """What is stored of the documents of a batch beside their rows in the truth, in three lists.

    `numbers` holds three for each: its position in the batch, its shared leaves, its total.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.texts: list[str] = []
        self.tokens: list[str] = []
        self.aside: list[int] = []


class Batches:
    """The part of an index that writes, over a connection to which the truth is attached."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._terms = Terms(connection)
        self._patterns: dict[str, Pattern] = {}
        for statement in TEMPORARY:
            connection.execute(statement)

    def load(self, entity_ids: Sequence[int]) -> None:
        """Copy from the truth what it says of these entities, for `take`."""
        for statement in _CLEAR:
            self._connection.execute(statement)
        if entity_ids:
            self._connection.execute(_FILL, (number_array(entity_ids),))

    def take(self) -> int:
        """Make the index say of the loaded entities what was loaded; must run in a transaction.

        Return how many documents were removed, most of them to be replaced.
        """
        removed = self._remove()
        self._connection.execute(_ADD_SHELVES)
        documents = self._lay_out()
        if documents.texts:
            self._add(documents)
        self._connection.execute(_ADD_CONFLICTED)
        if documents.aside:
            self._connection.execute(_ADD_ASIDE, (number_array(documents.aside),))
        if removed:
            self._forget_shared()
        return removed

    def forget(self) -> None:
        """Drop what was remembered of a transaction that was rolled back."""
        self._terms.forget()
        self._patterns.clear()

    def _remove(self) -> int:
        """Remove what the index says of these entities; return how many had documents."""
        self._connection.execute(_REMOVE_ASIDE)
        self._connection.execute(_NOTE_REMOVED)
        removed = self._connection.changes()
        if removed:
            for statement in _REMOVE:
                self._connection.execute(statement)
        return removed

    def _forget_shared(self) -> None:
        unused: str | None = self._connection.execute(_UNUSED_SHARED).get
        if unused is not None:
            self._terms.forget_shared([int(shared_id) for shared_id in unused.split(",")])

    def _add(self, documents: Documents) -> None:
        self._connection.execute(_HOLD_TEXTS, (text_array(documents.texts),))
        self._connection.execute(_HOLD_TOKENS, (text_array(documents.tokens),))
        self._connection.execute(_HOLD_NUMBERS, (number_array(documents.numbers),))
        for statement in (_ADD_DOCUMENTS, _ADD_TEXTS, _ADD_LEAVES):
            self._connection.execute(statement)

    def _lay_out(self) -> Documents:
        """Return the documents of the batch. This loop is all of Python's part in usual values."""
        documents = Documents()
        positions, scopes, rows = self._connection.execute(_EXTRACTED).fetchall()[0]
        if positions is None:
            return documents
        batch = zip(
            map(int, positions.split(",")),
            map(int, scopes.split(",")),
            rows.split(_ROW),
            strict=True,
        )
        patterns, shared_of = self._patterns, self._terms.shared
        for count, (position, scope_id, row) in enumerate(batch):
            if count % POLITE_STEP == POLITE_STEP - 1:
                time.sleep(0)
            paths, _, nodes = row.partition(PART)
            if nodes and PART not in nodes:
                pattern = patterns.get(paths) or self._pattern(paths)
                leaves = nodes.split(SEPARATOR)
            else:
                walked = self._walk(position)
                if walked is None:
                    documents.aside.append(position)
                    continue
                pattern, leaves = walked
            is_long = len(nodes) > WHOLE_VALUE
            usual = pattern.usual
            if usual is not None and usual.constant_at(leaves) == usual.constants:
                variable = usual.variable_at(leaves)
                own = set(variable) - usual.not_own
                shared = shared_of(scope_id, usual.shared)
                tokens = usual.tokens + tokens_of(usual.prefixes, variable, may_be_long=is_long)
                tokens += number_tokens(usual.prefixes, variable)
            else:
                pattern.learn(leaves)
                shape = pattern.shape
                own = set(leaves) - shape.names_and_container
                shared = shared_of(scope_id, pattern.names)
                at_leaves = list(compress(leaves, shape.is_leaf))
                tokens = tokens_of(shape.prefixes, at_leaves, may_be_long=is_long)
                tokens += number_tokens(shape.prefixes, at_leaves)
            text, length = lay_out(own)
            documents.numbers += (position, shared.shared_id, shared.total + length)
            documents.texts.append(text)
            documents.tokens.append(tokens)
        return documents

    def _pattern(self, paths: str) -> Pattern:
        if len(self._patterns) >= PATTERNS_REMEMBERED:
            self._patterns.clear()
        self._patterns[paths] = pattern = Pattern(shape_of(paths, self._terms.prefix))
        return pattern

    def _walk(self, position: int) -> tuple[Pattern, list[str]] | None:
        """Walk a value in Python; None if it holds a character that separates or ends texts."""
        nodes = walk(json.loads(self._connection.execute(_BODY, (position,)).get))
        for node in nodes:
            for text in (node.name or "", "" if node.is_container else node.leaf):
                if any(character in text for character in _RESERVED):
                    return None
        shape = shape_of_nodes(nodes, self._terms.prefix)
        return Pattern(shape), [node.leaf for node in nodes]
