"""Named pipes, as far as they can be shown elsewhere: what Windows brings is played by sockets.

The loop below has the one method of the proactor loop that the endpoint uses, and keeps its rules:
the first instance of a name is exclusive, and a closed instance takes no further client.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import tty
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.protocol import CREATE, READ
from patchouli.provider_sqlite import SqliteProvider
from patchouli.server.caller import Caller
from patchouli.server.lifecycle import Stop
from patchouli.server.logs import Log
from patchouli.server.pipes import PIPE_PREFIX, PipeEndpoint
from patchouli.server.settings import CommandError, resolve
from patchouli.server.testing import Peer, create_memo_home, memo, params, ref

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

NAME = f"{PIPE_PREFIX}patchouli-test"


class PipeLoop(asyncio.SelectorEventLoop):
    """A loop that serves pipes below a directory."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def place(self, name: str) -> Path:
        return self.folder / name.removeprefix(PIPE_PREFIX)

    async def start_serving_pipe(
        self, factory: Callable[[], asyncio.Protocol], name: str
    ) -> list[asyncio.Server]:
        if self.place(name).exists():
            raise PermissionError(13, "access is denied")
        return [await self.create_unix_server(factory, str(self.place(name)))]


def run(folder: Path, work: Callable[[PipeLoop], Coroutine[None, None, None]]) -> None:
    loop = PipeLoop(folder)
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(work(loop))


class Echo(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


def test_a_pipe_is_served_from_listen_to_close(folder: Path) -> None:
    async def work(loop: PipeLoop) -> None:
        endpoint = PipeEndpoint(NAME, Log())
        endpoint.claim()
        await endpoint.listen(Echo)
        reader, writer = await asyncio.open_unix_connection(str(loop.place(NAME)))
        writer.write(b"hello\n")
        assert await reader.readline() == b"hello\n"

        endpoint.close()
        endpoint.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(str(loop.place(NAME)))
        writer.write(b"still there\n")  # who is connected is not cut off
        assert await reader.readline() == b"still there\n"
        writer.close()
        endpoint.release()

    run(folder, work)


def test_a_name_that_another_daemon_has_is_told(folder: Path) -> None:
    async def work(_: PipeLoop) -> None:
        first, second = PipeEndpoint(NAME, Log()), PipeEndpoint(NAME, Log())
        await first.listen(Echo)

        with pytest.raises(CommandError, match="another daemon uses it"):
            await second.listen(Echo)
        second.close()
        first.close()

    run(folder, work)


def test_a_whole_daemon_serves_a_pipe_and_ends_cleanly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.server.assemble.IS_WINDOWS", True)
    home = create_memo_home(folder / "home")
    settings = resolve({}, home=home, endpoint=NAME)

    async def work(loop: PipeLoop) -> None:
        from patchouli.server.assemble import open_daemon  # noqa: PLC0415 - after the change above

        stop, ready = Stop(), asyncio.Event()
        async with open_daemon(settings, stop=stop, log=Log()) as daemon:
            serving = asyncio.ensure_future(daemon.serve(ready.set))
            await asyncio.wait_for(ready.wait(), 10)
            async with await Peer.connect(loop.place(NAME)) as peer:
                await peer.result(CREATE, params(memo("a")))
                found = await peer.result(READ, params(ref("a")))
            stop.accept()
            await serving
        assert found["data"]["variants"][0]["value"] == {"text": "a"}

    run(folder, work)
    SqliteProvider(home / "data" / "patchouli.db")  # it is free


def test_a_daemon_that_cannot_have_its_pipe_leaves_the_store_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.server.assemble.IS_WINDOWS", True)
    home = create_memo_home(folder / "home")
    settings = resolve({}, home=home, endpoint=NAME)

    async def work(loop: PipeLoop) -> None:
        from patchouli.server.assemble import open_daemon  # noqa: PLC0415 - after the change above

        taken = await loop.start_serving_pipe(Echo, NAME)
        with pytest.raises(CommandError, match="another daemon uses it"):
            async with open_daemon(settings, stop=Stop(), log=Log()) as daemon:
                await daemon.serve(lambda: None)
        taken[0].close()

    run(folder, work)
    SqliteProvider(home / "data" / "patchouli.db")


@pytest.fixture
def terminal() -> Any:
    """Two ends of a byte stream, of which one has a path, as a pipe of Windows has."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    yield ours, os.ttyname(theirs)
    os.close(ours)
    os.close(theirs)


def test_a_command_speaks_through_a_pipe_as_through_a_file(
    terminal: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchouli.server.caller.IS_WINDOWS", True)
    ours, path = terminal
    asked: list[Any] = []

    def answer() -> None:
        with os.fdopen(os.dup(ours), "rb") as lines:
            for result in ({}, {"data": {"text": "ü" * 5000}}):
                request = json.loads(lines.readline())
                asked.append(request)
                notice = {"jsonrpc": "2.0", "method": "notice", "params": {}}
                reply = {"jsonrpc": "2.0", "id": request["id"], "result": result}
                for line in (notice, reply):
                    os.write(ours, json.dumps(line).encode() + b"\n")

    daemon = threading.Thread(target=answer)
    daemon.start()
    with Caller(path, timeout_seconds=10) as caller:
        result = caller.call("method", {"text": "x" * 3000})
        assert caller.notification()["method"] == "notice"
    daemon.join()

    assert result == {"data": {"text": "ü" * 5000}}
    assert asked[1]["params"] == {"text": "x" * 3000}


def test_a_pipe_that_is_not_there_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchouli.server.caller.IS_WINDOWS", True)

    with pytest.raises(CommandError, match="patchouli-db serve"):
        Caller(str(folder / "nobody"), timeout_seconds=1)


def test_without_an_endpoint_the_default_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchouli.server.settings.IS_WINDOWS", True)

    assert resolve({}).endpoint == f"{PIPE_PREFIX}patchouli"
