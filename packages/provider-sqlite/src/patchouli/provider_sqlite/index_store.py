"""The index file as its one writer sees it: opened or built anew, and brought forward step by step.

A step is one transaction. It reads one snapshot of the truth, makes the documents of some entities
say what that snapshot says, and moves the state of the index with them:

* a *catch-up* step follows the change log: afterwards the index is the truth at a greater watermark
  for all entities that are built. A document may show a change after the watermark; whoever reads
  the index takes changed entities from the truth anyway;
* a *build* step takes entities in the order of their numbers and moves `built_through`. An index
  that is being built starts with the watermark at the frontier, so catching up and building take
  turns and the index never falls behind while it is built.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final, Self, cast

import apsw
from patchouli.provider import CorruptStoreError, open_private, sync_directory
from patchouli.provider_sqlite.connection import BUSY_TIMEOUT_MS, Connection, keep_plans
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.index_batch import Batches
from patchouli.provider_sqlite.index_schema import (
    ALL_BUILT,
    FULL_TEXT_TABLES,
    State,
    create,
    read_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider_sqlite.connection import Disk
    from patchouli.provider_sqlite.index_limits import IndexLimits

SIDECARS: Final = ("", "-wal", "-shm", "-journal")

_OPEN: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_EXRESCODE
_STATEMENT_CACHE: Final = 64

_HASH_BYTES: Final = 8 * 1024 * 1024  # of pending postings: a batch makes one segment
_SEGMENTS_MERGED: Final = 16  # on one level at once; each posting is rewritten once per level
_REMOVED_PERCENT: Final = 40  # of a segment; then it is rewritten without them
_PAGES_PER_REMOVED: Final = 1.0  # merged for each removed document; keeps up with that share

_INCARNATION: Final = "SELECT incarnation FROM truth.runtime"
_HEAD: Final = """
SELECT frontier, frontier_token FROM truth.scope ORDER BY frontier DESC LIMIT 1
"""
_POSITION_OF_TOKEN: Final = """
SELECT cursor FROM truth.change WHERE token = ?1
UNION ALL SELECT cursor FROM truth.causal_token WHERE token = ?1
"""  # noqa: S105 - no password
_PRUNED_THROUGH: Final = "SELECT ifnull(max(pruned_through), 0) FROM truth.scope"
_CHANGED: Final = """
SELECT group_concat(c.cursor || ' ' || c.entity_id || ' ' || ifnull(octet_length(e.value), 0))
FROM (SELECT cursor, entity_id FROM truth.change WHERE cursor > ? ORDER BY cursor LIMIT ?) AS c
CROSS JOIN truth.entity AS e ON e.entity_id = c.entity_id
"""
_UNBUILT: Final = """
SELECT group_concat(entity_id || ' ' || entity_id || ' ' || size)
FROM (SELECT entity_id, ifnull(octet_length(value), 0) AS size
      FROM truth.entity WHERE entity_id > ? ORDER BY entity_id LIMIT ?)
