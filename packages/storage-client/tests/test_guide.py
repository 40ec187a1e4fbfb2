"""The code of the guide and of the README runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from patchouli.server.testing import DaemonProcess

PACKAGE = Path(__file__).parents[1]
GUIDE = (PACKAGE.parents[1] / "docs" / "use-the-client.md").read_text("utf-8")
README = (PACKAGE / "README.md").read_text("utf-8")
BEGINNING = "What is sent"
PRINTED = {
    "In a script": "True\n[]\nNOT_FOUND\n",
    "In a notebook": "0\n",
    "With asyncio": "active 1\nMira prefers the aisle.\n",
    "Changes": "8890\ncreated artifact\nunsubscribed\n",
    "Work units": "2\n",
    "In a harness": "True\n",
}


def programs(text: str) -> dict[str, str]:
    """Return the program of each section that has one."""
    found: dict[str, str] = {}
    for section in re.split(r"^#{1,2} ", text, flags=re.M)[1:]:
        title, _, body = section.partition("\n")
        _, is_there, rest = body.partition("```python\n")
        if is_there:
            found[title] = rest.partition("```")[0]
    return found


def run(program: str, daemon: DaemonProcess) -> str:
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "PATCHOULI_HOME": str(daemon.home)},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert ended.stderr == ""
    return ended.stdout


def test_every_program_of_the_guide_is_run() -> None:
    assert programs(GUIDE).keys() == {BEGINNING, *PRINTED}
    assert GUIDE.count("```python") == 1 + len(PRINTED)


@pytest.mark.slow
def test_the_guide_does_what_it_says(daemon: DaemonProcess) -> None:
    found = programs(GUIDE)
    beginning = found.pop(BEGINNING)

    for _ in range(2):
        printed = {name: run(beginning + program, daemon) for name, program in found.items()}

        # The handler of the changes runs when the change comes, before or after the download.
        printed["Changes"] = "".join(sorted(printed["Changes"].splitlines(keepends=True)))
        assert printed == PRINTED


@pytest.mark.slow
def test_the_readme_does_what_it_says(daemon: DaemonProcess) -> None:
    (program,) = programs(README).values()

    assert run(program, daemon) == "[]\n"


def test_every_public_error_is_in_the_guide() -> None:
    import patchouli.storage_client as package  # noqa: PLC0415 -- its names are looked at

    errors = [
        name
        for name in package.__all__
        if isinstance(found := getattr(package, name), type) and issubclass(found, Exception)
    ]

    assert [name for name in errors if name not in GUIDE and name != "ConfigurationError"] == []
