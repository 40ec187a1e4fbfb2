"""What concurrent clients of a real daemon were told is linearizable, entity by entity."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from random import Random  # noqa: TID251 - seeded, and the seed is printed
from typing import TYPE_CHECKING

import pytest
from patchouli.server.testing import DaemonProcess

from tests.histories.extent import FACTOR, say_seed
from tests.histories.history import Accepted, HistoryError, Shown
from tests.histories.linearizability import check_linearizable
from tests.histories.recording import Recorder, read_changes
from tests.histories.timeline import Timeline, check_looks, look_of
from tests.histories.workloads import work_at_once

if TYPE_CHECKING:
    from pathlib import Path

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
        for round_ in range(FACTOR):
            recorder = Recorder()
            await work_at_once(daemon.endpoint, recorder, Random(seed + round_))
            changes = await read_changes(daemon.endpoint, recorder)
            print(len(recorder.operations), len(changes))
            check(recorder.of("mira"), changes)
