"""What tests of others are given."""

from __future__ import annotations

import asyncio

import pytest
from patchouli.harness.testing import no_task_left


async def test_a_task_that_goes_on_is_named() -> None:
    before = asyncio.create_task(asyncio.Event().wait(), name="older")
    gate = asyncio.Event()

    with pytest.raises(AssertionError, match="forgotten") as caught:
        async with no_task_left():
            left = asyncio.create_task(gate.wait(), name="forgotten")

    assert "older" not in str(caught.value)
    gate.set()
    await left
    before.cancel()


async def test_tasks_that_have_ended_and_blocks_that_fail_are_no_fault() -> None:
    gate = asyncio.Event()
    begun: list[asyncio.Task[object]] = []

    async def fail() -> None:
        async with no_task_left():
            begun.append(asyncio.create_task(gate.wait()))
            raise KeyError("own")

    async with no_task_left():
        ended = asyncio.create_task(asyncio.sleep(0))
    with pytest.raises(KeyError):
        await fail()

    assert ended.done()
    gate.set()
    await begun[0]
