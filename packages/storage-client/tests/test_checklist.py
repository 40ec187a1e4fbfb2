"""Every numbered item of the storage client's checklist is a test that names its number."""

from __future__ import annotations

import re
from pathlib import Path

MARK = re.compile(r'mark\.checklist\("MS-(\d+)"\)')
ITEMS = {*range(59, 81), *range(86, 93)}


def test_no_item_is_missing_and_none_is_made_up() -> None:
    marked = {
        int(number)
        for path in Path(__file__).parent.glob("test_*.py")
        for number in MARK.findall(path.read_text("utf-8"))
    }

    assert marked == ITEMS
