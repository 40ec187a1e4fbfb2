"""Joins by example: what each kind of value becomes, and what is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.automerge import (
    InvalidGraphError,
    InvalidJsonError,
    JoinNode,
    LimitExceededError,
    join,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def node(version: str, parents: str, value: Any) -> JoinNode:
    return JoinNode(version=version, parents=tuple(parents), json=json.dumps(value))


def joined(base: Any, *changed: Any, path: str = "/content") -> Any:
    """The join of versions that each changed `base` once."""
    nodes = [node("0", "", base)]
    nodes += [node(str(number), "0", value) for number, value in enumerate(changed, start=1)]
    candidates = [node.version for node in nodes[1:]]
    return json.loads(join(path=path, base="0", nodes=nodes, candidates=candidates))


@pytest.mark.scenario(2)
def test_changes_of_different_words_are_both_there() -> None:
    assert joined("red apple", "red pear", "green apple") == "green pear"


@pytest.mark.scenario(3)
def test_changes_of_different_members_are_both_there() -> None:
    assert joined({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 2}) == {"a": 1, "b": 2}


@pytest.mark.scenario(8)
@pytest.mark.parametrize(
    ("base", "one", "other", "both"),
    [
        ("красное яблоко", "красная груша", "зелёное яблоко", "зелёная груша"),
        ("赤いりんご、甘い", "青いりんご、甘い", "赤いりんご、酸っぱい", "青いりんご、酸っぱい"),
        ("تفاحة حمراء اليوم", "كمثرى حمراء اليوم", "تفاحة حمراء غدا", "كمثرى حمراء غدا"),
        ("नमस्ते दुनिया", "नमस्ते दुनिया!", "हे नमस्ते दुनिया", "हे नमस्ते दुनिया!"),
    ],
)
def test_text_of_any_script_merges(base: str, one: str, other: str, both: str) -> None:
    assert joined(base, one, other) == both


def test_what_looks_like_one_character_is_never_divided() -> None:
    family, couple = "👨‍👩‍👧", "👨‍👩"

    assert joined(f"a {family} b", f"a {couple} b", f"a {family} c") == f"a {couple} c"
    assert joined("e\u0301te", "e\u0300te", "e\u0301ta") == "e\u0300ta"
    assert joined("🇩🇪🇫🇷", "🇩🇪", "🇩🇪🇫🇷!") == "🇩🇪!"


def test_insertions_at_one_place_are_both_there_in_one_order() -> None:
    result = joined("milk", "milk, eggs", "milk, bread")

    assert result.startswith("milk")
    assert "eggs" in result
    assert "bread" in result


def test_what_one_side_deletes_is_gone_though_the_other_edits_beside_it() -> None:
    assert joined("one two three", "one three", "one two three four") == "one three four"


def test_a_text_that_one_side_empties_keeps_what_the_other_inserts() -> None:
    assert joined("abc", "", "abXc") == "X"


def test_equal_edits_count_once() -> None:
    nodes = [node("b", "", "red"), node("x", "b", "red!"), node("y", "b", "red!")]

    assert join(path="", base="b", nodes=nodes, candidates=["x", "y"]) == '"red!"'


def test_an_integer_and_a_float_are_two_contents() -> None:
    assert joined({"n": 0, "m": 0}, {"n": 1, "m": 0}, {"n": 1.0, "m": 0})["n"] == 1
    nodes = [node("b", "", [0]), node("x", "b", [1]), node("y", "b", [1.0])]

    result = join(path="", base="b", nodes=nodes, candidates=["x", "y"])

    assert result in {"[1]", "[1.0]"}


def test_of_two_scalars_one_wins_whatever_the_order_of_arguments() -> None:
    results = {
        join(
            path="/p",
            base="b",
            nodes=[node("b", "", 0), *order],
            candidates=candidates,
        )
        for order in (
            [node("x", "b", 1), node("y", "b", 2)],
            [node("y", "b", 2), node("x", "b", 1)],
        )
        for candidates in (["x", "y"], ["y", "x"], ["x", "y", "x"])
    }

    assert len(results) == 1
    assert results <= {"1", "2"}


def test_the_path_takes_part_in_the_choice() -> None:
    versions = [f"v{number}" for number in range(8)]
    nodes = [node("b", "", 0)]
    nodes += [
        JoinNode(version=version, parents=("b",), json=str(number))
        for number, version in enumerate(versions, start=1)
    ]
    winners = {
        join(path=f"/{path}", base="b", nodes=nodes, candidates=versions) for path in range(20)
    }

    assert len(winners) > 1


def test_a_changed_member_survives_being_deleted() -> None:
    assert joined({"a": 1, "b": 1}, {"b": 1}, {"a": 2, "b": 1}) == {"a": 2, "b": 1}


def test_a_deleted_member_is_gone() -> None:
    assert joined({"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 2}) == {"b": 2}


def test_new_members_are_both_there() -> None:
    assert joined({}, {"a": [1]}, {"b": {"c": "d"}}) == {"a": [1], "b": {"c": "d"}}


def test_lists_are_positional() -> None:
    assert joined([1, 2, 3], [1, 2], [9, 2, 3]) == [9, 2]
    assert joined([1, 2, 3], [1, 2, 3, 4], [1, 5, 3]) == [1, 5, 3, 4]
    assert sorted(joined([0], [0, 1], [0, 2])) == [0, 1, 2]
    assert joined([["a b"], {"k": "v"}], [["a c"], {"k": "v"}], [["x b"], {"k": "w"}]) == [
        ["x c"],
        {"k": "w"},
    ]


def test_another_kind_of_value_replaces_as_a_whole() -> None:
    assert joined({"a": "text", "b": 1}, {"a": ["list"], "b": 1}, {"a": "text", "b": 2}) == {
        "a": ["list"],
        "b": 2,
    }


def test_empty_values_stay_what_they_are() -> None:
    empties: list[Any] = ["", [], {}, None, False, 0, 0.0]
    for empty in empties:
        assert joined({"e": empty, "x": 1}, {"e": empty, "x": 2}, {"e": empty, "x": 1, "y": 1}) == {
            "e": empty,
            "x": 2,
            "y": 1,
        }


def test_member_names_may_hold_anything() -> None:
    names = ["", "/", "~1", "a/b", "$", "\u0000", '"\\', "é", "😀", " ", "value", "0"]
    base = dict.fromkeys(names, "old")

    result = joined(base, {**base, "/": "new"}, {**base, "": "newer", "😀": "newest"})

    assert result == {**base, "/": "new", "": "newer", "😀": "newest"}


def test_numbers_come_out_as_they_went_in() -> None:
    base = {
        "big": 2**64 - 1,
        "small": -(2**63),
        "above": 2**63,
        "float": 0.1,
        "tiny": 5e-324,
        "whole": 1.0,
        "huge": 1.7976931348623157e308,
        "x": 0,
    }

    text = join(
        path="",
        base="b",
        nodes=[
            node("b", "", base),
            node("x", "b", {**base, "x": 1}),
            node("y", "b", {**base, "y": 1}),
        ],
        candidates=["x", "y"],
    )

    assert json.loads(text) == {**base, "x": 1, "y": 1}
    assert '"whole":1.0' in text
    assert '"big":18446744073709551615' in text


def test_the_result_is_canonical() -> None:
    text = join(
        path="",
        base="b",
        nodes=[
            JoinNode(version="b", parents=(), json=' { "b" : "é\\u00e9\\n\\u0001" , "a" : 1e2 } '),
            JoinNode(version="x", parents=("b",), json='{"b":"éé\\n\\u0001","a":1E16,"c":1e-7}'),
        ],
        candidates=["x"],
    )

    assert text == '{"a":1e+16,"b":"éé\\n\\u0001","c":1e-7}'


def test_a_candidate_that_another_one_descends_from_adds_nothing() -> None:
    nodes = [node("b", "", "a"), node("x", "b", "ab"), node("y", "x", "abc")]

    for candidates in (["y"], ["x", "y"], ["y", "x", "b"]):
        assert join(path="", base="b", nodes=nodes, candidates=candidates) == '"abc"'
    assert join(path="", base="b", nodes=nodes, candidates=["b"]) == '"a"'


def test_an_edit_that_was_taken_back_is_no_edit() -> None:
    nodes = [
        node("b", "", "one two"),
        node("x", "b", "one two three"),
        node("z", "x", "one two"),
        node("y", "b", "zero one two"),
    ]

    assert join(path="", base="b", nodes=nodes, candidates=["z", "y"]) == '"zero one two"'


def test_a_version_with_several_parents_follows_all_of_them() -> None:
    nodes = [
        node("b", "", "alpha beta gamma"),
        node("x", "b", "alpha BETA gamma"),
        node("y", "b", "alpha beta GAMMA"),
        node("m", "xy", "alpha BETA GAMMA delta"),
        node("z", "x", "omega BETA gamma"),
    ]

    result = join(path="", base="b", nodes=nodes, candidates=["m", "z"])

    assert json.loads(result) == "omega BETA GAMMA delta"


def test_a_later_edit_inside_of_what_a_merge_took_over_is_placed_there() -> None:
    base = "the quick brown fox jumps over the lazy dog"
    nodes = [
        node("b", "", base),
        node("x", "b", base.replace("quick", "slow")),
        node("y", "b", base.replace("lazy", "idle")),
        node("m", "xy", "the slow brown fox leaps over the idle dog"),
        node("n", "m", "the slow brown vixen leaps over the idle dog"),
        node("z", "y", base.replace("lazy", "idle").replace("over", "past")),
    ]

    result = join(path="", base="b", nodes=nodes, candidates=["n", "z"])

    assert json.loads(result) == "the slow brown vixen leaps past the idle dog"


def test_long_texts_that_are_both_written_anew_are_both_there() -> None:
    base = " ".join(f"base{number}s" for number in range(6_000))
    one = " ".join(f"one{number}e" for number in range(6_000))
    other = " ".join(f"other{number}r" for number in range(6_000))

    result = joined(base, one, other)

    assert result in {one + other, other + one}


def test_a_long_text_written_anew_keeps_what_the_other_side_inserted() -> None:
    words = [f"base{number}s" for number in range(6_000)]
    anew = " ".join(f"anew{number}w" for number in range(6_000))
    inserted = " ".join([*words[:3_000], "INSERTED", *words[3_000:]])

    result = joined(" ".join(words), anew, inserted)

    assert sorted(result.replace("INSERTED", "").split()) == sorted(anew.split())
    assert "INSERTED" in result
    assert "base" not in result


def test_many_edits_of_a_long_text_fall_where_they_were_made() -> None:
    words = [f"word{number}" for number in range(6_000)]
    one, other, both = list(words), list(words), list(words)
    for number in range(0, 6_000, 20):
        one[number] = both[number] = f"ONE{number}"
        other[number + 10] = both[number + 10] = f"OTHER{number}"

    assert joined(" ".join(words), " ".join(one), " ".join(other)).split() == both


def test_no_work_at_all_still_joins() -> None:
    nodes = [node("b", "", "a b c"), node("x", "b", "a X c"), node("y", "b", "a b c d")]

    result = json.loads(
        join(path="", base="b", nodes=nodes, candidates=["x", "y"], max_text_work=0)
    )

    assert "X" in result
    assert "d" in result
    assert "b" not in result


@pytest.mark.parametrize(
    ("nodes", "candidates", "version"),
    [
        ([node("x", "b", 1)], ["x"], "b"),
        ([node("b", "", 1), node("x", "bu", 1)], ["x"], "x"),
        ([node("b", "", 1), node("x", "", 1)], ["x"], "x"),
        ([node("b", "", 1), node("x", "", 1)], ["b"], "x"),
        ([node("b", "x", 1), node("x", "b", 1)], ["x"], "b"),
        ([node("b", "", 1), node("x", "by", 1), node("y", "x", 1)], ["y"], "x"),
        ([node("b", "", 1), node("x", "x", 1)], ["b"], "x"),
        ([node("b", "", 1), node("x", "b", 1), node("x", "b", 2)], ["x"], "x"),
        ([node("b", "", 1)], ["u"], "u"),
        ([node("b", "", 1)], [], "b"),
        ([], ["b"], "b"),
    ],
)
def test_a_graph_that_is_none_is_refused(
    nodes: list[JoinNode], candidates: list[str], version: str
) -> None:
    with pytest.raises(InvalidGraphError) as refused:
        join(path="", base="b", nodes=nodes, candidates=candidates)

    assert refused.value.version == version


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1,]",
        "NaN",
        "1e999",
        str(2**64),
        str(-(2**63) - 1),
        '"\\ud800"',
        '"\ud800"',
        "1 2",
    ],
)
def test_json_that_is_none_is_refused_with_its_version(text: str) -> None:
    nodes = [node("b", "", 1), JoinNode(version="x", parents=("b",), json=text)]

    with pytest.raises(InvalidJsonError) as refused:
        join(path="", base="b", nodes=nodes, candidates=["b"])

    assert refused.value.version == "x"


def test_bounds_are_kept_at_the_bound_and_refused_past_it() -> None:
    def nested(levels: int) -> str:
        return "[" * levels + "]" * levels

    def of(text: str) -> str:
        nodes = [node("b", "", 1), JoinNode(version="x", parents=("b",), json=text)]
        return join(path="", base="b", nodes=nodes, candidates=["x"])

    assert of(nested(127)) == nested(127)
    with pytest.raises(LimitExceededError) as too_deep:
        of(nested(128))
    assert (too_deep.value.limit, too_deep.value.maximum) == ("depth", 127)
    with pytest.raises(LimitExceededError):
        of(nested(100_000))

    maximum = 8 << 20
    assert len(of('"' + "a" * (maximum - 2) + '"')) == maximum
    with pytest.raises(LimitExceededError) as too_long:
        of('"' + "a" * (maximum - 1) + '"')
    assert (too_long.value.limit, too_long.value.maximum) == ("json_bytes", maximum)


def test_the_number_of_versions_is_bounded() -> None:
    nodes = [node("b", "", 1)]
    nodes += [JoinNode(version=str(number), parents=("b",), json="1") for number in range(8_191)]
    assert join(path="", base="b", nodes=nodes, candidates=["7"]) == "1"

    nodes.append(JoinNode(version="x", parents=("b",), json="1"))
    with pytest.raises(LimitExceededError) as refused:
        join(path="", base="b", nodes=nodes, candidates=["7"])
    assert refused.value.limit == "versions"


@pytest.mark.parametrize(
    "edited",
    [
        lambda count, side: [side + number for number in range(count)],
        lambda count, side: {f"{number}": side for number in range(count)},
        lambda count, side: {f"{side}-{number}": 0 for number in range(count)},
        lambda count, side: [f"{number} {side}" for number in range(count)],
        lambda count, side: [0] * (count * side),
    ],
    ids=["items", "members", "names", "texts", "lengths"],
)
def test_the_number_of_changed_places_is_bounded(edited: Callable[[int, int], Any]) -> None:
    # 40,000 of them would hold a merge for seconds, and 200,000 for as many as a minute.
    def of(count: int) -> str:
        versions = [edited(count, side) for side in (1, 2, 3)]
        nodes = [
            JoinNode(version=name, parents=("b",) if name != "b" else (), json=json.dumps(version))
            for name, version in zip("bxy", versions, strict=True)
        ]
        return join(path="", base="b", nodes=nodes, candidates=["x", "y"])

    assert of(1_000)
    with pytest.raises(LimitExceededError) as refused:
        of(20_001)
    assert (refused.value.limit, refused.value.maximum) == ("operations", 20_000)


def test_a_deep_value_is_merged_in_its_depth() -> None:
    def nested(text: str) -> Any:
        value: Any = text
        for level in range(126):
            value = {"k": value} if level % 2 else [value]
        return value

    assert joined(nested("a b"), nested("a c"), nested("x b")) == nested("x c")


def test_arguments_of_other_types_are_refused() -> None:
    no_text: Any = b"1"
    nodes = [JoinNode(version="b", parents=(), json=no_text)]

    with pytest.raises(TypeError):
        join(path="", base="b", nodes=[node("b", "", 1)], candidates="b")
    with pytest.raises(TypeError):
        join(path="", base="b", nodes=nodes, candidates=["b"])
    with pytest.raises(OverflowError):
        join(path="", base="b", nodes=[node("b", "", 1)], candidates=["b"], max_text_work=-1)
