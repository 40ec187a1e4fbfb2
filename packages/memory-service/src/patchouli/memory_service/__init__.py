"""Update, retrieve and subscribe over every memory plugin of a program."""

from __future__ import annotations

from patchouli.memory_service.changes import Boundary, Change, ChangeEvent
from patchouli.memory_service.configuration import MemoryServiceConfig, RoutingPolicy
from patchouli.memory_service.consumer import (
    ChangeHandler,
    CursorStore,
    MemoryService,
    Registration,
    Subscription,
    SubscriptionFailure,
)
from patchouli.memory_service.cursors import CONSUMER_CURSORS, ConsumerCursors, DomainCursors
from patchouli.memory_service.errors import (
    ConfigurationError,
    CursorsClosedError,
    MemoryServiceError,
    MemorySubscriptionError,
    RegistrationError,
)
from patchouli.memory_service.meta import (
    CallContext,
    CallMeta,
    MemoryRequest,
    Operation,
    PluginSubscribeRequest,
    RouteCall,
    Source,
    SubscribeRequest,
)
from patchouli.memory_service.plugin import (
    Emit,
    MemoryPlugin,
    PluginSubscription,
    ReactivePlugin,
    RouteFilter,
)
from patchouli.memory_service.results import Outcome
from patchouli.memory_service.service import memory_service

__all__ = [
    "CONSUMER_CURSORS",
    "Boundary",
    "CallContext",
    "CallMeta",
    "Change",
    "ChangeEvent",
    "ChangeHandler",
    "ConfigurationError",
    "ConsumerCursors",
    "CursorStore",
    "CursorsClosedError",
    "DomainCursors",
    "Emit",
    "MemoryPlugin",
    "MemoryRequest",
    "MemoryService",
    "MemoryServiceConfig",
    "MemoryServiceError",
    "MemorySubscriptionError",
    "Operation",
    "Outcome",
    "PluginSubscribeRequest",
    "PluginSubscription",
    "ReactivePlugin",
    "Registration",
    "RegistrationError",
    "RouteCall",
    "RouteFilter",
    "RoutingPolicy",
    "Source",
    "SubscribeRequest",
    "Subscription",
    "SubscriptionFailure",
    "memory_service",
]
