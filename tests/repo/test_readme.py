"""The examples of the root README run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patchouli.server.testing import DaemonProcess

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


@pytest.mark.slow
def test_the_python_example_talks_to_a_daemon(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)

    with DaemonProcess(tmp_path / "home") as daemon:
        answer = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PATCHOULI_HOME": str(daemon.home)},
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )

    assert answer.stdout == (
        "{'jsonrpc': '2.0', 'id': 1, 'result': {'meta': {}, 'data': {'hits': []}}}\n"
    )


def test_every_document_that_is_linked_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)

    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_every_package_is_listed() -> None:
    listed = re.findall(r"\[`patchouli-([a-z-]+)`\]\(packages/\1\)", README)

    assert sorted(listed) == sorted(path.parent.name for path in ROOT.glob("packages/*/README.md"))
