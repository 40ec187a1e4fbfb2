"""The query language: what a text asks for, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from patchouli.backend import InvalidRequestError, Limits
from patchouli.backend.retrieval import CursorSeal, parse_instruction
from patchouli.provider import EntityKey, Filter, Hit, Operator, Order, ScopeText

LIMITS = Limits()
SCOPE = ScopeText('{"team":"north"}')


def parsed(**members: Any):
    return parse_instruction(json.dumps(members), LIMITS)


def refusal(query: str, limits: Limits = LIMITS) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_instruction(query, limits)
    return caught.value


def test_the_empty_object_lists_newest_first():
    instruction = parse_instruction("{}", LIMITS)

    assert instruction.text is None
    assert instruction.ids is None
    assert instruction.filters == ()
    assert instruction.order is Order.NEWEST
    assert instruction.cursor is None


def test_text_is_trimmed_and_ordered_by_relevance():
    instruction = parsed(text="  red apple\n")

    assert instruction.text == "red apple"
    assert instruction.order is Order.RELEVANCE


def test_ids_are_a_set_and_any_non_empty_string_is_one():
    assert parsed(ids=["b", " ", "\0"]).ids == frozenset({"b", " ", "\0"})


def test_an_empty_where_has_no_conditions():
    assert parsed(where={}).filters == ()


@pytest.mark.parametrize("literal", [1, "x", None, [1], {}, {"a": 1}, {"a": 1, "b": 2}])
def test_a_bare_condition_is_equality(literal: Any):
    (condition,) = parsed(where={"/a": literal}).filters

    assert condition.operator is Operator.EQUAL
    assert json.loads(condition.operand_json) == literal


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("$eq", Operator.EQUAL),
        ("$ne", Operator.NOT_EQUAL),
        ("$lt", Operator.LESS),
        ("$lte", Operator.LESS_OR_EQUAL),
        ("$gt", Operator.GREATER),
        ("$gte", Operator.GREATER_OR_EQUAL),
        ("$contains", Operator.CONTAINS),
    ],
)
def test_each_operator_has_its_meaning(name: str, operator: Operator):
    assert parsed(where={"/a~1b": {name: 2}}).filters == (
        Filter(pointer="/a~1b", operator=operator, operand_json="2"),
    )


def test_several_operators_in_one_condition_all_hold():
    assert parsed(where={"/rank": {"$lt": 5, "$gte": 1}}).filters == (
        Filter(pointer="/rank", operator=Operator.GREATER_OR_EQUAL, operand_json="1"),
        Filter(pointer="/rank", operator=Operator.LESS, operand_json="5"),
    )


def test_an_object_operand_is_canonical():
    (condition,) = parsed(where={"/a": {"$eq": {"b": 1.0, "a": [True]}}}).filters

    assert condition.operand_json == '{"a":[true],"b":1.0}'


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("red apple", "data/query"),
        ("", "data/query"),
        ("[]", "data/query"),
        ('"{}"', "data/query"),
        ("{} {}", "data/query"),
        ("NaN", "data/query"),
        ('{"where":{"/a":1e999}}', "data/query"),
        ('{"where":{"/a":18446744073709551616}}', "data/query"),
        (r'{"text":"\ud800"}', "data/query"),
        ('{"limit":5}', "data/query"),
        ('{"text":null}', "data/query/text"),
        ('{"text":7}', "data/query/text"),
        ('{"text":" \\t "}', "data/query/text"),
        ('{"ids":null}', "data/query/ids"),
        ('{"ids":[]}', "data/query/ids"),
        ('{"ids":[""]}', "data/query/ids"),
        ('{"ids":[1]}', "data/query/ids"),
        ('{"ids":["a","a"]}', "data/query/ids"),
        ('{"where":null}', "data/query/where"),
        ('{"where":[]}', "data/query/where"),
        ('{"where":{"":1}}', "data/query/where"),
        ('{"where":{"a":1}}', "data/query/where"),
        ('{"where":{"/a~2":1}}', "data/query/where"),
        ('{"where":{"/a":{"$regex":"x"}}}', "data/query/where"),
        ('{"where":{"/a":{"$gte":1,"$nor":2}}}', "data/query/where"),
        ('{"where":{"/a":{"$gte":1,"b":2}}}', "data/query/where"),
        ('{"where":{"/a":{"b":2,"$gte":1}}}', "data/query/where"),
        ('{"order":null}', "data/query/order"),
        ('{"order":"sideways"}', "data/query/order"),
        ('{"order":["newest"]}', "data/query/order"),
        ('{"order":"relevance"}', "data/query/order"),
        ('{"cursor":null}', "data/query/cursor"),
        ('{"cursor":7}', "data/query/cursor"),
    ],
)
def test_what_the_language_does_not_have_is_refused_with_its_place(query: str, pointer: str):
    error = refusal(query)

    assert error.reason == "INVALID_REQUEST"
    assert error.pointer == pointer


def test_the_query_may_nest_as_deep_as_a_request_of_its_own():
    deepest = '{"where":{"/a":' + "[" * 125 + "]" * 125 + "}}"

    assert parse_instruction(deepest, LIMITS).filters
    assert refusal(deepest.replace("[]", "[[]]")).pointer == "data/query"


def test_ids_and_conditions_are_bounded():
    limits = Limits(max_ids=2, max_conditions=2)

    assert parse_instruction('{"ids":["a","b"],"where":{"/a":{"$gt":1,"$lt":3}}}', limits).filters
    assert refusal('{"ids":["a","b","c"]}', limits).pointer == "data/query/ids"
    assert refusal('{"where":{"/a":{"$gt":1,"$lt":3},"/b":1}}', limits).pointer == (
        "data/query/where"
    )


# Cursors


def sealed(secret: bytes = b"s" * 32, *, scope: str = SCOPE, types: Any = ("memo",), **query: Any):
    return CursorSeal(secret, parsed(**query), scope=ScopeText(scope), types=types)


HIT = Hit(
    key=EntityKey(SCOPE, "memo", "m-1 é"),
    heads=(),
    score=0.1,
    recorded_at_unix_ms=1_700_000_000_123,
)


def test_a_cursor_leads_back_to_the_place_of_its_hit():
    seal = sealed(text="ferns")

    position = seal.position(seal.cursor_after(HIT))

    assert (position.score, position.recorded_at_unix_ms) == (0.1, 1_700_000_000_123)
    assert (position.type, position.id) == ("memo", "m-1 é")


def test_a_cursor_is_short_and_safe_in_an_address():
    cursor = sealed(text="ferns").cursor_after(HIT)

    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert "memo" not in cursor


@pytest.mark.parametrize(
    "other",
    [
        sealed(text="fern"),
        sealed(text="ferns", order="newest"),
        sealed(text="ferns", ids=["m-1"]),
        sealed(text="ferns", where={"/a": 1}),
        sealed(text="ferns", types=("memo", "note")),
        sealed(text="ferns", scope='{"team":"south"}'),
        sealed(b"t" * 32, text="ferns"),
    ],
    ids=["text", "order", "ids", "where", "types", "scope", "database"],
)
def test_a_cursor_of_another_query_is_refused(other: CursorSeal):
    cursor = sealed(text="ferns").cursor_after(HIT)

    with pytest.raises(InvalidRequestError) as caught:
        other.position(cursor)

    assert caught.value.pointer == "data/query/cursor"


def test_equal_queries_share_cursors_however_they_are_written():
    written = sealed(where={"/b": {"$lt": 3, "$gt": 1}, "/a": 1}, ids=["x", "y"])
    rewritten = sealed(where={"/a": {"$eq": 1}, "/b": {"$gt": 1, "$lt": 3}}, ids=["y", "x"])

    assert rewritten.position(written.cursor_after(HIT)).id == "m-1 é"


def test_no_character_of_a_cursor_can_be_changed():
    seal = sealed(text="ferns")
    cursor = seal.cursor_after(HIT)
    changed = [
        cursor[:place] + ("A" if cursor[place] != "A" else "B") + cursor[place + 1 :]
        for place in range(len(cursor) - 1)  # the last one may carry unused bits
    ]

    for attempt in [*changed, cursor + "AAAA", cursor[:20], "", "é", "not base64!", "\0"]:
        with pytest.raises(InvalidRequestError):
            seal.position(attempt)
