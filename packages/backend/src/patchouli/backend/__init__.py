"""Policy engine of Patchouli over one storage provider."""

from __future__ import annotations

from patchouli.backend.artifacts.care import CareSchedule, Caretaker
from patchouli.backend.artifacts.collection import Checked, Collected, check_objects, collect
from patchouli.backend.artifacts.library import ArtifactLibrary
from patchouli.backend.artifacts.service import ArtifactService, DownloadResult
from patchouli.backend.artifacts.uploads import ArtifactLimits
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
from patchouli.backend.config.providers import (
    LoadedProviders,
    LocalProvider,
    Providers,
    RemoteProvider,
    Routing,
    RoutingRule,
    check_providers_document,
    endpoint_defect,
    is_loopback,
    load_providers,
)
from patchouli.backend.config.resources import ResourceName, read_resource
from patchouli.backend.engine import Engine
from patchouli.backend.errors import (
    ArtifactStoreError,
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
from patchouli.backend.exporting import Export, export_document
from patchouli.backend.limits import Limits
from patchouli.backend.pointers import UNBOUND, Unbound
from patchouli.backend.policy.capabilities import (
    CapabilityFinding,
    match_capabilities,
    require_capabilities,
)
from patchouli.backend.policy.keys import Scope
from patchouli.backend.policy.plan import BehaviorPlan, Selection, UnitDescriptor
from patchouli.backend.policy.selection import Selector
from patchouli.backend.publication import (
    Recovery,
)
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
    "ArtifactLibrary",
    "ArtifactLimits",
    "ArtifactService",
    "ArtifactStoreError",
    "Behavior",
    "BehaviorPlan",
    "CapabilityFinding",
    "CareSchedule",
    "Caretaker",
    "Checked",
    "Collected",
    "ConfigurationError",
    "CursorExpiredError",
    "DeadlineExceededError",
    "DownloadResult",
    "Engine",
    "EngineError",
    "EntityConflict",
    "EntityResult",
    "EntityTypePolicy",
    "Event",
    "Export",
    "HitView",
    "IdempotencyConflictError",
    "InvalidRequestError",
    "Limits",
    "LoadedPolicy",
    "LoadedProviders",
    "LocalProvider",
    "MergeRule",
    "NotFoundError",
    "OverloadedError",
    "Policy",
    "PolicyReport",
    "PolicyWarning",
    "Providers",
    "ReadResult",
    "Recovery",
    "RemoteProvider",
    "ResourceName",
    "RetrieveResult",
    "Routing",
    "RoutingRule",
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
    "check_objects",
    "check_policy",
    "check_policy_document",
    "check_providers_document",
    "collect",
    "control_key",
    "endpoint_defect",
    "event_line",
    "export_document",
    "is_loopback",
    "jeq",
    "load_policy",
    "load_providers",
    "match_capabilities",
    "read_resource",
    "require_capabilities",
]
