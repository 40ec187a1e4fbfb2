from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.protocol import (
    DOWNLOAD_CHUNK,
    MAX_CHUNK_BYTES,
    METHODS,
    ErrorCode,
    RpcError,
    decode_chunk,
    encode_chunk,
)


@pytest.mark.clause("artifact.base64")
@given(st.binary(min_size=1))
def test_bytes_come_back_from_their_canonical_spelling(data: bytes) -> None:
    assert encode_chunk(data) == base64.b64encode(data).decode()
    assert decode_chunk(encode_chunk(data)) == data


@pytest.mark.clause("artifact.base64")
@given(st.text("QUJR=+/-_ \n", min_size=1, max_size=9))
def test_every_other_spelling_is_refused(text: str) -> None:
    try:
        data = base64.b64decode(text, validate=True)
        is_canonical = bool(data) and base64.b64encode(data).decode() == text
    except ValueError:
        is_canonical = False

    if is_canonical:
        assert decode_chunk(text) == data
    else:
        refuse(text)


@pytest.mark.clause("artifact.base64")
@pytest.mark.parametrize(
    "text",
    [
        "QR==",  # bits that belong to no byte
        "QUJ=",
        "QQ",  # no padding
        "QQ=",
        "QQ===",
        "====",
        "QUJD\n",
        "QU JD",
        "Q-_D",  # the alphabet of URLs
        "QUJD=",
        "QQ==QQ==",
        "\u00c4UJD",
        "\ud800UJD",
    ],
)
def test_hostile_spellings_are_refused(text: str) -> None:
    refuse(text)


@pytest.mark.clause("artifact.base64")
def test_a_chunk_has_at_most_524288_bytes() -> None:
    assert decode_chunk(encode_chunk(bytes(MAX_CHUNK_BYTES))) == bytes(524_288)
    refuse(encode_chunk(bytes(MAX_CHUNK_BYTES + 1)))


@pytest.mark.clause("artifact.download.order")
def test_the_range_of_max_bytes_is_left_to_the_download() -> None:
    def parse(max_bytes: int) -> object:
        data = {"id": "plan-1", "offset": 0, "max_bytes": max_bytes}
        return METHODS[DOWNLOAD_CHUNK].parse_params({"meta": {}, "data": data})

    for max_bytes in (0, 1, MAX_CHUNK_BYTES + 1, 2**64 - 1):
        assert parse(max_bytes).data.max_bytes == max_bytes
    with pytest.raises(RpcError):
        parse(-1)


def refuse(text: str) -> None:
    with pytest.raises(RpcError) as caught:
        decode_chunk(text)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
