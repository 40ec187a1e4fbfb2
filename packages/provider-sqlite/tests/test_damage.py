"""A database that lost something is refused as it is; nothing is made of what is left."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import CorruptStoreError
from patchouli.provider_conformance.asking import all_changes, reading
from patchouli.provider_conformance.builders import (
    FOREVER,
    SCOPE,
    ManualClock,
    commit,
    entity,
    read,
    version,
)
from patchouli.provider_sqlite import SqliteProvider

if TYPE_CHECKING:
    from pathlib import Path


def at(home: Path) -> SqliteProvider:
    return SqliteProvider(home / "db", clock=ManualClock())


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """A directory with a database that was stopped cleanly."""
    home = tmp_path / "home"
    provider = at(home)
    await provider.initialize(FOREVER)
    for number in range(20):
        made = version(f"v{number}", {"text": "word " * 100})
        await provider.commit(commit(entity(f"e{number}"), made))
    await provider.shutdown()
    return home


async def refusal_of(home: Path) -> str:
    """Return what the start says, which must leave every file as it was."""
    before = files_of(home)
    with pytest.raises(CorruptStoreError) as refusal:
        await at(home).initialize(FOREVER)
    assert files_of(home) == before
    return refusal.value.detail


def files_of(home: Path) -> dict[str, bytes]:
    """Return what lies there; an empty log is none, and shared memory tells nothing."""
    found = {path.name: path.read_bytes() for path in home.iterdir()}
    return {name: data for name, data in found.items() if data and not name.endswith("-shm")}


async def test_an_empty_file_in_the_place_of_a_database_is_refused(home: Path) -> None:
    os.truncate(home / "db", 0)

    assert "is empty" in await refusal_of(home)


async def test_an_empty_file_beside_a_log_is_refused(home: Path) -> None:
    provider = at(home)
    await provider.initialize(FOREVER)
    await provider.commit(commit(entity("last"), version("last")))
    await provider.abandon()
    (home / "db-wal").write_bytes(b"x" * 100)
    (home / "db-wal").chmod(0o600)
    os.truncate(home / "db", 0)
    os.truncate(home / "db.lock", 0)

    assert "is empty" in await refusal_of(home)


async def test_a_missing_database_whose_log_is_there_is_refused(home: Path) -> None:
    (home / "db").unlink()
    (home / "db-wal").write_bytes(b"x" * 100)
    (home / "db-wal").chmod(0o600)

    assert "is missing" in await refusal_of(home)
    assert not (home / "db").exists()


async def test_who_removes_a_database_begins_anew(home: Path) -> None:
    (home / "db").unlink()
    for _ in range(2):
        provider = at(home)
        await provider.abandon()  # ends before the new file was written
    provider = at(home)

    run = await provider.initialize(FOREVER)

    assert run.generation == 1
    assert await all_changes(provider, SCOPE) == []
    await provider.shutdown()


async def test_a_file_that_ends_within_a_page_is_refused(home: Path) -> None:
    os.truncate(home / "db", (home / "db").stat().st_size - 100)

    assert "cut off" in await refusal_of(home)


async def test_half_a_page_behind_which_there_is_a_log_is_no_damage(
    home: Path, tmp_path: Path
) -> None:
    provider = at(home)
    await provider.initialize(FOREVER)
    await provider.commit(commit(entity("last"), version("last", "x" * 50_000)))
    killed = shutil.copytree(home, tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
    await provider.shutdown()
    with (killed / "db").open("ab") as file:  # as a disk without room leaves it
        file.write(b"x" * 100)

    provider = at(killed)
    await provider.initialize(FOREVER)

    found = await reading(provider, read(entity("last")))
    assert [head.id for head in found.heads] == ["last"]
    await provider.shutdown()


async def test_a_database_that_lacks_a_table_is_damaged(home: Path) -> None:
    connection = apsw.Connection(str(home / "db"))
    connection.execute("DROP TABLE change")
    connection.close()

    assert "damaged" in await refusal_of(home)


@pytest.mark.parametrize("column", ["value", "parents"])
async def test_a_stored_text_that_is_none_any_more_is_damage(home: Path, column: str) -> None:
    connection = apsw.Connection(str(home / "db"))
    connection.execute("PRAGMA ignore_check_constraints = ON")
    sql = f"UPDATE entity SET {column} = CAST(x'5b22ff225d' AS TEXT) WHERE id = 'e7'"  # noqa: S608 - of constants
    connection.execute(sql)
    connection.close()
    provider = at(home)
    await provider.initialize(FOREVER)

    with pytest.raises(CorruptStoreError):
        await provider.read(read(entity("e7")))

    assert len((await reading(provider, read(entity("e8")))).heads) == 1
    await provider.shutdown()
