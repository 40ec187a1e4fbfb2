"""What exists between the start and the stop of a run: connections, and the threads that use them.

Closing goes in the order that the write-ahead log asks for: first everybody who only reads, so that
no snapshot pins the log, then the writer, which empties the log into the database, then the lock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import apsw
from patchouli.provider import CorruptStoreError, ProviderError, UnavailableError, sync_directory
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import (
    Connection,
    Disk,
    open_reader,
    open_writer,
    require_capable_sqlite,
    use_wal,
)
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.executor import Readers, Writer
from patchouli.provider_sqlite.lifecycle import Chance, read_last_cursor, start_run, stop_run
from patchouli.provider_sqlite.migrations import require_ours
from patchouli.provider_sqlite.ownership import Ownership, Witness
from patchouli.provider_sqlite.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.provider import Clock, RuntimeGeneration
    from patchouli.provider_sqlite.limits import SqliteLimits

T = TypeVar("T")


class Store:
    """An open database; `open` and `close` belong to the event loop that made it."""

    def __init__(
        self, ownership: Ownership, *, clock: Clock, limits: SqliteLimits, disk: Disk
    ) -> None:
        loop = asyncio.get_running_loop()
        self._ownership = ownership
        self._clock = clock
        self._limits = limits
        self._disk = disk
        self._write: Connection | None = None
        self._inline: Connection | None = None
        self.run: RuntimeGeneration | None = None
        self.wakeups = Wakeups()
        self.writer = Writer(limits, loop, self.wakeups.answer)
        self.readers = Readers(limits, loop, self._connect)

    @property
    def inline(self) -> Connection:
        """The connection of the event loop, for reads by key."""
        if self._inline is None:
            raise UnavailableError(KIND, "read", "the store has stopped")
        return self._inline

    @property
    def incarnation(self) -> str:
        """The name of the database itself; of an open store only."""
        return "" if self.run is None else self.run.incarnation

    async def open(self, chance: Chance) -> RuntimeGeneration:
        """Start a run. If that fails, everything is closed again and the database as it was."""
        try:
            await self._on_writer("initialize", self._prepare)
            self._inline = self._connect()
            # The loop must not wait for a foreign program; such a read goes to a reader thread.
            self._inline.set_busy_timeout(0)
            self.run = await self._on_writer("initialize", lambda: self._start(chance))
        except BaseException:
            await self.abandon()
            raise
        return self.run

    async def checkpoint(self) -> None:
        """Move the whole write-ahead log into the database and sync it.

        Raises:
            UnavailableError: A reader or another program kept it from being complete.
        """
        await self._on_writer("checkpoint", self._checkpoint)

    async def close(self) -> None:
        """Stop the run cleanly; go through every step, then raise the first failure."""
        failures: list[ProviderError] = []
        self.wakeups.stop()
        await self._stop_readers()
        for step in (self._stop, self._empty_log):
            try:
                await self._on_writer("shutdown", step)
            except ProviderError as error:
                failures.append(error)
        await self._end_writer()
        if failures:
            raise failures[0]

    async def abandon(self) -> None:
        """Close everything and release the lock without recording a clean stop."""
        self.wakeups.stop()
        await self._stop_readers()
        await self._end_writer()

    async def _stop_readers(self) -> None:
        self.readers.stop()
        await asyncio.to_thread(self.readers.join)
        if self._inline is not None:
            self._inline.close()
            self._inline = None

    async def _end_writer(self) -> None:
        self.writer.call(self._close_writer)
        self.writer.stop()
        await asyncio.to_thread(self.writer.join)

    async def _on_writer(self, operation: str, step: Callable[[], T]) -> T:
        try:
            return await self.writer.call(step)
        except apsw.Error as error:
            errno = self._write.system_errno if self._write is not None else 0
            raise translate(error, operation, system_errno=errno) from error

    def _connect(self) -> Connection:
        cache_kib = self._limits.reader_cache_kib
        return open_reader(self._ownership.path, cache_kib=cache_kib, disk=self._disk)

    # What follows runs on the writer's thread.

    def _prepare(self) -> None:
        """Open the database and refuse it if it is not ours; nothing in it is changed before."""
        lack = require_capable_sqlite()
        if lack is not None:
            raise ProviderError(KIND, "initialize", lack)
        path = self._ownership.path
        self._write = open_writer(path, cache_kib=self._limits.writer_cache_kib, disk=self._disk)
        require_ours(self._write)
        if not use_wal(self._write):
            detail = "the file system does not support a write-ahead log; name another place"
            raise UnavailableError(KIND, "initialize", detail)
        self._ownership.require_unchanged()

    def _start(self, chance: Chance) -> RuntimeGeneration:
        connection = self._require_write()
        run = start_run(
            connection,
            witness=self._ownership.read_witness(),
            chance=chance,
            now_unix_ms=self._clock.unix_ms(),
        )
        (self._disk.sync_directory or sync_directory)(self._ownership.path.parent)
        ledger = Ledger(connection, self._clock)
        self._write_witness(run, ledger.last_cursor)
        self.writer.serve(ledger.publish)
        return run

    def _checkpoint(self) -> None:
        connection = self._require_write()
        in_log, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        if in_log != moved:
            detail = "a reader still needs the write-ahead log; try again"
            raise UnavailableError(KIND, "checkpoint", detail)
        if self.run is not None:
            self._write_witness(self.run, read_last_cursor(connection))

    def _stop(self) -> None:
        connection = self._require_write()
        stop_run(connection, now_unix_ms=self._clock.unix_ms())
        if self.run is not None:
            self._write_witness(self.run, read_last_cursor(connection))

    def _empty_log(self) -> None:
        self._require_write().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def _close_writer(self) -> None:
        try:
            if self._write is not None:
                self._write.close()
                self._write = None
        finally:
            self._ownership.release()

    def _write_witness(self, run: RuntimeGeneration, cursor: int) -> None:
        self._ownership.write_witness(
            Witness(incarnation=run.incarnation, generation=run.generation, last_cursor=cursor)
        )

    def _require_write(self) -> Connection:
        if self._write is None:
            raise CorruptStoreError(KIND, "initialize", "the database was not opened")
        return self._write
