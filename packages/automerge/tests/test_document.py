"""Documents: what goes in comes out, histories merge, and each step has one form in bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from patchouli.automerge import (
    ActorReusedError,
    Document,
    InvalidJsonError,
    LimitExceededError,
    UnknownHeadError,
)

# How long an example takes is the business of the machine.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.sampled_from(
        ["", "e\u0301", "👩‍👩‍👧‍👦", "\u200d", "\x00", "🇩🇪🇫🇷", "नमस्ते", "\r\n", "\ufeff"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=25,
)


def document(value: Any, actor: bytes = b"first") -> Document:
    return Document.from_json(json.dumps(value), actor=actor)


def spelled(value: Any) -> str:
    """A text that tells integers, floats and booleans apart, at every depth."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.slow
@settings(RELAXED, max_examples=200)
@given(VALUES)
@example(-0.0)
@example(2**64 - 1)
@example(1.0)
@example({"": {"": [{}]}})
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    made = document(value)
    loaded = Document.load(made.save())

    assert spelled(json.loads(made.json())) == spelled(value)
    assert loaded.json() == made.json()
    assert loaded.heads() == made.heads()


@pytest.mark.slow
@settings(RELAXED, max_examples=200)
@given(VALUES, VALUES)
def test_a_replacement_reads_as_the_new_value(old: Any, new: Any) -> None:
    made = document(old)
    before = made.heads()

    change = made.replace(json.dumps(new), actor=b"second")

    assert json.loads(made.json()) == new
    assert spelled(json.loads(made.json_at(before))) == spelled(old)
    assert made.heads() == ([change] if change else before)
    if spelled(old) == spelled(new):
        assert change is None


@pytest.mark.slow
@settings(RELAXED, max_examples=100)
@given(VALUES, VALUES, VALUES)
def test_merging_commutes_associates_and_repeats(base: Any, one: Any, other: Any) -> None:
    first, second, third = (document(base) for _ in range(3))
    first.replace(json.dumps(one), actor=b"a")
    second.replace(json.dumps(other), actor=b"b")
    third.replace(json.dumps([one, other]), actor=b"c")

    left = first.fork()
    left.merge(second)
    left.merge(third)
    right = third.fork()
    nested = second.fork()
    nested.merge(first)
    right.merge(nested)
    right.merge(first)

    assert left.json() == right.json()
    assert left.heads() == right.heads()
    assert len(left.heads()) <= 3


def test_a_list_that_becomes_shorter_loses_its_end() -> None:
    made = document([1, 2, 3])
    made.replace("[1,2]", actor=b"a")

    assert made.json() == "[1,2]"


def test_concurrent_edits_of_one_text_are_both_there() -> None:
    one, other = document("red apple"), document("red apple")
    one.replace('"red pear"', actor=b"a")
    other.replace('"green apple"', actor=b"b")

    one.merge(other)

    assert one.json() == '"green pear"'
    assert len(one.heads()) == 2


@pytest.mark.scenario(7)
def test_a_change_follows_all_heads() -> None:
    one, other = document([0, 0]), document([0, 0])
    one.replace("[1,0]", actor=b"a")
    other.replace("[0,2]", actor=b"b")
    one.merge(other)
    merged = one.heads()

    change = one.replace("[3,3]", actor=b"c")

    assert len(merged) == 2
    assert one.heads() == [change]
    assert one.json_at(merged) == "[1,2]"


def test_a_replacement_settles_what_two_sides_disagree_on() -> None:
    one, other = document({"n": 0}), document({"n": 0})
    one.replace('{"n":1}', actor=b"a")
    other.replace('{"n":2}', actor=b"b")
    one.merge(other)

    assert one.replace(one.json(), actor=b"c") is not None
    assert one.replace(one.json(), actor=b"d") is None


def test_a_fork_goes_its_own_way() -> None:
    made = document("a")
    fork = made.fork()

    fork.replace('"b"', actor=b"x")

    assert (made.json(), fork.json()) == ('"a"', '"b"')


def test_a_document_merges_with_itself() -> None:
    made = document("a")
    made.merge(made)

    assert made.json() == '"a"'


def test_one_actor_goes_on_where_it_stopped() -> None:
    made = document("a")
    for text in ("ab", "abc", "abcd"):
        made.replace(json.dumps(text), actor=b"first")

    assert Document.load(made.save()).json() == '"abcd"'


def test_one_actor_on_two_branches_is_refused_and_changes_nothing() -> None:
    one, other = document("a"), document("a")
    one.replace('"ab"', actor=b"same")
    other.replace('"ac"', actor=b"same")
    before = one.save()

    with pytest.raises(ActorReusedError) as refused:
        one.merge(other)

    assert refused.value.actor == b"same".hex()
    assert one.save() == before


def test_heads_that_are_no_changes_are_refused() -> None:
    made = document("a")
    for head in ("00" * 32, "not a hash", ""):
        with pytest.raises(UnknownHeadError) as refused:
            made.json_at([*made.heads(), head])
        assert refused.value.head == head
    with pytest.raises(ValueError, match="head"):
        made.json_at([])


@pytest.mark.parametrize("actor", [b"", b"x" * 257])
def test_an_actor_has_some_bytes_and_not_too_many(actor: bytes) -> None:
    with pytest.raises(ValueError, match="actor"):
        Document.from_json("1", actor=actor)
    with pytest.raises(ValueError, match="actor"):
        document(1).replace("2", actor=actor)


def test_json_that_is_none_changes_nothing() -> None:
    made = document("a")
    for text in ("", "[", '"\ud800"', str(2**64), "[" * 127 + "NaN" + "]" * 127):
        with pytest.raises(InvalidJsonError) as refused:
            made.replace(text, actor=b"b")
        assert refused.value.version is None
    with pytest.raises(LimitExceededError):
        made.replace("[" * 128 + "]" * 128, actor=b"b")
    with pytest.raises(LimitExceededError):
        Document.from_json('"' + " " * (4 << 20) + '"', actor=b"b")

    assert made.json() == '"a"'
    assert made.heads() == document("a").heads()


def test_the_deepest_value_is_kept() -> None:
    value = "[" * 126 + '{"k":"v"}' + "]" * 126

    made = Document.from_json(value, actor=b"a")
    made.replace(value.replace('"v"', '"w"'), actor=b"b")

    assert Document.load(made.save()).json() == value.replace('"v"', '"w"')


def test_a_long_text_written_anew_reads_as_the_new_one() -> None:
    old = " ".join(f"old{number}" for number in range(2_000))
    new = " ".join(f"new{number * 7}" for number in range(2_000))
    made = document(old)

    made.replace(json.dumps(new), actor=b"b")

    assert json.loads(made.json()) == new


BUILD = """
import sys
from patchouli.automerge import Document
made = Document.from_json('{"b":"text","a":[1,2.5,null],"c":{"y":"z","x":true}}', actor=b"one")
made.replace('{"b":"a text","a":[1,3],"d":{}}', actor=b"two")
sys.stdout.write(made.save().hex())
"""


def test_every_process_makes_the_same_bytes() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", BUILD],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(outputs) == 1
    assert Document.load(bytes.fromhex(outputs.pop())).json() == ('{"a":[1,3],"b":"a text","d":{}}')
