"""Turns the checks of invariants on before anything is imported, and cuts tests that hang."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

os.environ.setdefault("PATCHOULI_VERIFY", "1")  # `patchouli.provider.check`

LIMIT = pytest.StashKey[float]()  # s


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Note the limit of a test; pytest-timeout goes on to set its timer."""
    item.stash[LIMIT] = settings.timeout


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Cut an asynchronous test from within its loop, before pytest-timeout interrupts the loop.

    An interrupted test stays in the loop, and its fixtures, which anyio ends in the same task,
    would wait for it for ever: the run would hang instead of telling what failed.
    """
    if LIMIT in pyfuncitem.stash and inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _cut_after(pyfuncitem.stash[LIMIT] * 3 / 4, pyfuncitem.obj)


def _cut_after(seconds: float, test: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    @functools.wraps(test)
    async def bounded(**arguments: Any) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        cuts: list[asyncio.TimerHandle] = []

        def cut() -> None:
            task.cancel()
            cuts.append(loop.call_later(1, cut))  # what it awaits while it ends may hang as well

        first = loop.call_later(seconds, cut)
        try:
            await test(**arguments)
        except asyncio.CancelledError as error:
            if not cuts:
                raise
            raise TimeoutError(f"the test was cut after {seconds:g} s") from error
        finally:
            first.cancel()
            for one in cuts:
                task.uncancel()
                one.cancel()

    return bounded
