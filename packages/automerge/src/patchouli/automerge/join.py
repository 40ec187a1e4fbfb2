"""The merge of concurrent versions of one JSON value, from the graph that they grew in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from patchouli.automerge import _core

DEFAULT_TEXT_WORK = _core.DEFAULT_TEXT_WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinNode:
    """One kept version of a divergence.

    `parents` names kept versions only; it is empty for the base and for no other version. `json`
    is the JSON text of the value at the path.
    """

    version: str
    parents: tuple[str, ...]
    json: str


def join(
    *,
    path: str,
    base: str,
    nodes: Sequence[JoinNode],
    candidates: Sequence[str],
    max_text_work: int = DEFAULT_TEXT_WORK,
) -> str:
    """Merge the versions named by `candidates` and return the canonical JSON text of the result.

    The result depends on the graph and the path alone: not on the order of `nodes` or `candidates`,
    not on the process, not on the clock. A candidate that another one descends from adds nothing;
    of several with equal content (the integer 1 and the float 1.0 differ) one counts. With a single
    candidate left, the result is its value. Two versions meet in the same way in every join that
    holds them, as long as it has the same base.

    Texts and maps keep what either side put in and lose what either side took out; lists are
    positional; of two scalars one wins.

    `max_text_work` bounds the steps of the search for one text's edit script, and sixteen times as
    many those of all scripts together. A text that would take more, or that has changed every few
    letters, is compared by words, then by lines, then as a whole.

    The interpreter's lock is released during the work.

    Raises:
        InvalidGraphError: An id is missing or doubled, there is a cycle, or a version does not
            descend from `base`.
        InvalidJsonError: The JSON of a node is not strict JSON.
        LimitExceededError: Too many versions, bytes or changed places, or nesting too deep.
    """
    return _core.join(
        path,
        base,
        [(node.version, node.parents, node.json) for node in nodes],
        candidates,
        max_text_work,
    )
