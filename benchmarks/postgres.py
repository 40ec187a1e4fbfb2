"""A private PostgreSQL for comparison: Debian's package, a Unix socket, fsync on.

An entity row with a jsonb value, a change row, and a `pg_trgm` GIN index over the value as text, in
one transaction. Requests are raw messages of the extended protocol with prepared statements, so
that the client costs what ours costs.
"""

from __future__ import annotations

import os
import pwd
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SCHEMA = """
CREATE EXTENSION pg_trgm;
CREATE TABLE entity (
    entity_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text NOT NULL, type text NOT NULL, id text NOT NULL,
    version text NOT NULL, value jsonb NOT NULL, recorded_at bigint NOT NULL,
    UNIQUE (scope, type, id));
CREATE TABLE change (
    cursor bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope text NOT NULL, entity_id bigint NOT NULL, kind text NOT NULL, token text NOT NULL);
CREATE INDEX change_by_scope ON change (scope, cursor);
CREATE INDEX entity_text ON entity USING gin ((value::text) gin_trgm_ops);
"""

STATEMENTS = {
    "create": (
        "WITH e AS (INSERT INTO entity (scope, type, id, version, value, recorded_at)"
        " VALUES ($1, 'knowledge', $2, gen_random_uuid()::text, $3::jsonb, 1)"
        " RETURNING entity_id, scope, version)"
        " INSERT INTO change (scope, entity_id, kind, token)"
        " SELECT scope, entity_id, 'created', version FROM e RETURNING token"
    ),
    "read": (
        "SELECT version, value::text FROM entity"
        " WHERE scope = $1 AND type = 'knowledge' AND id = $2"
    ),
    "text": (
        "SELECT id, value::text FROM entity WHERE scope = $1 AND value::text ILIKE $2"
        " ORDER BY recorded_at DESC, type, id LIMIT 10"
    ),
    "filter": (
        "SELECT id, value::text FROM entity WHERE scope = $1"
        " AND value #>> '{metadata,core,origin,native_id}' = $2"
        " ORDER BY recorded_at DESC, type, id LIMIT 10"
    ),
}


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def execute(statement: str, *parameters: str) -> bytes:
    """Return the messages that run a prepared statement as one transaction."""
    values = b"".join(
        struct.pack("!i", len(data)) + data for data in (p.encode() for p in parameters)
    )
    bind = b"\0" + statement.encode() + b"\0" + struct.pack("!hh", 0, len(parameters)) + values
    return (
        _message(b"B", bind + struct.pack("!h", 0))
        + _message(b"E", b"\0" + struct.pack("!i", 0))
        + _message(b"S", b"")
    )


class PostgresWire:
    """The start of a session with all statements prepared, and the end of a reply."""

    def __init__(self, user: str) -> None:
        self._user = user

    def opening(self) -> list[bytes]:
        startup = struct.pack("!i", 196608) + f"user\0{self._user}\0database\0postgres\0\0".encode()
        prepare = b"".join(
            _message(b"P", f"{name}\0{sql}\0".encode() + struct.pack("!h", 0))
            for name, sql in STATEMENTS.items()
        )
        return [struct.pack("!i", len(startup) + 4) + startup, prepare + _message(b"S", b"")]

    def is_complete(self, received: bytes) -> bool:
        if received.startswith(b"E") or b"ERROR\0" in received[:64]:
            raise RuntimeError(received[:200].decode(errors="replace"))
        return received.endswith(b"Z\0\0\0\5I")


@contextmanager
def server(folder: Path) -> Iterator[tuple[Path, str]]:
    """Run a PostgreSQL of its own below `folder`; yield its socket and its user."""
    binaries = _binaries()
    data = folder / "postgres"
    sockets = Path(tempfile.mkdtemp(prefix="pg"))
    account = _account()
    for path in (folder, sockets):
        path.chmod(0o755)
    data.mkdir()
    shutil.chown(data, account)
    shutil.chown(sockets, account)

    def run(*command: str) -> None:
        subprocess.run(
            command,
            check=True,
            user=account if os.geteuid() == 0 else None,
            stdout=subprocess.DEVNULL,
            cwd=sockets,
        )

    run(str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "bench", "-E", "UTF8")
    options = (
        f"-c listen_addresses= -c unix_socket_directories={sockets}"
        " -c max_connections=200 -c fsync=on"
    )
    control = str(binaries / "pg_ctl")
    run(control, "-D", str(data), "-w", "-o", options, "-l", str(data / "log"), "start")
    try:
        subprocess.run(
            [
                "psql",
                "-h",
                str(sockets),
                "-U",
                "bench",
                "-d",
                "postgres",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
            ],
            input=SCHEMA,
            text=True,
            check=True,
        )
        yield sockets / ".s.PGSQL.5432", "bench"
    finally:
        run(control, "-D", str(data), "-m", "fast", "-w", "stop")
        shutil.rmtree(sockets)


def statement(socket: Path, sql: str) -> None:
    """Run one statement outside of any measurement."""
    subprocess.run(
        ["psql", "-h", str(socket.parent), "-U", "bench", "-d", "postgres", "-q", "-c", sql],
        check=True,
    )


def version() -> str:
    return subprocess.run(
        [_binaries() / "postgres", "--version"], check=True, capture_output=True, text=True
    ).stdout.strip()


def _binaries() -> Path:
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name)
    )
    if not found:
        raise SystemExit("PostgreSQL is missing; install it with: apt-get install postgresql")
    return found[-1]


def _account() -> str:
    """PostgreSQL refuses to run as root: use the account of the package then."""
    return "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
