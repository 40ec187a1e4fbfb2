"""Opening connections: which settings they get, and why; and one transaction on them."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NewType, Protocol, cast

import apsw

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

SqlValue = None | int | float | str | bytes

Array = NewType("Array", object)
"""Numbers or texts that one `carray(?)` yields row by row, without the interpreter."""

SqlBinding = SqlValue | Array

BUSY_TIMEOUT_MS: Final = 5_000  # only another program can hold us: our connections do not meet
# The cache of apsw is a ring: each use of a statement takes the next place, whatever lay there. A
# statement is compiled again if it was not used within so many others; 512 is the most it takes.
STATEMENT_CACHE: Final = 512
LOG_KEPT_BYTES: Final = 64 * 1024 * 1024
SQLITE_MINIMUM: Final = 3_044_000  # ORDER BY in aggregates; STRICT, octet_length are older

_OPEN: Final = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW | apsw.SQLITE_OPEN_EXRESCODE


class Rows(Protocol):
    """The face of `apsw.Cursor` that we use. Any: what a statement yields only its text says."""

    @property
    def get(self) -> Any:
        """All rows: None, one value, one row of several columns, or a list of either."""
        ...

    def fetchone(self) -> Any:
        """The next row or None."""
        ...

    def fetchall(self) -> list[Any]:
        """The remaining rows."""
        ...

    def close(self, force: bool = ...) -> None:  # noqa: FBT001 - as apsw declares it
        """End the statement and with it its snapshot."""
        ...

    def __iter__(self) -> Iterator[Any]: ...


class Connection(Protocol):
    """The face of `apsw.Connection` that we use.

    The stub of apsw names `collections.abc.Buffer`, which Python 3.11 does not have, and so leaves
    the type of every statement unknown.
    """

    in_transaction: bool
    system_errno: int

    def execute(
        self,
        statements: str,
        bindings: Sequence[SqlBinding] | Mapping[str, SqlBinding] | None = None,
        /,
    ) -> Rows:
        """Run a statement, compiled once for each text."""
        ...

    def config(self, op: int, *args: int) -> int:
        """Set an option of the connection; return its value."""
        ...

    def changes(self) -> int:
        """Return how many rows the last statement changed."""
        ...

    def total_changes(self) -> int:
        """Return how many rows all statements so far changed."""
        ...

    def interrupt(self) -> None:
        """Stop the statement that is running, from any thread."""
        ...

    def set_busy_timeout(self, milliseconds: int, /) -> None:
        """Wait that long for a lock of somebody else."""
        ...

    def set_wal_hook(self, hook: Callable[[Any, str, int], int] | None, /) -> None:
        """Call `hook` after each commit with the length of the log in pages."""
        ...

    def wal_checkpoint(self, dbname: str | None = None, mode: int = ...) -> tuple[int, int]:
        """Return the pages in the log and how many of them are in the database now."""
        ...

    def close(self, force: bool = ...) -> None:  # noqa: FBT001 - as apsw declares it
        """Give everything back."""
        ...


def number_array(numbers: Sequence[int]) -> Array:
    """Return what to bind so that `carray(?)` yields `numbers`; -1 if there are none."""
    return _array(array("q", numbers or (-1,)))


def text_array(texts: Sequence[str]) -> Array:
    """Return what to bind so that `carray(?)` yields `texts`: some, and none with U+0000."""
    return _array(tuple(texts))


@dataclass(frozen=True, slots=True)
class Disk:
    """How the provider reaches the disk; tests put one here that fails or forgets."""

    vfs: str | None = None
    sync_directory: Callable[[Path], None] | None = None


def require_capable_sqlite() -> str | None:
    """Return what the linked SQLite lacks, or None."""
    if apsw.SQLITE_VERSION_NUMBER < SQLITE_MINIMUM:
        return f"SQLite {apsw.sqlite_lib_version()} is older than 3.44"
    if "ENABLE_FTS5" not in apsw.compile_options:
        return "SQLite was built without FTS5"
    return None


def open_writer(
    path: Path, *, cache_kib: int, disk: Disk, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> Connection:
    """Return the connection that writes. The journal mode is left as it is: see `use_wal`."""
    connection = _open(path, disk, busy_timeout_ms)
    # FULL, not NORMAL: the answer to a mutation promises durability, and WAL with NORMAL loses the
    # last commits on power loss.
    connection.execute("PRAGMA synchronous = FULL")
    # On macOS a plain sync leaves the data in the cache of the drive; elsewhere this does nothing.
    connection.execute("PRAGMA fullfsync = ON")
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    # A log that a slow reader made long gives its room back when it begins anew.
    connection.execute(f"PRAGMA journal_size_limit = {LOG_KEPT_BYTES}")
    # Checkpoints belong to the housekeeper, never to the thread that commits.
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def open_housekeeper(path: Path, *, disk: Disk) -> Connection:
    """Return a connection that moves pages from the log into the database, and nothing else."""
    connection = _open(path, disk, BUSY_TIMEOUT_MS)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA checkpoint_fullfsync = ON")
    return connection


def open_reader(
    path: Path, *, cache_kib: int, disk: Disk, busy_timeout_ms: int = BUSY_TIMEOUT_MS
) -> Connection:
    """Return a connection that cannot write. Each statement or transaction sees one snapshot."""
    connection = _open(path, disk, busy_timeout_ms)
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{cache_kib}")
    return connection


@contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """Keep everything that is done inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def use_wal(connection: Connection) -> bool:
    """Switch the database to the write-ahead log; return whether it is on now."""
    return connection.execute("PRAGMA journal_mode = WAL").get == "wal"


def _array(values: array[int] | tuple[str, ...]) -> Array:
    # The stub declares a Buffer, see `Connection`.
    return Array(apsw.carray(values))  # pyright: ignore[reportUnknownMemberType]


def _open(path: Path, disk: Disk, busy_timeout_ms: int) -> Connection:
    opened = apsw.Connection(str(path), _OPEN, disk.vfs, STATEMENT_CACHE)
    connection = cast("Connection", opened)
    try:
        connection.set_busy_timeout(busy_timeout_ms)
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        keep_plans(connection)
        connection.execute("PRAGMA temp_store = MEMORY")
    except BaseException:
        connection.close()
        raise
    return connection


def keep_plans(connection: Connection) -> None:
    """Let a statement keep the plan it was compiled with, whatever is bound to it.

    Without this an SQLite that was built with STAT4 compiles a join anew whenever a parameter is
    bound, because the best plan might depend on the value: 17 us a keyed read instead of 4.
    """
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
