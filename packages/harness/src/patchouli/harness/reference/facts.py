"""What the outside says, as facts that a log can hold.

Models, tools and hooks raise what they like, in words of whatever origin: text with lone
surrogates, values that are no JSON, errors that cannot be printed. All of it passes through here
on its way into a result, a log or a message of the reference host, and is JSON from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.harness.errors import NotJson
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.tasks import is_foreign

if TYPE_CHECKING:
    from patchouli.harness.jsonvalue import Json


def fact_of(value: object) -> Json:
    """Return a copy of `value`, or its text if it is no JSON."""
    try:
        return snapshot(value)
    except NotJson:
        return text_of(value)


def message_of(error: BaseException) -> str:
    """Return what `error` says; its type if it says nothing."""
    return text_of(error) or type(error).__name__


def code_of(failure: BaseException) -> str | None:
    """Return the code of `failure`, if it has one that is a text."""
    try:
        code = getattr(failure, "code", None)
    except BaseException as error:  # whatever the type of a stranger does
        if not is_foreign(error):
            raise
        return None
    return text_of(code) if isinstance(code, str) else None


def text_of(value: object) -> str:
    """Return the text of `value`, lone surrogates escaped; its type if it cannot be printed."""
    try:
        text = str(value)
    except BaseException as error:
        if not is_foreign(error):
            raise
        text = type(value).__name__
    return text.encode("utf-8", "backslashreplace").decode()
