from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
from typing import TYPE_CHECKING, cast

import pytest
from patchouli.server import listener
from patchouli.server.listener import (
    MAX_PATH_BYTES,
    UnixEndpoint,
    peer_user,
    require_safe_directory,
)
from patchouli.server.logs import Log
from patchouli.server.pipes import PipeEndpoint
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Hello(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        writer = cast("asyncio.WriteTransport", transport)
        writer.write(b"hello")
        writer.close()


async def listening(path: Path, admit: Callable[[], asyncio.Protocol] = Hello) -> UnixEndpoint:
    endpoint = UnixEndpoint(str(path), Log())
    endpoint.claim()
    await endpoint.listen(admit)
    return endpoint


async def read_all(path: Path) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    data = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    return data


def close(endpoint: UnixEndpoint) -> None:
    endpoint.close()
    endpoint.release()


@pytest.mark.clause("transport.private")
async def test_a_client_can_connect_and_the_socket_is_for_this_user_alone(folder: Path) -> None:
    endpoint = await listening(folder / "s")

    assert await read_all(folder / "s") == b"hello"
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "s.lock").stat().st_mode) == 0o600
    close(endpoint)


@pytest.mark.clause("transport.private")
async def test_a_missing_directory_is_made_for_this_user_alone(folder: Path) -> None:
    endpoint = await listening(folder / "a" / "b" / "s")

    assert stat.S_IMODE((folder / "a" / "b").stat().st_mode) == 0o700
    close(endpoint)


@pytest.mark.clause("transport.stale")
async def test_closing_removes_the_socket_and_closing_again_does_nothing(folder: Path) -> None:
    endpoint = await listening(folder / "s")

    close(endpoint)
    close(endpoint)

    assert not (folder / "s").exists()


@pytest.mark.clause("transport.stale")
async def test_a_socket_that_took_the_place_of_ours_stays(folder: Path) -> None:
    endpoint = await listening(folder / "s")
    (folder / "s").unlink()
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(folder / "s"))

    close(endpoint)

    assert (folder / "s").exists()
    other.close()


@pytest.mark.clause("transport.stale")
def test_something_that_is_no_socket_is_left_alone(folder: Path) -> None:
    (folder / "s").write_text("precious", encoding="utf-8")

    with pytest.raises(CommandError, match="is no socket"):
        UnixEndpoint(str(folder / "s"), Log()).claim()

    assert (folder / "s").read_text(encoding="utf-8") == "precious"


@pytest.mark.clause("transport.stale")
def test_a_live_daemon_is_left_alone(folder: Path) -> None:
    live = socket.socket(socket.AF_UNIX)
    live.bind(str(folder / "s"))
    live.listen()
    inode = (folder / "s").stat().st_ino

    with pytest.raises(CommandError, match="already listening"):
        UnixEndpoint(str(folder / "s"), Log()).claim()

    assert (folder / "s").stat().st_ino == inode
    live.close()


@pytest.mark.clause("transport.stale")
async def test_a_stale_socket_is_replaced(folder: Path) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(folder / "s"))
    stale.close()

    endpoint = await listening(folder / "s")

    assert await read_all(folder / "s") == b"hello"
    close(endpoint)


def test_of_two_that_start_at_once_one_is_told_to_wait(folder: Path) -> None:
    first = UnixEndpoint(str(folder / "s"), Log())
    first.claim()

    with pytest.raises(CommandError, match="starting or stopping"):
        UnixEndpoint(str(folder / "s"), Log()).claim()

    first.release()
    second = UnixEndpoint(str(folder / "s"), Log())
    second.claim()
    second.release()


async def test_while_one_serves_another_is_told_so(folder: Path) -> None:
    endpoint = await listening(folder / "s")

    with pytest.raises(CommandError, match="already listening"):
        await asyncio.to_thread(UnixEndpoint(str(folder / "s"), Log()).claim)

    close(endpoint)


def test_the_longest_path_is_accepted_and_one_byte_more_is_not(folder: Path) -> None:
    name = "x" * (MAX_PATH_BYTES - len(os.fsencode(folder)) - 1)

    endpoint = UnixEndpoint(str(folder / name), Log())
    endpoint.claim()
    endpoint.release()
    with pytest.raises(CommandError, match=f"at most {MAX_PATH_BYTES}"):
        UnixEndpoint(str(folder / f"{name}y"), Log())


@pytest.mark.clause("transport.private")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o1777])
def test_a_directory_that_others_can_write_is_refused(folder: Path, mode: int) -> None:
    directory = folder / "d"
    directory.mkdir()
    directory.chmod(mode)

    with pytest.raises(CommandError, match="can be written by other users") as caught:
        UnixEndpoint(str(directory / "s"), Log()).claim()

    assert ("chmod" in str(caught.value)) is (mode != 0o1777)  # it is meant to be open to all
    assert list(directory.iterdir()) == []
    assert stat.S_IMODE(directory.stat().st_mode) == mode & 0o1777


def test_a_directory_that_others_can_read_is_accepted_as_it_is(folder: Path) -> None:
    directory = folder / "d"
    directory.mkdir()
    directory.chmod(0o755)

    endpoint = UnixEndpoint(str(directory / "s"), Log())
    endpoint.claim()
    endpoint.release()

    assert stat.S_IMODE(directory.stat().st_mode) == 0o755


def test_a_directory_of_another_user_is_refused(folder: Path) -> None:
    found = folder.stat()

    require_safe_directory(folder, found, user=found.st_uid)
    if found.st_uid != 0:
        with pytest.raises(CommandError, match="belongs to another user"):
            require_safe_directory(folder, found, user=found.st_uid + 1)


def test_a_lock_file_that_is_a_link_is_not_followed(folder: Path) -> None:
    (folder / "s.lock").symlink_to(folder / "elsewhere")

    with pytest.raises(CommandError, match="cannot use the endpoint"):
        UnixEndpoint(str(folder / "s"), Log()).claim()

    assert not (folder / "elsewhere").exists()


def test_the_user_at_the_other_end_is_known() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)

    assert peer_user(one) == os.geteuid()

    one.close()
    other.close()


class Failing:
    """A listening socket on which accepting fails a few times, as without file descriptors."""

    def __init__(self, real: socket.socket, failures: list[int]) -> None:
        self._real = real
        self._failures = failures

    def accept(self) -> tuple[socket.socket, object]:
        if self._failures:
            number = self._failures.pop()
            raise OSError(number, os.strerror(number))
        return self._real.accept()

    def fileno(self) -> int:
        return self._real.fileno()


async def test_a_shortage_delays_accepting_and_does_not_end_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listener, "RETRY_SECONDS", (0.001,))
    real = socket.socket(socket.AF_UNIX)
    real.bind(str(folder / "s"))
    real.listen()
    real.settimeout(0)
    failures = [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]
    acceptor = listener._Acceptor(Failing(real, failures), Hello, Log())
    acceptor.start()

    data = await read_all(folder / "s")

    assert data == b"hello"
    assert failures == []
    assert capsys.readouterr().err.count("accept.failed") == 3
    acceptor.stop()
    real.close()


@pytest.mark.parametrize("name", ["patchouli", "/run/patchouli.sock", "\\\\host\\pipe\\x", ""])
def test_a_name_that_is_no_pipe_of_this_machine_is_refused(name: str) -> None:
    with pytest.raises(CommandError, match="is no pipe of this machine"):
        PipeEndpoint(name, Log())


def test_a_pipe_of_this_machine_is_accepted() -> None:
    PipeEndpoint("\\\\.\\pipe\\patchouli", Log()).close()
