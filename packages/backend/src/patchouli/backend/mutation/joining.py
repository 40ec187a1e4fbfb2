"""Merges carried out: the joins that a merge asks for, made one after the other.

Values are compared, joined and validated here; none of it may run on the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from patchouli.automerge import LimitExceededError, join

if TYPE_CHECKING:
    from collections.abc import Generator

    from patchouli.backend.mutation.merging import Join

T = TypeVar("T")


def carry_out(steps: Generator[Join, str | None, T]) -> T:
    """Return what `steps` end with, making the joins they ask for."""
    try:
        needed = next(steps)
        while True:
            needed = steps.send(_joined(needed))
    except StopIteration as end:
        return end.value


def _joined(needed: Join) -> str | None:
    """Return the joined content, or None if it is larger than joins may be."""
    try:
        return join(
            path=needed.path,
            base=needed.base,
            nodes=needed.nodes,
            candidates=needed.candidates,
        )
    except LimitExceededError:
        return None
