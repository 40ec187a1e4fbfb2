"""What exists between the start and the stop of a run: connections, and the threads that use them.

Closing goes in the order that the write-ahead log asks for: first everybody who only reads, so that
no snapshot pins the log, then the writer, which empties the log into the database, then the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import apsw
from patchouli.provider import (
    INTEGER_MAX,
    Compaction,
    ProviderError,
    UnavailableError,
    sync_directory,
)
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import (
    Connection,
    Disk,
    open_housekeeper,
    open_reader,
    open_writer,
    require_capable_sqlite,
    use_wal,
)
from patchouli.provider_sqlite.errors import KIND, translate
from patchouli.provider_sqlite.executor import Readers, Writer
from patchouli.provider_sqlite.housekeeping import Housekeeper, LogLength
from patchouli.provider_sqlite.index import Index
from patchouli.provider_sqlite.lifecycle import Chance, read_last_cursor, start_run, stop_run
from patchouli.provider_sqlite.migrations import require_ours
from patchouli.provider_sqlite.ownership import Ownership, Witness
from patchouli.provider_sqlite.retention import RECORD_GRACE_MS, Compactor
from patchouli.provider_sqlite.units import sweep
from patchouli.provider_sqlite.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from patchouli.provider import Clock, Commit, CompactionPlan, Retention, RuntimeGeneration
    from patchouli.provider_sqlite.commits import Result
    from patchouli.provider_sqlite.group import Work
    from patchouli.provider_sqlite.index_limits import IndexLimits
    from patchouli.provider_sqlite.limits import SqliteLimits
    from patchouli.provider_sqlite.retention import Folding, Freed

T = TypeVar("T")

CHECKPOINT_ATTEMPTS: Final = 110  # about five seconds
CHECKPOINT_PAUSE_SECONDS: Final = 0.05
INDEX_PATIENCE_SECONDS: Final = 5.0  # an index that takes longer keeps its changes for now


class Store:
    """An open database; `open` and `close` belong to the event loop that made it."""

    def __init__(
        self,
        ownership: Ownership,
        *,
        clock: Clock,
        limits: SqliteLimits,
        index_limits: IndexLimits,
        disk: Disk,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._ownership = ownership
        self._clock = clock
        self._limits = limits
        self._disk = disk
        self._compactor: Compactor | None = None
        self._ledger: Ledger | None = None
        self._write: Connection | None = None
        self._inline: Connection | None = None
        self.run: RuntimeGeneration | None = None
        self.wakeups = Wakeups()
        self.writer = Writer(limits, loop, self.wakeups.answer)
        self.readers = Readers(limits, loop, self._connect)
        self._log = LogLength(limits)
        self._housekeeper = Housekeeper(
            limits,
            writer=self.writer,
            log=self._log,
            connect=lambda: open_housekeeper(ownership.path, disk=disk),
            move_rest=self._move_log,
            prune_step=self._prune_step,
            fold_step=self._fold_step,
        )
        self.index = Index(ownership.path, limits=index_limits, disk=disk)
        self._has_begun = False

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

    async def open(self, chance: Chance, retention: Retention) -> RuntimeGeneration:
        """Start a run. If that fails, everything is closed again and the database as it was."""
        try:
            self._compactor = Compactor(retention, clock=self._clock, limits=self._limits)
            await self._on_writer("initialize", self._prepare)
            self._inline = self._connect()
            # The loop must not wait for a foreign program; such a read goes to a reader thread.
            self._inline.set_busy_timeout(0)
            self.run = await self._on_writer("initialize", lambda: self._start(chance))
        except apsw.Error as error:
            await self.abandon()
            raise translate(error, "initialize") from error
        except BaseException:
            await self.abandon()
            raise
        self.index.start()
        self._housekeeper.start()
        self._has_begun = True
        return self.run

    async def compact(self, plan: CompactionPlan) -> Compaction:
        """Take one step of the removal of what is past its retention."""
        compactor = self._require_compactor()
        await self._index_what_is_due(compactor)
        remove_aged = partial(self._remove_aged, limit=plan.limit)
        freed = await self._on_writer("compact", remove_aged)
        versions, has_more, room = 0, freed.has_more, plan.limit - freed.total
        if room and not has_more:
            folding, has_more = await self.readers.run(compactor.find, operation="compact")
            if folding is not None:
                remove = partial(self._remove_versions, folding, room)
                versions = await self._on_writer("compact", remove)
        due = None
        if plan.with_due:
            due = await self.readers.run(compactor.count_due, operation="compact")
        return Compaction(
            changes=freed.changes,
            idempotency_records=freed.records,
            units=freed.units,
            versions=versions,
            is_more_due=has_more,
            due=due,
        )

    async def _index_what_is_due(self, compactor: Compactor) -> None:
        """Let the index come to the last change if some that it has not seen are due to go."""
        watermark = self.index.watermark
        if watermark is not None and compactor.has_aged_beyond(self.inline, watermark):
            await asyncio.to_thread(self.index.wait_until_caught_up, INDEX_PATIENCE_SECONDS)

    async def checkpoint(self) -> None:
        """Expire overdue work units, move the whole write-ahead log into the database and sync it.

        Raises:
            UnavailableError: A reader or another program kept it from being complete.
        """
        while await self._on_writer("checkpoint", self._sweep):
            pass
        for attempt in range(CHECKPOINT_ATTEMPTS):
            if await self._on_writer("checkpoint", self._checkpoint):
                break
            await asyncio.sleep(min(0.001 * 2**attempt, CHECKPOINT_PAUSE_SECONDS))
        else:
            detail = "a reader or another program still needs the write-ahead log; try again"
            raise UnavailableError(KIND, "checkpoint", detail)
        self.index.checkpoint()

    async def close(self) -> None:
        """Stop the run cleanly; go through every step, then raise the first failure."""
        failures: list[ProviderError] = []
        self.wakeups.stop()
        try:
            await self._stop_readers()
        finally:
            for step in (self._stop, self._empty_log, self._close_writer):
                try:
                    await self._on_writer("shutdown", step)
                except ProviderError as error:
                    failures.append(error)
            await self._end_writer()
        if failures:
            raise failures[0]

    async def abandon(self) -> None:
        """Close everything and release the lock without recording a clean stop.

        What fails meanwhile is of no interest: the process could have ended instead.
        """
        self.wakeups.stop()
        await self._stop_readers()
        with contextlib.suppress(ProviderError):
            await self._on_writer("abandon", self._close_writer)
        await self._end_writer()

    def drop(self) -> None:
        """Close everything behind the back of a provider that nobody holds any more.

        The collector may call this on any thread, one of ours included, so another one does it.
        """
        threading.Thread(target=self._drop, name="patchouli-sqlite-drop", daemon=True).start()

    def _drop(self) -> None:
        if self._has_begun:
            self._housekeeper.stop()
            self.index.close()
        self.readers.stop()
        self.readers.join()
        if self._inline is not None:
            self._inline.close()
        with contextlib.suppress(ProviderError):
            self.writer.run(partial(self._translated, "drop", self._close_writer))
        self.writer.stop()

    async def _stop_readers(self) -> None:
        if self._has_begun:
            await asyncio.to_thread(self._housekeeper.stop)
            await asyncio.to_thread(self.index.close)
        self.readers.stop()
        await asyncio.to_thread(self.readers.join)
        if self._inline is not None:
            self._inline.close()
            self._inline = None

    async def _end_writer(self) -> None:
        self.writer.stop()
        await asyncio.to_thread(self.writer.join)

    async def _on_writer(self, operation: str, step: Callable[[], T]) -> T:
        return await self.writer.call(partial(self._translated, operation, step))

    def _fold_step(self, connection: Connection) -> bool:
        """Find versions that can go and have the writer remove some; on the housekeeper's thread.

        Returns whether there is more.
        """
        folding, has_more = self._require_compactor().find(connection)
        if folding is not None:
            limit = self._limits.prune_step
            self.writer.run(partial(self._remove_versions, folding, limit))
        return has_more

    def _connect(self) -> Connection:
        limits = self._limits
        return open_reader(
            self._ownership.path,
            cache_kib=limits.reader_cache_kib,
            disk=self._disk,
            busy_timeout_ms=limits.busy_timeout_ms,
        )

    # What follows runs on the writer's thread.

    def _translated(self, operation: str, step: Callable[[], T]) -> T:
        try:
            return step()
        except apsw.Error as error:
            try:
                system_errno = self._write.system_errno if self._write is not None else 0
            except apsw.ConnectionClosedError:
                system_errno = 0
            raise translate(error, operation, system_errno=system_errno) from error

    def _prepare(self) -> None:
        """Open the database and refuse it if it is not ours; nothing in it is changed before."""
        lack = require_capable_sqlite()
        if lack is not None:
            raise ProviderError(KIND, "initialize", lack)
        path = self._ownership.path
        self._write = open_writer(
            path,
            cache_kib=self._limits.writer_cache_kib,
            disk=self._disk,
            busy_timeout_ms=self._limits.busy_timeout_ms,
        )
        require_ours(self._write)
        self._ownership.require_whole_pages(self._write.execute("PRAGMA page_size").get)
        if not use_wal(self._write):
            detail = "the file system does not support a write-ahead log; name another place"
            raise UnavailableError(KIND, "initialize", detail)
        self._ownership.require_unchanged()
        try:
            (self._disk.sync_directory or sync_directory)(path.parent)
        except OSError as error:
            detail = "the directory of the database cannot be synced; check the disk"
            raise UnavailableError(KIND, "initialize", detail) from error

    def _start(self, chance: Chance) -> RuntimeGeneration:
        connection = self._require_write()
        run = start_run(
            connection,
            witness=self._ownership.read_witness(),
            chance=chance,
            now_unix_ms=self._clock.unix_ms(),
        )
        ledger = self._ledger = Ledger(connection, self._clock)
        self._write_witness(run, ledger.last_cursor)
        connection.set_wal_hook(self._log.note)
        self.writer.serve(partial(self._publish, ledger))
        return run

    def _publish(self, ledger: Ledger, works: Sequence[Commit | Work]) -> Sequence[Result]:
        """Do a group of works and tell the index; wait first while the index is far behind."""
        self.index.wait_for_room()
        if self._log.must_shrink():
            self._move_log()
        results = ledger.publish(works)
        self.index.notify(ledger.last_cursor)
        self._housekeeper.after_group()
        return results

    def _move_log(self) -> None:
        """Move what is left in the log, so that the next commit can begin it anew.

        That it fails, or that the housekeeper is at it, is no failure of the commits that follow:
        they need the log and not the database. It is tried again.
        """
        with contextlib.suppress(apsw.Error):
            self._require_write().wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)

    def _remove_aged(self, *, limit: int, grace_ms: int = 0) -> Freed:
        """Expire some overdue units and remove some of what is past its age.

        Changes that the index has not seen yet stay, because it follows the log. A work unit keeps
        none (`Provider.compact`): a retrieval in one that is older looks through its scope instead.
        """
        connection, watermark = self._require_write(), self.index.watermark
        through = INTEGER_MAX if watermark is None else watermark
        return self._require_compactor().remove_aged(
            connection, through=through, limit=limit, grace_ms=grace_ms
        )

    def _sweep(self) -> bool:
        """Expire some overdue units; return whether there may be more."""
        return sweep(self._require_write(), now_unix_ms=self._clock.unix_ms()) > 0

    def _prune_step(self) -> bool:
        """Take a step of what goes by itself; return whether there is more."""
        freed = self._remove_aged(limit=self._limits.prune_step, grace_ms=RECORD_GRACE_MS)
        return freed.has_more

    def _remove_versions(self, folding: Folding, limit: int) -> int:
        """Remove some of the versions that nothing needs, and remember their names for a while."""
        removed = self._require_compactor().remove(self._require_write(), folding, limit=limit)
        if self._ledger is not None:
            self._ledger.note_removed(removed)
        return len(removed)

    def _checkpoint(self) -> bool:
        """Move the whole log and sync the database; return False if somebody is in the way now.

        Waiting for a reader here would hold the commits, so the caller comes back instead.
        """
        connection = self._require_write()
        connection.set_busy_timeout(0)
        try:
            in_log, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_FULL)
        except apsw.BusyError:
            return False
        finally:
            connection.set_busy_timeout(self._limits.busy_timeout_ms)
        if self.run is not None:
            self._write_witness(self.run, read_last_cursor(connection))
        return in_log == moved

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
        """Let the lock file know how far the database has come.

        A witness that cannot be written is no failure of the run: an older one only recognises
        fewer copies, and a torn one makes the next start take a new incarnation.
        """
        witness = Witness(
            incarnation=run.incarnation, generation=run.generation, last_cursor=cursor
        )
        with contextlib.suppress(OSError):
            self._ownership.write_witness(witness)

    def _require_compactor(self) -> Compactor:
        if self._compactor is None:
            raise UnavailableError(KIND, "compact", "the store has not started")
        return self._compactor

    def _require_write(self) -> Connection:
        if self._write is None:
            raise UnavailableError(KIND, "write", "the store has stopped")
        return self._write
