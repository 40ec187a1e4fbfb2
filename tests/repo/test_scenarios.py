"""The numbered scenarios of the engine are tests, as far as this release serves them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MARK = re.compile(
    r"^@pytest\.mark\.scenario\((\d+)\)\n(?:@.*\n|    .*\n|\)\n|\]\n)*async def test_", re.M
)
# The others need work units, idempotency, causal tokens or sessions.
SERVED = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 25, 26}


def test_every_scenario_that_is_served_is_a_test_of_the_engine() -> None:
    marked = {
        int(number)
        for path in (ROOT / "packages/backend/tests/engine").glob("test_*.py")
        for number in MARK.findall(path.read_text("utf-8"))
    }

    assert marked == SERVED
