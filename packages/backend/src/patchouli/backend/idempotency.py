"""Mutations that may be asked for twice: how they are recognized and what a repetition is told.

A mutation of a keyed behavior has an *identity*, taken from its metadata, and a *fingerprint*, its
operation and data. What it was answered is stored with both, in the transaction that accepts it.
While the record is kept, the same fingerprint under the identity is told the stored answer, byte
for byte, and any other one is refused. `meta` is no part of the fingerprint: other bases, another
strategy or deadline do not make another mutation.

The record is looked for before anything else is said about the request but what its own metadata
is refused for: before the schema and before the entity. A refused mutation stores nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import orjson
from patchouli.backend.canonical import canonical
from patchouli.backend.results import EntityResult, VersionView
from patchouli.provider import INTEGER_MAX, IdempotencyProbe, IdempotencyRecord

if TYPE_CHECKING:
    from patchouli.provider import ControlKey


class Identity(NamedTuple):
    """Under which identity a mutation is remembered, as what, and for how long."""

    key: ControlKey
    request_json: str
    retention_ms: int

    def probe(self, now_unix_ms: int) -> IdempotencyProbe:
        """Return the question whether the mutation was accepted before."""
        return IdempotencyProbe(
            identity=self.key, request_json=self.request_json, now_unix_ms=now_unix_ms
        )

    def record(self, result_json: str, now_unix_ms: int) -> IdempotencyRecord:
        """Return the record of the mutation if it is accepted now; its end saturates."""
        return IdempotencyRecord(
            identity=self.key,
            request_json=self.request_json,
            result_json=result_json,
            now_unix_ms=now_unix_ms,
            expires_at_unix_ms=min(now_unix_ms + self.retention_ms, INTEGER_MAX),
        )


def with_text(result: EntityResult) -> tuple[EntityResult, str]:
    """Return `result` as one that carries its own text, and that text, which is to be stored."""
    text = result.to_json().decode()
    return EntityResult(result.meta, result.entity, text), text


def replayed(result_json: str) -> EntityResult:
    """Return the result that was stored as `result_json`."""
    stored = orjson.loads(result_json)
    entity = stored["data"]["entity"]
    value_json = canonical(entity["value"]) if entity["state"] == "active" else None
    view = VersionView(entity["ref"]["type"], entity["ref"]["id"], entity["version"], value_json)
    return EntityResult(stored["meta"], view, result_json)
