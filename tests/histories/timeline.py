"""The moments of one scope: the states that its change log leads through.

A work unit is published at one moment, so all of its changes are one step here, whatever the log
has between them. Moment 0 is before the first change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.histories.history import Accepted, Conflict, HistoryError, NotFound, Shown, short

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.histories.history import Change, Entity, Operation

NOTHING: Final[frozenset[str]] = frozenset()

View = dict["Entity", frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """What somebody saw at one moment, or did.

    Attributes:
        seen: The heads of some entities, as they were seen together.
        exactly: The moment, where it is known.
        makes: Whether this made the moment, so that nobody can have seen it before.
        least: A moment that it cannot have been before.
    """

    what: str
    invoked: int
    responded: int | None
    seen: Mapping[Entity, frozenset[str]] = field(default_factory=dict["Entity", frozenset[str]])
    exactly: int | None = None
    makes: bool = False
    least: int = 0

    def __str__(self) -> str:
        seen = ", ".join(f"{entity.id}: {short(heads)}" for entity, heads in self.seen.items())
        return f"{self.invoked}-{self.responded} {self.what} {seen}"


class Timeline:
    """The moments of a scope, in order."""

    def __init__(self, changes: Sequence[Change]) -> None:
        """Read the log of a scope.

        Raises:
            HistoryError: Something of the same scope stands between two changes of one unit, or a
                unit has two changes of one entity.
        """
        self.steps: Final[list[list[Change]]] = []
        self.views: Final[list[View]] = [{}]
        self.moment_of_operation: Final[dict[int, int]] = {}
        self.moment_of_unit: Final[dict[str, int]] = {}
        self.moment_of_cursor: Final[dict[str, int]] = {}
        self.moment_of_token: Final[dict[str, int]] = {}
        self.tombstones: Final[set[str]] = set()  # of which a change says it; others may be too
        self.staged: Final[dict[tuple[int, Entity], set[str]]] = {}  # what units published besides
        for change in changes:
            self._append(change)

    @property
    def last(self) -> int:
        """The newest moment."""
        return len(self.steps)

    def heads_at(self, moment: int, entity: Entity) -> frozenset[str]:
        """Return the heads of an entity at a moment, none if it did not exist."""
        return self.views[moment].get(entity, NOTHING)

    def known_at(self, moment: int, entity: Entity) -> frozenset[str]:
        """Return all versions of an entity that were published until then, as far as was told."""
        heads = (view.get(entity, NOTHING) for view in self.views[: moment + 1])
        staged = (self.staged.get((m, entity), NOTHING) for m in range(moment + 1))
        return NOTHING.union(*heads, *staged)

    def shows(self, moment: int, seen: Mapping[Entity, frozenset[str]]) -> bool:
        """Whether all of it is seen at a moment."""
        return all(self.heads_at(moment, entity) == heads for entity, heads in seen.items())

    def require_look(self, look: Look, least: int, most: int) -> int:
        """Return the first moment from `least` on at which `look` sees what it saw.

        Raises:
            HistoryError: There is none up to `most`.
        """
        if look.exactly is not None:
            least += look.makes
            if not least <= look.exactly <= most or not self.shows(look.exactly, look.seen):
                raise HistoryError(
                    f"{look} belongs to moment {look.exactly}, not to {least}-{most} or not to "
                    f"what was there"
                )
            return look.exactly
        for moment in range(least, most + 1):
            if self.shows(moment, look.seen):
                return moment
        raise HistoryError(f"{look} was seen at no moment of {least}-{most}{self._nearby(look)}")

    def _nearby(self, look: Look) -> str:
        when = {
            entity.id: [
                m for m, view in enumerate(self.views) if view.get(entity, NOTHING) == heads
            ]
            for entity, heads in look.seen.items()
        }
        return f"; apart they are there at {when}"

    def _append(self, change: Change) -> None:
        unit = change.unit
        if unit is not None and unit in self.moment_of_unit:
            if self.moment_of_unit[unit] != self.last:
                raise HistoryError(f"{change} is not published together with its unit")
            if any(change.entity == other.entity for other in self.steps[-1]):
                raise HistoryError(f"{change} is the second of its entity in its unit")
            self.steps[-1].append(change)
        else:
            self.steps.append([change])
            self.views.append(dict(self.views[-1]))
        self.views[-1][change.entity] = change.heads
        if unit is not None:
            self.moment_of_unit[unit] = self.last
        self.moment_of_operation[change.operation] = self.last
        self.moment_of_cursor[change.cursor] = self.last
        if change.kind == "deleted":
            self.tombstones |= change.heads
        if change.token is not None:
            self.moment_of_token[change.token] = self.last


def check_looks(timeline: Timeline, looks: Iterable[Look]) -> dict[Look, int]:
    """Return a moment for each look, if they can have seen the scope in the order of real time.

    Each gets the first moment that it can have: not before its `least`, nor before that of any look
    that was answered before it began. If there is any assignment, there is this one.

    Raises:
        HistoryError: One of them saw what was not there then, in part or as a whole.
    """
    moments: dict[Look, int] = {}
    ordered = sorted(looks, key=lambda look: look.invoked)
    answered = sorted(
        (look for look in ordered if look.responded is not None),
        key=lambda look: look.responded or 0,
    )
    least = ended = 0
    for look in ordered:
        while ended < len(answered) and (answered[ended].responded or 0) < look.invoked:
            least = max(least, moments[answered[ended]])
            ended += 1
        moments[look] = timeline.require_look(look, max(least, look.least), timeline.last)
    return moments


def look_of(operation: Operation, timeline: Timeline) -> Look | None:
    """Return what an operation outside of units says about the moments, if it says anything.

    Raises:
        HistoryError: It was accepted, and its change is missing.
    """
    made = timeline.moment_of_operation.get(operation.number)
    seen: View = {}
    match operation.outcome:
        case Shown() as shown:
            seen, made = {operation.entity: shown.heads}, None
        case NotFound():
            seen, made = {operation.entity: NOTHING}, None
        case Conflict(heads):
            seen, made = {operation.entity: heads}, None
        case Accepted() if made is None:
            raise HistoryError(f"{operation} is missing in the change log")
        case None if made is None:
            return None
        case None | Accepted():
            pass
        case _:
            return None
    return Look(
        what=f"client {operation.client} {operation.kind}",
        invoked=operation.invoked,
        responded=operation.responded,
        seen=seen,
        exactly=made,
        makes=made is not None,
    )
