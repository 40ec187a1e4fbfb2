"""The connection over a real socket, with operations whose course a test can steer."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import (
    CREATE,
    DELETE,
    HANDSHAKE,
    READ,
    RETRIEVE,
    SHUTDOWN,
    STATUS,
    UPDATE,
)
from patchouli.provider import StoreFullError, SystemClock
from patchouli.server.connection import Connection
from patchouli.server.dispatch import Dispatcher, Operation
from patchouli.server.encoding import data_json
from patchouli.server.listener import UnixEndpoint
from patchouli.server.logs import Log
from patchouli.server.session import Session
from patchouli.server.settings import Limits
from patchouli.server.subscriptions import SubscriptionSet
from patchouli.server.testing import Peer, memo, params, ref, revised
from patchouli.server.work import Work

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

RETRIEVAL = {"query": "{}"}


class Stage:
    """A server whose operations wait until the test lets them go, and which remembers them."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.started = asyncio.Condition()
        self.connections: list[Connection] = []
        self.lost = asyncio.Event()
        self.errors: list[Exception | None] = []
        self.work = Work()
        self.bulk = b"x"
        self.handed_over = 0
        self.hands_over = True
        self.trouble: Exception = ZeroDivisionError("secret words of a library")
        self.dispatcher = Dispatcher(
            {
                HANDSHAKE: Operation(call=self.handshake, is_immediate=True),
                STATUS: Operation(call=self.quick("status"), is_immediate=True),
                READ: Operation(call=self.quick("read"), is_immediate=True),
                CREATE: Operation(call=self.gated("create")),
                UPDATE: Operation(call=self.gated("update"), is_immediate=True),
                RETRIEVE: Operation(call=self.gated("retrieve"), is_overtakable=True),
                # In the place of a create: what may be under way several times.
                DELETE: Operation(call=self.counted, count_begun=lambda: self.handed_over),
                SHUTDOWN: Operation(call=self.broken),
            },
            clock=SystemClock(),
            log=Log(),
            max_response_bytes=limits.max_response_bytes,
        )

    async def handshake(self, session: Session, _: Any, __: int | None) -> bytes:
        session.capabilities = frozenset()
        return b"{}"

    def quick(self, name: str) -> Any:
        async def call(_: Session, __: Any, ___: int | None) -> bytes:
            self.begun.append(name)
            return data_json({"did": name, "bulk": self.bulk.decode()})

        return call

    def gated(self, kind: str) -> Any:
        async def call(_: Session, asked: Any, ___: int | None) -> bytes:
            name = f"{kind}{sum(b.startswith(kind) for b in self.begun) + 1}"
            self.begun.append(name)
            async with self.started:
                self.started.notify_all()
            await self.gates.setdefault(name, asyncio.Event()).wait()
            self.ended.append(name)
            return data_json({"did": name})

        return call

    async def counted(self, _: Session, asked: Any, __: int | None) -> bytes:
        name = f"run{len(self.begun) + 1}"
        self.begun.append(name)
        if asked.data.ref.id == "refused":
            return data_json({"did": f"{name} at once"})
        self.handed_over += self.hands_over
        await self.gates.setdefault(name, asyncio.Event()).wait()
        self.ended.append(name)
        return data_json({"did": name})

    async def broken(self, _: Session, __: Any, ___: int | None) -> bytes:
        raise self.trouble

    def open(self, *names: str) -> None:
        for name in names:
            self.gates.setdefault(name, asyncio.Event()).set()

    async def until_begun(self, name: str) -> None:
        async with self.started:
            await asyncio.wait_for(self.started.wait_for(lambda: name in self.begun), 5)

    def admit(self) -> Connection:
        def forget(_: Connection, error: Exception | None) -> None:
            self.errors.append(error)
            self.lost.set()

        connection = Connection(
            self.dispatcher, limits=self.limits, work=self.work, now=0.0, on_lost=forget
        )
        connection.session = Session(
            SubscriptionSet(connection, work=self.work, log=Log(), limit=1, boundary_ms=1)
        )
        self.connections.append(connection)
        return connection


@asynccontextmanager
async def acting(folder: Path, **limits: int) -> AsyncIterator[tuple[Stage, Peer]]:
    stage = Stage(replace(Limits(), **limits))
    endpoint = UnixEndpoint(str(folder / "s"), Log())
    endpoint.claim()
    await endpoint.listen(stage.admit)
    try:
        async with await Peer.connect(folder / "s") as peer:
            yield stage, peer
        await asyncio.wait_for(stage.lost.wait(), 5)
    finally:
        endpoint.close()
        endpoint.release()
        await stage.work.cancel()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until `condition` holds: nothing tells when a transport has filled up."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 -- see above
            await asyncio.sleep(0)


def did(response: dict[str, Any]) -> str:
    return response["result"]["data"]["did"]


