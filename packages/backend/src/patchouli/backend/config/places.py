"""Places in a configuration document."""

from __future__ import annotations

from dataclasses import dataclass

from patchouli.backend.config.reading import escape


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document: names of members and indexes of items, from the root on."""

    tokens: tuple[str | int, ...] = ()

    def __truediv__(self, token: str | int) -> Place:
        return Place((*self.tokens, token))

    @property
    def dotted(self) -> str:
        """The path as rules show it, e.g. `entity_types.note.rules[0].name`."""
        parts = [f"[{t}]" if isinstance(t, int) else f".{t}" for t in self.tokens]
        return "".join(parts).removeprefix(".")

    @property
    def pointer(self) -> str:
        """The JSON Pointer of the place; empty for the root."""
        return "".join(f"/{escape(str(token))}" for token in self.tokens)
