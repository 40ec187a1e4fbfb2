"""The in-process host of memory plugins: lifecycle kernel, ports, reference host."""

from __future__ import annotations

from patchouli.harness.errors import (
    Aborted,
    AlreadyProvided,
    AttachmentError,
    DomainError,
    FsError,
    HarnessError,
    NotJson,
    PortError,
    ScopeClosed,
    ServiceUnavailable,
    SessionError,
)
from patchouli.harness.jsonvalue import (
    Json,
    JsonObject,
    encode_json,
    json_equal,
    require_json,
    snapshot,
    trim,
)
from patchouli.harness.kernel import Kernel, PendingPlugin
from patchouli.harness.plugin import (
    Bindable,
    Context,
    Effect,
    EffectBody,
    Listener,
    Logger,
    PluginScope,
    PluginSpec,
    ScopeState,
    StartFn,
    Undo,
)
from patchouli.harness.signals import CancelSignal, CancelSource

__all__ = [
    "Aborted",
    "AlreadyProvided",
    "AttachmentError",
    "Bindable",
    "CancelSignal",
    "CancelSource",
    "Context",
    "DomainError",
    "Effect",
    "EffectBody",
    "FsError",
    "HarnessError",
    "Json",
    "JsonObject",
    "Kernel",
    "Listener",
    "Logger",
    "NotJson",
    "PendingPlugin",
    "PluginScope",
    "PluginSpec",
    "PortError",
    "ScopeClosed",
    "ScopeState",
    "ServiceUnavailable",
    "SessionError",
    "StartFn",
    "Undo",
    "encode_json",
    "json_equal",
    "require_json",
    "snapshot",
    "trim",
]
