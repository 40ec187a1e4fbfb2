"""What a retrieval looks for and what it has found, both sides of every source of hits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from patchouli.provider import Order, Position, sort_key

if TYPE_CHECKING:
    from patchouli.provider import RetrievePlan

SortKey = tuple[int | float | str, ...]


class Found(NamedTuple):
    """An entity that matches, at its place in the order: `key` first, so that it sorts by it."""

    key: SortKey
    entity_id: int
    type: str
    id: str
    score: float
    recorded_at: int

    @property
    def position(self) -> Position:
        """Where the entity stands, for what comes after it."""
        return Position(
            score=self.score, recorded_at_unix_ms=self.recorded_at, type=self.type, id=self.id
        )


class Wanted:
    """A plan, with what every source asks of it prepared once."""

    def __init__(self, plan: RetrievePlan) -> None:
        if plan.text is None and plan.order is Order.RELEVANCE:
            # Without a text every score is 0, and the newest come first.
            plan = replace(plan, order=Order.NEWEST)
        self.plan = plan
        self.is_descending = plan.order is Order.ID_DESCENDING
        self._types = None if plan.types is None else frozenset(plan.types)
        self._after = None if plan.after is None else sort_key(plan.order, plan.after)

    def admits(self, type_: str, id_: str) -> bool:
        """Return whether the types and ids of the plan let the entity pass."""
        ids = self.plan.ids
        return (self._types is None or type_ in self._types) and (ids is None or id_ in ids)

    def found(self, entity_id: int, type_: str, id_: str, score: float, recorded_at: int) -> Found:
        """Return the entity with its key."""
        position = Position(score=score, recorded_at_unix_ms=recorded_at, type=type_, id=id_)
        key = sort_key(self.plan.order, position)
        return Found(key, entity_id, type_, id_, score, recorded_at)

    def is_after(self, found: Found) -> bool:
        """Return whether the entity stands strictly after the end of the page before."""
        if self._after is None:
            return True
        return found.key < self._after if self.is_descending else found.key > self._after
