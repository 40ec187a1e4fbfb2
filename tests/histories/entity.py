"""One entity as a sequential machine: what each operation may be told, and what it leaves.

The state is the set of heads, and which versions were ever known. Where a merge meets concurrent
heads, what it makes of them is not decided here: the change that published it says so, and only the
bounds that hold for every merge are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from tests.histories.history import DELETED, Accepted, Conflict, NotFound, Published, Refused, Shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.histories.history import Operation

Versions = frozenset[str]


@dataclass(frozen=True, slots=True)
class State:
    """Heads, tombstones, and all versions that can be named as a base.

    `is_apart`: it was created more than once, in units and beside them, so its heads may share no
    history. A merge from a base that is no head is refused then, if the store cannot join them.
    """

    heads: Versions = frozenset()
    tombstones: Versions = frozenset()
    known: Versions = frozenset()
    is_apart: bool = False

    def allows(self, operation: Operation) -> bool:
        """Whether the operation, which changes nothing, may be told this here."""
        match operation.outcome:
            case Shown() as shown:
                return self._shows(shown)
            case NotFound():
                return operation.kind != "create" and not self.heads
            case Conflict(heads):
                return heads == self.heads and (
                    self._refuses(operation) or self._may_refuse(operation)
                )
            case Refused():
                return True
            case _:
                return False

    def after(
        self, operation: Operation, version: str, merged: Mapping[str, Sequence[Versions]] | None
    ) -> Iterator[State]:
        """Yield the states that the operation may leave if it made `version` here.

        `merged` has the head sets that a merge may have left by the version it made, None for a
        merge that nobody looked at.
        """
        if isinstance(operation.outcome, Published):
            yield self._with_unit(operation.outcome)
            return
        if version in self.known or self._refuses(operation):
            return
        if operation.kind == "create":
            if _is_own_value(operation):
                yield self._with(version, frozenset([version]))
            return
        if not self.heads:
            return
        rest = self.heads - operation.bases
        if operation.kind == "delete":
            yield self._with(version, rest | {version}, is_tombstone=True)
        elif operation.strategy == "merge" and rest - self.tombstones:
            for heads in (
                self._guesses(version, rest) if merged is None else merged.get(version, ())
            ):
                if self._may_join(version, rest, heads):
                    yield self._with(version, heads)
        elif _is_own_value(operation):
            yield self._with(version, rest | {version})

    def _guesses(self, version: str, rest: Versions) -> Iterator[Versions]:
        """Yield what a merge may leave: each active head stays, is one with it, or is derived."""
        active = sorted(rest - self.tombstones)
        for fates in product(("stays", "is one", "is derived"), repeat=len(active)):
            heads = {version, *(rest & self.tombstones)}
            for head, fate in zip(active, fates, strict=True):
                if fate == "stays":
                    heads.add(head)
                elif fate == "is derived":
                    heads.add(f"of {head} and {version}")
            yield frozenset(heads)

    def _may_join(self, version: str, rest: Versions, heads: Versions) -> bool:
        """Whether a merge may leave `heads` of the concurrent ones in `rest`.

        Tombstones stay; what was superseded does not come back; whatever else is there was a
        concurrent head or is new; and there are no more variants than there were candidates.
        """
        return (
            version in heads
            and rest & self.tombstones <= heads
            and heads & self.known <= rest
            and len(heads) <= len(rest) + 1
        )

    def _with(self, version: str, heads: Versions, *, is_tombstone: bool = False) -> State:
        tombstones = self.tombstones | {version} if is_tombstone else self.tombstones
        return State(heads, tombstones, self.known | heads | {version}, self.is_apart)

    def _with_unit(self, unit: Published) -> State:
        tombstones = self.tombstones | unit.tombstones
        return State(unit.heads, tombstones, self.known | unit.heads | unit.staged, self.is_apart)

    def _shows(self, shown: Shown) -> bool:
        deleted = {version for version, value in shown.variants.items() if value is DELETED}
        if not self.heads or shown.heads != self.heads or deleted != self.heads & self.tombstones:
            return False
        if len(self.heads) > 1:
            return shown.state == "conflicted"
        return shown.state == ("deleted" if deleted else "active")

    def _may_refuse(self, operation: Operation) -> bool:
        return (
            self.is_apart
            and operation.kind == "update"
            and operation.strategy == "merge"
            and not operation.bases <= self.heads
        )

    def _refuses(self, operation: Operation) -> bool:
        """Whether a mutation meets a conflict here; one of nothing does not."""
        if operation.kind == "create":
            return bool(self.heads)
        if not self.heads:
            return False
        if not operation.bases <= self.known:
            return True
        return operation.strategy == "reject" and operation.bases != self.heads


def _is_own_value(operation: Operation) -> bool:
    """Whether the answer has the value that was sent, where nothing was merged."""
    match operation.outcome:
        case Accepted(value=value):
            return value == operation.value
        case _:
            return True
