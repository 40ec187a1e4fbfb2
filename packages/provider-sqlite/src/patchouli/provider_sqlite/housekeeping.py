"""The thread that keeps the store small: it empties the write-ahead log and removes what is old.

*The write-ahead log.* Moving its pages into the database takes a sync of the database, which no
commit should wait for. So a second connection moves them while the writer goes on, each time that
`soft` more were written. The log can begin again at its start only if nothing was written since the
move, which under load never happens by itself; so when the log has become long (`turn`) and only a
short rest is left, the writer moves that rest between two groups, and its next commit begins the
log anew. Should the thread not keep up, or a reader pin the log for long, the writer tries it again
at every further `soft` pages past `hard`: it pays with time for a log that does not grow.

*What is old.* What is past its retention is removed in small steps on the writer's thread, with
pauses between them that are longer than the steps (`retention.py`). Which superseded versions can
go is found out here, on the thread's own connection.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

import apsw
from patchouli.provider import ProviderError

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.executor import Writer
    from patchouli.provider_sqlite.limits import SqliteLimits

REST_PAGES: Final = 200  # that the writer moves itself: a few milliseconds, most of them the sync
PASSES: Final = 4  # to get down to the rest; each one has less to do than the one before
PAUSE_PER_STEP: Final = 4.0  # times the duration of a step that commits are left alone after it
REST_PER_PASS: Final = 100.0  # times the duration of a pass over old versions until the next one


class LogLength:
    """The length of the write-ahead log in pages, as the writer's commits report it."""

    def __init__(self, limits: SqliteLimits) -> None:
        self._limits = limits
        self._retry_at = limits.log_pages_hard
        self.pages = 0
        self.moved = 0  # of them, by the last pass of the housekeeper

    def note(self, _connection: object, _database: str, pages: int) -> int:
        """Take the length after a commit; the hook of SQLite."""
        if pages < self.pages:  # the log began anew
            self.moved = 0
        self.pages = pages
        if pages < self._limits.log_pages_hard:
            self._retry_at = self._limits.log_pages_hard
        return apsw.SQLITE_OK

    def is_worth_a_pass(self) -> bool:
        """Return whether so much was written since the last pass that another one is due."""
        return self.pages - self.moved >= self._limits.log_pages_soft

    def must_shrink(self) -> bool:
        """Return whether the writer has to stop and move pages itself, now."""
        if self.pages < self._retry_at:
            return False
        self._retry_at = self.pages + self._limits.log_pages_soft
        return True


class Housekeeper:
    """The thread, from `start` to `stop`.

    `prune_step` runs on the writer's thread, `fold_step` on this one with its connection; each
    returns whether more is to be removed.
    """

    def __init__(
        self,
        limits: SqliteLimits,
        *,
        writer: Writer,
        log: LogLength,
        connect: Callable[[], Connection],
        move_rest: Callable[[], None],
        prune_step: Callable[[], bool],
        fold_step: Callable[[Connection], bool],
    ) -> None:
        self._limits = limits
        self._writer = writer
        self._log = log
        self._connect = connect
        self._move_rest = move_rest
        self._prune_step = prune_step
        self._fold_step = fold_step
        self._fold_at = 0.0  # when the next pass over old versions may begin
        self._condition = threading.Condition()
        self._is_called = False
        self._is_stopping = False
        self._thread = threading.Thread(
            target=self._work, name="patchouli-sqlite-housekeeper", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def after_group(self) -> None:
        """Called by the writer after each group: wake the thread if the log has become long."""
        if not self._is_called and self._log.is_worth_a_pass():
            with self._condition:
                self._is_called = True
                self._condition.notify()

    def stop(self) -> None:
        """End the thread; the writer must still run, because a step may wait for it."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        # Not for the loop and not for a reader: it waits for the disk most of the time.
        connection: Connection | None = None
        try:
            while not self._is_stopping:
                self._wait(self._limits.prune_interval_seconds)
                try:
                    connection = connection or self._connect()
                    self._shorten_log(connection)
                    self._remove(lambda: self._writer.run(self._prune_step))
                    self._fold(connection)
                except (apsw.Error, ProviderError, ValueError):
                    # The disk refuses, the writer has ended, or (a ValueError) a stored text is
                    # damaged. Requests meet the same and say so; here it is left for the next time.
                    self._pause(self._limits.prune_interval_seconds)
        finally:
            if connection is not None:
                connection.close()

    def _shorten_log(self, connection: Connection) -> None:
        for _ in range(PASSES):
            self._log.moved = self._log.pages  # what is written meanwhile calls for the next pass
            in_log, moved = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            self._log.moved = moved
            left = self._log.pages - moved
            if in_log < self._limits.log_pages_turn or left <= 0 or self._is_stopping:
                return
            if left <= REST_PAGES:
                break
        self._writer.run(self._move_rest)

    def _fold(self, connection: Connection) -> None:
        started = time.monotonic()
        if started < self._fold_at:
            return
        self._remove(lambda: self._fold_step(connection))
        ended = time.monotonic()
        rest = REST_PER_PASS * (ended - started)
        self._fold_at = ended + max(self._limits.history_interval_seconds, rest)

    def _remove(self, step: Callable[[], bool]) -> None:
        has_more = True
        while has_more and not self._is_stopping:
            started = time.monotonic()
            has_more = step()
            if has_more:
                self._pause(PAUSE_PER_STEP * (time.monotonic() - started))

    def _wait(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._is_called or self._is_stopping, seconds)
            self._is_called = False

    def _pause(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._is_stopping, seconds)
