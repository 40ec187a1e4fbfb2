"""A retrieval: one page of the entities that match, from one pair of snapshots.

    index  ─▶ documents, already in order, a few at a time      (search_documents.py)
    truth  ─▶ fresh entities, those of them that match          (search_fresh.py)
    unit   ─▶ entities that a work unit sees otherwise          (units_search.py)
                     merged ─▶ heads from the truth ─▶ page

All sources obey `patchouli.provider.matching`. The index only decides how much is looked at.
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
)
from patchouli.provider_sqlite import search_snapshot
from patchouli.provider_sqlite.codec import version_of
from patchouli.provider_sqlite.control import Answer, advance_of, check_bounds
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.reads import HEADS, NOTHING_PUBLISHED, check_consistency
from patchouli.provider_sqlite.search_documents import find_documents
from patchouli.provider_sqlite.search_found import Wanted
from patchouli.provider_sqlite.search_fresh import find_fresh
from patchouli.provider_sqlite.units import check_bounds_in, find_unit
from patchouli.provider_sqlite.units_search import STAGED, find_in_unit, heads_in

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
) -> Answer[RetrieveOutcome] | None:
    """Return a page of `plan`; `has_index` says whether `connection` has an index attached.

    None if the work unit of the plan is to be opened or expired first.

    Raises:
        DeadlineExceededError: The deadline has passed.
        apsw.Error: The truth or the index cannot be read, or the connection was interrupted.
    """
    refusal = check_consistency(plan.consistency, clock)
    if refusal is not None:
        return Answer(refusal)
    if plan.limit < 1:
        raise MisuseError(KIND, "retrieve", "the limit is below 1")
    connection.execute("BEGIN")
    try:
        state = search_snapshot.take_index(connection) if has_index else None
        unit = None
        if plan.unit is not None:
            unit = find_unit(connection, plan.unit.identity)
            if unit is None:
                return None
            refused = unit.refusal(plan.unit, clock.unix_ms())
            if refused is not None and unit.is_to_expire(refused):
                return None
            refused = refused or unit.end()
            if refused is not None:
                return Answer(refused)
        snapshot = search_snapshot.take(connection, plan.scope, state, unit)
        observation = NOTHING_PUBLISHED if snapshot is None else snapshot.observation
        frontier = observation.frontier
        if unit is None:
            scope_id = None if snapshot is None else snapshot.scope_id
            behind = check_bounds(
                connection, plan.consistency, scope_id=scope_id, frontier=frontier
            )
        else:
            behind = check_bounds_in(connection, unit, plan.consistency)
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
        heads = () if is_full else _heads(snapshot, found)
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
    sources = [find_fresh(snapshot, wanted)]
    if snapshot.unit is not None:
        sources.append(find_in_unit(snapshot, snapshot.unit, wanted))
    if snapshot.has_index:
        sources.append(find_documents(snapshot, wanted))
    if len(sources) == 1:
        return sources[0]
    return heapq.merge(*sources, reverse=wanted.is_descending)


def _heads(snapshot: Snapshot, found: Found) -> tuple[Version, ...]:
    unit, entity_id = snapshot.unit, found.entity_id
    if unit is not None and (entity_id == STAGED or entity_id in snapshot.apart):
        return heads_in(snapshot.connection, unit, found)
    single = snapshot.connection.execute(_SINGLE, (entity_id,)).fetchone()
    if single is not None:
        return (version_of(single),)
    return tuple(map(version_of, snapshot.connection.execute(HEADS, (entity_id,))))
