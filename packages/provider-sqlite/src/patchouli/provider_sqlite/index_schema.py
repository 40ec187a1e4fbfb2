"""The tables of the index database, and whether a file found beside the truth can be used.

Everything here is derived. A file that is missing, damaged, of another program, of another layout
or of another truth is deleted and built anew; nothing is ever migrated.

Numbers. A document is the single active head of an entity; its number holds scope and entity, so
the documents of a scope lie together in every table and every posting list, and a query costs what
its scope holds (`document_number`). A shelf is one type of one scope.

Leaves that many documents of a scope share (member names, values that never change) are stored once
as a set (`shared`), numbered in the same way; a document names its set, and its own text has none
of them. The leaves of a value are its own and those of its set.

Entities that are no document but may match (several heads, or text that cannot be laid out) are
listed in `aside` and evaluated from the truth.

Places (`index_leaves.py`) are numbered for all scopes together. There can be any number of them if
member names are data, so past `PLACES_NUMBERED` all new ones share the number 0.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

if TYPE_CHECKING:
    from patchouli.provider_sqlite.connection import Connection

LAYOUT: Final = 1  # changes whenever tables or tokens do; another number means: build anew
ENTITY_BITS: Final = 37  # 137 thousand million entities, 67 million scopes
ENTITY_MASK: Final = (1 << ENTITY_BITS) - 1
PLACES_NUMBERED: Final = 1 << 18
ALL_BUILT: Final = ENTITY_MASK + 1

# Everything that extraction depends on beside our own code: keys are spelled by SQLite, folded by
# Python's Unicode tables.
ENGINE: Final = f"sqlite {apsw.sqlite_lib_version()} unicode {unicodedata.unidata_version}"

STATE: Final = """
CREATE TABLE state (
    singleton      INTEGER PRIMARY KEY CHECK (singleton = 1),
    layout         INTEGER NOT NULL,
    engine         TEXT NOT NULL,
    incarnation    TEXT NOT NULL,
    watermark      INTEGER NOT NULL,
    token          TEXT,
    built_through  INTEGER NOT NULL
) STRICT
"""
SHELF: Final = """
CREATE TABLE shelf (
    shelf_id  INTEGER PRIMARY KEY,
    scope_id  INTEGER NOT NULL,
    type      TEXT NOT NULL,
    UNIQUE (scope_id, type)
) STRICT
"""
SHARED: Final = """
CREATE TABLE shared (
    shared_id  INTEGER PRIMARY KEY,
    scope_id   INTEGER NOT NULL,
    leaves     TEXT NOT NULL,
    text       TEXT NOT NULL,
    UNIQUE (scope_id, leaves)
) STRICT
"""
PLACE: Final = """
CREATE TABLE place (
    place_id  INTEGER PRIMARY KEY,
    place     TEXT NOT NULL UNIQUE
) STRICT
"""
DOCUMENT: Final = """
CREATE TABLE document (
    document_id  INTEGER PRIMARY KEY,
    shelf_id     INTEGER NOT NULL,
    recorded_at  INTEGER NOT NULL,
    id           TEXT NOT NULL,
    shared_id    INTEGER NOT NULL,
    total        INTEGER NOT NULL,
    text         TEXT NOT NULL
) STRICT
"""
DOCUMENT_NEWEST: Final = """
CREATE INDEX document_newest ON document (shelf_id, recorded_at DESC, id)
"""
DOCUMENT_SHARED: Final = "CREATE INDEX document_shared ON document (shared_id, total)"
ASIDE: Final = """
CREATE TABLE aside (
    scope_id   INTEGER NOT NULL,
    entity_id  INTEGER NOT NULL,
    PRIMARY KEY (scope_id, entity_id)
) STRICT, WITHOUT ROWID
"""

_TRIGRAMS: Final = (
    "content='', contentless_delete=1, detail=none, tokenize='trigram case_sensitive 1'"
)
TEXT_INDEX: Final = f"CREATE VIRTUAL TABLE text_index USING fts5(text, {_TRIGRAMS})"
SHARED_INDEX: Final = f"CREATE VIRTUAL TABLE shared_index USING fts5(text, {_TRIGRAMS})"

# Every ASCII character but the separator (and U+0000) is part of a token.
_TOKEN_CHARACTERS: Final = "".join(
    chr(code) for code in range(1, 128) if code != 0x1F and not chr(code).isalnum()
)
_TOKENS: Final = f"ascii tokenchars '{_TOKEN_CHARACTERS.replace(chr(39), chr(39) * 2)}'"
LEAF_INDEX: Final = (
    "CREATE VIRTUAL TABLE leaf_index USING fts5(leaves, content='', contentless_delete=1, "
    f'detail=none, tokenize="{_TOKENS.replace(chr(34), chr(34) * 2)}")'
)

STATEMENTS: Final = (
    STATE,
    SHELF,
    SHARED,
    PLACE,
    DOCUMENT,
    DOCUMENT_NEWEST,
    DOCUMENT_SHARED,
    ASIDE,
    TEXT_INDEX,
    SHARED_INDEX,
    LEAF_INDEX,
)
FULL_TEXT_TABLES: Final = ("text_index", "shared_index", "leaf_index")

READ_STATE: Final = "SELECT layout, engine, incarnation, watermark, token, built_through FROM "


class State(NamedTuple):
    """How far an index has come: it is the truth at `watermark` for entities up to `built_through`.

    `token` is the causal token of the change at the watermark; it tells a truth that went another
    way from there.
    """

    incarnation: str
    watermark: int
    token: str | None
    built_through: int


def document_number(scope_id: int, entity_id: int) -> int:
    """Return the number of the document of an entity."""
    return scope_id << ENTITY_BITS | entity_id


def documents_of(scope_id: int) -> tuple[int, int]:
    """Return the least and the greatest number that a document of the scope can have."""
    return scope_id << ENTITY_BITS, scope_id << ENTITY_BITS | ENTITY_MASK


def create(connection: Connection, state: State) -> None:
    """Create the tables in an empty file, in one transaction."""
    connection.execute("BEGIN")  # not IMMEDIATE, which would lock the attached truth as well
    for statement in STATEMENTS:
        connection.execute(statement)
    connection.execute("INSERT INTO state VALUES (1, ?, ?, ?, ?, ?, ?)", (LAYOUT, ENGINE, *state))
    connection.execute("COMMIT")


def read_state(connection: Connection, database: str) -> State | None:
    """Return how far the index attached as `database` has come; None if it is not of this layout.

    Raises:
        apsw.Error: It is damaged, or no index at all.
    """
    row = connection.execute(f"{READ_STATE}{database}.state").fetchone()
    if row is None or row[:2] != (LAYOUT, ENGINE):
        return None
    return State(*row[2:])
