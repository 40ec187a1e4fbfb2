"""Steps that several cases about closing a work unit begin with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from patchouli.provider import (
    Drifted,
    Publish,
    Resolution,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    staged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    NOW,
    SCOPE,
    create,
    entity,
    staging,
    unit,
    update,
    version,
)

if TYPE_CHECKING:
    from patchouli.provider import Provider, UnitConflict, Version

A, B, C = entity("a"), entity("b"), entity("c")
UNIT = unit()
IN_UNIT = staging(UNIT)
CLOSING = staging(UNIT, close=True, request='"the close"')


def resolution(conflict: UnitConflict, *new: Version) -> Resolution:
    """Return a resolution of `conflict` whose heads are the new versions."""
    return Resolution(
        key=conflict.key,
        expected_published_heads=tuple(head.id for head in conflict.published_heads),
        expected_staged_heads=tuple(head.id for head in conflict.staged_heads),
        new_versions=new,
        head_versions=tuple(v.id for v in new),
    )


def publish(*resolutions: Resolution, discard: bool = False, late: bool = False) -> Publish:
    """Return the publication of the unit with some resolutions."""
    return Publish(
        unit=UNIT,
        resolutions=resolutions,
        recorded_at_unix_ms=NOW + 50,
        discard=discard,
        deadline_unix_ms=LATE if late else None,
    )


async def drifted(provider: Provider, *names: str) -> Drifted:
    """Seal a unit that has updated the named entities, after each was updated outside."""
    for name in names:
        await committed(provider, create(entity(name), f"{name}1"))
    for name in names:
        change = update(entity(name), f"{name}1", f"{name}2", event_meta_json=f'{{"in":"{name}"}}')
        await staged(provider, replace(change, staging=staging(UNIT, policy=f'"{name}"')))
    for name in names:
        await committed(provider, update(entity(name), f"{name}1", f"{name}9"))
    outcome = await provider.commit(create(entity("z"), "z1", staging=CLOSING))
    assert isinstance(outcome, Drifted), outcome
    return outcome


async def kinds(provider: Provider, after: int = 0) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return id, kind and heads of the changes beyond a cursor."""
    log = await all_changes(provider, SCOPE)
    return [(c.id, c.kind.value, tuple(c.head_versions)) for c in log if c.cursor > after]


def joined(name: str, *parents: str) -> Version:
    """Return a version derived from several heads."""
    return version(name, parents=parents, recorded_at_unix_ms=NOW + 50)
