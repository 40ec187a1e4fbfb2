"""A read plan answered in the view of a work unit, from one snapshot and without a write.

The first statement brings the unit and the entity together and stays open while the others run, as
in `reads.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from patchouli.provider import Reading, Unavailable, UnitRefused
from patchouli.provider_sqlite.control import Answer, advance_of
from patchouli.provider_sqlite.idempotency import find_record
from patchouli.provider_sqlite.reads import active_ids, check_consistency, ids, observation_of
from patchouli.provider_sqlite.units import UNIT_COLUMNS, UNIT_WIDTH, check_bounds_in, unit_of
from patchouli.provider_sqlite.units_view import ENTITY_COLUMNS, ENTITY_JOINS, view_of

if TYPE_CHECKING:
    from patchouli.provider import (
        Clock,
        IdentityTaken,
        Observation,
        ReadPlan,
        Replayed,
        WorkUnit,
    )
    from patchouli.provider_sqlite.budget import Budget
    from patchouli.provider_sqlite.connection import Connection
    from patchouli.provider_sqlite.units_view import UnitView

UNIT_AND_ENTITY: Final = f"""
SELECT {UNIT_COLUMNS}, {ENTITY_COLUMNS}
FROM work_unit u CROSS JOIN scope s ON s.scope_id = u.scope_id {ENTITY_JOINS}
WHERE u.identity = :identity
"""  # noqa: S608 - of constants


def read_in_unit(
    connection: Connection, plan: ReadPlan, named: WorkUnit, *, clock: Clock, budget: Budget
) -> Answer[Reading | Unavailable | UnitRefused] | None:
    """Return what the unit sees of an entity; None if the unit is to be opened or expired first.

    Raises:
        DeadlineExceededError: The deadline of the plan has passed.
        OverBudgetError: It costs more than `budget` allows.
    """
    refusal = check_consistency(plan.consistency, clock)
    if refusal is not None:
        return Answer(refusal)
    key = plan.key
    names = {"identity": named.identity, "type": key.type, "id": key.id}
    cursor = connection.execute(UNIT_AND_ENTITY, names | {"bytes": budget.value_bytes})
    try:
        row = cursor.fetchone()
        if row is None:
            return None
        unit, own = unit_of(row[:UNIT_WIDTH]), clock.unix_ms()
        refused = unit.refusal(named, own)
        if refused is not None:
            return None if unit.is_to_expire(refused) else Answer(refused)
        record = None
        if plan.idempotency is not None:
            budget.look_up()
            record = find_record(
                connection,
                plan.idempotency.identity,
                plan.idempotency.request_json,
                now_unix_ms=plan.idempotency.now_unix_ms,
                own_unix_ms=own,
                unit_id=unit.unit_id,
                value_bytes=budget.value_bytes,
            )
        end = unit.end()
        if record is None and end is not None:
            return Answer(end)
        behind = check_bounds_in(connection, unit, plan.consistency)
        if isinstance(behind, Unavailable):
            return Answer(behind)
        observation = observation_of(unit.baseline, unit.token)
        if unit.state == "committed":  # nothing is left of its view
            reading = Reading(heads=(), observation=observation, record=record)
        else:
            view = view_of(connection, unit, key, row[UNIT_WIDTH:])
            reading = _read(view, plan, observation, record, budget)
        return Answer(reading, advance_of(key.scope, plan.consistency, behind, unit.baseline))
    finally:
        cursor.close()


def _read(
    view: UnitView,
    plan: ReadPlan,
    observation: Observation,
    record: Replayed | IdentityTaken | None,
    budget: Budget,
) -> Reading:
    heads = view.heads(budget)
    bases = heads
    divergence = None
    if plan.base_versions != ids(heads):
        bases = tuple(view.versions(plan.base_versions, budget).values())
    active = active_ids(heads)
    if plan.with_divergence and set(active) != set(ids(bases)):
        divergence = view.divergence((*active, *ids(bases)), budget)
    return Reading(
        heads=heads, observation=observation, bases=bases, divergence=divergence, record=record
    )
