"""The same questions answered by trying everything: slow, and too simple to be wrong.

One world is tried for every order of the operations, without memory and without short cuts.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.histories.history import (
    DELETED,
    Accepted,
    Conflict,
    HistoryError,
    NotFound,
    Refused,
    Shown,
    versions_of,
)
from tests.histories.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.histories.history import Change, Entity, Operation
    from tests.histories.sessions import Guarantees

Heads = dict[str, bool]  # whether each is a tombstone


class Side(NamedTuple):
    """What is there of all entities, in public or in a unit."""

    heads: dict[Entity, Heads]
    known: dict[Entity, dict[str, bool]]

    def with_(self, entity: Entity, heads: Heads) -> Side:
        """Return the side after an entity got other heads."""
        known = {**self.known.get(entity, {}), **heads}
        return Side({**self.heads, entity: heads}, {**self.known, entity: known})


class Unit(NamedTuple):
    """A unit: its baseline, what it made of it, and the last mutation of each entity."""

    baseline: Side
    now: Side
    last: dict[Entity, int]
    is_closed: bool = False


class World(NamedTuple):
    """Everything at one moment, and how many changes there were."""

    public: Side = Side({}, {})
    units: dict[str, Unit] = {}  # noqa: RUF012 - never changed
    position: int = 0


def is_possible(
    operations: Sequence[Operation], changes: Sequence[Change], *, in_log_order: bool = True
) -> bool:
    """Whether the operations of one scope can have been told what they were, one at a time."""
    try:
        versions_of(operations)
    except HistoryError:
        return False
    return _Trial(operations, changes, in_log_order=in_log_order).is_possible(
        frozenset(range(len(operations))), World()
    )


class _Trial:
    def __init__(
        self, operations: Sequence[Operation], changes: Sequence[Change], *, in_log_order: bool
    ) -> None:
        self._operations: Final = operations
        self._log: Final = changes
        self._in_log_order: Final = in_log_order
        told: set[str] = set()
        own: set[str] = set()
        for operation in operations:
            told |= operation.bases
            match operation.outcome:
                case Shown() as shown:
                    told |= shown.heads
                case Conflict(heads):
                    told |= heads
                case Accepted(version=version):
                    own.add(version)
                case _:
                    pass
        if in_log_order:
            told = told.union(*(change.heads for change in changes))
        self._free: Final = sorted(told - own)

    def is_possible(self, left: frozenset[int], world: World) -> bool:
        operations = self._operations
        if all(operations[i].outcome is None for i in left) and (
            not self._in_log_order or world.position == len(self._log)
        ):
            return True
        return any(
            self.is_possible(left - {i}, following)
            for i in left
            if not any(operations[j].precedes(operations[i]) for j in left)
            for following in self._after(operations[i], world)
        )

    def _after(self, operation: Operation, world: World) -> Iterator[World]:
        if operation.unit is None:
            for heads in self._heads_after(operation, world.public):
                if heads is None:
                    yield world
                    continue
                public = world.public.with_(operation.entity, heads)
                if self._is_next(world.position, operation.entity, heads, operation.number):
                    yield world._replace(public=public, position=world.position + 1)
            return
        unit = world.units.get(operation.unit) or Unit(world.public, world.public, {})
        if isinstance(operation.outcome, Refused):
            if any(self._may_seal(other, operation) for other in self._operations):
                yield world
            return
        if unit.is_closed:
            return
        for heads in self._heads_after(operation, unit.now):
            entity, staged = operation.entity, unit
            if heads is not None:
                last = {**unit.last, entity: operation.number}
                staged = unit._replace(now=unit.now.with_(entity, heads), last=last)
            following = world._replace(units={**world.units, operation.unit: staged})
            if heads is None or not operation.is_closing:
                yield following
            else:
                yield from self._published(operation, following, staged)

    def _may_seal(self, other: Operation, refused: Operation) -> bool:
        """Whether a close may have sealed the unit, published or not, before it refused."""
        is_close = other.unit == refused.unit and other.is_closing
        return is_close and (refused.responded is None or other.invoked < refused.responded)

    def _published(self, close: Operation, world: World, unit: Unit) -> Iterator[World]:
        public, position = world.public, world.position
        order = sorted(unit.last, key=lambda entity: (entity == close.entity, entity))
        for entity in order:
            before = unit.baseline.heads.get(entity, {})
            ours, now = unit.now.heads[entity], public.heads.get(entity, {})
            if not before and not now and all(ours.values()):
                hidden = Side(public.heads, {**public.known, entity: unit.now.known[entity]})
                public = hidden.with_(entity, ours)
                continue
            if position == len(self._log):
                return
            change = self._log[position]
            if (change.entity, change.unit) != (entity, close.unit):
                return
            gone = {v for v in before if v not in ours or v not in now}
            if change.heads != set(ours) if now == before else change.heads & gone:
                return
            known = {**unit.now.known[entity], **public.known.get(entity, {})}
            public = public.with_(entity, {v: known.get(v, False) for v in change.heads})
            position += 1
        closed = {**world.units, str(close.unit): unit._replace(is_closed=True)}
        yield World(public, closed, position)

    def _is_next(self, position: int, entity: Entity, heads: Heads, number: int) -> bool:
        if not self._in_log_order:
            return True
        if position == len(self._log):
            return False
        change = self._log[position]
        return (change.entity, change.heads, change.unit) == (entity, set(heads), None) and (
            change.operation == number
        )

    def _heads_after(self, operation: Operation, side: Side) -> Iterator[Heads | None]:
        """Yield what may become of the heads; None if they stay and that was told."""
        heads = side.heads.get(operation.entity, {})
        known = side.known.get(operation.entity, {})
        refused = _is_refused(operation, heads, known)
        match operation.outcome:
            case Refused():
                yield None
            case NotFound():
                if not heads and operation.kind != "create":
                    yield None
            case Conflict(told):
                if told == set(heads) and heads.keys() and refused:
                    yield None
            case Shown(state, variants):
                if _is_shown(state, variants, heads):
                    yield None
            case Accepted(version=version):
                if not refused:
                    yield from self._made(operation, version, heads, known)
            case None if operation.kind != "read" and not refused:
                for version in [*self._free, f"nobody saw {operation.number}"]:
                    yield from self._made(operation, version, heads, known)
            case _:
                pass

    def _made(
        self, operation: Operation, version: str, heads: Heads, known: dict[str, bool]
    ) -> Iterator[Heads]:
        if version in known or (operation.kind != "create" and not heads):
            return
        is_own = not isinstance(operation.outcome, Accepted) or (
            operation.outcome.value == operation.value
        )
        if operation.kind == "create":
            yield from [{version: False}] if is_own else []
            return
        rest = {v: dead for v, dead in heads.items() if v not in operation.bases}
        if operation.kind == "delete":
            yield {**rest, version: True}
        elif operation.strategy == "merge" and not all(rest.values()):
            found = next((c.heads for c in self._log if version in c.heads), None)
            if found is None or len(found) > len(rest) + 1:
                return
            if any(v in known and v not in rest for v in found):
                return
            if all(v in found for v, dead in rest.items() if dead):
                yield {v: known.get(v, False) for v in found}
        elif is_own:
            yield {**rest, version: False}


def _is_refused(operation: Operation, heads: Heads, known: dict[str, bool]) -> bool:
    if operation.kind in {"create", "read"} or not heads:
        return operation.kind == "create" and bool(heads)
    is_unknown = any(base not in known for base in operation.bases)
    return is_unknown or (operation.strategy == "reject" and set(heads) != operation.bases)


def _is_shown(state: str, variants: dict[str, object], heads: Heads) -> bool:
    if {v: value is DELETED for v, value in variants.items()} != heads or not heads:
        return False
    if len(heads) > 1:
        return state == "conflicted"
    return state == ("deleted" if all(heads.values()) else "active")


def is_kept(
    operations: Sequence[Operation], changes: Sequence[Change], guarantees: Guarantees
) -> bool:
    """Whether some assignment of moments to the operations keeps what sessions are promised."""
    try:
        versions_of(operations)
        timeline = Timeline(changes)
    except HistoryError:
        return False
    choices = [_moments(operation, timeline) for operation in operations]
    return any(
        all(
            _is_ordered(one, other, moments, guarantees)
            for one in range(len(operations))
            for other in range(len(operations))
            if operations[one].session is not None
            and operations[one].session == operations[other].session
        )
        for moments in _paired(operations, choices)
    )


def _paired(
    operations: Sequence[Operation], choices: list[list[int]]
) -> Iterator[list[tuple[Operation, int]]]:
    for moments in product(*choices):
        yield list(zip(operations, moments, strict=True))


def _is_ordered(
    one: int, other: int, moments: list[tuple[Operation, int]], guarantees: Guarantees
) -> bool:
    (first, before), (second, after) = moments[one], moments[other]
    if first.outcome is None or second.outcome is None or not first.precedes(second):
        return True
    if isinstance(first.outcome, Conflict) or isinstance(second.outcome, Conflict):
        return True
    if isinstance(first.outcome, Accepted):
        binds = guarantees.read_your_writes
    else:
        binds = guarantees.monotonic_reads
    return not binds or (
        before < after if isinstance(second.outcome, Accepted) else before <= after
    )


def _moments(operation: Operation, timeline: Timeline) -> list[int]:
    """Return the moments at which an operation may have seen, or made, what it was told."""
    everything = range(timeline.last + 1)
    if operation.outcome is None or isinstance(operation.outcome, Conflict):
        return [0]
    if any(token not in timeline.moment_of_token for token in operation.after):
        return []
    least = max((timeline.moment_of_token[token] for token in operation.after), default=0)
    if isinstance(operation.outcome, Accepted):
        made = timeline.moment_of_operation.get(operation.number)
        fitting = [m for m in everything if m == made and m > least]
    else:
        heads = operation.outcome.heads if isinstance(operation.outcome, Shown) else frozenset()
        fitting = [
            m for m in everything if m >= least and timeline.heads_at(m, operation.entity) == heads
        ]
    if operation.token is None:
        return fitting
    return [m for m in fitting if m == timeline.moment_of_token.get(operation.token)]
