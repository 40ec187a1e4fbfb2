from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness.testing import no_task_left
from patchouli.server.testing import DaemonProcess, create_memo_home
from patchouli.storage_client import ClientConfig, StorageClient, launcher
from patchouli.storage_client.connection import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

WAIT_SECONDS = 10.0
HANDSHAKE_RESULT = {
    "protocol_version": 1,
    "server": {"version": "9", "cluster_id": "wood", "node_id": "oak"},
    "capabilities": ["artifacts", "subscriptions", "subscription-lifecycle"],
    "limits": {
        "max_request_bytes": 1_048_576,
        "max_artifact_chunk_bytes": 524_288,
        "max_result_items": 100,
        "idempotency_retention_seconds": 60,
        "change_retention_seconds": 60,
    },
}


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a task, a thread or a socket."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("leaves_no_task")
    threads = set(threading.enumerate())
    yield
    gc.collect()  # a transport that nobody closed complains, and a complaint is an error
    left = [thread for thread in threading.enumerate() if thread not in threads]
    assert [thread.name for thread in left if not thread.name.startswith("asyncio_")] == []


@pytest.fixture
async def leaves_no_task() -> AsyncIterator[None]:
    async with no_task_left():
        yield
    assert open_connections() == []


def left_by(before: set[asyncio.Task[Any]]) -> list[object]:
    """Return the tasks of the client that were not there before, and its open connections."""
    tasks = asyncio.all_tasks() - before - {asyncio.current_task()}
    # The test itself ran in a task of the plugin, which may still be at its end.
    left: list[object] = [task for task in tasks if "patchouli" in repr(task)]
    return left + open_connections()


def open_connections() -> list[object]:
    return [
        found
        for found in gc.get_objects()
        if isinstance(found, Connection) and not found.is_ended and not found._loop.is_closed()
    ]


@pytest.fixture
async def what_is_left() -> Callable[[], list[object]]:
    before = asyncio.all_tasks()
    return lambda: left_by(before)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private directory with a short path, because a socket path has few bytes."""
    path = Path(tempfile.mkdtemp(prefix="pk-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session", autouse=True)
def _compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the processes that the tests start share compiled modules, even where none are kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path_factory.mktemp("compiled")))
        yield


@pytest.fixture(scope="session")
def shared_daemon(_compiled_once: None) -> Iterator[DaemonProcess]:
    """One daemon for all tests that do it no harm; each uses ids of its own."""
    folder = Path(tempfile.mkdtemp(prefix="pk-"))
    with DaemonProcess(create_memo_home(folder / "home")) as daemon:
        yield daemon
    shutil.rmtree(folder)


@pytest.fixture
def daemon(folder: Path) -> Iterator[DaemonProcess]:
    """A daemon of the test's own, to be killed."""
    daemon = DaemonProcess(create_memo_home(folder / "home"))
    with daemon:
        yield daemon


@pytest.fixture
def config(shared_daemon: DaemonProcess) -> ClientConfig:
    return ClientConfig(endpoint=str(shared_daemon.endpoint), auto_start=False)


@pytest.fixture
async def client(config: ClientConfig) -> AsyncIterator[StorageClient]:
    async with StorageClient(config) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An id that no other test uses."""
    return f"{request.node.name}-{os.urandom(4).hex()}"


@pytest.fixture
def command() -> str:
    return str(Path(sys.executable).with_name("patchouli-db"))


class Home:
    """A home without a daemon, and the settings of a client that starts one for it."""

    def __init__(self, root: Path, command: str) -> None:
        self.root = root
        self.endpoint = root / "run" / "patchouli.sock"
        self.lock = root / "run" / "patchouli.sock.lock"
        self.config = ClientConfig(command=command, startup_timeout_ms=20_000)

    def daemons(self) -> list[int]:
        """Return the processes that run for this home, also those that come too late to win."""
        wanted = os.fsencode(self.endpoint)
        return [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if wanted in _content(path).split(b"\0")
        ]

    def end(self) -> None:
        """End them all; when this returns none is left to take the place of another."""
        while pids := self.daemons():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    ended = os.pidfd_open(pid)
                    os.kill(pid, signal.SIGTERM)
                    select.select([ended], [], [], WAIT_SECONDS)
                    os.close(ended)
        launcher._started[:] = [one for one in launcher._started if one.poll() is None]


def _content(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@pytest.fixture
def empty_home(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("the daemons of a home cannot be found, and so not be ended, here")
    for variable in list(os.environ):
        if variable.startswith("PATCHOULI_") and variable != "PATCHOULI_VERIFY":
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PATCHOULI_HOME", str(folder / "home"))
    home = Home(folder / "home", command)
    yield home
    home.end()


class Seen:
    """A handler that keeps what it is called with and lets a test wait for it."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._more = asyncio.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        self._more.set()

    @property
    def ids(self) -> list[str]:
        return [event["data"]["change"]["ref"]["id"] for event in self.events]

    async def until(self, count: int) -> list[Any]:
        """Return the events when there are `count` of them."""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(self.events) < count:
                self._more.clear()
                await self._more.wait()
        return self.events


