from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import Peer, Served, create_memo_home, serving, settings_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the processes that the tests start share compiled modules, even where none are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private directory with a short path, because a socket path has few bytes."""
    path = Path(tempfile.mkdtemp(prefix="pt-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def home(folder: Path) -> Path:
    return create_memo_home(folder / "home")


@pytest.fixture
async def served(home: Path) -> AsyncIterator[Served]:
    async with serving(settings_of(home)) as served:
        yield served


@pytest.fixture
async def peer(served: Served) -> AsyncIterator[Peer]:
    async with await served.connect("artifacts", "subscriptions") as peer:
        yield peer
