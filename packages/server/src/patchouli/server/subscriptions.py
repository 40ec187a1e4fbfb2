"""Change notifications of one connection.

A subscription is *open* from its response until it is removed: by the client, by the end of its
connection or of the daemon, or by a failure of its stream. One task a subscription takes what is
next from the engine and hands whole lines to the connection. When the connection holds as much for
its peer as events may fill, the task waits; the change log is the buffer then, and nobody else is
delayed. Cancelling the task falls between lines, never into one.

Who negotiated `subscription-lifecycle` is told when a subscription ends without its doing, and now
and then which position was reached although nothing passed its filter. Who did not is told of a
failed stream by the end of the connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from patchouli.backend import event_line
from patchouli.protocol import (
    SUBSCRIPTION_BOUNDARY,
    SUBSCRIPTION_CLOSED,
    ErrorCode,
    Reason,
    RpcError,
)
from patchouli.server.encoding import data_json, notification_line
from patchouli.server.errors import to_wire

if TYPE_CHECKING:
    import asyncio

    from patchouli.backend import Engine, Subscription
    from patchouli.protocol import SubscribeParams
    from patchouli.server.logs import Log
    from patchouli.server.work import Work

LIFECYCLE: Final = "subscription-lifecycle"
STOPPING: Final = "SERVER_STOPPING"
EVENT_BATCH_BYTES: Final = 65_536  # of lines that are joined to one write


class Outlet(Protocol):
    """Where lines for one peer go."""

    @property
    def has_room(self) -> bool:
        """Whether events may be added to what the peer has not read yet."""
        ...

    async def wait_for_room(self) -> None:
        """Return when there is room again, or the peer is gone."""
        ...

    def send(self, data: bytes) -> None:
        """Add whole lines."""
        ...

    def close(self) -> None:
        """End the connection after what was added."""
        ...


@dataclass(slots=True, eq=False)
class _Delivery:
    """An open subscription: `delivered` is the last position that the peer was told."""

    id: str
    subscription: Subscription
    delivered: str
    told_at: float
    is_waiting: bool = False
    task: asyncio.Task[None] | None = None


class SubscriptionSet:
    """The open subscriptions of one connection."""

    def __init__(
        self, outlet: Outlet, *, work: Work, log: Log, limit: int, boundary_ms: int
    ) -> None:
        self._outlet: Final = outlet
        self._work: Final = work
        self._log: Final = log
        self._limit: Final = limit
        self._boundary_seconds: Final = boundary_ms / 1000
        self._open: Final[dict[str, _Delivery]] = {}
        self._opening = 0
        self._count = 0
        self._has_lifecycle = False
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._open)

    def renegotiate(self, capabilities: frozenset[str]) -> None:
        """Follow a handshake: without `subscriptions` the open ones end."""
        self._has_lifecycle = LIFECYCLE in capabilities
        if "subscriptions" not in capabilities:
            self.close()
            self._is_ended = False

    async def subscribe(self, engine: Engine, params: SubscribeParams, *, now: float) -> bytes:
        """Open a subscription and return the `result` that must be sent before its first event.

        Raises:
            RpcError: OVERLOADED; the connection has as many as it may have.
            EngineError: The scope is not complete, or the cursor cannot be followed.
        """
        if len(self._open) + self._opening >= self._limit:
            raise RpcError(
                ErrorCode.OVERLOADED,
                f"a connection has at most {self._limit} subscriptions; end one first",
                retryable=False,
            )
        self._opening += 1
        try:
            subscription = await engine.subscribe(params)
        finally:
            self._opening -= 1
        if self._is_ended:
            subscription.close()
            raise RpcError(ErrorCode.OVERLOADED, "the connection is ending", retryable=True)
        self._count += 1
        delivery = _Delivery(
            f"subscription-{self._count}", subscription, subscription.cursor, told_at=now
        )
        self._open[delivery.id] = delivery
        # The task takes its first step after the present one, in which the response is sent.
        delivery.task = self._work.begin(self._deliver(delivery))
        return data_json({"subscription_id": delivery.id, "cursor": delivery.delivered})

    def unsubscribe(self, subscription_id: str) -> bool:
        """End a subscription; no event of it follows. Say whether it was open."""
        delivery = self._open.pop(subscription_id, None)
        if delivery is None:
            return False
        self._release(delivery)
        return True

    def close(self) -> None:
        """End all without a word, e.g. because nobody is there to read it."""
        self._is_ended = True
        while self._open:
            self._release(self._open.popitem()[1])

    def stop(self) -> None:
        """End all because the daemon stops, and say so where that was negotiated."""
        for delivery in self._open.values():
            self._tell_closed(delivery, STOPPING)
        self.close()

    def tell_boundaries(self, now: float) -> None:
        """Tell the positions that were reached past the filters, each not too often."""
        if not self._has_lifecycle:
            return
        for delivery in self._open.values():
            cursor = delivery.subscription.cursor
            if (
                delivery.is_waiting
                and cursor != delivery.delivered
                and now - delivery.told_at >= self._boundary_seconds
                and self._outlet.has_room
            ):
                delivery.delivered = cursor
                delivery.told_at = now
                self._outlet.send(
                    notification_line(
                        SUBSCRIPTION_BOUNDARY,
                        {"subscription_id": delivery.id, "cursor": cursor},
                    )
                )

    def _release(self, delivery: _Delivery) -> None:
        if delivery.task is not None:
            delivery.task.cancel()
        delivery.subscription.close()

    async def _deliver(self, delivery: _Delivery) -> None:
        try:
            await self._follow(delivery)
        except Exception as error:
            self._fail(delivery, error)

    async def _follow(self, delivery: _Delivery) -> None:
        outlet = self._outlet
        while True:
            delivery.is_waiting = True
            events = await delivery.subscription.next_events()
            delivery.is_waiting = False
            lines: list[bytes] = []
            size = 0
            for event in events:
                line = event_line(event, delivery.id)
                lines.append(line)
                size += len(line)
                if size >= EVENT_BATCH_BYTES:
                    if not outlet.has_room:
                        await outlet.wait_for_room()
                    outlet.send(b"".join(lines))
                    delivery.delivered = event.cursor
                    lines.clear()
                    size = 0
            if not outlet.has_room:
                await outlet.wait_for_room()
            if lines:
                outlet.send(b"".join(lines))
                delivery.delivered = events[-1].cursor

    def _fail(self, delivery: _Delivery, error: Exception) -> None:
        refusal = to_wire(error)
        self._log.error(
            "subscription.failed",
            error=error if refusal is None else None,
            reason=type(error).__name__,
        )
        if self._open.pop(delivery.id, None) is None:
            return
        delivery.subscription.close()
        reason = refusal.reason if refusal is not None else None
        self._tell_closed(delivery, reason or Reason.OVERLOADED)
        if not self._has_lifecycle:
            self._outlet.close()

    def _tell_closed(self, delivery: _Delivery, reason: str) -> None:
        if self._has_lifecycle:
            self._outlet.send(
                notification_line(
                    SUBSCRIPTION_CLOSED,
                    {
                        "subscription_id": delivery.id,
                        "cursor": delivery.delivered,
                        "reason": str(reason),
                    },
                )
            )
