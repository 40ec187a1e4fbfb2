"""What plugins answer: outcomes with provenance, and how a failure becomes a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchouli.harness import Json, trim

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
    except Exception:  # an exception of a plugin that cannot even be printed
        text = ""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text if trim(text) else type(error).__name__
