"""Artifacts as clients see them: uploads that become entities, and bytes read through entities.

The engine decides about visibility: an upload ends in an ordinary create, a download begins with an
ordinary read in the scope of the request. Bytes are served only to a scope that uploaded them.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson
from patchouli.backend.artifacts.library import Digest, file_failures
from patchouli.backend.artifacts.uploads import Uploads
from patchouli.backend.errors import (
    ArtifactStoreError,
    InvalidRequestError,
    NotFoundError,
    UnsupportedCapabilityError,
    VersionConflictError,
)
from patchouli.protocol import (
    MAX_CHUNK_BYTES,
    CreateData,
    CreateParams,
    ReadData,
    ReadParams,
    Ref,
    decode_chunk,
)
from patchouli.provider import VersionId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from patchouli.backend.artifacts.library import ArtifactLibrary
    from patchouli.backend.artifacts.uploads import ArtifactLimits, Upload
    from patchouli.backend.engine import Engine
    from patchouli.backend.results import EntityResult, ReadResult, VersionView
    from patchouli.protocol import (
        DownloadChunkParams,
        JsonObject,
        JsonValue,
        UploadBeginParams,
        UploadChunkParams,
        UploadCommitParams,
    )
    from patchouli.provider import Clock, IdSource, ScopeText

ARTIFACT = "artifact"
_KEY = re.compile(r"sha256/([0-9a-f]{64})\Z")
_SWEEP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A part of an artifact: `data` are its bytes from `offset` on."""

    meta: JsonObject
    entity: VersionView
    offset: int
    next_offset: int
    is_end: bool
    data: bytes


