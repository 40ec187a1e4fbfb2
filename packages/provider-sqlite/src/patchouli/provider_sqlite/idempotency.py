"""Idempotency records: the answer of a mutation, by the identity under which it was accepted.

A record is stored in the transaction of its mutation. It counts as absent from its end on, by the
clock of whoever asks, whether or not its row is still there; so does a record that is staged in a
work unit which is overdue. `purge` removes the rows later, in small steps and beside the requests.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from patchouli.provider import IdentityTaken, Replayed
from patchouli.provider_sqlite.budget import UNBOUNDED, OverBudgetError
from patchouli.provider_sqlite.bulk import RowsStatement
from patchouli.provider_sqlite.codec import within

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.provider import ControlKey, IdempotencyRecord
    from patchouli.provider_sqlite.connection import Connection, SqlValue

    Known = Replayed | IdentityTaken | None

FIND: Final = """
SELECT r.request = ?2, iif(octet_length(r.result) <= ?3, r.result, NULL), r.expires_at,
       r.unit_id, u.expires_at
FROM idempotency r LEFT JOIN work_unit u USING (unit_id) WHERE r.digest = ?1
"""
# number of the commit, digest, request -> the same number and the columns of FIND
FIND_SEVERAL: Final = RowsStatement(
    """
SELECT json_group_array(json_array(
    v.column1, r.request = v.column3, r.result, r.expires_at, r.unit_id, u.expires_at))
FROM""",
    """v CROSS JOIN idempotency r ON r.digest = v.column2
LEFT JOIN work_unit u ON u.unit_id = r.unit_id
""",
    width=3,
)
# A row that is in the way counts as absent: it was looked up before.
STORE: Final = RowsStatement(
    """
INSERT INTO idempotency (digest, identity, request, result, expires_at, unit_id)
SELECT column1, column2, column3, column4, column5, column6 FROM""",
    """WHERE column1 IS NOT NULL
ON CONFLICT (digest) DO UPDATE SET request = excluded.request, result = excluded.result,
    expires_at = excluded.expires_at, unit_id = excluded.unit_id
""",
    width=6,
)
REPLACE_RESULT: Final = "UPDATE idempotency SET result = ?3 WHERE digest = ?1 AND unit_id = ?2"
DROP_ENDED: Final = "DELETE FROM idempotency WHERE unit_id = ? AND expires_at <= ?"
PUBLISH: Final = "UPDATE idempotency SET unit_id = NULL WHERE unit_id = ?"
FORGET: Final = "DELETE FROM idempotency WHERE unit_id = ?"
# Its answer makes a record as long as a value.
ENDED: Final = """
SELECT json_group_array(json_array(record_id, bytes)) FROM (
    SELECT record_id, octet_length(result) AS bytes FROM idempotency INDEXED BY idempotency_expiry
    WHERE expires_at <= ? AND unit_id IS NULL ORDER BY expires_at LIMIT ?)
"""
PURGE: Final = "DELETE FROM idempotency WHERE record_id IN (SELECT value FROM json_each(?))"


def find_record(
    connection: Connection,
    identity: ControlKey,
    request_json: str,
    *,
    now_unix_ms: int,
    own_unix_ms: int,
    unit_id: int | None = None,
    value_bytes: int = UNBOUNDED,
) -> Known:
    """Return what is known under an identity, None if it is free.

    `now_unix_ms` is the time of who asks, by which records end; a unit is overdue by either clock.
    `unit_id` is the work unit of the request, whose staged records it may see.

    Raises:
        OverBudgetError: The stored answer is longer than `value_bytes`.
    """
    row = connection.execute(FIND, (digest_of(identity), request_json, value_bytes)).fetchone()
    if row is None:
        return None
    return _known(*row, now_unix_ms=now_unix_ms, own_unix_ms=own_unix_ms, unit_id=unit_id)


def find_records(
    connection: Connection, asked: Sequence[tuple[int, IdempotencyRecord]], *, own_unix_ms: int
) -> dict[int, Replayed | IdentityTaken]:
    """Return what is known under the identities of immediate commits, by the number of each."""
    cells: list[SqlValue] = []
    for number, record in asked:
        cells += (number, digest_of(record.identity), record.request_json)
    times = {number: record.now_unix_ms for number, record in asked}
    found = {
        number: _known(*row, now_unix_ms=times[number], own_unix_ms=own_unix_ms, unit_id=None)
        for text in FIND_SEVERAL.run(connection, cells)
        for number, *row in json.loads(text)
    }
    return {number: known for number, known in found.items() if known is not None}


def store_records(
    connection: Connection, records: Iterable[IdempotencyRecord], *, unit_id: int | None = None
) -> None:
    """Store records under identities that are free, published or staged in a work unit."""
    cells: list[SqlValue] = []
    for record in records:
        cells += (digest_of(record.identity), record.identity, record.request_json)
        cells += (record.result_json, record.expires_at_unix_ms, unit_id)
    STORE.run(connection, cells)


def replace_result(
    connection: Connection, unit_id: int, identity: ControlKey, result_json: str
) -> None:
    """Replace the answer of a record that the unit has staged; of any other one, do nothing."""
    connection.execute(REPLACE_RESULT, (digest_of(identity), unit_id, result_json))


def publish_records(connection: Connection, unit_id: int, *, now_unix_ms: int) -> None:
    """Make the records that the unit has staged records like any other; ended ones go."""
    connection.execute(DROP_ENDED, (unit_id, now_unix_ms))
    connection.execute(PUBLISH, (unit_id,))


def forget_records(connection: Connection, unit_id: int) -> None:
    """Remove the records that the unit has staged."""
    connection.execute(FORGET, (unit_id,))


def purge(
    connection: Connection, *, ended_by_unix_ms: int, limit: int, limit_bytes: int
) -> tuple[int, bool]:
    """Remove at most `limit` published records that ended by then.

    Returns how many, and whether it stopped because their answers are long. Must run in a
    transaction.
    """
    ended = json.loads(connection.execute(ENDED, (ended_by_unix_ms, limit)).get)
    number = within([length for _, length in ended], most=limit, most_bytes=limit_bytes)
    if number:
        connection.execute(PURGE, (json.dumps([record for record, _ in ended[:number]]),))
    return number, number < len(ended)


def digest_of(identity: ControlKey) -> bytes:
    """Return the key under which the record of an identity is found."""
    return blake2b(identity.encode(), digest_size=16).digest()


def _known(
    is_same: int,
    result: str | None,
    expires_at: int,
    staged_in: int | None,
    unit_expires_at: int | None,
    *,
    now_unix_ms: int,
    own_unix_ms: int,
    unit_id: int | None,
) -> Known:
    if expires_at <= now_unix_ms:
        return None
    if unit_expires_at is not None and unit_expires_at <= max(now_unix_ms, own_unix_ms):
        return None
    if not is_same or (staged_in is not None and staged_in != unit_id):
        return IdentityTaken()
    if result is None:
        raise OverBudgetError
    return Replayed(result_json=result, is_staged=staged_in is not None)
