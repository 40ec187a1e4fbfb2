"""`docs/operations.md` is true: it names every bound with its default, unit and rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from patchouli.server.settings import Setting, resolve

PAGE = (Path(__file__).resolve().parents[2] / "docs/operations.md").read_text(encoding="utf-8")
ROWS = resolve({}).rows()


@pytest.mark.parametrize("row", [row for row in ROWS if row.unit], ids=lambda row: row.name)
def test_a_bound_stands_on_the_page(row: Setting) -> None:
    name = f"`{row.name}` *" if row.source == "fixed" else f"`{row.name}`"
    value = f"{row.value:,}".replace(",", " ")

    assert f"| {name} | {value} | {row.unit} | {row.overflow} |\n" in PAGE


@pytest.mark.parametrize("row", [row for row in ROWS if not row.unit], ids=lambda row: row.name)
def test_a_path_or_name_stands_on_the_page_as_its_variable(row: Setting) -> None:
    assert f"PATCHOULI_{row.name.upper()}" in PAGE
