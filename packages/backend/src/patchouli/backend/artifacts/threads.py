"""Work of the file system on threads, which cannot be stopped once it has begun."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def on_thread(function: Callable[[], T]) -> T:
    """Return what `function` returns on a thread; also when cancelled, it has ended afterwards."""
    task = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # who is cancelled is not told, and it counts as seen
        raise
