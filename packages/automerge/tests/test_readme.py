"""The examples of the README run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
JOIN, DOCUMENT = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_of_a_join_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(JOIN, "README.md", "exec"), {})  # noqa: S102 -- our own text

    printed = capsys.readouterr().out.strip()
    assert printed == '{"text":"green pear"}'
    assert f"This prints `{printed}`" in README


def test_the_example_of_documents_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(DOCUMENT, "README.md", "exec"), {})  # noqa: S102 -- our own text

    assert capsys.readouterr().out == '{"text":"green pear"} {"text":"red apple"}\n'
