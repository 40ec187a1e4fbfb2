"""The write-ahead log stays short, without the commits waiting for it, whoever reads."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import Committed, Retention
from patchouli.provider_conformance.builders import FOREVER, changes, create, entity
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.housekeeping import Housekeeper, LogLength
from patchouli.provider_sqlite.testing import FaultyDisk, check_truth

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider_conformance import ManualClock

TIGHT = SqliteLimits(log_pages_soft=30, log_pages_turn=60, log_pages_hard=120, group_commits=8)
# A group of eight creates writes at most three pages for each and a few shared ones.
PAGES_PER_GROUP = 60


@dataclass
class Lengths:
    """The length of the log after each commit."""

    seen: list[int] = field(default_factory=list)

    async def of(self, provider: SqliteProvider) -> None:
        store = provider._store
        assert store is not None
        write = store._write
        assert write is not None

        def note(connection: object, database: str, pages: int) -> int:
            self.seen.append(pages)
            return store._log.note(connection, database, pages)

        await store.writer.call(lambda: write.set_wal_hook(note))


async def create_many(provider: SqliteProvider, first: int, number: int) -> None:
    results = await asyncio.gather(
        *(provider.commit(create(entity(f"e{n}"), f"v{n}")) for n in range(first, first + number))
    )
    assert all(isinstance(result, Committed) for result in results)


async def test_the_log_is_bounded_under_load(tmp_path: Path, clock: ManualClock) -> None:
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=TIGHT)
    await provider.initialize(FOREVER)
    lengths = Lengths()
    await lengths.of(provider)

    await create_many(provider, 0, 600)

    assert max(lengths.seen) <= TIGHT.log_pages_hard + PAGES_PER_GROUP
    assert sum(lengths.seen) > 10 * max(lengths.seen), "it began anew several times"
    await provider.shutdown()
    check_truth(tmp_path / "db")


async def test_a_reader_that_pins_the_log_holds_no_commit_and_its_end_lets_it_shrink(
    tmp_path: Path, clock: ManualClock
) -> None:
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=TIGHT)
    await provider.initialize(FOREVER)
    await create_many(provider, 0, 8)
    lengths = Lengths()
    await lengths.of(provider)
    reader = apsw.Connection(str(tmp_path / "db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM entity").fetchall()

    await create_many(provider, 100, 200)
    pinned = lengths.seen[-1]
    reader.execute("COMMIT")
    reader.close()
    await create_many(provider, 400, 100)

    assert pinned > TIGHT.log_pages_hard
    assert lengths.seen[-1] < pinned
    await provider.shutdown()


async def test_without_a_housekeeper_the_writer_keeps_the_log_short(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Housekeeper, "start", lambda _: None)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=TIGHT)
    await provider.initialize(FOREVER)
    lengths = Lengths()
    await lengths.of(provider)

    await create_many(provider, 0, 300)

    assert max(lengths.seen) <= TIGHT.log_pages_hard + PAGES_PER_GROUP
    await provider.shutdown()


def test_the_writer_tries_a_pinned_log_again_only_when_it_has_grown() -> None:
    limits = SqliteLimits(log_pages_soft=10, log_pages_hard=100)
    log = LogLength(limits)

    def must_shrink_at(pages: int) -> bool:
        log.note(None, "main", pages)
        return log.must_shrink()

    assert [must_shrink_at(n) for n in (99, 100, 101, 109, 110, 115, 121)] == [
        False,
        True,
        False,
        False,
        True,
        False,
        True,
    ]
    assert [must_shrink_at(n) for n in (5, 99, 100)] == [False, False, True]


async def test_what_is_too_old_goes_by_itself(tmp_path: Path, clock: ManualClock) -> None:
    limits = SqliteLimits(prune_interval_seconds=0.01, prune_step=2)
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits)
    await provider.initialize(
        Retention(changes_seconds=60, idempotency_seconds=60, history_seconds=0)
    )
    store = provider._store
    assert store is not None
    await create_many(provider, 0, 7)
    assert store.index.wait_until_caught_up(5)
    clock.now_unix_ms += 60_001
    pruned = threading.Event()
    step = store._housekeeper._prune_step

    def watched() -> bool:
        has_more = step()
        if not has_more:
            pruned.set()
        return has_more

    store._housekeeper._prune_step = watched
    assert await asyncio.to_thread(pruned.wait, 5)

    page = await provider.read_changes(changes())
    assert (page.changes, page.pruned_through, page.frontier) == ((), 7, 7)
    await provider.shutdown()
    check_truth(tmp_path / "db")


@pytest.mark.parametrize("kind", ["write", "sync", "open"])
async def test_a_disk_that_refuses_the_housekeeper_stops_neither_it_nor_the_commits(
    tmp_path: Path, clock: ManualClock, kind: str
) -> None:
    codes = {
        "write": apsw.SQLITE_IOERR_WRITE,
        "sync": apsw.SQLITE_IOERR_FSYNC,
        "open": apsw.SQLITE_CANTOPEN,
    }
    disk = FaultyDisk({kind: codes[kind]}, concerned=lambda call: call.path.endswith("/db"))
    limits = SqliteLimits(
        log_pages_soft=10, log_pages_turn=20, log_pages_hard=50, prune_interval_seconds=0.01
    )
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=limits, disk=disk.disk)
    await provider.initialize(FOREVER)
    store = provider._store
    assert store is not None

    disk.fail(at=0, is_lasting=True)
    for first in range(0, 200, 8):
        await create_many(provider, first, 8)
    disk.mend()
    lengths = Lengths()
    await lengths.of(provider)
    for first in range(1000, 1400, 8):
        await create_many(provider, first, 8)

    assert store._housekeeper._thread.is_alive()
    await provider.shutdown()
    disk.close()
    check_truth(tmp_path / "db")
