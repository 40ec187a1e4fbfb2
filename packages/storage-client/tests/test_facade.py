"""The client without `async`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server.testing import META, DaemonProcess, beginning, memo, params, ref
from patchouli.storage_client import (
    CalledFromHandlerError,
    ClientClosedError,
    ClientConfig,
    DaemonUnavailable,
    PatchouliRpcError,
    StartupTimeoutError,
    StorageClient,
    SyncStorageClient,
    tasks,
    worker,
)
from patchouli.storage_client.worker import THREAD_NAME

if TYPE_CHECKING:
    from pathlib import Path

WAIT_SECONDS = 10.0


@pytest.fixture
def facade(config: ClientConfig) -> Iterator[SyncStorageClient]:
    with SyncStorageClient(config) as facade:
        yield facade


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == THREAD_NAME]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_the_facade_has_every_method() -> None:
    assert public(StorageClient) - {"chunk_bytes"} <= public(SyncStorageClient)


@pytest.mark.checklist("MS-92")
def test_no_thread_is_left(config: ClientConfig) -> None:
    facade = SyncStorageClient(config)
    assert threads() == []

    with facade:
        assert threads() == [THREAD_NAME]
        assert facade.state == "ready"
        assert facade.server is not None
        assert facade.server.node_id == "local"
    assert threads() == []
    assert (facade.state, facade.server) == ("closed", None)
    facade.close()
    facade.start()
    facade.start()
    assert threads() == [THREAD_NAME]
    facade.close()
    assert threads() == []


@pytest.mark.checklist("MS-92")
def test_a_start_that_fails_leaves_no_thread(folder: Path) -> None:
    facade = SyncStorageClient(ClientConfig(endpoint=str(folder / "nobody"), auto_start=False))

    with pytest.raises(DaemonUnavailable):
        facade.start()
    with pytest.raises(DaemonUnavailable):
        facade.status()

    assert threads() == []


@pytest.mark.checklist("MS-92")
def test_queries_pages_and_entities(facade: SyncStorageClient, name: str) -> None:
    ids = [f"{name}-{number}" for number in range(5)]
    for one in ids:
        facade.create(params(memo(one)))
    instruction = {"ids": ids, "order": "id_asc"}

    pages = facade.query_pages(META, instruction, types=["memo"], limit=2)
    assert isinstance(pages, Iterator)
    found = [[hit["variants"][0]["ref"]["id"] for hit in page["data"]["hits"]] for page in pages]

    assert found == [ids[:2], ids[2:4], ids[4:]]
    assert len(facade.query(META, instruction, limit=3)["data"]["hits"]) == 3
    assert len(facade.retrieve_by_ids(META, ids[:1])["data"]["hits"]) == 1
    assert facade.read(params(ref(ids[0])))["data"]["state"] == "active"


def test_pages_go_on_behind_a_close_and_a_start(facade: SyncStorageClient, name: str) -> None:
    ids = [f"{name}-{number}" for number in range(3)]
    for one in ids:
        facade.create(params(memo(one)))
    pages = facade.query_pages(META, {"ids": ids}, limit=1)
    next(pages)

    facade.close()
    facade.start()

    assert len(list(pages)) == 2


@pytest.mark.checklist("MS-92")
def test_control_upserts_and_removals(facade: SyncStorageClient, name: str) -> None:
    assert facade.status()["data"]["ready"] is True
    assert facade.checkpoint()["data"]["completed"] is True
    assert facade.compact(limit=1, with_due=True)["data"]["is_more_due"] is False

    first = facade.upsert(META, {"type": "memo", "id": name}, 1)["data"]["entity"]
    facade.update(
        params(
            {"ref": first["ref"], "value": 2},
            base_versions=[first["version"]],
        )
    )
    removed = facade.remove(META, {"type": "memo", "id": name})

    assert removed is not None
    assert facade.remove(META, {"type": "memo", "id": name}) is None


@pytest.mark.checklist("MS-92")
def test_artifacts_go_up_from_bytes_and_from_pieces(facade: SyncStorageClient, name: str) -> None:
    content = os.urandom(600_000)

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(content), 7000):
            assert threading.current_thread() is threading.main_thread()
            yield content[start : start + 7000]

    facade.upload_artifact(params(beginning(id=f"{name}-1")), content)
    facade.upload_artifact(params(beginning(id=f"{name}-2")), pieces())

    for number in (1, 2):
        assert facade.download_artifact(META, f"{name}-{number}") == content
    assert b"".join(facade.download_artifact_pieces(META, f"{name}-1")) == content


@pytest.mark.checklist("MS-92")
def test_a_work_unit_runs_in_the_thread_of_the_caller(facade: SyncStorageClient, name: str) -> None:
    ran: list[bool] = []

    def mutate(meta: dict[str, Any]) -> str:
        ran.append("transaction_state" in meta)
        assert threading.current_thread() is threading.main_thread()
        return f"{name}-{len(ran)}"

    results = facade.run_work_unit(
        {"transaction_id": name}, {"transaction_state": "commit"}, [mutate, mutate]
    )

    assert results == (f"{name}-1", f"{name}-2")
    assert ran == [False, True]


@pytest.mark.checklist("MS-92")
def test_errors_are_those_of_the_client(facade: SyncStorageClient, name: str) -> None:
    with pytest.raises(PatchouliRpcError) as caught:
        facade.read(params(ref(name)))

    assert (caught.value.method, caught.value.reason) == ("patchouli.entity.read@1", "NOT_FOUND")


@pytest.mark.checklist("MS-92")
def test_handlers_run_in_the_thread_and_must_not_call(facade: SyncStorageClient, name: str) -> None:
    told: queue.Queue[object] = queue.Queue()

    def handle(event: Any) -> None:
        told.put(event["data"]["change"]["ref"]["id"])
        told.put(threading.current_thread().name)
        for call in (
            facade.status,
            facade.close,
            facade.start,
            subscription.unsubscribe,
            subscription.wait_closed,
        ):
            try:
                call()
            except CalledFromHandlerError as error:
                told.put(type(error))

    subscription = facade.subscribe(params({"filter": {"ids": [name]}}), handle)
    facade.create(params(memo(name)))

    assert told.get(timeout=WAIT_SECONDS) == name
    assert told.get(timeout=WAIT_SECONDS) == THREAD_NAME
    for _ in range(5):
        assert told.get(timeout=WAIT_SECONDS) is CalledFromHandlerError
    assert subscription.closed_with is None
    assert subscription.data["subscription_id"] == subscription.subscription_id
    with pytest.raises(TimeoutError):
        subscription.wait_closed(0.01)
    subscription.unsubscribe()
    subscription.unsubscribe()
    assert subscription.wait_closed().kind == "unsubscribed"


@pytest.mark.checklist("MS-92")
def test_a_subscription_settles_when_the_facade_is_closed(config: ClientConfig) -> None:
    with SyncStorageClient(config) as facade:
        subscription = facade.subscribe(params({}), lambda _: None)
        other = facade.subscribe(params({}), lambda _: None)
        facade.unsubscribe(params({"subscription_id": other.subscription_id}))

    assert subscription.wait_closed().kind == "client-closed"
    assert other.wait_closed().kind == "unsubscribed"
    subscription.unsubscribe()
    assert subscription.closed_with is not None


def test_an_asynchronous_handler_runs_too(facade: SyncStorageClient, name: str) -> None:
    told: queue.Queue[str] = queue.Queue()

    async def handle(_: object) -> None:
        await asyncio.sleep(0)
        told.put("done")

    facade.subscribe(params({"filter": {"ids": [name]}}), handle)
    facade.create(params(memo(name)))

    assert told.get(timeout=WAIT_SECONDS) == "done"


def test_a_daemon_that_is_killed_fails_the_next_call(daemon: DaemonProcess) -> None:
    with SyncStorageClient(ClientConfig(endpoint=str(daemon.endpoint), auto_start=False)) as facade:
        subscription = facade.subscribe(params({}), lambda _: None)
        daemon.kill()
        assert subscription.wait_closed().kind == "connection-lost"
        assert facade.state == "lost"
        with pytest.raises(DaemonUnavailable):
            facade.status()
        daemon.start()
        facade.start()
        assert facade.status()["data"]["generation"] == 2


class Interrupted(BaseException):
    """What the signal of the tests raises, as KeyboardInterrupt comes of a Ctrl-C."""


@pytest.fixture
def _signal_interrupts() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_when(event: threading.Event) -> threading.Thread:
    """Interrupt the main thread when `event` is set; the thread that does is to be joined."""
    main = threading.main_thread().ident
    assert main is not None

    def kill() -> None:
        event.wait(WAIT_SECONDS)
        signal.pthread_kill(main, signal.SIGUSR1)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    return killer


@pytest.mark.usefixtures("_signal_interrupts")
@pytest.mark.checklist("MS-92")
def test_an_interrupted_call_is_forgotten_alone(facade: SyncStorageClient, name: str) -> None:
    entered = threading.Event()

    async def never(_: StorageClient) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    ended = threading.Event()
    killer = interrupt_when(entered)
    with pytest.raises(Interrupted):
        facade.run(never)
    killer.join()

    assert ended.wait(WAIT_SECONDS)
    facade.create(params(memo(name)))
    assert facade.state == "ready"


def test_close_ends_the_calls_of_other_threads(config: ClientConfig) -> None:
    facade = SyncStorageClient(config)
    facade.start()
    begun: queue.Queue[None] = queue.Queue()
    errors: queue.Queue[BaseException] = queue.Queue()

    async def never(_: StorageClient) -> None:
        begun.put(None)
        await asyncio.Event().wait()

    def call() -> None:
        try:
            facade.run(never)
        except BaseException as error:  # shown below
            errors.put(error)

    callers = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for caller in callers:
        caller.start()
    for _ in callers:
        begun.get(timeout=WAIT_SECONDS)
    facade.close()
    for caller in callers:
        caller.join(WAIT_SECONDS)

    assert [type(errors.get_nowait()) for _ in callers] == [ClientClosedError] * 3


def test_threads_share_a_facade(facade: SyncStorageClient, name: str) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                facade.create(params(memo(f"{name}-{number}-{step}")))
        except BaseException as error:  # shown below
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()

    assert failures == []
    ids = [f"{name}-{number}-9" for number in range(4)]
    assert len(facade.retrieve_by_ids(META, ids)["data"]["hits"]) == 4


def test_a_facade_that_never_gets_an_answer_gives_up(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "mute"))
        listening.listen()
        facade = SyncStorageClient(
            ClientConfig(endpoint=str(folder / "mute"), startup_timeout_ms=30)
        )
        with pytest.raises(StartupTimeoutError):
            facade.start()

    assert threads() == []


class Gone(BaseException):
    """What is no Exception, as an interrupt or an exit is none."""


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Gone, asyncio.CancelledError])
@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_whatever_a_handler_raises_ends_nothing(
    facade: SyncStorageClient, name: str, kind: type[BaseException], *, is_asynchronous: bool
) -> None:
    told: queue.Queue[str] = queue.Queue()

    def fail(_: object) -> None:
        raise kind

    async def fail_later(_: object) -> None:
        raise kind

    failing = facade.subscribe(
        params({"filter": {"ids": [name]}}), fail_later if is_asynchronous else fail
    )
    facade.subscribe(
        params({"filter": {"ids": [name]}}),
        lambda event: told.put(event["data"]["change"]["kind"]),
    )
    version = facade.create(params(memo(name)))["data"]["entity"]["version"]
    facade.delete(params(ref(name), base_versions=[version]))

    assert [told.get(timeout=WAIT_SECONDS) for _ in range(2)] == ["created", "deleted"]
    assert failing.closed_with is None
    assert facade.status()["data"]["ready"] is True
    assert facade.state == "ready"
    facade.close()
    facade.start()
    assert facade.status()["data"]["ready"] is True


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, Gone, asyncio.CancelledError])
def test_whatever_is_run_raises_it_is_raised_to_the_caller_alone(
    facade: SyncStorageClient, kind: type[BaseException]
) -> None:
    async def fail(_: StorageClient) -> None:
        raise kind("now")

    def fail_at_once(_: StorageClient) -> Any:
        raise kind("at once")

    for work, text in ((fail, "now"), (fail_at_once, "at once")):
        with pytest.raises(kind) as caught:
            facade.run(work)
        assert caught.value.args in ((text,), ())
        assert facade.status()["data"]["ready"] is True


def test_any_awaitable_can_be_run_and_nothing_else(facade: SyncStorageClient) -> None:
    both = facade.run(lambda client: asyncio.gather(client.status(), client.status()))
    assert [status["data"]["ready"] for status in both] == [True, True]

    wrong: Any = lambda client: client.state  # noqa: E731 -- not typed on purpose
    with pytest.raises(TypeError, match="not str"):
        facade.run(wrong)
    with pytest.raises(AttributeError):
        facade.run(lambda client: getattr(client, "unheard")())  # noqa: B009 -- no type has it


def test_a_handler_that_never_ends_does_not_hold_the_thread(
    config: ClientConfig, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "GRACE_SECONDS", 0.01)
    begun = threading.Event()

    async def never(_: object) -> None:
        begun.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    with SyncStorageClient(config) as facade:
        facade.subscribe(params({"filter": {"ids": [name]}}), never)
        facade.create(params(memo(name)))
        assert begun.wait(WAIT_SECONDS)

    assert threads() == []


class Mute:
    """Listens, takes connections, and says nothing."""

    def __init__(self, endpoint: Path) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(endpoint))
        self._listening.listen()
        self.is_asked = threading.Event()
        self._peers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def close(self) -> None:
        for one in (self._listening, *self._peers):
            with contextlib.suppress(OSError):  # the peer has gone
                one.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_SECONDS)
        for one in (self._listening, *self._peers):
            one.close()

    def _take(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
            except OSError:  # closed
                return
            self._peers.append(peer)
            peer.recv(1)
            self.is_asked.set()


@pytest.fixture
def mute(folder: Path) -> Iterator[Mute]:
    mute = Mute(folder / "mute")
    yield mute
    mute.close()


@pytest.fixture
def stalling(folder: Path, mute: Mute) -> SyncStorageClient:
    """A façade whose start takes longer than any test."""
    del mute
    return SyncStorageClient(
        ClientConfig(endpoint=str(folder / "mute"), auto_start=False, startup_timeout_ms=10_000_000)
    )


@pytest.mark.usefixtures("_signal_interrupts")
@pytest.mark.checklist("MS-92")
def test_an_interrupted_start_leaves_no_thread(stalling: SyncStorageClient, mute: Mute) -> None:
    killer = interrupt_when(mute.is_asked)
    with pytest.raises(Interrupted), stalling:
        raise AssertionError("it has started")
    killer.join()

    assert threads() == []
    assert stalling.state == "closed"


@pytest.mark.parametrize("place", ["Thread.start", "Future.result"])
def test_a_start_interrupted_around_the_launch_leaves_no_thread(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        if place == "Thread.start":
            start = threading.Thread.start

            def launch(thread: threading.Thread) -> None:
                start(thread)
                raise Interrupted

            patch.setattr(threading.Thread, "start", launch)
        else:
            patch.setattr(worker.Future, "result", lambda *_: (_ for _ in ()).throw(Interrupted))
        facade = SyncStorageClient(config)
        with pytest.raises(Interrupted):
            facade.start()
    assert threads() == []

    facade.start()
    assert facade.status()["data"]["ready"] is True
    facade.close()
    assert threads() == []


def test_without_another_thread_a_start_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    client = SyncStorageClient()
    monkeypatch.setattr(worker, "LAUNCH_SECONDS", 3_600)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                client.start()

    client.close()

    assert client.state == "closed"


def test_a_call_while_another_thread_starts_is_refused(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_making, may_go_on = threading.Event(), threading.Event()
    make = asyncio.new_event_loop

    def slowly() -> asyncio.AbstractEventLoop:
        is_making.set()
        may_go_on.wait()
        return make()

    monkeypatch.setattr(asyncio, "new_event_loop", slowly)
    with closing(SyncStorageClient(config)) as facade:
        starting = threading.Thread(target=facade.start)
        starting.start()
        is_making.wait()
        with pytest.raises(DaemonUnavailable):
            facade.status()
        may_go_on.set()
        starting.join()

        assert facade.status()["data"]["ready"] is True


@pytest.mark.parametrize("kind", [OSError, RuntimeError])
def test_a_thread_without_a_loop_fails_the_start(
    config: ClientConfig, monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def fail() -> None:
        raise kind("no descriptors are left")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", fail)
        facade = SyncStorageClient(config)
        with pytest.raises(kind, match="descriptors"):
            facade.start()

    assert threads() == []
    with facade:
        assert facade.state == "ready"


@pytest.mark.checklist("MS-92")
def test_close_fails_a_start_at_once(stalling: SyncStorageClient, mute: Mute) -> None:
    errors: queue.Queue[Exception] = queue.Queue()

    def start() -> None:
        try:
            stalling.start()
        except Exception as error:  # shown below
            errors.put(error)

    starters = [threading.Thread(target=start, daemon=True) for _ in range(2)]
    for starter in starters:
        starter.start()
    assert mute.is_asked.wait(WAIT_SECONDS)
    while stalling._worker is None or len(stalling._worker.starting) < 2:
        os.sched_yield()
    stalling.close()
    for starter in starters:
        starter.join()

    assert {type(errors.get_nowait()) for _ in starters} == {ClientClosedError}
    assert threads() == []


@pytest.mark.usefixtures("_signal_interrupts")
def test_an_interrupted_start_leaves_those_of_other_threads_alone(
    stalling: SyncStorageClient, mute: Mute
) -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    are_both_waiting = threading.Event()

    def start() -> None:
        try:
            stalling.start()
        except Exception as error:  # shown below
            errors.put(error)

    def watch() -> None:
        mute.is_asked.wait(WAIT_SECONDS)
        while (
            stalling._client._link._attempt is None or stalling._client._link._attempt.waiting < 2
        ):
            os.sched_yield()
        are_both_waiting.set()

    others = [threading.Thread(target=target, daemon=True) for target in (start, watch)]
    for other in others:
        other.start()
    killer = interrupt_when(are_both_waiting)
    with pytest.raises(Interrupted):
        stalling.start()
    killer.join()

    assert threads() == [THREAD_NAME]
    assert errors.empty()
    stalling.close()
    for other in others:
        other.join()
    assert type(errors.get_nowait()) is ClientClosedError
    assert threads() == []


def run_program(program: str, config: ClientConfig) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", program, config.endpoint],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return ended.stdout


BEGINNING = """
import os, sys, warnings
from patchouli.storage_client import ClientConfig, DaemonUnavailable, SyncStorageClient
warnings.simplefilter("ignore")
facade = SyncStorageClient(ClientConfig(endpoint=sys.argv[1], auto_start=False))
facade.start()
"""


@pytest.mark.slow
def test_a_forked_process_is_told_to_make_a_client_of_its_own(config: ClientConfig) -> None:
    program = (
        BEGINNING
        + """
me = {"workspace_id": "atlas", "user_id": "mira"}
subscription = facade.subscribe({"meta": me, "data": {}}, print)
child = os.fork()
if child == 0:
    for call in (facade.status, facade.start, subscription.wait_closed, subscription.unsubscribe):
        try:
            call()
        except DaemonUnavailable as error:
            print("forked" in str(error))
    facade.close()
    with SyncStorageClient(facade.config) as own:
        print(own.status()["data"]["ready"], flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(facade.status()["data"]["ready"])
facade.close()
"""
    )

    assert run_program(program, config) == "True\n" * 6


@pytest.mark.slow
def test_calls_at_the_end_of_the_interpreter_do_not_hang(config: ClientConfig) -> None:
    program = (
        BEGINNING
        + """
class Last:
    def __del__(self):
        try:
            facade.status()
        except DaemonUnavailable as error:
            print("ending" in str(error))
        facade.close()
        print("closed")
last = Last()
"""
    )

    assert run_program(program, config) == "True\nclosed\n"
