"""A run of the store: its start, which is one transaction, and its clean stop, which is another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from patchouli.provider import INTEGER_MAX, CorruptStoreError, RuntimeGeneration
from patchouli.provider_sqlite.connection import transaction
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.migrations import bring_up_to_date, require_ours
from patchouli.provider_sqlite.ownership import Witness
from patchouli.provider_sqlite.units import expire_overdue, read_sealed

if TYPE_CHECKING:
    from patchouli.provider_sqlite.connection import Connection

SECRET_BYTES: Final = 32

CREATE_RUNTIME: Final = """
INSERT INTO runtime (singleton, generation, running, incarnation, secret, last_cursor)
VALUES (1, 0, 0, ?, ?, 0)
"""
RUNTIME: Final = "SELECT generation, running, incarnation, secret FROM runtime"
REPLACE_INCARNATION: Final = "UPDATE runtime SET incarnation = ?, secret = ?"
START: Final = """
UPDATE runtime SET generation = ?, running = 1, started_at = ?, stopped_at = NULL
"""
STOP: Final = "UPDATE runtime SET running = 0, stopped_at = ?"
LAST_CURSOR: Final = """
SELECT max(last_cursor, (SELECT ifnull(max(cursor), 0) FROM change)) FROM runtime
"""


class Chance(NamedTuple):
    """Fresh random values, drawn before the start so that the transaction needs none."""

    incarnation: str
    secret: bytes


def start_run(
    connection: Connection,
    *,
    witness: Witness | None,
    chance: Chance,
    now_unix_ms: int,
) -> RuntimeGeneration:
    """Make the database ours and of this format, and count one more generation, or change nothing.

    Overdue work units are expired; those that are sealed and wait for their end are told.

    A database that ran before and is not the one that `witness` saw last, or is behind it, gets the
    incarnation and the secret of `chance`.

    Raises:
        FormatVersionError: It belongs to another program or a newer release.
        CorruptStoreError: It says that it is ours and is not complete.
    """
    with transaction(connection):
        found = require_ours(connection)
        bring_up_to_date(connection, found)
        if found == 0:
            connection.execute(CREATE_RUNTIME, (chance.incarnation, chance.secret))
        row = connection.execute(RUNTIME).get
        if row is None:
            raise CorruptStoreError(KIND, "initialize", "the database has lost its runtime state")
        generation, running, incarnation, secret = row
        if generation >= INTEGER_MAX:
            raise CorruptStoreError(KIND, "initialize", "the generation counter is exhausted")
        if generation > 0 and not _is_continued(connection, witness, generation, incarnation):
            incarnation, secret = chance
            connection.execute(REPLACE_INCARNATION, chance)
        while expire_overdue(connection, now_unix_ms=now_unix_ms):
            pass
        sealed_units = read_sealed(connection)
        connection.execute(START, (generation + 1, now_unix_ms))
    return RuntimeGeneration(
        generation=generation + 1,
        recovered_after_unclean_shutdown=bool(running),
        incarnation=incarnation,
        secret=secret,
        sealed_units=sealed_units,
    )


def stop_run(connection: Connection, *, now_unix_ms: int) -> None:
    """Write down that this run ended cleanly, with overdue work units expired."""
    with transaction(connection):
        while expire_overdue(connection, now_unix_ms=now_unix_ms):
            pass
        connection.execute(STOP, (now_unix_ms,))


def read_last_cursor(connection: Connection) -> int:
    """Return the greatest cursor that was ever given out."""
    return connection.execute(LAST_CURSOR).get


def _is_continued(
    connection: Connection, witness: Witness | None, generation: int, incarnation: str
) -> bool:
    """Return whether the database is the one that was locked here before, and not an older copy."""
    if witness is None:
        return False
    if witness.incarnation != incarnation:
        return True  # another database was put here; it brings an incarnation of its own
    return generation >= witness.generation and read_last_cursor(connection) >= witness.last_cursor
