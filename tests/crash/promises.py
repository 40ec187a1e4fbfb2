"""A script of everything that a store promises to remember, and whether it remembers it.

Clients create, update and delete with idempotency keys, alone and in work units, of which one is
closed in peace, one meets drift, one is refused because of drift and one stays open; others read
and write in sessions. What they were told is a history. After whatever happened to the disk, the
same requests are sent again, and the whole is held to what histories promise (`tests/histories`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from patchouli.protocol import CHECKPOINT
from patchouli.server.testing import serving, settings_of

from tests.histories.history import Accepted, Operation, Refused, Shown
from tests.histories.linearizability import check_linearizable
from tests.histories.recording import Recorder, read_changes
from tests.histories.sessions import Guarantees, check_sessions
from tests.histories.units import check_units

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.histories.history import Change
    from tests.histories.recording import Client

USER: Final = "mira"
WORK_UNIT_EXPIRED: Final = -32011


async def play(endpoint: Path, recorder: Recorder) -> None:
    """Do everything once; a request that fails stops nothing but what depends on it."""
    one, other, third = [await recorder.connect(endpoint, USER) for _ in range(3)]
    try:
        entries = await asyncio.gather(
            *(create(c, f"e-{n}") for n, c in enumerate((one, other, third)))
        )
        await alone(one, entries[0])
        await in_peace(one, entries)
        await with_drift(one, other, entries)
        await refused(one, other)
        await asyncio.gather(in_sessions(one), in_sessions(other), create(third, "e-9"))
        await create(one, "open", unit="u-open")
        with suppress(AssertionError):  # it may fail as everything else
            await one.peer.result(CHECKPOINT, {"meta": {}, "data": {}})
        await alone(other, entries[1])
    finally:
        for client in (one, other, third):
            await client.close()


async def create(client: Client, name: str, **more: object) -> Operation:
    call = f"create {name} {more.get('unit', '')}"
    value = {"text": f"leaf of {name}", "n": 0}
    return await client.create(name, value, type_="entry", call=call, **more)


async def update(
    client: Client, bases: Iterable[Operation], text: str, **more: object
) -> Operation | None:
    """Update from what was accepted; None if nothing was."""
    some = [base for base in bases if isinstance(base.outcome, Accepted)]
    if not some:
        return None
    versions = [base.outcome.version for base in some if isinstance(base.outcome, Accepted)]
    value = {"text": f"{text} leaf of {some[0].entity.id}", "n": 0}
    more = {"type_": "entry", "call": f"update {some[0].entity.id} {text}", **more}
    return await client.update(some[0].entity.id, versions, value, **more)


async def alone(client: Client, entry: Operation) -> None:
    """Update twice from one base, so that it is merged, and delete something."""
    name = entry.entity.id
    await update(client, [entry], f"one {name}")
    await update(client, [entry], f"two {name}")
    made = await create(client, f"{name}-gone")
    if isinstance(made.outcome, Accepted):
        versions = [made.outcome.version]
        call = f"delete {name}"
        await client.delete(made.entity.id, versions, type_="entry", call=call)


async def in_peace(client: Client, entries: Iterable[Operation]) -> None:
    """Do something of everything in a unit, and close it."""
    _, second, third = entries
    unit = {"unit": "u-peace"}
    await create(client, "p-1", **unit)
    await client.read(second.entity.id, type_="entry", **unit)
    staged = await update(client, [second], "peace", **unit)
    if staged is not None:
        await update(client, [staged], "more peace", **unit)
    await update(client, [third], "close", **unit, is_closing=True)


async def with_drift(client: Client, other: Client, entries: Iterable[Operation]) -> None:
    """Let somebody else update what a unit has updated, and close it."""
    _, _, third = entries
    seen = await client.read(third.entity.id, type_="entry")
    if not isinstance(seen.outcome, Shown):
        return
    unit = {"unit": "u-drift", "strategy": "merge"}
    name, bases = third.entity.id, seen.outcome.heads
    inside = {"text": f"close leaf of {name} inside", "n": 0}
    await client.update(name, bases, inside, type_="entry", call="inside", **unit)
    outside = {"text": f"outside close leaf of {name}", "n": 0}
    await other.update(name, bases, outside, type_="entry", call="outside")
    await create(client, "d-1", **unit, is_closing=True)


async def refused(client: Client, other: Client) -> None:
    """Close a unit that is refused because of drift."""
    made = await create(client, "r-1")
    unit = {"unit": "u-refused", "strategy": "reject"}
    await update(client, [made], "refused", **unit)
    await update(other, [made], "before")
    await create(client, "r-2", **unit, is_closing=True)


async def in_sessions(client: Client) -> None:
    """Write and read a note, and pass its token on."""
    name = f"n-{client.number}"
    more = {"type_": "note", "session": name}
    made = await client.create(name, {"text": "leaf"}, **more)
    await client.read(name, **more)
    if made.token is not None and isinstance(made.outcome, Accepted):
        bases = [made.outcome.version]
        await client.update(name, bases, {"text": "new leaf"}, after=(made.token,), **more)
        await client.read(name, after=(made.token,), **more)


async def check_kept(home: Path, recorder: Recorder) -> None:
    """Return if the store of a home keeps what was promised in a history.

    Everything with an idempotency key is sent again, twice and by another daemon the second time.

    Raises:
        AssertionError: Something is lost, there twice, or published in part.
    """
    for _ in range(2):
        async with serving(settings_of(home)) as served:
            await repeat_all(served.endpoint, recorder)
            changes = await read_changes(served.endpoint, recorder, USER)
    check_history(recorder, changes)


async def repeat_all(endpoint: Path, recorder: Recorder) -> None:
    closed = {
        operation.unit
        for operation in recorder.operations
        if operation.is_closing and isinstance(operation.outcome, Accepted)
    }
    client = await recorder.connect(endpoint, USER)
    try:
        for operation in recorder.operations:
            if operation.call is None:
                continue
            again = await client.repeat(operation)
            if isinstance(operation.outcome, Accepted):
                # Of a unit that was never published nothing may be left.
                may_be_gone = operation.unit is not None and operation.unit not in closed
                is_gone = again.outcome == Refused(WORK_UNIT_EXPIRED)
                assert again.outcome == operation.outcome or (may_be_gone and is_gone), (
                    f"{operation}\nis told something else when it is repeated: {again.outcome}"
                )
    finally:
        await client.close()


def check_history(recorder: Recorder, changes: list[Change]) -> None:
    """Return if a history of the script and its change log keep all promises."""
    counts = Counter(change.operation for change in changes)
    twice = [operation for operation in recorder.operations if counts[operation.number] > 1]
    assert not twice, f"done twice: {twice[0]}"
    operations = [o for o in recorder.operations if o.entity.user == USER]
    notes = [operation for operation in operations if operation.entity.type == "note"]
    check_units(operations, changes)
    check_linearizable(notes, [c for c in changes if c.entity.type == "note"])
    check_sessions(notes, changes, Guarantees())
