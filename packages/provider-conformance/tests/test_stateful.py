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
    Cursor,
    Drifted,
    Page,
    PublishOutcome,
    Reading,
    ReadOutcome,
    Replayed,
    RetrieveOutcome,
    Unavailable,
)
from patchouli.provider_conformance import (
    MACHINE_SETTINGS,
    ManualClock,
    ModelProvider,
    ModelStorage,
    ProviderMachine,
    compaction,
)
from patchouli.provider_conformance.machine import RETENTION

if TYPE_CHECKING:
    from patchouli.provider import (
        ChangePage,
        ChangesPlan,
        Clock,
        Commit,
        CommitOutcome,
        Compaction,
        CompactionPlan,
        Provider,
        Publish,
        ReadPlan,
        Retention,
        RetrievePlan,
        RuntimeGeneration,
    )
    from patchouli.provider_conformance.tables import Tables


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


class ForgetsThatAPolicyIsHeld(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        if commit.staging is not None:
            commit = replace(commit, staging=replace(commit.staging, holds_policy=False))
        return await super().commit(commit)


class TakesAStagedReplayForAPublishedOne(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        outcome = await super().commit(commit)
        return replace(outcome, is_staged=False) if isinstance(outcome, Replayed) else outcome


class MarksAnotherSeal(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        if not commit.new_versions:
            commit = replace(commit, accepted=commit.head_versions[-1])
        outcome = await super().commit(commit)
        return outcome


class ForgetsTheTokenOfAResolution(ModelProvider):
    async def publish(self, publish: Publish) -> PublishOutcome:
        resolutions = tuple(replace(r, causal_token=None) for r in publish.resolutions)
        return await super().publish(replace(publish, resolutions=resolutions))


class KeepsTheFirstResult(ModelProvider):
    async def publish(self, publish: Publish) -> PublishOutcome:
        return await super().publish(replace(publish, results=()))


class ForgetsTheSessionsOfAUnit(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        if commit.staging is not None:
            commit = replace(commit, write_sessions=())
        return await super().commit(commit)


class AdvancesASessionThatWasRefused(ModelProvider):
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        outcome = await super().read(plan)
        if isinstance(outcome, Unavailable):
            asked = [s.key for s in plan.consistency.sessions if s.monotonic_reads]
            tables = self._storage.tables
            tables.advance_read(plan.key.scope, asked, tables.frontier(plan.key.scope))
        return outcome


class LetsOneWaitInAUnit(ModelProvider):
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        outcome = await super().read(plan)
        if isinstance(outcome, Unavailable) and plan.unit is not None:
            return replace(outcome, frontier=self._storage.tables.frontier(plan.key.scope))
        return outcome


class OpensAUnitForNothing(ModelProvider):
    async def read(self, plan: ReadPlan) -> ReadOutcome:
        outcome = await super().read(plan)
        if isinstance(outcome, Unavailable) and plan.unit is not None:
            await super().read(replace(plan, consistency=Consistency(), idempotency=None))
        return outcome


class PublishesAnOverdueUnit(ModelProvider):
    async def commit(self, commit: Commit) -> CommitOutcome:
        if commit.staging is None:
            return await super().commit(commit)
        unit = replace(commit.staging.unit, now_unix_ms=0)
        clock, self._clock = self._clock, ManualClock(0)
        try:
            staging = replace(commit.staging, unit=unit)
            return await super().commit(replace(commit, staging=staging))
        finally:
            self._clock = clock


class ExpiresUnitsOnlyWhenTheyAreUsed(ModelProvider):
    """A unit whose end nobody noticed is alive again when the clock is set back."""

    def _begin(self) -> Tables:
        return self._storage.tables.copy()


class ForgetsRecordsAtAStop(ModelProvider):
    async def shutdown(self) -> None:
        self._storage.tables.records.clear()
        await super().shutdown()


class PrunesWithoutATrace(ModelProvider):
    async def read_changes(self, plan: ChangesPlan) -> ChangePage:
        page = await super().read_changes(plan)
        return page if page.changes else replace(page, pruned_through=Cursor(0))


class CompactsTooMuch(ModelProvider):
    """Keeps what has a reason of its own, and not what lies between."""

    async def compact(self, plan: CompactionPlan) -> Compaction:
        outcome = await super().compact(plan)
        tables = self._storage.tables
        at = compaction.horizons(RETENTION, self._clock.unix_ms())
        for key, name in list(tables.versions):
            if name not in compaction.kept_for_themselves(tables, key, at):
                del tables.versions[key, name]
        return outcome


class CompactsPastOpenUnits(ModelProvider):
    async def compact(self, plan: CompactionPlan) -> Compaction:
        tables = self._storage.tables
        units, tables.units = tables.units, {}
        staged = {p: v for p, v in tables.versions.items() if v.unit is not None}
        for place in staged:
            del tables.versions[place]
        outcome = await super().compact(plan)
        self._storage.tables.units = units
        self._storage.tables.versions |= staged
        return outcome


class KeepsWhatIsDue(ModelProvider):
    async def compact(self, plan: CompactionPlan) -> Compaction:
        outcome = await super().compact(plan)
        return replace(outcome, is_more_due=False)


@pytest.mark.slow
@pytest.mark.timeout(240)
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
        ForgetsThatAPolicyIsHeld,
        TakesAStagedReplayForAPublishedOne,
        MarksAnotherSeal,
        ForgetsTheTokenOfAResolution,
        KeepsTheFirstResult,
        ForgetsTheSessionsOfAUnit,
        AdvancesASessionThatWasRefused,
        LetsOneWaitInAUnit,
        OpensAUnitForNothing,
        PublishesAnOverdueUnit,
        ExpiresUnitsOnlyWhenTheyAreUsed,
        ForgetsRecordsAtAStop,
        PrunesWithoutATrace,
        CompactsTooMuch,
        CompactsPastOpenUnits,
        KeepsWhatIsDue,
    ],
)
def test_the_machine_finds_a_fault(faulty: type[ModelProvider]) -> None:
    machine = type(faulty.__name__, (ModelMachine,), {"made": faulty})
    # One fixed set of histories: whether a fault is found is not left to chance.
    fixed = settings(
        MACHINE_SETTINGS,
        max_examples=2_000,  # the rarest take a few hundred
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
    )

    with pytest.raises((AssertionError, IndexError)):
        run_state_machine_as_test(machine, settings=fixed)
