"""Whether an index that was kept, through whatever happened, is the one that a new build makes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, cast

import apsw
from patchouli.provider_sqlite.connection import Disk
from patchouli.provider_sqlite.index_leaves import SEPARATOR
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_schema import FULL_TEXT_TABLES
from patchouli.provider_sqlite.index_store import SIDECARS, IndexStore, index_path

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider_sqlite.connection import Connection

# Which leaves a document shares with others depends on what came before it, so only all of its
# leaves together can be compared, and a posting list only with the texts of its own index.
_DOCUMENTS: Final = """
SELECT d.document_id, s.scope_id, s.type, d.id, d.recorded_at, d.total, d.text, h.text
FROM document d JOIN shelf s USING (shelf_id) JOIN shared h USING (shared_id)
"""
_ASIDE: Final = "SELECT scope_id, entity_id FROM aside"
_TOKENS: Final = """
SELECT p.place || ltrim(v.term, '0123456789'), v.doc
FROM temp.leaf_index v JOIN place p ON p.place_id
    = substr(v.term, 1, length(v.term) - length(ltrim(v.term, '0123456789')))
"""
_TRIGRAMS: Final = (
    ("text_index", "SELECT document_id, text FROM document"),
    ("shared_index", "SELECT shared_id, text FROM shared"),
)
_UNUSED: Final = """
SELECT count(*) FROM shared h
WHERE NOT EXISTS (SELECT 1 FROM document d WHERE d.shared_id = h.shared_id)
"""


def check_index(truth: Path, scratch: Path) -> None:
    """Return if the index beside `truth`, brought up to date, holds what one built anew holds.

    Nobody may be using the database. `scratch` is a directory that does not exist yet.

    Raises:
        AssertionError: It does not, or it cannot be used at all.
    """
    kept = _up_to_date(IndexStore.open(truth, IndexLimits(), Disk()), truth)
    scratch.mkdir(mode=0o700)
    copy = scratch / truth.name
    for suffix in ("", "-wal"):
        source = truth.with_name(truth.name + suffix)
        if source.exists():
            shutil.copy(source, copy.with_name(copy.name + suffix))
    built = _up_to_date(IndexStore.build(copy, IndexLimits(), Disk()), copy)
    for name, expected in built.items():
        found = kept[name]
        if found != expected:
            raise AssertionError(
                f"{name}: lacks {sorted(expected - found)[:5]}, has {sorted(found - expected)[:5]}"
            )


def drop_index(truth: Path) -> None:
    """Remove the index of `truth` as if there had never been one."""
    path = index_path(truth)
    for suffix in SIDECARS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _up_to_date(store: IndexStore | None, truth: Path) -> dict[str, set[tuple[object, ...]]]:
    if store is None:
        raise AssertionError("the index cannot be used for its truth")
    try:
        while store.catch_up() or store.build_on():
            pass
    finally:
        store.close()
    return _read(index_path(truth))


def _read(path: Path) -> dict[str, set[tuple[object, ...]]]:
    connection = cast("Connection", apsw.Connection(str(path)))
    try:
        damage = connection.execute("PRAGMA integrity_check").fetchall()
        if damage != [("ok",)]:
            raise AssertionError(f"the index is sound: {damage}")
        for table in FULL_TEXT_TABLES:
            connection.execute(
                f"CREATE VIRTUAL TABLE temp.{table} USING fts5vocab(main, {table}, instance)"
            )
        for table, texts in _TRIGRAMS:
            _check_trigrams(connection, table, dict(connection.execute(texts).fetchall()))
        if connection.execute(_UNUSED).get:
            raise AssertionError("a set of leaves is kept that no document shares")
        return {
            "documents": {
                (*row[:-2], *sorted([*_leaves(row[-2]), *_leaves(row[-1])]))
                for row in connection.execute(_DOCUMENTS)
            },
            "entities that stand aside": set(connection.execute(_ASIDE)),
            "tokens of leaves": set(connection.execute(_TOKENS)),
        }
    finally:
        connection.close()


def _leaves(text: str) -> list[str]:
    """Return the leaves of a stored text that can be told apart.

    A character that stands alone has separators around it, too, so its leaf comes in pieces.
    """
    return [piece for piece in text.split(SEPARATOR) if piece]


def _check_trigrams(connection: Connection, table: str, texts: dict[int, str]) -> None:
    listed = connection.execute(f"SELECT term, doc FROM temp.{table}").fetchall()  # noqa: S608 - of constants
    found = set(listed)
    expected = {
        (text[start : start + 3], number)
        for number, text in texts.items()
        for start in range(len(text) - 2)
    }
    if found != expected or len(found) != len(listed):
        raise AssertionError(f"{table}: {sorted(found ^ expected)[:5]}")
