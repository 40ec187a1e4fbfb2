"""`patchouli.protocol.handshake@1`: who speaks, which version, which capabilities, what limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from patchouli.protocol.constants import CAPABILITIES, PROTOCOL_VERSION, Capability
from patchouli.protocol.errors import ErrorCode, RpcError
from patchouli.protocol.shapes import (
    Array,
    NonEmpty,
    Positive,
    Unique,
    Unsigned,
)
from pydantic import BaseModel, ConfigDict, Field


class _Open(BaseModel):
    """An object of the handshake: members that this version does not know are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, defer_build=True)


class HandshakeClient(_Open):
    """Who connects; for people and logs, nothing is decided by it."""

    name: NonEmpty
    version: NonEmpty
    instance_id: NonEmpty


class HandshakeParams(_Open):
    """What the client speaks and wants."""

    client: HandshakeClient
    protocol_versions: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65535)], ...],
        Array(),
        Field(min_length=1),
        Unique(),
    ]
    capabilities: Annotated[
        tuple[str, ...],
        Array(),
        Unique(),
    ]


class HandshakeServer(_Open):
    """Which process answers; the two ids imply no replication."""

    version: NonEmpty
    cluster_id: NonEmpty
    node_id: NonEmpty


class ServerLimits(_Open):
    """What the server accepts and how long it remembers."""

    max_request_bytes: Positive
    max_artifact_chunk_bytes: Positive
    max_result_items: Positive
    idempotency_retention_seconds: Unsigned
    change_retention_seconds: Unsigned


class HandshakeResult(_Open):
    """What holds on this connection from now on."""

    protocol_version: Literal[1]
    server: HandshakeServer
    capabilities: Annotated[tuple[str, ...], Array()]
    limits: ServerLimits


def negotiate(
    params: HandshakeParams, *, offered: Sequence[Capability] = CAPABILITIES
) -> tuple[Capability, ...]:
    """Return the offered capabilities that the client listed too, in the order of the offer.

    Raises:
        RpcError: UNSUPPORTED_CAPABILITY; the client does not speak protocol version 1.
    """
    if PROTOCOL_VERSION not in params.protocol_versions:
        raise RpcError(
            ErrorCode.UNSUPPORTED_CAPABILITY,
            f"protocol version {PROTOCOL_VERSION} is the only one spoken here",
        )
    return tuple(capability for capability in offered if capability in params.capabilities)
