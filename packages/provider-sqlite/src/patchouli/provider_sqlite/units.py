"""Work units: what one is, which state it is in, how it begins and how it ends without publication.

    absent ──first request──▶ open ──close, no drift──▶ committed
                              open ──close, drift─────▶ sealed ──published──▶ committed
                              open, sealed ──overdue or discarded──▶ expired

*Where it lies.* A row of `work_unit` says what every request of the unit must agree on, and the
baseline: the frontier of the scope as the unit was opened. What the unit has staged lies in two
tables of its own, one row for each entity and one for each version, both found by the unit: nothing
that reads what is published ever meets it, and staging writes few pages. Idempotency records that
it staged carry its number.

*What it shows.* The staged heads of an entity, else its heads at the baseline (`units_view.py`);
both are looked up by key, nothing is copied when an entity is read.

*Who works on it.* Reads do not write, except that the first request of a unit opens it and that a
request which meets an overdue unit expires it: both are works of the writer (`Enter`). Staging and
closing is `units_staging.py`, publication and drift `units_publishing.py`, retrieval
`units_search.py`. An overdue unit counts as expired for everybody from its last millisecond on,
whether or not it was swept.

*What is left of it.* Of a committed or expired unit only its row: identity, scope, policy, state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    ControlKey,
    ScopeText,
    SealedUnit,
    Unavailable,
    UnitRefused,
    UnitState,
)
from patchouli.provider_sqlite.connection import transaction
from patchouli.provider_sqlite.control import check_bounds
from patchouli.provider_sqlite.group import Entered, Frontier
from patchouli.provider_sqlite.heads import misuse
from patchouli.provider_sqlite.idempotency import forget_records

if TYPE_CHECKING:
    from patchouli.provider import Consistency, VersionId, WorkUnit
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.group import Group

UNIT_COLUMNS: Final = """u.unit_id, u.scope_id, s.text, u.policy, u.state, u.expires_at,
    u.baseline_cursor, u.baseline_token, u.sealed_by, u.accepted"""
UNIT_WIDTH: Final = 10
FIND: Final = f"""
SELECT {UNIT_COLUMNS} FROM work_unit u CROSS JOIN scope s ON s.scope_id = u.scope_id
WHERE u.identity = ?
"""  # noqa: S608 - of constants
OPEN: Final = """
INSERT INTO work_unit (identity, scope_id, policy, state, opened_at, expires_at,
                       baseline_cursor, baseline_token)
