"""The change log after pruning: horizons, tokens that outlive changes, cursors never reused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.provider import (
    CausalToken,
    Committed,
    CompactionPlan,
    Consistency,
    Cursor,
    Reading,
    Retention,
    ScopeText,
)
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    SCOPE,
    changes,
    create,
    entity,
    read,
)
from patchouli.provider_sqlite import IndexLimits, SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.changes import prune, read_changes
from patchouli.provider_sqlite.commits import Ledger
from patchouli.provider_sqlite.connection import (
    Connection,
    Disk,
    open_writer,
    transaction,
    use_wal,
)
from patchouli.provider_sqlite.control import check_bounds
from patchouli.provider_sqlite.lifecycle import Chance, read_last_cursor, start_run
from patchouli.provider_sqlite.testing import check_truth

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from patchouli.provider_conformance import ManualClock

EVER = 2**62


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    path = tmp_path / "db"
    path.touch(mode=0o600)
    connection = open_writer(path, cache_kib=2000, disk=Disk())
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("name", bytes(32)), now_unix_ms=NOW)
    yield connection
    connection.close()
    check_truth(path)


@pytest.fixture
def ledger(connection: Connection, clock: ManualClock) -> Ledger:
    return Ledger(connection, clock)


def publish(ledger: Ledger, *times: tuple[int, ScopeText]) -> None:
    """Publish one create for each recorded time, in this order."""
    start = ledger.last_cursor
    for number, (time, scope) in enumerate(times, start + 1):
        new = create(entity(f"e{number}", scope=scope), f"v{number}", recorded_at_unix_ms=time)
        (result,) = ledger.publish([new])
        assert result == Committed(cursor=Cursor(number))


def horizon(connection: Connection, scope: ScopeText, cutoff: int = 0) -> int:
    plan = changes(scope=scope, retained_after_unix_ms=cutoff)
    return read_changes(connection, plan, incarnation="i").pruned_through


def cursors(connection: Connection, scope: ScopeText, cutoff: int = 0) -> list[int]:
    plan = changes(scope=scope, retained_after_unix_ms=cutoff)
    return [change.cursor for change in read_changes(connection, plan, incarnation="i").changes]


def test_pruning_takes_what_is_too_old_and_keeps_its_horizon(
    connection: Connection, ledger: Ledger
) -> None:
    publish(ledger, (10, SCOPE), (20, SCOPE), (30, SCOPE))

    removed, _ = prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert removed == 1
    assert cursors(connection, SCOPE) == [2, 3]
    assert horizon(connection, SCOPE) == 1


def test_a_horizon_belongs_to_its_scope(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, (10, SCOPE), (10, OTHER_SCOPE), (30, SCOPE), (30, OTHER_SCOPE), (10, SCOPE))

    prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert (horizon(connection, SCOPE), horizon(connection, OTHER_SCOPE)) == (5, 2)
    assert (cursors(connection, SCOPE), cursors(connection, OTHER_SCOPE)) == ([3], [4])


def test_small_steps_come_to_the_same_end(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, *[(10, SCOPE)] * 7, (30, SCOPE))

    steps = [
        prune(connection, recorded_before_unix_ms=20, through=EVER, limit=3)[0] for _ in "abcd"
    ]

    assert steps == [3, 3, 1, 0]
    assert cursors(connection, SCOPE) == [8]
    assert horizon(connection, SCOPE) == 7


def test_a_change_that_somebody_still_follows_stays(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, *[(10, SCOPE)] * 4)

    removed, _ = prune(connection, recorded_before_unix_ms=20, through=2, limit=9)

    assert removed == 2
    assert cursors(connection, SCOPE) == [3, 4]
    assert cursors(connection, SCOPE, cutoff=20) == [], "too old all the same"
    assert horizon(connection, SCOPE, cutoff=20) == 4


def test_a_change_from_the_future_does_not_keep_the_others(
    connection: Connection, ledger: Ledger
) -> None:
    publish(ledger, (10, SCOPE), (EVER, SCOPE), (10, SCOPE), (30, SCOPE))

    prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert cursors(connection, SCOPE) == [2, 4]
    assert horizon(connection, SCOPE) == 3


def test_tokens_outlive_their_changes(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, (10, SCOPE), (10, OTHER_SCOPE), (30, SCOPE))

    def satisfied() -> list[list[int]]:
        """Return for each scope and frontier the tokens that a view of it is not too old for."""
        return [
            [
                number
                for number in (1, 2, 3, 4)
                if check_bounds(
                    connection,
                    Consistency(minimum_tokens=(CausalToken(f"token-v{number}"),)),
                    scope_id=scope_id,
                    frontier=frontier,
                )
                == ()
            ]
            for scope_id in (1, 2)
            for frontier in (0, 1, 2, 3)
        ]

    before = satisfied()
    prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert before == [[], [1], [1], [1, 3], [], [], [2], [2]]
    assert satisfied() == before


@pytest.mark.parametrize(
    "lookup",
    [
        "SELECT cursor FROM change WHERE token = ?",
        "SELECT cursor FROM causal_token WHERE token = ?",
        "SELECT token FROM change WHERE scope_id = ? AND cursor = ?",
        "SELECT 1 FROM change WHERE recorded_at < ?",
        "SELECT 1 FROM work_unit WHERE state IN ('open', 'sealed') AND expires_at <= ?",
        "SELECT 1 FROM version WHERE entity_id = ? AND superseded_cursor IS NULL",
        "SELECT 1 FROM version WHERE entity_id = ? AND superseded_cursor > ?",
        "SELECT 1 FROM work_unit WHERE identity = ?",
        "SELECT 1 FROM work_unit_entity WHERE unit_id = ?",
        "SELECT 1 FROM work_unit_version WHERE unit_id = ? AND type = ? AND id = ?",
        "SELECT 1 FROM work_unit_version WHERE token = ?",
        "SELECT 1 FROM idempotency WHERE digest = ?",
        "SELECT 1 FROM idempotency WHERE expires_at <= ? AND unit_id IS NULL",
        "SELECT 1 FROM idempotency WHERE unit_id = ?",
        "SELECT 1 FROM session WHERE scope_id = ? AND key = ?",
    ],
)
def test_a_lookup_is_a_search_and_never_a_scan(connection: Connection, lookup: str) -> None:
    bindings = [1] * lookup.count("?")

    plan = connection.execute(f"EXPLAIN QUERY PLAN {lookup}", bindings).fetchall()

    assert [step[3].split()[0] for step in plan] == ["SEARCH"]


def test_cursors_go_on_after_everything_was_pruned(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, (10, SCOPE), (10, SCOPE))
    prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert connection.execute("SELECT count(*) FROM change").get == 0
    assert read_last_cursor(connection) == 2
    assert Ledger(connection, ledger._clock).last_cursor == 2


def test_a_failing_step_changes_nothing(connection: Connection, ledger: Ledger) -> None:
    publish(ledger, (10, SCOPE))
    connection.execute("INSERT INTO causal_token VALUES ('token-v1', 1, 1)")

    with pytest.raises(apsw.ConstraintError), transaction(connection):
        prune(connection, recorded_before_unix_ms=20, through=EVER, limit=9)

    assert not connection.in_transaction
    assert cursors(connection, SCOPE) == [1]
    connection.execute("DELETE FROM causal_token")


times = st.integers(min_value=0, max_value=6)
scopes = st.sampled_from([SCOPE, OTHER_SCOPE])


@settings(max_examples=60, deadline=None)
@given(
    log=st.lists(st.tuples(times, scopes), max_size=8),
    steps=st.lists(st.tuples(times, st.integers(0, 9), st.integers(1, 4)), max_size=3),
    cutoff=times,
)
def test_pages_say_the_same_whatever_was_removed(
    log: list[tuple[int, ScopeText]],
    steps: list[tuple[int, int, int]],
    cutoff: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("truth") / "db"
    path.touch(mode=0o600)
    connection = open_writer(path, cache_kib=2000, disk=Disk())
    use_wal(connection)
    start_run(connection, witness=None, chance=Chance("name", bytes(32)), now_unix_ms=NOW)
    publish(Ledger(connection, ClockAt(NOW)), *log)

    oldest_kept = cutoff
    for before, through, limit in steps:
        # The retention never asks for more than a reader's cut-off, as in a daemon.
        prune(
            connection,
            recorded_before_unix_ms=min(before, cutoff),
            through=through,
            limit=limit,
        )
    for scope in (SCOPE, OTHER_SCOPE):
        own = [(number, time) for number, (time, of) in enumerate(log, 1) if of == scope]
        assert cursors(connection, scope, oldest_kept) == [n for n, t in own if t >= oldest_kept]
        aged = [number for number, time in own if time < oldest_kept]
        assert horizon(connection, scope, oldest_kept) == max(aged, default=0)
    connection.close()
    check_truth(path)


class ClockAt:
    def __init__(self, unix_ms: int) -> None:
        self._unix_ms = unix_ms

    def unix_ms(self) -> int:
        return self._unix_ms

    def monotonic(self) -> float:
        return 0.0


async def test_compaction_removes_old_changes_and_the_index_keeps_up(
    tmp_path: Path, clock: ManualClock
) -> None:
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=SqliteLimits(prune_step=3))
    await provider.initialize(
        Retention(changes_seconds=60, idempotency_seconds=60, history_seconds=0)
    )
    for number in range(10):
        await provider.commit(create(entity(f"e{number}"), f"v{number}"))
    clock.now_unix_ms += 60_001

    while (await provider.compact(CompactionPlan(limit=100))).is_more_due:
        pass

    page = await provider.read_changes(changes())
    found = await provider.read(read(entity("e9")))
    assert isinstance(found, Reading)
    assert (page.changes, page.frontier, page.pruned_through) == ((), 10, 10)
    assert found.observation.causal_token == CausalToken("token-v9")
    await provider.shutdown()
    check_truth(tmp_path / "db")


async def test_what_the_index_has_not_seen_is_not_pruned(
    tmp_path: Path, clock: ManualClock
) -> None:
    waiting = IndexLimits(gather_seconds=3600)
    provider = SqliteProvider(tmp_path / "db", clock=clock, index_limits=waiting)
    await provider.initialize(
        Retention(changes_seconds=60, idempotency_seconds=60, history_seconds=0)
    )
    store = provider._store
    assert store is not None
    assert store.index.wait_until_caught_up(5)
    for number in range(10):
        await provider.commit(create(entity(f"e{number}"), f"v{number}"))
    clock.now_unix_ms += 60_001

    await store.writer.call(store._prune_step)
    behind = await provider.read_changes(changes())
    assert store.index.wait_until_caught_up(5)
    await store.writer.call(store._prune_step)
    after = await provider.read_changes(changes())

    assert (len(behind.changes), behind.pruned_through) == (10, 0)
    assert (len(after.changes), after.pruned_through) == (0, 10)
    await provider.shutdown()


async def test_a_retention_without_end_prunes_nothing(tmp_path: Path, clock: ManualClock) -> None:
    provider = SqliteProvider(tmp_path / "db", clock=clock)
    await provider.initialize(
        Retention(changes_seconds=2**63 - 1, idempotency_seconds=60, history_seconds=0)
    )
    await provider.commit(create(entity("a"), "v1", recorded_at_unix_ms=0))

    step = await provider.compact(CompactionPlan(limit=100))

    page = await provider.read_changes(changes())
    assert not step.is_more_due
    assert len(page.changes) == 1
    await provider.shutdown()


@pytest.mark.parametrize(
    ("limit_bytes", "expected"),
    [(None, [1, 2, 3, 4]), (26, [1, 2, 3, 4]), (25, [1, 2, 3]), (12, [1, 2]), (11, [1]), (0, [1])],
)
def test_a_page_ends_at_its_bytes_and_says_where(
    connection: Connection, ledger: Ledger, limit_bytes: int | None, expected: list[int]
) -> None:
    for number in range(1, 5):
        meta = '{"m":"é"}' if number == 1 else "{}" if number == 2 else '{"m":1}'
        (result,) = ledger.publish(
            [create(entity(f"e{number}"), f"v{number}", event_meta_json=meta)]
        )
        assert isinstance(result, Committed)

    page = read_changes(connection, changes(limit_bytes=limit_bytes), incarnation="i")

    assert [change.cursor for change in page.changes] == expected
    assert page.reached == expected[-1]
