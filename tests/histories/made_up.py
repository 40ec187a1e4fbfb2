"""Histories that were never recorded: sequential runs whose operations are made to overlap.

The systems that run here are written apart from the checkers and share nothing with them. What they
yield is right by construction, wherever an operation begins before the moment at which it happened
and ends after it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from tests.histories.history import (
    DELETED,
    Accepted,
    Change,
    Conflict,
    Entity,
    NotFound,
    Operation,
    Outcome,
    Refused,
    Shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.histories.sessions import Guarantees

    Draw = Callable[[st.SearchStrategy[Any]], Any]

ENTITY: Final = Entity("mira", "memo", "m-1")


def entities(number: int) -> list[Entity]:
    """Return so many entities of one scope."""
    return [Entity("mira", "memo", f"m-{index}") for index in range(1, number + 1)]


class Store:
    """A store of one scope that does one thing after the other, and has units."""

    def __init__(self, draw: Draw) -> None:
        self._draw: Final = draw
        self._fresh: Final = (f"v{number}" for number in count(1))
        self._units: Final[dict[str, _Unit]] = {}
        self._public: dict[Entity, dict[str, Any]] = {}
        self._known: dict[Entity, set[str]] = {}
        self.changes: Final[list[Change]] = []

    def versions(self, entity: Entity) -> list[str]:
        """Return all versions that an entity ever had, staged ones included."""
        known = set(self._known.get(entity, ()))
        return sorted(known.union(*(unit.known.get(entity, ()) for unit in self._units.values())))

    def view(self) -> dict[Entity, dict[str, Any]]:
        """Return what is public now."""
        return {entity: dict(heads) for entity, heads in self._public.items() if heads}

    def do(self, operation: Operation) -> Outcome:
        """Do an operation and return what it is told."""
        if operation.unit is None:
            heads = self._public.setdefault(operation.entity, {})
            known = self._known.setdefault(operation.entity, set())
            outcome = self._apply(operation, heads, known)
            if isinstance(outcome, Accepted):
                self._log(operation)
            return outcome
        unit = self._units.get(operation.unit)
        if unit is None:
            unit = self._units[operation.unit] = _Unit(
                {entity: dict(heads) for entity, heads in self._public.items()},
                {entity: set(known) for entity, known in self._known.items()},
            )
        if unit.is_closed:
            return Refused(-32602)
        heads = unit.heads.setdefault(operation.entity, {})
        known = unit.known.setdefault(operation.entity, set())
        outcome = self._apply(operation, heads, known)
        if isinstance(outcome, Accepted):
            unit.last[operation.entity] = operation
            if operation.is_closing:
                unit.is_closed = True
                self._publish(unit, operation)
        return outcome

    def _apply(self, operation: Operation, heads: dict[str, Any], known: set[str]) -> Outcome:
        if operation.kind == "read":
            return _read(heads)
        if operation.kind == "create":
            if heads:
                return Conflict(frozenset(heads))
            return self._accept(operation, heads, known, kept={})
        if not heads:
            return NotFound()
        is_exact = set(heads) == operation.bases
        if not operation.bases <= known or (operation.strategy == "reject" and not is_exact):
            return Conflict(frozenset(heads))
        kept = {v: value for v, value in heads.items() if v not in operation.bases}
        active = [version for version, value in kept.items() if value is not DELETED]
        if operation.kind == "update" and operation.strategy == "merge" and active:
            for version in active:
                fate = self._draw(st.sampled_from(["stays", "collapses", "is derived"]))
                if fate != "stays":
                    del kept[version]
                if fate == "is derived":
                    kept[next(self._fresh)] = f"of {version}"
        return self._accept(operation, heads, known, kept=kept)

    def _accept(
        self, operation: Operation, heads: dict[str, Any], known: set[str], *, kept: dict[str, Any]
    ) -> Outcome:
        version = next(self._fresh)
        value = DELETED if operation.kind == "delete" else operation.value
        heads.clear()
        heads.update(kept)
        heads[version] = value
        known.update(heads)
        return Accepted(version, value)

    def _log(self, operation: Operation) -> None:
        heads = self._public[operation.entity]
        kind = "deleted" if set(heads.values()) == {DELETED} else "other"
        self.changes.append(
            Change(
                cursor=f"c{len(self.changes) + 1}",
                entity=operation.entity,
                kind=kind if len(heads) == 1 else "conflicted",
                heads=frozenset(heads),
                operation=operation.number,
                unit=operation.unit,
                token=f"t{len(self.changes) + 1}",
            )
        )

    def _publish(self, unit: _Unit, close: Operation) -> None:
        """Publish what a unit staged; what others changed meanwhile stays beside it."""
        order = sorted(unit.last, key=lambda entity: (entity == close.entity, entity))
        for entity in order:
            ours, before = unit.heads[entity], unit.baseline.get(entity, {})
            now = self._public.get(entity, {})
            if not before and not now and set(ours.values()) == {DELETED}:
                self._public[entity] = ours
                self._known.setdefault(entity, set()).update(unit.known[entity])
                continue
            kept = {v: value for v, value in now.items() if v not in before or v in ours}
            new = {v: value for v, value in ours.items() if v not in before or v in now}
            self._public[entity] = {**kept, **new}
            self._known.setdefault(entity, set()).update(unit.known[entity])
            self._log(unit.last[entity])


def _read(heads: dict[str, Any]) -> Outcome:
    if not heads:
        return NotFound()
    if len(heads) > 1:
        return Shown("conflicted", dict(heads))
    return Shown("deleted" if DELETED in heads.values() else "active", dict(heads))


class _Unit:
    """A unit of the store: what it found, and what it made of it."""

    def __init__(self, heads: dict[Entity, dict[str, Any]], known: dict[Entity, set[str]]) -> None:
        self.baseline: Final = {entity: dict(found) for entity, found in heads.items()}
        self.heads: Final = heads
        self.known: Final = known
        self.last: Final[dict[Entity, Operation]] = {}
        self.is_closed = False


@st.composite
def histories(
    draw: Draw,
    *,
    most: int = 12,
    entity_count: int = 1,
    units: Sequence[str] = (),
    merges: bool = True,
) -> tuple[list[Operation], list[Change]]:
    """Return a history that a store told, and its change log.

    Some answers got lost, on their way back or there.
    """
    store = Store(draw)
    done: list[Operation] = []
    for number in range(1, draw(st.integers(1, most)) + 1):
        operation = _drawn(draw, store, number, entities(entity_count), units, merges=merges)
        fate = draw(st.sampled_from(["answered"] * 6 + ["lost", "never arrived"]))
        if operation.unit is not None and operation.kind == "delete":
            fate = "answered"
        outcome = None if fate == "never arrived" else store.do(operation)
        done.append(replace(operation, outcome=None if fate == "lost" else outcome))
    return overlapped(draw, done), store.changes


@st.composite
def session_histories(
    draw: Draw, guarantees: Guarantees, *, most: int = 12
) -> tuple[list[Operation], list[Change]]:
    """Return a history of sessions whose reads may be as old as their guarantees allow."""
    store = Store(draw)
    views = [store.view()]
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    done: list[Operation] = []
    for number in range(1, draw(st.integers(1, most)) + 1):
        session = draw(st.sampled_from(["s-1", "s-2"]))
        operation = _drawn(draw, store, number, entities(2), (), merges=True)
        operation = replace(operation, session=session)
        if operation.kind == "read":
            least = max(
                read.get(session, 0) if guarantees.monotonic_reads else 0,
                written.get(session, 0) if guarantees.read_your_writes else 0,
            )
            moment = draw(st.integers(least, len(store.changes)))
            outcome = _read(views[moment].get(operation.entity, {}))
            token = store.changes[moment - 1].token if moment else None
            after = draw(st.sampled_from([(), *((c.token,) for c in store.changes[:moment])]))
            has_token = isinstance(outcome, Shown) and draw(st.booleans())
            operation = replace(operation, after=after, token=token if has_token else None)
            read[session] = max(moment, read.get(session, 0))
        else:
            outcome = store.do(operation)
            if isinstance(outcome, Accepted):
                views.append(store.view())
                written[session] = len(store.changes)
                operation = replace(operation, token=store.changes[-1].token)
        done.append(replace(operation, outcome=outcome))
    return overlapped(draw, done), store.changes


def _drawn(
    draw: Draw,
    store: Store,
    number: int,
    among: Sequence[Entity],
    units: Sequence[str],
    *,
    merges: bool,
) -> Operation:
    entity = draw(st.sampled_from(among))
    unit = draw(st.sampled_from([None, *units])) if units else None
    kind = draw(st.sampled_from(["create", "read", "read", "update", "update", "delete"]))
    known = store.versions(entity)
    bases: frozenset[str] = frozenset()
    if kind in {"update", "delete"}:
        choices = [*known[-4:], "nobody's"] if known else ["nobody's"]
        bases = draw(st.frozensets(st.sampled_from(choices), min_size=1, max_size=2))
    strategies = ["mvcc", "reject", "merge"] if merges and unit is None else ["mvcc", "reject"]
    return Operation(
        number=number,
        client=number,
        kind=kind,
        entity=entity,
        invoked=0,
        bases=bases,
        strategy=draw(st.sampled_from(strategies)),
        value=f"value {number}",
        unit=unit,
        is_closing=unit is not None and kind != "read" and draw(st.integers(0, 3)) == 0,
    )


def overlapped(draw: Draw, done: Sequence[Operation]) -> list[Operation]:
    """Return operations that happened in this order, each begun before its turn and ended after."""
    events: list[tuple[int, int, int]] = []
    for index, operation in enumerate(done):
        turn = 10 * index
        events.append((turn - draw(st.integers(1, 45)), 0, index))
        if operation.outcome is not None:
            events.append((turn + draw(st.integers(1, 45)), 1, index))
    times: dict[tuple[int, int], int] = {
        (index, which): time for time, (_, which, index) in enumerate(sorted(events), 1)
    }
    return [
        replace(operation, invoked=times[index, 0], responded=times.get((index, 1)))
        for index, operation in enumerate(done)
    ]


@st.composite
def spoilt(
    draw: Draw, whole: tuple[list[Operation], list[Change]]
) -> tuple[list[Operation], list[Change]]:
    """Return a history that may be wrong now: answers exchanged, or operations moved in time."""
    operations, changes = list(whole[0]), list(whole[1])
    for _ in range(draw(st.integers(1, 2))):
        one, other = (draw(st.integers(0, len(operations) - 1)) for _ in range(2))
        a, b = operations[one], operations[other]
        way = draw(st.sampled_from(["exchange", "repeat", "swap", "forget", "log"]))
        if way == "exchange" and a.kind == b.kind and a.entity == b.entity and one != other:
            operations[one] = replace(
                a, outcome=b.outcome, responded=b.responded, invoked=b.invoked
            )
            operations[other] = replace(
                b, outcome=a.outcome, responded=a.responded, invoked=a.invoked
            )
        elif way == "repeat" and a.kind == b.kind == "read" and a.entity == b.entity:
            if a.outcome is not None and b.outcome is not None:
                operations[one] = replace(a, outcome=b.outcome)
        elif way == "swap":
            if (a.responded is None) == (b.responded is None):
                operations[one] = replace(a, invoked=b.invoked, responded=b.responded)
                operations[other] = replace(b, invoked=a.invoked, responded=a.responded)
        elif way == "forget" and isinstance(a.outcome, Accepted) and a.kind != "delete":
            operations[one] = replace(a, outcome=None, responded=None)
        elif way == "log" and len(changes) > 1:
            place = draw(st.integers(0, len(changes) - 2))
            changes[place : place + 2] = [changes[place + 1], changes[place]]
    return operations, changes
