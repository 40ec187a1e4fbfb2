"""Answers in few words, for the trace to which the machine shrinks a difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.provider import (
    ChangePage,
    Committed,
    Drifted,
    Page,
    Published,
    Raced,
    Reading,
    Replayed,
    Unavailable,
    UnitRefused,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from patchouli.provider import Version
    from patchouli.provider_conformance.comparing import Answer


def told(answer: Answer) -> str:
    """Return what a person wants to know of an answer to follow a history."""
    match answer:
        case type():
            return answer.__name__
        case list():
            pages: list[Answer] = answer  # pyright: ignore[reportUnknownVariableType] - of answers
            return ", ".join(told(page) for page in pages)
        case Reading():
            record = "" if answer.record is None else f", {told(answer.record)}"
            walked = answer.divergence
            between = "" if walked is None else f", from {walked.base} {len(walked.nodes)} versions"
            return f"read {ids(answer.heads)} at {answer.observation.frontier}{between}{record}"
        case Raced():
            return f"raced by {ids(answer.heads)}"
        case Committed():
            return f"committed at {answer.cursor}"
        case Published():
            parts = [f"{e.key.type}/{e.key.id} {ids(e.heads)}" for e in answer.entities]
            return f"published {', '.join(parts)}"
        case Drifted():
            parts = [
                f"{c.key.type}/{c.key.id} {ids(c.staged_heads)} met {ids(c.published_heads)}"
                for c in answer.conflicts
            ]
            return f"drifted {', '.join(parts)}"
        case Page():
            return f"found {[f'{hit.key.type}/{hit.key.id}' for hit in answer.hits]}"
        case ChangePage():
            return f"changes {[change.cursor for change in answer.changes]} of {answer.frontier}"
        case Replayed():
            return f"replayed {answer.result_json}{' (staged)' if answer.is_staged else ''}"
        case Unavailable():
            return f"unavailable at {answer.frontier}"
        case UnitRefused():
            return f"refused: {answer.state.value}"
        case _:
            return type(answer).__name__


def ids(versions: Iterable[Version]) -> list[str]:
    """Return the ids of `versions`."""
    return [str(version.id) for version in versions]
