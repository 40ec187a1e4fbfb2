"""A mutation that is repeated under its identity is answered, not done again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    CausalToken,
    Committed,
    Consistency,
    DeadlineExceededError,
    IdentityTaken,
    MisuseError,
    Raced,
    Replayed,
    Unavailable,
)
from patchouli.provider_conformance.asking import (
    all_changes,
    committed,
    head_ids,
    reading,
    unchanged,
)
from patchouli.provider_conformance.builders import (
    LATE,
    NOW,
    OTHER_SCOPE,
    SCOPE,
    commit,
    control,
    create,
    entity,
    probe,
    read,
    record,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider, ReadOutcome
    from patchouli.provider_conformance.suite.base import Reopen

A, B = entity("a"), entity("b")
IDENTITY = control("request-1")
OTHER_IDENTITY = control("request-1", scope=OTHER_SCOPE)
SOON = NOW + 1000


async def asked(
    provider: Provider, request: str = '"request"', *, now_unix_ms: int = NOW
) -> Replayed | IdentityTaken | None:
    """Return what a read says of the identity."""
    question = probe(IDENTITY, request, now_unix_ms=now_unix_ms)
    return (await reading(provider, read(A, idempotency=question))).record


@pytest.mark.requires("idempotency")
class IdempotencyConformance(ProviderSuite):
    """A record and its mutation are one: both are there or neither is."""

    async def test_an_unknown_identity_is_free(self, provider: Provider) -> None:
        assert await asked(provider) is None

    async def test_a_repeated_commit_is_replayed_and_not_done_again(
        self, provider: Provider
    ) -> None:
        once = create(A, idempotency=record(IDENTITY, result_json='{"v":"v1"}'))
        await committed(provider, once)

        async with unchanged(provider, A):
            again = create(A, "v2", idempotency=record(IDENTITY, result_json='{"v":"v2"}'))
            assert await provider.commit(once) == Replayed(result_json='{"v":"v1"}')
            assert await provider.commit(again) == Replayed(result_json='{"v":"v1"}')

        assert await asked(provider) == Replayed(result_json='{"v":"v1"}')

    async def test_a_replay_wins_over_a_lost_race(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))
        await committed(provider, update(A, "v1", "v2"))

        outcome = await provider.commit(update(A, "v1", "v3", idempotency=record(IDENTITY)))

        assert outcome == Replayed(result_json='"result"')

    async def test_another_request_under_the_identity_is_refused(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))

        async with unchanged(provider, A, B):
            outcome = await provider.commit(
                create(B, "v2", idempotency=record(IDENTITY, '"other"'))
            )

        assert outcome == IdentityTaken()
        assert await asked(provider, '"other"') == IdentityTaken()

    async def test_the_request_is_compared_byte_for_byte(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY, '{"a":1}')))

        assert await asked(provider, '{"a": 1}') == IdentityTaken()
        assert await asked(provider, '{"a":1.0}') == IdentityTaken()
        assert isinstance(await asked(provider, '{"a":1}'), Replayed)

    async def test_an_identity_of_another_scope_is_another(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))
        far = entity("a", scope=OTHER_SCOPE)

        await committed(provider, create(far, "far", idempotency=record(OTHER_IDENTITY)))

    async def test_an_identity_spans_entities_and_kinds_of_request(
        self, provider: Provider
    ) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY, '"create a"')))

        outcome = await provider.commit(
            update(A, "v1", "v2", idempotency=record(IDENTITY, '"update a"'))
        )

        assert outcome == IdentityTaken()

    async def test_a_record_is_absent_from_its_expiry_on(self, provider: Provider) -> None:
        brief = record(IDENTITY, expires_at_unix_ms=SOON)
        await committed(provider, create(A, idempotency=brief))

        assert isinstance(await asked(provider, now_unix_ms=SOON - 1), Replayed)
        assert await asked(provider, now_unix_ms=SOON) is None
        assert await asked(provider, '"other"', now_unix_ms=SOON) is None

    async def test_an_expired_identity_can_be_used_again(self, provider: Provider) -> None:
        brief = record(IDENTITY, expires_at_unix_ms=SOON, result_json='"old"')
        await committed(provider, create(A, idempotency=brief))
        anew = record(IDENTITY, '"other"', now_unix_ms=SOON, result_json='"new"')

        await committed(provider, create(B, "v2", idempotency=anew))

        assert await asked(provider, '"other"') == Replayed(result_json='"new"')

    async def test_a_refused_commit_leaves_the_identity_free(self, provider: Provider) -> None:
        await committed(provider, create(A))
        mine = record(IDENTITY)

        assert isinstance(await provider.commit(create(A, "v2", idempotency=mine)), Raced)
        with pytest.raises(DeadlineExceededError):
            await provider.commit(create(B, "v3", idempotency=mine, deadline_unix_ms=LATE))
        wrong = version("v4", parents=["unknown"])
        with pytest.raises(MisuseError):
            await provider.commit(commit(B, wrong, idempotency=mine))

        assert await asked(provider) is None
        assert await head_ids(provider, B) == []

    async def test_a_replay_is_told_even_when_it_is_late(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))

        late = create(A, "v2", idempotency=record(IDENTITY), deadline_unix_ms=LATE)

        assert await provider.commit(late) == Replayed(result_json='"result"')

    async def test_records_survive_a_restart(self, provider: Provider, reopen: Reopen) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))

        again = await reopen(provider)

        assert await asked(again) == Replayed(result_json='"result"')

    async def test_one_of_many_equal_requests_commits_and_the_others_are_replayed(
        self, provider: Provider
    ) -> None:
        outcomes = await asyncio.gather(
            *(
                provider.commit(create(entity(f"e{n}"), f"v{n}", idempotency=record(IDENTITY)))
                for n in range(20)
            )
        )

        assert sum(isinstance(outcome, Committed) for outcome in outcomes) == 1
        assert outcomes.count(Replayed(result_json='"result"')) == 19
        assert len(await all_changes(provider, SCOPE)) == 1

    @pytest.mark.requires("causal_reads")
    async def test_a_replay_never_bypasses_a_causal_bound(self, provider: Provider) -> None:
        await committed(provider, create(A, idempotency=record(IDENTITY)))

        async def asked_after(token: str) -> ReadOutcome:
            consistency = Consistency(minimum_tokens=(CausalToken(token),))
            question = probe(IDENTITY)
            return await provider.read(read(A, consistency=consistency, idempotency=question))

        assert isinstance(await asked_after("unknown"), Unavailable)
        assert not isinstance(await asked_after("token-v1"), Unavailable)
