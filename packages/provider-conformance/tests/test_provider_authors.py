"""The page for authors of providers: its examples run as they stand, in a project of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import patchouli.provider_conformance
import pytest

PAGE = Path(__file__).parents[3] / "docs" / "provider-authors.md"
EXAMPLES: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

SHELF = (Path(__file__).parent / "shelf.py").read_text("utf-8")
FAULT = """

_Shelf = ShelfProvider


class ShelfProvider(_Shelf):
    async def commit(self, commit):
        from dataclasses import replace
        return await super().commit(replace(commit, head_versions=commit.head_versions[:1]))
"""
# The store claims five of ten; whoever starts to claim more has to touch this line.
LEFT_OUT = {
    "work_units",
    "monotonic_reads",
    "read_your_writes",
    "linearizable_reads",
    "compaction on demand",
}


def run(folder: Path, *, shelf: str, examples: list[str]) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers -q\n", "utf-8")
    (folder / "shelf.py").write_text(shelf, "utf-8")
    for number, example in enumerate(examples):
        (folder / f"test_example_{number}.py").write_text(example, "utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-rs", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(folder), "PATCHOULI_MACHINE_EXAMPLES": "3"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_examples_pass_for_a_store_that_keeps_its_promises(tmp_path: Path) -> None:
    code, output = run(tmp_path, shelf=SHELF, examples=EXAMPLES)

    assert code == 0, output
    passed = re.search(r"^(\d+) passed, (\d+) skipped", output, re.MULTILINE)
    assert passed is not None, output
    assert int(passed[1]) > 200, output
    left_out = re.findall(r"^SKIPPED .*not offered: (.*?)(?:;.*)?$", output, re.MULTILINE)
    assert {claim for claims in left_out for claim in claims.split(", ")} == LEFT_OUT


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_examples_fail_readably_for_a_store_that_does_not(tmp_path: Path) -> None:
    code, output = run(tmp_path, shelf=SHELF + FAULT, examples=EXAMPLES[1:2])

    assert code == 1, output
    assert "test_heads_come_back_ascending_whatever_the_order_of_the_commit" in output
    assert "At index 0 diff: 'm' != '10'" in output  # the assertion was rewritten


def test_the_page_names_every_class_of_the_suite() -> None:
    page = PAGE.read_text("utf-8")
    classes = [n for n in patchouli.provider_conformance.__all__ if n.endswith("Conformance")]

    assert len(classes) > 20
    assert [name for name in classes if f"`{name}`" not in page] == []
