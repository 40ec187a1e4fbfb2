"""What concurrent clients of a real daemon were told is linearizable, entity by entity.

And the check notices when it is not: in a history that was changed afterwards, and in what stores
tell that break their promise.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.histories.extent import FACTOR, say_seed, seeded
from tests.histories.faults import LostUpdates, StaleReads, require_found_out, serving_with
from tests.histories.history import HistoryError, Shown
from tests.histories.linearizability import check_linearizable
from tests.histories.recording import Recorder, read_changes
from tests.histories.timeline import Timeline, check_looks, look_of
from tests.histories.workloads import work_at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random  # noqa: TID251 - what a seeded one is

    from tests.histories.history import Change, Operation


def check(operations: list[Operation], changes: list[Change]) -> None:
    """Hold a history of one scope to everything that an immediate memo promises."""
    check_linearizable(operations, changes, in_log_order=False)
    check_linearizable(operations, changes)
    timeline = Timeline(changes)
    looks = [look for o in operations if (look := look_of(o, timeline)) is not None]
    check_looks(timeline, looks)


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_clients_at_once_see_each_entity_change_one_step_at_a_time(home: Path) -> None:
    seed = say_seed()
    with DaemonProcess(home) as daemon:
        for number in range(FACTOR):
            recorder = Recorder()
            user = f"user-{number}"
            await work_at_once(daemon.endpoint, recorder, seeded(seed + number), user=user)
            changes = await read_changes(daemon.endpoint, recorder, user)
            assert len(changes) > 20
            check(recorder.of(user), changes)


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_what_a_kill_left_without_an_answer_happened_or_did_not(home: Path) -> None:
    seed = say_seed()
    for number in range(FACTOR):
        recorder, user = Recorder(), f"user-{number}"
        for turn in range(3):
            await work_until_killed(home, recorder, seeded(seed + 10 * number + turn), user)
        with DaemonProcess(home) as daemon:
            await work_at_once(daemon.endpoint, recorder, seeded(seed), turns=5, user=user)
            changes = await read_changes(daemon.endpoint, recorder, user)
        assert any(operation.outcome is None for operation in recorder.operations)
        check(recorder.of(user), changes)


async def work_until_killed(home: Path, recorder: Recorder, chance: Random, user: str) -> None:
    with DaemonProcess(home) as daemon:
        working = asyncio.ensure_future(
            work_at_once(daemon.endpoint, recorder, chance, clients=8, turns=60, user=user)
        )
        await recorder.wait_for(40)
        daemon.kill()
        await working


async def recorded(home: Path) -> tuple[list[Operation], list[Change]]:
    recorder = Recorder()
    async with serving(settings_of(home)) as served:
        await work_at_once(served.endpoint, recorder, seeded(5))
        changes = await read_changes(served.endpoint, recorder)
    return recorder.of("mira"), changes


async def test_a_recorded_history_with_one_wrong_answer_is_refused(home: Path) -> None:
    operations, changes = await recorded(home)
    check(operations, changes)
    reads = [operation for operation in operations if isinstance(operation.outcome, Shown)]
    tried = 0
    for place, operation in enumerate(operations):
        for other in reads if operation in reads else ():
            if any(is_replaced(other, seen, operation) for seen in reads):
                wrong = [*operations]
                wrong[place] = replace(operation, outcome=other.outcome)
                with pytest.raises(HistoryError):
                    check_linearizable(wrong, changes)
                tried += 1
                break
    assert tried > 3


def is_replaced(other: Operation, seen: Operation, operation: Operation) -> bool:
    """Whether all heads of one read were replaced by what another read showed before a third."""
    return (
        isinstance(other.outcome, Shown)
        and isinstance(seen.outcome, Shown)
        and isinstance(operation.outcome, Shown)
        and other.entity == seen.entity == operation.entity
        and other.outcome.heads.isdisjoint(seen.outcome.heads)
        and other.precedes(seen)
        and seen.precedes(operation)
    )


async def test_a_recorded_history_without_an_acknowledged_change_is_refused(home: Path) -> None:
    operations, changes = await recorded(home)
    for place in range(len(changes) - 1):
        with pytest.raises(HistoryError):
            check(operations, changes[:place] + changes[place + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize("bug", [StaleReads, LostUpdates])
async def test_a_store_that_is_not_linearizable_is_found_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, bug: Any
) -> None:
    async with serving_with(bug, home, monkeypatch) as served:

        async def record(number: int) -> Callable[[], object]:
            recorder, user = Recorder(), f"user-{number}"
            await work_at_once(served.endpoint, recorder, seeded(number), user=user)
            changes = await read_changes(served.endpoint, recorder, user)
            return lambda: check_linearizable(recorder.of(user), changes, in_log_order=False)

        await require_found_out(record)
