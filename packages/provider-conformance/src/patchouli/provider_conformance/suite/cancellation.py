"""Cancelling a caller at any moment leaves the whole effect or none."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

import anyio
from patchouli.provider import Committed, UnavailableError
from patchouli.provider_conformance.asking import all_changes, committed, frontier, head_ids
from patchouli.provider_conformance.builders import (
    ORIGIN,
    SCOPE,
    create,
    entity,
    read,
    retrieve,
    update,
)
from patchouli.provider_conformance.suite.base import WAIT_SECONDS, ProviderSuite

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from patchouli.provider import Provider
    from patchouli.provider_conformance.suite.base import Start

A, B = entity("a"), entity("b")
STEPS = 30  # turns of the event loop that a caller gets before it is cancelled

T = TypeVar("T")


async def cancel_after(turns: int, work: Coroutine[Any, Any, T]) -> T | None:
    """Start `work`, cancel it after some turns of the loop, and return what it returned."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return None


class CancellationConformance(ProviderSuite):
    """The end of a caller is not the end of what the store has accepted."""

    async def test_a_cancelled_commit_happened_or_did_not(self, provider: Provider) -> None:
        await committed(provider, create(A, "v0"))
        head = "v0"
        for turns in range(STEPS):
            new = f"v{turns + 1}"
            answer = await cancel_after(turns, provider.commit(update(A, head, new)))
            # What was admitted before this commit is finished when it is answered.
            await committed(provider, create(entity(f"after-{turns}"), f"after-{turns}"))

            (found,) = await head_ids(provider, A)
            changes = [c for c in await all_changes(provider, SCOPE) if c.id == "a"]
            assert found in (head, new)
            assert changes[-1].head_versions == (found,)
            assert answer is None or found == new
            assert len({change.cursor for change in changes}) == len(changes)
            head = found

    async def test_a_commit_whose_caller_is_gone_still_wakes(self, provider: Provider) -> None:
        head = "v0"
        await committed(provider, create(A, "v0"))
        for turns in range(STEPS):
            before = await frontier(provider, SCOPE)
            waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, before))
            new = f"v{turns + 1}"
            await cancel_after(turns, provider.commit(update(A, head, new)))
            await provider.checkpoint()
            if [head] == await head_ids(provider, A):
                waiter.cancel()
                await asyncio.wait([waiter])
            else:
                head = new
                with anyio.fail_after(WAIT_SECONDS):
                    await waiter

    async def test_a_cancelled_read_disturbs_nobody(self, provider: Provider) -> None:
        await committed(provider, create(A))
        for turns in range(10):
            await cancel_after(turns, provider.read(read(A)))
            await cancel_after(turns, provider.retrieve(retrieve(text="v1")))
            await cancel_after(turns, provider.wait_for_changes(SCOPE, ORIGIN))

        assert await head_ids(provider, A) == ["v1"]
        await committed(provider, create(B, "b"))

    async def test_neighbours_of_a_cancelled_commit_succeed(self, provider: Provider) -> None:
        """A store may commit several callers together; the end of one does not end the others."""
        for turns in range(STEPS):
            others = [
                asyncio.create_task(
                    committed(provider, create(entity(f"e{turns}-{n}"), f"{turns}-{n}"))
                )
                for n in range(3)
            ]
            await cancel_after(turns, provider.commit(create(entity(f"gone{turns}"), f"g{turns}")))
            with anyio.fail_after(WAIT_SECONDS):
                await asyncio.gather(*others)

        assert len([c for c in await all_changes(provider, SCOPE) if c.id[0] == "e"]) == 3 * STEPS

    async def test_a_stop_finishes_what_was_admitted(
        self, provider: Provider, start: Start
    ) -> None:
        """An answer that was given counts, and no answer is left open."""
        keys = [entity(f"e{n}") for n in range(20)]
        tasks = [asyncio.create_task(provider.commit(create(key, f"v-{key.id}"))) for key in keys]
        await asyncio.sleep(0)

        await provider.shutdown()
        with anyio.fail_after(WAIT_SECONDS):
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        again = await start()

        for key, outcome in zip(keys, outcomes, strict=True):
            assert isinstance(outcome, Committed | UnavailableError)
            assert bool(await head_ids(again, key)) == isinstance(outcome, Committed)
