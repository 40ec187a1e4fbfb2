from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from patchouli.harness import Kernel
from patchouli.harness.testing import no_task_left
from patchouli.memory_service import memory_service
from patchouli.server.testing import DaemonProcess, create_memo_home
from patchouli.storage_client import ClientConfig
from patchouli.storage_client.plugin import STORAGE_PLUGIN

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    async with no_task_left():
        yield


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private directory with a short path, because a socket path has few bytes."""
    path = Path(tempfile.mkdtemp(prefix="pm-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def daemon(folder: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(create_memo_home(folder / "home")) as daemon:
        yield daemon


@pytest.fixture
def config(daemon: DaemonProcess) -> ClientConfig:
    return ClientConfig(endpoint=str(daemon.endpoint), auto_start=False)


@pytest.fixture
async def kernel(leaves_no_task: None, config: ClientConfig) -> AsyncIterator[Kernel]:
    """A host with the memory service and a client; attempts follow each other quickly."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 20)

    async with Kernel() as kernel:
        await kernel.root.plugin(memory_service(sleep=sleep))
        await kernel.root.plugin(STORAGE_PLUGIN, config)
        yield kernel
