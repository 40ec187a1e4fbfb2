"""The page of invariants names modules and tests that exist, and code cites numbers it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/invariants.md").read_text("utf-8")
NUMBERS = re.findall(r"^\| (I\d+) \|", PAGE, re.MULTILINE)
TESTS = sorted(set(re.findall(r"`([a-z_/.-]+\.py)::(\w+)`", PAGE)))
MODULES = sorted(set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", PAGE)))
CITED = re.compile(r'check\(\s*"(I\d+) ')


def test_the_numbers_go_on_without_a_gap() -> None:
    assert [f"I{number}" for number in range(1, len(NUMBERS) + 1)] == NUMBERS


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (ROOT / file).read_text("utf-8")


@pytest.mark.parametrize("name", MODULES)
def test_a_named_module_exists(name: str) -> None:
    assert list(ROOT.glob(f"packages/*/src/patchouli/{name}"))


def test_every_row_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| I\d+ \|", line)]

    assert [row for row in rows if ".py::test_" not in row] == []


def test_code_checks_invariants_of_the_page() -> None:
    cited = {
        number
        for path in ROOT.glob("packages/*/src/patchouli/**/*.py")
        for number in CITED.findall(path.read_text("utf-8"))
    }

    assert cited
    assert cited <= set(NUMBERS)
