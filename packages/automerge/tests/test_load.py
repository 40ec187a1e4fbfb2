"""Bytes that `save` did not write: each is refused with a typed error, or means the same."""

from __future__ import annotations

import hashlib
import json
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patchouli.automerge import CorruptDocumentError, Document, LimitExceededError

# How long an example takes is the business of the machine.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

MAGIC = b"\x85\x6f\x4a\x83"


# Documents of other programs, intact: what is at the root is none of ours.
FOREIGN = {
    "another member": (
        "856f4a837316121d0063010107016f65890e0280121b723fd707e51f5d14fd3b75d29b34ae801211"
        "c42a8e3d16a2060102030213022302400256020815072102230234014202560257018001027f007f"
        "017f017f007f007f077f056f746865727f007f01017f017f14017f0000"
    ),
    "bytes": (
        "856f4a83206d834700630101070100a57374e811d49a2537e6fe109925fdd1cad430754e9091d244"
        "9917240669aa060102030213022302400256020815072102230234014202560257018001027f007f"
        "017f017f007f007f077f0576616c75657f007f01017f017f17017f0000"
    ),
    "a counter": (
        "856f4a834a546767006301010701d9ab1dca568b84520dac6c0c94b744a42bd5a31cae259438a417"
        "687bf52b238d060102030213022302400256020815072102230234014202560257018001027f007f"
        "017f017f007f007f077f0576616c75657f007f01017f017f18037f0000"
    ),
}
# 128 lists, each the only element of the one before.
TOO_DEEP = (
    "856f4a83cedde4ef00fd0101010701725cac528ec7d6219553214a417492e6e596aed4e9425a77e7"
    "1214fcb1c0e841060102030213032302400256020a01050283011305150921032303340242035603"
    "8001037f007f017f80017f007f007f070001ff00000001817f0102030405060708090a0b0c0d0e0f"
    "101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f3031323334353637"
    "38393a3b3c3d3e3f404142434445464748494a4b4c4d4e4f505152535455565758595a5b5c5d5e5f"
    "606162636465666768696a6b6c6d6e6f707172737475767778797a7b7c7d7e7f0001ff00007f0576"
    "616c7565007f800100800101017f80010280010080010000"
)


def example() -> Document:
    made = Document.from_json(
        '{"a":[1,2,3,null,null,true],"t":"hello world","m":{"x":1.5,"y":"z"}}', actor=b"one"
    )
    other = made.fork()
    made.replace('{"a":[1,4,3,null],"t":"hello big world","m":{"x":1.5}}', actor=b"two")
    other.replace('{"a":[1,2,3,5,6],"t":"hallo world","m":{"x":2.5,"q":[]}}', actor=b"three")
    made.merge(other)
    return made


GOOD = example()
SAVED = GOOD.save()