@pytest.mark.clause("transport.order")
async def test_mutations_run_one_after_the_other_and_are_answered_in_order(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        for _ in range(3):
            peer.send(CREATE, params(memo("m")))
        await stage.until_begun("create1")
        assert stage.begun == ["create1"]

        stage.open("create1", "create2", "create3")

        assert [did(await peer.response()) for _ in range(3)] == ["create1", "create2", "create3"]


@pytest.mark.clause("transport.order")
async def test_a_run_is_under_way_together_and_answered_in_order(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        for name in ("a", "refused", "b", "c"):
            peer.send(DELETE, params(ref(name), base_versions=["v"]))
        await until(lambda: len(stage.begun) == 4)

        stage.open("run4", "run3")
        await until(lambda: sorted(stage.ended) == ["run3", "run4"])
        stage.open("run1")

        answers = [did(await peer.response()) for _ in range(4)]
        assert answers == ["run1", "run2 at once", "run3", "run4"]


@pytest.mark.clause("transport.order")
async def test_what_is_behind_a_run_waits_for_all_of_it(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        for name in ("a", "b"):
            peer.send(DELETE, params(ref(name), base_versions=["v"]))
        peer.send(READ, params(ref("a")))
        peer.send_bytes(b"rubbish\n")
        peer.send(DELETE, params(ref("c"), base_versions=["v"]))
        await until(lambda: len(stage.begun) == 2)
        stage.open("run2")
        await until(lambda: stage.ended == ["run2"])
        assert stage.begun == ["run1", "run2"]

        stage.open("run1", "run4")

        answers = [await peer.response() for _ in range(5)]
        assert [answer["id"] for answer in answers] == [2, 3, 4, None, 5]
        assert stage.begun == ["run1", "run2", "read", "run4"]


@pytest.mark.clause("transport.order")
async def test_one_that_was_not_handed_over_holds_up_its_run(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        stage.hands_over = False
        for name in ("a", "b"):
            peer.send(DELETE, params(ref(name), base_versions=["v"]))
        await until(lambda: len(stage.begun) == 1)
        peer.send(STATUS, params({}))
        stage.open("run1")
        await until(lambda: len(stage.begun) == 2)
        stage.open("run2")

        answers = [did(await peer.response()) for _ in range(3)]
        assert answers == ["run1", "run2", "status"]


async def test_a_run_is_no_longer_than_what_may_be_in_flight(folder: Path) -> None:
    async with acting(folder, max_in_flight=3) as (stage, peer):
        for name in "abcdef":
            peer.send(DELETE, params(ref(name), base_versions=["v"]))
        await until(lambda: len(stage.begun) == 3)
        for number in range(1, 7):
            await until(lambda n=number: len(stage.begun) >= min(6, n + 2))
            assert len(stage.begun) <= number + 2
            stage.open(f"run{number}")

        answers = [did(await peer.response()) for _ in range(6)]
        assert answers == [f"run{number}" for number in range(1, 7)]


async def test_the_runs_of_all_connections_leave_half_of_the_places_to_others(folder: Path) -> None:
    # Or many pipelines at once are refused, each of which would have been served in its turn.
    async with acting(folder, max_mutations=6) as (stage, peer):
        async with await Peer.connect(folder / "s") as other:
            for begun, each in ((4, peer), (5, other)):
                for name in "abcde":
                    each.send(DELETE, params(ref(name), base_versions=["v"]))
                await until(lambda n=begun: len(stage.begun) == n)
            for number in range(1, 11):
                await until(lambda n=number: len(stage.begun) >= n)
                assert len(stage.begun) - len(stage.ended) <= 5
                stage.open(f"run{number}")
                await until(lambda n=number: len(stage.ended) == n)

            for each in (peer, other):
                for _ in range(5):
                    assert "result" in await each.response()
        assert stage.work.ahead == 0


async def test_long_lines_that_piled_up_are_begun_one_in_a_step_of_the_loop(folder: Path) -> None:
    # A create is parsed and validated when it is begun: thirty of a megabyte held everybody up.
    async with acting(folder) as (stage, peer):
        peer.send(UPDATE, params(revised("m", 1), base_versions=["v"]))
        for name in ("a", "b", "c"):
            padding = {"padding": "x" * 100_000}
            peer.send(DELETE, params(ref(name), base_versions=["v"], **padding))
        peer.send(STATUS, params({}))
        connection = stage.connections[0]
        await stage.until_begun("update1")
        frames = connection._frames  # pyright: ignore[reportPrivateUsage] -- no answer tells it yet
        await until(lambda: len(frames) == 4)
        begun_before: list[int] = []
        loop = asyncio.get_running_loop()

        def note() -> None:
            begun_before.append(len(stage.begun))
            if len(stage.begun) < 4:
                loop.call_soon(note)

        stage.open("update1")
        note()
        await until(lambda: len(stage.begun) == 4)
        stage.open("run2", "run3", "run4")

        assert sorted({*begun_before, 4}) == [1, 2, 3, 4]
        answers = [did(await peer.response()) for _ in range(5)]
        assert answers == ["update1", "run2", "run3", "run4", "status"]


async def test_a_run_whose_peer_is_gone_ends_and_what_is_behind_it_is_not_begun(
    folder: Path,
) -> None:
    async with acting(folder) as (stage, peer):
        for name in ("a", "b"):
            peer.send(DELETE, params(ref(name), base_versions=["v"]))
        peer.send(READ, params(ref("a")))
        await until(lambda: len(stage.begun) == 2)
        stage.connections[0].abort()
        await asyncio.wait_for(stage.lost.wait(), 5)
        stage.open("run1", "run2")
        await stage.work.drain()

        assert stage.ended == ["run1", "run2"]
        assert stage.begun == ["run1", "run2"]


@pytest.mark.clause("transport.order")
async def test_a_read_behind_a_mutation_waits_for_it(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(UPDATE, params(revised("m", 1), base_versions=["v"]))
        peer.send(READ, params(ref("m")))
        await stage.until_begun("update1")
        assert "read" not in stage.begun

        stage.open("update1")

        assert [did(await peer.response()) for _ in range(2)] == ["update1", "read"]


@pytest.mark.clause("transport.order")
async def test_a_retrieval_is_overtaken(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(RETRIEVE, params(RETRIEVAL))
        peer.send(CREATE, params(memo("m")))
        peer.send(READ, params(ref("m")))
        stage.open("create1")
        first = [did(await peer.response()) for _ in range(2)]

        stage.open("retrieve1")

        assert first == ["create1", "read"]
        assert did(await peer.response()) == "retrieve1"


async def test_a_retrieval_waits_for_the_mutation_before_it(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(CREATE, params(memo("m")))
        peer.send(RETRIEVE, params(RETRIEVAL))
        await stage.until_begun("create1")
        assert stage.begun == ["create1"]

        stage.open("create1")
        await stage.until_begun("retrieve1")

        assert stage.ended == ["create1"]
        stage.open("retrieve1")
        assert [did(await peer.response()) for _ in range(2)] == ["create1", "retrieve1"]


async def test_an_error_without_id_stands_at_the_place_of_its_line(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(CREATE, params(memo("m")))
        peer.send_bytes(b"rubbish\n")
        peer.send(STATUS, params({}))
        await stage.until_begun("create1")
        stage.open("create1")

        answers = [await peer.response() for _ in range(3)]

        assert [answer["id"] for answer in answers] == [2, None, 3]
        assert answers[1]["error"]["code"] == -32700


async def test_no_more_requests_are_held_than_may_be_in_flight(folder: Path) -> None:
    async with acting(folder, max_in_flight=3) as (stage, peer):
        for _ in range(10):
            peer.send(RETRIEVE, params(RETRIEVAL))
        await stage.until_begun("retrieve3")
        assert len(stage.begun) == 3

        for number in range(1, 11):
            await stage.until_begun(f"retrieve{number}")
            stage.open(f"retrieve{number}")

        assert {did(await peer.response()) for _ in range(10)} == {
            f"retrieve{number}" for number in range(1, 11)
        }


async def test_no_more_retrievals_are_under_way_than_may_be_overtaken(folder: Path) -> None:
    # Each may end with a whole page: a peer that reads nothing must not make many of them wait.
    async with acting(folder, max_overtaken=2) as (stage, peer):
        for _ in range(5):
            peer.send(RETRIEVE, params(RETRIEVAL))
        status = peer.send(STATUS, params({}))
        await stage.until_begun("retrieve2")
        assert len(stage.begun) == 2

        for number in range(1, 6):
            await stage.until_begun(f"retrieve{number}")
            assert len(stage.begun) <= number + 1
            stage.open(f"retrieve{number}")

        answers = [await peer.response() for _ in range(6)]
        assert status in [answer["id"] for answer in answers]


async def test_hundreds_of_requests_in_one_read_are_all_answered_in_order(folder: Path) -> None:
    async with acting(folder) as (_, peer):
        ids = [peer.send(STATUS, params({})) for _ in range(700)]

        answers = [await peer.response() for _ in range(700)]

        assert [answer["id"] for answer in answers] == ids


@pytest.mark.clause("transport.end")
@pytest.mark.clause("framing.last-line")
async def test_what_was_sent_before_the_end_is_answered(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(CREATE, params(memo("m")))
        peer.send_bytes(
            b'{"jsonrpc":"2.0","id":"last","method":"patchouli.control.status@1",'
            b'"params":{"meta":{},"data":{}}}'
        )
        peer.send_eof()
        await stage.until_begun("create1")
        stage.open("create1")

        answers = [await peer.response() for _ in range(2)]

        assert did(answers[0]) == "create1"
        assert answers[1]["id"] == "last"
        assert await peer.is_closed()


async def test_a_mutation_that_was_begun_ends_though_its_peer_is_gone(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(CREATE, params(memo("m")))
        peer.send(CREATE, params(memo("n")))
        await stage.until_begun("create1")
        stage.connections[0].abort()
        await asyncio.wait_for(stage.lost.wait(), 5)

        stage.open("create1", "create2")
        await asyncio.wait_for(stage.work.drain(), 5)

        assert stage.ended == ["create1"]
        assert stage.begun == ["create1"]
        assert await peer.is_closed()


async def test_what_is_cut_off_before_its_first_step_leaves_nothing_behind(folder: Path) -> None:
    line = {"jsonrpc": "2.0", "id": 2, "method": CREATE, "params": params(memo("m"))}
    with warnings.catch_warnings(record=True) as complaints:
        warnings.simplefilter("always")
        async with acting(folder) as (stage, _):
            stage.connections[0].data_received(json.dumps(line).encode() + b"\n")
            assert len(stage.work) == 1
            await stage.work.cancel()
        gc.collect()

    assert stage.begun == []
    assert [str(complaint.message) for complaint in complaints] == []


async def test_a_retrieval_ends_with_its_peer(folder: Path) -> None:
    async with acting(folder) as (stage, peer):
        peer.send(RETRIEVE, params(RETRIEVAL))
        await stage.until_begun("retrieve1")

        stage.connections[0].abort()
        await asyncio.wait_for(stage.work.drain(), 5)

        assert stage.ended == []
        assert await peer.is_closed()


@pytest.mark.clause("errors.opaque")
async def test_a_bug_is_an_internal_error_without_any_text_of_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with acting(folder) as (_, peer):
        answer = await peer.call(SHUTDOWN, params({}))
        after = await peer.result(STATUS, params({}))

    assert answer["error"]["code"] == -32603
    assert "data" not in answer["error"]
    assert "secret" not in str(answer)
    assert after["data"]["did"] == "status"
    assert "ZeroDivisionError" in capsys.readouterr().err


async def test_a_store_in_trouble_is_logged_once_and_not_for_each_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with acting(folder) as (stage, peer):
        stage.trouble = StoreFullError("sqlite", "commit", "there is no room left on the disk")
        errors = [await peer.error(SHUTDOWN, params({})) for _ in range(5)]

    said = capsys.readouterr().err
    assert {error["code"] for error in errors} == {-32009}
    assert said.count("store.failed kind=StoreFullError") == 1
    assert "no room left" in said
    assert "Traceback" not in said


@pytest.mark.clause("framing.response-size")
async def test_an_answer_over_the_bound_is_replaced(folder: Path) -> None:
    async with acting(folder, max_response_bytes=1000) as (stage, peer):
        stage.bulk = b"x" * 1000
        too_large = await peer.error(STATUS, params({}))
        stage.bulk = b"x" * 900
        fits = await peer.result(STATUS, params({}))

    assert too_large["code"] == -32009
    assert too_large["data"] == {"reason": "OVERLOADED", "retryable": False}
    assert len(fits["data"]["bulk"]) == 900


async def test_a_peer_that_does_not_read_is_asked_nothing_more_and_then_gets_everything(
    folder: Path,
) -> None:
    async with acting(folder, outbox_bytes=300_000, event_outbox_bytes=100_000) as (stage, peer):
        stage.bulk = b"x" * 100_000
        peer.pause_reading()
        for _ in range(200):
            peer.send(STATUS, params({}))
        await until(lambda: not stage.connections[0].has_room)
        begun = len(stage.begun)
        assert begun < 100

        peer.resume_reading()
        answers = [await peer.response() for _ in range(200)]

        assert [answer["id"] for answer in answers] == list(range(2, 202))
        assert {len(answer["result"]["data"]["bulk"]) for answer in answers} == {100_000}


async def test_a_stalled_peer_is_one_that_reads_nothing_for_long_enough(folder: Path) -> None:
    async with acting(folder, stalled_write_ms=30_000) as (stage, peer):
        connection = stage.connections[0]
        stage.bulk = b"x" * 1_000_000
        assert not connection.is_stalled(0.0)
        peer.pause_reading()
        for _ in range(10):
            peer.send(STATUS, params({}))
        await until(lambda: not connection.has_room)

        assert not connection.is_stalled(100.0)
        assert not connection.is_stalled(129.0)
        assert connection.is_stalled(130.0)

        peer.resume_reading()
        for _ in range(10):
            await peer.response()
        assert not connection.is_stalled(200.0)
