"""Handshake, status, checkpoint, compaction and shutdown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import orjson
from patchouli.protocol import negotiate
from patchouli.provider import CompactionPlan
from patchouli.server.encoding import data_json
from patchouli.server.version import software_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend import Engine
    from patchouli.protocol import (
        CheckpointParams,
        CompactParams,
        HandshakeParams,
        ShutdownParams,
        StatusParams,
    )
    from patchouli.server.session import Session
    from patchouli.server.settings import Settings


class Control:
    """The methods that are about the daemon itself."""

    def __init__(
        self,
        engine: Engine,
        *,
        settings: Settings,
        started_at_unix_ms: int,
        count_connections: Callable[[], int],
        stop: Callable[[], None],
    ) -> None:
        self._engine: Final = engine
        self._settings: Final = settings
        self._started_at_unix_ms: Final = started_at_unix_ms
        self._count_connections: Final = count_connections
        self._stop: Final = stop
        retention = engine.policy.retention
        self._advertised: Final = {
            "max_request_bytes": settings.limits.max_request_bytes,
            "max_artifact_chunk_bytes": settings.limits.max_artifact_chunk_bytes,
            "max_result_items": settings.limits.max_result_items,
            "idempotency_retention_seconds": retention.idempotency_seconds,
            "change_retention_seconds": retention.changes_seconds,
        }

    async def handshake(self, session: Session, params: HandshakeParams, _: int | None) -> bytes:
        """Agree on capabilities; a later handshake agrees anew, a failing one changes nothing.

        Raises:
            RpcError: UNSUPPORTED_CAPABILITY; the client does not speak our version.
        """
        agreed = negotiate(params)
        session.capabilities = frozenset(agreed)
        session.subscriptions.renegotiate(session.capabilities)
        return orjson.dumps(
            {
                "protocol_version": 1,
                "server": {
                    "version": software_version(),
                    "cluster_id": self._settings.cluster_id,
                    "node_id": self._settings.node_id,
                },
                "capabilities": agreed,
                "limits": self._advertised,
            }
        )

    async def status(self, _session: Session, _params: StatusParams, _: int | None) -> bytes:
        """Tell how this run of the daemon is."""
        runtime = self._engine.runtime
        return data_json(
            {
                "ready": True,
                "provider": self._engine.kind,
                "generation": runtime.generation,
                "recovered_after_unclean_shutdown": runtime.recovered_after_unclean_shutdown,
                "pid": os.getpid(),
                "started_at_unix_ms": self._started_at_unix_ms,
                "active_connections": self._count_connections(),
            }
        )

    async def checkpoint(
        self, _session: Session, _params: CheckpointParams, deadline_unix_ms: int | None
    ) -> bytes:
        """Flush the store; a deadline that passes meanwhile does not undo it."""
        await self._engine.checkpoint(deadline_unix_ms)
        return data_json({"completed": True})

    async def compact(
        self, _session: Session, params: CompactParams, deadline_unix_ms: int | None
    ) -> bytes:
        """Remove some of what is past its retention; a client repeats it while more is due."""
        asked = params.data
        freed = await self._engine.compact(
            CompactionPlan(limit=asked.limit, with_due=asked.with_due),
            deadline_unix_ms=deadline_unix_ms,
        )
        return data_json(
            {
                "changes": freed.changes,
                "idempotency_records": freed.idempotency_records,
                "work_units": freed.units,
                "versions": freed.versions,
                "is_more_due": freed.is_more_due,
                "due": freed.due,
            }
        )

    async def shutdown(self, _session: Session, _params: ShutdownParams, _: int | None) -> bytes:
        """Begin the end; it waits until this answer is written."""
        self._stop()
        return data_json({"accepted": True})
