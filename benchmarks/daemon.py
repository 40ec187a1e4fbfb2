"""The real daemon, started by its command on a home of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.values import HANDSHAKE

COMMAND = str(Path(sys.executable).with_name("patchouli-db"))


class Daemon:
    """A running daemon: its process, its socket and its home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.socket = home / "run" / "patchouli.sock"
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [COMMAND, "serve"],
            env=os.environ | {"PATCHOULI_HOME": str(home)},
            stderr=subprocess.PIPE,
        )
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if b"listening on" in line:
                self.socket = Path(line.decode().strip().partition("listening on ")[2])
                break
        else:
            raise RuntimeError("the daemon did not start")
        self.ready_seconds = time.perf_counter() - started

    def resident_kib(self) -> int:
        """Return the resident memory of the daemon."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(status.split("VmRSS:")[1].split()[0])

    def call(self, line: bytes) -> dict[str, object]:
        """Return the reply to one request on a connection of its own."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self.socket))
            stream = peer.makefile("rwb")
            for request in (HANDSHAKE, line):
                stream.write(request)
                stream.flush()
                reply = stream.readline()
        return json.loads(reply)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextmanager
def running(home: Path) -> Iterator[Daemon]:
    daemon = Daemon(home)
    try:
        yield daemon
    finally:
        daemon.stop()
