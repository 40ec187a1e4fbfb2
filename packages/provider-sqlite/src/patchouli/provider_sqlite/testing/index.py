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

# Sets of member names are numbered in the order in which they came, so they are compared by name.
# The leaves of a text stand in any order, so trigrams that reach from one into the next, or tell
# where one begins, are left out.
_TABLES: Final = {
    "documents": """
        SELECT d.document_id, s.scope_id, s.type, d.id, d.recorded_at, d.total, n.names, d.text
        FROM document d JOIN shelf s USING (shelf_id) JOIN names n USING (names_id)
    """,
    "names": "SELECT scope_id, names, text FROM names",
    "entities that stand aside": "SELECT scope_id, entity_id FROM aside",
    "trigrams of texts": """
        SELECT term, doc FROM temp.text_index
        WHERE instr(term, char(31)) NOT IN (1, 2) OR unicode(substr(term, 2)) >= 0x2000
    """,
    "trigrams of names": """
        SELECT v.term, n.scope_id, n.names
        FROM temp.names_index v JOIN names n ON n.names_id = v.doc
    """,
    "tokens of leaves": "SELECT term, doc FROM temp.leaf_index",
}


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
        found: dict[str, set[tuple[object, ...]]] = {}
        for name, statement in _TABLES.items():
            rows = connection.execute(statement).fetchall()
            found[name] = {_with_ordered_leaves(row) for row in rows}
            if name != "documents" and len(found[name]) != len(rows):
                raise AssertionError(f"{name}: a row is there twice")
        return found
    finally:
        connection.close()


def _with_ordered_leaves(row: tuple[object, ...]) -> tuple[object, ...]:
    *before, last = row
    return (*before, *sorted(last.split(SEPARATOR))) if isinstance(last, str) else row
