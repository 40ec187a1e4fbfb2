"""Rows of the database and records of the boundary: one into the other."""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    CausalToken,
    Change,
    ChangeKind,
    CorruptStoreError,
    Cursor,
    Version,
    VersionId,
    VersionState,
)
from patchouli.provider_sqlite.errors import KIND

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STATES: Final = (VersionState.ACTIVE, VersionState.DELETED)  # by the number in `state`
NO_IDS: Final = "[]"

VersionRow = tuple[str, int, str | None, str, int]
"""version, state, value, parents, recorded_at."""

ChangeRow = tuple[int, str, str, str, list[VersionId], str, str, int]
"""cursor, type, id, kind, heads, token, event_meta, recorded_at."""

_KINDS: Final = {str(kind): kind for kind in ChangeKind}


def version_of(row: VersionRow) -> Version:
    """Return the version that a row holds."""
    version, state, value, parents, recorded_at = row
    return Version(
        id=VersionId(version),
        state=STATES[state],
        value_json=value,
        parents=ids_of(parents),
        recorded_at_unix_ms=recorded_at,
    )


def change_of(row: ChangeRow) -> Change:
    """Return the change that a row holds."""
    cursor, type_, id_, kind, heads, token, event_meta, recorded_at = row
    return Change(
        cursor=Cursor(cursor),
        type=type_,
        id=id_,
        kind=_KINDS[kind],
        head_versions=tuple(heads),
        causal_token=CausalToken(token),
        event_meta_json=event_meta,
        recorded_at_unix_ms=recorded_at,
    )


def state_number(version: Version) -> int:
    """Return how the state of `version` is stored."""
    return 0 if version.state is VersionState.ACTIVE else 1


def ids_of(text: str) -> tuple[VersionId, ...]:
    """Return the version ids of a stored list.

    Raises:
        CorruptStoreError: It is none.
    """
    if text == NO_IDS:
        return ()
    try:
        return tuple(json.loads(text))
    except ValueError as error:
        detail = "a stored list of versions is damaged; restore the database from a backup"
        raise CorruptStoreError(KIND, "read", detail) from error


def ids_text(ids: Iterable[str]) -> str:
    """Return the text under which a list of ids is stored."""
    return "[" + ",".join(map(encode_basestring, ids)) + "]"


def within(sizes: Sequence[int], *, most: int, most_bytes: int) -> int:
    """Return how many of the first things, `most` of them, have no more than `most_bytes` in all.

    One is always among them.
    """
    total = 0
    for number, size in enumerate(sizes[:most]):
        total += size
        if number and total > most_bytes:
            return number
    return min(most, len(sizes))
