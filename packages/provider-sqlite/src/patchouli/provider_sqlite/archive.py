"""A database that is only read, past the provider: while a store runs on it, or while none does.

For tools of who keeps the database: what a provider never moves (the whole history of an entity)
can be had here. Nothing is written, no run is begun, no lock is taken and no log is emptied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Self

import apsw
from patchouli.provider import FormatVersionError, ScopeText, UnavailableError, Version
from patchouli.provider_sqlite.codec import VersionRow, version_of
from patchouli.provider_sqlite.connection import Connection, Disk, open_reader
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.migrations import require_ours
from patchouli.provider_sqlite.ownership import validate_existing
from patchouli.provider_sqlite.references import read_references
from patchouli.provider_sqlite.schema import FORMAT_VERSION

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from patchouli.provider import EntityKey, ReferencesPage, ReferencesPlan

CACHE_KIB: Final = 8192

INCARNATION: Final = "SELECT incarnation FROM runtime"
SCOPES: Final = """
SELECT s.text FROM scope s CROSS JOIN entity e
    ON e.scope_id = s.scope_id AND e.type = ?1 AND e.id = ?2
ORDER BY s.text LIMIT ?3
"""
HISTORY: Final = """
WITH found AS (
    SELECT e.entity_id FROM scope s JOIN entity e USING (scope_id)
    WHERE s.text = ?1 AND e.type = ?2 AND e.id = ?3
)
SELECT 1, version, state, value, parents, recorded_at
FROM entity WHERE entity_id IN found AND version IS NOT NULL
UNION ALL
SELECT superseded_cursor IS NULL, version, state, value, parents, recorded_at
FROM version WHERE entity_id IN found
"""


class Archive:
    """A database opened for reading; used from one thread, to be closed by leaving it."""

    def __init__(self, path: Path) -> None:
        """Open the database at `path`, which must be there.

        Raises:
            UnavailableError: There is none, or it cannot be read now.
            FormatVersionError: It belongs to another program or release, or nothing ever ran on it.
            UnsafeStoreError: It is not safe from other users.
            CorruptStoreError: It cannot be read.
        """
        validate_existing(path)
        if not path.is_file():
            raise UnavailableError(KIND, "open", f"there is no database at {path}")
        try:
            self._connection: Final[Connection] = open_reader(
                path.resolve(), cache_kib=CACHE_KIB, disk=Disk()
            )
        except apsw.Error as error:
            raise translate(error, "open") from error
        try:
            self._connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            if require_ours(self._connection) != FORMAT_VERSION:
                detail = f"{path} is empty or of an older release; run `patchouli-db serve` once"
                raise FormatVersionError(KIND, "open", detail)
            self.incarnation: Final[str] = self._connection.execute(INCARNATION).get
        except apsw.Error as error:
            self._connection.close()
            raise translate(error, "open") from error
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()

    def scopes_of(self, type_: str, id_: str, *, limit: int) -> list[ScopeText]:
        """Return the scopes that have an entity of this type and id, in order, `limit` at most."""
        try:
            rows = self._connection.execute(SCOPES, (type_, id_, limit)).fetchall()
        except apsw.Error as error:
            raise translate(error, "scopes_of") from error
        return [ScopeText(text) for (text,) in rows]

    def history(self, key: EntityKey) -> tuple[list[Version], list[Version]]:
        """Return the heads of an entity, ascending by id, and all its retained versions.

        Raises:
            CorruptStoreError: The database cannot be read.
        """
        try:
            rows = self._connection.execute(HISTORY, (key.scope, key.type, key.id)).fetchall()
        except apsw.Error as error:
            raise translate(error, "history") from error
        versions: list[Version] = []
        heads: list[Version] = []
        for is_head, *columns in rows:
            version, state, value, parents, recorded_at = columns
            row: VersionRow = (version, state, value, parents, recorded_at)
            versions.append(version_of(row))
            if is_head:
                heads.append(versions[-1])
        return sorted(heads, key=lambda head: head.id), versions

    def read_references(self, plan: ReferencesPlan) -> ReferencesPage:
        """Return what versions name, as `Provider.read_references` does."""
        try:
            return read_references(self._connection, plan)
        except apsw.Error as error:
            raise translate(error, "read_references") from error
