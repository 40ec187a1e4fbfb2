"""Where the tour takes place: the daemon with its home, and who tells what happens."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Final

from patchouli.server.settings import default_endpoint, environment_of
from patchouli.server.tour_agent import Agent
from rich.text import Text

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

CALL_SECONDS: Final = 10.0
START_SECONDS: Final = 20.0
TEXT_COLUMNS: Final = 100  # longer lines are hard to read, however wide the terminal is
READY_PREFIX: Final = "Patchouli daemon listening on "


class TourFailedError(Exception):
    """Raised when a step did not show what it says."""


class Narrator:
    """Tells the tour, with colours where there are some and as plain text elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console: Final = console
        self._count = 0

    def title(self, text: str, below: str) -> None:
        """Open the tour."""
        self._console.print(Text(text, "bold magenta"))
        self._console.print(Text(below, "dim"))

    def step(self, title: str, text: str) -> None:
        """Begin a step: what it shows, and why somebody would want it."""
        self._count += 1
        self._console.print()
        self._console.print(Text.assemble((f"{self._count}. ", "magenta"), (title, "bold")))
        for line in textwrap.wrap(text, min(self._console.width, TEXT_COLUMNS) - 3):
            self._console.print(Text(f"   {line}", "dim"))

    def happened(self, who: str, what: str) -> None:
        """Tell what somebody did."""
        self._console.print(Text.assemble("   ", (f"{who:<12}", "cyan"), what))

    def seen(self, what: str) -> None:
        """Tell what was looked at and found to be so."""
        self._console.print(Text.assemble("   ", ("ok          ", "green"), what))

    def end(self, text: str) -> None:
        """Close the tour."""
        self._console.print()
        self._console.print(Text(text, "bold"))

    def fail(self, problem: str, log: str) -> None:
        """Tell what was not as it should be."""
        self._console.print()
        self._console.print(Text.assemble(("This step failed: ", "bold red"), problem))
        if log:
            self._console.print(Text(f"The daemon said:\n{log}", "dim"))


class TourDaemon:
    """The daemon of the tour, and the home that both of them use."""

    def __init__(self, home: Path) -> None:
        self.home: Final = home
        self.endpoint: Final = default_endpoint(home)
        self._process: subprocess.Popen[str] | None = None
        self._lines: list[str] = []

    def start(self) -> None:
        """Start the process and wait for its ready line."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "patchouli.server", "serve"],
            env=environment_of(self.home, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            # Ctrl-C is for the tour, which then ends the daemon in order.
            start_new_session=True,
        )
        assert self._process.stderr is not None  # noqa: S101 -- a pipe, see above
        for line in self._process.stderr:
            if line.startswith(READY_PREFIX):
                return
            self._lines.append(line)
        raise TourFailedError("the daemon did not start")

    def kill(self) -> None:
        """End the process without any warning, like a crash."""
        if self._process is not None:
            self._process.kill()
            self._finish(self._process)

    def end(self) -> int:
        """End the process in order and return its exit code."""
        if self._process is None:
            return 0
        process = self._process
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return self._finish(process)

    def remove(self) -> None:
        """End the process, if it still runs, and remove the home."""
        # A second Ctrl-C must not leave anything behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.end()
        finally:
            shutil.rmtree(self.home, ignore_errors=True)

    def log(self) -> str:
        """Return what the daemon has said on standard error, once it has ended."""
        self.end()
        return "".join(self._lines)

    def call(self, capabilities: tuple[str, ...] = ()) -> Agent:
        """Return a new connection, as one agent has it."""
        return Agent(self.endpoint, timeout_seconds=CALL_SECONDS, capabilities=capabilities)

    def _finish(self, process: subprocess.Popen[str]) -> int:
        code = process.wait()
        self._process = None
        if process.stderr is not None:
            self._lines.extend(process.stderr)
            process.stderr.close()
        return code
