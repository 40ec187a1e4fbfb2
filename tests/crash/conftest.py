from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.register_assert_rewrite("tests.crash.audit")


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private directory with a short path, because a socket path has few bytes."""
    path = Path(tempfile.mkdtemp(prefix="pc-"))
    yield path
    shutil.rmtree(path)
