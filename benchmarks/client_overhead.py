"""What the storage client adds to a round trip: `python -m benchmarks.client_overhead`.

Against the real daemon, on one connection each and in the same run, by turns:

    socket          a blocking socket; a prepared line goes, the end of the answer is sought
    socket, JSON    the same with the JSON of both made and read, as without the client
    transport       prepared lines over an asyncio transport: what the event loop takes
    client, façade  the same request as a method; the façade adds two changes of thread

What is compared are whole round trips, the time of the daemon included; of each kind the bound of
the quickest tenth, because other work on the machine only ever adds. The client is to stay below
1.5 times the socket with JSON; the exit code says whether it did. Ratios to the socket and to the
transport are printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop
from patchouli.storage_client import ClientConfig, StorageClient, SyncStorageClient

from benchmarks.daemon import Daemon, running
from benchmarks.peer import Peer
from benchmarks.values import HANDSHAKE, SCOPE, value_of

if TYPE_CHECKING:
    from patchouli.storage_client import Params

BOUND = 1.5
ROUNDS = 150
PER_ROUND = 30


class Transport(asyncio.Protocol):
    """Sends lines and wakes whoever waits for the answer; what any client has to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"\n"):
            received, self._received = self._received, b""
            self._answer.set_result(received)

    async def ask(self, line: bytes) -> bytes:
        self._answer = self._loop.create_future()
        self._transport.write(line)
        return await self._answer

    def close(self) -> None:
        self._transport.close()


def requests() -> dict[str, tuple[str, Params]]:
    """Return method and parameters by what they show."""
    ref = {"type": "knowledge", "id": "k7"}
    return {
        "status, the smallest answer": (
            "patchouli.control.status@1",
            {"meta": {}, "data": {}},
        ),
        "read of 1 KB": (
            "patchouli.entity.read@1",
            {"meta": dict(SCOPE), "data": {"ref": ref}},
        ),
        "page of ten": (
            "patchouli.entity.retrieve@1",
            {"meta": dict(SCOPE), "data": {"query": "{}", "limit": 10}},
        ),
    }


def line(method: str, params: Params) -> bytes:
    request = {"jsonrpc": "2.0", "id": 9, "method": method, "params": params}
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


async def timed(call: Callable[[], Awaitable[object]]) -> list[float]:
    times: list[float] = []
    for _ in range(PER_ROUND):
        begun = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begun)
    return times


def timed_blocking(call: Callable[[], object]) -> list[float]:
    times: list[float] = []
    for _ in range(PER_ROUND):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return times


def show(name: str, found: dict[str, float]) -> float:
    print(name)
    for kind, seconds in found.items():
        ratios = (seconds / found[other] for other in ("socket", "socket, JSON", "transport"))
        print(f"  {kind:<16}{seconds * 1e6:8.1f} us" + "".join(f"{ratio:7.2f}" for ratio in ratios))
    return found["client"] / found["socket, JSON"]


async def measure(daemon: Daemon) -> float:
    config = ClientConfig(endpoint=str(daemon.socket), auto_start=False)
    loop = asyncio.get_running_loop()
    _, transport = await loop.create_unix_connection(Transport, str(daemon.socket))
    await transport.ask(HANDSHAKE)
    print(f"{'times the':>38}{'socket, with JSON, transport':>30}")
    with Peer(daemon.socket) as peer, SyncStorageClient(config) as facade:
        async with StorageClient(config) as client:
            for number in range(50):
                data = {"type": "knowledge", "id": f"k{number}", "value": value_of(number)}
                await client.create({"meta": dict(SCOPE), "data": data})
            ratios = [
                show(name, await compared(request, peer, transport, client, facade))
                for name, request in requests().items()
            ]
    transport.close()
    return max(ratios)


async def compared(
    request: tuple[str, Params],
    peer: Peer,
    transport: Transport,
    client: StorageClient,
    facade: SyncStorageClient,
) -> dict[str, float]:
    method, params = request
    prepared = line(method, params)
    called = method.split(".")[2].partition("@")[0]
    given = () if called == "status" else (params,)
    of_client, of_facade = getattr(client, called), getattr(facade, called)
    times: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        times["socket"] += timed_blocking(lambda: peer.ask(prepared))
        times["socket, JSON"] += timed_blocking(lambda: json.loads(peer.ask(line(method, params))))
        times["transport"] += await timed(lambda: transport.ask(prepared))
        times["client"] += await timed(lambda: of_client(*given))
        times["façade"] += timed_blocking(lambda: of_facade(*given))
    return {kind: statistics.quantiles(found, n=10)[0] for kind, found in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uvloop", action="store_true", help="run the client on uvloop")
    new_loop = uvloop.new_event_loop if parser.parse_args().uvloop else asyncio.new_event_loop
    os.environ.pop("PATCHOULI_VERIFY", None)
    with (
        tempfile.TemporaryDirectory(prefix="pb-") as folder,
        running(Path(folder) / "home") as daemon,
        asyncio.Runner(loop_factory=new_loop) as runner,
    ):
        worst = runner.run(measure(daemon))
    print(f"client: at most {worst:.2f} times a socket with JSON; the bound is {BOUND}")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
