"""The link of a client to its daemon: what state it is in, and who moves it.

    closed ─start─▶ connecting ─▶ ready ──▶ lost ─start─▶ connecting …
       ▲               │ failed: as it was      │
       └────close──────┴────────────────────────┘

`start()` moves any state to `ready`; callers at the same time share one attempt. Nothing else
connects: a call in another state than `ready` fails as unavailable. A connection that ends fails
the calls under way and settles the subscriptions; whether the daemon did what was asked is then
unknown. What is called and what comes back is not the business of this module.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from patchouli.storage_client.connecting import connect_or_launch
from patchouli.storage_client.connection import Connection
from patchouli.storage_client.errors import ClientClosedError, MissingCapabilityError, not_ready
from patchouli.storage_client.subscriptions import ChangeClose

if TYPE_CHECKING:
    from patchouli.protocol import Capability
    from patchouli.storage_client.configuration import ClientConfig
    from patchouli.storage_client.handshake import ServerInfo
    from patchouli.storage_client.subscriptions import Subscriptions
    from patchouli.storage_client.tasks import Tasks

State: TypeAlias = Literal["closed", "connecting", "ready", "lost"]

_log: Final = logging.getLogger(__name__)  # noqa: TID251 -- structlog is no dependency of a client


class Link:
    """At most one connection, and at most one attempt to have one.

    Attributes:
        state: Where the client is between closed and ready.
        connection: The connection while the state is `ready`, else None.
        server: What its handshake has settled, None together with the connection.
    """

    def __init__(
        self,
        config: ClientConfig,
        tasks: Tasks,
        *,
        subscriptions: Subscriptions,
        receive_limit_bytes: int,
    ) -> None:
        self.state: State = "closed"
        self.connection: Connection | None = None
        self.server: ServerInfo | None = None
        self._config: Final = config
        self._tasks: Final = tasks
        self._subscriptions: Final = subscriptions
        self._receive_limit_bytes: Final = receive_limit_bytes
        self._ids: Final = itertools.count(1)
        self._attempt: _Attempt | None = None

    async def start(self) -> None:
        """Be connected; see `StorageClient.start`."""
        if self.state == "ready":
            return
        attempt = self._attempt
        if attempt is None:
            attempt = self._attempt = _Attempt(self.state)
            self.state = "connecting"
            attempt.task = self._tasks.start(self._run(attempt))
        attempt.waiting += 1
        try:
            await asyncio.shield(attempt.outcome)
        finally:
            attempt.waiting -= 1
            if attempt.waiting == 0 and not attempt.outcome.done():
                self._give_up(attempt, attempt.found)
                attempt.outcome.cancel()

    async def close(self) -> None:
        """Be closed, with no task and no socket left; see `StorageClient.close`."""
        attempt, connection = self._attempt, self.connection
        self.state = "closed"
        if attempt is not None:
            self._give_up(attempt, "closed")
            attempt.fail(ClientClosedError())
        if connection is not None:
            connection.end(ClientClosedError)
        await self._tasks.aclose()
        if connection is not None:
            await connection.wait_gone()

    def require_ready(self, capability: Capability | None = None) -> tuple[Connection, ServerInfo]:
        """Return the connection and what its handshake has settled.

        Raises:
            DaemonUnavailable: There is none.
            MissingCapabilityError: The daemon did not grant the capability.
        """
        if self.connection is None or self.server is None:
            raise not_ready(self._config.endpoint, self.state)
        if capability is not None and capability not in self.server.capabilities:
            raise MissingCapabilityError(capability)
        return self.connection, self.server

    async def _run(self, attempt: _Attempt) -> None:
        try:
            connection, server = await connect_or_launch(self._config, self._new_connection)
        except Exception as error:  # told to every caller of the attempt
            if self._attempt is attempt:
                self._give_up(attempt, attempt.found)
                attempt.fail(error)
            return
        if self._attempt is not attempt:  # closed in the same moment
            connection.end(ClientClosedError)
            return
        self._attempt = None
        self.connection, self.server = connection, server
        self.state = "ready"
        attempt.outcome.set_result(None)

    def _give_up(self, attempt: _Attempt, state: State) -> None:
        self._attempt = None
        self.state = state
        if attempt.task is not None and attempt.task is not asyncio.current_task():
            attempt.task.cancel()

    def _new_connection(self) -> Connection:
        return Connection(
            self._config.endpoint,
            ids=self._ids,
            notify=self._subscriptions.notify,
            ended=self._ended,
            receive_limit_bytes=self._receive_limit_bytes,
        )

    def _ended(self, connection: Connection, error: Exception) -> None:
        if self.connection is not connection:
            return
        self.connection = None
        self.server = None
        if self.state == "closed":
            self._subscriptions.close_all(ChangeClose(kind="client-closed", error=error))
            return
        self.state = "lost"
        _log.warning("%s", error)
        self._subscriptions.close_all(ChangeClose(kind="connection-lost", error=error))


class _Attempt:
    """A start under way and who waits for it."""

    def __init__(self, found: State) -> None:
        self.found: Final = found
        self.outcome: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Future[None] | None = None
        self.waiting = 0

    def fail(self, error: Exception) -> None:
        self.outcome.set_exception(error)
        self.outcome.exception()  # somebody waits for it, or is being cancelled
