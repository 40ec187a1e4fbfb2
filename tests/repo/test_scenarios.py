"""Every numbered scenario of the engine is a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARK = re.compile(
    r"^@pytest\.mark\.scenario\((\d+)\)\n(?:@.*\n|    .*\n|\)\n|\]\n)*async def test_", re.M
)
SCENARIOS = set(range(1, 27))


@pytest.mark.parametrize("place", ["packages/backend/tests/engine", "tests/scenarios"])
def test_every_scenario_is_a_test_of_the_engine_and_one_over_the_socket(place: str) -> None:
    marked = {
        int(number)
        for path in (ROOT / place).glob("test_*.py")
        for number in MARK.findall(path.read_text("utf-8"))
    }

    assert marked == SCENARIOS
