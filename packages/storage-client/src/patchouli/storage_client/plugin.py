"""The client as the service `patchouliStorage` of a harness.

Needs the extra `harness`. The service appears after a handshake has succeeded, so whoever needs it
starts with a live connection; it goes, and its dependents stop, before the connection is closed. A
lost connection does not stop them: they see it, and call `start()` when they want to go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.harness import Context, PluginSpec
from patchouli.storage_client.client import StorageClient
from patchouli.storage_client.configuration import ClientConfig
from patchouli.storage_client.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

STORAGE_SERVICE: Final = "patchouliStorage"


async def _start(ctx: Context, config: ClientConfig) -> None:
    client = StorageClient(config)
    # Before the start, which may be cut off halfway; and undone after the service, which is above.
    ctx.effect(lambda: client.close, "connection to the daemon")
    await client.start()
    ctx.provide(STORAGE_SERVICE, client)


def _configured(raw: Any) -> ClientConfig:  # whatever the host has read
    if raw is None:
        return ClientConfig()
    if isinstance(raw, ClientConfig):
        return raw
    if isinstance(raw, dict):
        return ClientConfig.from_json(cast("Mapping[str, object]", raw))
    raise ConfigurationError("the configuration of the storage client must be an object")


STORAGE_PLUGIN: Final = PluginSpec(name="patchouli-storage", start=_start, config=_configured)
