"""What one request costs the daemon in CPU time, socket excluded, and which part of it goes where.

Run it by `python -m benchmarks.request_overhead`.

The real daemon, engine and store are opened in this process. Bytes go into the protocol of one
connection as the event loop would hand them over, and its answers into a transport that drops them.
CPU time is counted, and of many short rounds the best is printed: other work on the machine, and
the index that catches up, only ever add.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from patchouli.protocol import (
    CREATE,
    METHODS,
    READ,
    LineDecoder,
    ReadParams,
    parse_json,
    read_request,
)
from patchouli.provider import Consistency, EntityKey, ReadPlan, ScopeText
from patchouli.server.assemble import new_event_loop, open_daemon
from patchouli.server.encoding import read_json, result_line
from patchouli.server.lifecycle import Stop
from patchouli.server.logs import Log
from patchouli.server.settings import resolve

from benchmarks.values import HANDSHAKE, SCOPE, SCOPE_TEXT, value_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS, PER_ROUND = 600, 25
ENTITIES = 200
AT_ONCE = 16


class Nowhere(asyncio.Transport):
    """A transport that drops what is written and counts it."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        super().__init__({"socket": self.ours})
        self.writes = 0
        self.bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        self.bytes += len(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def line(method: str, data: object) -> bytes:
    request = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": method,
        "params": {"meta": SCOPE, "data": data},
    }
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def timed(call: Callable[[], object], per_call: int = 1) -> float:
    """Return the microseconds of CPU of one call in the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(PER_ROUND):
            call()
        best = min(best, time.thread_time() - start)
    return best / PER_ROUND / per_call * 1e6


def driven(call: Callable[[], Awaitable[object]]) -> Callable[[], object]:
    """Return a call that runs a coroutine which never has to wait."""

    def run() -> object:
        try:
            call().__await__().send(None)
        except StopIteration as ended:
            return ended.value
        raise RuntimeError("it waited")

    return run


def show(name: str, microseconds: float) -> None:
    print(f"  {name:<34}{microseconds:6.2f}")


async def measure(home: Path) -> None:
    settings = resolve(os.environ, home=home)
    async with open_daemon(settings, stop=Stop(), log=Log("info")) as daemon:
        serving = asyncio.ensure_future(daemon.serve(lambda: None))
        transport = Nowhere()
        connection = daemon._admit()
        connection.connection_made(transport)
        connection.data_received(HANDSHAKE)
        for number in range(ENTITIES):
            data = {"type": "knowledge", "id": f"k{number}", "value": value_of(number)}
            before = transport.writes
            connection.data_received(line(CREATE, data))
            while transport.writes == before:  # noqa: ASYNC110 -- the transport tells nobody
                await asyncio.sleep(0.001)
        lines = [
            line(READ, {"ref": {"type": "knowledge", "id": f"k{number}"}})
            for number in range(ENTITIES)
        ]
        several = b"".join(lines[:AT_ONCE])
        await asyncio.sleep(1)  # for the index

        one = lines[11]
        text = one[:-1]
        decoder = LineDecoder()
        request = read_request(text)
        method = METHODS[READ]
        params = method.parse_params(request.params)
        assert isinstance(params, ReadParams)
        engine = daemon._engine
        read = driven(lambda: engine.read(params))
        found = read()
        session = connection.session
        dispatcher = daemon.dispatcher
        plan = ReadPlan(
            key=EntityKey(ScopeText(SCOPE_TEXT), "knowledge", "k11"), consistency=Consistency()
        )

        print(f"microseconds of CPU, best of {ROUNDS} rounds")
        show("a read, alone in its packet", timed(lambda: connection.data_received(one)))
        show(
            f"a read among {AT_ONCE} in a packet",
            timed(lambda: connection.data_received(several), AT_ONCE),
        )
        print("of it")
        show("cutting lines", timed(lambda: decoder.feed(one)))
        show("JSON", timed(lambda: parse_json(text)))
        show("JSON and envelope", timed(lambda: read_request(text)))
        show("params", timed(lambda: method.parse_params(request.params)))
        show("engine and store", timed(read))
        show("store", timed(driven(lambda: engine._provider.read(plan))))
        show("encoding", timed(lambda: result_line(7, read_json(found))))
        show(
            "dispatch, all of these",
            timed(lambda: driven(lambda: dispatcher.begin(session, text)[0])()),
        )
        serving.cancel()


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(measure(Path(folder) / "home"))


if __name__ == "__main__":
    main()
