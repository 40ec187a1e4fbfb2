"""The registered plugins, in the order in which they came."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

from patchouli.harness import require_json, trim
from patchouli.memory_service.errors import RegistrationError
from patchouli.memory_service.routing import admits, is_async, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.memory_service.configuration import MemoryServiceConfig
    from patchouli.memory_service.meta import RouteCall
    from patchouli.memory_service.plugin import MemoryPlugin, RouteFilter, Subscribe


class Entry:
    """One registration: what was found on the plugin when it was registered.

    Attributes:
        plugin_id: Its id, as it gave it.
        plugin: The plugin.
        subscribe: Its method if it is reactive, else None.
        retrieve_timeout_ms: The deadline of its retrievals.
        on_removed: Called when the registration goes, in the order in which they were added.
    """

    __slots__ = (
        "_filters",
        "_policy",
        "on_removed",
        "plugin",
        "plugin_id",
        "retrieve_timeout_ms",
        "subscribe",
    )

    def __init__(
        self,
        plugin_id: str,
        plugin: MemoryPlugin,
        subscribe: Subscribe | None,
        filters: tuple[RouteFilter, ...],
        config: MemoryServiceConfig,
    ) -> None:
        self.plugin_id = plugin_id
        self.plugin = plugin
        self.subscribe = subscribe
        written = config.routing.get(plugin_id)
        self._policy = None if written is None else policy_of(written)
        self._filters = filters
        own = None if written is None else written.retrieve_timeout_ms
        self.retrieve_timeout_ms = config.retrieve_timeout_ms if own is None else own
        self.on_removed: dict[Callable[[], None], None] = {}

    def admits(self, call: RouteCall) -> bool:
        """Say whether the plugin gets `call`; raises what a filter raises."""
        return admits(self._policy, self._filters, call)


class Registry:
    """The live registrations; at most one for an id."""

    __slots__ = ("_by_id", "_config")

    def __init__(self, config: MemoryServiceConfig) -> None:
        self._config = config
        self._by_id: dict[str, Entry] = {}  # in the order of registration

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The registrations as they are now, in their order."""
        return tuple(self._by_id.values())

    def prepare(self, plugin: MemoryPlugin, filter: RouteFilter | None) -> Entry:  # noqa: A002 - the specification's word
        """Return a registration that may be added; nothing has changed yet.

        Raises:
            RegistrationError: It may not.
        """
        plugin_id: Any = getattr(plugin, "id", None)  # Any: plugins may not be typed
        if type(plugin_id) is not str or not trim(plugin_id):
            raise RegistrationError("blank-id", plugin_id, "its id must be a text with a character")
        try:
            require_json(plugin_id)
        except ValueError as error:
            raise RegistrationError("blank-id", plugin_id, f"its id is {error}") from None
        if plugin_id in self._by_id:
            raise RegistrationError("duplicate-id", plugin_id, "the id is registered")
        if isinstance(plugin, type):
            raise RegistrationError("not-a-plugin", plugin_id, "it is a class: register an object")
        for method in ("update", "retrieve"):
            found: Any = getattr(plugin, method, None)  # Any: as above
            if not callable(found):
                raise RegistrationError("not-a-plugin", plugin_id, f"it has no method {method}")
            if not _takes(found, "request", "ctx"):
                problem = f"its {method} cannot be called with (request, ctx)"
                raise RegistrationError("not-a-plugin", plugin_id, problem)
        subscribe: Any = getattr(plugin, "subscribe", None)  # Any: as above
        if not callable(subscribe):
            subscribe = None
        elif not _takes(subscribe, "request", "emit", "ctx"):
            problem = "its subscribe cannot be called with (request, emit, ctx)"
            raise RegistrationError("not-a-plugin", plugin_id, problem)
        filters: list[RouteFilter] = []
        given: tuple[Any, ...] = (getattr(plugin, "filter", None), filter)  # Any: as above
        for one in given:
            if one is None:
                continue
            if not callable(one):
                raise RegistrationError("not-a-plugin", plugin_id, "a filter cannot be called")
            if is_async(one):
                raise RegistrationError("async-filter", plugin_id, "a filter must answer at once")
            filters.append(cast("RouteFilter", one))
        return Entry(
            plugin_id, plugin, cast("Subscribe | None", subscribe), tuple(filters), self._config
        )

    def add(self, entry: Entry) -> None:
        """Have `entry` get the calls that begin from now on."""
        self._by_id[entry.plugin_id] = entry

    def remove(self, entry: Entry) -> bool:
        """Keep further calls from `entry`; say whether it was there."""
        if self._by_id.get(entry.plugin_id) is not entry:
            return False
        del self._by_id[entry.plugin_id]
        while entry.on_removed:
            callback = next(iter(entry.on_removed))
            del entry.on_removed[callback]
            callback()
        return True


def _takes(function: Callable[..., object], *arguments: str) -> bool:
    """Say whether a call with as many arguments as that gets as far as the function."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one that does not say what it takes
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
