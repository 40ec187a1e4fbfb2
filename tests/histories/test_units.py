"""Work units of a real daemon read one snapshot and are published at one moment.

And the check notices when they are not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.histories.extent import FACTOR, say_seed, seeded
from tests.histories.faults import MovingBaselines, TornPublications, serving_with
from tests.histories.history import Accepted, HistoryError, Shown
from tests.histories.recording import Recorder, read_changes
from tests.histories.timeline import Look, Timeline
from tests.histories.units import check_units
from tests.histories.workloads import work_in_units

if TYPE_CHECKING:
    from pathlib import Path

    from tests.histories.history import Change, Operation

MOST_ROUNDS = 20  # of a store with a bug, until it shows


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


async def recorded(home: Path) -> tuple[list[Operation], list[Change], list[Look]]:
    recorder = Recorder()
    async with serving(settings_of(home)) as served:
        await work_in_units(served.endpoint, recorder, seeded(6))
        changes = await read_changes(served.endpoint, recorder)
    assert max(len(step) for step in Timeline(changes).steps) > 1
    return recorder.of("mira"), changes, recorder.looks(changes)


async def test_a_recorded_unit_with_one_wrong_answer_is_refused(home: Path) -> None:
    operations, changes, looks = await recorded(home)
    check_units(operations, changes, looks)
    tried = 0
    for place, operation in enumerate(operations):
        later = [o for o in operations if is_made_after(o, operation)]
        if operation.unit is None or not isinstance(operation.outcome, Shown) or not later:
            continue
        wrong = [*operations]
        version, value = later[0].outcome.version, later[0].outcome.value
        wrong[place] = replace(operation, outcome=Shown("active", {version: value}))
        with pytest.raises(HistoryError):
            check_units(wrong, changes, looks)
        tried += 1
    assert tried


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
        for number in range(MOST_ROUNDS):
            recorder = Recorder()
            user = f"user-{number}"
            await work_in_units(served.endpoint, recorder, seeded(number), user=user)
            changes = await read_changes(served.endpoint, recorder, user)
            try:
                check_units(recorder.of(user), changes, recorder.looks(changes))
            except HistoryError:
                return
    raise AssertionError("nobody noticed")
