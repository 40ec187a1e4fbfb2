"""`patchouli.protocol.handshake@1`: what the client says of itself, and what the daemon answers."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from patchouli.protocol import CAPABILITIES, PROTOCOL_VERSION
from patchouli.storage_client.answers import member
from patchouli.storage_client.errors import MalformedAnswerError, ProtocolVersionError

if TYPE_CHECKING:
    from patchouli.protocol import JsonObject

CLIENT_NAME: Final = "patchouli-storage-client"
CLIENT_VERSION: Final = "0.1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """Which daemon answers."""

    version: str
    cluster_id: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What the daemon accepts and how long it remembers."""

    max_request_bytes: int
    max_artifact_chunk_bytes: int
    max_result_items: int
    idempotency_retention_seconds: int
    change_retention_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What holds on a connection, as the handshake has settled it."""

    protocol_version: int
    server: ServerIdentity
    capabilities: frozenset[str]
    limits: ServerLimits

    @property
    def node_id(self) -> str:
        """The node that answers; the same as `server.node_id`."""
        return self.server.node_id


def handshake_params() -> JsonObject:
    """Return the parameters of a handshake, with a name of its own for the connection."""
    return {
        "client": {
            "name": CLIENT_NAME,
            "version": CLIENT_VERSION,
            "instance_id": str(uuid.UUID(bytes=os.urandom(16), version=4)),
        },
        "protocol_versions": [PROTOCOL_VERSION],
        "capabilities": list(CAPABILITIES),
    }


def read_handshake(result: JsonObject) -> ServerInfo:
    """Return what the daemon has answered; members that this version does not know are ignored.

    Raises:
        ProtocolVersionError: It is about another version of the protocol.
        MalformedAnswerError: Something is missing or of the wrong kind.
    """
    version = result.get("protocol_version")
    if type(version) is not int or version != PROTOCOL_VERSION:
        raise ProtocolVersionError(version)
    capabilities = cast("list[object]", member(result, "/capabilities", list))
    return ServerInfo(
        protocol_version=version,
        server=ServerIdentity(
            version=member(result, "/server/version", str),
            cluster_id=member(result, "/server/cluster_id", str),
            node_id=member(result, "/server/node_id", str),
        ),
        capabilities=frozenset(map(str, capabilities)),
        limits=ServerLimits(
            max_request_bytes=_count(result, "max_request_bytes", least=1),
            max_artifact_chunk_bytes=_count(result, "max_artifact_chunk_bytes", least=1),
            max_result_items=_count(result, "max_result_items", least=1),
            idempotency_retention_seconds=_count(result, "idempotency_retention_seconds"),
            change_retention_seconds=_count(result, "change_retention_seconds"),
        ),
    )


def _count(result: JsonObject, name: str, *, least: int = 0) -> int:
    value = member(result, f"/limits/{name}", int)
    if value < least:
        raise MalformedAnswerError(f"the {name} of the handshake is {value}")
    return value
