"""What the boundary leaves to a provider, the suite and the machine leave to it, too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from patchouli.provider import (
    Committed,
    Cursor,
    Observation,
    Page,
    Published,
    Raced,
    Reading,
    Unavailable,
)
from patchouli.provider_conformance import (
    MACHINE_SETTINGS,
    ModelProvider,
    ModelStorage,
    OpenProvider,
    ProviderMachine,
    whole_suite,
)

if TYPE_CHECKING:
    from patchouli.provider import (
        ChangePage,
        ChangesPlan,
        Clock,
        Commit,
        CommitOutcome,
        Divergence,
        Provider,
        Publish,
        PublishOutcome,
        ReadOutcome,
        ReadPlan,
        RetrieveOutcome,
        RetrievePlan,
        ScopeText,
    )


class Peculiar(ModelProvider):
    """Numbers its changes in tens and versions in thousands, and tells bases backwards."""

    async def read(self, plan: ReadPlan) -> ReadOutcome:
        outcome = await super().read(plan)
        if isinstance(outcome, Unavailable):
            return later(outcome)
        if not isinstance(outcome, Reading):
            return outcome
        return replace(
            outcome,
            observation=seen(outcome.observation),
            bases=outcome.bases[::-1],
            divergence=numbered(outcome.divergence),
        )

    async def commit(self, commit: Commit) -> CommitOutcome:
        outcome = await super().commit(commit)
        if isinstance(outcome, Raced):
            return replace(outcome, divergence=numbered(outcome.divergence))
        return published(outcome)

    async def publish(self, publish: Publish) -> PublishOutcome:
        outcome = await super().publish(publish)
        if not isinstance(outcome, Published):
            return outcome
        entities = [replace(e, cursor=tens(e.cursor)) for e in outcome.entities]
        return replace(outcome, entities=tuple(entities))

    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        outcome = await super().retrieve(plan)
        if isinstance(outcome, Unavailable):
            return later(outcome)
        if not isinstance(outcome, Page):
            return outcome
        return replace(outcome, observation=seen(outcome.observation))

    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        page = await super().read_changes(replace(plan, after=Cursor(plan.after // 10)))
        return replace(
            page,
            changes=tuple(replace(c, cursor=tens(c.cursor)) for c in page.changes),
            frontier=tens(page.frontier),
            reached=tens(page.reached),
            pruned_through=tens(page.pruned_through),
        )

    async def wait_for_changes(self, scope: ScopeText, after: Cursor) -> None:
        await super().wait_for_changes(scope, Cursor(after // 10))


def tens(cursor: Cursor) -> Cursor:
    return Cursor(cursor * 10)


def later(outcome: Unavailable) -> Unavailable:
    at = outcome.frontier
    return Unavailable(detail="not now", frontier=None if at is None else tens(at))


def seen(observation: Observation) -> Observation:
    return replace(observation, frontier=tens(observation.frontier))


def numbered(divergence: Divergence | None) -> Divergence | None:
    if divergence is None:
        return None
    nodes = [replace(n, sequence=(n.sequence[0] * 1000, n.sequence[1])) for n in divergence.nodes]
    return replace(divergence, nodes=tuple(nodes))


def published(outcome: CommitOutcome) -> CommitOutcome:
    if isinstance(outcome, Committed):
        return Committed(cursor=tens(outcome.cursor))
    if isinstance(outcome, Published):
        entities = [replace(e, cursor=tens(e.cursor)) for e in outcome.entities]
        return replace(outcome, entities=tuple(entities))
    return outcome


class OnPeculiar:
    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        storage = ModelStorage()
        return lambda clock: Peculiar(storage, clock)


globals().update(whole_suite(OnPeculiar))


class PeculiarMachine(ProviderMachine):
    def __init__(self) -> None:
        super().__init__()
        self.other = ModelStorage()

    def open_provider(self, clock: Clock) -> Provider:
        return Peculiar(self.other, clock)


TestPeculiar = PeculiarMachine.TestCase
TestPeculiar.settings = MACHINE_SETTINGS
