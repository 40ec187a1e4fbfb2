"""One blocking connection, for what depends on replies and is timed request by request."""

from __future__ import annotations

import json
import socket
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.values import HANDSHAKE


class Peer:
    """A connection after its handshake."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self.ask(HANDSHAKE)

    def ask(self, line: bytes) -> bytes:
        """Return the reply line to a request line."""
        self._socket.sendall(line)
        chunks = [self._socket.recv(1 << 20)]
        while not chunks[-1].endswith(b"\n"):
            chunks.append(self._socket.recv(1 << 20))
            if not chunks[-1]:
                raise ConnectionError("the server closed the connection")
        return b"".join(chunks)

    def result(self, line: bytes) -> dict[str, object]:
        """Return `result.data` of the reply, which must be a success."""
        reply = json.loads(self.ask(line))
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["result"]["data"]

    def results(self, lines: list[bytes]) -> None:
        """Send many requests at once and take their replies, all of which must be successes."""
        self._socket.sendall(b"".join(lines))
        rest, count = b"", 0
        while count < len(lines):
            received = self._socket.recv(1 << 20)
            if not received:
                raise ConnectionError("the server closed the connection")
            *whole, rest = (rest + received).split(b"\n")
            for reply in whole:
                if b'"result"' not in reply:
                    raise RuntimeError(reply)
            count += len(whole)

    def version(self, line: bytes) -> str:
        """Return the version that a mutation was answered with."""
        return self.result(line)["entity"]["version"]  # type: ignore[index] -- the shape of the answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()


def timed(ask: Callable[[bytes], object], lines: Iterable[bytes]) -> list[float]:
    """Return the milliseconds that each request took."""
    times: list[float] = []
    for line in lines:
        started = time.perf_counter()
        ask(line)
        times.append((time.perf_counter() - started) * 1000)
    return times


def median(times: Iterable[float]) -> float:
    return statistics.median(times)
