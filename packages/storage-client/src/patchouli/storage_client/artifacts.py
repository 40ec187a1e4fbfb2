"""Artifacts in chunks: what is sent next, and whether what came is what was asked for.

No I/O: the asyncio client and the façade both walk through it, each in its own way.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, TypeAlias

from patchouli.storage_client.answers import member
from patchouli.storage_client.errors import ArtifactChangedError, MalformedAnswerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
        self._meta: Final = params["meta"]
        self._upload_id: Final = member(begun, "/data/upload_id", str)
        self._chunk_bytes: Final = member(begun, "/data/max_chunk_bytes", int)
        if self._chunk_bytes < 1:
            raise MalformedAnswerError("the daemon takes no bytes at a time")
        self._held: Final = bytearray()
        self._offset = 0
        self._sent = 0

    def chunks(self, data: Bytes) -> Iterator[Params]:
        """Yield the parameters of each chunk that becomes full as `data` is added to what is held.

        The answer to each goes to `advance` before the next is asked for.
        """
        try:
            view = memoryview(data).cast("B")
        except TypeError as error:
            raise TypeError(
                "an artifact is bytes, or pieces of bytes as `open(path, 'rb')` gives them, not "
                f"{type(data).__name__}"
            ) from error
        for start in range(0, len(view), self._chunk_bytes):
            self._held.extend(view[start : start + self._chunk_bytes])
            while len(self._held) >= self._chunk_bytes:
                yield self._chunk()

    def rest(self) -> Iterator[Params]:
        """Yield the parameters of the last chunks, when no more bytes come; as `chunks` does."""
        while self._held:
            yield self._chunk()

    def advance(self, answer: UploadChunkResult) -> None:
        """Go on where the daemon says.

        Raises:
            MalformedAnswerError: It has taken nothing, or more than it was sent.
        """
        following = member(answer, "/data/next_offset", int)
        if not self._offset < following <= self._offset + self._sent:
            raise MalformedAnswerError(
                f"the upload makes no progress: {following} follows offset {self._offset}"
            )
        del self._held[: following - self._offset]
        self._offset = following

    @property
    def commit(self) -> Params:
        """The parameters of the commit."""
        return {"meta": self._meta, "data": {"upload_id": self._upload_id}}

    def _chunk(self) -> Params:
        piece = memoryview(self._held)[: self._chunk_bytes]
        self._sent = len(piece)
        return {
            "meta": self._meta,
            "data": {
                "upload_id": self._upload_id,
                "offset": self._offset,
                "bytes_base64": base64.b64encode(piece).decode("ascii"),
            },
        }


class Download:
    """A download under way, of one version from the first answer on."""

    def __init__(
        self, meta: Mapping[str, object], artifact_id: str, *, version: str | None, chunk_bytes: int
    ) -> None:
        self._meta: Final = meta
        self._id: Final = artifact_id
        self._version = version
        self._chunk_bytes: Final = chunk_bytes
        self._offset = 0
        self.is_complete = False

    def request(self) -> Params:
        """Return the parameters of the next chunk."""
        data: dict[str, object] = {
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
        version = member(answer, "/data/entity/version", str)
        if self._version is None:
            self._version = version
        elif version != self._version:
            raise ArtifactChangedError(self._version, version)
        try:
            content = base64.b64decode(member(answer, "/data/bytes_base64", str), validate=True)
        except ValueError as error:
            raise MalformedAnswerError("the bytes of the chunk are not Base64") from error
        offset = member(answer, "/data/offset", int)
        following = member(answer, "/data/next_offset", int)
        if (offset, following) != (self._offset, self._offset + len(content)):
            raise MalformedAnswerError(
                f"the chunk goes from {offset} to {following}, "
                f"not from {self._offset} to {self._offset + len(content)}"
            )
        is_end = member(answer, "/data/eof", bool)
        if not is_end and not content:
            raise MalformedAnswerError("the download makes no progress")
        self._offset += len(content)
        self.is_complete = is_end
        return content
