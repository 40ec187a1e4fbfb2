"""Whether a request may begin: its deadline, and what the policy says about it.

Nothing here asks the provider. The steps of a request are taken in the order of the methods, and
the first one that fails is the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.backend.answers import late
from patchouli.backend.errors import InvalidRequestError
from patchouli.provider import INTEGER_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.backend.policy.plan import Selection
    from patchouli.backend.policy.selection import Selector
    from patchouli.protocol import JsonObject
    from patchouli.provider import Clock, WorkUnit

_DEADLINE = "deadline_unix_ms"
_DEADLINE_MAX = 2**64 - 1


class Admission:
    """The entrance of one engine."""

    def __init__(self, selector: Selector, clock: Clock) -> None:
        self._selector = selector
        self._clock = clock

    def deadline(self, meta: JsonObject) -> int | None:
        """Return the deadline of a request, which has not passed."""
        if _DEADLINE not in meta:
            return None
        deadline = meta[_DEADLINE]
        if type(deadline) is not int or not 0 <= deadline <= _DEADLINE_MAX:
            raise InvalidRequestError(
                f"meta/{_DEADLINE} must be an integer from 0 to 2^64 - 1",
                pointer=f"meta/{_DEADLINE}",
            )
        self.require_time(deadline)
        return min(deadline, INTEGER_MAX)

    def require_time(self, deadline_unix_ms: int | None) -> None:
        """Return if the deadline has not passed.

        Raises:
            DeadlineExceededError: It has.
        """
        if deadline_unix_ms is not None and self._clock.unix_ms() >= deadline_unix_ms:
            raise late()

    def select(
        self, entity_type: str, meta: JsonObject, deadline: int | None, *, at: str
    ) -> Selection:
        """Return the selection for the type that the request names `at` a pointer."""
        selection = self._selector.select(entity_type, meta, at=at)
        self.require_time(deadline)
        return selection

    def unit(self, selection: Selection) -> WorkUnit | None:
        """Return the work unit of a request as the store is asked for it now, if it has one."""
        unit = selection.unit
        if unit is None:
            return None
        return unit.at(selection.scope, now_unix_ms=self._clock.unix_ms())

    def types(self, named: Sequence[str] | None) -> tuple[str, ...]:
        """Return the entity types of a retrieval, ascending."""
        configured = self._selector.entity_types
        if named is None:
            return tuple(sorted(configured))
        if not named or not configured.issuperset(named):
            raise InvalidRequestError(
                f"data/types must name configured types: {', '.join(sorted(configured))}",
                pointer="data/types",
            )
        return tuple(sorted(set(named)))
