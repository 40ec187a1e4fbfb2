"""What the tests of this package share: a kernel with the service, and plugins that tests steer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import Context, Kernel, PluginScope, PluginSpec
from patchouli.harness.testing import no_task_left
from patchouli.memory_service import MemoryService, memory_service

sys.path.append(str(Path(__file__).parent))  # test files are imported without a package around

from memory_doubles import Consumer, open_gates

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


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
    assert [thread.name for thread in left if not thread.name.startswith("asyncio_")] == []


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    async with no_task_left():
        yield


@pytest.fixture
async def kernel(leaves_no_task: None) -> AsyncIterator[Kernel]:
    async with Kernel(task_grace_ms=20) as kernel:
        yield kernel
        open_gates()  # whom a failed test left waiting would keep the kernel from closing


class Sleeper:
    """The waits between attempts: recorded, and over at once unless a test holds them."""

    def __init__(self) -> None:
        self.waits_ms: list[int] = []
        self.is_holding = False
        self.began = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.waits_ms.append(round(seconds * 1000))
        self.began.set()
        if self.is_holding:
            await asyncio.get_running_loop().create_future()


@pytest.fixture
async def sleeper() -> Sleeper:
    return Sleeper()


@pytest.fixture
def started(kernel: Kernel, sleeper: Sleeper) -> Callable[..., Any]:
    """Start the service with a configuration and return it as the root scope sees it."""

    async def start(config: object = None) -> MemoryService:
        await kernel.root.plugin(memory_service(sleep=sleeper.sleep, random=lambda: 0.0), config)
        return kernel.root.find("patchouli")

    return start


@pytest.fixture
async def memory(started: Callable[..., Any]) -> MemoryService:
    return await started({"cancelGraceMs": 20})


class Owner:
    """A plugin of the host that does nothing but own what a test makes through its context."""

    def __init__(self) -> None:
        self.ctx: Any = None
        self.scope: Any = None

    @property
    def memory(self) -> MemoryService:
        return self.ctx.get("patchouli")

    async def close(self) -> None:
        await self.scope.close()


@pytest.fixture
def owner(kernel: Kernel, memory: MemoryService) -> Callable[[], Any]:
    async def make() -> Owner:
        owner = Owner()

        def start(ctx: Context, _: object) -> None:
            owner.ctx = ctx

        scope: PluginScope = kernel.root.plugin(
            PluginSpec(name="owner", start=start, needs=("patchouli",))
        )
        owner.scope = await scope
        return owner

    return make


@pytest.fixture
async def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    return caplog
