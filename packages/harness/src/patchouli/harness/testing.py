"""For tests of plugins and hosts: what they must not leave behind. It needs no test framework."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


@asynccontextmanager
async def no_task_left() -> AsyncGenerator[None]:
    """Hold that every task which was begun in the block has ended soon after it.

    Soon is a few steps of the loop, for the callbacks of what has just ended. A block that fails is
    not looked at.

    Raises:
        AssertionError: Some go on; the message names them.
    """
    before = asyncio.all_tasks()
    yield
    for _ in range(3):
        await asyncio.sleep(0)
    begun = asyncio.all_tasks() - before - {asyncio.current_task()}
    # The plugin of anyio runs each fixture by a task of its own, which waits for this one.
    left = [task for task in begun if "TestRunner" not in repr(task.get_coro())]
    if left:
        raise AssertionError(f"tasks go on: {left}")
