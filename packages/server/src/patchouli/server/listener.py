"""A Unix socket as endpoint.

From the claim on a lock file is held, because two daemons that start at once could each take the
other's new socket for a stale one. Closing removes the socket if it is still the one that was
bound. The lock is let go last, so that the next daemon, or `stop --wait`, knows.

Who may connect is decided three times: by the directory, by the mode of the socket (it never exists
with a wider one), and by the user id of the peer where the platform tells it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from patchouli.server.endpoint import Endpoint
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.server.logs import Log

# `sun_path` holds 108 bytes on Linux and 104 on macOS, its end included.
MAX_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107
PROBE_SECONDS: Final = 2.0
BACKLOG: Final = 1024
ACCEPTS_A_STEP: Final = 64  # connections accepted before others have their turn
# Shortages end; the listener waits between two attempts, longer each time.
RETRY_SECONDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_PASSING: Final = frozenset(
    {
        errno.ECONNABORTED,
        errno.EINTR,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOBUFS,
        errno.ENOMEM,
        errno.EPERM,
        errno.EPROTO,
    }
)


class UnixEndpoint(Endpoint):
    """A Unix stream socket."""

    def __init__(self, name: str, log: Log) -> None:
        super().__init__(name, log)
        self._path: Final = Path(name).absolute()
        size = len(os.fsencode(self._path))
        if size > MAX_PATH_BYTES:
            raise CommandError(
                f"the endpoint {name} is {size} bytes long as an absolute path, and a socket path "
                f"has at most {MAX_PATH_BYTES}; give a shorter one with --endpoint"
            )
        self._lock: int | None = None
        self._socket: socket.socket | None = None
        self._bound: tuple[int, int] | None = None
        self._acceptor: _Acceptor | None = None

    def claim(self) -> None:
        """Look at the directory, take the lock file, and connect to what is there."""
        try:
            self._require_directory()
            if not self._take_lock():
                self._require_silence()
                raise CommandError(
                    f"another patchouli-db is starting or stopping on {self.name}; try again in a "
                    "moment"
                )
            try:
                self._require_silence()
                self._path.unlink(missing_ok=True)
            except BaseException:
                self.release()
                raise
        except OSError as error:
            raise CommandError(
                f"cannot use the endpoint {self.name}: {_words(error)}; give another with "
                "--endpoint, or mend its directory"
            ) from error

    async def listen(self, admit: Callable[[], asyncio.Protocol]) -> None:
        """Bind the socket for this user alone and accept."""
        try:
            self._socket = self._bind()
        except OSError as error:
            raise CommandError(
                f"cannot listen on {self.name}: {_words(error)}; give another --endpoint"
            ) from error
        self._acceptor = _Acceptor(self._socket, admit, self._log)
        self._acceptor.start()

    def close(self) -> None:
        """Stop accepting; remove the socket if it is the one that was bound here."""
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._bound is not None:
            bound, self._bound = self._bound, None
            with suppress(OSError):
                found = self._path.lstat()
                if stat.S_ISSOCK(found.st_mode) and (found.st_dev, found.st_ino) == bound:
                    self._path.unlink()

    def _require_directory(self) -> None:
        directory = self._path.parent
        if not directory.exists():
            directory.mkdir(mode=0o700, parents=True)
            directory.chmod(0o700)
        found = directory.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise CommandError(f"{directory} is no directory; give another --endpoint")
        require_safe_directory(directory, found, user=os.geteuid())

    def release(self) -> None:
        """Let the lock file go."""
        # The file stays: removing it would let a third daemon lock another file of this name.
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> bool:
        """Take the lock file; say whether it was free."""
        import fcntl  # noqa: PLC0415 -- exists on POSIX alone

        path = self._path.with_name(self._path.name + ".lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(descriptor).st_uid != os.geteuid():
                raise CommandError(f"{path} belongs to another user; give another --endpoint")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except BaseException:
            os.close(descriptor)
            raise
        self._lock = descriptor
        return True

    def _require_silence(self) -> None:
        """Return if there is nothing, or a socket on which nobody listens any more."""
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise CommandError(
                f"{self.name} exists and is no socket; it was left alone. Give another --endpoint, "
                "or move it away"
            )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_SECONDS)
            try:
                probe.connect(str(self._path))
            except (ConnectionRefusedError, FileNotFoundError):
                return
            except (TimeoutError, BlockingIOError):
                pass  # somebody listens and is too busy to accept
        raise CommandError(
            f"a daemon is already listening on {self.name}; use it, stop it with "
            f"`patchouli-db stop --endpoint {self.name}`, or give another --endpoint"
        )

    def _bind(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o177)
        try:
            listening.bind(str(self._path))
            found = self._path.lstat()
            self._bound = (found.st_dev, found.st_ino)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            raise
        finally:
            os.umask(mask)
        listening.settimeout(0)
        return listening


def require_safe_directory(directory: Path, found: os.stat_result, *, user: int) -> None:
    """Return if no other user can put another socket in the place of ours.

    Raises:
        CommandError: Another user can.
    """
    if found.st_uid not in {0, user}:
        raise CommandError(
            f"{directory} belongs to another user, who could replace the socket; give another "
            "--endpoint"
        )
    if found.st_mode & 0o022:
        # Nobody should be told to close a directory that is meant for everybody.
        is_shared = found.st_mode & stat.S_ISVTX or found.st_uid != user
        mend = "" if is_shared else f"run `chmod go-w {directory}`, or "
        raise CommandError(
            f"{directory} can be written by other users, who could put their own socket there; "
            f"{mend}give an --endpoint in a directory of your own"
        )


def peer_user(connection: socket.socket) -> int | None:
    """Return the user id of the process at the other end, None where the platform has none."""
    if sys.platform == "linux":
        form = struct.Struct("3i")  # struct ucred: process, user, group
        data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, form.size)
        return form.unpack(data)[1]
    if sys.platform == "darwin":
        form = struct.Struct("2I")  # the begin of struct xucred: version, user
        data = connection.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED
        return form.unpack_from(data)[1]
    return None


class _Acceptor:
    """Takes connections from a listening socket; a shortage delays it and does not end it."""

    def __init__(
        self, listening: socket.socket, admit: Callable[[], asyncio.Protocol], log: Log
    ) -> None:
        self._socket: Final = listening
        self._admit: Final = admit
        self._log: Final = log
        self._loop: Final = asyncio.get_running_loop()
        self._user: Final = os.geteuid()
        self._retries = 0
        self._timer: asyncio.TimerHandle | None = None
        self._handing_over: Final[set[asyncio.Task[Any]]] = set()

    def start(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket, self._accept)

    def stop(self) -> None:
        self._loop.remove_reader(self._socket)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _accept(self) -> None:
        for _ in range(ACCEPTS_A_STEP):
            try:
                connection, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._wait(error)
                return
            self._retries = 0
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        connection.settimeout(0)
        user = peer_user(connection)
        if user is not None and user != self._user:
            self._log.warning("connection.refused", reason="another user", user=user)
            connection.close()
            return
        task = self._loop.create_task(self._hand_over(connection))
        self._handing_over.add(task)
        task.add_done_callback(self._handing_over.discard)

    async def _hand_over(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._admit, connection)
        except OSError as error:
            connection.close()
            self._log.warning("connection.refused", reason=_words(error))

    def _wait(self, error: OSError) -> None:
        delay = RETRY_SECONDS[min(self._retries, len(RETRY_SECONDS) - 1)]
        self._retries += 1
        level = self._log.warning if error.errno in _PASSING else self._log.error
        level("accept.failed", reason=_words(error), retry_seconds=delay)
        self._loop.remove_reader(self._socket)
        self._timer = self._loop.call_later(delay, self.start)


def _words(error: OSError) -> str:
    return (os.strerror(error.errno) if error.errno else type(error).__name__).lower()
