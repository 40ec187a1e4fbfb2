"""The client as a service of a harness, and without one."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import Context, Kernel, PluginSpec, ScopeState
from patchouli.storage_client import (
    ClientConfig,
    ConfigurationError,
    DaemonUnavailable,
    StorageClient,
)
from patchouli.storage_client.plugin import STORAGE_PLUGIN, STORAGE_SERVICE

if TYPE_CHECKING:
    from pathlib import Path


async def test_dependents_start_with_a_live_connection_and_stop_before_it_ends(
    config: ClientConfig,
) -> None:
    seen: list[tuple[str, str]] = []
    clients: list[StorageClient] = []

    async def start(ctx: Context, _: object) -> Any:
        client: StorageClient = ctx.get(STORAGE_SERVICE)
        clients.append(client)
        seen.append(("start", client.state))

        async def stop() -> None:
            await client.status()
            seen.append(("stop", client.state))

        return stop

    async with Kernel() as kernel:
        kernel.root.plugin(PluginSpec(name="user", start=start, needs=(STORAGE_SERVICE,)))
        scope = await kernel.root.plugin(STORAGE_PLUGIN, config)
        await kernel.settle()
        assert scope.state is ScopeState.ACTIVE

    assert seen == [("start", "ready"), ("stop", "ready")]
    assert clients[0].state == "closed"


async def test_without_a_daemon_nothing_is_provided(folder: Path) -> None:
    document = {"endpoint": str(folder / "nobody"), "autoStart": False}

    async with Kernel() as kernel:
        scope = kernel.root.plugin(STORAGE_PLUGIN, document)
        with pytest.raises(DaemonUnavailable):
            await scope
        assert kernel.root.find(STORAGE_SERVICE) is None


@pytest.mark.parametrize("raw", [{"unheard": 1}, [], "x"])
async def test_a_configuration_that_says_nothing_starts_nothing(raw: Any) -> None:
    async with Kernel() as kernel:
        with pytest.raises(ConfigurationError):
            await kernel.root.plugin(STORAGE_PLUGIN, raw)


def test_the_client_needs_no_harness_and_no_models() -> None:
    program = """
import sys
import patchouli.storage_client
heavy = ("patchouli.harness", "pydantic", "pydantic_core", "uvloop", "structlog", "orjson")
sys.exit(" ".join(name for name in heavy if name in sys.modules) or 0)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
