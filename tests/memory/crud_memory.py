"""A memory that passes calls on to the daemon as they are; for tests, never for a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from patchouli.harness import Context, PluginSpec
from patchouli.storage_client.plugin import STORAGE_SERVICE

if TYPE_CHECKING:
    from patchouli.memory_service import CallContext, MemoryRequest, RouteCall
    from patchouli.storage_client import StorageClient


class CrudMemory:
    """The attribute `operation` of a call names the method of the client; the data are its own."""

    id = "crud-test"

    def __init__(self, client: StorageClient) -> None:
        self._updates = {
            "create": client.create,
            "update": client.update,
            "delete": client.delete,
        }
        self._retrievals = {"read": client.read, "retrieve": client.retrieve}

    def filter(self, call: RouteCall) -> bool:
        return call.meta.source.type == "crud-test"

    async def update(self, request: MemoryRequest, ctx: CallContext) -> Any:
        return await self._call(self._updates, request)

    async def retrieve(self, request: MemoryRequest, ctx: CallContext) -> Any:
        return await self._call(self._retrievals, request)

    async def _call(self, methods: dict[str, Any], request: MemoryRequest) -> Any:
        operation = request.meta.attributes.get("operation")
        if not isinstance(operation, str) or operation not in methods:
            raise ValueError(f"no operation {operation!r} here")
        return await methods[operation](request.data)


def _start(ctx: Context, _: object) -> None:
    ctx.get("patchouli").register(CrudMemory(ctx.get(STORAGE_SERVICE)))


CRUD_TEST: PluginSpec[object] = PluginSpec(
    name="patchouli-crud-test", start=_start, needs=("patchouli", STORAGE_SERVICE)
)
