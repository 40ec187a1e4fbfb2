"""A read plan answered from one snapshot: heads, named bases, their divergence, the observation.

The first statement stays open while the others run: an open statement holds the snapshot of its
connection, so no BEGIN and COMMIT are needed and a plain read is a single statement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import (
    CausalToken,
    Cursor,
    DeadlineExceededError,
    Observation,
    Reading,
    Source,
    Unavailable,
    Version,
    VersionId,
    VersionState,
)
from patchouli.provider_sqlite.codec import VersionRow, ids_text, version_of
from patchouli.provider_sqlite.control import Answer, advance_of, check_bounds
from patchouli.provider_sqlite.errors import KIND
from patchouli.provider_sqlite.graph import read_divergence
from patchouli.provider_sqlite.idempotency import find_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from patchouli.provider import (
        Clock,
        Consistency,
        Divergence,
        IdempotencyProbe,
        IdentityTaken,
        ReadPlan,
        Replayed,
    )
    from patchouli.provider_sqlite.budget import Budget
    from patchouli.provider_sqlite.connection import Connection

# Always one row, so that the snapshot is held whether or not the scope exists.
ENTITY_WITHIN: Final = """
SELECT s.scope_id, s.frontier, s.frontier_token, e.entity_id, e.head_count,
       e.version, e.state, iif(octet_length(e.value) <= ?4, e.value, NULL),
       e.parents, e.recorded_at