VALUES (?, ?, ?, 'open', ?, ?, ?, ?) RETURNING unit_id
"""
END: Final = """
UPDATE work_unit SET state = ?2, closed_at = ?3, sealed_by = NULL, accepted = NULL
WHERE unit_id = ?1
"""
FORGET_STAGED: Final = (
    "DELETE FROM work_unit_version WHERE unit_id = ?",
    "DELETE FROM work_unit_entity WHERE unit_id = ?",
)
OVERDUE: Final = """
SELECT unit_id FROM work_unit INDEXED BY work_unit_expiry
WHERE state IN ('open', 'sealed') AND expires_at <= ? ORDER BY expires_at LIMIT ?
"""
SEALED: Final = """
SELECT u.identity, s.text, u.policy, u.expires_at
FROM work_unit u INDEXED BY work_unit_expiry CROSS JOIN scope s ON s.scope_id = u.scope_id
WHERE u.state IN ('open', 'sealed') AND u.state = 'sealed' ORDER BY u.identity
"""

ABSENT: Final = 0  # the number of a unit or scope that has no row yet
NOWHERE: Final = Frontier(0, None)
SWEPT_AT_ONCE: Final = 4  # overdue units; what they hold is removed in the same transaction

UnitRow = tuple[int, int, str, str, str, int, int, str | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Unit:
    """A work unit as it is stored. `sealed_by` and `accepted` are there while it is sealed."""

    unit_id: int
    scope_id: int
    scope: ScopeText
    policy_json: str
    state: str
    expires_at: int
    baseline: int
    token: str | None
    sealed_by: str | None
    accepted: str | None

    @property
    def is_unfinished(self) -> bool:
        """Whether it is open or sealed, overdue or not."""
        return self.state in ("open", "sealed")

    def is_overdue(self, named: WorkUnit, own_unix_ms: int) -> bool:
        """Return whether it should be expired, by the clock of the request or our own."""
        return self.is_unfinished and self.expires_at <= max(named.now_unix_ms, own_unix_ms)

    def refusal(self, named: WorkUnit, own_unix_ms: int) -> UnitRefused | None:
        """Return why the unit takes no request at all: of another policy first, then expired."""
        if (self.scope, self.policy_json) != (named.scope, named.policy_json):
            return UnitRefused(state=UnitState.POLICY_MISMATCH)
        if self.state == "expired" or self.is_overdue(named, own_unix_ms):
            return UnitRefused(state=UnitState.EXPIRED)
        return None

    def is_to_expire(self, refusal: UnitRefused) -> bool:
        """Return whether `refusal` says what is not written yet: that the unit has expired."""
        return refusal.state is UnitState.EXPIRED and self.is_unfinished

    def sealed(self, sealed_by: str, accepted: str) -> Unit:
        """Return the unit as the request `sealed_by` seals it."""
        return replace(self, state="sealed", sealed_by=sealed_by, accepted=accepted)

    def end(self) -> UnitRefused | None:
        """Return why a unit that is not expired takes no further request, None if it is open."""
        if self.state == "committed":
            return UnitRefused(state=UnitState.COMMITTED)
        return UnitRefused(state=UnitState.CLOSING) if self.state == "sealed" else None


def unit_of(row: UnitRow) -> Unit:
    """Return the unit that a row of `UNIT_COLUMNS` holds."""
    unit_id, scope_id, scope, policy, state, expires_at, baseline, token, sealed_by, accepted = row
    return Unit(
        unit_id=unit_id,
        scope_id=scope_id,
        scope=ScopeText(scope),
        policy_json=policy,
        state=state,
        expires_at=expires_at,
        baseline=baseline,
        token=token,
        sealed_by=sealed_by,
        accepted=accepted,
    )


def find_unit(connection: Connection, identity: ControlKey) -> Unit | None:
    """Return the unit of that name, None if no request ever opened it."""
    row = connection.execute(FIND, (identity,)).fetchone()
    return None if row is None else unit_of(row)


def check_bounds_in(
    connection: Connection, unit: Unit, consistency: Consistency
) -> Unavailable | tuple[ControlKey, ...]:
    """Return why the view of an open unit is too old, which it stays, or the sessions behind it."""
    behind = check_bounds(connection, consistency, scope_id=unit.scope_id, frontier=unit.baseline)
    return Unavailable(detail=behind.detail) if isinstance(behind, Unavailable) else behind


@dataclass(frozen=True, slots=True)
class Enter:
    """Open a unit that is absent, or expire one that is overdue: a `Work` for a read of the unit.

    The answer is `Entered`, or `Unavailable` if the read would be, which opens nothing.
    """

    unit: WorkUnit
    consistency: Consistency

    @property
    def scope(self) -> ScopeText:
        """The scope of the unit."""
        return self.unit.scope

    @property
    def deadline_unix_ms(self) -> int | None:
        """That of the read."""
        return self.consistency.deadline_unix_ms

    @property
    def value_bytes(self) -> int:
        """Next to nothing."""
        return 0

    @property
    def base_versions(self) -> tuple[VersionId, ...]:
        """None."""
        return ()

    def carry_out(self, group: Group) -> Entered | Unavailable:
        """Open the unit with the sessions of the read advanced to its baseline, or expire it.

        Raises:
            MisuseError: The unit would be overdue as it opens.
        """
        group.require_in_time(self.deadline_unix_ms)
        named = self.unit
        unit = find_unit(group.connection, named.identity)
        if unit is None:
            unit = new_unit(group, named)
            behind = check_bounds(
                group.connection,
                self.consistency,
                scope_id=group.find_scope(named.scope),
                frontier=unit.baseline,
            )
            if isinstance(behind, Unavailable):
                return behind
            unit = open_unit(group, unit, named)
            group.advance_sessions(unit.scope_id, behind, read=unit.baseline)
            return Entered(is_opened=True)
        require_usable(group, unit, named)
        return Entered(is_opened=False)


def require_usable(group: Group, unit: Unit, named: WorkUnit) -> Unit | UnitRefused:
    """Return `unit`, or why it takes no request; one that is overdue is expired now."""
    own = group.unix_ms()
    refusal = unit.refusal(named, own)
    if refusal is None:
        return unit
    if unit.is_to_expire(refusal):
        expire(group.connection, unit.unit_id, now_unix_ms=own)
    return refusal


def new_unit(group: Group, named: WorkUnit) -> Unit:
    """Return `named` as it would be opened at the frontier of its scope; nothing is written.

    Raises:
        MisuseError: The unit would be overdue as it opens.
    """
    if named.expires_at_unix_ms <= named.now_unix_ms:
        raise misuse("the work unit would be overdue as it opens")
    scope_id = group.find_scope(named.scope)
    frontier = NOWHERE if scope_id is None else group.frontier(scope_id)
    return Unit(
        unit_id=ABSENT,
        scope_id=scope_id or ABSENT,
        scope=named.scope,
        policy_json=named.policy_json,
        state="open",
        expires_at=named.expires_at_unix_ms,
        baseline=frontier.cursor,
        token=frontier.token,
        sealed_by=None,
        accepted=None,
    )


def open_unit(group: Group, unit: Unit, named: WorkUnit) -> Unit:
    """Open the `new_unit` of `named`."""
    scope_id = group.require_scope(named.scope)
    times = (named.now_unix_ms, named.expires_at_unix_ms)
    policy = (named.identity, scope_id, named.policy_json)
    bindings = (*policy, *times, unit.baseline, unit.token)
    return replace(unit, unit_id=group.connection.execute(OPEN, bindings).get, scope_id=scope_id)


def expire(connection: Connection, unit_id: int, *, now_unix_ms: int) -> None:
    """Discard everything that an unfinished unit has staged, and refuse it from now on."""
    forget_staged(connection, unit_id)
    forget_records(connection, unit_id)
    connection.execute(END, (unit_id, "expired", now_unix_ms))


def forget_staged(connection: Connection, unit_id: int) -> None:
    """Remove the staged versions and entities of a unit."""
    for statement in FORGET_STAGED:
        connection.execute(statement, (unit_id,))


def expire_overdue(connection: Connection, *, now_unix_ms: int) -> int:
    """Expire some overdue units in the open transaction; return how many."""
    overdue = connection.execute(OVERDUE, (now_unix_ms, SWEPT_AT_ONCE)).fetchall()
    for (unit_id,) in overdue:
        expire(connection, unit_id, now_unix_ms=now_unix_ms)
    return len(overdue)


def sweep(connection: Connection, *, now_unix_ms: int) -> int:
    """Expire some overdue units in a transaction of their own; none, if there are none."""
    if not connection.execute(OVERDUE, (now_unix_ms, 1)).fetchall():
        return 0
    with transaction(connection):
        return expire_overdue(connection, now_unix_ms=now_unix_ms)


def read_sealed(connection: Connection) -> tuple[SealedUnit, ...]:
    """Return the units that were sealed and not finished."""
    return tuple(
        SealedUnit(
            identity=ControlKey(identity),
            scope=ScopeText(scope),
            policy_json=policy,
            expires_at_unix_ms=expires_at,
        )
        for identity, scope, policy, expires_at in connection.execute(SEALED)
    )
