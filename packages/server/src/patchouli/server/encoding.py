"""Lines of answers, made by putting texts into place.

A value leaves the store as the text that was stored and is not parsed on its way out: what the
engine answers with turns itself into JSON around it, and a line is a frame of literals around that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
from patchouli.protocol import encode_chunk

if TYPE_CHECKING:
    from patchouli.backend import (
        DownloadResult,
        ReadResult,
        RetrieveResult,
    )
    from patchouli.protocol import JsonObject, RequestId, RpcError


def meta_json(meta: JsonObject) -> bytes:
    """Return the `meta` of a result; most are empty."""
    return orjson.dumps(meta) if meta else b"{}"


def read_json(result: ReadResult) -> bytes:
    """Return the `result` of read."""
    return b'{"meta":%b,"data":{"state":"%b","variants":[%b]}}' % (
        meta_json(result.meta),
        result.state.encode(),
        b",".join([variant.to_json() for variant in result.variants]),
    )


def retrieve_json(result: RetrieveResult) -> bytes:
    """Return the `result` of retrieve."""
    hits = (
        b'{"score":%b,"variants":[%b]}'
        % (orjson.dumps(hit.score), b",".join([variant.to_json() for variant in hit.variants]))
        for hit in result.hits
    )
    return b'{"meta":%b,"data":{"hits":[%b]}}' % (meta_json(result.meta), b",".join(hits))


def download_json(result: DownloadResult) -> bytes:
    """Return the `result` of download."""
    return (
        b'{"meta":%b,"data":{"entity":%b,"offset":%d,"next_offset":%d,"eof":%b,"bytes_base64":"%b"}}'
        % (
            meta_json(result.meta),
            result.entity.to_json(),
            result.offset,
            result.next_offset,
            b"true" if result.is_end else b"false",
            encode_chunk(result.data).encode(),
        )
    )


def data_json(data: JsonObject) -> bytes:
    """Return a `result` without metadata."""
    return b'{"meta":{},"data":%b}' % orjson.dumps(data)


def result_line(request_id: RequestId, result: bytes) -> bytes:
    """Return the line that answers a request with `result`."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (orjson.dumps(request_id), result)


def error_line(request_id: RequestId | None, error: RpcError) -> bytes:
    """Return the line that answers a request with an error; without an id it answers the line."""
    return orjson.dumps(error.response(request_id)) + b"\n"


def notification_line(method: str, data: JsonObject) -> bytes:
    """Return the line of a notification without metadata."""
    return (
        orjson.dumps({"jsonrpc": "2.0", "method": method, "params": {"meta": {}, "data": data}})
        + b"\n"
    )
