"""Services: who publishes what under which name, who began with it, and who waits for it.

A provision is visible while its provider is active, until it is withdrawn; then it is invisible for
good. Whoever began with it is bound to it until its own end, which is what a provider waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from patchouli.harness.errors import AlreadyProvided

if TYPE_CHECKING:
    import asyncio


class Provider(Protocol):
    """The run that publishes a service."""

    @property
    def name(self) -> str:
        """The name of its plugin."""
        ...

    @property
    def is_active(self) -> bool:
        """Whether others may see what it publishes."""
        ...


class Dependent(Protocol):
    """The run that began with a service."""

    @property
    def ended(self) -> asyncio.Event:
        """Set when it has wholly stopped."""
        ...


class Waiter(Protocol):
    """The scope that needs a service, whether it has it or not."""

    def wake(self) -> None:
        """Look again whether all needs are met."""
        ...


class Provision:
    """A service under its name, published by one run."""

    __slots__ = ("bound", "is_withdrawn", "name", "provider", "value")

    def __init__(self, provider: Provider, name: str, value: object) -> None:
        self.provider = provider
        self.name = name
        self.value = value
        self.is_withdrawn = False
        self.bound: dict[Dependent, None] = {}  # whoever began with it and has not ended

    @property
    def is_visible(self) -> bool:
        """Whether it meets a need."""
        return not self.is_withdrawn and self.provider.is_active

    async def unbound(self) -> None:
        """Return when everyone who is bound to it has ended."""
        while self.bound:
            await next(iter(self.bound)).ended.wait()


class Services:
    """All services of one kernel, and all needs."""

    __slots__ = ("_needs", "_provisions")

    def __init__(self) -> None:
        self._provisions: dict[str, Provision] = {}
        self._needs: dict[str, dict[Waiter, None]] = {}

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
            raise AlreadyProvided(service=provision.name, provider=present.provider.name)
        self._provisions[provision.name] = provision
        self.wake(provision.name)

    async def withdraw(self, provision: Provision) -> None:
        """Free a name; return when everyone who began with the service has ended."""
        provision.is_withdrawn = True
        self.wake(provision.name)
        await provision.unbound()
        del self._provisions[provision.name]

    def wake(self, name: str) -> None:
        """Let everyone who needs `name` look again."""
        for waiter in list(self._needs.get(name, ())):
            waiter.wake()

    def add_needs(self, waiter: Waiter, names: tuple[str, ...]) -> None:
        """Have `waiter` woken whenever something about `names` changes."""
        for name in names:
            self._needs.setdefault(name, {})[waiter] = None

    def remove_needs(self, waiter: Waiter, names: tuple[str, ...]) -> None:
        """Wake `waiter` no more."""
        for name in dict.fromkeys(names):
            del self._needs[name][waiter]
            if not self._needs[name]:
                del self._needs[name]
