"""What the tests of this package share."""

from __future__ import annotations

import pytest
from patchouli.provider_conformance import ManualClock


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()
