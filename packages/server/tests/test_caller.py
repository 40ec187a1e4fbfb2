from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.server import caller
from patchouli.server.caller import Caller, RefusedError
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CROWDED: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": None,
    "error": {"code": -32009, "message": "too many", "data": {"reason": "OVERLOADED"}},
}
AGREED: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "result": {}}


@contextmanager
def listening(folder: Path, serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """Yield an endpoint whose one client is served by `serve` on a thread."""
    path = str(folder / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def accept() -> None:
            peer, _ = listener.accept()
            with peer:
                serve(peer)

        thread = threading.Thread(target=accept)
        thread.start()
        yield path
        thread.join(5)
        assert not thread.is_alive()


def say(peer: socket.socket, message: dict[str, Any]) -> None:
    peer.sendall(json.dumps(message).encode() + b"\n")


def test_who_is_refused_and_cut_off_is_told_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closed = threading.Event()
    connect = caller._Socket.connect

    def connect_and_wait(stream: caller._Socket) -> None:
        connect(stream)
        assert is_closed.wait(5)  # so that the request meets a closed socket

    def refuse(peer: socket.socket) -> None:
        say(peer, CROWDED)
        peer.close()
        is_closed.set()

    monkeypatch.setattr(caller._Socket, "connect", connect_and_wait)

    with listening(folder, refuse) as endpoint, pytest.raises(RefusedError) as refusal:
        Caller(endpoint, timeout_seconds=5)

    assert refusal.value.reason == "OVERLOADED"
    assert "too many" in str(refusal.value)


def test_a_daemon_that_hangs_up_is_told(folder: Path) -> None:
    def hang_up(peer: socket.socket) -> None:
        peer.recv(65_536)

    with (
        listening(folder, hang_up) as endpoint,
        pytest.raises(CommandError, match="closed the connection"),
    ):
        Caller(endpoint, timeout_seconds=5)


def test_an_answer_that_does_not_come_is_told_with_its_remedy(folder: Path) -> None:
    def keep_silent(peer: socket.socket) -> None:
        while peer.recv(65_536):
            pass

    with (
        listening(folder, keep_silent) as endpoint,
        pytest.raises(CommandError, match="--timeout"),
    ):
        Caller(endpoint, timeout_seconds=0.05)


def test_a_path_that_no_socket_can_have_is_told() -> None:
    with pytest.raises(CommandError, match="too long for the path of a socket"):
        Caller("x" * 200, timeout_seconds=5)


def test_notifications_before_an_answer_are_kept_in_order(folder: Path) -> None:
    def serve(peer: socket.socket) -> None:
        requests = peer.makefile("rb")
        requests.readline()
        say(peer, AGREED)
        requests.readline()
        for number in (1, 2):
            say(peer, {"jsonrpc": "2.0", "method": "m", "params": {"n": number}})
        say(peer, {"jsonrpc": "2.0", "id": 2, "result": {"data": 3}})

    with listening(folder, serve) as endpoint, Caller(endpoint, timeout_seconds=5) as client:
        answer = client.call("m", {})
        told = [client.notification()["params"]["n"] for _ in range(2)]

    assert answer == {"data": 3}
    assert told == [1, 2]
