"""Conformance suite and in-memory model for Patchouli providers.

Names are loaded when they are first used: pytest imports this package in every project that has it
installed, for its plugin alone, and the plugin must run before the suite is loaded.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from patchouli.provider_conformance.builders import ManualClock
    from patchouli.provider_conformance.invariants import check_visible_state
    from patchouli.provider_conformance.machine import MACHINE_SETTINGS
    from patchouli.provider_conformance.model import EVERYTHING, ModelProvider, ModelStorage
    from patchouli.provider_conformance.suite.base import (
        Abandon,
        OpenProvider,
        ProviderSuite,
        Reopen,
        Start,
    )
    from patchouli.provider_conformance.suite.cancellation import CancellationConformance
    from patchouli.provider_conformance.suite.changes import ChangesConformance
    from patchouli.provider_conformance.suite.clock_jumps import ClockConformance
    from patchouli.provider_conformance.suite.compaction import CompactionConformance
    from patchouli.provider_conformance.suite.consistency import (
        CausalConformance,
        LinearizableConformance,
        SessionConformance,
        SourceConformance,
    )
    from patchouli.provider_conformance.suite.deadlines import DeadlineConformance
    from patchouli.provider_conformance.suite.divergence import DivergenceConformance
    from patchouli.provider_conformance.suite.drift import DriftConformance
    from patchouli.provider_conformance.suite.entities import EntityConformance
    from patchouli.provider_conformance.suite.heads import HeadsConformance
    from patchouli.provider_conformance.suite.idempotency import IdempotencyConformance
    from patchouli.provider_conformance.suite.integrity import IntegrityConformance
    from patchouli.provider_conformance.suite.lifecycle import LifecycleConformance
    from patchouli.provider_conformance.suite.matching import (
        FilterConformance,
        PointerConformance,
        TextConformance,
    )
    from patchouli.provider_conformance.suite.ordering import OrderConformance
    from patchouli.provider_conformance.suite.publication import PublicationConformance
    from patchouli.provider_conformance.suite.references import ReferencesConformance
    from patchouli.provider_conformance.suite.refusals import RefusalConformance
    from patchouli.provider_conformance.suite.resolution import ResolutionConformance
    from patchouli.provider_conformance.suite.retrieval import RetrievalConformance
    from patchouli.provider_conformance.suite.robustness import RobustnessConformance
    from patchouli.provider_conformance.suite.unit_control import (
        UnitCausalConformance,
        UnitSessionConformance,
    )
    from patchouli.provider_conformance.suite.unit_idempotency import UnitIdempotencyConformance
    from patchouli.provider_conformance.suite.unit_opening import UnitOpeningConformance
    from patchouli.provider_conformance.suite.unit_state import UnitStateConformance
    from patchouli.provider_conformance.suite.units import UnitViewConformance
    from patchouli.provider_conformance.suite.waiting import WaitingConformance
    from patchouli.provider_conformance.suite.whole import whole_suite
    from patchouli.provider_conformance.unit_machine import ProviderMachine

_HOMES = {
    "EVERYTHING": "model",
    "MACHINE_SETTINGS": "machine",
    "Abandon": "suite.base",
    "CancellationConformance": "suite.cancellation",
    "CausalConformance": "suite.consistency",
    "ChangesConformance": "suite.changes",
    "ClockConformance": "suite.clock_jumps",
    "CompactionConformance": "suite.compaction",
    "DeadlineConformance": "suite.deadlines",
    "DivergenceConformance": "suite.divergence",
    "DriftConformance": "suite.drift",
    "EntityConformance": "suite.entities",
    "FilterConformance": "suite.matching",
    "HeadsConformance": "suite.heads",
    "IdempotencyConformance": "suite.idempotency",
    "IntegrityConformance": "suite.integrity",
    "LifecycleConformance": "suite.lifecycle",
    "LinearizableConformance": "suite.consistency",
    "ManualClock": "builders",
    "ModelProvider": "model",
    "ModelStorage": "model",
    "OpenProvider": "suite.base",
    "OrderConformance": "suite.ordering",
    "PointerConformance": "suite.matching",
    "ProviderMachine": "unit_machine",
    "ProviderSuite": "suite.base",
    "PublicationConformance": "suite.publication",
    "ReferencesConformance": "suite.references",
    "RefusalConformance": "suite.refusals",
    "Reopen": "suite.base",
    "ResolutionConformance": "suite.resolution",
    "RetrievalConformance": "suite.retrieval",
    "RobustnessConformance": "suite.robustness",
    "SessionConformance": "suite.consistency",
    "SourceConformance": "suite.consistency",
    "Start": "suite.base",
    "TextConformance": "suite.matching",
    "UnitCausalConformance": "suite.unit_control",
    "UnitIdempotencyConformance": "suite.unit_idempotency",
    "UnitOpeningConformance": "suite.unit_opening",
    "UnitSessionConformance": "suite.unit_control",
    "UnitStateConformance": "suite.unit_state",
    "UnitViewConformance": "suite.units",
    "WaitingConformance": "suite.waiting",
    "check_visible_state": "invariants",
    "whole_suite": "suite.whole",
}

__all__ = [
    "EVERYTHING",
    "MACHINE_SETTINGS",
    "Abandon",
    "CancellationConformance",
    "CausalConformance",
    "ChangesConformance",
    "ClockConformance",
    "CompactionConformance",
    "DeadlineConformance",
    "DivergenceConformance",
    "DriftConformance",
    "EntityConformance",
    "FilterConformance",
    "HeadsConformance",
    "IdempotencyConformance",
    "IntegrityConformance",
    "LifecycleConformance",
    "LinearizableConformance",
    "ManualClock",
    "ModelProvider",
    "ModelStorage",
    "OpenProvider",
    "OrderConformance",
    "PointerConformance",
    "ProviderMachine",
    "ProviderSuite",
    "PublicationConformance",
    "ReferencesConformance",
    "RefusalConformance",
    "Reopen",
    "ResolutionConformance",
    "RetrievalConformance",
    "RobustnessConformance",
    "SessionConformance",
    "SourceConformance",
    "Start",
    "TextConformance",
    "UnitCausalConformance",
    "UnitIdempotencyConformance",
    "UnitOpeningConformance",
    "UnitSessionConformance",
    "UnitStateConformance",
    "UnitViewConformance",
    "WaitingConformance",
    "check_visible_state",
    "whole_suite",
]


def __getattr__(name: str) -> object:
    """Load a public name from the module that it lives in."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
