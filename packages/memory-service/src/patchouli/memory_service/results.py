"""What plugins answer: outcomes with provenance, and what becomes of a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchouli.harness import Json, trim
from patchouli.memory_service.errors import MemorySubscriptionError

if TYPE_CHECKING:
    from patchouli.harness import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one plugin answered, or why it did not; `ok` says which of the two is meant.

    Attributes:
        plugin_id: Whose answer it is.
        ok: Whether the plugin answered.
        value: The answer, as the plugin gave it.
        error: The text of the failure.
    """

    plugin_id: str
    ok: bool
    value: Json = None
    error: str | None = None

    def to_json(self) -> JsonObject:
        """Return the outcome as the object that a model or a peer is given."""
        if self.ok:
            return {"pluginId": self.plugin_id, "ok": True, "value": self.value}
        return {"pluginId": self.plugin_id, "ok": False, "error": self.error}


def failure(plugin_id: str, error: BaseException) -> Outcome:
    """Return the outcome of a plugin that raised `error`."""
    return Outcome(plugin_id=plugin_id, ok=False, error=error_text(error))


def error_text(error: BaseException) -> str:
    """Return the text of `error`, or the name of its class if that is blank.

    The result is a JSON text whatever the exception says of itself.
    """
    try:
        text = str(error)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # an exception of a plugin that cannot even be printed
        text = ""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if trim(text) else type(error).__name__


def fatal_failure(error: BaseException) -> MemorySubscriptionError:
    """Return what is reported of whatever is no subscription error; it is not to be retried."""
    failure = MemorySubscriptionError(error_text(error))
    failure.__cause__ = error
    return failure


def as_exception(error: BaseException) -> Exception:
    """Return `error`, or something that a future can hold and that cancels nobody."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return fatal_failure(error)
