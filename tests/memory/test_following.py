"""A consumer follows the daemon through crashes and a lost position."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness.reference import SqliteDomains
from patchouli.memory_service import (
    CONSUMER_CURSORS,
    CallMeta,
    ChangeEvent,
    Source,
    SubscribeRequest,
    SubscriptionFailure,
)
from patchouli.server.testing import META, create_memo_home, memo, params
from patchouli.storage_client import StorageClient
from patchouli.storage_client.plugin import STORAGE_SERVICE

from tests.memory.storage_memory import StorageMemory

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.harness import Kernel
    from patchouli.memory_service import (
        ConsumerCursors,
        CursorStore,
        MemoryService,
        Subscription,
    )
    from patchouli.server.testing import DaemonProcess
    from patchouli.storage_client import ClientConfig

REQUEST = SubscribeRequest(
    meta=CallMeta(source=Source(type="chat", id="desk"), scope="atlas"),
)
WAIT_SECONDS = 20


class Follower:
    """Handles changes and keeps what it was told."""

    def __init__(self, memory: MemoryService, cursors: CursorStore) -> None:
        self.ids: list[str] = []
        self.failures: list[SubscriptionFailure] = []
        self.moved = asyncio.Event()
        self._memory = memory
        self._cursors = cursors

    async def subscribe(self) -> Subscription:
        return await self._memory.subscribe(
            REQUEST, self._handle, cursors=self._cursors, on_error=self._failed
        )

    async def until_seen(self, name: str) -> None:
        await self._until(lambda: name in self.ids)

    async def until_failed(self, *, for_good: bool = False) -> None:
        await self._until(
            lambda: any(one.error.reset_required or not for_good for one in self.failures)
        )

    async def _until(self, holds: Any) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not holds():
                self.moved.clear()
                await self.moved.wait()

    async def _handle(self, event: ChangeEvent) -> None:
        self.ids.append(str(event.memory_id))
        await asyncio.sleep(0)
        self.moved.set()

    def _failed(self, failure: SubscriptionFailure) -> None:
        self.failures.append(failure)
        self.moved.set()


class NotedCursors:
    """A cursor store that tells when a position is saved."""

    def __init__(self, cursors: CursorStore) -> None:
        self.saved = asyncio.Event()
        self._cursors = cursors

    async def load(self, plugin_id: str) -> str | None:
        return await self._cursors.load(plugin_id)

    async def save(self, plugin_id: str, cursor: str) -> None:
        await self._cursors.save(plugin_id, cursor)
        self.saved.set()

    async def delete(self, plugin_id: str) -> None:
        await self._cursors.delete(plugin_id)
        self.saved.clear()

    async def until_open(self) -> None:
        """Return when the first position is saved, so that later changes are live ones."""
        await asyncio.wait_for(self.saved.wait(), WAIT_SECONDS)


async def create(config: ClientConfig, *names: str) -> None:
    async with StorageClient(config) as client:  # of its own, since the daemon was killed before
        for name in names:
            await client.create(params(memo(name)))


async def memos(config: ClientConfig) -> list[str]:
    async with StorageClient(config) as client:
        return [
            hit["variants"][0]["ref"]["id"]
            async for page in client.query_pages(META, {}, types=["memo"])
            for hit in page["data"]["hits"]
        ]


@pytest.mark.slow
@pytest.mark.checklist("MS-86")
async def test_a_killed_daemon_loses_no_change_and_an_expired_position_is_made_anew(
    kernel: Kernel, config: ClientConfig, daemon: DaemonProcess, folder: Path
) -> None:
    domains = SqliteDomains(kernel, folder / "host.db")
    kernel.root.provide("storageDomain", domains)
    await kernel.root.plugin(CONSUMER_CURSORS)
    durable: ConsumerCursors = kernel.root.find("patchouliCursors")
    cursors = NotedCursors(durable.bind(consumer_id="desk", subscription_key="main", scope="atlas"))
    memory: MemoryService = kernel.root.find("patchouli")
    memory.register(StorageMemory(kernel.root.find(STORAGE_SERVICE), META))

    follower = Follower(memory, cursors)
    subscription = await follower.subscribe()
    names = [f"memo-{number:02}" for number in range(20)]
    await cursors.until_open()
    await create(config, *names[:8])
    await follower.until_seen(names[3])  # with others on their way
    daemon.kill()
    await follower.until_failed()
    daemon.start()
    await create(config, *names[8:16])
    await follower.until_seen(names[15])

    assert all(failure.error.retryable for failure in follower.failures)
    assert list(dict.fromkeys(follower.ids)) == names[:16]
    for before, behind in itertools.pairwise(names.index(one) for one in follower.ids):
        assert behind <= before + 1

    # What ends here goes on from the saved position in the next subscription.
    await subscription.unsubscribe()
    await create(config, *names[16:18])
    resumed = Follower(memory, cursors)
    subscription = await resumed.subscribe()
    await resumed.until_seen(names[17])
    assert resumed.ids[-2:] == names[16:18]
    assert set(resumed.ids) <= set(names[15:18])

    # Another database under the same endpoint knows none of these positions.
    daemon.end()
    shutil.rmtree(daemon.home)
    create_memo_home(daemon.home)
    daemon.start()
    await create(config, names[18])
    await resumed.until_failed(for_good=True)
    kept = await cursors.load("storage")
    snapshot = await memos(config)
    await subscription.unsubscribe()
    await cursors.delete("storage")
    anew = Follower(memory, cursors)
    subscription = await anew.subscribe()
    await cursors.until_open()
    await create(config, names[19])
    await anew.until_seen(names[19])

    assert resumed.failures[-1].error.code == "CURSOR_EXPIRED"
    assert kept is not None
    assert snapshot == [names[18]]
    assert anew.ids[-1] == names[19]
    await subscription.unsubscribe()
    await kernel.aclose()
    await domains.aclose()
