"""What is asked of the service: the trusted envelope of a call, and what plugins and filters see.

A caller owns the data of its requests and nobody here interprets them. All plugins of one call
share one value, so everybody treats it as read-only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

from patchouli.harness import CancelSignal, Json, NotJson, require_json

if TYPE_CHECKING:
    from collections.abc import Mapping

Operation: TypeAlias = Literal["update", "retrieve", "subscribe"]

EMPTY_MAP: Final[Mapping[str, Json]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who calls: a kind of adapter, and which one."""

    type: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMeta:
    """The envelope of a call. Adapters make it; a model never does.

    Attributes:
        source: Who calls.
        scope: What the call is about; opaque, compared for equality only.
        request_id: The caller's own name for the call.
        attributes: Further facts to route by.
    """

    source: Source
    scope: str
    request_id: str | None = None
    attributes: Mapping[str, Json] = field(default_factory=lambda: EMPTY_MAP)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRequest:
    """An update or a retrieval.

    Attributes:
        meta: The envelope.
        data: What is stored or asked for, in the words of its source. The caller and all plugins
            share this one value, and nobody changes it.
        checked: The data are known to be lossless JSON (made by `patchouli.harness.snapshot`), so
            the service does not walk them again.
    """

    meta: CallMeta
    data: Json
    checked: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeRequest:
    """A wish to be told of changes. It carries no data."""

    meta: CallMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSubscribeRequest(SubscribeRequest):
    """A subscription as a plugin sees it.

    Attributes:
        after_cursor: The position behind which changes are wanted; None for a consumer that has
            none yet.
    """

    after_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteCall:
    """All that a filter may decide by."""

    operation: Operation
    meta: CallMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """How a plugin learns that its answer is no longer wanted.

    Attributes:
        signal: The caller's own signal; for a subscription the one that tells its stop.
        deadline: When this plugin's retrieval is given up, by the clock of the event loop (s).
    """

    signal: CancelSignal | None
    deadline: float | None = None


def require_request(request: MemoryRequest) -> None:
    """Return when envelope and data are lossless JSON.

    Raises:
        TypeError: It is no `MemoryRequest`, or something else stands in its envelope's place.
        NotJson: Some member is not; the error names it (`/data/…`, `/meta/…`).
    """
    require_kind(request, MemoryRequest)
    require_meta(request.meta)
    if not request.checked:
        require_json(request.data, path="/data")


def require_meta(meta: CallMeta) -> None:
    """Return when the envelope is made of texts, and of attributes that are lossless JSON.

    Raises:
        TypeError: It is no `CallMeta`, or its source no `Source`.
        NotJson: Some member is not; the error names it.
    """
    require_kind(meta, CallMeta, "meta")
    require_kind(meta.source, Source, "meta.source")
    _require_text(meta.source.type, "/meta/source/type")
    _require_text(meta.source.id, "/meta/source/id")
    _require_text(meta.scope, "/meta/scope")
    if meta.request_id is not None:
        _require_text(meta.request_id, "/meta/requestId")
    attributes: Any = meta.attributes  # Any: callers may not be typed
    if attributes is EMPTY_MAP:
        return
    if type(attributes) is MappingProxyType:
        attributes = dict(cast("Mapping[object, object]", attributes))
    if type(attributes) is not dict:
        raise NotJson(path="/meta/attributes", problem=f"a value of type {_kind(attributes)}")
    require_json(cast("object", attributes), path="/meta/attributes")


def require_kind(value: object, kind: type, what: str = "request") -> None:
    """Return when `value` is of the class that is asked for; callers may not be typed.

    Raises:
        TypeError: It is not.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} must be a {kind.__name__}, not {value!r:.80}")


def _require_text(value: object, path: str) -> None:
    if type(value) is not str:
        raise NotJson(path=path, problem=f"a value of type {_kind(value)} in place of a text")
    if not value.isascii():
        require_json(value, path=path)


def _kind(value: object) -> str:
    return type(value).__name__
