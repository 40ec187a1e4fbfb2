"""A signal fires once, tells everyone, and its reason is no cancellation."""

from __future__ import annotations

import asyncio

import pytest
from patchouli.harness import Aborted, CancelSource


def test_a_signal_that_has_not_fired_says_nothing() -> None:
    signal = CancelSource().signal

    signal.raise_if_cancelled()

    assert (signal.cancelled, signal.reason) == (False, None)


def test_the_first_reason_stays() -> None:
    source = CancelSource()
    first = ValueError("first")

    source.cancel(first)
    source.cancel(ValueError("second"))

    assert (source.signal.cancelled, source.signal.reason) == (True, first)
    with pytest.raises(ValueError, match="first"):
        source.signal.raise_if_cancelled()


def test_without_a_reason_it_is_aborted() -> None:
    source = CancelSource()

    source.cancel()

    assert isinstance(source.signal.reason, Aborted)


def test_a_cancellation_is_no_reason() -> None:
    source = CancelSource()

    with pytest.raises(TypeError, match="CancelledError"):
        source.cancel(asyncio.CancelledError())  # type: ignore[arg-type] - what is refused

    assert not source.signal.cancelled


class Ending(BaseException):
    """Something that is no `Exception` and ends nobody else."""


@pytest.mark.parametrize("error", [ValueError("torn"), asyncio.CancelledError(), Ending("over")])
def test_callbacks_run_once_in_order_and_survive_each_other(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    source = CancelSource()
    seen: list[str] = []

    def fail() -> None:
        raise error

    forget_third = source.signal.add_callback(lambda: seen.append("never"))
    source.signal.add_callback(lambda: seen.append("first"))
    source.signal.add_callback(fail)
    source.signal.add_callback(lambda: forget_later())
    forget_later = source.signal.add_callback(lambda: seen.append("forgotten while it fired"))
    source.signal.add_callback(lambda: seen.append("last"))
    forget_third()
    forget_third()

    source.cancel()
    source.cancel()

    assert seen == ["first", "last"]
    assert len(caplog.records) == 1


def test_a_callback_added_late_runs_at_once() -> None:
    source = CancelSource()
    seen: list[str] = []
    source.cancel()

    forget = source.signal.add_callback(lambda: seen.append("late"))
    forget()

    assert seen == ["late"]


async def test_whoever_waits_gets_the_reason() -> None:
    source = CancelSource()
    waiting = [asyncio.create_task(source.signal.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    reason = ValueError("enough")

    source.cancel(reason)

    assert await asyncio.gather(*waiting) == [reason, reason]
    assert await source.signal.wait() is reason


async def test_a_wait_that_is_cancelled_is_forgotten() -> None:
    source = CancelSource()
    waiting = asyncio.create_task(source.signal.wait())
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    source.cancel()

    assert source.signal.cancelled
