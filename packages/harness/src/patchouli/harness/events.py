"""The events that a host emits: their names, how they are dispatched, and what they carry.

| Event | Mode | Arguments | A listener may return |
|---|---|---|---|
| ``agent/created`` | announce | `AgentEvent` | nothing; raising at once vetoes the agent |
| ``agent/disposed`` | notify | `AgentEvent` | nothing |
| ``agent/session-start`` | notify | `SessionStart` | nothing |
| ``agent/pre-step`` | chain | `PreStep` | `Enter` or `Reject` |
| ``agent/request-error`` | chain | `RequestError` | `Retry` or None |
| ``agent/turn-stopping`` | serial | `TurnStopping` | nothing; it queues input to go on |
| ``agent/error`` | notify | `AgentError` | nothing |
| ``agent/status`` | notify | `AgentStatus` | nothing |
| ``session/created`` | announce | `Session` | nothing; raising at once vetoes the session |
| ``session/event`` | notify | `Session`, `SessionEvent` | nothing |
| ``session/flush`` | gather | `Session` | nothing; raising fails the flush |
| ``session/disposed`` | notify | `Session` | nothing |
| ``tools/post-execute`` | chain | `ToolRun`, `ToolResult` | `PostExecuteDecision` |
| ``tools/result`` | notify | `ToolRun`, `ToolResult` | nothing |
| ``domain/changed`` | notify | `DomainChanged` | nothing |
| ``patchouli/registrations`` | notify | `Registrations` | nothing |

An observer in a chain returns what ``await next()`` gave it, unchanged. Whoever vetoed has undone
nothing: listeners that were told before hear of the end of what never began from the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patchouli.harness.jsonvalue import Json
    from patchouli.harness.messages import Failure, Message
    from patchouli.harness.ports import Agent
    from patchouli.harness.signals import CancelSignal

AGENT_CREATED: Final = "agent/created"
AGENT_DISPOSED: Final = "agent/disposed"
AGENT_ERROR: Final = "agent/error"
AGENT_PRE_STEP: Final = "agent/pre-step"
AGENT_REQUEST_ERROR: Final = "agent/request-error"
AGENT_SESSION_START: Final = "agent/session-start"
AGENT_STATUS: Final = "agent/status"
AGENT_TURN_STOPPING: Final = "agent/turn-stopping"
DOMAIN_CHANGED: Final = "domain/changed"
PATCHOULI_REGISTRATIONS: Final = "patchouli/registrations"
SESSION_CREATED: Final = "session/created"
SESSION_DISPOSED: Final = "session/disposed"
SESSION_EVENT: Final = "session/event"
SESSION_FLUSH: Final = "session/flush"
TOOLS_POST_EXECUTE: Final = "tools/post-execute"
TOOLS_RESULT: Final = "tools/result"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """An agent appeared or went."""

    agent: Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStart:
    """An agent begins to work in its session, before its first turn."""

    agent: Agent
    source: Literal["startup", "resume", "clear", "compact"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreStep:
    """A step is about to take `messages`, a batch that may be empty."""

    agent: Agent
    messages: Sequence[Message]
    turn: int
    step: int
    signal: CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Enter:
    """The step is entered with these messages."""

    messages: Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """The step is not entered, its batch is dropped, and the turn ends as blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestError:
    """A request to a model failed."""

    agent: Agent
    turn: int
    step: int
    provider: str
    failure: Failure
    signal: CancelSignal
    retry_policy: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The request is made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStopping:
    """A turn is about to end; input that is queued now makes it take another step."""

    agent: Agent
    turn: int
    signal: CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentError:
    """A turn failed."""

    agent: Agent
    turn: int
    step: int
    error: object


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """An agent began or ended a turn."""

    agent: Agent
    status: Literal["idle", "running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainChanged:
    """A record was put or deleted, and is durable."""

    domain: str
    table: str
    key: str
    operation: Literal["put", "delete"]
    value: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrations:
    """A memory plugin was registered or is so no more."""

    plugin_id: str
    registered: bool
