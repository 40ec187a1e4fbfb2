"""Work units together with idempotency, causal tokens and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Consistency,
    Drifted,
    IdentityTaken,
    Publish,
    Published,
    Raced,
    Reading,
    Replayed,
    Resolution,
    SessionRequirement,
    Unavailable,
)
from patchouli.provider_conformance.asking import (
    committed,
    head_ids,
    published,
    reading,
    staged,
)
from patchouli.provider_conformance.builders import (
    NOW,
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
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, Provider, WorkUnit
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Reopen, Start

A, B = entity("a"), entity("b")
UNIT, OTHER_UNIT = unit(), unit("other")
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
IDENTITY, LAST = control("request-1"), control("request-2")
RESULT = Replayed(result_json='"result"')


async def asked(
    provider: Provider,
    request: str = '"request"',
    *,
    work_unit: WorkUnit | None = None,
    allow_replay: bool = True,
    identity: ControlKey = IDENTITY,
    now_unix_ms: int = NOW,
) -> Replayed | IdentityTaken | None:
    """Return what a read, in a unit or outside, says of the identity."""
    question = probe(identity, request, allow_replay=allow_replay, now_unix_ms=now_unix_ms)
    return (await reading(provider, read(A, idempotency=question, unit=work_unit))).record


@pytest.mark.requires("work_units", "idempotency")
class UnitIdempotencyConformance(ProviderSuite):
    """A record is staged with its mutation and shares its fate."""

    async def test_a_staged_record_is_replayed_in_its_unit(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))

        assert await asked(provider, work_unit=UNIT) == RESULT
        assert await asked(provider, work_unit=UNIT, allow_replay=False) is None
        again = create(A, "a2", staging=IN_UNIT, idempotency=record(IDENTITY))
        assert await provider.commit(again) == RESULT

    async def test_another_request_is_refused_in_the_unit(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))

        assert await asked(provider, '"other"', work_unit=UNIT) == IdentityTaken()
        other = create(B, "b1", staging=IN_UNIT, idempotency=record(IDENTITY, '"other"'))
        assert await provider.commit(other) == IdentityTaken()
        plan = read(B, unit=UNIT)
        assert (await reading(provider, plan)).heads == ()

    async def test_a_staged_identity_is_taken_everywhere_else(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))

        assert await asked(provider) == IdentityTaken()
        assert await asked(provider, work_unit=OTHER_UNIT) == IdentityTaken()
        same = record(IDENTITY)
        assert await provider.commit(create(B, "b1", idempotency=same)) == IdentityTaken()
        elsewhere = create(B, "b1", idempotency=same, staging=staging(OTHER_UNIT))
        assert await provider.commit(elsewhere) == IdentityTaken()

    async def test_a_refused_staging_leaves_the_identity_free(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT))

        lost = create(A, "a2", staging=IN_UNIT, idempotency=record(IDENTITY))

        assert isinstance(await provider.commit(lost), Raced)
        assert await asked(provider, work_unit=UNIT) is None

    async def test_a_publication_publishes_the_records(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))
        closing = create(B, "b1", staging=CLOSING, idempotency=record(LAST, result_json='"last"'))
        await published(provider, closing)

        again = await reopen(provider)

        assert await asked(again) == RESULT
        assert await asked(again, identity=LAST) == Replayed(result_json='"last"')

    async def test_a_repeated_close_of_a_committed_unit_is_replayed(
        self, provider: Provider
    ) -> None:
        closing = create(A, "a1", staging=CLOSING, idempotency=record(IDENTITY))
        await published(provider, closing)

        assert await provider.commit(closing) == RESULT
        assert await asked(provider, work_unit=UNIT, allow_replay=False) == RESULT
        assert await asked(provider, '"other"', work_unit=UNIT) == IdentityTaken()

    async def test_a_record_that_expired_before_the_publication_is_dropped(
        self, provider: Provider
    ) -> None:
        brief = record(IDENTITY, expires_at_unix_ms=NOW + 10)
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=brief))

        await published(provider, create(B, "b1", staging=CLOSING, recorded_at_unix_ms=NOW + 10))

        assert await asked(provider) is None

    async def test_the_records_of_an_overdue_unit_count_as_absent(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))

        clock.now_unix_ms = end = UNIT.expires_at_unix_ms

        assert await asked(provider, now_unix_ms=end) is None
        anew = record(IDENTITY, '"other"', now_unix_ms=end)
        await committed(provider, create(B, "b1", idempotency=anew))

    async def test_a_closing_repetition_of_a_staged_mutation_closes(
        self, provider: Provider
    ) -> None:
        first = record(IDENTITY, result_json='"first"')
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=first))
        second = record(IDENTITY, result_json='"second"')

        await published(provider, update(A, "a1", "a2", staging=CLOSING, idempotency=second))

        assert await asked(provider) == Replayed(result_json='"first"')
        assert await head_ids(provider, A) == ["a2"]

    async def test_a_non_closing_repetition_in_a_sealed_unit_is_replayed(
        self, provider: Provider
    ) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        await committed(provider, create(A, "a9"))
        assert isinstance(await provider.commit(create(B, "b1", staging=CLOSING)), Drifted)

        assert await provider.commit(mine) == RESULT
        assert await asked(provider, work_unit=UNIT) == RESULT

    async def test_a_publication_replaces_results_by_the_final_ones(
        self, provider: Provider
    ) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))
        await committed(provider, create(A, "a9"))
        closing = create(B, "b1", staging=CLOSING, idempotency=record(LAST))
        outcome = await provider.commit(closing)
        assert isinstance(outcome, Drifted)
        (conflict,) = outcome.conflicts
        merged = version("m", parents=["a1", "a9"])
        resolution = Resolution(
            key=A,
            expected_published_heads=tuple(head.id for head in conflict.published_heads),
            expected_staged_heads=tuple(head.id for head in conflict.staged_heads),
            new_versions=(merged,),
            head_versions=(merged.id,),
        )

        done = await provider.publish(
            Publish(
                unit=UNIT,
                resolutions=(resolution,),
                results=((LAST, '"final"'),),
                recorded_at_unix_ms=NOW,
            )
        )

        assert isinstance(done, Published)
        assert await asked(provider, identity=LAST) == Replayed(result_json='"final"')
        assert await asked(provider) == RESULT


@pytest.mark.requires("work_units", "causal_reads")
class UnitCausalConformance(ProviderSuite):
    """A bound above the baseline is not met, and never moves it."""

    async def test_a_token_newer_than_the_baseline_is_unavailable(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        await reading(provider, read(A, unit=UNIT))
        await committed(provider, update(A, "a1", "a2"))
        old, new = after("token-a1"), after("token-a2")

        assert isinstance(await provider.read(read(A, unit=UNIT, consistency=old)), Reading)
        assert isinstance(await provider.read(read(A, unit=UNIT, consistency=new)), Unavailable)
        outcome = await provider.retrieve(retrieve(unit=UNIT, consistency=new))
        assert isinstance(outcome, Unavailable)

    async def test_an_unavailable_read_opens_nothing(self, provider: Provider) -> None:
        await committed(provider, create(A, "a1"))
        unknown = after("unknown")
        assert isinstance(await provider.read(read(A, unit=UNIT, consistency=unknown)), Unavailable)
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
