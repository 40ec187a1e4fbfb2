"""A connection that uploads one artifact after the other, and what must be there afterwards."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from patchouli.protocol import (
    CREATE,
    DOWNLOAD_CHUNK,
    UPLOAD_BEGIN,
    UPLOAD_CHUNK,
    UPLOAD_COMMIT,
    ErrorCode,
    decode_chunk,
    encode_chunk,
)
from patchouli.server.testing import ARTIFACT_METADATA, Peer

from tests.crash.account import Key, meta_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.account import Account

_USER = "mira"


async def upload_until_cut_off(endpoint: Path, account: Account) -> None:
    """Upload until the connection ends; every third content is one that was uploaded before.

    A daemon that stops refuses what is asked of it and then ends the connection.
    """
    number_of_peer = account.new_peer()
    try:
        async with await Peer.connect(endpoint, capabilities=["artifacts"]) as peer:
            for number in count():
                content = f"artifact {number_of_peer} {number // 3 * 3} ".encode() * 500
                await _upload(peer, account, number_of_peer, content)
    except (EOFError, ConnectionError):
        return


async def _upload(peer: Peer, account: Account, number_of_peer: int, content: bytes) -> None:
    key = Key(_USER, "artifact", f"a-{number_of_peer}-{len(account.attempts)}")
    meta = meta_of(_USER)
    begin = {
        "id": key.id,
        "media_type": "text/plain",
        "name": None,
        "metadata": ARTIFACT_METADATA,
    }
    begun = await _result(peer, UPLOAD_BEGIN, {"meta": meta, "data": begin})
    if begun is None:
        return
    upload = {"upload_id": begun["data"]["upload_id"]}
    half = len(content) // 2
    for offset in (0, half):
        chunk = {"offset": offset, "bytes_base64": encode_chunk(content[offset : offset + half])}
        data = {**upload, **chunk}
        if await _result(peer, UPLOAD_CHUNK, {"meta": meta, "data": data}) is None:
            return
    attempt = account.attempt(number_of_peer, CREATE, key)
    meta = meta_of(_USER, attempt=attempt.number)
    answer = await peer.call(UPLOAD_COMMIT, {"meta": meta, "data": upload})
    account.settle(attempt, answer)
    if attempt.version is not None:
        account.uploaded[key] = content


async def _result(peer: Peer, method: str, params: object) -> dict[str, Any] | None:
    """Return the `result` of a call, or None if it was refused because the daemon stops."""
    answer = await peer.call(method, params)
    if "result" not in answer:
        assert answer["error"]["code"] == ErrorCode.OVERLOADED, answer
    return answer.get("result")


async def check_uploads(endpoint: Path, account: Account) -> None:
    """Return if the bytes of every acknowledged artifact can be downloaded."""
    async with await Peer.connect(endpoint, capabilities=["artifacts"]) as peer:
        for key, content in account.uploaded.items():
            data: dict[str, Any] = {"id": key.id, "version": None, "offset": 0}
            found = await peer.result(
                DOWNLOAD_CHUNK,
                {"meta": meta_of(key.user), "data": {**data, "max_bytes": len(content) + 1}},
            )
            assert found["data"]["eof"] is True
            assert decode_chunk(found["data"]["bytes_base64"]) == content, f"{key} has other bytes"
