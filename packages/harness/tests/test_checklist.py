"""Every number of the host's checklist has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent
DROPPED = {21, 22}
OF_MEMORY_SERVICE = {24, 28}  # shown where the services are that they speak of


def test_every_number_has_a_test() -> None:
    named = {
        int(number)
        for path in TESTS.glob("test_*.py")
        for number in re.findall(r'checklist\("HN-(\d+)"\)', path.read_text(encoding="utf-8"))
    }

    assert named == set(range(1, 29)) - DROPPED - OF_MEMORY_SERVICE
