"""Deadlines: what comes too late has no effect at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import Consistency, DeadlineExceededError, MisuseError, Raced, Source
from patchouli.provider_conformance.asking import committed, head_ids, reading, unchanged
from patchouli.provider_conformance.builders import (
    LATE,
    NEVER,
    SCOPE,
    commit,
    create,
    entity,
    read,
    retrieve,
    update,
    version,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider
    from patchouli.provider_conformance.builders import ManualClock

A = entity("a")
TOO_LATE = Consistency(deadline_unix_ms=LATE)


class DeadlineConformance(ProviderSuite):
    """A deadline has passed when the provider's clock is at or beyond it."""

    async def test_a_late_create_leaves_nothing(self, provider: Provider) -> None:
        async with unchanged(provider, A):
            with pytest.raises(DeadlineExceededError):
                await provider.commit(create(A, deadline_unix_ms=LATE))

        await committed(provider, create(A))
        assert await head_ids(provider, A) == ["v1"]

    async def test_a_late_update_leaves_nothing(self, provider: Provider) -> None:
        await committed(provider, create(A))

        async with unchanged(provider, A):
            with pytest.raises(DeadlineExceededError):
                await provider.commit(update(A, "v1", "v2", deadline_unix_ms=LATE))

    async def test_the_token_of_a_late_commit_is_free_again(self, provider: Provider) -> None:
        with pytest.raises(DeadlineExceededError):
            await provider.commit(create(A, deadline_unix_ms=LATE))

        await committed(provider, create(A))

    async def test_a_lost_race_is_told_even_when_it_is_late(self, provider: Provider) -> None:
        await committed(provider, create(A))

        outcome = await provider.commit(create(A, "v2", deadline_unix_ms=LATE))

        assert isinstance(outcome, Raced)
        assert [head.id for head in outcome.heads] == ["v1"]

    async def test_a_contradiction_is_told_even_when_it_is_late(self, provider: Provider) -> None:
        wrong = commit(A, version("v1", parents=["unknown"]), deadline_unix_ms=LATE)

        with pytest.raises((MisuseError, DeadlineExceededError)):
            await provider.commit(wrong)

        assert await head_ids(provider, A) == []

    async def test_a_late_read_is_refused(self, provider: Provider) -> None:
        await committed(provider, create(A))

        with pytest.raises(DeadlineExceededError):
            await provider.read(read(A, consistency=TOO_LATE))

    async def test_a_late_retrieval_is_refused(self, provider: Provider) -> None:
        with pytest.raises(DeadlineExceededError):
            await provider.retrieve(retrieve(consistency=TOO_LATE))

    async def test_the_deadline_comes_before_the_source(self, provider: Provider) -> None:
        nowhere = Consistency(allowed_sources=frozenset(), deadline_unix_ms=LATE)
        replica = Consistency(allowed_sources=frozenset({Source.REPLICA}), deadline_unix_ms=LATE)

        for consistency in (nowhere, replica):
            with pytest.raises(DeadlineExceededError):
                await provider.read(read(A, consistency=consistency))

    @pytest.mark.parametrize("deadline", [NEVER, NEVER - 1, None])
    async def test_what_is_in_time_is_answered(
        self, provider: Provider, deadline: int | None
    ) -> None:
        await committed(provider, create(A, deadline_unix_ms=deadline))

        consistency = Consistency(deadline_unix_ms=deadline)
        found = await reading(provider, read(A, consistency=consistency))
        assert [head.id for head in found.heads] == ["v1"]

    async def test_the_clock_of_the_provider_decides_to_the_millisecond(
        self, provider: Provider, clock: ManualClock
    ) -> None:
        deadline = clock.unix_ms() + 10
        clock.now_unix_ms = deadline - 1
        await committed(provider, create(A, deadline_unix_ms=deadline))

        clock.now_unix_ms = deadline
        with pytest.raises(DeadlineExceededError):
            await provider.commit(update(A, "v1", "v2", deadline_unix_ms=deadline))
        with pytest.raises(DeadlineExceededError):
            await provider.read(read(A, consistency=Consistency(deadline_unix_ms=deadline)))

        clock.now_unix_ms = deadline - 1  # set back, the deadline lies ahead again
        await committed(provider, update(A, "v1", "v2", deadline_unix_ms=deadline))
        assert A.scope == SCOPE
