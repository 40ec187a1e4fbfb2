"""Policy engine of Patchouli over one storage provider."""

from __future__ import annotations

from patchouli.backend.canonical import canonical, canonical_bytes, control_key, jeq
from patchouli.backend.changes import Event, Subscription, event_line
from patchouli.backend.config.advice import PolicyWarning
from patchouli.backend.config.check import check_policy
from patchouli.backend.config.load import (
    LoadedPolicy,
    PolicyReport,
    check_policy_document,
    load_policy,
)
from patchouli.backend.config.models import Behavior, EntityTypePolicy, MergeRule, Policy
from patchouli.backend.config.resources import read_resource
from patchouli.backend.engine import Engine
from patchouli.backend.errors import (
    ConfigurationError,
    CursorExpiredError,
    DeadlineExceededError,
    EngineError,
    EntityConflict,
    IdempotencyConflictError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    UnsupportedCapabilityError,
    VersionConflictError,
    WorkUnitExpiredError,
)
from patchouli.backend.limits import Limits
from patchouli.backend.policy.bindings import UNBOUND, Unbound
from patchouli.backend.policy.keys import Scope
from patchouli.backend.policy.plan import BehaviorPlan, Selection, UnitDescriptor
from patchouli.backend.policy.selection import Selector
from patchouli.backend.results import (
    EntityResult,
    HitView,
    ReadResult,
    RetrieveResult,
    VersionView,
)
from patchouli.backend.validation import SchemaValidator, ValueValidators, Violation

__all__ = [
    "UNBOUND",
    "Behavior",
    "BehaviorPlan",
    "ConfigurationError",
    "CursorExpiredError",
    "DeadlineExceededError",
    "Engine",
    "EngineError",
    "EntityConflict",
    "EntityResult",
    "EntityTypePolicy",
    "Event",
    "HitView",
    "IdempotencyConflictError",
    "InvalidRequestError",
    "Limits",
    "LoadedPolicy",
    "MergeRule",
    "NotFoundError",
    "OverloadedError",
    "Policy",
    "PolicyReport",
    "PolicyWarning",
    "ReadResult",
    "RetrieveResult",
    "SchemaValidator",
    "Scope",
    "Selection",
    "Selector",
    "Subscription",
    "Unbound",
    "UnitDescriptor",
    "UnsupportedCapabilityError",
    "ValueValidators",
    "VersionConflictError",
    "VersionView",
    "Violation",
    "WorkUnitExpiredError",
    "canonical",
    "canonical_bytes",
    "check_policy",
    "check_policy_document",
    "control_key",
    "event_line",
    "jeq",
    "load_policy",
    "read_resource",
]
