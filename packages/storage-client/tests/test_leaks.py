"""The fixture that fails a test for what it leaves sees what there is to be left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from patchouli.storage_client import StorageClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.storage_client import ClientConfig


async def test_a_client_that_is_not_closed_is_seen(
    config: ClientConfig, what_is_left: Callable[[], list[object]]
) -> None:
    client = StorageClient(config)
    await client.start()

    assert [type(found).__name__ for found in what_is_left()] == ["Connection"]

    await client.close()
    assert what_is_left() == []


async def test_a_start_that_goes_on_is_seen(
    raw: Any, what_is_left: Callable[[], list[object]]
) -> None:
    client = StorageClient(raw.config)
    start = asyncio.ensure_future(client.start())
    await raw.accept()

    assert {type(found).__name__ for found in what_is_left()} == {"Connection", "Task"}

    await client.close()
    await asyncio.wait([start])
    start.exception()
    assert what_is_left() == []