@pytest.fixture
async def seen() -> Seen:
    return Seen()


class RawPeer:
    """The server's end of a connection, which says what a real daemon never would."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> dict[str, Any]:
        """Return the next request."""
        line = await asyncio.wait_for(self._reader.readline(), WAIT_SECONDS)
        if not line:
            raise EOFError
        return json.loads(line)

    async def is_closed(self) -> bool:
        """Say that the client has closed without having sent more."""
        try:
            return await asyncio.wait_for(self._reader.read(1), WAIT_SECONDS) == b""
        except ConnectionError:
            return True

    def send_bytes(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, *messages: dict[str, Any]) -> None:
        """Send lines in one write."""
        self.send_bytes(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def answer(self, request: dict[str, Any], result: object, *behind: dict[str, Any]) -> None:
        """Answer a request, and send more in the same write."""
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": result}, *behind)

    async def shake_hands(self, **replaced: object) -> dict[str, Any]:
        """Answer the handshake and return its parameters."""
        request = await self.receive()
        self.answer(request, {**HANDSHAKE_RESULT, **replaced})
        return request["params"]

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


class RawServer:
    """Accepts connections for a test that plays the daemon."""

    def __init__(self, endpoint: Path) -> None:
        self.endpoint = endpoint
        self._accepted: asyncio.Queue[RawPeer] = asyncio.Queue()
        self._peers: list[RawPeer] = []
        self.connections = 0

    @property
    def config(self) -> ClientConfig:
        return ClientConfig(endpoint=str(self.endpoint), auto_start=False)

    async def accept(self) -> RawPeer:
        return await asyncio.wait_for(self._accepted.get(), WAIT_SECONDS)

    def admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        peer = RawPeer(reader, writer)
        self._peers.append(peer)
        self._accepted.put_nowait(peer)

    async def close(self) -> None:
        for peer in self._peers:
            await peer.close()

    async def connect(self, **replaced: object) -> tuple[StorageClient, RawPeer]:
        """Return a started client and the peer that it is connected to."""
        client = StorageClient(self.config)
        starting = asyncio.ensure_future(client.start())
        peer = await self.accept()
        await peer.shake_hands(**replaced)
        await starting
        return client, peer


@pytest.fixture
async def raw(folder: Path) -> AsyncIterator[RawServer]:
    server = RawServer(folder / "raw.sock")
    listening = await asyncio.start_unix_server(
        server.admit, str(server.endpoint), limit=256 * 1024 * 1024
    )
    async with listening:
        yield server
        await server.close()


@pytest.fixture
def knowledge() -> Callable[..., dict[str, Any]]:
    """Make values of the shipped type `knowledge`."""
    return _knowledge


def _knowledge(text: str) -> dict[str, Any]:
    return {
        "content": {"kind": "text", "text": text},
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "timeless"},
            "ownership": "user",
            "abstraction": "instance",
            "persistence": "long_term",
            "retrieval": ["exact"],
            "actionability": "informational",
        },
        "metadata": fact_metadata("patchouli.knowledge@1"),
    }


def fact_metadata(schema: str) -> dict[str, Any]:
    nobody: dict[str, Any] = dict.fromkeys(
        ("provider", "binding", "native_type", "native_id", "native_revision")
    )
    return {
        "core": {
            "schema": schema,
            "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": None},
            "origin": nobody,
            "time": {
                "event_at": None,
                "source_created_at": None,
                "source_updated_at": None,
                "observed_at": "2031-03-02T09:20:00Z",
                "ingested_at": "2031-03-02T09:20:03Z",
            },
            "lifecycle": {"status": "active", "expires_at": None},
            "provenance": [],
        },
        "extensions": {},
    }


@pytest.fixture
def relation() -> Callable[[str, str], dict[str, Any]]:
    """Make values of the shipped type `knowledge_relation`."""

    def make(source: str, target: str) -> dict[str, Any]:
        return {
            "type": "supports",
            "from": [{"type": "knowledge", "id": source}],
            "to": [{"type": "knowledge", "id": target}],
            "metadata": fact_metadata("patchouli.knowledge-relation@1"),
        }

    return make
