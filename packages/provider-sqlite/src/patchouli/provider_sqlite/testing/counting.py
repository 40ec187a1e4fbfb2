"""What calls cost, in counts: statements, steps of SQLite's machine, syncs, hops of threads."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import apsw

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from patchouli.provider_sqlite.provider import SqliteProvider
    from patchouli.provider_sqlite.testing.faultvfs import ForgetfulDisk

HOP = "call_soon_threadsafe"  # how a thread reaches the loop


class Traced(Protocol):
    """The face of `apsw.Connection` that counts; its stub leaves what is traced unknown."""

    def trace_v2(self, mask: int, callback: Callable[[dict[str, Any]], None] | None) -> None:
        """Call `callback` with what the statements do."""
        ...

    def cache_stats(self) -> dict[str, int]:
        """Return how the cache of statements did."""
        ...


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
        # What is counted lies within.
        store = provider._store  # pyright: ignore[reportPrivateUsage]
        if store is None:
            raise AssertionError("the provider runs")
        self._writer = store.writer
        within = (store._write, store._inline)  # pyright: ignore[reportPrivateUsage]
        self.connections = [cast("Traced", connection) for connection in within]

    @contextmanager
    def counted(self) -> Generator[Cost]:
        """Count what happens inside, and what it leads to until then."""
        cost = Cost()

        # Any: the events are dicts of whatever SQLite tells.
        def note(event: dict[str, Any]) -> None:
            if event["code"] == apsw.SQLITE_TRACE_STMT and not event["trigger"]:
                cost.statements.append(event["sql"])
            elif event["code"] == apsw.SQLITE_TRACE_PROFILE:
                cost.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

        loop = asyncio.get_running_loop()
        hop: Callable[..., asyncio.Handle] = getattr(loop, HOP)

        # Any: passed on as it comes.
        def counted_hop(*args: Any, **options: Any) -> asyncio.Handle:
            cost.hops += 1
            return hop(*args, **options)

        for connection in self.connections:
            connection.trace_v2(apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE, note)
        self._disk.calls.clear()
        setattr(loop, HOP, counted_hop)
        try:
            yield cost
        finally:
            delattr(loop, HOP)
            for connection in self.connections:
                connection.trace_v2(0, None)
        cost.syncs = sum(
            call.kind == "sync" and "-index" not in call.path for call in self._disk.calls
        )

    async def together(self, *calls: Callable[[], Awaitable[object]]) -> Cost:
        """Return what calls cost that reach the writer while it is busy, without what holds it."""
        gate = threading.Event()
        with self.counted() as cost:
            held = self._writer.call(gate.wait)
            async with asyncio.TaskGroup() as tasks:
                for call in calls:
                    tasks.create_task(_made(call))
                await asyncio.sleep(0)  # every task has handed its work over
                gate.set()
            await held
        cost.hops -= 1
        return cost


async def _made(call: Callable[[], Awaitable[object]]) -> None:
    await call()
