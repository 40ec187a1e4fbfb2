"""The page about the life of a request names modules that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/life-of-a-request.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"[a-z_/]+\.py", PAGE)))


@pytest.mark.parametrize("name", NAMED)
def test_a_named_module_exists(name: str) -> None:
    if name.startswith("packages/"):
        assert (ROOT / name).is_file()
    else:
        assert list(ROOT.glob(f"packages/*/src/patchouli/**/{name}"))


def test_the_page_names_the_main_path() -> None:
    assert {"backend/engine.py", "server/dispatch.py", "mutation/reconcile.py"} <= set(NAMED)
