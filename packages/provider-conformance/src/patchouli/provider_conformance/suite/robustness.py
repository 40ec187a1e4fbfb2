"""Load, long histories, crashes: what holds at rest holds however the store got there."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Committed,
    Drifted,
    ProviderError,
    Publish,
    Published,
    Raced,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    found,
    head_ids,
    page_of,
    reading,
    staged,
)
from patchouli.provider_conformance.builders import (
    NOW,
    OTHER_SCOPE,
    SCOPE,
    changes,
    commit,
    create,
    entity,
    read,
    retrieve,
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_conformance.invariants import check_visible_state
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import EntityKey, Provider
    from patchouli.provider_conformance.suite.base import Abandon, Start

KEYS = [entity("a"), entity("b"), entity("c")]
WRITERS, UPDATES = 8, 12
LONG = 150  # updates of one entity
CRASHES = 5


async def write_until_it_counts(provider: Provider, key: EntityKey, name: str) -> None:
    """Add a version on top of the present heads, however many races that takes."""
    heads = [head.id for head in (await reading(provider, read(key))).heads]
    while True:
        new = version(name, {"by": name}, parents=heads)
        outcome = await provider.commit(commit(key, new, expected=heads))
        if isinstance(outcome, Committed):
            return
        assert isinstance(outcome, Raced), outcome
        heads = [head.id for head in outcome.heads]


class RobustnessConformance(ProviderSuite):
    """No update is lost and no answer contradicts another."""

    async def test_writers_of_the_same_entities_lose_no_update(self, provider: Provider) -> None:
        async def writer(number: int) -> None:
            for step in range(UPDATES):
                key = KEYS[(number + step) % len(KEYS)]
                await write_until_it_counts(provider, key, f"w{number}-{step}")

        await asyncio.gather(*(writer(number) for number in range(WRITERS)))

        await check_visible_state(provider, SCOPE)
        log = await all_changes(provider, SCOPE)
        assert len(log) == WRITERS * UPDATES
        for key in KEYS:
            # Each change replaced the head of the change before it: nothing was overwritten.
            heads = [change.head_versions[0] for change in log if change.id == key.id]
            seen = await reading(provider, read(key, *heads))
            parents = {v.id: v.parents for v in seen.bases}
            assert [parents[head] for head in heads] == [(), *((head,) for head in heads[:-1])]

    async def test_readers_beside_writers_see_one_moment(self, provider: Provider) -> None:
        """A commit replaces two heads by two; no reader sees one of each."""
        key = KEYS[0]
        await committed(provider, commit(key, version("a0"), version("b0")))
        writer = asyncio.create_task(replace_pairs(provider, key))

        pairs: set[tuple[str, str]] = set()
        while not writer.done():
            await asyncio.sleep(0)
            first, second = await head_ids(provider, key)
            pairs.add((first[1:], second[1:]))
            for hit in (await page_of(provider, retrieve(text="0"))).hits:
                pairs.add((hit.heads[0].id[1:], hit.heads[1].id[1:]))
        await writer

        assert all(first == second for first, second in pairs)

    async def test_a_long_history_does_not_show(self, provider: Provider) -> None:
        key = KEYS[0]
        await committed(provider, create(key, "v0"))
        for number in range(LONG):
            await committed(provider, update(key, f"v{number}", f"v{number + 1}"))

        seen = await reading(provider, read(key, "v7", with_divergence=True))

        assert [head.id for head in seen.heads] == [f"v{LONG}"]
        assert [base.id for base in seen.bases] == ["v7"]
        assert seen.divergence is not None
        assert [node.id for node in seen.divergence.nodes] == ["v7", f"v{LONG}"]
        (hit,) = (await page_of(provider, retrieve(text="v"))).hits
        assert [head.id for head in hit.heads] == [f"v{LONG}"]
        assert len(await all_changes(provider, SCOPE)) == LONG + 1

    async def test_the_changes_of_other_scopes_do_not_show(self, provider: Provider) -> None:
        await committed(provider, create(KEYS[0], "mine"))
        await asyncio.gather(
            *(
                committed(provider, create(entity(f"e{n}", scope=OTHER_SCOPE), f"far{n}"))
                for n in range(LONG)
            )
        )
        await committed(provider, update(KEYS[0], "mine", "mine2"))

        first = await provider.read_changes(changes(limit=1))
        rest = await provider.read_changes(changes(first.reached, limit=1))

        assert [c.head_versions for c in (*first.changes, *rest.changes)] == [("mine",), ("mine2",)]
        assert rest.frontier == rest.reached
        assert await found(provider) == ["a"]

    async def test_what_was_acknowledged_survives_crashes_under_load(
        self, provider: Provider, start: Start, abandon: Abandon
    ) -> None:
        acknowledged: list[str] = []

        async def writer(provider: Provider, prefix: str, enough: asyncio.Event) -> None:
            for number in range(200):
                name = f"{prefix}-{number}"
                try:
                    await committed(provider, create(entity(name), f"v-{name}"))
                except ProviderError:
                    return
                acknowledged.append(name)
                if number == 10:
                    enough.set()
                await asyncio.sleep(0)

        for crash in range(CRASHES):
            enough = asyncio.Event()
            tasks = [
                asyncio.create_task(writer(provider, f"{crash}-{n}", enough)) for n in range(4)
            ]
            await enough.wait()
            await abandon(provider)
            await asyncio.gather(*tasks)
            provider = await start()
            await check_visible_state(provider, SCOPE)

        present = {change.id for change in await all_changes(provider, SCOPE)}
        assert set(acknowledged) <= present

    @pytest.mark.requires("work_units")
    async def test_units_beside_writers_are_published_whole_or_not_at_all(
        self, provider: Provider
    ) -> None:
        for key in KEYS:
            await committed(provider, create(key, f"{key.id}0"))
        tokens: dict[str, list[str]] = {}

        async def run_unit(number: int) -> bool:
            """Update every entity in a unit; on drift give up."""
            name = f"u{number}"
            mine = staging(unit(name))
            for key in KEYS:
                heads = [h.id for h in (await reading(provider, read(key, unit=mine.unit))).heads]
                new = version(f"{name}-{key.id}", parents=heads)
                await staged(provider, commit(key, new, expected=heads, staging=mine))
            last = entity(f"end-{name}")
            closing = staging(unit(name), close=True)
            outcome = await provider.commit(create(last, f"{name}-end", staging=closing))
            if isinstance(outcome, Drifted):
                plan = Publish(unit=unit(name), recorded_at_unix_ms=NOW, discard=True)
                await provider.publish(plan)
            return isinstance(outcome, Published)

        async def run_units(first: int) -> None:
            for number in range(first, first + 10):
                is_published = await run_unit(number)
                tokens[f"u{number}"] = [f"token-u{number}-{k.id}" for k in KEYS] * is_published

        async def run_writer(number: int) -> None:
            for step in range(3):
                await write_until_it_counts(provider, KEYS[step], f"w{number}-{step}")

        await asyncio.gather(run_units(0), run_units(100), *(run_writer(n) for n in range(4)))

        await check_visible_state(provider, SCOPE)
        published = {change.causal_token for change in await all_changes(provider, SCOPE)}
        for name, expected in tokens.items():
            mine = {token for token in published if token.startswith(f"token-{name}-")}
            assert mine == ({*expected, f"token-{name}-end"} if expected else set())


async def replace_pairs(provider: Provider, key: EntityKey) -> None:
    """Replace both heads of `key` by the next pair, many times."""
    for number in range(60):
        pair = [version(f"{side}{number + 1}") for side in "ab"]
        await committed(provider, commit(key, *pair, expected=[f"a{number}", f"b{number}"]))
