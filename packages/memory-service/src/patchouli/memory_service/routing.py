"""Who gets a call: policy first, then the plugin's filter, then that of its registration.

A filter that a policy makes needless is never run, so a plugin that is switched off cannot fail.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from patchouli.harness import json_equal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from patchouli.harness import Json
    from patchouli.memory_service.configuration import RoutingPolicy
    from patchouli.memory_service.meta import RouteCall
    from patchouli.memory_service.plugin import RouteFilter

_ABSENT: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A user's policy, made ready to be asked often."""

    enabled: bool
    operations: frozenset[str]
    source_types: frozenset[str]
    source_ids: frozenset[str]
    scopes: frozenset[str]
    attributes: Mapping[str, Json]

    def passes(self, call: RouteCall) -> bool:
        """Say whether every selector that is set matches `call`."""
        meta = call.meta
        return (
            self.enabled
            and (not self.operations or call.operation in self.operations)
            and (not self.source_types or meta.source.type in self.source_types)
            and (not self.source_ids or meta.source.id in self.source_ids)
            and (not self.scopes or meta.scope in self.scopes)
            and all(
                (found := meta.attributes.get(name, _ABSENT)) is not _ABSENT
                and json_equal(wanted, found)
                for name, wanted in self.attributes.items()
            )
        )


def policy_of(written: RoutingPolicy) -> Policy:
    """Return what the user wrote, ready to be asked."""
    return Policy(
        enabled=written.enabled,
        operations=frozenset(written.operations),
        source_types=frozenset(written.source_types),
        source_ids=frozenset(written.source_ids),
        scopes=frozenset(written.scopes),
        attributes=written.attributes,
    )


def admits(policy: Policy | None, filters: tuple[RouteFilter, ...], call: RouteCall) -> bool:
    """Say whether the plugin with this policy and these filters gets `call`.

    Raises:
        Exception: Whatever a filter raises.
        TypeError: A filter left something to be awaited, which would count as true.
    """
    if policy is not None and not policy.passes(call):
        return False
    return all(_answer(one, call) for one in filters)


def is_async(function: object) -> bool:
    """Say whether calling `function` makes a coroutine or an asynchronous generator."""
    called: Any = getattr(function, "__call__", None)  # noqa: B004 - the method of a callable object
    return any(
        inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one)
        for one in (function, called)
    )


def require_answer(answer: object, who: str) -> None:
    """Return unless `answer` is still to be awaited, and was to be there at once.

    Raises:
        TypeError: It is.
    """
    if inspect.isawaitable(answer) or inspect.isasyncgen(answer):
        close = getattr(cast("object", answer), "close", None)
        if callable(close):  # a coroutine that is dropped without it complains later
            close()
        raise TypeError(f"{who} must answer at once and returned an awaitable")


def _answer(filter: Callable[[RouteCall], object], call: RouteCall) -> bool:  # noqa: A002 - the specification's word
    answer = filter(call)
    if answer is True or answer is False:
        return answer
    require_answer(answer, "a filter")
    return bool(answer)
