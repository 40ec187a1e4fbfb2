"""Places in a configuration document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def escape(token: str) -> str:
    """Return `token` as it stands in a JSON Pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def quoted(names: Sequence[str]) -> str:
    """Return `names` for a message, each in quotes."""
    return ", ".join(f'"{name}"' for name in names)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document: names of members and indexes of items, from the root on."""

    tokens: tuple[str | int, ...] = ()

    def __truediv__(self, token: str | int) -> Place:
        return Place((*self.tokens, token))

    @property
    def parent(self) -> Place:
        """The place one level up; the root is its own parent."""
        return Place(self.tokens[:-1])

    @property
    def dotted(self) -> str:
        """The path as rules show it, e.g. `entity_types.note.rules[0].name`."""
        parts = [f"[{t}]" if isinstance(t, int) else f".{t}" for t in self.tokens]
        return "".join(parts).removeprefix(".")

    @property
    def pointer(self) -> str:
        """The JSON Pointer of the place; empty for the root."""
        return "".join(f"/{escape(str(token))}" for token in self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """What is wrong at a place, and what to write instead.

    `member` names the first member that is missing there, or should not be there.
    """

    place: Place
    member: str | None
    problem: str
    remedy: str
