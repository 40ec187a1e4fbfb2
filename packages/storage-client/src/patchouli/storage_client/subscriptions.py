"""Raw change subscriptions: handlers in wire order, and why a subscription has ended.

A handle settles once, with the first of: `unsubscribed`, `server-closed`, `connection-lost`,
`client-closed`. From then on its handler is not called. Cursors, repetitions, the order of handlers
that wait, and subscribing again are the business of who subscribes, not of this module.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, TypeAlias, cast

from patchouli.protocol import CHANGE_EVENT, SUBSCRIPTION_BOUNDARY, SUBSCRIPTION_CLOSED
from patchouli.storage_client.errors import MalformedAnswerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.protocol import JsonObject
    from patchouli.storage_client.shapes import BoundaryNotice, ChangeEvent
    from patchouli.storage_client.tasks import Tasks

CloseKind: TypeAlias = Literal["unsubscribed", "connection-lost", "client-closed", "server-closed"]
ChangeHandler: TypeAlias = "Callable[[ChangeEvent], Awaitable[None] | None]"
BoundaryHandler: TypeAlias = "Callable[[BoundaryNotice], Awaitable[None] | None]"

_log: Final = logging.getLogger(__name__)  # noqa: TID251 -- structlog is no dependency of a client


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeClose:
    """Why a subscription has ended.

    Attributes:
        error: What ended the connection or the client.
        reason: Why the daemon closed it, in its own words.
        cursor: The last position that the daemon names as it closes it.
    """

    kind: CloseKind
    error: Exception | None = None
    reason: str | None = None
    cursor: str | None = None


class ChangeSubscription:
    """A subscription that was accepted; `meta` and `data` are the answer to the subscribe."""

    def __init__(
        self,
        answer: JsonObject,
        subscription_id: str,
        *,
        closed: asyncio.Future[ChangeClose],
        unsubscribe: Callable[[], asyncio.Future[object]],
    ) -> None:
        """Take the answer, what will say why it has ended, and what sends the request to end it."""
        self.meta: Final[JsonObject] = cast("JsonObject", answer.get("meta", {}))
        self.data: Final[JsonObject] = cast("JsonObject", answer["data"])
        self.subscription_id: Final = subscription_id
        self._unsubscribe: Final = unsubscribe
        self._closed: Final = closed
        self._unsubscribing: asyncio.Future[object] | None = None

    @property
    def closed_with(self) -> ChangeClose | None:
        """Why the subscription has ended, or None while it has not."""
        return self._closed.result() if self._closed.done() else None

    async def wait_closed(self) -> ChangeClose:
        """Return why the subscription has ended, as soon as it has."""
        return await asyncio.shield(self._closed)

    async def unsubscribe(self) -> None:
        """End the subscription; all callers share one request, and a later one does nothing.

        Raises:
            PatchouliRpcError: The daemon refused; a later call asks again.
            ConnectionLostError: The connection ended meanwhile, and the subscription with it.
            ClientClosedError: The client was closed meanwhile.
        """
        if self._closed.done():
            return
        if self._unsubscribing is None or self._unsubscribing.done():
            self._unsubscribing = self._unsubscribe()
        await asyncio.shield(self._unsubscribing)

    def when_closed(self, call: Callable[[ChangeClose], None]) -> None:
        """Have `call` called in the event loop when the handle has closed, or now if it has."""
        if self._closed.done():
            call(self._closed.result())
        else:
            self._closed.add_done_callback(lambda closed: call(closed.result()))


class _Open(NamedTuple):
    subscription_id: str
    closed: asyncio.Future[ChangeClose]
    handler: ChangeHandler
    on_boundary: BoundaryHandler | None


class Subscriptions:
    """The open subscriptions of a client's connection, by id."""

    def __init__(self, tasks: Tasks, unsubscribe: Callable[[str], Awaitable[object]]) -> None:
        self._tasks: Final = tasks
        self._unsubscribe: Final = unsubscribe
        self._open: Final[dict[str, _Open]] = {}

    def open(
        self,
        answer: JsonObject,
        handler: ChangeHandler,
        on_boundary: BoundaryHandler | None,
    ) -> ChangeSubscription:
        """Register the handler for what comes behind `answer` and return the handle.

        Raises:
            MalformedAnswerError: The answer names no subscription, or one that is open already.
        """
        subscription_id = subscription_of(answer)
        if subscription_id is None or subscription_id in self._open:
            raise MalformedAnswerError("the answer to the subscribe names no new subscription")
        closed: asyncio.Future[ChangeClose] = asyncio.get_running_loop().create_future()
        self._open[subscription_id] = _Open(subscription_id, closed, handler, on_boundary)
        return ChangeSubscription(
            answer,
            subscription_id,
            closed=closed,
            unsubscribe=lambda: self._start_unsubscribe(subscription_id),
        )

    def close(self, subscription_id: object, close: ChangeClose) -> None:
        """Settle a handle; an unknown id is ignored."""
        found = self._open.pop(subscription_id, None) if type(subscription_id) is str else None
        if found is not None:
            found.closed.set_result(close)

    def close_all(self, close: ChangeClose) -> None:
        """Settle every handle."""
        for subscription_id in list(self._open):
            self.close(subscription_id, close)

    def notify(self, method: str, params: Any) -> None:
        """Do what a notification says; one of an unknown kind or subscription is dropped."""
        if method == CHANGE_EVENT:
            found = self._find(params)
            if found is not None:
                self._run(found, found.handler, params)
        elif method == SUBSCRIPTION_BOUNDARY:
            found = self._find(params)
            if found is not None and found.on_boundary is not None:
                self._run(found, found.on_boundary, params)
        elif method == SUBSCRIPTION_CLOSED:
            found = self._find(params)
            if found is not None:
                data = params["data"]
                self.close(
                    found.subscription_id,
                    ChangeClose(
                        kind="server-closed",
                        reason=_text_or_none(data.get("reason")),
                        cursor=_text_or_none(data.get("cursor")),
                    ),
                )

    def _start_unsubscribe(self, subscription_id: str) -> asyncio.Future[object]:
        return self._tasks.start(self._unsubscribe(subscription_id), is_request=True)

    def _find(self, params: Any) -> _Open | None:
        subscription_id = subscription_of(params)
        return None if subscription_id is None else self._open.get(subscription_id)

    def _run(self, found: _Open, handler: Callable[[Any], Any], params: Any) -> None:
        try:
            waiting = handler(params)
            if waiting is not None and inspect.isawaitable(waiting):
                task = self._tasks.start(waiting)
                task.add_done_callback(lambda ended: _report(found, ended))
        except BaseException as error:  # of whoever has written the handler
            _complain(found, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                # They are meant for the loop, which gets them behind what was read with this event.
                asyncio.get_running_loop().call_soon(_raise, error)


def subscription_of(params: Any) -> str | None:
    """Return `data.subscription_id`, or None where there is none."""
    if type(params) is dict:
        data = cast("dict[str, Any]", params).get("data")
        if type(data) is dict:
            return _text_or_none(cast("dict[str, Any]", data).get("subscription_id"))
    return None


def _text_or_none(value: object) -> str | None:
    return value if type(value) is str else None


def _report(found: _Open, ended: asyncio.Future[Any]) -> None:
    if not ended.cancelled() and (error := ended.exception()) is not None:
        _complain(found, error)


def _raise(error: BaseException) -> NoReturn:
    raise error


def _complain(found: _Open, error: BaseException) -> None:
    _log.warning(
        "the handler of %s failed: %s",
        found.subscription_id,
        type(error).__name__,
        exc_info=error,
    )
