"""A peer that sends and receives raw lines, so that a test sees exactly what is on the wire."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

HANDSHAKE: Final = "patchouli.protocol.handshake@1"
LINE_LIMIT: Final = 128 * 1024 * 1024
WAIT_SECONDS: Final = 20.0


class Peer:
    """One connection to a daemon; every wait is bounded."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader: Final = reader
        self._writer: Final = writer
        self._count = 0
        self.notifications: Final[list[dict[str, Any]]] = []

    @classmethod
    async def connect(cls, endpoint: Path, *, capabilities: Sequence[str] | None = ()) -> Peer:
        """Return a connected peer, after a handshake unless `capabilities` is None."""
        reader, writer = await asyncio.open_unix_connection(str(endpoint), limit=LINE_LIMIT)
        peer = cls(reader, writer)
        if capabilities is not None:
            await peer.handshake(*capabilities)
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; closing again does nothing."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def handshake(self, *capabilities: str) -> dict[str, Any]:
        """Shake hands and return the result."""
        return await self.result(
            HANDSHAKE,
            {
                "client": {"name": "peer", "version": "1", "instance_id": "peer-1"},
                "protocol_versions": [1],
                "capabilities": list(capabilities),
            },
        )

    def send_bytes(self, data: bytes) -> None:
        """Send `data` as it is."""
        self._writer.write(data)

    def send(
        self, method: str, params: object, *, request_id: str | int | None = None
    ) -> str | int:
        """Send a request and return its id."""
        if request_id is None:
            self._count += 1
            request_id = self._count
        request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        self.send_bytes(json.dumps(request).encode() + b"\n")
        return request_id

    async def drain(self) -> None:
        """Wait until the daemon has taken most of what was sent."""
        await asyncio.wait_for(self._writer.drain(), WAIT_SECONDS)

    def send_eof(self) -> None:
        """Say that nothing more will be sent."""
        self._writer.write_eof()

    def pause_reading(self) -> None:
        """Leave in the socket what the daemon sends, as a peer that does not read."""
        cast("asyncio.ReadTransport", self._writer.transport).pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        cast("asyncio.ReadTransport", self._writer.transport).resume_reading()

    async def receive(self) -> dict[str, Any]:
        """Return the next line, whatever it is.

        Raises:
            EOFError: The daemon closed the connection.
        """
        line = await asyncio.wait_for(self._reader.readline(), WAIT_SECONDS)
        if not line:
            raise EOFError
        if not line.endswith(b"\n"):
            raise AssertionError(f"a line was cut: {line[-80:]!r}")
        return json.loads(line)

    async def response(self) -> dict[str, Any]:
        """Return the next response; notifications before it are kept in `notifications`."""
        while "id" not in (message := await self.receive()):
            self.notifications.append(message)
        return message

    async def notification(self) -> dict[str, Any]:
        """Return the next notification, kept ones first."""
        if self.notifications:
            return self.notifications.pop(0)
        message = await self.receive()
        if "id" in message:
            raise AssertionError(f"this is no notification: {message}")
        return message

    async def call(self, method: str, params: object) -> dict[str, Any]:
        """Send a request and return the next response, which must be the one to it."""
        request_id = self.send(method, params)
        response = await self.response()
        if response["id"] != request_id:
            raise AssertionError(f"this answers another request: {response}")
        return response

    async def result(self, method: str, params: object) -> dict[str, Any]:
        """Return the `result` of a call that must succeed."""
        response = await self.call(method, params)
        if "result" not in response:
            raise AssertionError(f"{method} failed: {response}")
        return response["result"]

    async def error(self, method: str, params: object) -> dict[str, Any]:
        """Return the `error` of a call that must fail."""
        response = await self.call(method, params)
        if "error" not in response:
            raise AssertionError(f"{method} succeeded: {response}")
        return response["error"]

    async def is_closed(self) -> bool:
        """Read to the end; say that nothing came before it."""
        try:
            data = await asyncio.wait_for(self._reader.read(), WAIT_SECONDS)
        except ConnectionError:
            return True
        return data == b""
