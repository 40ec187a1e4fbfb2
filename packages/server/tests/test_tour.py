from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow  # each starts processes

COMMAND = [sys.executable, "-m", "patchouli.server", "tour"]


def environment(folder: Path) -> dict[str, str]:
    # What a person has set for the own daemon must not reach the one of the tour.
    return {
        **os.environ,
        "TMPDIR": str(folder),
        "PATCHOULI_HOME": str(folder / "mine"),
        "PATCHOULI_ENDPOINT": str(folder / "mine.sock"),
        "PATCHOULI_CONFIG": str(folder / "mine.json"),
        "PATCHOULI_MAX_CONNECTIONS": "1",
    }


def test_the_tour_shows_everything_and_leaves_nothing(folder: Path) -> None:
    result = subprocess.run(
        COMMAND, env=environment(folder), capture_output=True, text=True, timeout=60, check=False
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    for said in (
        "Mira prefers quiet window seats on long flights and night trains.",
        "conflicted",
        "桜",
        "“hotel” was deleted",
        "with the second note both appeared together",
        "downloaded again, identical",
        "noticed the crash",
        "its socket is gone",
    ):
        assert said in result.stdout
    assert "\x1b" not in result.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_tour_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    # A child inherits that a signal is ignored, as in a job of a shell without job control.
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler)
    process = subprocess.Popen(
        COMMAND, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "ready" in line:
            break
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "Interrupted" in rest
    assert errors == ""
    assert list(folder.iterdir()) == []


def test_a_step_that_does_not_show_what_it_says_fails_the_tour(folder: Path) -> None:
    code = (
        "import sys; from patchouli.server import tour, tour_agent;"
        "tour_agent.Agent.read = lambda *_: {'state': 'deleted', 'variants': []};"
        "sys.exit(tour.take_tour())"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert result.returncode == 1
    assert "This step failed: the new entity is not active" in result.stdout
    assert list(folder.iterdir()) == []
