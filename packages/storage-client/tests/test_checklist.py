"""Every numbered item of the storage client's checklist is a test that names its number."""

from __future__ import annotations

import re
from pathlib import Path

MARK = re.compile(r'mark\.checklist\("MS-(\d+)"\)')
HERE = Path(__file__).parent
# What an item says of a plugin of the memory service is tested where both packages are at hand.
TOGETHER = HERE.parents[2] / "tests" / "memory"
ITEMS = {*range(59, 81), *range(86, 93)}
ITEMS_TOGETHER = {80, 86}


def marked_in(folder: Path) -> set[int]:
    return {
        int(number)
        for path in folder.glob("test_*.py")
        for number in MARK.findall(path.read_text("utf-8"))
    }


def test_no_item_is_missing_and_none_is_made_up() -> None:
    assert marked_in(HERE) == ITEMS - ITEMS_TOGETHER
    assert marked_in(TOGETHER) == ITEMS_TOGETHER
