"""Starts that must fail and say why, and starts that heal.

A start that fails leaves the files as it found them. The index is derived, so whatever became of it
is mended, and no answer depends on it meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, cast

import apsw
import pytest
from patchouli.protocol import CREATE
from patchouli.provider_sqlite.testing import check_index, check_truth, drop_index
from patchouli.server.testing import DaemonProcess, Peer

from tests.crash.account import Account, Key, create_counted_home, meta_of
from tests.crash.audit import check_daemon, read_status
from tests.crash.extent import STARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from patchouli.provider_sqlite.connection import Connection


def create_filled_home(root: Path, account: Account, *, entities: int = 60) -> Path:
    """Make a home with entities on more than a few pages, stopped cleanly."""
    home = create_counted_home(root)

    async def fill(endpoint: Path) -> None:
        async with await Peer.connect(endpoint) as peer:
            for number in range(entities):
                attempt = account.attempt(
                    account.new_peer(), CREATE, Key("mira", "memo", f"m-{number}")
                )
                value = {"text": f"{attempt.word} {'leaf ' * 100}", "tag": attempt.word}
                data = {"type": "memo", "id": attempt.key.id, "value": value}
                meta = meta_of("mira", attempt=attempt.number)
                account.settle(attempt, await peer.call(CREATE, {"meta": meta, "data": data}))

    with DaemonProcess(home) as daemon:
        asyncio.run(fill(daemon.endpoint))
    return home


@pytest.fixture(scope="module")
def pattern() -> Iterator[tuple[Path, Account]]:
    """A home and the account of it, made once and copied by the tests."""
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    account = Account()
    yield create_filled_home(folder / "home", account), account
    shutil.rmtree(folder)


@pytest.fixture
def home(folder: Path, pattern: tuple[Path, Account]) -> Path:
    return shutil.copytree(pattern[0], folder / "home")


@pytest.fixture
def account(pattern: tuple[Path, Account]) -> Account:
    return deepcopy(pattern[1])


@pytest.fixture
def database(home: Path) -> Path:
    return home / "data" / "patchouli.db"


# Two at once


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("differ_in_endpoint", [False, True])
async def test_of_two_that_start_at_once_one_serves_and_one_says_why_not(
    home: Path, folder: Path, account: Account, *, differ_in_endpoint: bool
) -> None:
    for number in range(STARTS // 2):
        both = [
            DaemonProcess(home, *(["--endpoint", str(folder / name)] if differ_in_endpoint else []))
            for name in ("one", "other")
        ]
        outcomes = await asyncio.gather(
            *(asyncio.to_thread(daemon.start) for daemon in both), return_exceptions=True
        )
        refusals = [outcome for outcome in outcomes if outcome is not None]
        for daemon, outcome in zip(both, outcomes, strict=True):
            if outcome is None and number % 2:
                assert daemon.end() == 0
            elif outcome is None:
                daemon.kill()  # so that the next two find a stale socket
        assert len(refusals) == 1
        said = str(refusals[0])
        assert said.startswith("the daemon ended with 1: patchouli-db: ")
        if differ_in_endpoint:
            assert "another process uses the database" in said
        else:
            assert "is already listening" in said or "is starting or stopping" in said
    with DaemonProcess(home) as daemon:
        status = await read_status(daemon.endpoint)
        assert status["generation"] == 1 + STARTS // 2 + 1
        assert status["recovered_after_unclean_shutdown"] is bool(STARTS // 2 % 2)
        await check_daemon(daemon.endpoint, account)


# A database that cannot be used


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def open_past_the_provider(path: Path) -> Connection:
    return cast("Connection", apsw.Connection(str(path)))


def change(path: Path, sql: str) -> None:
    connection = open_past_the_provider(path)
    connection.execute(sql)
    connection.close()


def put_foreign(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE note (text)")
    path.chmod(0o600)


def lose_half(path: Path) -> None:
    pages = path.stat().st_size // 4096
    os.truncate(path, pages // 2 * 4096)


def lose_with_log(path: Path) -> None:
    path.with_name(path.name + "-wal").write_bytes(b"what was not moved yet")
    path.with_name(path.name + "-wal").chmod(0o600)
    path.unlink()


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "of another program": (put_foreign, "of another program"),
    "of a newer release": (
        lambda path: change(path, "PRAGMA user_version = 99"),
        "has format 99, this release knows",
    ),
    "half as long": (lose_half, "is damaged"),
    "cut off within a page": (lambda path: os.truncate(path, path.stat().st_size - 9), "cut off"),
    "only a header": (lambda path: os.truncate(path, 100), "is damaged"),
    "empty": (lambda path: os.truncate(path, 0), "is empty"),
    "missing, with a log": (lose_with_log, "is missing"),
    "garbage": (lambda path: path.write_bytes(b"no database " * 1000), "not a SQLite database"),
    "with a bit flipped in the magic": (lambda path: flip(path, 3), "not a SQLite database"),
    "with a bit flipped in the page size": (lambda path: flip(path, 16), "not a SQLite database"),
    "with a bit flipped in the application": (lambda path: flip(path, 70), "another program"),
    "with a bit flipped in the schema": (lambda path: flip(path, 100), "is damaged"),
    "without a table": (lambda path: change(path, "DROP TABLE change"), "is damaged"),
}


def files_of(home: Path) -> dict[str, bytes]:
    """Return what the files of the home hold; shared memory and empty logs hold nothing."""
    return {
        str(path.relative_to(home)): content
        for path in home.rglob("*")
        if path.is_file() and not path.name.endswith("-shm") and (content := path.read_bytes())
    }


@pytest.mark.slow
@pytest.mark.parametrize("what", UNUSABLE)
def test_a_database_that_cannot_be_used_stops_the_start_and_is_left_as_it_is(
    home: Path, database: Path, what: str
) -> None:
    damage, expected = UNUSABLE[what]
    damage(database)
    before = files_of(home)
    daemon = DaemonProcess(home)

    with pytest.raises(RuntimeError, match="the daemon ended with 1: patchouli-db: "):
        daemon.start()

    assert expected in daemon.output[-1]
    assert "Traceback" not in "\n".join(daemon.output)
    assert files_of(home) == before


@pytest.mark.slow
@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_database_that_another_program_holds_stops_the_start(
    home: Path, database: Path, statement: str
) -> None:
    connection = open_past_the_provider(database)
    connection.execute(statement)
    daemon = DaemonProcess(home)

    with pytest.raises(RuntimeError, match="another program holds the database"):
        daemon.start()

    connection.execute("ROLLBACK")
    connection.close()
    with DaemonProcess(home):
        pass
    check_truth(database)


# An index that cannot be used


def index_of(database: Path) -> Path:
    return database.with_name(database.name + "-index")


def take_from_another(database: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    other = create_filled_home(folder / "home", Account(), entities=80)
    shutil.copy(index_of(other / "data" / "patchouli.db"), index_of(database))
    shutil.rmtree(folder)


def put_old_log(database: Path) -> None:
    log = index_of(database).with_name(index_of(database).name + "-wal")
    log.write_bytes(b"x" * 5000)
    log.chmod(0o600)


LOST: dict[str, Callable[[Path], object]] = {
    "missing": drop_index,
    "empty": lambda database: os.truncate(index_of(database), 0),
    "half as long": lambda database: lose_half(index_of(database)),
    "garbage": lambda database: index_of(database).write_bytes(b"no index " * 5000),
    "of another database": take_from_another,
    "of another program": lambda database: put_foreign(index_of(database)),
    "of another layout": lambda database: change(
        index_of(database), "UPDATE state SET layout = 9999"
    ),
    "without a table": lambda database: change(index_of(database), "DROP TABLE document"),
    "with a bit flipped in the schema": lambda database: flip(index_of(database), 100),
    "beside a log that is none": put_old_log,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", LOST)
async def test_an_index_that_cannot_be_used_is_healed_and_no_answer_depends_on_it(
    home: Path, database: Path, account: Account, folder: Path, what: str
) -> None:
    await asyncio.to_thread(LOST[what], database)

    with DaemonProcess(home) as daemon:
        await check_daemon(daemon.endpoint, account)
        await check_daemon(daemon.endpoint, account)
        assert daemon.end() == 0

    assert not [line for line in daemon.output if not line.startswith("warning: ")]
    check_truth(database)
    check_index(database, folder / "rebuilt")
