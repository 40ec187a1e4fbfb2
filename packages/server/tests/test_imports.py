"""What the commands load: times differ from machine to machine, the list of modules does not."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from patchouli.server.testing import DaemonProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts processes

LOADED = """
import atexit, sys
atexit.register(lambda: sys.stderr.write("loaded: " + " ".join(sys.modules)))
from patchouli.server.main import run
run()
"""
# What a command that only asks a daemon has no use for; each takes longer than the answer.
HEAVY = {
    "apsw",
    "asyncio",
    "concurrent.futures",
    "logging",
    "orjson",
    "patchouli.automerge",
    "patchouli.backend",
    "patchouli.protocol",
    "patchouli.provider",
    "patchouli.provider_sqlite",
    "pydantic",
    "pydantic_core",
    "rich",
    "structlog",
    "typing_extensions",
    "uvloop",
}
# What a daemon has no use for before something goes wrong, or before a client asks for it.
SELDOM = {"jsonschema", "patchouli.protocol.openrpc", "referencing", "rich", "structlog"}


@pytest.fixture
def daemon(home: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess(home) as daemon:
        yield daemon


def loaded_by(*arguments: str, home: Path) -> set[str]:
    with subprocess.Popen(
        [sys.executable, "-c", LOADED, *arguments],
        env={**os.environ, "PATCHOULI_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("Patchouli daemon"):
                process.terminate()
    assert process.returncode == 0, said
    return set(said.rpartition("loaded: ")[2].split())


@pytest.mark.parametrize("command", ["status", "checkpoint", "compact", "stop"])
def test_a_control_command_loads_little(daemon: DaemonProcess, home: Path, command: str) -> None:
    assert daemon.process.poll() is None

    assert loaded_by(command, home=home) & HEAVY == set()


def test_a_daemon_that_starts_well_loads_nothing_to_explain_failures(home: Path) -> None:
    assert loaded_by("serve", home=home) & SELDOM == set()
