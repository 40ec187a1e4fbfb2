from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.provider import SystemClock

from tests.scenarios.desk import Desk, Ending

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

# Kills need a process for every request, which takes minutes.
ENDINGS = (
    list(Ending) if os.environ.get("PATCHOULI_SCENARIO_KILLS") else [Ending.NEVER, Ending.STOP]
)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=ENDINGS, ids=lambda ending: ending.value)
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """A desk in a home with a short path, because a socket path has few bytes."""
    folder = Path(tempfile.mkdtemp(prefix="pn-"))
    desk = Desk(folder / "home", request.param)
    yield desk
    await desk.end()
    shutil.rmtree(folder)


@pytest.fixture
def pass_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], None]:
    """Let the clocks of all further daemons go ahead by so many milliseconds."""
    if "kills" in request.node.name:
        pytest.skip("nobody can set the clock of another process")
    passed = 0
    read_clock = SystemClock.unix_ms

    def let(milliseconds: int) -> None:
        nonlocal passed
        passed += milliseconds

    monkeypatch.setattr(SystemClock, "unix_ms", lambda self: read_clock(self) + passed)
    return let
