"""An echo server on the daemon's transport: the ceiling of what any service could answer."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment] -- a socket
        self._received = b""

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        if received.endswith(b"\n"):
            self._transport.write(received)
            received = b""
        self._received = received


async def _serve(socket: Path, is_ready: multiprocessing.synchronize.Event) -> None:
    server = await asyncio.get_running_loop().create_unix_server(_Echo, str(socket))
    is_ready.set()
    await server.serve_forever()


def _work(socket: Path, is_ready: multiprocessing.synchronize.Event) -> None:
    uvloop.run(_serve(socket, is_ready))


@contextmanager
def server(folder: Path) -> Iterator[Path]:
    """Run an echo server in a process of its own; yield its socket."""
    socket = folder / "echo.sock"
    context = multiprocessing.get_context("fork")
    is_ready = context.Event()
    process = context.Process(target=_work, args=(socket, is_ready), daemon=True)
    process.start()
    if not is_ready.wait(10):
        raise RuntimeError("the echo server did not start")
    try:
        yield socket
    finally:
        process.terminate()
        process.join()
