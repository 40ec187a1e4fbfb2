"""Work units of a real daemon read one snapshot and are published at one moment.

And the check notices when they are not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.histories.extent import FACTOR, say_seed, seeded
from tests.histories.faults import (
    MOST_ROUNDS,
    MovingBaselines,
    TornPublications,
    require_found_out,
    serving_with,
)
from tests.histories.history import Accepted, HistoryError, Shown
from tests.histories.recording import Recorder, read_changes
from tests.histories.timeline import Look, Timeline
from tests.histories.units import check_units
from tests.histories.workloads import work_in_units

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.histories.history import Change, Operation


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_units_at_once_are_isolated_and_published_as_wholes(home: Path) -> None:
    seed = say_seed()
    with DaemonProcess(home) as daemon:
        for number in range(FACTOR):
            recorder = Recorder()
            user = f"user-{number}"
            await work_in_units(daemon.endpoint, recorder, seeded(seed + number), user=user)
            changes = await read_changes(daemon.endpoint, recorder, user)
            check_units(recorder.of(user), changes, recorder.looks(changes))


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_units_are_wholes_wherever_a_kill_met_them(home: Path) -> None:
    seed = say_seed()
    for number in range(FACTOR):
        recorder, user = Recorder(), f"user-{number}"
        for turn in range(3):
            with DaemonProcess(home) as daemon:
                working = asyncio.ensure_future(
                    work_in_units(
                        daemon.endpoint,
                        recorder,
                        seeded(seed + 10 * number + turn),
                        user=user,
                        prefix=f"u-{turn}",
                        is_cut_off=True,
                    )
                )
                await recorder.wait_for(40 + seeded(seed + turn).randrange(60))
                daemon.kill()
                await working
        with DaemonProcess(home) as daemon:
            changes = await read_changes(daemon.endpoint, recorder, user)
        assert any(operation.outcome is None for operation in recorder.operations)
        check_units(recorder.of(user), changes, recorder.looks(changes))


async def recorded(home: Path) -> tuple[list[Operation], list[Change], list[Look]]:
    """Return a history with a unit that published several entities, from which others read."""
    async with serving(settings_of(home)) as served:
        for number in range(MOST_ROUNDS):
            recorder, user = Recorder(), f"user-{number}"
            await work_in_units(served.endpoint, recorder, seeded(number), user=user)
            changes = await read_changes(served.endpoint, recorder, user)
            operations = recorder.of(user)
            if max(len(step) for step in Timeline(changes).steps) > 1 and any(
                first_wrong(operations, place) for place in range(len(operations))
            ):
                return operations, changes, recorder.looks(changes)
    raise AssertionError("no unit published two entities")


async def test_a_recorded_unit_with_one_wrong_answer_is_refused(home: Path) -> None:
    operations, changes, looks = await recorded(home)
    check_units(operations, changes, looks)
    for place in range(len(operations)):
        outcome = first_wrong(operations, place)
        if outcome is not None:
            wrong = [*operations]
            wrong[place] = replace(operations[place], outcome=outcome)
            with pytest.raises(HistoryError):
                check_units(wrong, changes, looks)


def first_wrong(operations: list[Operation], place: int) -> Shown | None:
    """Return what a read in a unit cannot have shown: a version that others made after it."""
    operation = operations[place]
    if operation.unit is None or not isinstance(operation.outcome, Shown):
        return None
    for other in operations:
        if is_made_after(other, operation) and isinstance(other.outcome, Accepted):
            return Shown("active", {other.outcome.version: other.outcome.value})
    return None


def is_made_after(other: Operation, operation: Operation) -> bool:
    """Whether the other one made a version outside of units, after what the unit was told."""
    return (
        other.unit is None
        and isinstance(other.outcome, Accepted)
        and other.entity == operation.entity
        and operation.precedes(other)
    )


async def test_a_recorded_publication_in_two_parts_is_refused(home: Path) -> None:
    operations, changes, looks = await recorded(home)
    timeline = Timeline(changes)
    tried = 0
    for moment, step in enumerate(timeline.steps, 1):
        if len(step) < 2:
            continue
        # A listing sees the first part, and everything else as it was before.
        view = {**timeline.views[moment - 1], step[0].entity: step[0].heads}
        torn = Look(what="list", invoked=0, responded=None, seen=view)
        with pytest.raises(HistoryError):
            check_units(operations, changes, [*looks, torn])
        # The stream has something else between the parts.
        place = changes.index(step[0])
        after = changes.index(step[-1]) + 1
        if after < len(changes) and changes[after].unit is None:
            apart = [*changes]
            apart.insert(place + 1, apart.pop(after))
            with pytest.raises(HistoryError):
                check_units(operations, apart, looks)
        tried += 1
    assert tried


async def test_a_recorded_unit_that_is_published_in_part_is_refused(home: Path) -> None:
    operations, changes, looks = await recorded(home)
    for change in changes:
        if change.unit is not None:
            part = [other for other in changes if other is not change]
            events = [look for look in looks if look.exactly is None]
            with pytest.raises(HistoryError):
                check_units(operations, part, events)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [TornPublications, MovingBaselines])
async def test_a_store_that_does_not_isolate_units_is_found_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, bug: Any
) -> None:
    async with serving_with(bug, home, monkeypatch) as served:

        async def record(number: int) -> Callable[[], object]:
            recorder, user = Recorder(), f"user-{number}"
            await work_in_units(served.endpoint, recorder, seeded(number), user=user)
            changes = await read_changes(served.endpoint, recorder, user)
            return lambda: check_units(recorder.of(user), changes, recorder.looks(changes))

        await require_found_out(record)
