"""Work units: one snapshot for all their reads, and one moment at which all of it becomes visible.

A unit has a baseline, one moment of the scope's timeline that was the newest at some time between
the sending of its first request and its first answer. From there its operations on each entity must
be linearizable on their own, as if nobody else were there. What is published afterwards is what the
unit left, unless others changed the entity meanwhile; nobody outside sees a part of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.histories.entity import State
from tests.histories.history import (
    DELETED,
    Accepted,
    Change,
    Conflict,
    HistoryError,
    Operation,
    Published,
    Refused,
    Shown,
    short,
    versions_of,
)
from tests.histories.linearizability import Search, check_linearizable
from tests.histories.timeline import Look, Timeline, check_looks, look_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.histories.history import Entity


def check_units(
    operations: Sequence[Operation], changes: Sequence[Change], looks: Sequence[Look] = ()
) -> None:
    """Return if the units of one scope were isolated and published as wholes.

    `changes` are those of the scope, in order. `looks` are what else was seen from outside, such as
    listings and events.

    Raises:
        HistoryError: One of them was not, or somebody outside saw what was not there.
    """
    values = versions_of(operations)
    units: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.unit is not None:
            units[operation.unit].append(operation)
    failure: HistoryError | None = None
    for whole in _with_hidden(units, list(changes)):
        try:
            _check_with(operations, whole, looks, units, values)
        except HistoryError as error:
            failure = error
        else:
            return
    raise failure or HistoryError("no place fits what is hidden")


def _with_hidden(
    units: dict[str, list[Operation]], changes: list[Change]
) -> Iterator[list[Change]]:
    """Yield the log with what it does not tell: entities that a closed unit made and deleted.

    They belong to the moment of their unit; one with nothing else may have been at any. Deletes in
    units must have been answered, or there is no telling.
    """
    for name, own in units.items():
        block = [place for place, change in enumerate(changes) if change.unit == name]
        if not block and not any(map(_has_closed, own)):
            continue
        told = {changes[place].entity for place in block}
        for entity in dict.fromkeys(o.entity for o in own if isinstance(o.outcome, Accepted)):
            if entity in told:
                continue
            last = [o for o in own if o.entity == entity and _has_deleted(o)]
            if not last:
                raise HistoryError(f"{entity} is missing in what the unit {name} published")
            places = [block[-1] + 1] if block else range(len(changes) + 1)
            for heads in dict.fromkeys(
                frozenset(o.outcome.version for o in some if isinstance(o.outcome, Accepted))
                for some in [*([one] for one in last), last]
            ):
                for place in places:
                    hidden = Change(
                        cursor=f"hidden {name} {entity.id}",
                        entity=entity,
                        kind="deleted",
                        heads=heads,
                        operation=last[-1].number,
                        unit=name,
                        is_hidden=True,
                    )
                    yield from _with_hidden(units, [*changes[:place], hidden, *changes[place:]])
            return
    yield changes


def _check_with(
    operations: Sequence[Operation],
    changes: Sequence[Change],
    looks: Sequence[Look],
    units: dict[str, list[Operation]],
    values: dict[str, object],
) -> None:
    timeline = Timeline(changes)
    creates = Counter(o.entity for o in operations if _may_have_created(o))
    apart = frozenset(entity for entity, times in creates.items() if times > 1)
    for name in timeline.moment_of_unit:
        if name not in units:
            raise HistoryError(f"nobody asked for the unit {name}, which was published")
    checked = [_Unit(name, own, timeline, values, apart) for name, own in units.items()]
    public = [operation for operation in operations if operation.unit is None]
    for unit in checked:
        public += unit.publications()
    check_linearizable(public, changes, apart=apart)
    outside = [
        look
        for operation in operations
        if operation.unit is None and (look := look_of(operation, timeline)) is not None
    ]
    outside += [look for unit in checked if (look := unit.look()) is not None]
    moments = check_looks(timeline, [*outside, *looks])
    for unit in checked:
        unit.check(moments)


class _Unit:
    """One unit of a history."""

    def __init__(
        self,
        name: str,
        operations: Sequence[Operation],
        timeline: Timeline,
        values: dict[str, object],
        apart: frozenset[Entity],
    ) -> None:
        self._name = name
        self._apart = apart
        self._operations = operations
        self._timeline = timeline
        self._values = values
        self._published = timeline.moment_of_unit.get(name)
        self._block = [] if self._published is None else timeline.steps[self._published - 1]
        self._closes = [operation for operation in operations if operation.is_closing]

    def publications(self) -> list[Operation]:
        """Return what the unit did in public, one operation for each entity.

        They are under way from the first request that closes it to the answer of the one that did.
        """
        if self._published is None:
            return []
        ends = [close.responded for close in self._closes if _has_closed(close)]
        published: list[Operation] = []
        for change in self._block:
            outcomes = [
                operation.outcome
                for operation in self._operations
                if operation.entity == change.entity and isinstance(operation.outcome, Accepted)
            ]
            staged = frozenset(outcome.version for outcome in outcomes)
            dead = frozenset(o.version for o in outcomes if o.value is DELETED)
            self._timeline.staged[self._published, change.entity] = set(staged)
            published.append(
                Operation(
                    number=change.operation,
                    client=0,
                    kind="publish",
                    entity=change.entity,
                    invoked=min((close.invoked for close in self._closes), default=0),
                    responded=min((end for end in ends if end is not None), default=None),
                    outcome=Published(change.heads, staged, dead),
                    unit=self._name,
                )
            )
        return published

    def look(self) -> Look | None:
        """Return the publication as something that somebody did."""
        if self._published is None:
            return None
        closes = [close for close in self._closes if _has_closed(close)] or [
            close for close in self._closes if close.outcome is None
        ]
        return Look(
            what=f"close of {self._name}",
            invoked=min((close.invoked for close in closes), default=0),
            responded=min((c.responded for c in closes if c.responded is not None), default=None),
            exactly=self._published,
            makes=True,
        )

    def check(self, moments: dict[Look, int]) -> None:
        """Return if some baseline explains all that the unit was told."""
        self._check_end()
        self._check_late(moments)
        least, most = self._bounds(moments)
        failures: list[HistoryError] = []
        for baseline in range(least, most + 1):
            try:
                self._check_from(baseline)
            except HistoryError as error:
                failures.append(error)
            else:
                return
        raise HistoryError(
            f"no snapshot of {least}-{most} explains the unit {self._name}; from the last one:\n"
            + (str(failures[-1]) if failures else "there is none")
        )

    def _check_late(self, moments: dict[Look, int]) -> None:
        """Return if the unit answered nothing that was asked after it was seen published."""
        if self._published is None:
            return
        seen = min(
            (
                look.responded
                for look, moment in moments.items()
                if moment >= self._published and look.responded is not None
            ),
            default=None,
        )
        for operation in self._operations:
            if (
                seen is not None
                and seen < operation.invoked
                and not isinstance(operation.outcome, Refused | None)
            ):
                raise HistoryError(f"{operation} was answered by a unit that had been published")

    def _bounds(self, moments: dict[Look, int]) -> tuple[int, int]:
        begun = min(operation.invoked for operation in self._operations)
        opened = min(
            (o.responded for o in self._operations if o.responded is not None), default=None
        )
        least = max(
            (
                moment
                for look, moment in moments.items()
                if look.responded is not None and look.responded < begun
            ),
            default=0,
        )
        most = min(
            (
                moment - 1
                for look, moment in moments.items()
                if look.makes and opened is not None and look.invoked > opened
            ),
            default=self._timeline.last,
        )
        if self._published is not None:
            most = min(most, self._published - 1)
        return least, most

    def _check_end(self) -> None:
        """Return if it was published if and only if it was closed, and is refused afterwards."""
        done = [close for close in self._closes if _has_closed(close)]
        is_open = any(close.outcome is None for close in self._closes)
        if self._published is not None and not done and not is_open:
            raise HistoryError(f"the unit {self._name} was published, and nobody closed it")
        for operation in self._operations:
            if isinstance(operation.outcome, Refused) and not any(
                operation.responded is None or close.invoked < operation.responded
                for close in self._closes
            ):
                raise HistoryError(f"{operation}, and nobody had closed its unit")
        if self._published is not None:
            self._check_order()

    def _check_order(self) -> None:
        order = [change.entity for change in self._block if not change.is_hidden]
        closed = {
            close.entity for close in self._closes if isinstance(close.outcome, Accepted | None)
        }
        hidden = {change.entity for change in self._block if change.is_hidden}
        if order and order[-1] in closed:
            order.pop()
        elif order and not closed & hidden:
            raise HistoryError(f"the unit {self._name} ends with {order[-1]}, not with its close")
        if order != sorted(order, key=lambda entity: (entity.type, entity.id)):
            raise HistoryError(f"the unit {self._name} is published in the order {order}")

    def _check_from(self, baseline: int) -> None:
        by_entity: defaultdict[Entity, list[Operation]] = defaultdict(list)
        for operation in self._operations:
            by_entity[operation.entity].append(operation)
        published = {change.entity: change for change in self._block}
        for entity in published.keys() - by_entity.keys():
            raise HistoryError(f"the unit {self._name} published {entity}, which it never touched")
        for entity, own in by_entity.items():
            self._check_entity(entity, own, baseline, published.get(entity))

    def _check_entity(
        self,
        entity: Entity,
        own: list[Operation],
        baseline: int,
        change: Change | None,
    ) -> None:
        published = None if change is None else change.heads
        heads = self._timeline.heads_at(baseline, entity)
        known = self._timeline.known_at(baseline, entity)
        tombstones = known & self._timeline.tombstones | {
            version for version in known if self._values.get(version) is DELETED
        }
        start = State(heads, tombstones, known, entity in self._apart)
        has_drifted = (
            self._published is not None
            and self._timeline.heads_at(self._published - 1, entity) != heads
        )
        end = published if self._published is not None and not has_drifted else None
        if has_drifted:
            own = [_before_drift(operation) for operation in own]
        left = Search(
            own,
            merged=_merges(own, end),
            start=start,
            end=end,
            told=frozenset(published or ()),
            guesses=True,
        ).require()
        is_nothing = not heads and not has_drifted and left.heads <= left.tombstones
        if change is not None and change.is_hidden != is_nothing:
            raise HistoryError(f"{entity} is hidden, or not, and should be the other")
        if published is not None and has_drifted:
            current = self._timeline.heads_at((self._published or 0) - 1, entity)
            gone = (heads - left.heads) | (heads - current)
            if published & gone:
                raise HistoryError(
                    f"{entity} has {short(published & gone)} again, which had been superseded"
                )


def _has_deleted(operation: Operation) -> bool:
    return operation.kind == "delete" and isinstance(operation.outcome, Accepted)


def _may_have_created(operation: Operation) -> bool:
    return operation.kind == "create" and isinstance(operation.outcome, Accepted | None)


def _has_closed(operation: Operation) -> bool:
    return operation.is_closing and isinstance(operation.outcome, Accepted)


def _before_drift(operation: Operation) -> Operation:
    """Return a close as it was staged; it is answered with what became of its value outside."""
    match operation.outcome:
        case Accepted(value=value) if operation.is_closing and value is not DELETED:
            return replace(operation, value=value)
        case _:
            return operation


def _merges(
    own: Sequence[Operation], end: frozenset[str] | None
) -> dict[str, tuple[frozenset[str], ...]]:
    """Return the head sets that a member may have left by the version it made, as somebody saw."""
    seen = set() if end is None else {end}
    for operation in own:
        match operation.outcome:
            case Shown() as shown:
                seen.add(shown.heads)
            case Conflict(heads):
                seen.add(heads)
            case _:
                pass
    merged: dict[str, tuple[frozenset[str], ...]] = {}
    for operation in own:
        if isinstance(operation.outcome, Accepted):
            version = operation.outcome.version
            found = tuple(heads for heads in seen if version in heads)
            if found:
                merged[version] = found
    return merged
