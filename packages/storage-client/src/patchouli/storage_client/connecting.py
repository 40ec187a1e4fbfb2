"""From an endpoint to a connection with a handshake behind it, starting a daemon if need be.

*Unavailable* is: nobody listens, or whoever took the connection ended it without a word, as a
daemon does that is about to end. Only then a daemon is started and asked for again and again;
anything else that goes wrong would go wrong again.
"""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.protocol import HANDSHAKE
from patchouli.storage_client.configuration import PIPE_PREFIX
from patchouli.storage_client.errors import (
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    DaemonUnavailable,
    MalformedAnswerError,
    StartupTimeoutError,
)
from patchouli.storage_client.handshake import ServerInfo, handshake_params, read_handshake
from patchouli.storage_client.launcher import Launched, launch

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.storage_client.configuration import ClientConfig
    from patchouli.storage_client.connection import Connection

POLL_SECONDS: Final = 0.05
# A daemon that was just ending keeps its lock a little longer than its socket, and the one that was
# started meanwhile gives up: it is started again, but not more often than this.
RELAUNCH_SECONDS: Final = 1.0
_NOBODY: Final = frozenset(
    {errno.ECONNREFUSED, errno.ENOENT, errno.EPIPE, errno.ENOTCONN, errno.ECONNRESET}
)


async def connect_or_launch(
    config: ClientConfig, new_connection: Callable[[], Connection]
) -> tuple[Connection, ServerInfo]:
    """Return a connection and what its handshake has settled.

    Raises:
        As `StorageClient.start`.
    """
    timeout_seconds = config.startup_timeout_ms / 1000
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _connect(config.endpoint, new_connection)
    except TimeoutError as error:
        raise StartupTimeoutError(config.endpoint, config.startup_timeout_ms) from error
    except DaemonUnavailable:
        if not config.auto_start:
            raise
    started = _Started(config)
    failure: BaseException | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            while True:
                await asyncio.sleep(POLL_SECONDS)
                try:
                    return await _connect(config.endpoint, new_connection)
                except DaemonUnavailable as error:
                    failure = error
                    started.look()
    except TimeoutError as error:
        raise StartupTimeoutError(
            config.endpoint, config.startup_timeout_ms, started.exit_code, started.command
        ) from failure or error


class _Started:
    """The daemon that was started last, and how one of them has ended."""

    def __init__(self, config: ClientConfig) -> None:
        self._config: Final = config
        self._loop: Final = asyncio.get_running_loop()
        self._launched: Launched = launch(config)
        self._since = self._loop.time()
        self._exit_code: int | None = None

    @property
    def command(self) -> tuple[str, ...]:
        """What was run."""
        return self._launched.command

    @property
    def exit_code(self) -> int | None:
        """How the last one that has ended did so."""
        code = self._launched.exit_code
        return self._exit_code if code is None else code

    def look(self) -> None:
        """Start another one if there is none any more."""
        if self._launched.exit_code is None or self._loop.time() < self._since + RELAUNCH_SECONDS:
            return
        self._exit_code = self._launched.exit_code
        self._launched = launch(self._config)
        self._since = self._loop.time()


async def _connect(
    endpoint: str, new_connection: Callable[[], Connection]
) -> tuple[Connection, ServerInfo]:
    connection = await _open(endpoint, new_connection)
    try:
        server = read_handshake(await connection.call(HANDSHAKE, handshake_params()))
        if connection.is_ended:  # behind the answer, before this task had its turn
            raise ConnectionLostError(endpoint, "it ended behind the handshake")
    except ConnectionLostError as error:
        if connection.refusal is not None:
            raise connection.refusal.of(HANDSHAKE) from error
        if isinstance(error.__cause__, MalformedAnswerError):  # what answers is no daemon
            raise error.__cause__ from error
        if connection.has_received:
            raise
        raise DaemonUnavailable(endpoint, error.problem) from error
    except BaseException:
        connection.end(ClientClosedError)
        raise
    connection.limit_bytes = server.limits.max_request_bytes
    return connection, server


async def _open(endpoint: str, new_connection: Callable[[], Connection]) -> Connection:
    # Only the proactor loop of Windows has the other method, and no type says so elsewhere.
    loop = cast("Any", asyncio.get_running_loop())
    is_pipe = endpoint.startswith(PIPE_PREFIX)
    connect = loop.create_pipe_connection if is_pipe else loop.create_unix_connection
    try:
        _, connection = await connect(new_connection, endpoint)
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        if error.errno in _NOBODY:
            raise DaemonUnavailable(endpoint, problem) from error
        raise ConnectFailedError(endpoint, problem) from error
    return connection
