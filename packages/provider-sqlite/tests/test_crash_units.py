"""Work units on a disk that fails at any call, and after a power loss at any answer.

One script of keyed mutations, in units and outside, with a drift, its resolution and an expiry. A
call that fails is repeated under the same identity; a power loss repeats the call whose answer was
the last. Whatever fails, what shows in the end is what the model shows: nothing that was answered
is lost, and nothing is there twice.
"""

from __future__ import annotations

import os
from itertools import count
from random import Random  # noqa: TID251 - seeded, and the seed is written below
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    ProviderError,
    Publish,
    Resolution,
    UnitRefused,
)
from patchouli.provider_conformance import ModelProvider, ModelStorage
from patchouli.provider_conformance.asking import all_changes, reading
from patchouli.provider_conformance.builders import (
    FOREVER,
    NOW,
    SCOPE,
    ManualClock,
    control,
    create,
    entity,
    read,
    record,
    staging,
    unit,
    update,
    version,
    version_ids,
)
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.testing import (
    IO_FAILURE,
    FaultyDisk,
    ForgetfulDisk,
    check_truth,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from patchouli.provider import Commit, Provider
    from patchouli.provider_sqlite import Disk
    from patchouli.provider_sqlite.testing import DiskCall

    Action = Callable[[Provider, ManualClock], Awaitable[object]]

STRIDE = int(os.environ.get("PATCHOULI_CRASH_STRIDE", "7"))  # 1 fails every single write
ONLY_SYNC = {"sync": IO_FAILURE["sync"]}
CHANGING = {kind: code for kind, code in IO_FAILURE.items() if kind not in {"open", "read"}}
SMALL = SqliteLimits(log_pages_soft=20, log_pages_turn=30, log_pages_hard=40)
UNITS = [unit(name) for name in ("first", "drifted", "overdue")]
FIRST, DRIFTED, OVERDUE = UNITS
KEYS = [entity(name) for name in "abcdef"]
A, B, C, D, E, F = KEYS
TOKEN = CausalToken("token-of-the-resolution")


def once(commit: Commit, **staged: object) -> Action:
    """Do a commit under an identity of its own."""
    new = commit.new_versions[0].id
    keyed = record(control(f"request-{new}"), result_json=f'"{new}"')
    members = {"idempotency": keyed, **staged}

    async def act(provider: Provider, _: ManualClock) -> object:
        return await provider.commit(_with(commit, members))

    return act


def _with(commit: Commit, members: dict[str, object]) -> Commit:
    fields = {name: getattr(commit, name) for name in commit.__slots__}
    return type(commit)(**fields | members)


async def open_first(provider: Provider, _: ManualClock) -> object:
    return await provider.read(read(A, unit=FIRST))


async def resolve(provider: Provider, _: ManualClock) -> object:
    resolution = Resolution(
        key=A,
        expected_published_heads=version_ids(["a9"]),
        expected_staged_heads=version_ids(["a3"]),
        new_versions=(version("m", parents=["a3", "a9"]),),
        head_versions=version_ids(["m"]),
        causal_token=TOKEN,
    )
    results = ((control("request-e1"), '"resolved"'),)
    plan = Publish(
        unit=DRIFTED, resolutions=(resolution,), results=results, recorded_at_unix_ms=NOW + 5
    )
    return await provider.publish(plan)


async def let_pass(provider: Provider, clock: ManualClock) -> object:
    clock.now_unix_ms = OVERDUE.expires_at_unix_ms
    return await provider.read(read(F, unit=OVERDUE))


SCRIPT: list[Action] = [
    once(create(A, "a1")),
    open_first,
    once(update(A, "a1", "a2", {"t": "x" * 3000}), staging=staging(FIRST)),
    once(create(B, "b1"), staging=staging(FIRST)),
    once(create(C, "c1")),
    once(update(B, "b1", "b2"), staging=staging(FIRST)),
    once(create(D, "d1"), staging=staging(FIRST, close=True)),
    once(update(A, "a2", "a3"), staging=staging(DRIFTED)),
    once(update(A, "a2", "a9")),
    once(create(E, "e1"), staging=staging(DRIFTED, close=True)),
    resolve,
    once(create(F, "f1"), staging=staging(OVERDUE)),
    let_pass,
]


async def run(provider: Provider, clock: ManualClock, steps: range) -> None:
    """Do some steps of the script, each until it is answered."""
    for step in steps:
        for attempt in count():
            try:
                await SCRIPT[step](provider, clock)
                break
            except ProviderError:
                assert attempt < 3, "it succeeds when the disk does"


async def shown(provider: Provider) -> object:
    """Return what shows in the end, without the numbers of cursors."""
    heads = [(await reading(provider, read(key))).heads for key in KEYS]
    changes = [
        (change.id, change.kind, change.head_versions, change.causal_token)
        for change in await all_changes(provider, SCOPE)
    ]
    ends = [await provider.read(read(A, unit=work_unit)) for work_unit in UNITS]
    assert all(isinstance(end, UnitRefused) for end in ends)
    return heads, changes, ends


async def expected() -> object:
    """Return what the model shows after the script."""
    clock = ManualClock()
    model = ModelProvider(ModelStorage(), clock)
    await model.initialize(FOREVER)
    await run(model, clock, range(len(SCRIPT)))
    return await shown(model)


def at(
    path: Path, clock: ManualClock, *, disk: Disk | None = None, limits: SqliteLimits = SMALL
) -> SqliteProvider:
    return SqliteProvider(path / "db", clock=clock, disk=disk, limits=limits)


async def look(path: Path, steps: range) -> object:
    """Return what shows when the rest of the script was done on the files in `path`."""
    clock = ManualClock()
    provider = at(path, clock)
    await provider.initialize(FOREVER)
    try:
        await run(provider, clock, steps)
        return await shown(provider)
    finally:
        await provider.shutdown()
        check_truth(path / "db")


def of_the_truth(call: DiskCall) -> bool:
    """Leave the index out: it is derived, and its thread comes when it likes."""
    return "-index" not in call.path


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("failures", "stride"), [(ONLY_SYNC, 1), (CHANGING, STRIDE)])
async def test_any_call_of_the_disk_may_fail_under_work_units(
    tmp_path: Path, failures: dict[str, int], stride: int
) -> None:
    end = await expected()
    for number in count(step=stride):
        home = tmp_path / str(number)
        disk, clock = FaultyDisk(failures, concerned=of_the_truth), ManualClock()
        provider = at(home, clock, disk=disk.disk, limits=SqliteLimits())
        await provider.initialize(FOREVER)
        disk.fail(at=number)
        await run(provider, clock, range(len(SCRIPT)))
        has_failed = bool(disk.failed)
        disk.mend()
        assert await shown(provider) == end
        await provider.abandon()
        disk.close()
        assert await look(home, range(0)) == end
        if not has_failed:
            assert number >= len(SCRIPT), "each step writes and syncs"
            return


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_power_loss_after_any_answer_keeps_what_units_staged_and_published(
    tmp_path: Path,
) -> None:
    end = await expected()
    disk, clock = ForgetfulDisk(), ManualClock()
    provider = at(tmp_path / "live", clock, disk=disk.disk)
    await provider.initialize(FOREVER)
    chance = Random(21)  # noqa: S311 - which unsynced writes survive
    images: list[tuple[Path, int]] = []
    for step in range(len(SCRIPT)):
        await run(provider, clock, range(step, step + 1))
        for name, survives in (
            ("nothing", lambda _: False),
            ("everything", lambda _: True),
            ("something", lambda _: chance.random() < 0.5),
        ):
            image = tmp_path / f"{step}-{name}"
            disk.lose_power(image, survives=survives)
            images.append((image, step))
    await provider.shutdown()
    disk.close()

    for image, step in images:
        assert await look(image, range(step, len(SCRIPT))) == end, "the last call is repeated"
