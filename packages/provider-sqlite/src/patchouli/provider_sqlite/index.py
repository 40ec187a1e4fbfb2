"""The index beside the truth: what it promises, the thread that keeps it, and who reads it.

*What it is.* A SQLite database of its own (`<database>-index`) with the trigrams of the searchable
text of every value (`index_text.py`), one token per scalar leaf (`index_leaves.py`), and the keys
of the result orders. All of it is derived from the truth, so it is not synced with the commits, and
it is deleted and built anew whenever it cannot be trusted.

*How it follows.* The writer of the truth calls `notify` after each group of commits. A thread takes
the changes after the *watermark* in batches (`index_store.py`). It waits a moment for more: a batch
of a thousand costs a third of what ten of a hundred cost. The changes after the watermark are the
*tail*. It is bounded: `wait_for_room` holds the writer until the index has come closer, and slows
it down before, so that commits keep a steady pace. At rest the thread merges what many small
batches left, and updates are followed by a share of merging, so the index of a database costs what
its heads are and not what they were.

*How it is read.* A retrieval takes a snapshot of the index first and of the truth second, so the
truth is never behind. Entities that changed after the watermark, that are not built yet, or that
stand aside are evaluated from the truth; all others from the index (`search.py`). So a value is
found as soon as its commit was answered, and a superseded one never is, wherever the index stands.

*What goes wrong.* A damaged index is noticed by the thread or by a retrieval, which then answers
from the truth alone; the thread builds a new one. While the disk refuses, the thread tries again
from time to time and holds nobody.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import apsw
from patchouli.provider import ProviderError
from patchouli.provider_sqlite.connection import Connection, Disk
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_schema import ALL_BUILT
from patchouli.provider_sqlite.index_store import IndexStore, index_path
from patchouli.provider_sqlite.search import retrieve

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider import Clock, RetrieveOutcome, RetrievePlan
    from patchouli.provider_sqlite.control import Answer

TIDIED_PAGES: Final = 256  # of postings merged in one step of a few milliseconds
LONGEST_PAUSE_SECONDS: Final = 0.25  # of a writer that is slowed down

_LONGEST_RETRY_SECONDS: Final = 60.0

# What says that the file, not the disk, is at fault.
_DAMAGE: Final = (apsw.CorruptError, apsw.NotADBError)
# The statements of the thread are constant, so these mean that the tables are not those we made.
_DISAGREEMENT: Final = (apsw.SQLError, apsw.ConstraintError, apsw.MismatchError)


class Index:
    """The index of one truth database, from `start` to `close`."""

    def __init__(
        self, truth: Path, *, limits: IndexLimits | None = None, disk: Disk | None = None
    ) -> None:
        self._truth = truth
        self._limits = limits or IndexLimits()
        self._disk = disk or Disk()
        self._changed = threading.Condition()
        # All below is read and written under `_changed`.
        self._frontier = 0
        self._watermark = 0
        self._is_built = False
        self._generation = 0  # of the file; 0 while there is none that can be read
        self._is_damaged = False
        self._is_stuck = False
        self._is_closing = False
        self._is_idle = False
        self._is_untidy = True
        self._is_settled = False
        self._last_group = 0
        self._seconds_per_change = 0.0
        self._wants_checkpoint = False
        self._wants_all = 0
        self._attached: WeakKeyDictionary[Connection, int] = WeakKeyDictionary()
        self._thread = threading.Thread(
            target=self._work, name="patchouli-sqlite-index", daemon=True
        )

    def start(self) -> None:
        """Begin to keep the index; the truth must have been initialised. Returns at once."""
        self._thread.start()

    def notify(self, cursor: int) -> None:
        """Take note that the truth has come to `cursor`. Called by the writer after its COMMIT."""
        with self._changed:
            self._last_group = cursor - self._frontier
            self._frontier = cursor
            # A thread that gathers a batch is not woken for each group that adds to it.
            if self._is_idle or cursor - self._watermark >= self._limits.batch_changes:
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return when the tail is within its bound, or nobody works on it.

        From half of the bound on it takes its time, up to what the index needs for a group.
        """
        with self._changed:
            if self._is_stuck or self._generation == 0:
                return
            soft = self._limits.tail_changes // 2
            excess = self._frontier - self._watermark - soft
            if excess > 0:
                share = min(1.0, excess / max(1, self._limits.tail_changes - soft))
                pause = share * self._seconds_per_change * self._last_group
                self._changed.wait_for(self._has_ended, min(pause, LONGEST_PAUSE_SECONDS))
            self._changed.wait_for(self._has_room)

    def wait_until_caught_up(self, timeout_seconds: float | None = None) -> bool:
        """Return whether the index is built and at the notified frontier, waiting for it."""
        with self._changed:
            self._wants_all += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(self._is_caught_up, timeout_seconds)
            finally:
                self._wants_all -= 1

    @property
    def watermark(self) -> int | None:
        """The change that the index has come to; None while there is none that could go on."""
        with self._changed:
            return self._watermark if self._generation else None

    def wait_until_settled(self, timeout_seconds: float | None = None) -> bool:
        """Return whether the index came to rest, caught up and merged, waiting for it."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_closing or (self._is_caught_up() and not self._is_untidy),
                timeout_seconds,
            )

    def checkpoint(self) -> None:
        """Have the log of the index moved into its file; returns at once."""
        with self._changed:
            self._wants_checkpoint = True
            self._changed.notify_all()

    def retrieve(
        self, connection: Connection, plan: RetrievePlan, *, clock: Clock
    ) -> Answer[RetrieveOutcome] | None:
        """Answer `plan` with a connection of a reader thread to the truth.

        The deadline is the caller's: it interrupts the connection.

        Raises:
            apsw.InterruptError: The connection was interrupted.
            DeadlineExceededError: The deadline had passed before the start.
        """
        generation = self._attach(connection)
        if generation:
            try:
                return retrieve(connection, plan, clock=clock, has_index=True)
            except apsw.InterruptError:
                raise
            except _DAMAGE:
                self._condemn(generation)
            except apsw.Error:
                pass  # if it is not the index that fails, the truth says so now
        return retrieve(connection, plan, clock=clock, has_index=False)

    def close(self) -> None:
        """End the thread after its present step and close the file."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _attach(self, connection: Connection) -> int:
        """Have `connection` see the present file; return its generation, 0 if there is none."""
        with self._changed:
            wanted = 0 if self._is_damaged else self._generation
            attached = self._attached.get(connection, 0)
        if wanted == attached:
            return attached
        try:
            if attached:
                connection.execute("DETACH idx")
                self._note_attached(connection, 0)
            if wanted:
                connection.execute("ATTACH ? AS idx", (str(index_path(self._truth)),))
                self._note_attached(connection, wanted)
        except apsw.Error as error:
            if isinstance(error, _DAMAGE):
                self._condemn(wanted)
            return 0
        return wanted

    def _note_attached(self, connection: Connection, generation: int) -> None:
        with self._changed:
            self._attached[connection] = generation

    def _condemn(self, generation: int) -> None:
        with self._changed:
            if generation == self._generation:
                self._is_damaged = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        return (
            self._frontier - self._watermark <= self._limits.tail_changes
            or self._generation == 0
            or self._is_damaged
            or self._is_stuck
            or self._has_ended()
        )

    def _has_ended(self) -> bool:
        return self._is_closing or not self._thread.is_alive()

    def _is_caught_up(self) -> bool:
        return self._is_closing or (self._is_built and self._watermark >= self._frontier)

    def _work(self) -> None:
        store: IndexStore | None = None
        failures = 0
        try:
            while not self._is_closing:
                try:
                    store = self._with_store(store)
                    self._wait_for_work(self._take_step(store))
                    failures = 0
                except (*_DAMAGE, *_DISAGREEMENT):
                    self._drop(store)
                    store = None
                    self._condemn(self._generation)
                    failures += 1
                    if failures > 1:  # a new file did not help
                        self._pause(failures)
                except (apsw.Error, OSError, ProviderError, ValueError):
                    # The disk refuses; a ValueError is a damaged text in the truth.
                    self._drop(store)
                    store = None
                    failures += 1
                    self._pause(failures)
        finally:
            self._drop(store)
            with self._changed:
                self._is_closing = True
                self._generation = 0
                self._changed.notify_all()

    def _with_store(self, store: IndexStore | None) -> IndexStore:
        """Return a store whose file can be read, building a new one if need be."""
        with self._changed:
            is_damaged = self._is_damaged
        if store is not None and not is_damaged:
            return store
        self._drop(store)
        store = None
        if not is_damaged:
            store = IndexStore.open(self._truth, self._limits, self._disk)
        if store is None:
            store = IndexStore.build(self._truth, self._limits, self._disk)
        frontier = store.read_frontier()
        with self._changed:
            self._generation += 1
            self._is_damaged = False
            self._frontier = max(self._frontier, frontier)
            self._publish(store)
        # Until now changes could be pruned that this index has not seen.
        if store.continues():
            return store
        self._drop(store)
        self._condemn(self._generation)
        return self._with_store(None)

    def _take_step(self, store: IndexStore) -> bool:
        """Bring the index forward; return whether there may be more to do at once."""
        with self._changed:
            wants_checkpoint, self._wants_checkpoint = self._wants_checkpoint, False
        if wants_checkpoint:
            store.checkpoint()
        if self._is_settled:
            has_more = store.tidy(TIDIED_PAGES)
            with self._changed:
                self._is_untidy = has_more
                self._changed.notify_all()
            return has_more
        # Both in each step: neither may keep the other from its turn.
        started, watermark = time.monotonic(), store.state.watermark
        has_caught_up = store.catch_up()
        taken = time.monotonic() - started
        changes = store.state.watermark - watermark
        is_building = store.build_on()
        store.bound_log()
        with self._changed:
            if changes >= self._limits.batch_changes // 2:  # a small batch says little about a rate
                self._seconds_per_change = taken / changes
            self._is_stuck = False
            self._is_untidy = self._is_untidy or has_caught_up or is_building
            self._publish(store)
        return has_caught_up or is_building

    def _publish(self, store: IndexStore) -> None:
        self._watermark = store.state.watermark
        self._is_built = store.state.built_through >= ALL_BUILT
        self._frontier = max(self._frontier, self._watermark)
        self._changed.notify_all()

    def _wait_for_work(self, has_more: bool) -> None:  # noqa: FBT001 - says what it is
        with self._changed:
            if not self._is_built and has_more:
                return
            self._is_idle = True
            rest = self._limits.settle_seconds if self._is_untidy else None
            self._is_settled = not self._changed.wait_for(
                self._has_work, 0 if self._is_settled and has_more else rest
            )
            self._is_idle = False
            if not self._is_settled:
                self._changed.wait_for(self._is_urgent, self._limits.gather_seconds)

    def _has_work(self) -> bool:
        return self._frontier > self._watermark or self._is_urgent()

    def _is_urgent(self) -> bool:
        return (
            self._frontier - self._watermark >= self._limits.batch_changes
            or (self._wants_all > 0 and not self._is_caught_up())
            or self._wants_checkpoint
            or self._is_damaged
            or self._is_closing
        )

    def _pause(self, failures: int) -> None:
        """Let commits pass and wait before the next attempt."""
        seconds = min(_LONGEST_RETRY_SECONDS, self._limits.retry_seconds * 2 ** min(failures, 10))
        with self._changed:
            self._is_stuck = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closing, seconds)

    def _drop(self, store: IndexStore | None) -> None:
        if store is not None:
            with contextlib.suppress(apsw.Error):
                store.close()
