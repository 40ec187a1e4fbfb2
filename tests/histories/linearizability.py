"""Whether operations of one entity can have happened one at a time, each while under way.

A search in the manner of Wing and Gong with the memory of Lowe: it puts one operation after another
that may come next (no other one was answered before it was sent) as long as the sequential entity
allows what was told, and goes back where nothing fits. A set of operations that led to a state once
is not followed again. Operations that change nothing are put as soon as they fit, which costs no
solution: whatever follows finds the same state.

What was not answered may be left out, or take a version that somebody was shown and nobody was
answered with, or one that nobody ever saw. With the change log of the entity the changes must
follow each other as the log tells, and then nothing happened that is not in it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.histories.entity import State
from tests.histories.history import (
    Accepted,
    Conflict,
    HistoryError,
    Published,
    Shown,
    short,
    versions_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tests.histories.history import Change, Entity, Operation

MOST_STEPS: Final = 500_000


class UndecidedError(Exception):
    """The search ended at its bound without an answer."""


def check_linearizable(
    operations: Sequence[Operation],
    changes: Sequence[Change],
    *,
    in_log_order: bool = True,
    apart: Collection[Entity] = (),
    most_steps: int = MOST_STEPS,
) -> None:
    """Return if each entity of the history is linearizable.

    `changes` are all changes of the entities, in order. Without `in_log_order` they only say what
    merges made of the heads that they met. Those `apart` were created more than once.

    Raises:
        HistoryError: It is not; says which entity, and how far the best order came.
        UndecidedError: The search was too long.
    """
    versions_of(operations)
    by_entity: defaultdict[Entity, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_entity[operation.entity].append(operation)
    logs: defaultdict[Entity, list[Change]] = defaultdict(list)
    for change in changes:
        logs[change.entity].append(change)
    for entity, own in by_entity.items():
        search = Search(
            own,
            merged=brought_by(change.heads for change in logs[entity]),
            log=logs[entity] if in_log_order else None,
            start=State(is_apart=entity in apart),
            most_steps=most_steps,
        )
        search.require()


def brought_by(log: Iterable[frozenset[str]]) -> dict[str, tuple[frozenset[str]]]:
    """Return for each version the head set of the change that brought it."""
    merged: dict[str, tuple[frozenset[str]]] = {}
    for heads in log:
        for version in heads:
            merged.setdefault(version, (heads,))
    return merged


@dataclass(frozen=True, slots=True)
class _Node:
    """Operations that were put (a bit each), and the state after them."""

    put: int
    state: State
    changes: int = 0


@dataclass(slots=True, kw_only=True)
class _Best:
    """The longest order that was found."""

    node: _Node
    order: tuple[int, ...] = ()


@dataclass(slots=True)
class Search:
    """The search for one order of operations of one entity, which begins in a state.

    `told` are versions that somebody was shown outside of these operations. With `guesses` a merge
    that `merged` does not know may have left anything that merges do.
    """

    operations: Sequence[Operation]
    merged: Mapping[str, Sequence[frozenset[str]]]
    log: Sequence[Change] | None = None
    start: State = field(default_factory=State)
    end: frozenset[str] | None = None
    told: frozenset[str] = frozenset()
    guesses: bool = False
    most_steps: int = MOST_STEPS
    _needed: int = 0
    _free: frozenset[str] = frozenset()

    def require(self) -> State:
        """Return a state that an order of all answered operations ends in.

        With `log` the order has all its changes; with `end` these are the heads at the end.

        Raises:
            HistoryError: There is none.
            UndecidedError: The search was too long.
        """
        self.operations = sorted(self.operations, key=lambda operation: operation.invoked)
        for number, operation in enumerate(self.operations):
            if operation.outcome is not None:
                self._needed |= 1 << number
        self._free = self._unanswered_versions()
        first = _Node(0, self.start)
        best = _Best(node=first)
        found = self._walk(first, best)
        if found is None:
            raise HistoryError(self._explain(best))
        return found

    def _walk(self, first: _Node, best: _Best) -> State | None:
        seen: set[_Node] = set()
        stack: list[tuple[_Node, tuple[int, ...]]] = [(first, ())]
        steps = 0
        while stack:
            node, order = stack.pop()
            node, order = self._with_observations(node, order)
            if node in seen:
                continue
            seen.add(node)
            steps += 1
            if steps > self.most_steps:
                raise UndecidedError(f"{self.operations[0].entity} after {steps} steps")
            if node.put.bit_count() > best.node.put.bit_count():
                best.node, best.order = node, order
            if self._is_end(node):
                return node.state
            stack.extend((following, (*order, number)) for number, following in self._next(node))
        return None

    def _is_end(self, node: _Node) -> bool:
        return (
            node.put & self._needed == self._needed
            and (self.log is None or node.changes == len(self.log))
            and (self.end is None or node.state.heads == self.end)
        )

    def _with_observations(
        self, node: _Node, order: tuple[int, ...]
    ) -> tuple[_Node, tuple[int, ...]]:
        """Put all that changes nothing and fits here, until nothing more does."""
        while True:
            fitting = [
                number
                for number in self._minimal(node)
                if node.state.allows(self.operations[number])
            ]
            if not fitting:
                return node, order
            put = node.put
            for number in fitting:
                put |= 1 << number
            node = _Node(put, node.state, node.changes)
            order = (*order, *fitting)

    def _next(self, node: _Node) -> Iterator[tuple[int, _Node]]:
        for number in self._minimal(node):
            operation = self.operations[number]
            for version in self._versions(operation, node):
                is_open = self.guesses and version not in self.merged
                merged = None if is_open else self.merged
                for state in node.state.after(operation, version, merged):
                    if self._is_logged(operation, node, state):
                        yield number, _Node(node.put | 1 << number, state, node.changes + 1)

    def _is_logged(self, operation: Operation, node: _Node, state: State) -> bool:
        if self.log is None:
            return True
        if node.changes == len(self.log):
            return False
        change = self.log[node.changes]
        return change.heads == state.heads and change.operation == operation.number

    def _versions(self, operation: Operation, node: _Node) -> Iterable[str]:
        """Return the versions that an operation may have made."""
        match operation.outcome:
            case Accepted(version=version):
                return (version,)
            case Published():
                return ("",)
            case None if operation.kind != "read":
                unseen = [f"unseen {operation.number}"] if self.log is None else []
                return [*sorted(self._free - node.state.known), *unseen]
            case _:
                return ()

    def _minimal(self, node: _Node) -> list[int]:
        """Return the operations that nothing precedes which was not put yet."""
        waiting: list[int] = []
        first_response: int | None = None
        for number, operation in enumerate(self.operations):
            if node.put >> number & 1:
                continue
            if first_response is not None and operation.invoked > first_response:
                break
            waiting.append(number)
            if operation.responded is not None and (
                first_response is None or operation.responded < first_response
            ):
                first_response = operation.responded
        return waiting

    def _unanswered_versions(self) -> frozenset[str]:
        """Return the versions that somebody was shown and that no answered mutation explains."""
        shown: set[str] = set(self.told).union(self.end or ())
        shown = shown.union(*(change.heads for change in self.log or ()))
        explained: set[str] = set(self.start.known)
        for operation in self.operations:
            shown |= operation.bases  # who names one was told of it somewhere
            match operation.outcome:
                case Shown() as seen:
                    shown |= seen.heads
                case Conflict(heads):
                    shown |= heads
                case Accepted(version=version):
                    explained.add(version)
                case Published(staged=staged):
                    explained |= staged
                case _:
                    pass
        return frozenset(shown - explained)

    def _explain(self, best: _Best) -> str:
        put = [f"  {self.operations[number]}" for number in best.order[-12:]]
        rest = [
            f"  {operation}"
            for number, operation in enumerate(self.operations)
            if not best.node.put >> number & 1
        ]
        expected = ""
        if self.log is not None:
            following = [
                f"{short(change.heads)} of {change.operation}"
                for change in self.log[best.node.changes :][:1]
            ]
            expected = f"\nthe log goes on with {following or 'nothing'}"
        if self.end is not None:
            expected += f"\nat the end there are {short(self.end)}"
        return (
            "\n".join(
                [
                    f"{self.operations[0].entity} is not linearizable. The longest order "
                    f"({len(best.order)} of {len(self.operations)}) ends with",
                    *put,
                    f"with the heads {short(best.node.state.heads)}, and none of these fits:",
                    *rest[:12],
                ]
            )
            + expected
        )
