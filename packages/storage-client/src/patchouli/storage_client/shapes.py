"""The JSON objects that go to the daemon and come back, as types; nothing is changed.

What goes is only read, so any mapping will do; whether it is JSON is seen when it is sent. What
comes back is typed as far as the protocol says, which is not what the value of an entity is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.protocol import JsonObject


class Params(TypedDict):
    """What a method takes: metadata, which the policy of the daemon reads, and data."""

    meta: Mapping[str, object]
    data: Mapping[str, object]


class Ref(TypedDict):
    """The identity of an entity in its scope."""

    type: str
    id: str


class ActiveVersion(TypedDict):
    """A version that has a value."""

    state: Literal["active"]
    ref: Ref
    version: str
    value: Any  # JSON; its shape is that of the entity's type


class DeletedVersion(TypedDict):
    """A tombstone."""

    state: Literal["deleted"]
    ref: Ref
    version: str


Version: TypeAlias = ActiveVersion | DeletedVersion


class StatusData(TypedDict):
    """How the daemon is."""

    ready: bool
    provider: str
    generation: int
    recovered_after_unclean_shutdown: bool
    pid: int
    started_at_unix_ms: int
    active_connections: int


class StatusResult(TypedDict):
    """Answer of `status`."""

    meta: JsonObject
    data: StatusData


class CheckpointData(TypedDict):
    """Whether the log was folded into the database."""

    completed: bool


class CheckpointResult(TypedDict):
    """Answer of `checkpoint`."""

    meta: JsonObject
    data: CheckpointData


class CompactData(TypedDict):
    """What a step of compaction removed, by kind, and whether more is due."""

    changes: int
    idempotency_records: int
    work_units: int
    versions: int
    is_more_due: bool
    due: int | None


class CompactResult(TypedDict):
    """Answer of `compact`."""

    meta: JsonObject
    data: CompactData


class AcceptedData(TypedDict):
    """The version that a create or an update has made."""

    entity: ActiveVersion


class AcceptedResult(TypedDict):
    """Answer of `create`, `update` and `commit_artifact_upload`."""

    meta: JsonObject
    data: AcceptedData


class DeletedData(TypedDict):
    """The tombstone that a delete has made."""

    entity: DeletedVersion


class DeletedResult(TypedDict):
    """Answer of `delete`."""

    meta: JsonObject
    data: DeletedData


class ReadData(TypedDict):
    """All heads of an entity."""

    state: Literal["active", "deleted", "conflicted"]
    variants: list[Version]


class ReadResult(TypedDict):
    """Answer of `read`."""

    meta: JsonObject
    data: ReadData


class Hit(TypedDict):
    """An entity that was found, with all its heads."""

    score: float
    variants: list[Version]


class PageMeta(TypedDict):
    """Where the next page begins; absent on the last one."""

    next_cursor: NotRequired[str]


class PageData(TypedDict):
    """The hits of a page."""

    hits: list[Hit]


class Page(TypedDict):
    """Answer of `retrieve` and of `query`."""

    meta: PageMeta
    data: PageData


class UploadBegunData(TypedDict):
    """The upload that was opened."""

    upload_id: str
    max_chunk_bytes: int


class UploadBegunResult(TypedDict):
    """Answer of `begin_artifact_upload`."""

    meta: JsonObject
    data: UploadBegunData


class UploadChunkData(TypedDict):
    """How many bytes the daemon has."""

    next_offset: int


class UploadChunkResult(TypedDict):
    """Answer of `upload_artifact_chunk`."""

    meta: JsonObject
    data: UploadChunkData


class DownloadChunkData(TypedDict):
    """Some bytes of an artifact, and where they stand."""

    entity: ActiveVersion
    offset: int
    next_offset: int
    eof: bool
    bytes_base64: str


class DownloadChunkResult(TypedDict):
    """Answer of `download_artifact_chunk`."""

    meta: JsonObject
    data: DownloadChunkData


class UnsubscribeData(TypedDict):
    """Whether the subscription was there."""

    removed: bool


class UnsubscribeResult(TypedDict):
    """Answer of `unsubscribe`."""

    meta: JsonObject
    data: UnsubscribeData


class Change(TypedDict):
    """A published change of an entity, with its complete set of heads afterwards."""

    cursor: str
    ref: Ref
    kind: Literal["created", "updated", "deleted", "conflicted", "resolved"]
    head_versions: list[str]


class ChangeEventData(TypedDict):
    """Which subscription a change is for."""

    subscription_id: str
    change: Change


class ChangeEvent(TypedDict):
    """What a change handler is called with."""

    meta: JsonObject
    data: ChangeEventData


class BoundaryData(TypedDict):
    """The position up to which a subscription has delivered what passes its filter."""

    subscription_id: str
    cursor: str


class BoundaryNotice(TypedDict):
    """What a boundary handler is called with."""

    meta: JsonObject
    data: BoundaryData
