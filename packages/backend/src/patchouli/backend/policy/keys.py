"""Scopes and control keys: the texts that namespace and name what a request touches.

Texts depend on alias names and values alone, never on the order of aliases in the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchouli.backend.canonical import canonical, control_key
from patchouli.provider import ScopeText

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.backend.config.models import Aliases
    from patchouli.backend.policy.bindings import AliasBinder
    from patchouli.provider import ControlKey, Json

CACHED_SCOPES = 4096  # scopes remembered; beyond, the memory begins anew
CACHED_SCOPE_CHARACTERS = 512  # longer ones are derived each time: 4096 of them stay below 10 MB


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The isolation prefix of everything a request reads or writes.

    `key` is the control key without fields, which names the whole scope as one domain.
    """

    text: ScopeText
    fields: Mapping[str, Json]
    key: ControlKey


class ScopeDeriver:
    """Derives scopes from bound aliases.

    Scopes made of strings are remembered, because a few of them come again and again. Others are
    not: as keys of a dictionary, 1, 1.0 and True would be one.
    """

    __slots__ = ("_aliases", "_binder", "_known")

    def __init__(self, aliases: Aliases, binder: AliasBinder) -> None:
        self._aliases = aliases
        self._binder = binder
        self._known: dict[tuple[str, ...], Scope] = {}

    def derive(self, bound: Mapping[str, Json]) -> Scope:
        """Return the scope of a request.

        Raises:
            InvalidRequestError: An alias of the scope is unbound; the first one of the policy's
                list is named.
        """
        values: list[str] = []
        for alias in self._aliases:
            if alias not in bound:
                raise self._binder.missing(alias, "it is part of the scope")
            value = bound[alias]
            if type(value) is not str:
                return self._derived(bound)
            values.append(value)
        identity = tuple(values)
        known = self._known.get(identity)
        return self._remembered(identity, bound) if known is None else known

    def _derived(self, bound: Mapping[str, Json]) -> Scope:
        for alias in self._aliases:
            if alias not in bound:
                raise self._binder.missing(alias, "it is part of the scope")
        fields = {alias: bound[alias] for alias in sorted(self._aliases)}
        text = ScopeText(canonical(fields))
        return Scope(text=text, fields=fields, key=control_key(text, {}))

    def _remembered(self, identity: tuple[str, ...], bound: Mapping[str, Json]) -> Scope:
        scope = self._derived(bound)
        if len(scope.text) <= CACHED_SCOPE_CHARACTERS:
            if len(self._known) >= CACHED_SCOPES:
                self._known.clear()
            self._known[identity] = scope
        return scope


class KeyDeriver:
    """Derives one control key; `purpose` says to a caller why a missing alias is needed."""

    __slots__ = ("_aliases", "_binder", "_purpose")

    def __init__(self, aliases: Aliases, binder: AliasBinder, purpose: str) -> None:
        self._aliases = tuple(sorted(aliases))
        self._binder = binder
        self._purpose = purpose

    def derive(self, scope: Scope, bound: Mapping[str, Json]) -> ControlKey:
        """Return the key of a request.

        Raises:
            InvalidRequestError: An alias of the key is unbound; the first in code-point order is
                named.
        """
        if not self._aliases:
            return scope.key
        for alias in self._aliases:
            if alias not in bound:
                raise self._binder.missing(alias, self._purpose)
        return control_key(scope.text, {alias: bound[alias] for alias in self._aliases})

    def derive_or_none(self, scope: Scope, bound: Mapping[str, Json]) -> ControlKey | None:
        """Return the key of a request, or None if an alias of it is unbound."""
        if all(alias in bound for alias in self._aliases):
            return self.derive(scope, bound)
        return None
