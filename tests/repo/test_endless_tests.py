"""What becomes of a test that does not end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDLESS = """
import asyncio
import pytest

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def opened():
    yield
    await asyncio.sleep(0)
    print("undone")

@pytest.mark.timeout(10.1)
async def test_endless(opened):
    await asyncio.Event().wait()

async def test_another():
    pass
"""


@pytest.mark.slow
def test_an_endless_test_fails_and_its_fixtures_are_undone(tmp_path: Path) -> None:
    path = tmp_path / "test_endless.py"
    path.write_text(ENDLESS, "utf-8")
    options = ("-q", "-s", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))

    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", "conftest", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert "undone" in ended.stdout
    assert "TimeoutError" in ended.stdout
    assert "1 failed, 1 passed" in ended.stdout
