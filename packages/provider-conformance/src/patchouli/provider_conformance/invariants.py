"""What must hold of everything that a provider shows, whatever was done to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from patchouli.provider import EntityKey, VersionState
from patchouli.provider_conformance.asking import all_changes, page_of, position_of, reading
from patchouli.provider_conformance.builders import changes, read, retrieve

if TYPE_CHECKING:
    from patchouli.provider import Change, Provider, Reading, ScopeText


async def check_visible_state(provider: Provider, scope: ScopeText) -> None:
    """Return if changes, heads, frontier and retrieval of `scope` tell the same story.

    The provider must be at rest, and nothing of the scope may have been pruned.

    Raises:
        AssertionError: They do not; the message names what does not hold.
    """
    log = await all_changes(provider, scope)
    check_log(log)
    page = await provider.read_changes(changes(scope=scope))
    newest = {EntityKey(scope, change.type, change.id): change for change in log}
    active: set[EntityKey] = set()
    for key, change in newest.items():
        found = await reading(provider, read(key))
        check_heads(key, change, found)
        assert found.observation.frontier == page.frontier, "a read sees the frontier of its scope"
        if log[-1].cursor == page.frontier:
            token = found.observation.causal_token
            assert token == log[-1].causal_token, "a read observes the token of the newest change"
        if any(head.state is VersionState.ACTIVE for head in found.heads):
            active.add(key)
    assert await listed(provider, scope) == active, "what is active is found, and nothing else"


def check_log(log: list[Change]) -> None:
    """Return if the changes of one scope are well formed."""
    cursors = [change.cursor for change in log]
    assert all(cursor >= 1 for cursor in cursors), "cursors begin at 1"
    assert cursors == sorted(set(cursors)), "cursors ascend and are not repeated"
    tokens = [change.causal_token for change in log]
    assert len(set(tokens)) == len(tokens), "no two changes have the same causal token"
    for change in log:
        heads = change.head_versions
        assert heads, "a change has heads"
        assert len(set(heads)) == len(heads), "the heads of a change are not repeated"


def check_heads(key: EntityKey, newest: Change, found: Reading) -> None:
    """Return if the heads of an entity are those of its newest change."""
    heads = [head.id for head in found.heads]
    assert heads == sorted(newest.head_versions), f"{key}: the newest change names the heads"
    for head in found.heads:
        has_value = head.value_json is not None
        assert has_value == (head.state is VersionState.ACTIVE), "active versions have a value"


async def listed(provider: Provider, scope: ScopeText) -> set[EntityKey]:
    """Return the keys that an empty query finds, page by page."""
    keys: list[EntityKey] = []
    plan = retrieve(scope=scope, limit=50)
    while True:
        page = await page_of(provider, plan)
        keys.extend(hit.key for hit in page.hits)
        if not page.has_more:
            assert len(set(keys)) == len(keys), "no entity is found twice"
            return set(keys)
        plan = replace(plan, after=position_of(page.hits[-1]))
