"""The whole conformance suite, on a database in a directory of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from patchouli.provider_conformance import (
    CancellationConformance,
    CausalConformance,
    ChangesConformance,
    ClockConformance,
    CompactionConformance,
    DeadlineConformance,
    DivergenceConformance,
    DriftConformance,
    EntityConformance,
    FilterConformance,
    HeadsConformance,
    IdempotencyConformance,
    IntegrityConformance,
    LifecycleConformance,
    LinearizableConformance,
    OrderConformance,
    PointerConformance,
    ProviderSuite,
    PublicationConformance,
    ReferencesConformance,
    RefusalConformance,
    ResolutionConformance,
    RetrievalConformance,
    RobustnessConformance,
    SessionConformance,
    SourceConformance,
    TextConformance,
    UnitCausalConformance,
    UnitIdempotencyConformance,
    UnitOpeningConformance,
    UnitSessionConformance,
    UnitStateConformance,
    UnitViewConformance,
    WaitingConformance,
)
from patchouli.provider_sqlite import SqliteProvider

if TYPE_CHECKING:
    from pathlib import Path

    from patchouli.provider import Provider
    from patchouli.provider_conformance import Abandon, OpenProvider


class OnSqlite(ProviderSuite):
    @pytest.fixture
    def open_provider(self, tmp_path: Path) -> OpenProvider:
        return lambda clock: SqliteProvider(tmp_path / "store" / "db", clock=clock)

    @pytest.fixture
    def abandon(self) -> Abandon:
        async def abandon(provider: Provider) -> None:
            assert isinstance(provider, SqliteProvider)
            await provider.abandon()

        return abandon


class TestCancellation(OnSqlite, CancellationConformance): ...


class TestCausality(OnSqlite, CausalConformance): ...


class TestChanges(OnSqlite, ChangesConformance): ...


class TestClocks(OnSqlite, ClockConformance): ...


class TestCompaction(OnSqlite, CompactionConformance): ...


class TestDeadlines(OnSqlite, DeadlineConformance): ...


class TestDivergence(OnSqlite, DivergenceConformance): ...


class TestEntities(OnSqlite, EntityConformance): ...


class TestFilters(OnSqlite, FilterConformance): ...


class TestHeads(OnSqlite, HeadsConformance): ...


class TestIdempotency(OnSqlite, IdempotencyConformance): ...


class TestIntegrity(OnSqlite, IntegrityConformance): ...


class TestLifecycle(OnSqlite, LifecycleConformance): ...


class TestLinearizability(OnSqlite, LinearizableConformance): ...


class TestOrder(OnSqlite, OrderConformance): ...


class TestPointers(OnSqlite, PointerConformance): ...


class TestReferences(OnSqlite, ReferencesConformance): ...


class TestRefusals(OnSqlite, RefusalConformance): ...


class TestRetrieval(OnSqlite, RetrievalConformance): ...


class TestRobustness(OnSqlite, RobustnessConformance): ...


class TestSessions(OnSqlite, SessionConformance): ...


class TestSources(OnSqlite, SourceConformance): ...


class TestText(OnSqlite, TextConformance): ...


class TestDrift(OnSqlite, DriftConformance): ...


class TestPublication(OnSqlite, PublicationConformance): ...


class TestResolution(OnSqlite, ResolutionConformance): ...


class TestUnitCausality(OnSqlite, UnitCausalConformance): ...


class TestUnitIdempotency(OnSqlite, UnitIdempotencyConformance): ...


class TestUnitOpening(OnSqlite, UnitOpeningConformance): ...


class TestUnitSessions(OnSqlite, UnitSessionConformance): ...


class TestUnitStates(OnSqlite, UnitStateConformance): ...


class TestUnitViews(OnSqlite, UnitViewConformance): ...


class TestWaiting(OnSqlite, WaitingConformance): ...
