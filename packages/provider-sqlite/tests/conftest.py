"""What the tests of this package share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider_conformance import ManualClock
from patchouli.provider_conformance.builders import FOREVER, create, entity
from patchouli.provider_sqlite import SqliteLimits, SqliteProvider
from patchouli.provider_sqlite.testing import ForgetfulDisk, Watched

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

QUIET = SqliteLimits(prune_interval_seconds=3600, log_pages_soft=1 << 30, log_pages_hard=1 << 30)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def watched(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Watched]:
    """A running provider of which nothing happens by itself, with its costs counted."""
    disk = ForgetfulDisk()
    provider = SqliteProvider(tmp_path / "db", clock=clock, limits=QUIET, disk=disk.disk)
    await provider.initialize(FOREVER)
    await provider.commit(create(entity("warm"), "warm"))  # writes the header of the log
    yield Watched(provider, disk)
    await provider.shutdown()
    disk.close()
