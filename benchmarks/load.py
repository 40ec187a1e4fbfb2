"""A lean load client: many connections, several processes, raw protocols, prepared requests.

Every connection has one request under way; its latency is from the write to the last byte of the
reply. Requests are made before the clock starts wherever they do not depend on replies. All
processes connect and prepare, wait for each other, and start together.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from array import array
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import uvloop

Talk = Generator[bytes, bytes, None] | Iterator[bytes]
"""Requests of one connection, in order; `send` may give it the reply to the last one."""


class Wire(Protocol):
    """What a transport's protocol needs: how a connection begins and where a reply ends."""

    def opening(self) -> list[bytes]:
        """Requests that precede the measured ones."""
        ...

    def is_complete(self, received: bytes) -> bool:
        """Whether `received` ends a reply."""
        ...


class Lines:
    """One reply a line."""

    def __init__(self, *opening: bytes) -> None:
        self._opening = list(opening)

    def opening(self) -> list[bytes]:
        return self._opening

    def is_complete(self, received: bytes) -> bool:
        return received.endswith(b"\n")


@dataclass(frozen=True)
class Load:
    """One measured run: `talk(connection_number)` yields the requests of a connection."""

    socket: Path
    wire: Wire
    connections: int
    talk: Callable[[int], Talk]
    processes: int = 2
    needs_replies: bool = False


@dataclass(frozen=True)
class Figures:
    """What a run measured: requests a second over all connections, latencies in milliseconds."""

    requests: int
    seconds: float
    median_ms: float
    p99_ms: float
    max_ms: float

    @property
    def rate(self) -> float:
        return self.requests / self.seconds


class _Peer(asyncio.Protocol):
    def __init__(self, wire: Wire, talk: Talk, *, needs_replies: bool) -> None:
        self._wire = wire
        self._opening = iter(wire.opening())
        self._talk = talk
        self._needs_replies = needs_replies
        self._received = b""
        self._sent_at = 0.0
        self._is_measuring = False
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self.latencies = array("d")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment] -- a socket
        self._open()

    def _open(self) -> None:
        request = next(self._opening, None)
        if request is None:
            self.ready.set_result(None)
        else:
            self._transport.write(request)

    def start(self) -> None:
        self._is_measuring = True
        self._send(next(self._talk, None))

    def _send(self, request: bytes | None) -> None:
        if request is None:
            self.done.set_result(None)
            return
        self._sent_at = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received = received = self._received + data if self._received else data
        if not self._wire.is_complete(received):
            return
        self._received = b""
        if not self._is_measuring:
            self._open()
            return
        self.latencies.append(time.perf_counter() - self._sent_at)
        try:
            # A generator when replies are needed, and then it has send.
            request = self._talk.send(received) if self._needs_replies else next(self._talk)  # type: ignore[attr-defined] -- see above
        except StopIteration:
            request = None
        except Exception as error:
            self.done.set_exception(error)
            return
        self._send(request)

    def connection_lost(self, exc: Exception | None) -> None:
        for waiter in (self.ready, self.done):
            if not waiter.done():
                waiter.set_exception(ConnectionError(f"the server closed the connection: {exc}"))


async def _drive(load: Load, numbers: range, parent: Connection) -> None:
    loop = asyncio.get_running_loop()
    peers: list[_Peer] = []
    for number in numbers:
        talk = load.talk(number)
        if not load.needs_replies:
            talk = iter(list(talk))  # made before the clock starts
        _, peer = await loop.create_unix_connection(
            lambda talk=talk: _Peer(load.wire, talk, needs_replies=load.needs_replies),
            str(load.socket),
        )
        peers.append(peer)
    await asyncio.gather(*(peer.ready for peer in peers))
    parent.send("ready")
    parent.recv()
    started = time.perf_counter()
    for peer in peers:
        peer.start()
    await asyncio.gather(*(peer.done for peer in peers))
    elapsed = time.perf_counter() - started
    latencies = array("d")
    for peer in peers:
        latencies.extend(peer.latencies)
    parent.send((elapsed, latencies.tobytes()))


def _work(load: Load, numbers: range, parent: Connection) -> None:
    uvloop.run(_drive(load, numbers, parent))


def run(load: Load) -> Figures:
    """Run `load` to its end and return what it measured."""
    processes = min(load.processes, load.connections)
    context = multiprocessing.get_context("fork")
    workers: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
    for index in range(processes):
        ours, theirs = context.Pipe()
        numbers = range(index, load.connections, processes)
        process = context.Process(target=_work, args=(load, numbers, theirs))
        process.start()
        theirs.close()
        workers.append((process, ours))
    try:
        for _, pipe in workers:
            pipe.recv()
        for _, pipe in workers:
            pipe.send("go")
        results = [pipe.recv() for _, pipe in workers]
    finally:
        for process, _ in workers:
            process.join(30)
            if process.is_alive():
                process.kill()
    latencies = array("d")
    for _, data in results:
        latencies.frombytes(data)
    return figures(latencies, seconds=max(elapsed for elapsed, _ in results))


def figures(latencies: array[float], *, seconds: float) -> Figures:
    ordered = sorted(latencies)
    return Figures(
        requests=len(ordered),
        seconds=seconds,
        median_ms=ordered[len(ordered) // 2] * 1000,
        p99_ms=ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1000,
        max_ms=ordered[-1] * 1000,
    )
