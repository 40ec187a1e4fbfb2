"""Durable cursors: how far each consumer has come, kept in a storage domain of the host.

A position belongs to four names together: the consumer, its subscription, the scope and the plugin.
They are compared as they are written. The service itself needs none of this; whatever has the three
methods of `CursorStore` will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, cast

from patchouli.harness import DomainSpec, PluginSpec, encode_json, require_json, trim
from patchouli.memory_service.errors import CursorsClosedError

if TYPE_CHECKING:
    from patchouli.harness import Context, Domain, Json, KvTable, StorageDomains
    from patchouli.memory_service.consumer import CursorStore

CURSORS_SERVICE: Final = "patchouliCursors"
CURSORS_DOMAIN: Final = "patchouli_memory"
CURSORS_TABLE: Final = "cursors"
CURSORS_VERSION: Final = 1


class ConsumerCursors(Protocol):
    """The service `patchouliCursors`."""

    def bind(self, *, consumer_id: str, subscription_key: str, scope: str) -> CursorStore:
        """Return the store of one consumer's subscription in one scope.

        Raises:
            ValueError: One of the names is blank, or no text that could be stored.
            CursorsClosedError: The domain is not open.
        """
        ...


class DomainCursors:
    """Cursors in an open storage domain, until it is closed."""

    __slots__ = ("_domain", "_table")

    def __init__(self) -> None:
        self._domain: Domain | None = None
        self._table: KvTable | None = None

    async def open(self, domains: StorageDomains) -> None:
        """Open the domain."""
        spec = DomainSpec(
            name=CURSORS_DOMAIN,
            version=CURSORS_VERSION,
            tables={CURSORS_TABLE: require_cursor_record},
        )
        self._domain = await domains.open(spec)
        self._table = self._domain.table(CURSORS_TABLE)

    async def aclose(self) -> None:
        """Close the domain, once; what is bound refuses from now on."""
        self._table = None
        domain, self._domain = self._domain, None
        if domain is not None:
            await domain.close()

    def bind(self, *, consumer_id: str, subscription_key: str, scope: str) -> CursorStore:
        """See `ConsumerCursors`."""
        for name, value in (
            ("consumerId", consumer_id),
            ("subscriptionKey", subscription_key),
            ("scope", scope),
        ):
            require_json(value, path=f"/{name}")
            if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not be typed
                raise ValueError(f"{name} is no text")
            if not trim(value):
                raise ValueError(f"{name} is blank")
        self.require_table()
        return _BoundCursors(self, [consumer_id, subscription_key, scope])

    def require_table(self) -> KvTable:
        """Return the table.

        Raises:
            CursorsClosedError: The domain is not open.
        """
        if self._table is None:
            raise CursorsClosedError
        return self._table


class _BoundCursors:
    __slots__ = ("_cursors", "_names")

    def __init__(self, cursors: DomainCursors, names: list[str]) -> None:
        self._cursors = cursors
        self._names = names

    async def load(self, plugin_id: str) -> str | None:
        record = self._cursors.require_table().get(self._key(plugin_id))
        if record is None:
            return None
        return cast("dict[str, str]", record)["cursor"]

    async def save(self, plugin_id: str, cursor: str) -> None:
        await self._cursors.require_table().put(self._key(plugin_id), {"cursor": cursor})

    async def delete(self, plugin_id: str) -> None:
        await self._cursors.require_table().delete(self._key(plugin_id))

    def _key(self, plugin_id: str) -> str:
        return encode_json([*self._names, plugin_id])


def require_cursor_record(record: Json) -> None:
    """Return when `record` is what this package stores.

    Raises:
        ValueError: It is something else.
    """
    if not (
        isinstance(record, dict)
        and record.keys() == {"cursor"}
        and isinstance(record["cursor"], str)
    ):
        raise ValueError("a record of a cursor has the member cursor, a text, and no other")


async def _start(ctx: Context, _: object) -> None:
    cursors = DomainCursors()
    # Before the opening: a run that is told to stop meanwhile takes no effects any more.
    ctx.effect(lambda: cursors.aclose, "patchouli cursors")
    await cursors.open(ctx.get("storageDomain"))
    ctx.provide(CURSORS_SERVICE, cursors)


CONSUMER_CURSORS: Final[PluginSpec[object]] = PluginSpec(
    name="patchouli-cursors", start=_start, needs=("storageDomain",)
)
