"""Sessions: what one of them has seen or written is there when it looks again.

Two sessions may see the scope at different moments, older ones included; this is what tells a
session from a linearizable client. A causal token names a moment: an answer that brings one must
show that moment, and a request that carries one must not be shown an older one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.histories.history import Accepted, HistoryError, NotFound, Shown, versions_of
from tests.histories.timeline import Timeline, look_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.histories.history import Change, Operation
    from tests.histories.timeline import Look


@dataclass(frozen=True, slots=True)
class Guarantees:
    """What the sessions of a history promise."""

    monotonic_reads: bool = True
    read_your_writes: bool = True


def check_sessions(
    operations: Sequence[Operation], changes: Sequence[Change], guarantees: Guarantees
) -> None:
    """Return if every session of one scope got what it is promised, and every token its moment.

    `changes` are those of the scope, in order. An operation without a session has one of its own.

    Raises:
        HistoryError: One did not.
    """
    versions_of(operations)
    timeline = Timeline(changes)
    sessions: defaultdict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        sessions[operation.session or f"alone {operation.number}"].append(operation)
    for name, own in sessions.items():
        _check_session(name, own, timeline, guarantees)


def _check_session(
    name: str, own: Sequence[Operation], timeline: Timeline, guarantees: Guarantees
) -> None:
    """Give each read the first moment that it can have had: it leaves most room to the others."""
    counted: list[tuple[Operation, int]] = []
    for operation in sorted(own, key=lambda operation: operation.invoked):
        look = look_of(operation, timeline)
        if look is None or not isinstance(operation.outcome, Accepted | Shown | NotFound):
            continue
        before = [moment for other, moment in counted if other.precedes(operation)]
        least = max([*before, *_token_moments(operation, timeline)], default=0)
        try:
            moment = _moment(operation, look, least, timeline)
        except HistoryError as error:
            raise HistoryError(f"session {name}: {operation}\n{error}") from error
        is_counted = (
            guarantees.read_your_writes
            if isinstance(operation.outcome, Accepted)
            else guarantees.monotonic_reads
        )
        if is_counted:
            counted.append((operation, moment))


def _token_moments(operation: Operation, timeline: Timeline) -> list[int]:
    """Return the moments that an answer must not be older than.

    An unknown token is refused, so it brings no answer that could be here.
    """
    if not isinstance(operation.outcome, Accepted | Shown | NotFound):
        return []
    unknown = [token for token in operation.after if token not in timeline.moment_of_token]
    if unknown:
        raise HistoryError(f"{operation} was answered in spite of the unknown token {unknown[0]}")
    return [timeline.moment_of_token[token] for token in operation.after]


def _moment(operation: Operation, look: Look, least: int, timeline: Timeline) -> int:
    if operation.token is None:
        return timeline.require_look(look, least, timeline.last)
    moment = timeline.moment_of_token.get(operation.token)
    if moment is None:
        raise HistoryError(f"nobody made the token {operation.token}")
    if look.exactly not in {None, moment} or moment < least + look.makes:
        raise HistoryError(f"its token is that of moment {moment}, and it was not before {least}")
    if not timeline.shows(moment, look.seen):
        raise HistoryError(f"its token is that of moment {moment}, which showed something else")
    return moment
