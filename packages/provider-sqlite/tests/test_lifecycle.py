"""Starting and stopping: generations, incarnations, foreign and damaged files, locks."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import (
    Committed,
    CorruptStoreError,
    FormatVersionError,
    MisuseError,
    OwnershipError,
    Raced,
    Reading,
    UnavailableError,
)
from patchouli.provider_conformance.builders import (
    FOREVER,
    SCOPE,
    ManualClock,
    changes,
    create,
    entity,
    read,
    update,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.schema import APPLICATION_ID, FORMAT_VERSION
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider import RuntimeGeneration

IMPATIENT = SqliteLimits(busy_timeout_ms=20)


def at(path: Path, limits: SqliteLimits = IMPATIENT) -> SqliteProvider:
    return SqliteProvider(path, clock=ManualClock(), limits=limits)


async def one_run(path: Path, *names: str) -> RuntimeGeneration:
    """Start, create an entity for each name, and stop cleanly."""
    provider = at(path)
    run = await provider.initialize(FOREVER)
    for name in names:
        assert isinstance(await provider.commit(create(entity(name), f"{name}1")), Committed)
    await provider.shutdown()
    return run


def copied(source: Path, target: Path, *names: str) -> Path:
    target.mkdir(mode=0o700)
    for name in names:
        shutil.copy2(source.parent / name, target / name)
    return target / source.name


async def test_generations_count_starts_and_tell_clean_stops(tmp_path: Path) -> None:
    path = tmp_path / "db"
    first = await one_run(path)
    dropped = at(path)
    second = await dropped.initialize(FOREVER)
    await dropped.abandon()
    third = await one_run(path)
    fourth = await one_run(path)

    runs = [first, second, third, fourth]
    assert [run.generation for run in runs] == [1, 2, 3, 4]
    assert [run.recovered_after_unclean_shutdown for run in runs] == [False, False, True, False]
    assert len({run.incarnation for run in runs}) == 1
    assert len({run.secret for run in runs}) == 1
    assert len(first.secret) == 32


async def test_two_databases_have_different_names_and_secrets(tmp_path: Path) -> None:
    first, second = await one_run(tmp_path / "a"), await one_run(tmp_path / "b")

    assert first.incarnation != second.incarnation
    assert first.secret != second.secret


async def test_a_copy_without_its_lock_file_is_another_database(tmp_path: Path) -> None:
    original = await one_run(tmp_path / "db", "a")
    copy = copied(tmp_path / "db", tmp_path / "copy", "db")

    run = await one_run(copy, "b")
    again = await one_run(copy)

    assert run.incarnation != original.incarnation
    assert run.secret != original.secret
    assert again.incarnation == run.incarnation


async def test_an_older_copy_in_the_place_of_the_database_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "db"
    original = await one_run(path, "a")
    copied(path, tmp_path / "backup", "db")
    await one_run(path, "b")
    shutil.copy2(tmp_path / "backup" / "db", path)

    restored = await one_run(path)

    assert restored.generation == 2
    assert restored.incarnation != original.incarnation


async def test_a_copy_of_the_same_run_that_lacks_changes_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await one_run(path)
    provider = at(path)
    original = await provider.initialize(FOREVER)
    await provider.checkpoint()
    copied(path, tmp_path / "backup", "db")
    await provider.commit(create(entity("a"), "a1"))
    await provider.shutdown()
    shutil.copy2(tmp_path / "backup" / "db", path)

    restored = await one_run(path)

    assert restored.generation == original.generation + 1
    assert restored.incarnation != original.incarnation


async def test_another_database_in_its_place_brings_its_own_name(tmp_path: Path) -> None:
    await one_run(tmp_path / "db", "a")
    other = await one_run(tmp_path / "other", "b")
    shutil.copy2(tmp_path / "other", tmp_path / "db")

    run = await one_run(tmp_path / "db")

    assert run.incarnation == other.incarnation


async def test_a_moved_directory_is_the_same_database(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir(mode=0o700)
    original = await one_run(tmp_path / "old" / "db", "a")
    (tmp_path / "old").rename(tmp_path / "new")

    moved = await one_run(tmp_path / "new" / "db")

    assert moved.incarnation == original.incarnation


def content_of(path: Path) -> bytes:
    return path.read_bytes()


async def refused(path: Path, error: type[Exception], match: str) -> None:
    """Expect the start to fail, to change no byte of the file, and to let go of it."""
    before = content_of(path)
    provider = at(path)
    with pytest.raises(error, match=match):
        await provider.initialize(FOREVER)
    await provider.shutdown()

    assert content_of(path) == before
    at_once = at(path)
    await at_once.shutdown()


def foreign_database(path: Path, *statements: str) -> None:
    connection = apsw.Connection(str(path))
    for statement in statements:
        connection.execute(statement).fetchall()
    connection.close()
    path.chmod(0o600)


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    foreign_database(tmp_path / "db", "CREATE TABLE theirs (x)")

    await refused(tmp_path / "db", FormatVersionError, "another program")


async def test_a_database_with_a_foreign_application_id_is_refused(tmp_path: Path) -> None:
    foreign_database(tmp_path / "db", "PRAGMA application_id = 77", "PRAGMA user_version = 1")

    await refused(tmp_path / "db", FormatVersionError, "another program")


async def test_a_database_of_a_newer_release_is_refused(tmp_path: Path) -> None:
    await one_run(tmp_path / "db", "a")
    foreign_database(tmp_path / "db", f"PRAGMA user_version = {FORMAT_VERSION + 1}")

    await refused(tmp_path / "db", FormatVersionError, "newer release")


async def test_the_numbers_of_the_format_are_ours(tmp_path: Path) -> None:
    await one_run(tmp_path / "db")

    connection = apsw.Connection(str(tmp_path / "db"))
    assert connection.pragma("application_id") == APPLICATION_ID
    assert connection.pragma("user_version") == FORMAT_VERSION
    connection.close()


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\7" * 999]
)
async def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "db").write_bytes(content)
    (tmp_path / "db").chmod(0o600)

    await refused(tmp_path / "db", CorruptStoreError, "database")


async def test_a_database_that_lost_its_runtime_state_is_refused(tmp_path: Path) -> None:
    await one_run(tmp_path / "db")
    foreign_database(tmp_path / "db", "DELETE FROM runtime")

    await refused(tmp_path / "db", CorruptStoreError, "runtime state")


async def test_a_damaged_page_is_told_and_the_rest_still_works(tmp_path: Path) -> None:
    path = tmp_path / "db"
    provider = at(path)
    await provider.initialize(FOREVER)
    for number in range(60):
        await provider.commit(create(entity(f"e{number:02}"), f"v{number}", "x" * 900))
    await provider.shutdown()
    connection = apsw.Connection(str(path))
    sql = "SELECT pageno FROM dbstat WHERE name = 'entity' AND pagetype = 'leaf' ORDER BY pageno"
    leaf = connection.execute(sql).fetchall()[2][0]
    connection.close()
    content = bytearray(path.read_bytes())
    content[(leaf - 1) * 4096 : leaf * 4096] = b"\xaa" * 4096
    path.write_bytes(content)

    provider = at(path)
    await provider.initialize(FOREVER)
    found: list[str] = []
    for number in range(60):
        try:
            reading = await provider.read(read(entity(f"e{number:02}")))
        except CorruptStoreError:
            found.append("damaged")
        else:
            assert isinstance(reading, Reading)
            found.append("sound")
    await provider.abandon()

    assert 0 < found.count("damaged") < 10
    assert len(found) == 60


async def test_a_database_that_another_program_writes_is_told(tmp_path: Path) -> None:
    path = tmp_path / "db"
    await one_run(path, "a")
    foreign = apsw.Connection(str(path))
    foreign.execute("BEGIN IMMEDIATE")
    provider = at(path)

    with pytest.raises(UnavailableError, match="another program"):
        await provider.initialize(FOREVER)
    foreign.execute("ROLLBACK")
    foreign.close()

    run = await one_run(path)
    assert run.generation == 2, "the failed start was not counted"


async def test_a_lock_that_comes_later_fails_commits_and_not_reads(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")
    await provider.initialize(FOREVER)
    await provider.commit(create(entity("a"), "a1"))
    foreign = apsw.Connection(str(tmp_path / "db"))
    foreign.execute("BEGIN IMMEDIATE")

    with pytest.raises(UnavailableError, match="another program"):
        await provider.commit(update(entity("a"), "a1", "a2"))
    reading = await provider.read(read(entity("a")))
    foreign.execute("ROLLBACK")
    foreign.close()
    outcome = await provider.commit(update(entity("a"), "a1", "a2"))

    assert isinstance(reading, Reading)
    assert isinstance(outcome, Committed)
    await provider.shutdown()


async def test_every_call_before_the_start_and_after_the_stop_is_refused(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")

    async def all_calls() -> None:
        for call in (
            provider.health,
            lambda: provider.read(read(entity())),
            lambda: provider.commit(create(entity())),
            lambda: provider.read_changes(changes()),
            lambda: provider.wait_for_changes(SCOPE, changes().after),
            provider.checkpoint,
        ):
            with pytest.raises(UnavailableError):
                await call()

    await all_calls()
    await provider.initialize(FOREVER)
    with pytest.raises(MisuseError):
        await provider.initialize(FOREVER)
    await provider.shutdown()
    await all_calls()
    with pytest.raises(MisuseError):
        await provider.initialize(FOREVER)


async def test_a_stop_without_a_start_lets_go_of_the_files(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")
    await provider.shutdown()

    run = await one_run(tmp_path / "db")

    assert run.generation == 1
    assert not run.recovered_after_unclean_shutdown


async def test_a_clean_stop_leaves_no_log_and_a_sound_file(tmp_path: Path) -> None:
    await one_run(tmp_path / "db", *"abc")

    assert not (tmp_path / "db-wal").exists()
    assert not (tmp_path / "db-shm").exists()
    check_truth(tmp_path / "db")


async def test_a_dropped_provider_lets_go_and_was_not_stopped(tmp_path: Path) -> None:
    others = set(threading.enumerate())
    provider = at(tmp_path / "db")
    await provider.initialize(FOREVER)
    await provider.commit(create(entity("a"), "a1"))
    gone = weakref.ref(provider)

    del provider
    gc.collect()
    assert gone() is None
    for thread in set(threading.enumerate()) - others:
        if thread.name.startswith("patchouli-sqlite"):
            await asyncio.to_thread(thread.join, 5)

    run = await one_run(tmp_path / "db")
    assert run.recovered_after_unclean_shutdown


async def test_a_stop_that_is_cancelled_while_it_waits_still_lets_go(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")
    await provider.initialize(FOREVER)
    store = provider._store
    assert store is not None
    gate = threading.Event()
    held = store.writer.call(gate.wait)
    async with asyncio.TaskGroup() as tasks:
        committing = tasks.create_task(provider.commit(create(entity("a"), "a1")))
        await asyncio.sleep(0)
        stopping = tasks.create_task(provider.shutdown())
        await asyncio.sleep(0)
        stopping.cancel()
        gate.set()
        await held
    assert isinstance(committing.result(), Committed)

    run = await one_run(tmp_path / "db")
    assert not run.recovered_after_unclean_shutdown


async def test_a_stop_lets_a_lost_race_be_told_in_full(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")
    await provider.initialize(FOREVER)
    await provider.commit(create(entity("a"), "a1"))
    store = provider._store
    assert store is not None
    gate = threading.Event()
    held = store.writer.call(gate.wait)
    async with asyncio.TaskGroup() as tasks:
        racing = tasks.create_task(provider.commit(update(entity("a"), "gone", "a2")))
        await asyncio.sleep(0)
        tasks.create_task(provider.shutdown())
        keeper = store._housekeeper._thread
        await asyncio.to_thread(keeper.join, 0.2)  # time enough for a stop that does not wait
        was_open = keeper.is_alive()
        gate.set()
        await held

    assert was_open, "nothing is closed while a call is under way"
    raced = racing.result()
    assert isinstance(raced, Raced)
    assert [head.id for head in raced.heads] == ["a1"]


async def test_the_owner_is_known_until_the_stop_is_complete(tmp_path: Path) -> None:
    provider = at(tmp_path / "db")
    await provider.initialize(FOREVER)

    with pytest.raises(OwnershipError):
        at(tmp_path / "db")
    outcome = await provider.commit(create(entity("a"), "a1"))

    assert isinstance(outcome, Committed)
    await provider.shutdown()
