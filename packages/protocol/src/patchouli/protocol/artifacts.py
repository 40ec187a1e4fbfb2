"""`patchouli.artifact.*@1`: bytes of artifacts, in chunks."""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Annotated, TypeAlias

from patchouli.protocol.constants import MAX_CHUNK_BYTES
from patchouli.protocol.entities import AcceptedData
from patchouli.protocol.errors import ErrorCode, RpcError
from patchouli.protocol.facts import ArtifactMetadata, MediaType
from patchouli.protocol.shapes import (
    ActiveVersion,
    Closed,
    NonEmpty,
    Params,
    Positive,
    Result,
    Token,
    Unsigned,
)
from pydantic import BeforeValidator, Field

if TYPE_CHECKING:
    from patchouli.protocol.jsonvalue import JsonObject, JsonValue

_NULLABLE_OF_CORE = {
    "scope": ("tenant", "workspace", "user", "session"),
    "origin": ("provider", "binding", "native_type", "native_id", "native_revision"),
    "time": ("event_at", "source_created_at", "source_updated_at"),
    "lifecycle": ("expires_at",),
}


def _complete(metadata: JsonValue) -> JsonValue:
    """Return `metadata` with null for each nullable member that was left out."""
    if type(metadata) is not dict or type(core := metadata.get("core")) is not dict:
        return metadata
    completed: JsonObject = dict(core)
    for name, members in _NULLABLE_OF_CORE.items():
        if type(part := core.get(name)) is dict:
            completed[name] = dict.fromkeys(members) | part
    if type(provenance := core.get("provenance")) is list:
        completed["provenance"] = [
            {"source": None, **step} if type(step) is dict else step for step in provenance
        ]
    return {**metadata, "core": completed}


# A client that leaves a nullable member out means null; the stored value always has it.
UploadMetadata: TypeAlias = Annotated[ArtifactMetadata, BeforeValidator(_complete)]


class UploadBeginData(Closed):
    """What will be uploaded, as far as it is known; null where nothing is expected."""

    id: NonEmpty | None = None
    media_type: MediaType
    name: NonEmpty | None = None
    expected_byte_length: Unsigned | None = None
    expected_digest: NonEmpty | None = None
    metadata: UploadMetadata


class UploadBeginParams(Params):
    """Begins an upload."""

    data: UploadBeginData


class UploadBeginResultData(Closed):
    """The name of the upload on this connection, and how much a chunk may hold."""

    upload_id: Token
    max_chunk_bytes: Positive


class UploadBeginResult(Result):
    """Answers `upload.begin`."""

    data: UploadBeginResultData


class UploadChunkData(Closed):
    """The next bytes; `decode_chunk` reads them, after the deadline was looked at."""

    upload_id: Token
    offset: Unsigned
    bytes_base64: NonEmpty


class UploadChunkParams(Params):
    """Appends to an upload."""

    data: UploadChunkData


class UploadChunkResultData(Closed):
    """How many bytes were received so far."""

    next_offset: Positive


class UploadChunkResult(Result):
    """Answers `upload.chunk`."""

    data: UploadChunkResultData


class UploadCommitData(Closed):
    """The upload to make an entity of."""

    upload_id: Token


class UploadCommitParams(Params):
    """Publishes the bytes and creates the artifact entity in the scope of `meta`."""

    data: UploadCommitData


class UploadCommitResult(Result):
    """Answers `upload.commit`, as `create` does."""

    data: AcceptedData


class DownloadChunkData(Closed):
    """Which bytes to send.

    `max_bytes` may be any unsigned integer here: whether it is from 1 to `MAX_CHUNK_BYTES` is
    looked at only after the entity was read.
    """

    id: NonEmpty
    version: Token | None = None
    offset: Unsigned
    max_bytes: Annotated[
        Unsigned, Field(json_schema_extra={"minimum": 1, "maximum": MAX_CHUNK_BYTES})
    ]


class DownloadChunkParams(Params):
    """Reads a part of an artifact's bytes."""

    data: DownloadChunkData


class DownloadChunkResultData(Closed):
    """The bytes from `offset` to `next_offset`, and the version they belong to."""

    entity: ActiveVersion
    offset: Unsigned
    next_offset: Unsigned
    eof: bool
    bytes_base64: str


class DownloadChunkResult(Result):
    """Answers `download.chunk`."""

    data: DownloadChunkResultData


def decode_chunk(bytes_base64: str) -> bytes:
    """Return the bytes of a chunk: 1 to `MAX_CHUNK_BYTES`, in their one canonical spelling.

    Raises:
        RpcError: INVALID_REQUEST.
    """
    try:
        text = bytes_base64.encode("ascii")
        data = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise RpcError(ErrorCode.INVALID_REQUEST, "bytes_base64 is not padded Base64") from None
    if not 1 <= len(data) <= MAX_CHUNK_BYTES:
        raise RpcError(ErrorCode.INVALID_REQUEST, f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes")
    # Bits of the last character that belong to no byte have to be 0; the decoder drops them.
    if binascii.b2a_base64(data, newline=False) != text:
        raise RpcError(ErrorCode.INVALID_REQUEST, "bytes_base64 is not canonical Base64")
    return data


def encode_chunk(data: bytes) -> str:
    """Return `data` as `bytes_base64`."""
    return binascii.b2a_base64(data, newline=False).decode()
