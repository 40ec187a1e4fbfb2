"""Turns by themselves: order, hand-over, and ends at every moment."""

from __future__ import annotations

import asyncio

import pytest
from patchouli.backend.turns import Turns
from patchouli.provider import EntityKey, ScopeText

KEY = EntityKey(ScopeText("{}"), "memo", "a")
OTHER = EntityKey(ScopeText("{}"), "memo", "b")


async def test_a_free_turn_is_had_at_once():
    turns = Turns()

    assert await turns.take(KEY, timeout_ms=None) is False
    assert turns.is_taken(KEY)
    assert not turns.is_taken(OTHER)
    assert await turns.take(OTHER, timeout_ms=None) is False

    turns.give_back(KEY)
    assert not turns.is_taken(KEY)
    assert turns.is_taken(OTHER)


async def test_turns_pass_in_the_order_of_arrival():
    turns = Turns()
    order: list[int] = []
    await turns.take(KEY, timeout_ms=None)

    async def member(number: int) -> None:
        assert await turns.take(KEY, timeout_ms=None) is True
        order.append(number)
        turns.give_back(KEY)

    members = [asyncio.create_task(member(number)) for number in range(5)]
    await asyncio.sleep(0)
    turns.give_back(KEY)
    await asyncio.gather(*members)

    assert order == [0, 1, 2, 3, 4]
    assert not turns.is_taken(KEY)


async def test_who_runs_out_of_time_has_no_turn():
    turns = Turns()
    await turns.take(KEY, timeout_ms=None)

    for timeout_ms in (0, 1, -5):
        with pytest.raises(TimeoutError):
            await turns.take(KEY, timeout_ms=timeout_ms)

    turns.give_back(KEY)
    assert not turns.is_taken(KEY)


async def test_a_turn_that_comes_together_with_the_cancellation_is_passed_on():
    turns = Turns()
    await turns.take(KEY, timeout_ms=None)
    first = asyncio.create_task(turns.take(KEY, timeout_ms=None))
    second = asyncio.create_task(turns.take(KEY, timeout_ms=None))
    await asyncio.sleep(0)

    turns.give_back(KEY)
    first.cancel()

    assert await second is True
    assert first.cancelled() or first.exception() is not None
    turns.give_back(KEY)
    assert not turns.is_taken(KEY)


async def test_a_turn_that_passes_over_who_is_just_leaving_ends_their_wait_as_usual():
    turns = Turns()
    await turns.take(KEY, timeout_ms=None)
    cancelled = asyncio.create_task(turns.take(KEY, timeout_ms=None))
    await asyncio.sleep(0)

    cancelled.cancel()
    turns.give_back(KEY)  # before the task has seen its cancellation

    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not turns.is_taken(KEY)


async def test_a_turn_that_passes_over_who_is_out_of_time_lets_them_say_so():
    turns = Turns()
    await turns.take(KEY, timeout_ms=None)
    late = asyncio.create_task(turns.take(KEY, timeout_ms=0))
    await asyncio.sleep(0)
    # The loop calls this right after the timer and before the task.
    asyncio.get_running_loop().call_later(0, turns.give_back, KEY)

    with pytest.raises(TimeoutError):
        await late
    assert not turns.is_taken(KEY)
