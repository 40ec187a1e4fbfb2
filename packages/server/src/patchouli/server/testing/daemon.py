"""A real daemon in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from patchouli.server.settings import environment_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

READY_PREFIX: Final = "Patchouli daemon listening on "
END_SECONDS: Final = 30.0


class DaemonProcess:
    """`patchouli-db serve` of a home; entered, it is ready to be connected to.

    Leaving ends it with SIGTERM, and with SIGKILL if it has not ended after a while.
    """

    def __init__(
        self, home: Path, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Prepare a daemon of `home`; `options` are those of the command."""
        self.home: Final = home
        self.endpoint: Final = home / "run" / "patchouli.sock"
        self._options: Final = options
        self._environment: Final = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.output: Final[list[str]] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        if error is not None and self.output:
            error.add_note("the daemon said:\n" + "\n".join(self.output))

    @property
    def process(self) -> subprocess.Popen[str]:
        """The process, once it was started."""
        if self._process is None:
            raise RuntimeError("the daemon was not started")
        return self._process

    def start(self) -> None:
        """Start the process and wait for its ready line; `output` has the lines before it.

        Raises:
            RuntimeError: It ended instead.
        """
        self._process = subprocess.Popen(  # noqa: S603 -- our own command
            [sys.executable, "-m", "patchouli.server", "serve", *self._options],
            env={**environment_of(self.home, os.environ), **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None  # noqa: S101 -- a pipe, see above
        for line in self._process.stderr:
            if line.startswith(READY_PREFIX):
                return
            self.output.append(line.rstrip("\n"))
        code = self._finish()
        raise RuntimeError(f"the daemon ended with {code}: {' / '.join(self.output)}")

    def kill(self) -> None:
        """End the process as a crash would."""
        self.process.kill()
        self._finish()

    def end(self) -> int:
        """End the process in order and return its exit code."""
        process = self.process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
        return self._finish()

    def wait(self) -> int:
        """Wait until the process ends by itself and return its exit code."""
        self.process.wait(END_SECONDS)
        return self._finish()

    def _finish(self) -> int:
        process = self.process
        if process.stderr is not None and not process.stderr.closed:
            self.output.extend(line.rstrip("\n") for line in process.stderr)
            process.stderr.close()
        return process.wait()
