from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.histories.recording import create_recorded_home

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def home() -> Iterator[Path]:
    """A home of memos and notes with a short path, because a socket path has few bytes."""
    folder = Path(tempfile.mkdtemp(prefix="ph-"))
    yield create_recorded_home(folder / "home")
    shutil.rmtree(folder)
