"""Make the answers of two providers comparable where the boundary leaves them free.

Free are the numbers of cursors (they must ascend, not be dense), the sequence numbers inside a
divergence (they must grow from parents to children), the order of named bases, the wording of a
detail, and the last digits of a score.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from patchouli.provider import (
    ChangePage,
    Committed,
    Cursor,
    Divergence,
    Drifted,
    Observation,
    Page,
    Published,
    Raced,
    Reading,
    RuntimeGeneration,
    Unavailable,
    UnitConflict,
    Version,
)

# Any: whatever a method of the boundary answers, or the type of the error that it raises.
Answer = Any


class Cursors:
    """Which cursor of the provider stands for which of the model; 0 for 0."""

    def __init__(self) -> None:
        self._to_model: dict[Cursor, Cursor] = {Cursor(0): Cursor(0)}
        self._to_provider: dict[Cursor, Cursor] = {Cursor(0): Cursor(0)}

    def learn(self, actual: Answer, expected: Answer) -> None:
        """Take over the cursors of a publication, after a look at their order."""
        for own, other in zip(cursors_of(actual), cursors_of(expected), strict=False):
            assert own > max(self._to_model), "cursors ascend"
            self._to_model[own] = other
            self._to_provider[other] = own

    def to_model(self, cursor: Cursor) -> Cursor:
        """Return the model's cursor for one of the provider; an unknown one stands for -1."""
        return self._to_model.get(cursor, Cursor(-1))

    def to_provider(self, cursor: Cursor) -> Cursor:
        """Return the provider's cursor for one of the model, also for one not reached yet."""
        ahead = cursor - max(self._to_provider)
        return Cursor(max(self._to_model) + ahead) if ahead > 0 else self._to_provider[cursor]


class SameCursors(Cursors):
    """The model's own cursors, as they are."""

    def to_model(self, cursor: Cursor) -> Cursor:
        """Return `cursor`."""
        return cursor

    def to_provider(self, cursor: Cursor) -> Cursor:
        """Return `cursor`."""
        return cursor


def cursors_of(answer: Answer) -> list[Cursor]:
    """Return the cursors at which something was published."""
    if isinstance(answer, Committed):
        return [answer.cursor]
    return [e.cursor for e in answer.entities] if isinstance(answer, Published) else []


def comparable(answer: Answer, cursors: Cursors) -> Answer:
    """Return `answer` without what the boundary leaves free."""
    match answer:
        case list():
            return [comparable(member, cursors) for member in answer]  # pyright: ignore[reportUnknownVariableType] - of answers
        case Committed():
            return Committed(cursor=cursors.to_model(answer.cursor))
        case Published():
            entities = [replace(e, cursor=cursors.to_model(e.cursor)) for e in answer.entities]
            return replace(answer, entities=tuple(entities))
        case Reading():
            return replace(
                answer,
                observation=observation(answer.observation, cursors),
                bases=by_id(answer.bases),
                divergence=divergence(answer.divergence),
            )
        case Raced():
            return replace(
                answer, bases=by_id(answer.bases), divergence=divergence(answer.divergence)
            )
        case Drifted():
            return replace(answer, conflicts=tuple(map(conflict, answer.conflicts)))
        case Page():
            hits = [replace(hit, score=round(hit.score, 9)) for hit in answer.hits]
            seen = observation(answer.observation, cursors)
            return replace(answer, hits=tuple(hits), observation=seen)
        case ChangePage():
            return change_page(answer, cursors)
        case Unavailable():
            at = None if answer.frontier is None else cursors.to_model(answer.frontier)
            return Unavailable(detail="", frontier=at)
        case RuntimeGeneration():
            units = sorted(answer.sealed_units, key=lambda unit: unit.identity)
            return replace(answer, incarnation="", secret=b"", sealed_units=tuple(units))
        case _:
            return answer


def change_page(page: ChangePage, cursors: Cursors) -> ChangePage:
    """Return a page with the cursors of the model."""
    return ChangePage(
        changes=tuple(replace(c, cursor=cursors.to_model(c.cursor)) for c in page.changes),
        frontier=cursors.to_model(page.frontier),
        reached=cursors.to_model(page.reached),
        pruned_through=cursors.to_model(page.pruned_through),
        incarnation="",
    )


def observation(seen: Observation, cursors: Cursors) -> Observation:
    """Return an observation with the cursor of the model."""
    return replace(seen, frontier=cursors.to_model(seen.frontier))


def by_id(versions: tuple[Version, ...]) -> tuple[Version, ...]:
    """Return `versions` in ascending order."""
    return tuple(sorted(versions, key=lambda version: version.id))


def divergence(found: Divergence | None) -> Divergence | None:
    """Return a divergence whose sequence numbers are the places of its nodes."""
    if found is None:
        return None
    sequences = [node.sequence for node in found.nodes]
    assert sequences == sorted(set(sequences)), "nodes ascend by their sequence"
    nodes = [replace(node, sequence=(place, 0)) for place, node in enumerate(found.nodes)]
    return replace(found, nodes=tuple(nodes))


def conflict(found: UnitConflict) -> UnitConflict:
    """Return a conflict that names as superseded only what could otherwise come back."""
    candidates = {version.id for version in (*found.staged_heads, *found.published_heads)}
    relevant = found.superseded & (candidates | set(found.baseline_heads))
    return replace(found, superseded=frozenset(relevant), divergence=divergence(found.divergence))
