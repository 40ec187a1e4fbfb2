"""The examples of the README run as they stand and print what it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```.*?```text\n(.*?)```", README, flags=re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) == README.count("```python") == 2


@pytest.mark.parametrize(("program", "output"), EXAMPLES)
def test_an_example_prints_what_the_readme_says(program: str, output: str) -> None:
    printed = io.StringIO()

    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})  # noqa: S102 - our own text

    assert printed.getvalue() == output
