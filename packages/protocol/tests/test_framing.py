from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchouli.protocol import MAX_REQUEST_BYTES, LineDecoder, Oversized, encode_line

LIMIT = 8


def decode(*chunks: bytes, limit_bytes: int = LIMIT) -> list[bytes | Oversized]:
    decoder = LineDecoder(limit_bytes)
    events = [event for chunk in chunks for event in decoder.feed(chunk)]
    return events + decoder.eof()


def expected(stream: bytes) -> list[bytes | Oversized]:
    """Cut the whole stream at once, as the contract words it."""
    lines = stream.split(b"\n")
    return [
        line if len(line) <= LIMIT else Oversized(LIMIT)
        for line in lines
        if len(line) > LIMIT or line.strip(b" \t\r")
    ]


@pytest.mark.clause("framing.line")
def test_lines_are_cut_at_line_feeds_and_keep_a_carriage_return() -> None:
    assert decode(b'{"a":1}\n[]\r\n{}\n') == [b'{"a":1}', b"[]\r", b"{}"]


@pytest.mark.clause("framing.last-line")
def test_the_last_line_needs_no_line_feed() -> None:
    assert decode(b"{}\n[", b"1]") == [b"{}", b"[1]"]
    assert decode(b"{}\n \r") == [b"{}"]


@pytest.mark.clause("framing.blank")
@pytest.mark.parametrize("blank", [b"", b" ", b"\r", b"\t \r", b" " * LIMIT])
def test_blank_lines_are_left_out(blank: bytes) -> None:
    assert decode(blank + b"\n{}\n" + blank + b"\n" + blank) == [b"{}"]


@pytest.mark.parametrize("line", [b" {}", b"\x0b", b"\x0c", b"\x00", b"!", b"\xc2\xa0"])
def test_a_line_with_anything_else_is_not_blank(line: bytes) -> None:
    assert decode(line + b"\n") == [line]


@pytest.mark.clause("framing.limit")
def test_the_limit_counts_the_carriage_return_but_not_the_line_feed() -> None:
    assert decode(b"x" * 8 + b"\n") == [b"x" * 8]
    assert decode(b"x" * 7 + b"\r\n") == [b"x" * 7 + b"\r"]
    assert decode(b"x" * 8 + b"\r\n") == [Oversized(LIMIT)]
    assert decode(b"x" * 9 + b"\n") == [Oversized(LIMIT)]
    assert decode(b"x" * 8) == [b"x" * 8]
    assert decode(b"x" * 9) == [Oversized(LIMIT)]


@pytest.mark.clause("framing.limit")
def test_the_default_limit_is_that_of_requests() -> None:
    line = b"x" * 1_048_576

    assert LineDecoder().feed(line + b"\n") == [line]
    assert LineDecoder().feed(line + b"x\n") == [Oversized(MAX_REQUEST_BYTES)]


@pytest.mark.clause("framing.oversized")
def test_an_oversized_line_is_reported_once_in_its_place() -> None:
    assert decode(b"{}\n" + b"x" * 100 + b"\n[]\n") == [b"{}", Oversized(LIMIT), b"[]"]
    assert decode(b"{}\nxxxxx", b"xxxxx", b"xxxxx", b"xx\n[", b"]\n") == [
        b"{}",
        Oversized(LIMIT),
        b"[]",
    ]
    assert decode(b" " * 9 + b"\n{}") == [Oversized(LIMIT), b"{}"]


@pytest.mark.clause("framing.oversized")
def test_an_oversized_line_is_reported_as_soon_as_it_has_passed_the_limit() -> None:
    decoder = LineDecoder(LIMIT)

    assert decoder.feed(b"x" * 8) == []
    assert decoder.feed(b"x") == [Oversized(LIMIT)]
    assert decoder.feed(b"x" * 50) == []
    assert decoder.eof() == []


@pytest.mark.clause("framing.oversized")
def test_a_line_without_end_is_not_kept() -> None:
    decoder = LineDecoder()
    chunk = b"x" * 65_536
    most = 0
    events: list[bytes | Oversized] = []

    for _ in range(1600):  # 100 MiB
        events += decoder.feed(chunk)
        most = max(most, decoder.held_bytes)

    assert events == [Oversized(MAX_REQUEST_BYTES)]
    assert most <= MAX_REQUEST_BYTES
    assert decoder.held_bytes == 0
    assert decoder.feed(b"\n{}\n") == [b"{}"]


def test_a_line_that_comes_byte_by_byte_is_whole() -> None:
    decoder = LineDecoder()
    line = b"0123456789" * 10_000

    events = [event for byte in line for event in decoder.feed(bytes([byte]))]

    assert events == []
    assert decoder.held_bytes == len(line)
    assert decoder.feed(b"\n") == [line]
    assert decoder.held_bytes == 0


def test_nothing_is_held_between_lines() -> None:
    decoder = LineDecoder()

    assert decoder.feed(b"") == []
    assert decoder.feed(b"{}\n") == [b"{}"]
    assert decoder.held_bytes == 0


def test_a_decoder_can_be_used_again_after_the_end() -> None:
    decoder = LineDecoder(LIMIT)
    decoder.feed(b"x" * 20)

    assert decoder.eof() == []
    assert decoder.feed(b"{}\n") == [b"{}"]


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="limit_bytes"):
        LineDecoder(0)


@given(st.lists(st.sampled_from([b"\n", b"\r", b" ", b"a", b"bcd", b"e" * 7, b"f" * 9])), st.data())
def test_the_events_do_not_depend_on_how_the_stream_arrives(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [
        stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
    ]

    assert decode(*chunks) == expected(stream)


@given(st.lists(st.binary(max_size=12)))
def test_arbitrary_bytes_are_cut_like_the_contract_says(chunks: list[bytes]) -> None:
    assert decode(*chunks) == expected(b"".join(chunks))


def test_a_message_is_one_line_of_utf8() -> None:
    line = encode_line({"text": "a\nb\r\u2028\u00e4\N{GRINNING FACE}\x00"})

    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"text": "a\nb\r\u2028\u00e4\N{GRINNING FACE}\x00"}
    assert "\u00e4".encode() in line


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", [float("-inf")]])
def test_what_json_cannot_say_is_not_sent(value: float | str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the standard library, without a fixed text
        encode_line({"value": value})
