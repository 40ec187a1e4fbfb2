"""Artifacts in chunks: what is sent next, and whether what came is what was asked for.

No I/O: the asyncio client and the façade both walk through it, each in its own way.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from patchouli.storage_client.errors import ArtifactChangedError, MalformedAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from patchouli.protocol import JsonObject
    from patchouli.storage_client.shapes import (
        DownloadChunkResult,
        Params,
        UploadBegunResult,
        UploadChunkResult,
    )

Bytes: TypeAlias = bytes | bytearray | memoryview


class Upload:
    """An upload under way: holds what the daemon has not taken yet, about one chunk."""

    def __init__(self, params: Params, begun: UploadBegunResult) -> None:
        """Take the parameters and the answer of the begin.

        Raises:
            MalformedAnswerError: The answer names no upload.
        """
        data: dict[str, Any] = dict(begun["data"])
        self._meta: Final[JsonObject] = params["meta"]
        upload_id, chunk_bytes = data.get("upload_id"), data.get("max_chunk_bytes")
        if type(upload_id) is not str or type(chunk_bytes) is not int or chunk_bytes < 1:
            raise MalformedAnswerError("the answer to the begin names no upload")
        self._upload_id: Final = upload_id
        self._chunk_bytes: Final = chunk_bytes
        self._held: Final = bytearray()
        self._offset = 0
        self._sent = 0

    def slices(self, data: Bytes) -> Iterator[memoryview]:
        """Yield `data` in pieces that are not copied."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), self._chunk_bytes):
            yield view[start : start + self._chunk_bytes]

    def take(self, piece: Bytes) -> None:
        """Hold some more bytes; whoever gives them sends the full chunks before the next."""
        self._held.extend(piece)

    def chunk(self, *, is_last: bool = False) -> Params | None:
        """Return the parameters of the next chunk, or None if there are not enough bytes.

        What is left when no more bytes come is enough, however little it is.
        """
        size = min(len(self._held), self._chunk_bytes)
        if size == 0 or not (is_last or size == self._chunk_bytes):
            return None
        self._sent = size
        return {
            "meta": self._meta,
            "data": {
                "upload_id": self._upload_id,
                "offset": self._offset,
                "bytes_base64": base64.b64encode(memoryview(self._held)[:size]).decode("ascii"),
            },
        }

    def advance(self, answer: UploadChunkResult) -> None:
        """Go on where the daemon says.

        Raises:
            MalformedAnswerError: It has taken nothing, or more than it was sent.
        """
        following: Any = dict(answer["data"]).get("next_offset")
        if type(following) is not int or not self._offset < following <= self._offset + self._sent:
            raise MalformedAnswerError(
                f"the upload makes no progress: {following!r} follows offset {self._offset}"
            )
        del self._held[: following - self._offset]
        self._offset = following

    @property
    def commit(self) -> Params:
        """The parameters of the commit."""
        return {"meta": self._meta, "data": {"upload_id": self._upload_id}}


class Download:
    """A download under way, of one version from the first answer on."""

    def __init__(
        self, meta: JsonObject, artifact_id: str, version: str | None, chunk_bytes: int
    ) -> None:
        self._meta: Final = meta
        self._id: Final = artifact_id
        self._version = version
        self._chunk_bytes: Final = chunk_bytes
        self._offset = 0
        self.is_complete = False

    def request(self) -> Params:
        """Return the parameters of the next chunk."""
        data: JsonObject = {
            "id": self._id,
            "offset": self._offset,
            "max_bytes": self._chunk_bytes,
        }
        if self._version is not None:
            data["version"] = self._version
        return {"meta": self._meta, "data": data}

    def advance(self, answer: DownloadChunkResult) -> bytes:
        """Return the bytes of an answer and go on behind them.

        Raises:
            ArtifactChangedError: They are of another version.
            MalformedAnswerError: They are not those that were asked for.
        """
        data: dict[str, Any] = dict(answer["data"])
        entity: dict[str, Any] = dict(data.get("entity") or {})
        version: object = entity.get("version")
        if type(version) is not str:
            raise MalformedAnswerError("the chunk names no version")
        if self._version is None:
            self._version = version
        elif version != self._version:
            raise ArtifactChangedError(self._version, version)
        try:
            content = base64.b64decode(data.get("bytes_base64", ""), validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise MalformedAnswerError("the bytes of the chunk are not Base64") from error
        offset, following, is_end = data.get("offset"), data.get("next_offset"), data.get("eof")
        if offset != self._offset or following != self._offset + len(content):
            raise MalformedAnswerError(
                f"the chunk goes from {offset!r} to {following!r}, "
                f"not from {self._offset} to {self._offset + len(content)}"
            )
        if type(is_end) is not bool or (not is_end and not content):
            raise MalformedAnswerError("the download makes no progress")
        self._offset += len(content)
        self.is_complete = is_end
        return content