def number(value: int) -> bytes:
    """LEB128."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def body_of(saved: bytes) -> bytes:
    at = 9
    while saved[at] & 0x80:
        at += 1
    return saved[at + 1 :]


def chunk(body: bytes, *, kind: int = 0) -> bytes:
    """A chunk whose length and checksum are right, whatever is in it."""
    hashed = bytes([kind]) + number(len(body)) + body
    return MAGIC + hashlib.sha256(hashed).digest()[:4] + hashed


def load_or_refuse(data: bytes) -> Document | None:
    try:
        return Document.load(data)
    except (CorruptDocumentError, LimitExceededError):
        return None


def test_the_chunks_of_these_tests_are_those_of_documents() -> None:
    assert chunk(body_of(SAVED)) == SAVED


def test_every_flipped_bit_is_found() -> None:
    for at in range(len(SAVED)):
        for bit in range(8):
            damaged = bytearray(SAVED)
            damaged[at] ^= 1 << bit
            with pytest.raises(CorruptDocumentError):
                Document.load(bytes(damaged))


def test_every_missing_end_is_found() -> None:
    for length in range(len(SAVED)):
        with pytest.raises(CorruptDocumentError):
            Document.load(SAVED[:length])


@pytest.mark.parametrize("more", [b"\x00", MAGIC, SAVED])
def test_bytes_after_the_document_are_found(more: bytes) -> None:
    with pytest.raises(CorruptDocumentError):
        Document.load(SAVED + more)


@pytest.mark.slow
@settings(RELAXED, max_examples=300)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data: bytes) -> None:
    for candidate in (data, MAGIC + data, chunk(data), chunk(data, kind=1), chunk(data, kind=2)):
        assert load_or_refuse(candidate) is None


@pytest.mark.slow
@settings(RELAXED, max_examples=1_000)
@given(
    st.lists(
        st.tuples(st.integers(0, len(SAVED) - 12), st.integers(0, 3), st.integers(0, 255)),
        min_size=1,
        max_size=3,
    )
)
def test_damage_under_a_right_checksum_is_refused_or_changes_nothing(
    damages: list[tuple[int, int, int]],
) -> None:
    body = bytearray(body_of(SAVED))
    for at, kind, byte in damages:
        at = min(at, len(body) - 1)
        if kind == 0:
            body[at] = byte
        elif kind == 1:
            body[at] ^= 1 << (byte & 7)
        elif kind == 2:
            body.insert(at, byte)
        else:
            del body[at]

    loaded = load_or_refuse(chunk(bytes(body)))

    # Hashes of all changes are computed anew, so no other history can pass for this one.
    if loaded is not None and loaded.heads() == GOOD.heads():
        assert loaded.json() == GOOD.json()


def damaged_so_that_reading_panics() -> bytes:
    """The first single-byte damage that the library answers with a panic."""
    body = body_of(SAVED)
    for at in range(len(body)):
        for byte in (0, 1, 0x7F, 0xFF):
            data = chunk(body[:at] + bytes([byte]) + body[at + 1 :])
            try:
                Document.load(data)
            except CorruptDocumentError as error:
                if error.problem.startswith("panic"):
                    return data
    pytest.fail("no damage makes the library panic; this test has become empty")


def test_a_panic_while_reading_is_an_error_like_any_other(
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = damaged_so_that_reading_panics()

    with ThreadPoolExecutor(4) as threads:
        for loading in [threads.submit(Document.load, data) for _ in range(16)]:
            with pytest.raises(CorruptDocumentError):
                loading.result()

    assert capfd.readouterr().err == ""
    assert Document.load(SAVED).json() == GOOD.json()


@pytest.mark.parametrize("shape", FOREIGN)
def test_a_document_of_another_shape_is_refused(shape: str) -> None:
    data = bytes.fromhex(FOREIGN[shape])
    assert chunk(body_of(data)) == data

    with pytest.raises(CorruptDocumentError):
        Document.load(data)


def test_a_document_nested_too_deep_is_refused() -> None:
    with pytest.raises(LimitExceededError) as refused:
        Document.load(bytes.fromhex(TOO_DEEP))

    assert refused.value.limit == "depth"


def test_the_stored_size_is_bounded() -> None:
    assert Document.load(SAVED, max_bytes=10_000).json() == GOOD.json()
    with pytest.raises(LimitExceededError) as refused:
        Document.load(SAVED, max_bytes=len(SAVED) - 1)
    assert (refused.value.limit, refused.value.maximum) == ("document_bytes", len(SAVED) - 1)


def with_columns(columns: list[tuple[int, bytes]]) -> bytes:
    """A chunk without actors and heads, with these columns of operations."""
    described = b"".join(number(kind) + number(len(data)) for kind, data in columns)
    data = b"".join(data for _, data in columns)
    return chunk(b"\x00\x00\x00" + number(len(columns)) + described + data)


def test_columns_that_unpack_to_too_much_are_refused_before_they_do() -> None:
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(bytes(65 << 20)) + packer.flush()
    assert len(packed) < 1 << 20

    with pytest.raises(LimitExceededError) as refused:
        Document.load(with_columns([(0x57 | 8, packed)]))

    assert refused.value.limit == "document_bytes"


def test_runs_that_stand_for_too_many_operations_are_refused() -> None:
    run = b"\x80\x80\x80\x80\x80\x80\x80\x01" + b"\x01"

    with pytest.raises(LimitExceededError) as refused:
        Document.load(with_columns([(0x21, run), (0x23, run)]))

    assert refused.value.limit == "operations"


def test_a_large_document_is_kept() -> None:
    value = {"list": [None] * 50_000, "text": "語" * 20_000}
    made = Document.from_json(json.dumps(value), actor=b"a")

    assert json.loads(Document.load(made.save()).json()) == value
