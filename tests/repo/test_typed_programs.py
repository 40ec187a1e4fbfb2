"""A type checker has nothing to say about the programs of the pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def programs(page: str) -> list[str]:
    """Return the programs of a page as they stand."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)


def sources() -> list[str]:
    """Return all programs, each together with what its page says that it goes on from."""
    beginning, *rest = programs("docs/use-the-client.md")
    return [
        *programs("README.md"),
        *programs("packages/harness/README.md"),
        *programs("packages/memory-service/README.md"),
        *programs("packages/storage-client/README.md"),
        *(beginning + program for program in rest),
        "\n\n".join(programs("docs/write-a-memory-plugin.md")),
    ]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_programs_of_the_pages_are_typed(tmp_path: Path) -> None:
    for number, source in enumerate(sources()):
        (tmp_path / f"program{number}.py").write_text(source, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "include": ["*.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")

    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "basedpyright",
            "--project",
            tmp_path,
            "--pythonpath",
            sys.executable,
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "0 errors, 0 warnings, 0 notes")
