"""The daemon at work: it listens, serves, and ends in order.

    starting ──ready──▶ serving ──stop──▶ draining ──▶ closing ──▶ ended
                                             │ second signal, or drain_ms over
                                             └─────────────────────▶ closing

*Draining*: the endpoint is gone, new requests are refused, and so is what waits for a state that it
has to observe; what else was begun may finish. *Closing*:
what is left is cancelled, subscriptions are told, connections get what was written for them and are
closed, then the store is shut down, which records a clean stop.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.protocol import ErrorCode, RpcError
from patchouli.server.connection import Connection
from patchouli.server.control import Control
from patchouli.server.dispatch import Dispatcher
from patchouli.server.encoding import error_line
from patchouli.server.operations import operations
from patchouli.server.session import Session
from patchouli.server.subscriptions import SubscriptionSet
from patchouli.server.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend import ArtifactService, Engine
    from patchouli.provider import Clock
    from patchouli.server.endpoint import Endpoint
    from patchouli.server.logs import Log
    from patchouli.server.settings import Settings
    from patchouli.server.subscriptions import Outlet

SWEEP_SECONDS: Final = 1.0  # at most; a shorter bound is looked at as often as it says
_CROWDED: Final = error_line(
    None,
    RpcError(
        ErrorCode.OVERLOADED,
        "the daemon has as many connections as it may have; close one, or try again later",
        retryable=True,
    ),
)


class Stop:
    """The wish that the daemon ends; a second one asks it not to wait for anybody."""

    def __init__(self) -> None:
        self.is_wanted: Final = asyncio.Event()
        self.is_urgent: Final = asyncio.Event()

    def request(self) -> None:
        """Ask for the end, or a second time for a quick one."""
        (self.is_urgent if self.is_wanted.is_set() else self.is_wanted).set()

    def accept(self) -> None:
        """Ask for the end; asking again changes nothing."""
        self.is_wanted.set()

    def listen_to_signals(self) -> None:
        """Take SIGINT and SIGTERM (Ctrl-C and Ctrl-Break on Windows); ignore SIGHUP."""
        loop = asyncio.get_running_loop()
        if sys.platform == "win32":
            for number in (signal.SIGINT, signal.SIGBREAK):
                signal.signal(number, lambda _, __: loop.call_soon_threadsafe(self.request))
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


class Daemon:
    """One engine behind one endpoint."""

    def __init__(
        self,
        settings: Settings,
        *,
        engine: Engine,
        artifacts: ArtifactService,
        endpoint: Endpoint,
        stop: Stop,
        clock: Clock,
        log: Log,
    ) -> None:
        self._settings: Final = settings
        self._limits: Final = settings.limits
        self._engine: Final = engine
        self._artifacts: Final = artifacts
        self._endpoint: Final = endpoint
        self._stop: Final = stop
        self._clock: Final = clock
        self._log: Final = log
        self._requests: Final = Work()
        self._deliveries: Final = Work()
        self._connections: Final[set[Connection]] = set()
        self._nobody_left: Final = asyncio.Event()
        self._nobody_left.set()
        self._sweeper: asyncio.TimerHandle | None = None
        shortest_ms = min(
            self._limits.handshake_ms, self._limits.stalled_write_ms, self._limits.boundary_ms
        )
        self._sweep_seconds: Final = min(SWEEP_SECONDS, shortest_ms / 1000)
        control = Control(
            engine,
            settings=settings,
            started_at_unix_ms=clock.unix_ms(),
            count_connections=lambda: len(self._connections),
            stop=self._accept_stop,
        )
        self._dispatcher: Final = Dispatcher(
            operations(control=control, engine=engine, artifacts=artifacts, clock=clock),
            clock=clock,
            log=log,
            max_response_bytes=self._limits.max_response_bytes,
        )

    @property
    def connections(self) -> frozenset[Connection]:
        """The connections that are open now."""
        return frozenset(self._connections)

    @property
    def dispatcher(self) -> Dispatcher:
        """What answers the lines of all sessions."""
        return self._dispatcher

    def open_session(self, outlet: Outlet) -> Session:
        """Return the session of a new peer, whose lines go to `outlet`."""
        return Session(
            SubscriptionSet(
                outlet,
                work=self._deliveries,
                log=self._log,
                limit=self._limits.max_subscriptions,
                boundary_ms=self._limits.boundary_ms,
            )
        )

    async def serve(self, announce: Callable[[], None]) -> None:
        """Listen, call `announce` once a client can connect, and return when the end is asked for.

        Raises:
            CommandError: The endpoint cannot be used.
        """
        await self._endpoint.listen(self._admit)
        self._sweep()
        announce()
        await self._stop.is_wanted.wait()

    async def end(self) -> None:
        """Drain and close; the engine is left to its owner."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.drain_ms / 1000
        self._endpoint.close()
        self._dispatcher.is_stopping = True
        self._engine.stop_waiting()
        await self._unless_urgent(self._requests.drain(), deadline)
        await self._requests.cancel()
        for connection in tuple(self._connections):
            connection.session.subscriptions.stop()
            connection.close()
        await self._deliveries.cancel()
        await self._unless_urgent(self._nobody_left.wait(), deadline)
        for connection in tuple(self._connections):
            connection.abort()
        await self._nobody_left.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._requests.drain()  # uploads of the connections that ended just now

    async def _unless_urgent(self, wait: Any, deadline: float) -> None:
        waiting = asyncio.ensure_future(wait)
        urgent = asyncio.ensure_future(self._stop.is_urgent.wait())
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        await asyncio.wait([waiting, urgent], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in (waiting, urgent):
            task.cancel()
        await asyncio.wait([waiting, urgent])

    def _accept_stop(self) -> None:
        self._dispatcher.is_stopping = True
        self._stop.accept()

    def _admit(self) -> asyncio.Protocol:
        if len(self._connections) >= self._limits.max_connections:
            return _Refusal(_CROWDED)
        if self._stop.is_wanted.is_set():
            return _Refusal(b"")
        connection = Connection(
            self._dispatcher,
            limits=self._limits,
            work=self._requests,
            now=self._clock.monotonic(),
            on_lost=self._forget,
        )
        connection.session = self.open_session(connection)
        self._connections.add(connection)
        self._nobody_left.clear()
        return connection

    def _forget(self, connection: Connection, error: Exception | None) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._nobody_left.set()
        if error is not None and not isinstance(error, ConnectionError):
            self._log.warning("connection.failed", reason=type(error).__name__)
        if connection.session.has_uploads:
            self._requests.begin(self._artifacts.drop_connection(connection.session))

    def _sweep(self) -> None:
        """Look after what no event tells: peers that do nothing, and positions to be told."""
        self._sweeper = asyncio.get_running_loop().call_later(self._sweep_seconds, self._sweep)
        now = self._clock.monotonic()
        for connection in tuple(self._connections):
            session = connection.session
            if connection.is_stalled(now):
                self._log.warning("connection.closed", reason="the peer does not read")
                connection.abort()
            elif (
                session.capabilities is None
                and now - connection.opened_at >= self._limits.handshake_ms / 1000
            ):
                self._log.warning("connection.closed", reason="no handshake")
                connection.abort()
            elif connection.is_abandoned():
                connection.abort()  # what it asked for may wait long for its deadline
            else:
                session.subscriptions.tell_boundaries(now)


class _Refusal(asyncio.Protocol):
    """A connection that is told why and closed."""

    def __init__(self, line: bytes) -> None:
        self._line = line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast and no check: transports of uvloop are not of asyncio's classes.
        writer = cast("asyncio.WriteTransport", transport)
        writer.write(self._line)
        writer.close()
