"""The index follows the truth, and a retrieval is right whatever became of the index."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, cast

import apsw
import pytest
from patchouli.provider import EntityKey, Operator, Order, Page, SystemClock
from patchouli.provider_sqlite.connection import Disk
from patchouli.provider_sqlite.index import Index
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_store import IndexStore, index_path
from patchouli.provider_sqlite.testing import FaultyDisk, ForgetfulDisk, check_index, drop_index
from patchouli.provider_sqlite.testing.library import SCOPE, Library, filter_of, plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from patchouli.provider_sqlite.connection import Connection

SMALL = IndexLimits(batch_changes=7, gather_seconds=0.001, retry_seconds=0.001)
PLANS = (
    plan_of(text="tea", order=Order.RELEVANCE),
    plan_of(text="茶", order=Order.RELEVANCE),
    plan_of(text="no such text"),
    plan_of(filters=(filter_of("/n", Operator.EQUAL, 3),)),
    plan_of(filters=(filter_of("/n", Operator.GREATER, 7),), order=Order.NEWEST),
    plan_of(order=Order.OLDEST),
)
WAIT = 20.0  # seconds; reached only if something is broken


def entity(name: str) -> EntityKey:
    return EntityKey(SCOPE, "knowledge", name)


def fill(library: Library, count: int = 40) -> None:
    """Write entities of every kind: plain, conflicted, deleted, changed since, apart."""
    for n in range(count):
        library.put(
            entity(f"e{n:02}"), [{"text": f"tea 茶 number {n}", "n": n % 10}], recorded_at=n
        )
    for n in range(0, count, 9):
        library.put(entity(f"e{n:02}"), [None], recorded_at=n)
    for n in range(1, count, 9):
        library.put(entity(f"e{n:02}"), [{"text": "tea", "n": 3}, {"text": "x"}, None])
    for n in range(2, count, 9):
        library.put(entity(f"e{n:02}"), [{"text": "changed to 茶", "n": 3}], recorded_at=100)
    library.put(entity("apart"), [{"text": "tea \x1f\x00", "n": 3}])


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Library]:
    library = Library(tmp_path / "db", limits=SMALL)
    library.reader.execute("DETACH idx")
    library.index.close()
    yield library
    library.reader.close()
    library.connection.close()


@contextmanager
def kept(library: Library, disk: Disk | None = None) -> Iterator[Index]:
    index = Index(library.truth, limits=SMALL, disk=disk)
    index.start()
    try:
        yield index
    finally:
        index.close()


def assert_right(library: Library, index: Index, reader: Connection | None = None) -> None:
    for plan in PLANS:
        connection = cast("apsw.Connection", reader or library.reader)
        answer = index.retrieve(connection, plan, clock=SystemClock())
        assert answer is not None
        page = answer.outcome
        assert isinstance(page, Page)
        assert list(page.hits) == library.expected(plan)


def test_an_index_is_built_in_the_background_and_kept(library: Library) -> None:
    fill(library)
    drop_index(library.truth)
    with kept(library) as index:
        assert_right(library, index)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)

        library.put(entity("new"), [{"text": "tea again", "n": 3}], recorded_at=200)
        index.notify(library.frontier)
        assert_right(library, index)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)


def test_what_is_kept_is_what_a_new_build_makes(library: Library, tmp_path: Path) -> None:
    with kept(library) as index:
        for _ in range(3):
            fill(library, 20)
            index.notify(library.frontier)
            assert index.wait_until_caught_up(WAIT)

    check_index(library.truth, tmp_path / "scratch")


def test_an_index_catches_up_with_what_happened_without_it(library: Library) -> None:
    fill(library)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    fill(library, 60)

    store = IndexStore.open(library.truth, SMALL, Disk())

    assert store is not None
    store.close()
    with kept(library) as index:
        assert_right(library, index)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE state (anything)")


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("not a database at all\n" * 200, encoding="utf-8"),
    "foreign": _foreign,
    "header": lambda path: _overwrite(path, 0, b"\xff" * 100),
    "schema page": lambda path: _overwrite(path, 100, b"\xff" * 3000),
    "every later page": lambda path: _overwrite(path, 4096, b"\xa5" * (path.stat().st_size - 4096)),
    "half": _truncate,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_index_is_built_anew(library: Library, damage: str) -> None:
    fill(library)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    DAMAGES[damage](index_path(library.truth))

    with kept(library) as index, closing(library.open_reader()) as reader:
        assert_right(library, index, reader)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index, reader)
        index.notify(library.frontier)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index, reader)
    damaged = apsw.Connection(str(index_path(library.truth)))
    with closing(damaged):
        assert damaged.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("table", ["text_index_data", "leaf_index_data", "document", "shared"])
def test_damage_in_the_running_index_is_survived(library: Library, table: str) -> None:
    fill(library)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)
        with closing(apsw.Connection(str(index_path(library.truth)))) as other:
            other.set_busy_timeout(5000)
            if table.endswith("_data"):
                other.execute(f"UPDATE {table} SET block = x'ffffff00' WHERE id > 10")  # noqa: S608 - of constants
            else:
                other.execute(f"DROP TABLE {table}")

        assert_right(library, index)
        library.put(entity("new"), [{"text": "tea again", "n": 3}], recorded_at=200)
        index.notify(library.frontier)
        assert_right(library, index)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)


def test_an_index_of_another_incarnation_is_not_used(library: Library) -> None:
    fill(library)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    library.connection.execute("UPDATE runtime SET incarnation = 'two'")

    assert IndexStore.open(library.truth, SMALL, Disk()) is None
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)


def test_an_index_ahead_of_its_truth_is_not_used(library: Library, tmp_path: Path) -> None:
    fill(library, 20)
    library.connection.execute("VACUUM INTO ?", (str(tmp_path / "copy"),))
    fill(library, 30)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    os.replace(index_path(library.truth), tmp_path / "copy-index")

    assert IndexStore.open(tmp_path / "copy", SMALL, Disk()) is None


def test_an_index_behind_the_change_log_is_not_used(library: Library) -> None:
    fill(library, 20)
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    fill(library, 30)
    library.connection.execute("DELETE FROM change WHERE cursor <= ?", (library.frontier - 3,))
    library.connection.execute("UPDATE scope SET pruned_through = frontier - 3")

    assert IndexStore.open(library.truth, SMALL, Disk()) is None
    with kept(library) as index:
        assert_right(library, index)
        assert index.wait_until_caught_up(WAIT)
        assert_right(library, index)


def test_an_index_of_another_engine_is_not_used(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept(library) as index:
        assert index.wait_until_caught_up(WAIT)
    monkeypatch.setattr("patchouli.provider_sqlite.index_schema.ENGINE", "sqlite 4 unicode 30")

    assert IndexStore.open(library.truth, SMALL, Disk()) is None


def test_the_writer_waits_while_the_index_is_too_far_behind(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, order = threading.Event(), list[str]()
    catch_up = IndexStore.catch_up

    def catch_up_after_the_gate(store: IndexStore) -> bool:
        gate.wait(WAIT)
        order.append("index moved")
        return catch_up(store)

    limits = IndexLimits(tail_changes=5, gather_seconds=0.001)
    index = Index(library.truth, limits=limits)
    index.start()
    assert index.wait_until_caught_up(WAIT)
    monkeypatch.setattr(IndexStore, "catch_up", catch_up_after_the_gate)
    fill(library, 5)
    index.notify(library.frontier)

    def write() -> None:
        index.wait_for_room()
        order.append("writer went on")

    writer = threading.Thread(target=write)
    writer.start()
    gate.set()
    writer.join(WAIT)
    index.close()

    assert order[:2] == ["index moved", "writer went on"]


def test_a_disk_that_refuses_the_index_holds_nobody(library: Library) -> None:
    disk = FaultyDisk(concerned=lambda call: "-index" in call.path)
    with kept(library, disk.disk) as index:
        assert index.wait_until_caught_up(WAIT)
        disk.fail(at=0, is_lasting=True)
        for _ in range(3):
            fill(library, 10)
            index.notify(library.frontier)
            index.wait_for_room()
        with closing(library.open_reader()) as reader:
            assert_right(library, index, reader)

            disk.mend()
            assert index.wait_until_caught_up(WAIT)
            assert_right(library, index, reader)


WRITER = """
import sys
from pathlib import Path
from patchouli.provider import EntityKey
from patchouli.provider_sqlite.index import Index
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.testing.library import SCOPE, Library

