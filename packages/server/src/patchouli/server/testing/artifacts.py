"""Artifacts for tests: metadata that is valid, and an upload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from patchouli.protocol import UPLOAD_BEGIN, UPLOAD_CHUNK, UPLOAD_COMMIT, encode_chunk
from patchouli.server.testing.memos import params

if TYPE_CHECKING:
    from patchouli.server.testing.peer import Peer

ARTIFACT_METADATA: Final[dict[str, Any]] = {
    "core": {
        "schema": "patchouli.artifact@1",
        "scope": {"tenant": None, "workspace": "atlas", "user": None, "session": None},
        "origin": {
            "provider": None,
            "binding": None,
            "native_type": None,
            "native_id": None,
            "native_revision": None,
        },
        "time": {
            "event_at": None,
            "source_created_at": None,
            "source_updated_at": None,
            "observed_at": "2031-03-02T09:20:00Z",
            "ingested_at": "2031-03-02T09:20:03Z",
        },
        "lifecycle": {"status": "active", "expires_at": None},
        "provenance": [],
    },
    "extensions": {},
}


def beginning(**more: Any) -> dict[str, Any]:
    """Return the `data` of the begin of an upload; `more` replaces members."""
    return {
        "media_type": "application/octet-stream",
        "name": None,
        "expected_byte_length": None,
        "expected_digest": None,
        "metadata": ARTIFACT_METADATA,
        **more,
    }


async def upload(peer: Peer, content: bytes, *, size: int = 524_288, **more: Any) -> dict[str, Any]:
    """Upload `content` in chunks of `size` bytes and return its entity."""
    begun = await peer.result(UPLOAD_BEGIN, params(beginning(**more)))
    upload_id = begun["data"]["upload_id"]
    for offset in range(0, len(content), size):
        chunk = {
            "upload_id": upload_id,
            "offset": offset,
            "bytes_base64": encode_chunk(content[offset : offset + size]),
        }
        await peer.result(UPLOAD_CHUNK, params(chunk))
    committed = await peer.result(UPLOAD_COMMIT, params({"upload_id": upload_id}))
    return committed["data"]["entity"]
