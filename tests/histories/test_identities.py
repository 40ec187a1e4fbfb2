"""What concurrent clients send again is done once, by a real daemon and across its ends.

And the check notices when it is not.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.histories.extent import FACTOR, say_seed, seeded
from tests.histories.faults import ForgottenRecords, require_found_out, serving_with
from tests.histories.history import Accepted, HistoryError
from tests.histories.identities import check_identities
from tests.histories.recording import Recorder, read_changes
from tests.histories.workloads import repeat_at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.histories.history import Change, Operation


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_what_many_send_at_once_is_done_once(home: Path) -> None:
    seed = say_seed()
    with DaemonProcess(home) as daemon:
        for number in range(FACTOR):
            recorder, user = Recorder(), f"user-{number}"
            await repeat_at_once(daemon.endpoint, recorder, seeded(seed + number), user=user)
            changes = await read_changes(daemon.endpoint, recorder, user)
            check_identities(recorder.of(user, type_="entry"), without_end(changes))


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_what_a_kill_cut_off_is_done_once(home: Path) -> None:
    seed = say_seed()
    for number in range(FACTOR):
        recorder, user = Recorder(), f"user-{number}"
        for turn in range(3):
            with DaemonProcess(home) as daemon:
                chance = seeded(seed + 10 * number + turn)
                working = asyncio.ensure_future(
                    repeat_at_once(daemon.endpoint, recorder, chance, turns=100, user=user)
                )
                await recorder.wait_for(4 + 10 * turn)
                daemon.kill()
                await working
        with DaemonProcess(home) as daemon:
            await repeat_at_once(daemon.endpoint, recorder, seeded(seed), user=user)
            changes = await read_changes(daemon.endpoint, recorder, user)
        check_identities(recorder.of(user, type_="entry"), without_end(changes))


async def test_a_recorded_repetition_with_another_answer_is_refused(home: Path) -> None:
    recorder = Recorder()
    async with serving(settings_of(home)) as served:
        await repeat_at_once(served.endpoint, recorder, seeded(3))
        changes = without_end(await read_changes(served.endpoint, recorder))
    operations = recorder.of("mira", type_="entry")
    check_identities(operations, changes)

    tried = 0
    logged = {change.operation for change in changes}
    for place, operation in enumerate(operations):
        if not isinstance(operation.outcome, Accepted):
            continue
        again = replace(operation.outcome, version="another")
        wrong = [*operations]
        wrong[place] = replace(operation, outcome=again)
        refuse(wrong, changes)
        if operation.number not in logged:
            # The repetition was done as well.
            twice = next(change for change in changes if change.entity == operation.entity)
            refuse(operations, [*changes, twice._replace(operation=operation.number)])
            tried += 1
    assert tried > 10


def refuse(operations: list[Operation], changes: list[Change]) -> None:
    with pytest.raises(HistoryError):
        check_identities(operations, changes)


async def test_a_store_that_forgets_identities_is_found_out(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving_with(ForgottenRecords, home, monkeypatch) as served:

        async def record(number: int) -> Callable[[], object]:
            recorder, user = Recorder(), f"user-{number}"
            await repeat_at_once(served.endpoint, recorder, seeded(number), user=user)
            changes = await read_changes(served.endpoint, recorder, user)
            operations = recorder.of(user, type_="entry")
            return lambda: check_identities(operations, without_end(changes))

        await require_found_out(record)


def without_end(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.entity.type == "entry"]
