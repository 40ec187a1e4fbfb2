"""Subscribers that count what they are sent."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from benchmarks.values import HANDSHAKE, request

EVENT = b'"patchouli.changes.event@1"'


class _Subscriber(asyncio.Protocol):
    def __init__(self, expected: int) -> None:
        self._left = expected
        self._lines = 0
        self._rest = b""
        loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(HANDSHAKE + request("changes.subscribe", "{}"))  # type: ignore[attr-defined] -- a socket

    def data_received(self, data: bytes) -> None:
        received = self._rest + data
        self._left -= received.count(EVENT)
        self._rest = received[1 - len(EVENT) :]  # too short to hold a whole one
        if not self.subscribed.done():
            self._lines += data.count(b"\n")
            if self._lines >= 2:
                self.subscribed.set_result(None)
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the server closed the subscriber: {exc}"))


async def _count(socket: Path, subscribers: int, expected: int, parent: Connection) -> None:
    loop = asyncio.get_running_loop()
    peers: list[_Subscriber] = []
    for _ in range(subscribers):
        _, peer = await loop.create_unix_connection(lambda: _Subscriber(expected), str(socket))
        peers.append(peer)
    await asyncio.gather(*(peer.subscribed for peer in peers))
    parent.send("ready")
    await asyncio.gather(*(peer.done for peer in peers))
    parent.send(time.perf_counter())


class Subscribers:
    """A process with `subscribers` connections that each wait for `expected` events."""

    def __init__(self, socket: Path, *, subscribers: int, expected: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=lambda: uvloop.run(_count(socket, subscribers, expected, theirs))
        )
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def finished_at(self) -> float:
        """Return when the last event arrived, by this machine's monotonic clock."""
        moment = self._pipe.recv()
        self._process.join()
        return moment
