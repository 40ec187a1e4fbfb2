"""Which operation serves which method: the one place where names meet services."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from patchouli.backend import EntityResult
from patchouli.protocol import (
    CHECKPOINT,
    COMPACT,
    CREATE,
    DELETE,
    DOWNLOAD_CHUNK,
    HANDSHAKE,
    MAX_CHUNK_BYTES,
    READ,
    RETRIEVE,
    SHUTDOWN,
    STATUS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    UPDATE,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    UPLOAD_COMMIT,
)
from patchouli.server.dispatch import Operation
from patchouli.server.encoding import (
    data_json,
    download_json,
    read_json,
    retrieve_json,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.backend import ArtifactService, Engine
    from patchouli.protocol import (
        SubscribeParams,
        UnsubscribeParams,
        UploadBeginParams,
        UploadChunkParams,
        UploadCommitParams,
    )
    from patchouli.provider import Clock
    from patchouli.server.control import Control
    from patchouli.server.session import Session

P = TypeVar("P")
R = TypeVar("R")


def operations(
    *, control: Control, engine: Engine, artifacts: ArtifactService, clock: Clock
) -> dict[str, Operation]:
    """Return the operation of every method that a client may call."""
    return {
        HANDSHAKE: Operation(call=control.handshake, is_immediate=True),
        STATUS: Operation(call=control.status, is_immediate=True),
        CHECKPOINT: Operation(call=control.checkpoint),
        COMPACT: Operation(call=control.compact),
        SHUTDOWN: Operation(call=control.shutdown, is_immediate=True),
        **_entity_operations(engine),
        **_change_operations(engine, clock),
        **_artifact_operations(artifacts),
    }


def _entity_operations(engine: Engine) -> dict[str, Operation]:
    return {
        CREATE: Operation(
            call=_without_session(engine.create),
            encode=EntityResult.to_json,
            count_begun=lambda: engine.creates_begun,
        ),
        READ: Operation(call=_without_session(engine.read), encode=read_json, is_immediate=True),
        RETRIEVE: Operation(
            call=_without_session(engine.retrieve), encode=retrieve_json, is_overtakable=True
        ),
        UPDATE: Operation(call=_without_session(engine.update), encode=EntityResult.to_json),
        DELETE: Operation(call=_without_session(engine.delete), encode=EntityResult.to_json),
    }


def _without_session(
    method: Callable[[P], Awaitable[R]],
) -> Callable[[Session, P, int | None], Awaitable[R]]:
    return lambda _session, params, _deadline: method(params)


def _change_operations(engine: Engine, clock: Clock) -> dict[str, Operation]:
    async def subscribe(session: Session, params: SubscribeParams, _: int | None) -> bytes:
        return await session.subscriptions.subscribe(engine, params, now=clock.monotonic())

    async def unsubscribe(session: Session, params: UnsubscribeParams, _: int | None) -> bytes:
        removed = session.subscriptions.unsubscribe(params.data.subscription_id)
        return data_json({"removed": removed})

    return {
        SUBSCRIBE: Operation(call=subscribe),
        UNSUBSCRIBE: Operation(call=unsubscribe, is_immediate=True),
    }


def _artifact_operations(artifacts: ArtifactService) -> dict[str, Operation]:
    async def begin(session: Session, params: UploadBeginParams, _: int | None) -> bytes:
        session.has_uploads = True
        upload_id = await artifacts.begin(session, params)
        return data_json({"upload_id": upload_id, "max_chunk_bytes": MAX_CHUNK_BYTES})

    async def append(session: Session, params: UploadChunkParams, _: int | None) -> bytes:
        return data_json({"next_offset": await artifacts.append(session, params)})

    def commit(
        session: Session, params: UploadCommitParams, _: int | None
    ) -> Awaitable[EntityResult]:
        return artifacts.commit(session, params)

    return {
        UPLOAD_BEGIN: Operation(call=begin),
        UPLOAD_CHUNK: Operation(call=append),
        UPLOAD_COMMIT: Operation(call=commit, encode=EntityResult.to_json),
        DOWNLOAD_CHUNK: Operation(
            call=_without_session(artifacts.download), encode=download_json, is_overtakable=True
        ),
    }
