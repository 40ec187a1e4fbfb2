"""Starting, stopping, ownership and generations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider import OwnershipError, UnavailableError
from patchouli.provider_conformance.asking import committed, head_ids, reading
from patchouli.provider_conformance.builders import (
    FOREVER,
    ORIGIN,
    SCOPE,
    changes,
    create,
    entity,
    read,
    retrieve,
    update,
)
from patchouli.provider_conformance.suite.base import ProviderSuite

if TYPE_CHECKING:
    from patchouli.provider import Provider, RuntimeGeneration
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.suite.base import Abandon, OpenProvider, Reopen, Start

A = entity("a")


class LifecycleConformance(ProviderSuite):
    """A run begins with `initialize` and ends with `shutdown`, and the storage remembers both."""

    async def test_new_storage_starts_flushes_and_stops(
        self, open_provider: OpenProvider, clock: ManualClock
    ) -> None:
        provider = open_provider(clock)

        run = await provider.initialize(FOREVER)

        assert run.generation == 1
        assert not run.recovered_after_unclean_shutdown
        assert run.incarnation
        assert len(run.secret) == 32
        assert run.sealed_units == ()
        await provider.health()
        await provider.checkpoint()
        await provider.shutdown()

    async def test_the_kind_is_a_constant_text(self, provider: Provider) -> None:
        assert provider.kind
        assert provider.kind == provider.kind

    async def test_what_every_engine_needs_is_claimed(self, provider: Provider) -> None:
        claims = provider.capabilities()

        assert claims.authority
        assert claims.change_stream
        assert claims.retrieval

    async def test_claims_are_the_same_before_and_after_the_start(
        self, open_provider: OpenProvider, clock: ManualClock
    ) -> None:
        provider = open_provider(clock)
        before = provider.capabilities()

        await provider.initialize(FOREVER)

        assert provider.capabilities() == before
        await provider.shutdown()
        assert provider.capabilities() == before

    async def test_each_start_counts_and_a_clean_stop_is_remembered(
        self, open_provider: OpenProvider, clock: ManualClock
    ) -> None:
        runs: list[RuntimeGeneration] = []
        for _ in range(3):
            provider = open_provider(clock)
            runs.append(await provider.initialize(FOREVER))
            await provider.shutdown()

        assert [run.generation for run in runs] == [1, 2, 3]
        assert not any(run.recovered_after_unclean_shutdown for run in runs)
        assert len({run.incarnation for run in runs}) == 1
        assert len({run.secret for run in runs}) == 1

    async def test_a_run_without_an_end_is_reported_by_the_next(
        self, open_provider: OpenProvider, clock: ManualClock, abandon: Abandon
    ) -> None:
        first = open_provider(clock)
        await first.initialize(FOREVER)
        await abandon(first)
        second = open_provider(clock)

        run = await second.initialize(FOREVER)

        assert (run.generation, run.recovered_after_unclean_shutdown) == (2, True)
        await second.shutdown()
        third = open_provider(clock)
        run = await third.initialize(FOREVER)
        assert (run.generation, run.recovered_after_unclean_shutdown) == (3, False)
        await third.shutdown()

    async def test_an_open_without_a_start_changes_nothing(
        self, open_provider: OpenProvider, clock: ManualClock, abandon: Abandon
    ) -> None:
        await abandon(open_provider(clock))
        provider = open_provider(clock)

        run = await provider.initialize(FOREVER)

        assert (run.generation, run.recovered_after_unclean_shutdown) == (1, False)
        await provider.shutdown()

    async def test_a_second_owner_is_refused_and_the_first_keeps_working(
        self, start: Start, open_provider: OpenProvider, clock: ManualClock
    ) -> None:
        first = await start()

        with pytest.raises(OwnershipError):
            await open_provider(clock).initialize(FOREVER)

        await committed(first, create(A))
        await first.shutdown()
        second = await start()
        assert await head_ids(second, A) == ["v1"]

    async def test_a_second_stop_does_nothing(self, provider: Provider) -> None:
        await provider.shutdown()

        await provider.shutdown()

    async def test_nothing_is_answered_after_the_stop(self, provider: Provider) -> None:
        await provider.shutdown()

        with pytest.raises(UnavailableError):
            await provider.health()
        with pytest.raises(UnavailableError):
            await provider.read(read(A))
        with pytest.raises(UnavailableError):
            await provider.commit(create(A))
        with pytest.raises(UnavailableError):
            await provider.retrieve(retrieve())
        with pytest.raises(UnavailableError):
            await provider.read_changes(changes())
        with pytest.raises(UnavailableError):
            await provider.wait_for_changes(SCOPE, ORIGIN)
        with pytest.raises(UnavailableError):
            await provider.checkpoint()

    async def test_what_was_committed_is_there_after_a_restart(
        self, provider: Provider, reopen: Reopen
    ) -> None:
        await committed(provider, create(A))
        cursor = await committed(provider, update(A, "v1", "v2"))
        before = await reading(provider, read(A, "v1"))

        again = await reopen(provider)

        assert await reading(again, read(A, "v1")) == before
        assert before.observation.frontier == cursor
        assert await committed(again, update(A, "v2", "v3")) > cursor

    async def test_what_was_committed_survives_the_end_of_the_process(
        self, provider: Provider, start: Start, abandon: Abandon
    ) -> None:
        await committed(provider, create(A))
        await abandon(provider)

        again = await start()

        assert await head_ids(again, A) == ["v1"]
        assert [c.head_versions for c in (await again.read_changes(changes())).changes] == [("v1",)]

    async def test_a_checkpoint_does_not_disturb_the_service(self, provider: Provider) -> None:
        await committed(provider, create(A))

        await provider.checkpoint()

        await committed(provider, update(A, "v1", "v2"))
        assert await head_ids(provider, A) == ["v2"]
