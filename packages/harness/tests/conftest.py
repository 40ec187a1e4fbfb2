"""What the tests of this package share."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import TYPE_CHECKING

import pytest
from patchouli.harness import Kernel

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
    before = asyncio.all_tasks()
    yield
    for _ in range(3):  # callbacks of what has just ended
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before - {asyncio.current_task()}
    # The test ran in a task of the plugin that runs it, which waits for the next one.
    assert [task for task in left if "TestRunner." not in repr(task.get_coro())] == []


@pytest.fixture
async def kernel(
    leaves_no_task: None,
) -> AsyncIterator[Kernel]:  # which looks once the kernel is closed
    async with Kernel(task_grace_ms=20) as kernel:
        yield kernel


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog
