"""A small host in one process, for tests, demonstrations and applications without a harness."""

from __future__ import annotations

from patchouli.harness.reference.agents import MemoryAgents
from patchouli.harness.reference.attachments import MemoryAttachments
from patchouli.harness.reference.domains import SqliteDomains
from patchouli.harness.reference.driver import DrivenAgent
from patchouli.harness.reference.files import LocalFileSystem
from patchouli.harness.reference.host import ReferenceHost
from patchouli.harness.reference.models import (
    Answer,
    ModelRequest,
    RequestFailed,
    ScriptedModel,
    tool_call,
)
from patchouli.harness.reference.sessions import LiveSession, MemorySessions
from patchouli.harness.reference.tools import ToolRegistry
from patchouli.harness.reference.workspaces import MemoryWorkspaces

__all__ = [
    "Answer",
    "DrivenAgent",
    "LiveSession",
    "LocalFileSystem",
    "MemoryAgents",
    "MemoryAttachments",
    "MemorySessions",
    "MemoryWorkspaces",
    "ModelRequest",
    "ReferenceHost",
    "RequestFailed",
    "ScriptedModel",
    "SqliteDomains",
    "ToolRegistry",
    "tool_call",
]
