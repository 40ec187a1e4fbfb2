"""Which databases are ours, and how one of an older format becomes one of this release.

Every step stands for one number of `PRAGMA user_version` and runs in the transaction of the start
that found the older database: a start that fails leaves the database as it was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import FormatVersionError
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.schema import APPLICATION_ID, FORMAT_VERSION, STATEMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patchouli.provider_sqlite.connection import Connection

STEPS: Final[Mapping[int, Callable[[Connection], None]]] = {}
"""By the format they start from: `STEPS[1]` makes a database of format 2 from one of format 1."""


def require_ours(connection: Connection) -> int:
    """Return the format number of the database, 0 if it is empty; change nothing.

    Raises:
        FormatVersionError: It belongs to another program, or to a newer release.
    """
    application_id = connection.execute("PRAGMA application_id").get
    found = connection.execute("PRAGMA user_version").get
    if application_id == APPLICATION_ID and found > FORMAT_VERSION:
        detail = (
            f"the database has format {found}, this release knows formats up to {FORMAT_VERSION}; "
            "run the newer release that wrote it"
        )
        raise FormatVersionError(KIND, "initialize", detail)
    if application_id == APPLICATION_ID and found >= 1:
        return found
    is_empty = connection.execute("SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema)").get
    if application_id == 0 and found == 0 and is_empty:
        return 0
    detail = (
        f"the file is a SQLite database of another program (application {application_id:#x}, "
        f"format {found}); name another path"
    )
    raise FormatVersionError(KIND, "initialize", detail)


def bring_up_to_date(connection: Connection, found: int) -> None:
    """Create the tables in an empty database, or take an older one forward step by step.

    Must run in a transaction; the number is part of it.
    """
    if found == FORMAT_VERSION:
        return
    if found == 0:
        for statement in STATEMENTS:
            connection.execute(statement)
    else:
        for number in range(found, FORMAT_VERSION):
            STEPS[number](connection)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
