"""One step of the index, and what it must not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from patchouli.provider import Committed, Cursor
from patchouli.provider_conformance import ManualClock
from patchouli.provider_conformance.builders import NOW, create, entity
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import Disk, open_writer, use_wal
from patchouli.provider_sqlite.index_batch import Batches
from patchouli.provider_sqlite.index_limits import IndexLimits
from patchouli.provider_sqlite.index_store import IndexStore
from patchouli.provider_sqlite.lifecycle import Chance, start_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def truth(tmp_path: Path) -> Path:
    path = tmp_path / "db"
    path.touch(mode=0o600)
    return path


@pytest.fixture
def ledger(truth: Path) -> Iterator[Ledger]:
    # A writer that is held by anybody says so at once.
    connection = open_writer(truth, cache_kib=2000, disk=Disk(), busy_timeout_ms=0)
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("name", bytes(32)), now_unix_ms=NOW)
    yield Ledger(connection, ManualClock())
    connection.close()


@pytest.mark.parametrize("step", ["build_on", "catch_up"])
@pytest.mark.parametrize("moment", ["load", "take"])
def test_a_step_of_the_index_does_not_hold_the_writer_of_the_truth(
    truth: Path, ledger: Ledger, step: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store_before(step, truth)
    ledger.publish([create(entity("a"), "a1")])
    act = getattr(Batches, moment)
    outcomes: list[object] = []

    def act_and_commit(batches: Batches, *arguments: object) -> object:
        result = act(batches, *arguments)
        outcomes.extend(ledger.publish([create(entity("b"), "b1")]))
        return result

    monkeypatch.setattr(Batches, moment, act_and_commit)
    getattr(store, step)()
    store.close()

    assert outcomes == [Committed(cursor=Cursor(2))]


@pytest.mark.parametrize("step", ["build_on", "catch_up"])
def test_the_log_of_the_truth_can_begin_anew_while_the_index_writes(
    truth: Path, ledger: Ledger, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = _store_before(step, truth)
    ledger.publish([create(entity("a"), "a1")])
    take = Batches.take
    left: list[object] = []

    def take_and_checkpoint(batches: Batches) -> int:
        removed = take(batches)
        left.append(ledger._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE))
        return removed

    monkeypatch.setattr(Batches, "take", take_and_checkpoint)
    getattr(store, step)()
    store.close()

    assert left == [(0, 0)]


def _store_before(step: str, truth: Path) -> IndexStore:
    """Return an index of which `step` is the next one to be taken."""
    store = IndexStore.build(truth, IndexLimits(), Disk())
    if step == "catch_up":
        while store.build_on():
            pass
    return store
