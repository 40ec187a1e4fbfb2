"""Waiting for changes: woken by the own scope, by nothing else, and never too late."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio
import pytest
from patchouli.provider import Cursor, UnavailableError
from patchouli.provider_conformance.asking import committed
from patchouli.provider_conformance.builders import (
    ORIGIN,
    OTHER_SCOPE,
    SCOPE,
    create,
    entity,
    update,
)
from patchouli.provider_conformance.suite.base import WAIT_SECONDS, ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider

A = entity("a")
A_ELSEWHERE = entity("a", scope=OTHER_SCOPE)
ROUNDS = 200  # of the race between a commit and the start of a wait


async def settle() -> None:
    """Let every task that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0)


class WaitingConformance(ProviderSuite):
    """A waiter sleeps until the frontier of its scope is beyond its cursor."""

    async def test_what_is_there_already_does_not_wait(self, provider: Provider) -> None:
        await committed(provider, create(A))

        with anyio.fail_after(WAIT_SECONDS):
            await provider.wait_for_changes(SCOPE, ORIGIN)

    async def test_a_commit_of_the_scope_wakes_and_of_another_does_not(
        self, provider: Provider
    ) -> None:
        cursor = await committed(provider, create(A))
        waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, cursor))
        await settle()

        await committed(provider, create(A_ELSEWHERE, "far"))
        await settle()
        is_woken_by_another = waiter.done()
        await committed(provider, update(A, "v1", "v2"))

        assert not is_woken_by_another
        with anyio.fail_after(WAIT_SECONDS):
            await waiter

    async def test_a_refused_commit_does_not_wake(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A))
        waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, cursor))
        await settle()

        await provider.commit(create(A, "v2"))
        await settle()
        is_woken_by_a_refusal = waiter.done()
        await committed(provider, update(A, "v1", "v3"))

        assert not is_woken_by_a_refusal
        with anyio.fail_after(WAIT_SECONDS):
            await waiter

    async def test_every_waiter_of_a_scope_is_woken(self, provider: Provider) -> None:
        waiters = [asyncio.create_task(provider.wait_for_changes(SCOPE, ORIGIN)) for _ in range(20)]
        await settle()

        await committed(provider, create(A))

        with anyio.fail_after(WAIT_SECONDS):
            await asyncio.gather(*waiters)

    async def test_a_commit_while_a_wait_begins_is_not_missed(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A, "v0"))
        for number in range(ROUNDS):
            wait = asyncio.create_task(provider.wait_for_changes(SCOPE, cursor))
            commit = asyncio.create_task(
                committed(provider, update(A, f"v{number}", f"v{number + 1}"))
            )
            for _ in range(number % 3):
                await asyncio.sleep(0)

            with anyio.fail_after(WAIT_SECONDS):
                await wait
            cursor = await commit

    async def test_a_waiter_that_is_cancelled_leaves_the_others(self, provider: Provider) -> None:
        first = asyncio.create_task(provider.wait_for_changes(SCOPE, ORIGIN))
        second = asyncio.create_task(provider.wait_for_changes(SCOPE, ORIGIN))
        await settle()

        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await committed(provider, create(A))

        with anyio.fail_after(WAIT_SECONDS):
            await second

    async def test_the_stop_releases_waiters(self, provider: Provider) -> None:
        waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, ORIGIN))
        await settle()

        await provider.shutdown()

        with anyio.fail_after(WAIT_SECONDS), pytest.raises(UnavailableError):
            await waiter

    async def test_a_wait_for_a_cursor_ahead_of_the_frontier_ends_beyond_it(
        self, provider: Provider
    ) -> None:
        cursor = await committed(provider, create(A))
        waiter = asyncio.create_task(provider.wait_for_changes(SCOPE, Cursor(cursor + 1)))
        await settle()

        await committed(provider, update(A, "v1", "v2"))
        await committed(provider, update(A, "v2", "v3"))

        with anyio.fail_after(WAIT_SECONDS):
            await waiter
