"""Work units together with idempotency."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    DeadlineExceededError,
    Drifted,
    IdentityTaken,
    MisuseError,
    Publish,
    Published,
    Raced,
    Replayed,
    Resolution,
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
    NOW,
    SCOPE,
    closing_again,
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
    version_ids,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import ControlKey, EntityKey, Provider, WorkUnit
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Reopen

A, B = entity("a"), entity("b")
UNIT, OTHER_UNIT = unit(), unit("other")
IN_UNIT, CLOSING = staging(UNIT), staging(UNIT, close=True)
IDENTITY, LAST = control("request-1"), control("request-2")
RESULT = Replayed(result_json='"result"')
STAGED = Replayed(result_json='"result"', is_staged=True)


async def asked(
    provider: Provider,
    request: str = '"request"',
    *,
    work_unit: WorkUnit | None = None,
    identity: ControlKey = IDENTITY,
    now_unix_ms: int = NOW,
) -> Replayed | IdentityTaken | None:
    """Return what a read, in a unit or outside, says of the identity."""
    question = probe(identity, request, now_unix_ms=now_unix_ms)
    return (await reading(provider, read(A, idempotency=question, unit=work_unit))).record


async def heads_in(provider: Provider, key: EntityKey) -> list[str]:
    """Return the ids of the heads of an entity in the view of the unit."""
    return [head.id for head in (await reading(provider, read(key, unit=UNIT))).heads]


@pytest.mark.requires("work_units", "idempotency")
class UnitIdempotencyConformance(ProviderSuite):
    """A record is staged with its mutation and shares its fate."""

    async def test_a_staged_record_is_replayed_in_its_unit(self, provider: Provider) -> None:
        await staged(provider, create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY)))

        assert await asked(provider, work_unit=UNIT) == STAGED
        for how in (IN_UNIT, CLOSING):
            again = create(A, "a2", staging=how, idempotency=record(IDENTITY))
            assert await provider.commit(again) == STAGED
        assert await heads_in(provider, A) == ["a1"]

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
        assert await asked(provider, work_unit=UNIT) == RESULT
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
        mine = create(
            A,
            "a1",
            event_meta_json='{"n":1}',
            staging=IN_UNIT,
            idempotency=record(IDENTITY, result_json='"first"'),
        )
        await staged(provider, mine)
        await staged(provider, create(B, "b1", staging=IN_UNIT))
        other = record(IDENTITY, result_json='"second"')
        closing = replace(mine, event_meta_json='{"n":2}', idempotency=other)

        done = await published(provider, closing_again(closing, UNIT, ["a1"]))

        assert [e.key for e in done.entities] == [B, A]
        assert (done.sealed_by, done.accepted) == ('"request"', "a1")
        assert await asked(provider) == Replayed(result_json='"first"')
        change = (await all_changes(provider, SCOPE))[-1]
        assert (change.head_versions, change.causal_token) == (("a1",), "token-a1")
        assert change.event_meta_json == '{"n":1}'

    async def test_a_closing_repetition_finds_drift(self, provider: Provider) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, replace(mine, staging=staging(UNIT, policy='"mine"')))
        await committed(provider, create(A, "a9"))

        outcome = await provider.commit(closing_again(mine, UNIT, ["a1"]))

        assert isinstance(outcome, Drifted)
        assert [c.conflict_policy_json for c in outcome.conflicts] == ['"mine"']
        assert [c.is_closing for c in outcome.conflicts] == [True]
        assert await provider.commit(closing_again(mine, UNIT, ["a1"])) == outcome
        assert await provider.commit(replace(mine, staging=CLOSING)) == outcome

    async def test_a_closing_repetition_that_missed_a_mutation_is_raced(
        self, provider: Provider
    ) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        await staged(provider, update(A, "a1", "a2", staging=IN_UNIT))

        outcome = await provider.commit(closing_again(mine, UNIT, ["a1"]))

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["a2"]
        done = await published(provider, closing_again(mine, UNIT, ["a2"]))
        assert (done.accepted, [h.id for h in done.entities[0].heads]) == ("a1", ["a2"])

    async def test_a_commit_without_versions_that_repeats_nothing_is_refused(
        self, provider: Provider
    ) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        await committed(provider, create(B, "b1", idempotency=record(LAST)))
        good = closing_again(mine, UNIT, ["a1"])
        wrong = [
            replace(good, staging=IN_UNIT),
            replace(good, staging=None),
            replace(good, idempotency=None),
            replace(good, idempotency=record(control("never"))),
            replace(good, head_versions=()),
            replace(good, head_versions=version_ids(["a0"])),
            replace(good, key=B),
        ]

        async with unchanged(provider, A, B):
            for plan in wrong:
                with pytest.raises(MisuseError):
                    await provider.commit(plan)
            taken = replace(good, idempotency=record(IDENTITY, '"other"'))
            assert await provider.commit(taken) == IdentityTaken()
            assert await provider.commit(replace(good, idempotency=record(LAST))) == RESULT

        await published(provider, good)

    async def test_a_late_closing_repetition_leaves_the_unit_open(self, provider: Provider) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        closing = closing_again(mine, UNIT, ["a1"])

        with pytest.raises(DeadlineExceededError):
            await provider.commit(replace(closing, deadline_unix_ms=LATE))

        assert await heads_in(provider, A) == ["a1"]
        await published(provider, closing)

    async def test_a_non_closing_repetition_in_a_sealed_unit_is_replayed(
        self, provider: Provider
    ) -> None:
        mine = create(A, "a1", staging=IN_UNIT, idempotency=record(IDENTITY))
        await staged(provider, mine)
        await committed(provider, create(A, "a9"))
        assert isinstance(await provider.commit(create(B, "b1", staging=CLOSING)), Drifted)

        assert await provider.commit(mine) == STAGED
        question = read(A, idempotency=probe(IDENTITY), unit=UNIT)
        seen = await reading(provider, question)
        assert (seen.record, [head.id for head in seen.heads]) == (STAGED, ["a1"])

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