library = Library(Path(sys.argv[1]))
library.index.close()
index = Index(library.truth, limits=IndexLimits(batch_changes=7, gather_seconds=0))
index.start()
n = 0
while True:
    key = EntityKey(SCOPE, "knowledge", f"e{n % 50}")
    library.put(key, [{"text": f"tea 茶 number {n}", "n": n % 10}], recorded_at=n)
    index.notify(library.frontier)
    n += 1
    print(n, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, 60, 333, 700])
def test_a_killed_process_leaves_an_index_that_catches_up(tmp_path: Path, lines: int) -> None:
    truth = tmp_path / "db"
    command = [sys.executable, "-c", WRITER, str(truth)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)

    check_index(truth, tmp_path / "scratch")


def test_a_power_loss_mixes_no_new_index_with_the_one_before_it(
    library: Library, tmp_path: Path
) -> None:
    fill(library)
    (tmp_path / "other").mkdir()
    with closing(Library(tmp_path / "other" / "db", limits=SMALL)) as other:
        fill(other, 60)
        other.index_all()
    shutil.copy(index_path(other.truth), index_path(library.truth))
    disk = ForgetfulDisk()
    assert disk.disk.sync_directory is not None
    assert IndexStore.open(library.truth, SMALL, disk.disk) is None
    disk.disk.sync_directory(library.truth.parent)

    index = IndexStore.build(library.truth, SMALL, disk.disk)
    while any((index.catch_up(), index.build_on())):
        pass
    index.checkpoint()
    library.put(entity("e00"), [{"text": "begins the log of the index anew"}])
    assert index.catch_up()
    disk.lose_power(tmp_path / "left", survives=lambda _: True)

    index.close()
    disk.close()
    for suffix in ("", "-wal"):  # written past this disk
        shutil.copy(f"{library.truth}{suffix}", tmp_path / "left")
    check_index(tmp_path / "left" / "db", tmp_path / "scratch")


