"""A daemon inside the test's own event loop, on a real socket and a real store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from patchouli.server.assemble import open_daemon
from patchouli.server.lifecycle import Stop
from patchouli.server.logs import Log
from patchouli.server.settings import Limits, resolve
from patchouli.server.testing.peer import Peer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from patchouli.server.lifecycle import Daemon
    from patchouli.server.settings import Settings


@dataclass(frozen=True, slots=True)
class Served:
    """A daemon that serves, and what it takes to talk to it and to end it."""

    daemon: Daemon
    endpoint: Path
    stop: Stop

    async def connect(self, *capabilities: str) -> Peer:
        """Return a peer that has shaken hands."""
        return await Peer.connect(self.endpoint, capabilities=capabilities)


def settings_of(home: Path, **limits: int) -> Settings:
    """Return the settings of a daemon of `home` with some limits of its own."""
    return replace(resolve({}, home=home), limits=replace(Limits(), **limits))


@asynccontextmanager
async def serving(settings: Settings, *, log: Log | None = None) -> AsyncGenerator[Served]:
    """Yield a daemon that serves; afterwards stop it and wait for its end."""
    stop = Stop()
    ready = asyncio.Event()
    async with open_daemon(settings, stop=stop, log=log or Log()) as daemon:
        serve = asyncio.ensure_future(daemon.serve(ready.set))
        announced = asyncio.ensure_future(ready.wait())
        await asyncio.wait([serve, announced], return_when=asyncio.FIRST_COMPLETED)
        announced.cancel()
        if serve.done():
            serve.result()
        try:
            yield Served(daemon, Path(settings.endpoint), stop)
        finally:
            stop.accept()
            await serve
