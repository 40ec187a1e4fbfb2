"""The machine finds no difference between the model and itself, and finds those that are there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from patchouli.provider import (
    Capabilities,
    Consistency,
    Drifted,
    Page,
    PublishOutcome,
    Reading,
    ReadOutcome,
    RetrieveOutcome,
)
from patchouli.provider_conformance import (
    MACHINE_SETTINGS,
    ModelProvider,
    ModelStorage,
    ProviderMachine,
)

if TYPE_CHECKING:
    from patchouli.provider import (
        ChangePage,
        ChangesPlan,
        Clock,
        Commit,
        CommitOutcome,
        Provider,
        Publish,
        ReadPlan,
        Retention,
        RetrievePlan,
        RuntimeGeneration,
    )


class ModelMachine(ProviderMachine):
    can_abandon = True
    made: type[ModelProvider] = ModelProvider

    def __init__(self) -> None:
        super().__init__()
        self.other = ModelStorage()

    def open_provider(self, clock: Clock) -> Provider:
        return self.made(self.other, clock)

    async def abandon(self, provider: Provider) -> None:
        assert isinstance(provider, ModelProvider)
        provider.abandon()


class ModestMachine(ModelMachine):
    def open_provider(self, clock: Clock) -> Provider:
        least = Capabilities(authority=True, change_stream=True, retrieval=True)
        return ModelProvider(self.other, clock, capabilities=least)


TestModel = ModelMachine.TestCase
TestModel.settings = MACHINE_SETTINGS
TestModestModel = ModestMachine.TestCase
TestModestModel.settings = MACHINE_SETTINGS


class ForgetsTheDeadline(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        return await super().commit(replace(commit, deadline_unix_ms=None))


class ForgetsTheLastCommitInACrash(ModelProvider):
    def abandon(self) -> None:
        if self._storage.tables.log:
            self._storage.tables.log.pop()
        super().abandon()


class CallsACrashAStop(ModelProvider):
    async def initialize(self, retention: Retention) -> RuntimeGeneration:
        run = await super().initialize(retention)
        return replace(run, recovered_after_unclean_shutdown=False)


class SortsParents(ModelProvider):
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        outcome = await super().read(plan)
        if not isinstance(outcome, Reading):
            return outcome
        heads = tuple(replace(h, parents=tuple(sorted(h.parents))) for h in outcome.heads)
        return replace(outcome, heads=heads)


class ReadsWithoutItsSession(ModelProvider):
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        return await super().read(replace(plan, consistency=Consistency()))


class OverfillsPages(ModelProvider):
    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        outcome = await super().retrieve(replace(plan, limit_bytes=1 << 40))
        return outcome


class SaysThatThereIsMore(ModelProvider):
    async def retrieve(self, plan: RetrievePlan) -> RetrieveOutcome:
        outcome = await super().retrieve(plan)
        if isinstance(outcome, Page) and len(outcome.hits) == plan.limit:
            return replace(outcome, has_more=True)
        return outcome


class RepeatsAChange(ModelProvider):
    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        return await super().read_changes(replace(plan, after=plan.after - (plan.after > 0)))


class KeepsOldChanges(ModelProvider):
    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        return await super().read_changes(replace(plan, retained_after_unix_ms=0))


class ForgetsADriftedEntity(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        outcome = await super().commit(commit)
        if isinstance(outcome, Drifted):
            return replace(outcome, conflicts=outcome.conflicts[:-1])
        return outcome


class PublishesThoughLate(ModelProvider):
    async def publish(self, publish: Publish) -> PublishOutcome:
        return await super().publish(replace(publish, deadline_unix_ms=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    "faulty",
    [
        ForgetsTheDeadline,
        ForgetsTheLastCommitInACrash,
        CallsACrashAStop,
        SortsParents,
        ReadsWithoutItsSession,
        OverfillsPages,
        SaysThatThereIsMore,
        RepeatsAChange,
        KeepsOldChanges,
        ForgetsADriftedEntity,
        PublishesThoughLate,
    ],
)
def test_the_machine_finds_a_fault(faulty: type[ModelProvider]) -> None:
    machine = type(faulty.__name__, (ModelMachine,), {"made": faulty})
    # One fixed set of histories: whether a fault is found is not left to chance.
    fixed = settings(
        MACHINE_SETTINGS,
        max_examples=400,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )

    with pytest.raises((AssertionError, IndexError)):
        run_state_machine_as_test(machine, settings=fixed)