class ArtifactService:
    """Upload and download over one engine and one library.

    `node_id` is how placements name this place.
    """

    def __init__(
        self,
        library: ArtifactLibrary,
        engine: Engine,
        *,
        node_id: str,
        limits: ArtifactLimits,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._library = library
        self._engine = engine
        self._node_id = node_id
        self._uploads = Uploads(library, limits=limits, clock=clock, ids=ids)
        self._sweeper: asyncio.Task[None] | None = None
        engine.guard(ARTIFACT, self.require_placement)

    def start(self) -> None:
        """Begin to forget idle uploads."""
        self._sweeper = asyncio.create_task(self._sweep())

    async def aclose(self) -> None:
        """Forget all uploads; the library stays open until who opened it closes it."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.wait([self._sweeper])
        await self._uploads.close()

    async def begin(self, connection: object, params: UploadBeginParams) -> str:
        """Return the id of a new upload of `connection`.

        Raises:
            InvalidRequestError: The policy has no type `artifact`, or the length is over the limit.
            OverloadedError: Too many open uploads.
        """
        if ARTIFACT not in self._engine.policy.entity_types:
            raise InvalidRequestError("the policy configures no entity type artifact")
        return await self._uploads.begin(connection, params.data)

    async def append(self, connection: object, params: UploadChunkParams) -> int:
        """Append a chunk and return the bytes received so far; see `Uploads.append`."""
        data = decode_chunk(params.data.bytes_base64)
        return await self._uploads.append(
            connection, params.data.upload_id, offset=params.data.offset, data=data
        )

    async def commit(self, connection: object, params: UploadCommitParams) -> EntityResult:
        """Publish the bytes of an upload and create its entity with the `meta` of this request."""

        async def create(upload: Upload, digest: Digest) -> EntityResult:
            scope = self._engine.scope(params.meta)
            await asyncio.to_thread(self._library.grant, scope, digest)
            return await self._engine.create(
                CreateParams(meta=params.meta, data=self._create_data(upload, digest))
            )

        return await self._uploads.commit(connection, params.data.upload_id, create)

    async def download(self, params: DownloadChunkParams) -> DownloadResult:
        """Return the bytes of one active head of an artifact from an offset on.

        Raises:
            NotFoundError: No such artifact, version or content in this scope.
            VersionConflictError: No version was named and there are several heads.
            UnsupportedCapabilityError: The bytes are not in this place.
            InvalidRequestError: The range, or the key of the placement, is not valid.
            ArtifactStoreError: What is stored contradicts the entity.
        """
        wanted = params.data
        reading = await self._engine.read(
            ReadParams(meta=params.meta, data=ReadData(ref=Ref(type=ARTIFACT, id=wanted.id)))
        )
        entity = _select(reading, wanted.version)
        value = orjson.loads(entity.value_json or "null")
        digest = self._digest(value)
        if not self._library.is_granted(self._engine.scope(params.meta), digest):
            raise NotFoundError("the content is not in this place")
        data, length = await asyncio.to_thread(
            self._read, value, digest, wanted.offset, wanted.max_bytes
        )
        next_offset = wanted.offset + len(data)
        return DownloadResult(
            reading.meta, entity, wanted.offset, next_offset, next_offset == length, data
        )

    async def drop_connection(self, connection: object) -> None:
        """Forget the uploads of a connection that is gone."""
        await self._uploads.drop_connection(connection)

    def require_placement(self, scope: ScopeText, value: JsonValue) -> None:
        """Return if a client may store `value` as an artifact of `scope`.

        A placement managed here names bytes that this scope uploaded here; anything else would let
        a digest open the bytes of another scope.

        Raises:
            InvalidRequestError: The scope never uploaded them.
        """
        match value:
            case {"placement": {"kind": "managed", "provider": self._node_id, "key": key}}:
                found = _KEY.match(key) if isinstance(key, str) else None
                if found and self._library.renew(scope, Digest(found[1])):
                    return
                raise InvalidRequestError(
                    "a managed placement names bytes that were uploaded in this scope",
                    pointer="data/value/placement/key",
                )
            case _:
                return

    def _create_data(self, upload: Upload, digest: Digest) -> CreateData:
        return CreateData(
            type=ARTIFACT,
            id=upload.data.id,
            value={
                "media_type": upload.data.media_type,
                "name": upload.data.name,
                "byte_length": upload.length,
                "digest": f"sha256:{digest}",
                "placement": {
                    "kind": "managed",
                    "provider": self._node_id,
                    "key": f"sha256/{digest}",
                },
                "metadata": upload.data.metadata.model_dump(mode="json", by_alias=True),
            },
        )

    def _digest(self, value: Mapping[str, JsonValue]) -> Digest:
        match value:
            case {"placement": {"kind": "managed", "provider": self._node_id, "key": str(key)}}:
                found = _KEY.match(key)
                if found is None:
                    raise InvalidRequestError("the placement of the artifact has a malformed key")
                return Digest(found[1])
            case _:
                raise UnsupportedCapabilityError(
                    "the bytes of this artifact are kept in another place"
                )

    def _read(
        self, value: Mapping[str, JsonValue], digest: Digest, offset: int, max_bytes: int
    ) -> tuple[bytes, int]:
        descriptor = self._library.open_object(digest)
        if descriptor is None:
            raise NotFoundError("the content is not in this place")
        try:
            length = os.fstat(descriptor).st_size
            if offset > length:
                raise InvalidRequestError(f"the artifact has {length} bytes", pointer="data/offset")
            if not 1 <= max_bytes <= MAX_CHUNK_BYTES:
                raise InvalidRequestError(
                    f"max_bytes is 1 to {MAX_CHUNK_BYTES}", pointer="data/max_bytes"
                )
            if value.get("byte_length") != length or value.get("digest") != f"sha256:{digest}":
                raise ArtifactStoreError("the stored bytes do not fit their entity")
            with file_failures("try again"):
                return os.pread(descriptor, max_bytes, offset), length
        finally:
            os.close(descriptor)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self._uploads.sweep()


def _select(reading: ReadResult, version: str | None) -> VersionView:
    """Return the active head that `version` names, or the only head."""
    active = [view for view in reading.variants if view.value_json is not None]
    if version is not None:
        active = [view for view in active if view.version == version]
    elif len(reading.variants) > 1:
        raise VersionConflictError(
            "the artifact has several versions; name one",
            current_versions=[VersionId(view.version) for view in reading.variants],
        )
    if not active:
        raise NotFoundError("no such version of the artifact is current")
    return active[0]
