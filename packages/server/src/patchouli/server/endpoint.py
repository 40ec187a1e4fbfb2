"""Where clients connect, whatever the platform calls it.

An endpoint is *claimed* first, before any storage is opened: whoever else listens there is found
out then and left alone. Then it *listens*; when the daemon begins to end it is *closed*; when
everything has ended it is *released*.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from patchouli.server.logs import Log


class Endpoint(ABC):
    """One place to connect to."""

    def __init__(self, name: str, log: Log) -> None:
        self.name: Final = name
        self._log: Final = log

    @abstractmethod
    def claim(self) -> None:
        """Make sure that nobody listens here and nobody else begins to.

        Raises:
            CommandError: Somebody does, or the place cannot be used; nothing was changed there.
        """

    @abstractmethod
    async def listen(self, admit: Callable[[], asyncio.Protocol]) -> None:
        """Accept connections, each with the protocol that `admit` returns.

        Raises:
            CommandError: The place cannot be used after all.
        """

    @abstractmethod
    def close(self) -> None:
        """Accept nothing more and remove what `listen` made; closing again does nothing."""

    @abstractmethod
    def release(self) -> None:
        """Give up the claim; releasing again does nothing."""
