"""A retrieval: one page of the entities that match, from one pair of snapshots.

    index  ─▶ documents, already in order, a few at a time      (search_documents.py)
    truth  ─▶ fresh entities, those of them that match          (search_fresh.py)
                     merged ─▶ heads from the truth ─▶ page

Both sources obey `patchouli.provider.matching`. The index only decides how much is looked at.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    EntityKey,
    Hit,
    MisuseError,
    Page,
    Unavailable,
    UnsupportedError,
)
from patchouli.provider_sqlite import search_snapshot
from patchouli.provider_sqlite.codec import version_of
from patchouli.provider_sqlite.control import Answer, advance_of, check_bounds
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.reads import HEADS, NOTHING_PUBLISHED, check_consistency
from patchouli.provider_sqlite.search_documents import find_documents
from patchouli.provider_sqlite.search_found import Wanted
from patchouli.provider_sqlite.search_fresh import find_fresh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.provider import Clock, RetrieveOutcome, RetrievePlan, Version
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.search_found import Found
    from patchouli.provider_sqlite.search_snapshot import Snapshot

_SINGLE: Final = """
SELECT version, state, value, parents, recorded_at FROM entity
WHERE entity_id = ? AND head_count = 1
"""


def retrieve(
    connection: Connection, plan: RetrievePlan, *, clock: Clock, has_index: bool
) -> Answer[RetrieveOutcome]:
    """Return a page of `plan`; `has_index` says whether `connection` has an index attached.

    Raises:
        DeadlineExceededError: The deadline has passed.
        UnsupportedError: The plan names a work unit.
        apsw.Error: The truth or the index cannot be read, or the connection was interrupted.
    """
    refusal = check_consistency(plan.consistency, clock)
    if refusal is not None:
        return Answer(refusal)
    if plan.unit is not None:
        raise UnsupportedError(KIND, "retrieve", "it does not offer work units")
    if plan.limit < 1:
        raise MisuseError(KIND, "retrieve", "the limit is below 1")
    connection.execute("BEGIN")
    try:
        snapshot = search_snapshot.take(connection, plan.scope, has_index=has_index)
        observation = NOTHING_PUBLISHED if snapshot is None else snapshot.observation
        frontier = observation.frontier
        scope_id = None if snapshot is None else snapshot.scope_id
        behind = check_bounds(connection, plan.consistency, scope_id=scope_id, frontier=frontier)
        if isinstance(behind, Unavailable):
            return Answer(behind)
        if snapshot is None:
            return Answer(Page(hits=(), has_more=False, observation=observation))
        advance = advance_of(plan.scope, plan.consistency, behind, frontier)
        return Answer(_page(snapshot, Wanted(plan)), advance)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _page(snapshot: Snapshot, wanted: Wanted) -> Page:
    plan = wanted.plan
    hits: list[Hit] = []
    size = 0
    for found in islice(_merged(snapshot, wanted), plan.limit + 1):
        is_full = len(hits) == plan.limit
        heads = () if is_full else _heads(snapshot, found.entity_id)
        size += sum(len((head.value_json or "").encode()) for head in heads)
        if is_full or (hits and size > plan.limit_bytes):
            return Page(hits=tuple(hits), has_more=True, observation=snapshot.observation)
        hits.append(
            Hit(
                key=EntityKey(plan.scope, found.type, found.id),
                heads=heads,
                score=found.score,
                recorded_at_unix_ms=found.recorded_at,
            )
        )
    return Page(hits=tuple(hits), has_more=False, observation=snapshot.observation)


def _merged(snapshot: Snapshot, wanted: Wanted) -> Iterator[Found]:
    fresh = find_fresh(snapshot, wanted)
    if not snapshot.has_index:
        return fresh
    return heapq.merge(fresh, find_documents(snapshot, wanted), reverse=wanted.is_descending)


def _heads(snapshot: Snapshot, entity_id: int) -> tuple[Version, ...]:
    single = snapshot.connection.execute(_SINGLE, (entity_id,)).fetchone()
    if single is not None:
        return (version_of(single),)
    return tuple(map(version_of, snapshot.connection.execute(HEADS, (entity_id,))))
