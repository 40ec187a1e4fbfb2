"""Work units together with idempotency."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Drifted,
    IdentityTaken,
    Publish,
    Published,
    Raced,
    Replayed,
    Resolution,
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
    staging,
    unit,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, Provider, WorkUnit
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Reopen

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
