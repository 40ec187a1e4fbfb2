"""The names by which a store is addressed: scopes, entities, control keys, versions, cursors.

All of them are opaque to a provider. Texts are compared byte for byte, exactly as the engine
spelled them; a provider never parses, trims or normalises one.
"""

from __future__ import annotations

from typing import NamedTuple, NewType

ScopeText = NewType("ScopeText", str)
"""Canonical JSON object that isolates everything stored below it, e.g. `{"team":"north"}`."""

ControlKey = NewType("ControlKey", str)
"""Text of `{"scope": …, "fields": …}`: a session, an idempotency identity, a unit, a domain."""

VersionId = NewType("VersionId", str)
"""Token of one immutable version, unique in the whole store."""

CausalToken = NewType("CausalToken", str)
"""Token of one published position of a scope, unique in the whole store."""

Cursor = NewType("Cursor", int)
"""Position in the change sequence of one store: 1, 2, …; 0 stands before the first change."""

INTEGER_MAX = 2**63 - 1  # cursors, generations and times are stored as signed 64-bit integers


class EntityKey(NamedTuple):
    """The identity of one entity: two entities are the same iff all three members are equal."""

    scope: ScopeText
    type: str
    id: str
