"""However a stream of bytes is cut into reads, the answers are the same."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from patchouli.protocol import HANDSHAKE, STATUS
from patchouli.provider import SystemClock
from patchouli.server.connection import Connection
from patchouli.server.dispatch import Dispatcher, Operation
from patchouli.server.encoding import data_json
from patchouli.server.logs import Log
from patchouli.server.session import Session
from patchouli.server.settings import Limits
from patchouli.server.subscriptions import SubscriptionSet
from patchouli.server.work import Work

LIMIT = 200

STREAMS = st.lists(
    st.one_of(
        st.builds(
            lambda number, slow: json.dumps(
                {
                    "jsonrpc": "2.0",
                    "id": number,
                    "method": STATUS,
                    "params": {"meta": {"slow": slow}, "data": {}},
                }
            ).encode(),
            st.integers(0, 999),
            st.booleans(),
        ),
        st.sampled_from([b"", b" ", b"\r", b"rubbish", b"[]", b"{}", b"\xff", b"x" * (LIMIT + 1)]),
        st.just(b"y" * (3 * LIMIT)),
    ),
    max_size=12,
)


def expected(line: bytes) -> list[Any]:
    """Return the id and the code of the answer to a line, if it is answered."""
    if not line.strip():
        return []
    if len(line) > LIMIT:
        return [(None, -32600)]
    if line in {b"rubbish", b"\xff"}:
        return [(None, -32700)]
    if line in {b"[]", b"{}"}:
        return [(None, -32600)]
    return [(json.loads(line)["id"], None)]


class Wire:
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = asyncio.Event()
        self.reading.set()
        self.closed = asyncio.Event()

    def set_write_buffer_limits(self, **_: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        assert self.reading.is_set()
        self.reading.clear()

    def resume_reading(self) -> None:
        assert not self.reading.is_set()
        self.reading.set()

    def is_closing(self) -> bool:
        return self.closed.is_set()

    def close(self) -> None:
        self.closed.set()


async def status(_: Session, params: Any, __: int | None) -> bytes:
    if params.meta["slow"]:
        await asyncio.sleep(0)
    return data_json({})


async def answers(chunks: list[bytes], *, max_in_flight: int) -> bytes:
    work = Work()
    dispatcher = Dispatcher(
        {HANDSHAKE: Operation(call=status), STATUS: Operation(call=status, is_immediate=True)},
        clock=SystemClock(),
        log=Log(),
        max_response_bytes=1000,
    )
    connection = Connection(
        dispatcher,
        limits=Limits(max_request_bytes=LIMIT, max_in_flight=max_in_flight),
        work=work,
        now=0.0,
        on_lost=lambda _, __: None,
    )
    connection.session = Session(
        SubscriptionSet(connection, work=work, log=Log(), limit=1, boundary_ms=1)
    )
    connection.session.capabilities = frozenset()
    wire: Any = Wire()
    connection.connection_made(wire)
    for chunk in chunks:
        await asyncio.wait_for(wire.reading.wait(), 5)
        connection.data_received(chunk)
    connection.eof_received()
    await asyncio.wait_for(wire.closed.wait(), 5)
    return wire.written


@settings(max_examples=60, deadline=None)
@given(STREAMS, st.sampled_from([b"", b"\n"]), st.data(), st.sampled_from([1, 2, 32]))
def test_answers_do_not_depend_on_the_reads(
    lines: list[bytes], end: bytes, data: st.DataObject, max_in_flight: int
) -> None:
    stream = b"\n".join(lines) + end
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    bounds = [0, *cuts, len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(bounds) if a < b]

    written = asyncio.run(answers(chunks, max_in_flight=max_in_flight))

    got = [json.loads(line) for line in written.split(b"\n")[:-1]]
    assert [(line["id"], line.get("error", {}).get("code")) for line in got] == [
        answer for line in lines for answer in expected(line)
    ]
    assert written == b"" or written.endswith(b"\n")
