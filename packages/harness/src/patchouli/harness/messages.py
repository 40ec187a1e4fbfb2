"""What a host writes down: messages, session logs, failures, results, as read-only JSON mappings.

The types describe to readers what is stored; the values are plain mappings with these keys, exactly
as stored, and nobody rebuilds them. Block, event and source kinds that are not named here may occur
and must be passed on.
"""

from __future__ import annotations

import secrets
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NotRequired, TypeAlias, TypedDict, cast

from patchouli.harness.jsonvalue import snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from patchouli.harness.jsonvalue import Json

LOG_VERSION: Final = 1  # of session headers


class TextBlock(TypedDict):
    """Words."""

    type: Literal["text"]
    text: str


class ReasoningBlock(TypedDict):
    """What a model thought before it answered."""

    type: Literal["reasoning"]
    text: str


class ImageRef(TypedDict):
    """Names an image that the attachments keep; its bytes are never in a log."""

    attachmentId: str
    mediaType: Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
    bytes: int
    width: int
    height: int
    name: NotRequired[str]


class ImageBlock(TypedDict):
    """An image."""

    type: Literal["image"]
    attachment: ImageRef


class ToolCallBlock(TypedDict):
    """A call that a model asks for; `arguments` is JSON text as the model wrote it."""

    type: Literal["tool-call"]
    id: str
    name: str
    arguments: str


class ToolResultBlock(TypedDict):
    """What came of a call."""

    type: Literal["tool-result"]
    toolCallId: str
    content: Sequence[Block]
    isError: NotRequired[bool]


Block: TypeAlias = "TextBlock | ReasoningBlock | ImageBlock | ToolCallBlock | ToolResultBlock"


class UserSource(TypedDict):
    """Typed by a person."""

    kind: Literal["user"]


class PluginSource(TypedDict):
    """Put in by a plugin."""

    kind: Literal["plugin"]
    plugin: str
    form: NotRequired[Literal["instructions", "catalog", "snapshot", "notice", "relay", "recall"]]


class ModelSource(TypedDict):
    """Answered by a model."""

    kind: Literal["model"]
    provider: str
    model: str
    replayState: NotRequired[Json]


class ToolSource(TypedDict):
    """Returned by a tool."""

    kind: Literal["tool"]
    callId: str


MessageSource: TypeAlias = "UserSource | PluginSource | ModelSource | ToolSource"


class Message(TypedDict):
    """One message; its id is unique and it never changes."""

    id: str
    role: Literal["system", "user", "assistant"]
    content: Sequence[Block]
    source: MessageSource


class SessionHeader(TypedDict):
    """What a session is; a key that does not apply is absent."""

    version: int
    id: str
    createdAt: int
    cwd: NotRequired[str]
    parentSession: NotRequired[str]
    seedLength: NotRequired[int]
    origin: NotRequired[Literal["subagent"]]
    delegationDepth: NotRequired[int]
    agentPreset: NotRequired[str]


class SessionEvent(TypedDict):
    """One entry of a session's log; `seq` counts from 0 without a gap."""

    type: str
    seq: int
    time: int
    data: Mapping[str, Json]
    surfaceOp: NotRequired[Json]
    sourceEventSeqs: NotRequired[Sequence[int]]
    ignorable: NotRequired[bool]


class Failure(TypedDict):
    """Why a model request failed."""

    message: str
    code: str
    status: NotRequired[int]
    providerRetryAfterMs: NotRequired[int]
    requestId: NotRequired[str]


class ErrorInfo(TypedDict):
    """Which error it was, for programs."""

    name: str
    code: str


class ToolError(TypedDict):
    """Why a tool failed."""

    message: str
    info: NotRequired[ErrorInfo]


class ToolResult(TypedDict):
    """What a call of a tool came to: a value if it succeeded, an error if not."""

    isError: bool
    content: Sequence[Block]
    value: NotRequired[Json]
    error: NotRequired[ToolError]
    meta: NotRequired[Mapping[str, Json]]
    additionalContexts: NotRequired[Sequence[Message]]
    concludesTurn: NotRequired[bool]


class AcceptDecision(TypedDict):
    """The result stands, perhaps with another content or value."""

    kind: Literal["accept"]
    content: NotRequired[Sequence[Block]]
    value: NotRequired[Json]
    additionalContexts: NotRequired[Sequence[Message]]


class BlockDecision(TypedDict):
    """The model gets `feedback` in place of the result."""

    kind: Literal["block"]
    feedback: Sequence[Block]
    additionalContexts: NotRequired[Sequence[Message]]


PostExecuteDecision: TypeAlias = "AcceptDecision | BlockDecision"


def create_user_message(content: Sequence[Block], source: MessageSource) -> Message:
    """Return a new, read-only message of role ``user`` with an id that no other one has.

    Raises:
        NotJson: `content` or `source` is no lossless JSON.
    """
    made: dict[str, object] = {
        "id": f"msg-{secrets.token_hex(16)}",
        "role": "user",
        "content": content,
        "source": source,
    }
    return cast("Message", read_only(snapshot(made)))


def read_only(value: Json) -> object:
    """Return a copy of `value` whose objects are read-only mappings and whose arrays are tuples.

    `snapshot` turns it back into plain containers.
    """
    if type(value) is not dict and type(value) is not list:
        return value
    # From the leaves up and without recursion: children are made before what holds them.
    order: list[dict[str, Json] | list[Json]] = []
    todo: list[dict[str, Json] | list[Json]] = [value]
    while todo:
        container = todo.pop()
        order.append(container)
        items = container.values() if isinstance(container, dict) else container
        todo.extend(item for item in items if isinstance(item, dict | list))
    made: dict[int, object] = {}
    for container in reversed(order):
        if isinstance(container, dict):
            copy = {key: made.get(id(item), item) for key, item in container.items()}
            made[id(container)] = MappingProxyType(copy)
        else:
            made[id(container)] = tuple(made.get(id(item), item) for item in container)
    return made[id(value)]


def text_block(text: str) -> TextBlock:
    """Return a block that holds `text`."""
    return {"type": "text", "text": text}
