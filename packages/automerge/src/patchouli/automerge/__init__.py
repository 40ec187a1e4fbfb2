"""Automerge for JSON fields: joins of version graphs, and documents."""

from __future__ import annotations

from patchouli.automerge._core import Document
from patchouli.automerge.errors import (
    ActorReusedError,
    AutomergeError,
    CorruptDocumentError,
    DefectError,
    InvalidGraphError,
    InvalidJsonError,
    LimitExceededError,
    UnknownHeadError,
)
from patchouli.automerge.join import JoinNode, join

__all__ = [
    "ActorReusedError",
    "AutomergeError",
    "CorruptDocumentError",
    "DefectError",
    "Document",
    "InvalidGraphError",
    "InvalidJsonError",
    "JoinNode",
    "LimitExceededError",
    "UnknownHeadError",
    "join",
]
