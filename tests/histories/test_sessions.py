"""Sessions of a real daemon see what they saw and wrote before, and tokens name what they say.

And the check notices when they do not, but lets a replica lag that keeps to what sessions are
promised: it is not linearizable and need not be.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.server.testing import DaemonProcess, serving, settings_of

from tests.histories.extent import FACTOR, say_seed, seeded
from tests.histories.faults import LaggingReplica, require_found_out, serving_with
from tests.histories.history import Accepted, HistoryError, Shown, versions_of
from tests.histories.linearizability import check_linearizable
from tests.histories.recording import Recorder, read_changes
from tests.histories.sessions import Guarantees, check_sessions
from tests.histories.timeline import Timeline
from tests.histories.workloads import work_at_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random  # noqa: TID251 - what a seeded one is

    from tests.histories.history import Change, Operation

BOTH = Guarantees()


async def record(
    endpoint: Path, chance: Random, user: str = "mira"
) -> tuple[list[Operation], list[Change]]:
    recorder = Recorder()
    await work_at_once(endpoint, recorder, chance, type_="note", with_sessions=True, user=user)
    changes = await read_changes(endpoint, recorder, user)
    return recorder.of(user, type_="note"), changes


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_sessions_see_what_they_saw_and_wrote_before(home: Path) -> None:
    seed = say_seed()
    with DaemonProcess(home) as daemon:
        for number in range(FACTOR):
            operations, changes = await record(
                daemon.endpoint, seeded(seed + number), f"user-{number}"
            )
            assert any(o.token is not None and isinstance(o.outcome, Shown) for o in operations)
            assert any(operation.after for operation in operations)
            check_sessions(operations, changes, BOTH)
            check_linearizable(operations, changes)


@pytest.mark.slow
@pytest.mark.timeout(60 * FACTOR + 60)
async def test_sessions_and_tokens_outlive_a_kill(home: Path) -> None:
    seed = say_seed()
    for number in range(FACTOR):
        recorder, user = Recorder(), f"user-{number}"
        for turn in range(3):
            with DaemonProcess(home) as daemon:
                working = asyncio.ensure_future(
                    work_at_once(
                        daemon.endpoint,
                        recorder,
                        seeded(seed + 10 * number + turn),
                        turns=60,
                        type_="note",
                        with_sessions=True,
                        user=user,
                    )
                )
                await recorder.wait_for(40)
                daemon.kill()
                await working
        with DaemonProcess(home) as daemon:
            changes = await read_changes(daemon.endpoint, recorder, user)
        operations = recorder.of(user, type_="note")
        check_sessions(operations, changes, BOTH)
        check_linearizable(operations, changes)


@pytest.mark.parametrize(
    "guarantees",
    [
        Guarantees(monotonic_reads=True, read_your_writes=False),
        Guarantees(monotonic_reads=False, read_your_writes=True),
    ],
    ids=["monotonic reads", "read your writes"],
)
async def test_a_recorded_session_that_forgets_is_refused(
    home: Path, guarantees: Guarantees
) -> None:
    async with serving(settings_of(home)) as served:
        operations, changes = await record(served.endpoint, seeded(8))
    check_sessions(operations, changes, BOTH)
    values = versions_of(operations)
    tried = 0
    for place, operation in enumerate(operations):
        if not isinstance(operation.outcome, Shown):
            continue
        before = [o for o in operations if is_bound(o, operation, guarantees)]
        newest = max((moment_of(o, changes) for o in before), default=0)
        if not newest:
            continue
        # The read shows the scope as it was right before that, token and all.
        heads = Timeline(changes).heads_at(newest - 1, operation.entity)
        outcome = Shown("active", {version: values.get(version) for version in heads})
        token = changes[newest - 2].token if newest > 1 else None
        wrong = [*operations]
        wrong[place] = replace(operation, outcome=outcome, token=token, after=())
        if token is not None and heads and values.keys() >= heads:
            with pytest.raises(HistoryError):
                check_sessions(wrong, changes, guarantees)
            tried += 1
    assert tried > 3


def is_bound(other: Operation, operation: Operation, guarantees: Guarantees) -> bool:
    """Whether the session has to remember the other one when it does this."""
    if other.session != operation.session or not other.precedes(operation):
        return False
    if isinstance(other.outcome, Accepted):
        return guarantees.read_your_writes
    return isinstance(other.outcome, Shown) and guarantees.monotonic_reads


def moment_of(operation: Operation, changes: list[Change]) -> int:
    """Return the moment that the token of an answer names."""
    return 1 + [change.token for change in changes].index(operation.token)


@pytest.mark.slow
async def test_a_replica_may_lag_behind_as_far_as_its_sessions_allow(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_late = False
    async with serving_with(LaggingReplica, home, monkeypatch) as served:
        for number in range(3):
            operations, changes = await record(served.endpoint, seeded(number), f"user-{number}")
            check_sessions(operations, changes, BOTH)
            try:
                check_linearizable(operations, changes)
            except HistoryError:
                was_late = True
    assert was_late


@pytest.mark.slow
@pytest.mark.parametrize("part", ["reads", "writes", "tokens"])
async def test_a_replica_that_forgets_a_bound_is_found_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    async with serving_with(
        lambda store: LaggingReplica(store, forgets=part), home, monkeypatch
    ) as served:

        async def record_one(number: int) -> Callable[[], object]:
            operations, changes = await record(served.endpoint, seeded(number), f"user-{number}")
            return lambda: check_sessions(operations, changes, BOTH)

        await require_found_out(record_one)
