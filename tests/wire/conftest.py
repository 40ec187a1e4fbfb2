from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import Served, create_memo_home, serving, settings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def home() -> Iterator[Path]:
    # Short, because a socket path has few bytes.
    folder = Path(tempfile.mkdtemp(prefix="pw-"))
    yield create_memo_home(folder / "home")
    shutil.rmtree(folder)


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    async with serving(settings_of(home)) as served:
        yield served
