"""Idempotency identities: what is sent again is done once, and told the same again.

Operations with one call, kind, entity and value are one mutation, however often and by whomever it
was sent. It is accepted once; from then on every repetition is told the same, and another mutation
with that call is refused.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.histories.history import Accepted, HistoryError, Operation, Refused
from tests.histories.linearizability import check_linearizable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.histories.history import Change

TAKEN: Final = -32005


def check_identities(operations: Sequence[Operation], changes: Sequence[Change]) -> None:
    """Return if every identity of one scope belonged to one mutation, and all is linearizable.

    Raises:
        HistoryError: A mutation was done twice, told differently, or told as another one.
    """
    logged = {change.operation for change in changes}
    calls: defaultdict[str, list[Operation]] = defaultdict(list)
    single: list[Operation] = []
    for operation in operations:
        if operation.call is None or operation.kind == "read":
            single.append(operation)
        else:
            calls[operation.call].append(operation)
    for call, own in calls.items():
        single += _as_one(call, own, logged)
    check_linearizable(single, changes)


def _as_one(call: str, own: list[Operation], logged: set[int]) -> list[Operation]:
    """Return what was sent under one call with everything that did it as one operation."""
    done = [operation for operation in own if operation.number in logged]
    accepted = [operation for operation in own if isinstance(operation.outcome, Accepted)]
    if len(done) > 1:
        raise HistoryError(f"{call} was done {len(done)} times, last by {done[-1]}")
    if not done:
        if accepted:
            raise HistoryError(f"{accepted[0]} is missing in the change log")
        return [operation for operation in own if not _is_taken(operation)]
    (first,) = done
    same = [operation for operation in own if _is_same(operation, first)]
    for operation in accepted:
        if operation not in same or operation.outcome != accepted[0].outcome:
            raise HistoryError(f"{operation} is told as {accepted[0]}")
    begun = min(operation.invoked for operation in same)
    ends = [o.responded for o in accepted if o.responded is not None]
    ended = min(ends, default=None)
    for operation in own:
        _check_later(operation, ended, is_same=operation in same)
        if _is_taken(operation) and operation.responded is not None and operation.responded < begun:
            raise HistoryError(f"{operation}, and {call} had not been used")
    whole = replace(
        first,
        invoked=begun,
        responded=ended,
        outcome=accepted[0].outcome if accepted else None,
    )
    return [whole, *(o for o in own if not isinstance(o.outcome, Accepted | None | Refused))]


def _check_later(operation: Operation, ended: int | None, *, is_same: bool) -> None:
    """Return if an operation was told what it had to be once the identity was in use."""
    if ended is None or operation.invoked < ended or operation.outcome is None:
        return
    if is_same != isinstance(operation.outcome, Accepted) or _is_taken(operation) == is_same:
        raise HistoryError(f"{operation}, although its identity had been used")


def _is_same(operation: Operation, other: Operation) -> bool:
    return (operation.kind, operation.entity, operation.value) == (
        other.kind,
        other.entity,
        other.value,
    )


def _is_taken(operation: Operation) -> bool:
    return operation.outcome == Refused(TAKEN)
