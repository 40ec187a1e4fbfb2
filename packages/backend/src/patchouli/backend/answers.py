"""What a request is told: metadata and views made of what the provider said, or why not.

Errors that say one thing in several places have their words here, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.backend.canonical import canonical
from patchouli.backend.errors import (
    DeadlineExceededError,
    EngineError,
    EntityConflict,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    VersionConflictError,
    WorkUnitExpiredError,
)
from patchouli.backend.results import EntityResult, VersionView
from patchouli.provider import IdentityTaken, Unavailable, UnitRefused, UnitState, VersionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from patchouli.backend.config.models import Policy
    from patchouli.backend.policy.plan import Selection
    from patchouli.backend.policy.selection import Selector
    from patchouli.backend.results import EntityState
    from patchouli.provider import EntityKey, Json, Observation, UnitConflict, Version


_UNIT_REFUSALS = {
    UnitState.CLOSING: "the work unit is closed and waits for its publication; it takes no more "
    "requests",
    UnitState.COMMITTED: "the work unit was published; begin another one",
    UnitState.POLICY_MISMATCH: "the work unit was begun in another scope or under another behavior",
}


class Answers:
    """The metadata that one policy wants in results and events."""

    def __init__(self, policy: Policy, selector: Selector) -> None:
        self._selector = selector
        self._is_flat = all(
            field.pointer == f"/{alias}" and "~" not in alias and "/" not in alias
            for alias, field in policy.meta_fields.items()
        )

    def accepted(self, key: EntityKey, selection: Selection, version: Version) -> EntityResult:
        """Return the result of a mutation that was accepted as `version`."""
        aliases = selection.behavior.causal_aliases
        meta = self._selector.write_meta(dict.fromkeys(aliases, version.id)) if aliases else {}
        return EntityResult(meta, VersionView(key.type, key.id, version.id, version.value_json))

    def observed(
        self, selections: Sequence[Selection], observation: Observation
    ) -> dict[str, Json]:
        """Return the metadata of a read: the token of what it observed, under each causal alias."""
        token = observation.causal_token
        aliases = [alias for found in selections for alias in found.causal_aliases]
        if token is None or not aliases:
            return {}
        return self._selector.write_meta(dict.fromkeys(aliases, token))

    def event_meta(self, selection: Selection, token: str) -> str:
        """Return the metadata of the request as its change event carries it.

        Everything that was bound, where the request carried it; under the causal aliases the token
        of the change itself.
        """
        bindings = selection.bindings
        aliases = selection.behavior.causal_aliases
        if aliases:
            bindings = {**bindings, **dict.fromkeys(aliases, token)}
        return canonical(bindings if self._is_flat else self._selector.write_meta(bindings))


def state(heads: Sequence[Version]) -> EntityState:
    """Return what an entity is that has these heads, at least one."""
    if len(heads) > 1:
        return "conflicted"
    return "active" if heads[0].state is VersionState.ACTIVE else "deleted"


def views(key: EntityKey, heads: Sequence[Version]) -> tuple[VersionView, ...]:
    """Return the heads of an entity as results show them."""
    return tuple([VersionView(key.type, key.id, head.id, head.value_json) for head in heads])


def late() -> DeadlineExceededError:
    """Return the refusal of a request whose deadline passed."""
    return DeadlineExceededError("the deadline passed before the request was accepted")


def not_found() -> NotFoundError:
    """Return the refusal of a request for an identity that never existed."""
    return NotFoundError("the entity does not exist in this scope")


def in_the_way(conflicts: Iterable[UnitConflict]) -> VersionConflictError:
    """Return the refusal of a close whose work unit these entities keep from being published."""
    return VersionConflictError(
        "others changed what the work unit was based on, and it cannot be reconciled; it takes no "
        "more mutations and expires",
        conflicts=[
            EntityConflict(
                entity_type=conflict.key.type,
                entity_id=conflict.key.id,
                current_versions=tuple(head.id for head in conflict.published_heads),
            )
            for conflict in conflicts
        ],
    )


def refused(outcome: object) -> EngineError:
    """Return the error of an outcome that is none of the expected ones."""
    match outcome:
        case Unavailable():
            return OverloadedError(
                "the state that the request must observe is not available here yet",
                retryable=True,
            )
        case UnitRefused(state=UnitState.EXPIRED):
            return WorkUnitExpiredError("the work unit expired and was discarded")
        case UnitRefused(state=state):
            return InvalidRequestError(_UNIT_REFUSALS[state])
        case IdentityTaken():
            return IdempotencyConflictError("the idempotency identity belongs to another mutation")
        case _:
            raise TypeError(f"a provider answered with {type(outcome).__name__}")
