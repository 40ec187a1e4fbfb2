"""The service as its callers see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from patchouli.memory_service.changes import ChangeEvent
from patchouli.memory_service.errors import MemorySubscriptionError

if TYPE_CHECKING:
    from patchouli.harness import CancelSignal
    from patchouli.memory_service.meta import MemoryRequest, RouteCall, SubscribeRequest
    from patchouli.memory_service.plugin import MemoryPlugin, RouteFilter
    from patchouli.memory_service.results import Outcome

ChangeHandler: TypeAlias = Callable[[ChangeEvent], Awaitable[None] | None]


class CursorStore(Protocol):
    """How far one consumer has come in one subscription and scope, by plugin."""

    async def load(self, plugin_id: str) -> str | None:
        """Return the saved position; None if there is none."""
        ...

    async def save(self, plugin_id: str, cursor: str) -> None:
        """Return when the position is kept."""
        ...

    async def delete(self, plugin_id: str) -> None:
        """Forget the position; for a consumer that has finished its own resynchronisation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionFailure:
    """One failure of one plugin's part of a subscription."""

    plugin_id: str
    error: MemorySubscriptionError


class Subscription(Protocol):
    """A running subscription.

    Attributes:
        plugin_ids: The plugins that take part, fixed when it was made.
    """

    @property
    def plugin_ids(self) -> tuple[str, ...]:
        """The plugins that take part, in registration order; fixed for its life."""
        ...

    async def wait_closed(self) -> None:
        """Return when the subscription has ended and everything is cleaned up."""
        ...

    async def unsubscribe(self) -> None:
        """End it, once; every call returns when all is cleaned up.

        Called by a handler of this subscription it returns at once; `wait_closed` tells the end.
        Two handlers that end each other's subscription wait for each other, as any two tasks would.
        """
        ...


class Registration(Protocol):
    """A registered plugin's handle."""

    @property
    def plugin_id(self) -> str:
        """Whose registration it is."""
        ...

    async def dispose(self) -> None:
        """Remove this registration and no other; calls already under way go on."""
        ...


class MemoryService(Protocol):
    """Update, retrieve and subscribe over every registered memory plugin."""

    def register(
        self,
        plugin: MemoryPlugin,
        *,
        filter: RouteFilter | None = None,  # noqa: A002 - the specification's word
    ) -> Registration:
        """Add a plugin until the calling scope stops or the handle is disposed of.

        Raises:
            RegistrationError: The id is blank or taken, a filter is asynchronous, a method is
                missing or cannot take its arguments, or it is a class. Nothing has changed.
            ScopeClosed: The calling scope stops or has stopped.
        """
        ...

    async def update(
        self, request: MemoryRequest, *, signal: CancelSignal | None = None
    ) -> tuple[Outcome, ...]:
        """Return what every routed plugin answered, in registration order, when all have ended.

        Raises:
            TypeError: It is no request, or its envelope is none; as with `NotJson`.
            NotJson: The request is no lossless JSON; no filter and no plugin has run.
            Exception: The reason of `signal`. Updates under way are not cut.
        """
        ...

    async def retrieve(
        self, request: MemoryRequest, *, signal: CancelSignal | None = None
    ) -> tuple[Outcome, ...]:
        """Return what every routed plugin answered within its deadline, in registration order.

        Raises:
            TypeError: It is no request, or its envelope is none; as with `NotJson`.
            NotJson: The request is no lossless JSON; no filter and no plugin has run.
            Exception: The reason of `signal`.
        """
        ...

    async def subscribe(
        self,
        request: SubscribeRequest,
        handler: ChangeHandler,
        *,
        cursors: CursorStore,
        on_error: Callable[[SubscriptionFailure], None] | None = None,
        signal: CancelSignal | None = None,
    ) -> Subscription:
        """Have `handler` called for every change of the routed plugins, one at a time for each.

        Every change is delivered at least once and in its plugin's order, from the saved cursor on;
        it is saved when the handler has ended. Returns before any plugin has been opened.
        `on_error` is called for every failure, retryable ones too, and has to answer at once; what
        it raises is logged.

        Raises:
            TypeError: It is no request, or its envelope is none; the handler cannot be called;
                `on_error` cannot be called or is a coroutine function.
            NotJson: The envelope is no lossless JSON.
            ScopeClosed: The calling scope stops or has stopped.
            Exception: The reason of `signal`.
        """
        ...

    def matching(self, call: RouteCall) -> tuple[str, ...]:
        """Return which plugins would get `call`; a filter that fails counts as a refusal."""
        ...
