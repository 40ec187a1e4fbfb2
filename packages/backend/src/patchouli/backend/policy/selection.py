"""From entity type and metadata to the selection: the first rule that fits, or the fallback."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.backend.errors import InvalidRequestError
from patchouli.backend.pointers import UNBOUND
from patchouli.backend.policy.bindings import AliasBinder
from patchouli.backend.policy.keys import ScopeDeriver
from patchouli.backend.policy.plan import BehaviorPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.backend.config.models import Aliases, Policy
    from patchouli.backend.pointers import Unbound
    from patchouli.backend.policy.keys import Scope
    from patchouli.backend.policy.plan import Selection
    from patchouli.provider import Json

REMEMBERED = 4096  # selections of one type; beyond, the memory begins anew
REMEMBERED_CHARACTERS = 512  # of the metadata that was bound; for longer ones it is not worth it


class Selector:
    """One checked policy, compiled for selection; safe to use from any thread.

    The same metadata gives the same selection. Those of texts alone are remembered, because most
    requests of a client carry the same. Others are not: as keys of a dictionary, 1, 1.0 and True
    would be one. Nor are those of an idempotency identity or a causal token, which come once.
    """

    __slots__ = ("_binder", "_known", "_scopes", "_types", "entity_types")

    def __init__(self, policy: Policy) -> None:
        self._binder = AliasBinder(policy)
        self._scopes = ScopeDeriver(policy.entity_identity.scope_by, self._binder)
        self._types: dict[str, tuple[list[tuple[Aliases, BehaviorPlan]], BehaviorPlan]] = {
            name: (
                [
                    (
                        rule.when.all_present,
                        BehaviorPlan(name, rule.name, rule.behavior, self._binder),
                    )
                    for rule in entity_type.rules
                ],
                BehaviorPlan(name, None, entity_type.fallback, self._binder),
            )
            for name, entity_type in policy.entity_types.items()
        }
        self.entity_types = frozenset(self._types)
        self._known: dict[str, dict[tuple[Json | Unbound, ...], Selection]] = {
            name: {} for name in self._types
        }

    def select(
        self, entity_type: str, meta: Mapping[str, Json], *, at: str = "data/type"
    ) -> Selection:
        """Return everything the policy says about a request for `entity_type` with `meta`.

        `at` is where the request names the type.

        Raises:
            InvalidRequestError: The type is not configured, a present alias is invalid, an alias
                that is needed is absent, or the strategy is unknown; checked in this order.
        """
        known = self._known.get(entity_type)
        if known is None:
            raise InvalidRequestError(
                "the entity type is not configured; the configured types are "
                + ", ".join(sorted(self.entity_types)),
                pointer=at,
            )
        values = self._binder.values(meta)
        try:
            selection = known.get(values)
        except TypeError:  # a list or an object is among them
            return self._selected(entity_type, meta)
        if selection is None:
            selection = self._selected(entity_type, meta)
            comes_once = selection.idempotency_key is not None or selection.minimum_tokens
            if not comes_once and _is_worth_remembering(values):
                if len(known) >= REMEMBERED:
                    known.clear()
                known[values] = selection
        return selection

    def _selected(self, entity_type: str, meta: Mapping[str, Json]) -> Selection:
        bound = self._binder.bind(meta)
        rules, plan = self._types[entity_type]
        for all_present, candidate in rules:
            for alias in all_present:
                if alias not in bound:
                    break
            else:
                plan = candidate
                break
        return plan.select(self._scopes.derive(bound), bound)

    def scope(self, meta: Mapping[str, Json]) -> Scope:
        """Return the scope of a request that has no entity type, such as a subscription.

        Raises:
            InvalidRequestError: A present alias is invalid, or an alias of the scope is absent.
        """
        return self._scopes.derive(self._binder.bind(meta))

    def write_meta(self, values: Mapping[str, Json]) -> dict[str, Json]:
        """Return metadata that carries the value of each alias where requests carry it.

        Missing levels are made as objects. Of aliases that share a pointer the later one stays.
        """
        return self._binder.write(values)


def _is_worth_remembering(values: tuple[Json | Unbound, ...]) -> bool:
    characters = 0
    for value in values:
        if type(value) is str:
            characters += len(value)
        elif value is not UNBOUND:
            return False
    return characters <= REMEMBERED_CHARACTERS
