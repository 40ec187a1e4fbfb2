"""The contract of a memory plugin.

A plugin is any object with an `id` and the two methods of `MemoryPlugin`. Two further attributes
are looked up once, when it is registered: `filter`, which says which calls it wants, and
`subscribe`, which makes it reactive. A method may answer with a value or with an awaitable of one.
One that answers with a value has to do so at once: nothing else runs meanwhile, deadlines included.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from patchouli.memory_service.changes import Boundary, Change
from patchouli.memory_service.meta import CallContext, PluginSubscribeRequest, RouteCall

if TYPE_CHECKING:
    from patchouli.harness import Json
    from patchouli.memory_service.meta import MemoryRequest

RouteFilter: TypeAlias = Callable[[RouteCall], bool]
Emit: TypeAlias = Callable[[Change | Boundary], "Future[None]"]


class MemoryPlugin(Protocol):
    """A memory: what it keeps and how it finds it again is its own affair.

    Attributes:
        id: Its name in results, cursors and the user's policy; never blank.
    """

    id: str

    def update(self, request: MemoryRequest, ctx: CallContext) -> Awaitable[Json] | Json:
        """Take in the data of `request`; the update counts as done when this has ended."""
        ...

    def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Awaitable[Json] | Json:
        """Return what the memory has to say to the data of `request`."""
        ...


class PluginSubscription(Protocol):
    """A reactive plugin's side of one subscription.

    Attributes:
        cursor: The boundary: live changes follow this position.
    """

    cursor: str

    async def wait_closed(self) -> None:
        """Return at an orderly end; raise at an unexpected one."""
        ...

    async def unsubscribe(self) -> None:
        """End it; called once."""
        ...


class ReactivePlugin(MemoryPlugin, Protocol):
    """A memory that tells of its changes."""

    def subscribe(
        self, request: PluginSubscribeRequest, emit: Emit, ctx: CallContext
    ) -> Awaitable[PluginSubscription] | PluginSubscription:
        """Begin to tell of the changes behind `request.after_cursor`.

        `emit` queues a change and returns a future that is done when the change is settled; it may
        be called before this returns, but its future is then not to be awaited here. Awaiting it
        later keeps the plugin from running ahead of its consumer; it may as well be ignored.
        """
        ...


# What `ReactivePlugin.subscribe` is once it was found on a plugin.
Subscribe: TypeAlias = Callable[
    [PluginSubscribeRequest, Emit, CallContext], Awaitable[PluginSubscription] | PluginSubscription
]
