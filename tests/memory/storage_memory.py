"""A reactive memory on the daemon: what a storage-backed plugin has to do, and no more.

It maps one subscription of the client to one of the memory service. What the client calls lost is
retryable; what the daemon calls expired needs a reset; the service saves the cursor, removes
repetitions and tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchouli.memory_service import Boundary, Change, MemorySubscriptionError
from patchouli.storage_client import (
    ChangeClose,
    PatchouliRpcError,
    StorageClient,
    StorageClientError,
)

if TYPE_CHECKING:
    from patchouli.memory_service import (
        CallContext,
        Emit,
        MemoryRequest,
        PluginSubscribeRequest,
    )
    from patchouli.storage_client import ChangeSubscription


class StorageMemory:
    """The entities of one scope of the daemon."""

    id = "storage"

    def __init__(self, client: StorageClient, meta: dict[str, Any]) -> None:
        self._client = client
        self._meta = meta

    async def update(self, request: MemoryRequest, ctx: CallContext) -> Any:
        await self._client.start()
        return await self._client.create({"meta": self._meta, "data": request.data})

    async def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Any:
        await self._client.start()
        return await self._client.retrieve({"meta": self._meta, "data": request.data})

    async def subscribe(
        self, request: PluginSubscribeRequest, emit: Emit, ctx: CallContext
    ) -> StorageSubscription:
        def on_change(event: Any) -> None:
            change = event["data"]["change"]
            emit(
                Change(
                    cursor=change["cursor"],
                    memory_id=change["ref"]["id"],
                    metadata={"type": change["ref"]["type"], "kind": change["kind"]},
                )
            )

        def on_boundary(notice: Any) -> None:
            emit(Boundary(cursor=notice["data"]["cursor"]))

        data = {} if request.after_cursor is None else {"after_cursor": request.after_cursor}
        try:
            await self._client.start()
            opened = await self._client.subscribe(
                {"meta": self._meta, "data": data}, on_change, on_boundary
            )
        except (PatchouliRpcError, StorageClientError, OSError) as error:
            raise failure_of(error) from error
        return StorageSubscription(opened)


class StorageSubscription:
    """The client's subscription as the service knows it."""

    def __init__(self, opened: ChangeSubscription) -> None:
        self.cursor = str(opened.data["cursor"])
        self._opened = opened

    async def wait_closed(self) -> None:
        close = await self._opened.wait_closed()
        if (failure := failure_of_close(close)) is not None:
            raise failure

    async def unsubscribe(self) -> None:
        await self._opened.unsubscribe()


def failure_of(error: Exception) -> MemorySubscriptionError:
    """Return what a refused or a failed opening means."""
    if not isinstance(error, PatchouliRpcError):
        return MemorySubscriptionError(str(error), retryable=True, code="unavailable")
    return MemorySubscriptionError(
        str(error),
        retryable=error.reason == "OVERLOADED",
        reset_required=error.reason == "CURSOR_EXPIRED",
        code=error.reason,
    )


def failure_of_close(close: ChangeClose) -> MemorySubscriptionError | None:
    """Return what the end of a subscription means; None for an orderly one."""
    match close.kind:
        case "unsubscribed" | "client-closed":
            return None
        case "connection-lost":
            text = str(close.error)
            return MemorySubscriptionError(text, retryable=True, code="connection-lost")
        case "server-closed":
            is_expired = close.reason == "CURSOR_EXPIRED"
            return MemorySubscriptionError(
                f"the daemon ended the subscription: {close.reason}",
                retryable=not is_expired,
                reset_required=is_expired,
                code=close.reason,
            )
