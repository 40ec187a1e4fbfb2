"""The model passes the suite that it is the oracle of."""

from __future__ import annotations

import pytest
from patchouli.provider import Capabilities, Provider
from patchouli.provider_conformance import (
    Abandon,
    CancellationConformance,
    CausalConformance,
    ChangesConformance,
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
    ModelProvider,
    ModelStorage,
    OpenProvider,
    OrderConformance,
    PointerConformance,
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
    UnitSessionConformance,
    UnitStateConformance,
    UnitViewConformance,
    WaitingConformance,
)


class Model:
    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        storage = ModelStorage()
        return lambda clock: ModelProvider(storage, clock)

    @pytest.fixture
    def abandon(self) -> Abandon:
        async def abandon(provider: Provider) -> None:
            assert isinstance(provider, ModelProvider)
            provider.abandon()

        return abandon


class ModestModel(Model):
    """The model with the claims that every engine needs, and no other."""

    @pytest.fixture
    def open_provider(self) -> OpenProvider:
        storage = ModelStorage()
        least = Capabilities(authority=True, change_stream=True, retrieval=True)
        return lambda clock: ModelProvider(storage, clock, capabilities=least)


class TestCancellation(Model, CancellationConformance): ...


class TestCausal(Model, CausalConformance): ...


class TestChanges(Model, ChangesConformance): ...


class TestCompaction(Model, CompactionConformance): ...


class TestDeadline(Model, DeadlineConformance): ...


class TestDivergence(Model, DivergenceConformance): ...


class TestDrift(Model, DriftConformance): ...


class TestEntity(Model, EntityConformance): ...


class TestFilter(Model, FilterConformance): ...


class TestHeads(Model, HeadsConformance): ...


class TestIntegrity(Model, IntegrityConformance): ...


class TestIdempotency(Model, IdempotencyConformance): ...


class TestLifecycle(Model, LifecycleConformance): ...


class TestOrder(Model, OrderConformance): ...


class TestPointer(Model, PointerConformance): ...


class TestPublication(Model, PublicationConformance): ...


class TestResolution(Model, ResolutionConformance): ...


class TestRetrieval(Model, RetrievalConformance): ...


class TestRobustness(Model, RobustnessConformance): ...


class TestSession(Model, SessionConformance): ...


class TestSource(Model, SourceConformance): ...


class TestText(Model, TextConformance): ...


class TestUnitCausal(Model, UnitCausalConformance): ...


class TestUnitIdempotency(Model, UnitIdempotencyConformance): ...


class TestUnitSession(Model, UnitSessionConformance): ...


class TestUnitState(Model, UnitStateConformance): ...


class TestUnitView(Model, UnitViewConformance): ...


class TestWaiting(Model, WaitingConformance): ...


class TestReferences(Model, ReferencesConformance): ...


class TestRefusal(ModestModel, RefusalConformance): ...


class TestEntityOfTheModestModel(ModestModel, EntityConformance): ...
