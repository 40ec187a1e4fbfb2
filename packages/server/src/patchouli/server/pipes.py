"""Named pipes of Windows as an endpoint."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.server.endpoint import Endpoint
from patchouli.server.settings import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.server.logs import Log


PIPE_PREFIX: Final = "\\\\.\\pipe\\"


class PipeEndpoint(Endpoint):
    r"""A pipe `\\.\pipe\…` of this machine.

    The first instance is claimed exclusively, so that nobody can listen under the name before us.
    """

    def __init__(self, name: str, log: Log) -> None:
        super().__init__(name, log)
        if not name.startswith(PIPE_PREFIX) or len(name) == len(PIPE_PREFIX):
            raise CommandError(
                f"the endpoint {name} is no pipe of this machine; its name must begin with "
                f"{PIPE_PREFIX}"
            )
        self._servers: list[Any] = []

    def claim(self) -> None:
        """Do nothing: the first instance of a pipe is exclusive by itself."""

    async def listen(self, admit: Callable[[], asyncio.Protocol]) -> None:
        """Create the first instance, and the next one with each client."""
        # Only the proactor loop of Windows has this method, and no type says so elsewhere.
        loop = cast("Any", asyncio.get_running_loop())
        try:
            self._servers = await loop.start_serving_pipe(admit, self.name)
        except OSError as error:
            raise CommandError(
                f"cannot listen on {self.name}: another daemon uses it; stop it, or give another "
                "--endpoint"
            ) from error

    def close(self) -> None:
        """Close the instance that waits for a client."""
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()

    def release(self) -> None:
        """Do nothing: the name is free when its last instance is closed."""