FROM (SELECT 1) LEFT JOIN scope s ON s.text = ?1
LEFT JOIN entity e ON e.scope_id = s.scope_id AND e.type = ?2 AND e.id = ?3
"""
HEADS: Final = """
SELECT version, state, value, parents, recorded_at FROM version
WHERE entity_id = ? AND superseded_cursor IS NULL ORDER BY version
"""
HEADS_WITHIN: Final = """
SELECT version, state, iif(octet_length(value) <= ?2, value, NULL), parents, recorded_at
FROM version
WHERE entity_id = ?1 AND superseded_cursor IS NULL ORDER BY version
"""
VERSIONS_WITHIN: Final = """
SELECT version, state, iif(octet_length(value) <= ?3, value, NULL), parents, recorded_at
FROM version
WHERE entity_id = ?1 AND version IN (SELECT value FROM json_each(?2))
"""

NOTHING_PUBLISHED: Final = Observation(
    source=Source.AUTHORITY, frontier=Cursor(0), causal_token=None
)


def read(
    connection: Connection, plan: ReadPlan, *, clock: Clock, budget: Budget
) -> Answer[Reading | Unavailable]:
    """Return the heads of an entity and what else the plan asks for, all of one snapshot.

    Raises:
        DeadlineExceededError: The deadline of the plan has passed.
        OverBudgetError: It costs more than `budget` allows.
    """
    consistency = plan.consistency
    refusal = check_consistency(consistency, clock)
    if refusal is not None:
        return Answer(refusal)
    key = plan.key
    cursor = connection.execute(ENTITY_WITHIN, (key.scope, key.type, key.id, budget.value_bytes))
    try:
        scope_id, frontier, token, entity_id, head_count, *inline = cursor.fetchone()
        behind = check_bounds(connection, consistency, scope_id=scope_id, frontier=frontier or 0)
        if isinstance(behind, Unavailable):
            return Answer(behind)
        record = None
        if plan.idempotency is not None:
            record = _record(connection, plan.idempotency, clock=clock, budget=budget)
        heads = _heads(connection, entity_id, head_count, tuple(inline), budget)
        bases, divergence = _bases_and_divergence(connection, plan, entity_id, heads, budget)
        reading = Reading(
            heads=heads,
            observation=observation_of(frontier, token),
            bases=bases,
            divergence=divergence,
            record=record,
        )
        return Answer(reading, advance_of(key.scope, consistency, behind, frontier))
    finally:
        cursor.close()


def observation_of(frontier: int | None, token: str | None) -> Observation:
    """Return what a read saw that found a scope at `frontier`, or no scope at all."""
    if frontier is None or token is None:
        return NOTHING_PUBLISHED
    return Observation(
        source=Source.AUTHORITY, frontier=Cursor(frontier), causal_token=CausalToken(token)
    )


def check_consistency(consistency: Consistency, clock: Clock) -> Unavailable | None:
    """Return why an authority cannot answer, or None; the deadline comes before the source.

    Raises:
        DeadlineExceededError: The deadline has passed.
    """
    deadline = consistency.deadline_unix_ms
    if deadline is not None and clock.unix_ms() >= deadline:
        raise DeadlineExceededError(KIND, "read", "the deadline passed before the read")
    if Source.AUTHORITY not in consistency.allowed_sources:
        return Unavailable(detail="this store is an authority and the read allows none")
    return None


def ids(versions: Sequence[Version]) -> tuple[VersionId, ...]:
    """Return the ids of `versions`."""
    return tuple(version.id for version in versions)


def active_ids(heads: Sequence[Version]) -> tuple[VersionId, ...]:
    """Return the ids of the heads that hold a value."""
    return tuple(head.id for head in heads if head.state is VersionState.ACTIVE)


def _record(
    connection: Connection, probe: IdempotencyProbe, *, clock: Clock, budget: Budget
) -> Replayed | IdentityTaken | None:
    budget.look_up()
    return find_record(
        connection,
        probe.identity,
        probe.request_json,
        now_unix_ms=probe.now_unix_ms,
        own_unix_ms=clock.unix_ms(),
        value_bytes=budget.value_bytes,
    )


def _bases_and_divergence(
    connection: Connection,
    plan: ReadPlan,
    entity_id: int | None,
    heads: tuple[Version, ...],
    budget: Budget,
) -> tuple[tuple[Version, ...], Divergence | None]:
    if not plan.base_versions and not plan.with_divergence:
        return (), None
    if len(heads) == 1 and plan.base_versions == (heads[0].id,) and heads[0].value_json:
        return heads, None  # the usual update
    bases = _bases(connection, entity_id, heads, plan.base_versions, budget)
    if not plan.with_divergence:
        return bases, None
    divergence = read_divergence(
        connection, entity_id, heads=active_ids(heads), bases=ids(bases), budget=budget
    )
    return bases, divergence


def _heads(
    connection: Connection,
    entity_id: int | None,
    head_count: int,
    inline: VersionRow,
    budget: Budget,
) -> tuple[Version, ...]:
    if entity_id is None:
        return ()
    if head_count == 1:
        budget.take(inline[1], inline[2])
        return (version_of(inline),)
    rows = connection.execute(HEADS_WITHIN, (entity_id, budget.value_bytes))
    return tuple(_taken(rows, budget))


def _bases(
    connection: Connection,
    entity_id: int | None,
    heads: tuple[Version, ...],
    wanted: tuple[VersionId, ...],
    budget: Budget,
) -> tuple[Version, ...]:
    """Return the versions of `wanted` that are published, in its order and each once."""
    known: dict[str, Version] = {head.id: head for head in heads}
    missing = [version for version in wanted if version not in known]
    if missing and entity_id is not None:
        for _ in missing:
            budget.look_up()
        rows = connection.execute(
            VERSIONS_WITHIN, (entity_id, ids_text(missing), budget.value_bytes)
        )
        known.update((version.id, version) for version in _taken(rows, budget))
    return _in_order(known, wanted)


def _taken(rows: Iterable[VersionRow], budget: Budget) -> Iterator[Version]:
    for row in rows:
        budget.take(row[1], row[2])
        yield version_of(row)


def _in_order(known: Mapping[str, Version], wanted: Sequence[VersionId]) -> tuple[Version, ...]:
    return tuple(known[version] for version in dict.fromkeys(wanted) if version in known)
