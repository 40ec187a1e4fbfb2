"""What the tests of this package share."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from typing import TYPE_CHECKING

import pytest
from patchouli.harness import Kernel
from patchouli.harness.testing import no_task_left

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a task or a thread running."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("leaves_no_task")
    threads = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - threads
    # The event loop keeps the threads of its own executor until it closes.
    assert [thread.name for thread in left if not thread.name.startswith("asyncio_")] == []


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    async with no_task_left():
        yield


@pytest.fixture
async def kernel(
    leaves_no_task: None,
) -> AsyncIterator[Kernel]:  # which looks once the kernel is closed
    kernel = Kernel(task_grace_ms=20)
    yield kernel
    async with asyncio.timeout(5):  # one that never ends fails instead of hanging
        await kernel.aclose()


class Mule:
    """Goes on though it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self._gate = asyncio.Event()

    async def stand(self) -> None:
        self.begun.set()
        while not self._gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._gate.wait()

    def let_go(self) -> None:
        self._gate.set()


@pytest.fixture
def mule() -> Iterator[Mule]:
    """Let go once the test is over, however: else a failed test would never end its loop."""
    mule = Mule()
    yield mule
    mule.let_go()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog
