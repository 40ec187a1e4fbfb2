"""Services: who publishes what under which name, who began with it, and who waits for it.

A provision is visible while its provider is active, until it is withdrawn; then it is invisible for
good. Whoever began with it is bound to it until its own end, which is what a provider waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.harness.errors import AlreadyProvided

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Provision:
    """A service under its name, published by one run.

    Attributes:
        name: What it is asked for by.
        value: What is given to who asks.
        provider: The name of the plugin that publishes it.
        is_visible: Whether it meets a need: its provider is active and has not withdrawn it.
        bound: Set when one who began with it has wholly stopped, for each who has not.
    """

    __slots__ = ("bound", "is_visible", "name", "provider", "value")

    def __init__(self, name: str, value: object, *, provider: str, is_visible: bool) -> None:
        self.name = name
        self.value = value
        self.provider = provider
        self.is_visible = is_visible
        self.bound: dict[asyncio.Event, None] = {}

    async def unbound(self) -> None:
        """Return when everyone who is bound to it has ended."""
        while self.bound:
            await next(iter(self.bound)).wait()


class Services:
    """All services of one kernel, and all needs."""

    __slots__ = ("_needs", "_provisions")

    def __init__(self) -> None:
        self._provisions: dict[str, Provision] = {}
        self._needs: dict[str, dict[Callable[[], None], None]] = {}  # whom to wake

    def find(self, name: str) -> Provision | None:
        """Return what stands under `name`, visible or not."""
        return self._provisions.get(name)

    def visible(self, name: str) -> Provision | None:
        """Return what meets a need for `name` now."""
        provision = self._provisions.get(name)
        return provision if provision is not None and provision.is_visible else None

    def publish(self, provision: Provision) -> None:
        """Put a service under its name.

        Raises:
            AlreadyProvided: Another one stands there.
        """
        if (present := self._provisions.get(provision.name)) is not None:
            raise AlreadyProvided(service=provision.name, provider=present.provider)
        self._provisions[provision.name] = provision
        self.wake(provision.name)

    async def withdraw(self, provision: Provision) -> None:
        """Free a name; return when everyone who began with the service has ended."""
        provision.is_visible = False
        self.wake(provision.name)
        await provision.unbound()
        del self._provisions[provision.name]

    def wake(self, name: str) -> None:
        """Let everyone who needs `name` look again."""
        for wake in list(self._needs.get(name, ())):
            wake()

    def add_needs(self, wake: Callable[[], None], names: tuple[str, ...]) -> None:
        """Have `wake` called whenever something about `names` changes."""
        for name in names:
            self._needs.setdefault(name, {})[wake] = None

    def remove_needs(self, wake: Callable[[], None], names: tuple[str, ...]) -> None:
        """Call `wake` no more."""
        for name in dict.fromkeys(names):
            del self._needs[name][wake]
            if not self._needs[name]:
                del self._needs[name]
