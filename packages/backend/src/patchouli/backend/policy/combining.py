"""What a retrieval over several entity types must satisfy: the demands of all of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.backend.errors import InvalidRequestError
from patchouli.provider import Consistency, SessionRequirement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.backend.policy.plan import Selection
    from patchouli.provider import ControlKey


def combined_consistency(
    selections: Sequence[Selection], *, deadline_unix_ms: int | None
) -> Consistency:
    """Return what a read must satisfy for all `selections`, one or more, at once.

    Its sources are those that all of them allow; there may be none. What they demand adds up.

    Raises:
        InvalidRequestError: A causal lower bound is not a string.
    """
    each = [
        selection.consistency(deadline_unix_ms=deadline_unix_ms, is_mutation=False)
        for selection in selections
    ]
    if len(each) == 1:
        return each[0]
    sessions: dict[ControlKey, SessionRequirement] = {}
    for session in (session for found in each for session in found.sessions):
        known = sessions.get(session.key, session)
        sessions[session.key] = SessionRequirement(
            key=session.key,
            monotonic_reads=session.monotonic_reads or known.monotonic_reads,
            read_your_writes=session.read_your_writes or known.read_your_writes,
        )
    sources = each[0].allowed_sources.intersection(*(found.allowed_sources for found in each))
    return Consistency(
        allowed_sources=sources,
        minimum_tokens=tuple(
            dict.fromkeys(token for found in each for token in found.minimum_tokens)
        ),
        sessions=tuple(sessions.values()),
        linearization_keys=tuple(
            dict.fromkeys(key for found in each for key in found.linearization_keys)
        ),
        deadline_unix_ms=deadline_unix_ms,
    )


def require_one_unit(selections: Sequence[Selection]) -> None:
    """Return if all `selections`, one or more, belong to one work unit, or none to any.

    Raises:
        InvalidRequestError: They do not.
    """
    units = {
        None if selection.unit is None else (selection.unit.identity, selection.unit.policy_text)
        for selection in selections
    }
    if len(units) > 1:
        raise InvalidRequestError(
            "the types do not share one work unit; name types in data/types that do",
            pointer="data/types",
        )
