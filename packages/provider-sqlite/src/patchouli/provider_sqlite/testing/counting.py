"""What calls cost, in counts: statements, steps of SQLite's machine, syncs, hops of threads."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import apsw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider_sqlite.provider import SqliteProvider
    from patchouli.provider_sqlite.testing.faultvfs import ForgetfulDisk


@dataclass
class Cost:
    """What some calls did."""

    statements: list[str] = field(default_factory=list[str])
    steps: int = 0
    syncs: int = 0
    hops: int = 0

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of statements, syncs and hops."""
        return len(self.statements), self.syncs, self.hops

    def written(self) -> list[str]:
        """Return the tables that rows were inserted into, in order."""
        return [sql.split()[2] for sql in self.statements if sql.split()[0] == "INSERT"]


class Watched:
    """A provider whose statements, syncs and hops are counted, on the writer and on the loop."""

    def __init__(self, provider: SqliteProvider, disk: ForgetfulDisk) -> None:
        self.provider = provider
        self._disk = disk
        store = provider._store
        if store is None:
            raise AssertionError("the provider runs")
        connections = [store._write, store._inline]
        self.connections = cast("list[apsw.Connection]", connections)

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count what happens inside, and what it leads to until then."""
        cost = Cost()

        # Any: the events are dicts of whatever SQLite tells.
        def note(event: dict[str, Any]) -> None:
            if event["code"] == apsw.SQLITE_TRACE_STMT and not event["trigger"]:
                cost.statements.append(event["sql"])
            elif event["code"] == apsw.SQLITE_TRACE_PROFILE:
                cost.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

        loop = asyncio.get_running_loop()
        hop = loop.call_soon_threadsafe

        # Any: passed on as it comes.
        def counted_hop(*args: Any, **options: Any) -> asyncio.Handle:
            cost.hops += 1
            return hop(*args, **options)

        for connection in self.connections:
            connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, note)
        self._disk.calls.clear()
        loop.call_soon_threadsafe = counted_hop
        try:
            yield cost
        finally:
            loop.call_soon_threadsafe = hop
            for connection in self.connections:
                connection.trace_v2(0, None)
        cost.syncs = sum(
            call.kind == "sync" and "-index" not in call.path for call in self._disk.calls
        )
