"""Every numbered item of the checklist that concerns this package is a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NUMBERED = re.compile(r'^@pytest\.mark\.checklist\("((?:MS|HN)-\d+)"\)', re.MULTILINE)
OWN = {f"MS-{number}" for number in (*range(1, 59), *range(81, 86))}
OF_THE_HOST = {"HN-24", "HN-28"}  # what a host sees of this package


@pytest.mark.parametrize("item", sorted(OWN | OF_THE_HOST))
def test_each_item_is_a_test(item: str) -> None:
    marked = {
        number
        for path in Path(__file__).parent.glob("test_*.py")
        for number in NUMBERED.findall(path.read_text("utf-8"))
    }

    assert item in marked
    assert marked <= OWN | OF_THE_HOST
