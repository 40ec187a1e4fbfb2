"""Ask a provider and insist on the kind of answer that the question expects."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from patchouli.provider import (
    Committed,
    Page,
    Position,
    Published,
    Reading,
    Staged,
)
from patchouli.provider_conformance.builders import AUTHORITY, changes, read, retrieve

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from patchouli.provider import (
        Change,
        ChangePage,
        Commit,
        Cursor,
        EntityKey,
        Hit,
        Provider,
        ReadPlan,
        RetrievePlan,
        ScopeText,
    )


async def committed(provider: Provider, commit: Commit) -> Cursor:
    """Commit, and return the cursor at which it was published."""
    outcome = await provider.commit(commit)
    assert isinstance(outcome, Committed), outcome
    return outcome.cursor


async def all_committed(provider: Provider, commits: Iterable[Commit]) -> None:
    """Commit all at once, so that a store that commits in groups can."""
    await asyncio.gather(*(committed(provider, commit) for commit in commits))


async def staged(provider: Provider, commit: Commit) -> None:
    """Commit into an open work unit."""
    outcome = await provider.commit(commit)
    assert isinstance(outcome, Staged), outcome


async def published(provider: Provider, commit: Commit) -> Published:
    """Close a work unit that has not drifted."""
    outcome = await provider.commit(commit)
    assert isinstance(outcome, Published), outcome
    return outcome


async def reading(provider: Provider, plan: ReadPlan) -> Reading:
    """Read, and return what was read."""
    outcome = await provider.read(plan)
    assert isinstance(outcome, Reading), outcome
    return outcome


async def head_ids(provider: Provider, key: EntityKey) -> list[str]:
    """Return the ids of the published heads of `key`."""
    return [head.id for head in (await reading(provider, read(key))).heads]


async def frontier(provider: Provider, scope: ScopeText) -> Cursor:
    """Return the frontier of `scope`."""
    return (await provider.read_changes(changes(scope=scope))).frontier


async def all_changes(provider: Provider, scope: ScopeText) -> list[Change]:
    """Return every retained change of `scope`, page by page."""
    found: list[Change] = []
    page = await provider.read_changes(changes(scope=scope))
    found.extend(page.changes)
    while page.reached < page.frontier:
        page = await provider.read_changes(changes(page.reached, scope=scope))
        found.extend(page.changes)
    return found


async def page_of(provider: Provider, plan: RetrievePlan) -> Page:
    """Retrieve one page."""
    outcome = await provider.retrieve(plan)
    assert isinstance(outcome, Page), outcome
    return outcome


# Any: forwarded to the plan.
async def found(provider: Provider, **query: Any) -> list[str]:
    """Return the ids of all entities that `query` finds, in ascending order."""
    return [hit.key.id for hit in (await page_of(provider, retrieve(**query))).hits]


def position_of(hit: Hit) -> Position:
    """Return the place of `hit`, from which the next page continues."""
    return Position(
        score=hit.score,
        recorded_at_unix_ms=hit.recorded_at_unix_ms,
        type=hit.key.type,
        id=hit.key.id,
    )


async def visible_state(
    provider: Provider, keys: tuple[EntityKey, ...]
) -> tuple[list[Reading], list[ChangePage]]:
    """Return everything that shows of `keys` and of their scopes."""
    readings = [await reading(provider, read(key, consistency=AUTHORITY)) for key in keys]
    scopes = dict.fromkeys(key.scope for key in keys)
    pages = [await provider.read_changes(changes(scope=scope)) for scope in scopes]
    return readings, pages


@asynccontextmanager
async def unchanged(provider: Provider, *keys: EntityKey) -> AsyncGenerator[None]:
    """Insist that nothing that shows of `keys` and their scopes changes inside the block."""
    before = await visible_state(provider, keys)
    yield
    assert await visible_state(provider, keys) == before
