"""Members of answers that the client itself goes by; the others are passed on as they came."""

from __future__ import annotations

from typing import Any, TypeVar

from patchouli.storage_client.errors import MalformedAnswerError

T = TypeVar("T")


def member(answer: Any, path: str, kind: type[T]) -> T:  # Any: whatever the daemon has sent
    """Return what stands at `path`, a JSON Pointer, of an answer or of a part of one.

    Raises:
        MalformedAnswerError: Nothing does, or something of another kind.
    """
    found = answer
    try:
        for name in path.split("/")[1:]:
            found = found[name]
    except (KeyError, TypeError):  # TypeError: it is no object
        found = None
    if type(found) is not kind:
        raise MalformedAnswerError(f"the answer has no {kind.__name__} at {path}")
    return found
