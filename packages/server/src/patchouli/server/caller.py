"""One call to a running daemon, for the commands that control it.

It speaks the wire by hand: loading the models would take longer than the call.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from patchouli.server.settings import IS_WINDOWS, CommandError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

CLIENT: Final = "patchouli-db-cli"
HANDSHAKE: Final = "patchouli.protocol.handshake@1"
COMPACT: Final = "patchouli.control.compact@1"
FREED: Final = ("changes", "idempotency_records", "work_units", "versions")
COMPACTION_STEP: Final = 1000
_POLL_SECONDS: Final = 0.02
_RECEIVED_BYTES: Final = 65_536


class RefusedError(CommandError):
    """Raised when the daemon answered with an error; `reason` is its `data.reason`, if any."""

    def __init__(self, endpoint: str, error: dict[str, Any]) -> None:
        data: dict[str, Any] = error.get("data") or {}
        self.reason: str | None = data.get("reason")
        said = f"{self.reason}: {error['message']}" if self.reason else str(error["message"])
        super().__init__(f"the daemon at {endpoint} says: {said}")


class Caller:
    """A connection with a handshake behind it; no call takes longer than `timeout_seconds`."""

    def __init__(
        self, endpoint: str, *, timeout_seconds: float, capabilities: tuple[str, ...] = ()
    ) -> None:
        """Connect and shake hands.

        Raises:
            CommandError: No daemon answers at `endpoint`.
        """
        self._endpoint: Final = endpoint
        self._deadline = time.monotonic() + timeout_seconds
        self._timeout_seconds: Final = timeout_seconds
        self._count = 0
        self._received = b""
        self._notifications: deque[dict[str, Any]] = deque()
        self._stream = _Pipe(endpoint) if IS_WINDOWS else _Socket(endpoint)
        try:
            self._guard(self._stream.connect)
            self.call(
                HANDSHAKE,
                {
                    "client": {"name": CLIENT, "version": "1", "instance_id": str(os.getpid())},
                    "protocol_versions": [1],
                    "capabilities": list(capabilities),
                },
            )
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the `result` of one call.

        Raises:
            CommandError: It was answered by an error, late, or not at all.
        """
        self._count += 1
        self._deadline = time.monotonic() + self._timeout_seconds
        request = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        with suppress(BrokenPipeError):  # why the daemon has closed already stands in what it sent
            self._guard(lambda: self._stream.send(json.dumps(request).encode() + b"\n"))
        answer = json.loads(self._line())
        while "id" not in answer:
            self._notifications.append(answer)
            answer = json.loads(self._line())
        if "error" in answer:
            raise RefusedError(self._endpoint, answer["error"])
        return answer["result"]

    def notification(self) -> dict[str, Any]:
        """Return the next notification, waiting for it if need be."""
        if self._notifications:
            return self._notifications.popleft()
        return json.loads(self._line())

    def _line(self) -> bytes:
        while b"\n" not in self._received:
            data = self._receive()
            if not data:
                raise CommandError(f"the daemon at {self._endpoint} closed the connection")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _receive(self) -> bytes:
        data: list[bytes] = []
        self._guard(lambda: data.append(self._stream.receive()))
        return data[0]

    def _guard(self, step: Any) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._late()
        self._stream.limit(left)
        try:
            step()
        except TimeoutError as error:
            raise self._late() from error
        except BrokenPipeError:
            raise
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise CommandError(
                f"no daemon is listening on {self._endpoint}; start one with "
                "`patchouli-db serve`, or name its --endpoint"
            ) from error
        except PermissionError as error:
            raise CommandError(
                f"{self._endpoint} belongs to another user; name an --endpoint of your own"
            ) from error
        except ConnectionError as error:
            raise CommandError(f"the daemon at {self._endpoint} closed the connection") from error
        except OSError as error:
            # Without a number it is of Python, which refuses a path that no socket can have.
            problem = error.strerror or "it is too long for the path of a socket"
            raise CommandError(
                f"cannot connect to {self._endpoint}: {problem.lower()}; name another --endpoint"
            ) from error

    def _late(self) -> CommandError:
        return CommandError(
            f"the daemon at {self._endpoint} did not answer within {self._timeout_seconds:g} s; "
            "look at its log, or give it longer with --timeout"
        )


def compact_all(
    endpoint: str, *, timeout_seconds: float, progress: Callable[[float], None]
) -> dict[str, int]:
    """Have the daemon at `endpoint` remove what is past its retention; return what went by kind.

    `timeout_seconds` is for each step. `progress` takes the part that is done, from 0 to 1.

    Raises:
        CommandError: No daemon answers, or it refuses.
    """
    with Caller(endpoint, timeout_seconds=timeout_seconds) as caller:
        freed: dict[str, int] = dict.fromkeys(FREED, 0)
        total = 0
        while True:
            data = {"limit": COMPACTION_STEP, "with_due": total == 0}
            step = caller.call(COMPACT, {"meta": {}, "data": data})["data"]
            for kind in FREED:
                freed[kind] += step[kind]
            done = sum(freed.values())
            total = total or done + step["due"]
            if not step["is_more_due"]:
                return freed
            progress(min(1.0, done / max(1, total)))


def wait_until_gone(endpoint: str, seconds: float) -> None:
    """Return when the daemon of `endpoint` has ended: its socket is gone and its lock is free.

    Raises:
        CommandError: It has not ended in time; it goes on ending by itself.
    """
    deadline = time.monotonic() + seconds
    while not _is_gone(endpoint):
        if time.monotonic() >= deadline:
            raise CommandError(
                f"the daemon at {endpoint} has not ended within {seconds:g} s; it still finishes "
                "what it has begun"
            )
        time.sleep(_POLL_SECONDS)


def _is_gone(endpoint: str) -> bool:
    if os.path.lexists(endpoint):
        return False
    try:
        lock = os.open(f"{endpoint}.lock", os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        import fcntl  # noqa: PLC0415 -- exists on POSIX alone

        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except ImportError:
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


class _Socket:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def connect(self) -> None:
        self._socket.connect(self._endpoint)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> bytes:
        return self._socket.recv(_RECEIVED_BYTES)

    def limit(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()


class _Pipe:
    """A named pipe as a file; its waits have no limit of their own."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._file = -1

    def connect(self) -> None:
        self._file = os.open(self._endpoint, os.O_RDWR | getattr(os, "O_BINARY", 0))

    def send(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]

    def receive(self) -> bytes:
        return os.read(self._file, _RECEIVED_BYTES)

    def limit(self, seconds: float) -> None:
        del seconds

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
