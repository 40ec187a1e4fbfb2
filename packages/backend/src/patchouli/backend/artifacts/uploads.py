"""Uploads: begin, chunks, commit.

    begin ──▶ open ──chunks──▶ open ──commit──▶ published ──entity created──▶ done
                │ idle 15 min, connection gone          │ creation failed: commit again
                ▼                                       ▼
             forgotten                            published

An upload belongs to the connection that began it; for any other it does not exist. Its bytes are
hashed as they arrive, so a commit costs a sync and a rename. After success only the answer is kept,
for a while, so that a commit whose answer was lost can be repeated. One lock an upload; none is
held for another one. File work runs on threads; what a bound counts is taken before they begin.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from patchouli.backend.artifacts.library import Digest, append
from patchouli.backend.artifacts.threads import on_thread
from patchouli.backend.errors import (
    EngineError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from patchouli.backend.artifacts.library import ArtifactLibrary
    from patchouli.backend.results import EntityResult
    from patchouli.protocol import UploadBeginData
    from patchouli.provider import Clock, IdSource


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactLimits:
    """Bounds of uploads; what exceeds a count is OVERLOADED, what exceeds a size is refused."""

    artifact_bytes: int = 1 << 30
    uploads: int = 128
    uploads_per_connection: int = 16
    upload_bytes: int = 8 << 30  # of all open uploads together
    idle_seconds: int = 900
    result_seconds: int = 900
    results: int = 1024  # the oldest one goes


@dataclass(slots=True, eq=False, kw_only=True)
class Upload:
    """One upload. `published` and `result` tell its state, see the module."""

    id: str
    connection: object
    data: UploadBeginData
    descriptor: int = -1
    touched: float
    length: int = 0
    room: int = 0  # `length`, or what it becomes when the chunk under way is stored
    last_chunk: tuple[int, bytes] | None = None
    published: Digest | None = None
    result: EntityResult | None = None
    # Any: hashlib names no public type for its objects.
    hasher: Any = field(default_factory=sha256)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class _Done(NamedTuple):
    connection: object
    result: EntityResult
    since: float


class Uploads:
    """The uploads of one daemon, in memory; their bytes are in the library."""

    def __init__(
        self, library: ArtifactLibrary, *, limits: ArtifactLimits, clock: Clock, ids: IdSource
    ) -> None:
        self._library = library
        self._limits = limits
        self._clock = clock
        self._ids = ids
        self._uploads: dict[str, Upload] = {}
        self._done: dict[str, _Done] = {}  # oldest first

    async def begin(self, connection: object, data: UploadBeginData) -> str:
        """Return the id of a new upload.

        Raises:
            OverloadedError: There are as many open uploads as allowed.
            InvalidRequestError: The announced length is over the limit.
            ArtifactStoreError: The file system refuses.
        """
        await self.sweep()
        mine = sum(upload.connection is connection for upload in self._uploads.values())
        if (
            len(self._uploads) >= self._limits.uploads
            or mine >= self._limits.uploads_per_connection
        ):
            raise OverloadedError("too many open uploads; finish one first", retryable=True)
        if (data.expected_byte_length or 0) > self._limits.artifact_bytes:
            raise _too_long(self._limits)
        upload = Upload(
            id=self._ids.entity_id(),
            connection=connection,
            data=data,
            touched=self._clock.monotonic(),
        )
        self._uploads[upload.id] = upload
        async with upload.lock:
            try:
                await on_thread(partial(self._create, upload))
            except BaseException:
                await self._discard(upload)
                raise
        return upload.id

    async def append(self, connection: object, upload_id: str, *, offset: int, data: bytes) -> int:
        """Append `data` and return the bytes received so far.

        The last accepted chunk may be sent again, as after a lost answer, and changes nothing.

        Raises:
            NotFoundError: No such upload on this connection, or it is done.
            InvalidRequestError: It is published, the offset is not its length, or it is too long.
            OverloadedError: There is no room; the upload can go on.
            ArtifactStoreError: The bytes could not be stored; the upload can go on.
        """
        upload = self._require(connection, upload_id)
        async with upload.lock:
            if upload.result is not None:
                raise _unknown()
            if upload.published is not None:
                raise InvalidRequestError("the bytes of this upload are complete; commit it")
            _require_open(upload)
            chunk = (offset, sha256(data).digest())
            if upload.last_chunk == chunk:
                return upload.length
            self._take_room(upload, offset=offset, size=len(data))
            try:
                await on_thread(partial(self._append, upload, data))
            finally:
                upload.room = upload.length
            upload.last_chunk = chunk
            return upload.length

    async def commit(
        self,
        connection: object,
        upload_id: str,
        create: Callable[[Upload, Digest], Coroutine[None, None, EntityResult]],
    ) -> EntityResult:
        """Publish the bytes, then return what `create` makes of them; once done, return it again.

        Raises:
            NotFoundError: No such upload on this connection.
            InvalidRequestError: Length or digest are not the expected ones; the upload stays open.
            OverloadedError: There is no room; unless the bytes were published already, the upload
                is forgotten.
            ArtifactStoreError: The bytes could not be published; the upload is forgotten.
        """
        done = self._done.get(upload_id)
        if done is not None and done.connection is connection:
            return done.result
        upload = self._require(connection, upload_id)
        async with upload.lock:
            if upload.result is not None:
                return upload.result
            if upload.published is None:
                _require_open(upload)
                digest = Digest(upload.hasher.hexdigest())
                _require_expected(upload, digest)
                try:
                    await on_thread(partial(self._publish, upload, digest))
                except EngineError:
                    await self._discard(upload)
                    raise
            assert upload.published is not None  # noqa: S101 -- set on the line above
            upload.result = await create(upload, upload.published)
            self._keep(upload, upload.result)
            return upload.result

    async def drop_connection(self, connection: object) -> None:
        """Forget the uploads of a connection that is gone."""
        for upload in [u for u in self._uploads.values() if u.connection is connection]:
            await self._forget(upload)
        # Last, because a commit that was under way is done only now.
        for upload_id in [i for i, done in self._done.items() if done.connection is connection]:
            del self._done[upload_id]

    async def sweep(self) -> None:
        """Forget uploads that were idle for too long, and answers that were kept long enough."""
        now = self._clock.monotonic()
        while self._done:
            upload_id, done = next(iter(self._done.items()))
            if now - done.since < self._limits.result_seconds:
                break
            del self._done[upload_id]
        for upload in tuple(self._uploads.values()):
            is_idle = now - upload.touched >= self._limits.idle_seconds
            if is_idle and not upload.lock.locked():
                await self._forget(upload)

    async def close(self) -> None:
        """Forget all uploads."""
        for upload in tuple(self._uploads.values()):
            await self._forget(upload)

    def _require(self, connection: object, upload_id: str) -> Upload:
        upload = self._uploads.get(upload_id)
        if upload is None or upload.connection is not connection:
            raise _unknown()
        upload.touched = self._clock.monotonic()
        return upload

    def _keep(self, upload: Upload, result: EntityResult) -> None:
        """Keep nothing of an upload but its answer."""
        del self._uploads[upload.id]
        if upload.published is not None:
            self._library.forget(upload.published)
        self._done[upload.id] = _Done(upload.connection, result, self._clock.monotonic())
        if len(self._done) > self._limits.results:
            del self._done[next(iter(self._done))]

    def _take_room(self, upload: Upload, *, offset: int, size: int) -> None:
        if offset != upload.length:
            raise InvalidRequestError(
                f"the next chunk begins at offset {upload.length}", pointer="data/offset"
            )
        length = offset + size
        expected = upload.data.expected_byte_length
        if expected is not None and length > expected:
            raise InvalidRequestError(f"the upload was announced with {expected} bytes")
        if length > self._limits.artifact_bytes:
            raise _too_long(self._limits)
        taken = sum(u.room for u in self._uploads.values() if u.published is None)
        if taken + size > self._limits.upload_bytes:
            raise OverloadedError("open uploads take all the room there is", retryable=True)
        upload.room = length

    def _create(self, upload: Upload) -> None:
        upload.descriptor = self._library.create_part(upload.id)

    def _append(self, upload: Upload, data: bytes) -> None:
        append(upload.descriptor, data, offset=upload.length)
        upload.hasher.update(data)
        upload.length += len(data)

    def _publish(self, upload: Upload, digest: Digest) -> None:
        self._library.publish(upload.id, upload.descriptor, digest, length=upload.length)
        os.close(upload.descriptor)
        upload.descriptor = -1
        upload.published = digest

    async def _forget(self, upload: Upload) -> None:
        async with upload.lock:
            await self._discard(upload)

    async def _discard(self, upload: Upload) -> None:
        """Forget an upload whose lock is held."""
        was_open = self._uploads.pop(upload.id, None) is not None
        if was_open and upload.published is not None:
            self._library.forget(upload.published)
        if upload.descriptor >= 0:
            os.close(upload.descriptor)
            upload.descriptor = -1
            await on_thread(partial(self._library.remove_part, upload.id))


def _require_open(upload: Upload) -> None:
    """Return if the upload was not forgotten while this request waited for it."""
    if upload.descriptor < 0:
        raise _unknown()


def _require_expected(upload: Upload, digest: Digest) -> None:
    expected_length, expected_digest = upload.data.expected_byte_length, upload.data.expected_digest
    if expected_length is not None and expected_length != upload.length:
        raise InvalidRequestError(
            f"{upload.length} bytes were received and {expected_length} were announced"
        )
    if expected_digest is not None and expected_digest != f"sha256:{digest}":
        raise InvalidRequestError("the bytes do not have the announced digest")


def _too_long(limits: ArtifactLimits) -> InvalidRequestError:
    return InvalidRequestError(f"an artifact has at most {limits.artifact_bytes} bytes")


def _unknown() -> NotFoundError:
    return NotFoundError("no such upload on this connection; begin a new one")
