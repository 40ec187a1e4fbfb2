"""What a reactive plugin emits, and what its consumers are given.

A cursor is a position in one plugin's history of changes. It is opaque: compared for equality,
never parsed, ordered or trimmed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from patchouli.harness import NotJson, require_json

if TYPE_CHECKING:
    from patchouli.harness import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something changed in a plugin's memory.

    Attributes:
        cursor: The position right behind this change.
        memory_id: The plugin's own name for what changed.
        metadata: What else the plugin tells about it.
    """

    cursor: str
    memory_id: str | None = None
    metadata: JsonObject | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeEvent(Change):
    """A change as its consumer gets it: with the plugin that it comes from."""

    plugin_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The position moved on and nothing changed; it is saved and no handler runs."""

    cursor: str


def require_emitted(emitted: object) -> None:
    """Return when a plugin emitted what it may.

    Raises:
        TypeError: It is neither a change nor a boundary, or a member is of the wrong type.
        NotJson: A text or the metadata of a change is no lossless JSON.
    """
    if not isinstance(emitted, Change | Boundary):
        raise TypeError(f"a {type(emitted).__name__} was emitted in place of a change")
    require_cursor(emitted.cursor)
    if isinstance(emitted, Boundary):
        return
    if emitted.memory_id is not None:
        _require(emitted.memory_id, str, "/memoryId")
    if emitted.metadata is not None:
        _require(emitted.metadata, dict, "/metadata")


def require_cursor(cursor: object) -> None:
    """Return when `cursor` is a text.

    Raises:
        NotJson: It is not.
    """
    _require(cursor, str, "/cursor")


def _require(value: object, kind: type, path: str) -> None:
    if type(value) is not kind:
        raise NotJson(path=path, problem=f"a value of type {type(value).__name__}")
    require_json(value, path=path)