def postings(library: Library) -> int:
    with closing(apsw.Connection(str(index_path(library.truth)))) as connection:
        sql = "SELECT sum(length(block)) FROM {}_data"
        return sum(connection.execute(sql.format(t)).get for t in ("text_index", "leaf_index"))


def test_updates_leave_no_growing_heap_of_postings(library: Library) -> None:
    def rewrite(round_: int) -> None:
        library.put_all(
            [
                (entity(f"e{n}"), [{"text": f"tea {n * 7919 % 1000} of {round_}", "n": n}], round_)
                for n in range(300)
            ]
        )
        while store.catch_up():
            pass

    store = IndexStore.build(library.truth, IndexLimits(batch_changes=50), Disk())
    assert not store.build_on()
    for round_ in range(5):
        rewrite(round_)
    after_few = postings(library)

    for round_ in range(5, 40):
        rewrite(round_)

    store.close()
    assert postings(library) < 2 * after_few


def test_a_rested_index_is_merged(library: Library) -> None:
    limits = IndexLimits(batch_changes=5, gather_seconds=0, settle_seconds=0.001)
    index = Index(library.truth, limits=limits)
    index.start()
    for _ in range(3):
        fill(library, 30)
        index.notify(library.frontier)
        assert index.wait_until_caught_up(WAIT)

    assert index.wait_until_settled(WAIT)

    index.close()
    with closing(apsw.Connection(str(index_path(library.truth)))) as connection:
        segments = connection.execute("SELECT count(DISTINCT segid) FROM text_index_idx").get
    assert segments < 8


def test_the_log_of_the_index_is_emptied_when_readers_let_it_grow(library: Library) -> None:
    limits = IndexLimits(batch_changes=20, log_bytes=200_000)
    store = IndexStore.build(library.truth, limits, Disk())
    log = index_path(library.truth).with_name("db-index-wal")
    with closing(apsw.Connection(str(index_path(library.truth)))) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM state").fetchall()
        fill(library, 60)
        while any((store.catch_up(), store.build_on())):
            pass
        assert log.stat().st_size > 200_000
        reader.execute("ROLLBACK")

        store.bound_log()

        assert log.stat().st_size == 0
    store.close()
