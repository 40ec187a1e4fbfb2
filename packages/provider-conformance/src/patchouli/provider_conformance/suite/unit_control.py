"""Work units together with causal tokens and sessions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Consistency,
    DeadlineExceededError,
    MisuseError,
    Published,
    Raced,
    Reading,
    SessionRequirement,
    Unavailable,
    UnitRefused,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    published,
    reading,
    staged,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    SCOPE,
    control,
    create,
    entity,
    probe,
    read,
    record,
    retrieve,
    staging,
    unit,
    update,
)
from patchouli.provider_conformance.suite.base import ProviderSuite
from patchouli.provider_conformance.suite.unit_steps import drifted, joined, publish, resolution

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, Provider
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Abandon, Reopen, Start

A, B = entity("a"), entity("b")
UNIT, OTHER_UNIT = unit(), unit("other")
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)


@pytest.mark.requires("work_units", "causal_reads")
class UnitCausalConformance(ProviderSuite):
    """A bound above the baseline is not met, and never moves it."""

    async def test_a_token_newer_than_the_baseline_is_unavailable(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await reading(provider, read(A, unit=UNIT))
        await committed(provider, update(A, "a1", "a2"))
        old, new = after("token-a1"), after("token-a2")

        assert isinstance(await provider.read(read(A, unit=UNIT, consistency=old)), Reading)
        for outcome in (
            await provider.read(read(A, unit=UNIT, consistency=new)),
            await provider.retrieve(retrieve(unit=UNIT, consistency=new)),
        ):
            assert isinstance(outcome, Unavailable)
            assert outcome.frontier is None  # waiting does not move a baseline

    async def test_an_unavailable_read_opens_nothing(self, provider: Provider) -> None:
        cursor = await committed(provider, create(A, "a1"))
        unknown = after("unknown")
        for outcome in (
            await provider.read(read(A, unit=UNIT, consistency=unknown)),
            await provider.retrieve(retrieve(unit=UNIT, consistency=unknown)),
        ):
            assert isinstance(outcome, Unavailable)
            assert outcome.frontier == cursor  # beyond it the unit could be opened
        await committed(provider, update(A, "a1", "a2"))

        seen = await reading(provider, read(A, unit=UNIT))

        assert [head.id for head in seen.heads] == ["a2"]

    async def test_every_token_of_a_unit_stands_for_its_publication(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))
        tokens = after("token-a1", "token-a2", "token-b1")
        assert isinstance(await provider.read(read(A, consistency=tokens)), Unavailable)

        await published(provider, create(B, "b1", staging=CLOSING))

        await reading(provider, read(A, consistency=tokens))

    async def test_the_token_of_a_resolution_is_one_more_name_of_its_position(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        (conflict,) = (await drifted(provider, "a")).conflicts
        good = resolution(conflict, joined("m", "a2", "a9"))
        named = replace(good, causal_token=CausalToken("token-m"))

        async with unchanged(provider, A):
            for used in ("token-a1", "token-a2", "token-z1"):
                wrong = replace(good, causal_token=CausalToken(used))
                with pytest.raises(MisuseError):
                    await provider.publish(publish(wrong))
            outcome = await provider.read(read(A, consistency=after("token-m")))
            assert isinstance(outcome, Unavailable)
        done = await provider.publish(publish(named))

        assert isinstance(done, Published)
        again = await reopen(provider)
        await reading(again, read(A, consistency=after("token-m", "token-a2", "token-z1")))
        log = await all_changes(again, SCOPE)
        assert [change.causal_token for change in log[-2:]] == ["token-a2", "token-z1"]
        with pytest.raises(MisuseError):
            await again.commit(create(B, "b1", causal_token=CausalToken("token-m")))

    async def test_the_observation_at_a_position_has_the_token_of_its_change(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        await published(provider, update(A, "a1", "a2", staging=CLOSING))

        seen = await reading(provider, read(A, consistency=after("token-a1")))

        assert seen.observation.causal_token == "token-a2"

    async def test_the_tokens_of_an_expired_unit_are_unknown(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))
        clock.now_unix_ms = UNIT.expires_at_unix_ms
        await provider.checkpoint()

        outcome = await provider.read(read(A, consistency=after("token-a1")))

        assert isinstance(outcome, Unavailable)


@pytest.mark.requires("work_units", "monotonic_reads", "read_your_writes")
class UnitSessionConformance(ProviderSuite):
    """How far a session has read and written shows against the older baseline of a unit."""

    @pytest.fixture
    async def provider(self, start: Start) -> Provider:
        """A provider with an open unit whose baseline lies before the newest change."""
        provider = await start()
        if provider.capabilities().work_units:
            await committed(provider, create(A, "a1"))
            await reading(provider, read(A, unit=UNIT))
        return provider

    async def test_own_writes_bound_reads_of_that_guarantee_only(self, provider: Provider) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2", write_sessions=(key,)))

        assert not await is_served(provider, key, own_writes=True)
        assert not await is_served(provider, key, own_writes=True, monotonic=True)
        assert await is_served(provider, key, monotonic=True)
        assert await is_served(provider, control("other"), own_writes=True, monotonic=True)

    async def test_reads_bound_reads_of_that_guarantee_only(self, provider: Provider) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2"))
        await reading(provider, read(A, consistency=within(key, monotonic=True)))

        assert not await is_served(provider, key, monotonic=True)
        assert not await is_served(provider, key, own_writes=True, monotonic=True)
        assert await is_served(provider, key, own_writes=True)

    async def test_a_retrieval_advances_like_a_read(self, provider: Provider) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2"))
        await provider.retrieve(retrieve(consistency=within(key, monotonic=True)))

        assert not await is_served(provider, key, monotonic=True)

    async def test_a_read_without_monotonic_reads_advances_nothing(
        self, provider: Provider
    ) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2"))
        await reading(provider, read(A, consistency=within(key, own_writes=True)))

        assert await is_served(provider, key, monotonic=True)

    async def test_an_unavailable_read_advances_nothing(self, provider: Provider) -> None:
        key, other = control("session"), control("other")
        await committed(provider, update(A, "a1", "a2", write_sessions=(other,)))
        refused = Consistency(
            sessions=(
                SessionRequirement(key=key, monotonic_reads=True, read_your_writes=False),
                SessionRequirement(key=other, monotonic_reads=False, read_your_writes=True),
            )
        )
        plan = read(A, unit=UNIT, consistency=refused)
        assert isinstance(await provider.read(plan), Unavailable)

        assert await is_served(provider, key, monotonic=True)

    async def test_a_read_in_a_unit_advances_to_its_baseline(self, provider: Provider) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2"))
        assert await is_served(provider, key, monotonic=True)
        assert await is_served(provider, key, monotonic=True)
        newer = read(A, unit=OTHER_UNIT, consistency=within(key, monotonic=True))

        await reading(provider, newer)

        assert not await is_served(provider, key, monotonic=True)
        assert isinstance(await provider.read(newer), Reading)

    async def test_a_late_or_refused_read_advances_nothing(self, provider: Provider) -> None:
        key = control("session")
        await committed(provider, update(A, "a1", "a2"))
        mine = within(key, monotonic=True)
        other = unit("other", policy_json='{"policy":2}')
        await reading(provider, read(A, unit=OTHER_UNIT))

        with pytest.raises(DeadlineExceededError):
            await provider.read(read(A, consistency=replace(mine, deadline_unix_ms=LATE)))
        with pytest.raises(DeadlineExceededError):
            await provider.retrieve(retrieve(consistency=replace(mine, deadline_unix_ms=LATE)))
        outcome = await provider.read(read(A, unit=other, consistency=mine))
        assert isinstance(outcome, UnitRefused)

        assert await is_served(provider, key, monotonic=True)

    @pytest.mark.requires("idempotency")
    async def test_a_read_that_its_record_answers_advances(self, provider: Provider) -> None:
        key, identity = control("session"), control("request")
        await committed(provider, update(A, "a1", "a2", idempotency=record(identity)))
        mine = within(key, monotonic=True)

        await reading(provider, read(A, consistency=mine, idempotency=probe(identity)))

        assert not await is_served(provider, key, monotonic=True)

    @pytest.mark.requires("idempotency")
    async def test_a_refused_or_replayed_commit_advances_nothing(self, provider: Provider) -> None:
        key, identity = control("session"), control("request")
        await committed(provider, update(A, "a1", "a2", idempotency=record(identity)))
        again = update(A, "a2", "a3", write_sessions=(key,), idempotency=record(identity))
        await provider.commit(again)
        await provider.commit(update(A, "a1", "a3", write_sessions=(key,)))
        late = update(A, "a2", "a3", write_sessions=(key,), deadline_unix_ms=LATE)
        with pytest.raises(DeadlineExceededError):
            await provider.commit(late)

        assert await is_served(provider, key, own_writes=True)

    async def test_frontiers_that_were_answered_survive_the_end_of_the_process(
        self, provider: Provider, start: Start, abandon: Abandon
    ) -> None:
        reader, writer = control("reader"), control("writer")
        await committed(provider, update(A, "a1", "a2", write_sessions=(writer,)))
        await reading(provider, read(A, consistency=within(reader, monotonic=True)))
        await abandon(provider)

        provider = await start()

        assert not await is_served(provider, reader, monotonic=True)
        assert not await is_served(provider, writer, own_writes=True)

    async def test_the_last_mutation_of_an_entity_names_its_sessions(
        self, provider: Provider
    ) -> None:
        first, last = control("first"), control("last")
        mine = staging(OTHER_UNIT)
        await staged(provider, create(B, "b1", write_sessions=(first,), staging=mine))
        await staged(provider, update(B, "b1", "b2", write_sessions=(last,), staging=mine))
        lost = update(B, "b1", "b3", write_sessions=(first,), staging=mine)
        assert isinstance(await provider.commit(lost), Raced)

        closing = create(entity("c"), "c1", staging=staging(OTHER_UNIT, close=True))
        await published(provider, closing)

        assert await is_served(provider, first, own_writes=True)
        assert not await is_served(provider, last, own_writes=True)

    async def test_write_frontiers_advance_at_the_publication(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        key = control("session")
        await reading(provider, read(A, unit=OTHER_UNIT))
        mine = update(A, "a1", "a2", write_sessions=(key,), staging=staging(OTHER_UNIT))
        await staged(provider, mine)
        assert await is_served(provider, key, own_writes=True)
        await published(provider, create(B, "b1", staging=staging(OTHER_UNIT, close=True)))

        assert not await is_served(await reopen(provider), key, own_writes=True)


def after(*tokens: str) -> Consistency:
    """Require everything up to the positions of `tokens`."""
    return Consistency(minimum_tokens=tuple(CausalToken(token) for token in tokens))


def within(key: ControlKey, *, monotonic: bool = False, own_writes: bool = False) -> Consistency:
    """Require what a session has seen or written."""
    requirement = SessionRequirement(
        key=key, monotonic_reads=monotonic, read_your_writes=own_writes
    )
    return Consistency(sessions=(requirement,))


async def is_served(
    provider: Provider, key: ControlKey, *, monotonic: bool = False, own_writes: bool = False
) -> bool:
    """Return whether the unit, whose baseline is old, is new enough for a session.

    Asking must not move the session: a read at the baseline cannot, it is older than all of it.
    """
    consistency = within(key, monotonic=monotonic, own_writes=own_writes)
    outcome = await provider.read(read(A, unit=UNIT, consistency=consistency))
    return isinstance(outcome, Reading)
