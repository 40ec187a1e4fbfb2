"""Durable records in one SQLite file.

All records of an open domain are in memory. A write goes to the disk first, in the one thread of
the store and with a sync, and is seen and told only then. What was asked for is done though whoever
asked is cancelled or told by a signal to wait no longer; closing a domain waits for its writes.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from patchouli.harness.errors import DomainError
from patchouli.harness.events import DOMAIN_CHANGED, DomainChanged
from patchouli.harness.jsonvalue import encode_json, require_json, snapshot
from patchouli.harness.ports import Domain, DomainSpec, KvTable, Singleton, StorageDomains
from patchouli.harness.reference.facts import message_of
from patchouli.harness.signals import CancelSource
from patchouli.harness.tasks import abandon

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from patchouli.harness.jsonvalue import Json
    from patchouli.harness.kernel import Kernel
    from patchouli.harness.ports import RecordValidator
    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")

_NAME: Final = re.compile(r"[a-z0-9_]+")
# The singleton is a record of a table that no spec can name.
_SINGLETON_TABLE: Final = ""
_SINGLETON_KEY: Final = ""
_TABLES: Final = """
    CREATE TABLE IF NOT EXISTS domain (
        name TEXT NOT NULL PRIMARY KEY,
        version INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS record (
        domain TEXT NOT NULL REFERENCES domain,
        "table" TEXT NOT NULL,
        key TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY (domain, "table", key)
    ) STRICT, WITHOUT ROWID;
"""


class SqliteDomains(StorageDomains):
    """The service ``storageDomain``; nothing is opened before the first domain is."""

    def __init__(self, kernel: Kernel, path: Path) -> None:
        self._kernel = kernel
        self._path = path
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None  # used in the thread alone
        self._open: dict[str, _Domain] = {}
        self._opening: set[str] = set()
        self._is_closed = False

    async def open(self, spec: DomainSpec, *, signal: CancelSignal | None = None) -> Domain:
        """Open a domain, all of whose records are valid."""
        if signal is not None:
            signal.raise_if_cancelled()
        if not _NAME.fullmatch(spec.name):
            raise ValueError(f"a domain cannot be called {spec.name!r}")
        if spec.name in self._open or spec.name in self._opening:
            raise DomainError("already-open", f"domain {spec.name!r} is open already")
        self._opening.add(spec.name)
        try:
            loading = asyncio.create_task(
                self.run(lambda connection: _load(connection, spec), what=f"open {spec.name!r}"),
                name=f"open {spec.name}",
            )
            records = await self.end_of(loading, signal)
            domain = _Domain(self, spec, _validated(spec, records))
            self._open[spec.name] = domain
            return domain
        finally:
            self._opening.discard(spec.name)

    async def aclose(self) -> None:
        """Close what is still open, then the file; nothing is opened afterwards."""
        while self._open:
            await next(iter(self._open.values())).close()
        self._is_closed = True
        if self._thread is not None:
            thread = self._thread
            # After whatever the thread still does for someone who does not wait any more.
            await asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            thread.shutdown()
            self._thread = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def run(self, work: Callable[[sqlite3.Connection], R], *, what: str) -> R:
        """Do `work` in the thread, after everything that was given to it before.

        Raises:
            DomainError: The store is closed (``closed``), or SQLite failed at `what`:
                ``backend-not-found`` if there can be no database at the path, else
                ``backend-failed``, for instance while another process locks it.
        """
        if self._is_closed:
            raise DomainError("closed", f"{what} in {self._path}: the store is closed")
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="patchouli-domains")

        def call() -> R:
            try:
                if self._connection is None:
                    self._connection = _connect(self._path)
                return work(self._connection)
            except sqlite3.Error as error:
                code = "backend-not-found" if _is_no_database(error) else "backend-failed"
                raise DomainError(code, f"{what} in {self._path}: {error}") from error

        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def end_of(self, task: asyncio.Task[R], signal: CancelSignal | None) -> R:
        """Return what `task` returns; it goes on though the caller does not wait any more.

        Raises:
            Exception: The reason of `signal`, if it fires before the end.
        """
        signal = signal or CancelSource().signal
        told = asyncio.get_running_loop().create_future()
        forget = signal.add_callback(lambda: told.set_result(None))
        try:
            await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            forget()
            if not task.done():
                abandon(task, self._kernel.root.logger, task.get_name())
        if not task.done():
            signal.raise_if_cancelled()
        return task.result()

    def forget(self, name: str) -> None:
        """Let a domain be opened again."""
        del self._open[name]

    def tell(self, change: DomainChanged) -> None:
        """Notify ``domain/changed``."""
        self._kernel.root.notify(DOMAIN_CHANGED, change)


class _Domain(Domain):
    def __init__(
        self, store: SqliteDomains, spec: DomainSpec, records: dict[str, dict[str, Json]]
    ) -> None:
        self._store = store
        self._spec = spec
        self._tables = {
            name: _Table(self, name, validate, records.get(name, {}))
            for name, validate in spec.tables.items()
        }
        self._singleton = spec.singleton and _Singleton(
            _Table(
                self, _SINGLETON_TABLE, spec.singleton.validate, records.get(_SINGLETON_TABLE, {})
            ),
            spec.singleton.initial,
        )
        self._writes: set[asyncio.Task[bool]] = set()
        self._turn = asyncio.Lock()  # first come, first written
        self._closing: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        return self._spec.name

    def table(self, name: str) -> KvTable:
        return self._tables[name]

    def singleton(self) -> Singleton:
        if self._singleton is None:
            raise KeyError(f"domain {self.name!r} has no singleton")
        return self._singleton

    async def close(self, *, signal: CancelSignal | None = None) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"close {self.name}")
        await self._store.end_of(self._closing, signal)

    async def _close(self) -> None:
        while self._writes:
            await asyncio.wait(self._writes)
        self._store.forget(self.name)

    async def write(
        self, change: DomainChanged, records: dict[str, Json], signal: CancelSignal | None
    ) -> bool:
        """Make a change on the disk, then in `records`, and tell; say whether there was any."""
        if self._closing is not None:
            raise DomainError("closed", f"domain {self.name!r} is closed")
        if signal is not None:
            signal.raise_if_cancelled()
        task = asyncio.create_task(self._write(change, records), name=f"write {self.name}")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return await self._store.end_of(task, signal)

    async def _write(self, change: DomainChanged, records: dict[str, Json]) -> bool:
        async with self._turn:
            if change.operation == "delete" and change.key not in records:
                return False
            await self._store.run(
                lambda connection: _write(connection, change),
                what=f"{change.operation} {change.key!r}",
            )
            match change.operation:
                case "put":
                    records[change.key] = snapshot(change.value)  # what is told is another copy
                case "delete":
                    del records[change.key]
            self._store.tell(change)
            return True


class _Table(KvTable):
    def __init__(
        self, domain: _Domain, name: str, validate: RecordValidator, records: dict[str, Json]
    ) -> None:
        self._domain = domain
        self._name = name
        self._validate = validate
        self._records = records

    def get(self, key: str) -> Json | None:
        return snapshot(self._records.get(key))

    def items(self) -> Iterator[tuple[str, Json]]:
        return iter([(key, snapshot(value)) for key, value in self._records.items()])

    def __len__(self) -> int:
        return len(self._records)

    async def put(self, key: str, value: Json, *, signal: CancelSignal | None = None) -> None:
        with _refusing_record(self._name, key):
            _require_key(key)
            copy = snapshot(value)
            self._validate(snapshot(copy))
        await self._domain.write(self._change(key, "put", copy), self._records, signal)

    async def delete(self, key: str, *, signal: CancelSignal | None = None) -> bool:
        with _refusing_record(self._name, key):
            _require_key(key)
        return await self._domain.write(self._change(key, "delete"), self._records, signal)

    def _change(
        self, key: str, operation: Literal["put", "delete"], value: Json = None
    ) -> DomainChanged:
        return DomainChanged(
            domain=self._domain.name, table=self._name, key=key, operation=operation, value=value
        )


class _Singleton(Singleton):
    def __init__(self, table: _Table, initial: Json) -> None:
        self._table = table
        self._initial = initial

    def get(self) -> Json:
        return self._table.get(_SINGLETON_KEY) if len(self._table) else snapshot(self._initial)

    async def put(self, value: Json, *, signal: CancelSignal | None = None) -> None:
        await self._table.put(_SINGLETON_KEY, value, signal=signal)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # a write is durable before it is told
        connection.executescript(_TABLES)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _is_no_database(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", 0)  # which an error of the module itself lacks
    return code & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOTADB)


def _load(connection: sqlite3.Connection, spec: DomainSpec) -> list[tuple[str, str, str]]:
    connection.execute("INSERT OR IGNORE INTO domain VALUES (?, ?)", (spec.name, spec.version))
    (version,) = connection.execute(
        "SELECT version FROM domain WHERE name = ?", (spec.name,)
    ).fetchone()
    if version != spec.version:
        raise DomainError(
            "version-mismatch",
            f"domain {spec.name!r} is stored in version {version}, not {spec.version}",
        )
    rows = connection.execute(
        'SELECT "table", key, value FROM record WHERE domain = ? ORDER BY "table", key',
        (spec.name,),
    )
    return rows.fetchall()


def _validated(spec: DomainSpec, rows: list[tuple[str, str, str]]) -> dict[str, dict[str, Json]]:
    validators = {**spec.tables}
    if spec.singleton is not None:
        validators[_SINGLETON_TABLE] = spec.singleton.validate
    records: dict[str, dict[str, Json]] = {}
    for table, key, text in rows:
        if table not in validators:
            continue  # of a table that this version of the plugin does not use
        with _refusing_record(f"{spec.name} {table}", key):
            value = snapshot(json.loads(text))
            validators[table](snapshot(value))
        records.setdefault(table, {})[key] = value
    return records


def _write(connection: sqlite3.Connection, change: DomainChanged) -> None:
    where = (change.domain, change.table, change.key)
    match change.operation:
        case "put":
            text = encode_json(change.value)
            connection.execute("REPLACE INTO record VALUES (?, ?, ?, ?)", (*where, text))
        case "delete":
            connection.execute(
                'DELETE FROM record WHERE domain = ? AND "table" = ? AND key = ?', where
            )


def _require_key(key: object) -> None:
    require_json(key)
    if not isinstance(key, str):
        raise TypeError("a key is a text")


@contextmanager
def _refusing_record(where: str, key: object) -> Generator[None]:
    """Make whatever is raised, a validator's error above all, the refusal of the record.

    Raises:
        DomainError: ``invalid-record``.
    """
    try:
        yield
    except Exception as error:
        raise DomainError("invalid-record", f"{where} {key!r}: {message_of(error)}") from error
