"""What the engine answers: views of versions whose values stay the stored text.

`value_json` is canonical JSON text exactly as it is stored, so a front can splice it into a
response without parsing it again. It is None for a deletion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson

if TYPE_CHECKING:
    from patchouli.provider import Json

EntityState = Literal["active", "conflicted", "deleted"]


class VersionView(NamedTuple):
    """One version of one entity; without a value it is a deletion."""

    # A tuple, because a page makes up to a hundred of them and reading an entity little else.
    type: str
    id: str
    version: str
    value_json: str | None

    def to_json(self) -> bytes:
        """Return the version as it stands in an answer, its value spliced in."""
        ref = {"type": self.type, "id": self.id}
        if self.value_json is None:
            return orjson.dumps({"state": "deleted", "ref": ref, "version": self.version})
        head = orjson.dumps({"state": "active", "ref": ref, "version": self.version})
        return b'%b,"value":%b}' % (head[:-1], self.value_json.encode())


@dataclass(slots=True)
class EntityResult:
    """Answers create, update and delete: the accepted version.

    `result_json` is this answer as one JSON text, if it is stored so that a repetition of the
    mutation gets the same: the `result` of the response, to be passed on as it is.
    """

    meta: dict[str, Json]
    entity: VersionView
    result_json: str | None = None

    def to_json(self) -> bytes:
        """Return the `result` of the response."""
        if self.result_json is not None:
            return self.result_json.encode()
        meta = orjson.dumps(self.meta) if self.meta else b"{}"
        return b'{"meta":%b,"data":{"entity":%b}}' % (meta, self.entity.to_json())


@dataclass(slots=True)
class ReadResult:
    """Answers read: every head, ascending by version."""

    meta: dict[str, Json]
    state: EntityState
    variants: tuple[VersionView, ...]


class HitView(NamedTuple):
    """One entity found, with every head, ascending by version."""

    score: float
    variants: tuple[VersionView, ...]


@dataclass(slots=True)
class RetrieveResult:
    """Answers retrieve: one page; `meta` carries `next_cursor` if there is a further one."""

    meta: dict[str, Json]
    hits: tuple[HitView, ...]
