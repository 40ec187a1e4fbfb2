"""What only the store can tell: session frontiers, and the bounds of a unit's view."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
from patchouli.provider import (
    CausalToken,
    Consistency,
    ControlKey,
    EntityKey,
    Reading,
    ReadPlan,
    Retention,
    ScopeText,
    SessionRequirement,
    Unavailable,
    WorkUnit,
)
from patchouli.provider_sqlite import SqliteProvider

if TYPE_CHECKING:
    from pathlib import Path


def read_sessions(home: Path) -> list[tuple[int, int]]:
    """Return the read and the write frontier of every session."""
    connection = apsw.Connection(str(home / "data" / "patchouli.db"))
    rows = list(connection.execute("SELECT read_cursor, write_cursor FROM session"))
    connection.close()
    return rows


async def check_unit_bounds(home: Path, *, token: str) -> None:
    """Return if the one unit of a store is older than `token` and than a session that saw it."""
    database = home / "data" / "patchouli.db"
    connection = apsw.Connection(str(database))
    ((scope, identity, policy, opened),) = connection.execute(
        "SELECT text, identity, policy, opened_at FROM work_unit JOIN scope USING (scope_id)"
    )
    connection.close()
    unit = WorkUnit(
        identity=ControlKey(identity),
        scope=ScopeText(scope),
        policy_json=policy,
        now_unix_ms=opened,
        expires_at_unix_ms=opened + 1,
    )
    key = EntityKey(ScopeText(scope), "knowledge", "a")
    session = SessionRequirement(
        key=ControlKey('{"scope":{},"fields":{}}'), monotonic_reads=True, read_your_writes=True
    )
    bounds = (
        Consistency(minimum_tokens=(CausalToken(token),)),
        Consistency(sessions=(session,)),
    )
    provider = SqliteProvider(database)
    await provider.initialize(
        Retention(changes_seconds=10, idempotency_seconds=10, history_seconds=0)
    )
    try:
        in_unit = ReadPlan(key=key, consistency=Consistency(), unit=unit)
        assert isinstance(await provider.read(in_unit), Reading)
        for bound in bounds:
            outside = ReadPlan(key=key, consistency=bound)
            assert isinstance(await provider.read(outside), Reading)
            bounded = ReadPlan(key=key, consistency=bound, unit=unit)
            answer = await provider.read(bounded)
            assert isinstance(answer, Unavailable)
            assert answer.frontier is None, "waiting cannot help in the view of an open unit"
    finally:
        await provider.shutdown()