"""
_TOKEN_AT: Final = "SELECT token FROM truth.change WHERE cursor = ?"  # noqa: S105 - no password
_MOVE_WATERMARK: Final = "UPDATE state SET watermark = ?, token = ?"
_MOVE_BUILT: Final = "UPDATE state SET built_through = ?"


def index_path(truth: Path) -> Path:
    """Return where the index of the database `truth` lies."""
    return truth.with_name(truth.name + "-index")


class IndexStore:
    """The write connection of an index, with the truth attached for reading."""

    def __init__(
        self, path: Path, connection: Connection, state: State, limits: IndexLimits
    ) -> None:
        self._log = path.with_name(path.name + "-wal")
        self._connection = connection
        self._batches = Batches(connection)
        self._limits = limits
        self.state = state

    @classmethod
    def open(cls, truth: Path, limits: IndexLimits, disk: Disk) -> Self | None:
        """Return the index found beside `truth`; None if it cannot be used for this truth."""
        path = index_path(truth)
        if not path.exists():
            return None
        connection = None
        try:
            connection = _connect(path, truth, disk)
            state = read_state(connection, "main")
            if state is not None and _continues(connection, state):
                return cls(path, connection, state, limits)
        except (apsw.CorruptError, apsw.NotADBError, apsw.SQLError):
            pass
        except BaseException:
            if connection is not None:
                connection.close()
            raise
        if connection is not None:
            connection.close()
        return None

    @classmethod
    def build(cls, truth: Path, limits: IndexLimits, disk: Disk) -> Self:
        """Delete what lies beside `truth` and return a new index that is yet to be built."""
        path = index_path(truth)
        for suffix in SIDECARS:
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        os.close(open_private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        connection = _connect(path, truth, disk)
        try:
            # Now, or a power loss could bring files back that must not meet the log of this index:
            # the former index, or the journal of the first write to this one.
            (disk.sync_directory or sync_directory)(path.parent)
            frontier, token = connection.execute(_HEAD).fetchone() or (0, None)
            incarnation: str = connection.execute(_INCARNATION).get
            state = State(incarnation, frontier, token, 0)
            create(connection, state)
            for table in FULL_TEXT_TABLES:
                _configure(connection, table)
            return cls(path, connection, state, limits)
        except BaseException:
            connection.close()
            raise

    def catch_up(self) -> bool:
        """Take the next changes; return whether there were any."""
        with self._step() as truth:
            listed: str | None = truth.execute(
                _CHANGED, (self.state.watermark, self._limits.batch_changes)
            ).get
            if listed is None:
                return False
            cursor, entity_ids = self._within_bytes(listed)
            built = self.state.built_through
            self._batches.load([entity for entity in entity_ids if entity <= built])
            token: str = truth.execute(_TOKEN_AT, (cursor,)).get
        with self._step() as step:
            removed = self._batches.take()
            if removed:
                self.tidy(int(removed * _PAGES_PER_REMOVED) + 1)
            step.execute(_MOVE_WATERMARK, (cursor, token))
            state = self.state._replace(watermark=cursor, token=token)
        self.state = state
        return True

    def build_on(self) -> bool:
        """Take the next entities of an index that is being built; return whether any are left."""
        if self.state.built_through >= ALL_BUILT:
            return False
        built = ALL_BUILT
        with self._step() as truth:
            listed: str | None = truth.execute(
                _UNBUILT, (self.state.built_through, self._limits.batch_changes)
            ).get
            if listed is not None:
                built, entity_ids = self._within_bytes(listed)
                self._batches.load(entity_ids)
        with self._step() as step:
            if listed is not None:
                self._batches.take()
            step.execute(_MOVE_BUILT, (built,))
        self.state = self.state._replace(built_through=built)
        return built < ALL_BUILT

    def tidy(self, pages: int) -> bool:
        """Merge about so many pages of postings; return whether there may be more to merge."""
        has_more = False
        for table in FULL_TEXT_TABLES:
            before = self._connection.total_changes()
            sql = f"INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)"  # noqa: S608 - of constants
            self._connection.execute(sql, (pages,))
            # FTS5 counts the command itself, and more only if it found something to do.
            has_more = has_more or self._connection.total_changes() - before >= 2
        return has_more

    def continues(self) -> bool:
        """Return whether the change log still leads from the index to the truth."""
        return _continues(self._connection, self.state)

    def read_frontier(self) -> int:
        """Return the cursor of the newest change of the truth."""
        frontier, _ = self._connection.execute(_HEAD).fetchone() or (0, None)
        return frontier

    def checkpoint(self) -> None:
        """Move the log of the index into its file, as far as readers let it."""
        self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_PASSIVE)

    def bound_log(self) -> None:
        """Empty the log if it has grown past its bound because there always was a reader."""
        try:
            size = self._log.stat().st_size
        except FileNotFoundError:
            return
        if size > self._limits.log_bytes:
            with contextlib.suppress(apsw.BusyError):  # it is tried again after the next step
                self._connection.wal_checkpoint("main", apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def close(self) -> None:
        """Close the connection; the last one to be closed removes the log."""
        self._connection.close()

    def _step(self) -> _Step:
        return _Step(self._connection, self._batches)

    def _within_bytes(self, listed: str) -> tuple[int, list[int]]:
        """Return the entities of `position entity size` rows that fit, and the last one's position.

        Each entity once, in the order of the rows, and at least one.
        """
        entity_ids: dict[int, None] = {}
        last, size = 0, 0
        for row in listed.split(","):
            position, entity_id, bytes_ = map(int, row.split(" "))
            if entity_ids and size + bytes_ > self._limits.batch_bytes:
                break
            if entity_id not in entity_ids:
                entity_ids[entity_id] = None
                size += bytes_
            last = position
        return last, list(entity_ids)


class _Step:
    """A transaction that is rolled back, with what was remembered of it, if anything fails.

    One either reads the truth or writes the index. A step of the index takes its time, and until
    its end SQLite would keep the snapshot of the truth and with it the log that cannot begin anew.
    """

    def __init__(self, connection: Connection, batches: Batches) -> None:
        self._connection = connection
        self._batches = batches

    def __enter__(self) -> Connection:
        # Not IMMEDIATE: that would take the write lock of the attached truth as well and hold its
        # writer for the whole step. The index itself has no other writer.
        self._connection.execute("BEGIN")
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
            except BaseException:
                self._give_up()
                raise
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._batches.forget()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def _connect(path: Path, truth: Path, disk: Disk) -> Connection:
    connection = cast("Connection", apsw.Connection(str(path), _OPEN, disk.vfs, _STATEMENT_CACHE))
    try:
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        keep_plans(connection)
        connection.execute("PRAGMA temp_store = MEMORY")
        if connection.execute("PRAGMA journal_mode = WAL").get != "wal":
            raise CorruptStoreError(KIND, "index", "the index cannot use a write-ahead log")
        # NORMAL: a loss of power may lose the last steps, which are taken again, and cannot damage
        # the file, because the log is synced before it is moved into it.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("ATTACH ? AS truth", (str(truth),))
    except BaseException:
        connection.close()
        raise
    return connection


def _configure(connection: Connection, table: str) -> None:
    for option, value in (
        ("hashsize", _HASH_BYTES),
        ("automerge", 0),
        ("crisismerge", _SEGMENTS_MERGED),
        ("deletemerge", _REMOVED_PERCENT),
    ):
        sql = f"INSERT INTO {table} ({table}, rank) VALUES (?, ?)"  # noqa: S608 - of constants
        connection.execute(sql, (option, value))


def _continues(connection: Connection, state: State) -> bool:
    """Return whether the change log leads from the index to the truth, with nothing missing."""
    if connection.execute(_INCARNATION).get != state.incarnation:
        return False
    if connection.execute(_PRUNED_THROUGH).get > state.watermark:
        return False
    if state.watermark == 0:
        return True
    return connection.execute(_POSITION_OF_TOKEN, (state.token,)).get == state.watermark
