"""Starts a daemon and leaves it alone.

It gets a session of its own and no streams of ours; it is not waited for and never killed. Several
processes may start one at the same time: the lock of the daemon lets one of them win, the others
exit, and every client connects to the winner. So the end of the process that was started here says
nothing by itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from patchouli.storage_client.configuration import DEFAULT_COMMAND
from patchouli.storage_client.errors import DaemonStartError

if TYPE_CHECKING:
    from patchouli.storage_client.configuration import ClientConfig


class _Detached(subprocess.Popen[bytes]):
    """A process whose end nobody waits for, which `Popen` would complain of."""

    def __del__(self) -> None:
        if getattr(self, "pid", None):  # else it has never been one
            self.poll()


# Kept so that those that have ended can be taken out of the table of processes.
_started: Final[list[_Detached]] = []


class Launched:
    """A daemon that was started here."""

    def __init__(self, command: tuple[str, ...], process: _Detached) -> None:
        self.command: Final = command
        self._process: Final = process

    @property
    def exit_code(self) -> int | None:
        """How the process has ended, None while it runs."""
        return self._process.poll()


def launch(config: ClientConfig) -> Launched:
    """Start a daemon with the places of `config`.

    Raises:
        DaemonStartError: The command cannot be run.
    """
    _started[:] = [process for process in _started if process.poll() is None]
    command = (
        _executable(config.command),
        "serve",
        "--endpoint",
        config.endpoint,
        "--artifacts",
        config.artifact_root_path,
        "--providers",
        config.provider_config_path,
        "--config",
        config.backend_config_path,
    )
    try:
        process = _Detached(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            creationflags=getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except (OSError, ValueError) as error:
        problem = (getattr(error, "strerror", None) or str(error)).lower()
        if isinstance(error, FileNotFoundError):
            problem += "; install patchouli-server, name the `command`, or run a daemon yourself"
        raise DaemonStartError(config.command, problem) from error
    _started.append(process)
    return Launched(command, process)


def _executable(command: str) -> str:
    """Return what to run: an environment that is not active has its daemon beside its Python."""
    if command == DEFAULT_COMMAND and shutil.which(command) is None:
        beside = Path(sys.executable).with_name(command)
        if beside.exists():
            return str(beside)
    return command
