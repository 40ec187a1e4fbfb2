"""What holds in every test of the repository.

The checks of invariants are on (`patchouli.provider.check`), before anything is imported. An
asynchronous test that does not end is cancelled in its event loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from typing import Any

import pytest

os.environ.setdefault("PATCHOULI_VERIFY", "1")

# pytest-timeout strikes later, and throws its failure through the event loop: the task of the test
# would stay where it is, and its fixtures, which are undone in that loop, would wait for it.
MARGIN_SECONDS = 10.0  # or half of a short limit


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Let an asynchronous test end before the time-out of its process."""
    test: Any = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return
    limit_seconds = limit_of(pyfuncitem)
    if limit_seconds <= 0:  # it is switched off
        return

    @functools.wraps(test)
    async def bounded(*args: Any, **given: Any) -> None:
        async with asyncio.timeout(max(limit_seconds - MARGIN_SECONDS, limit_seconds / 2)):
            await test(*args, **given)

    pyfuncitem.obj = bounded


def limit_of(test: pytest.Function) -> float:
    """Return the seconds after which pytest-timeout ends `test`."""
    if (marker := test.get_closest_marker("timeout")) is not None:
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = test.config.getoption("timeout")
    return float(test.config.getini("timeout") if given is None else given)
