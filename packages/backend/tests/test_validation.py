"""Compiled validators: fast, thread-safe, and the same judgement as `jsonschema`."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from patchouli.backend import (
    InvalidRequestError,
    SchemaValidator,
    ValueValidators,
    load_policy,
    read_resource,
)
from patchouli.protocol import schemas
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

if TYPE_CHECKING:
    from collections.abc import Callable

REGISTRY: Registry[Any] = Registry().with_resources(
    (urn, Resource.from_contents(contents, default_specification=DRAFT202012))
    for urn, contents in schemas().items()
)


def core(kind: str) -> dict[str, Any]:
    return {
        "core": {
            "schema": f"patchouli.{kind}@1",
            "scope": {"tenant": None, "workspace": "atlas", "user": "mira", "session": None},
            "origin": dict.fromkeys(
                ("provider", "binding", "native_type", "native_id", "native_revision")
            ),
            "time": {
                "event_at": None,
                "source_created_at": None,
                "source_updated_at": None,
                "observed_at": "2031-03-02T09:20:00Z",
                "ingested_at": "2031-03-02T09:20:03+02:00",
            },
            "lifecycle": {"status": "active", "expires_at": None},
            "provenance": [],
        },
        "extensions": {},
    }


FACTS: dict[str, Any] = {
    "urn:patchouli:schema:knowledge:1": {
        "content": {"kind": "text", "text": "Mira prefers window seats"},
        "metadata": core("knowledge"),
        "artifact": [],
        "profile": {
            "epistemic": "belief",
            "temporal": {"kind": "instant", "at": "2031-03-02T09:15:00Z"},
            "ownership": "user",
            "abstraction": "pattern",
            "persistence": "long_term",
            "retrieval": ["exact", "contextual"],
            "actionability": "informational",
        },
    },
    "urn:patchouli:schema:artifact:1": {
        "media_type": "text/csv",
        "name": "seats.csv",
        "byte_length": 14,
        "digest": "sha256:" + "52" * 32,
        "placement": {"kind": "managed", "provider": "node-oak", "key": "sha256/" + "52" * 32},
        "metadata": core("artifact"),
    },
}


def oracle(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(schema, registry=REGISTRY)


def mutations(value: Any) -> list[Any]:
    """Return `value` with each of its parts removed or replaced, one at a time."""
    others: list[Any] = [None, True, 0, 1.5, "", "x", [], {}, -1, "2031-03-02", [1, 1]]
    found: list[Any] = list(others)
    if isinstance(value, dict):
        found += [{k: v for k, v in value.items() if k != name} for name in value]
        found.append({**value, "unknown": 1})
        for name, member in value.items():
            found += [{**value, name: changed} for changed in mutations(member)]
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += [[*value[:index], changed, *value[index + 1 :]] for changed in mutations(item)]
        found += [[*value, item] for item in value]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("urn", sorted(FACTS))
def test_both_libraries_judge_facts_alike(urn: str) -> None:
    """Every value that differs from a valid fact in one place."""
    ours, theirs = SchemaValidator({"$ref": urn}), oracle({"$ref": urn})
    assert ours.is_valid(FACTS[urn])

    differing = [
        value for value in mutations(FACTS[urn]) if ours.is_valid(value) != theirs.is_valid(value)
    ]

    assert differing == []


names = st.sampled_from(["a", "b", "ab", "é", ""])
numbers = st.integers(-3, 5) | st.sampled_from(
    [0.0, -0.0, 1.0, 2.5, -1.5, 1e20, 2**53 + 1, 2**64 - 1]
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text("abé😀/~ ", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
small_counts = st.integers(0, 3)
# Patterns that both engines know, and read alike.
patterns = st.sampled_from(["a", "^a", "b$", "^(a|b)+$", "[^a]", "^.{2}$", "é", "^$", "a{2,}"])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    schemas_by_name = st.dictionaries(names, inner, max_size=3)
    schema_list = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "const": json_values,
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "minLength": small_counts,
            "maxLength": small_counts,
            "pattern": patterns,
            "minimum": numbers,
            "maximum": numbers,
            "exclusiveMinimum": numbers,
            "exclusiveMaximum": numbers,
            "multipleOf": st.integers(1, 4),
            "minItems": small_counts,
            "maxItems": small_counts,
            "uniqueItems": st.booleans(),
            "prefixItems": schema_list,
            "items": inner,
            "contains": inner,
            "minContains": small_counts,
            "maxContains": small_counts,
            "minProperties": small_counts,
            "maxProperties": small_counts,
            "required": st.lists(names, max_size=3, unique=True),
            "properties": schemas_by_name,
            "patternProperties": st.dictionaries(patterns, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "dependentRequired": st.dictionaries(
                names, st.lists(names, max_size=2, unique=True), max_size=2
            ),
            "dependentSchemas": schemas_by_name,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
            "allOf": schema_list,
            "anyOf": schema_list,
            "oneOf": schema_list,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two"]),
            "format": st.sampled_from(["date-time", "email"]),
        },
    )


any_schema = st.recursive(st.booleans(), keywords, max_leaves=6)
definitions = st.fixed_dictionaries(
    {
        "one": keywords(st.booleans()).map(lambda s: {k: v for k, v in s.items() if k != "$ref"}),
        "two": st.sampled_from([{"type": "string"}, {"$ref": "#/$defs/one"}, True]),
    }
)


@pytest.mark.slow
@settings(max_examples=200)
@given(any_schema, definitions, st.lists(json_values, min_size=1, max_size=6))
@example({"const": 1}, {"one": {}, "two": True}, [1, 1.0, True, "1"])
@example({"const": [0]}, {"one": {}, "two": True}, [[0.0], [False], [-0.0]])
@example({"enum": [{"a": 1}]}, {"one": {}, "two": True}, [{"a": 1.0}, {"a": True}])
@example(
    {"uniqueItems": True}, {"one": {}, "two": True}, [[1, 1.0], [1, True], [{"a": 1}, {"a": 1.0}]]
)
@example({"type": "integer"}, {"one": {}, "two": True}, [1.0, 1.5, True, 1e20, 2**64 - 1])
@example({"minLength": 2, "maxLength": 2}, {"one": {}, "two": True}, ["😀", "😀😀", "é", "e\u0301"])
def test_both_libraries_judge_alike(
    schema: Any, defined: dict[str, Any], candidates: list[Any]
) -> None:
    whole: Any = {**schema, "$defs": defined} if isinstance(schema, dict) else schema
    ours, theirs = SchemaValidator(whole), oracle(whole)

    for value in candidates:
        assert ours.is_valid(value) == theirs.is_valid(value), (whole, value)
        assert (ours.first_violation(value) is None) == ours.is_valid(value)


@pytest.mark.slow
@settings(max_examples=100)
@given(any_schema, json_values)
def test_violation_points_to_a_part_of_the_value(schema: Any, value: Any) -> None:
    whole: Any = {**schema, "$defs": {"one": {}, "two": {}}} if isinstance(schema, dict) else schema

    violation = SchemaValidator(whole).first_violation(value)

    if violation is not None:
        node = value
        for token in violation.pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            node = node[int(name)] if isinstance(node, list) else node[name]
        assert violation.keyword
        assert violation.problem


@pytest.mark.parametrize(
    ("schema", "value", "pointer", "words"),
    [
        ({"type": "string"}, 1, "", "must be of type string"),
        ({"type": ["string", "null"]}, 1, "", "null or string"),
        ({"const": {"a": 1}}, 1, "", 'must be {"a": 1}'),
        ({"enum": ["a", 1, None]}, "b", "", 'must be one of "a", 1, null'),
        ({"required": ["a"]}, {}, "", 'has no member "a"'),
        ({"additionalProperties": False}, {"x": 1, "w": 1}, "", "must not have any member"),
        ({"properties": {}, "additionalProperties": False}, {"x": 1, "w": 1}, "", '"w", "x"'),
        ({"properties": {}, "unevaluatedProperties": False}, {"x": 1}, "", '"x"'),
        ({"minLength": 2}, "a", "", "2 or more characters"),
        ({"maxLength": 2}, "abc", "", "2 or fewer characters"),
        ({"minItems": 2}, [], "", "2 or more items"),
        ({"maxItems": 0}, [1], "", "0 or fewer items"),
        ({"minProperties": 1}, {}, "", "1 or more members"),
        ({"maxProperties": 0}, {"a": 1}, "", "0 or fewer members"),
        ({"minimum": 2}, 1, "", "2 or more"),
        ({"maximum": 2}, 3, "", "2 or less"),
        ({"exclusiveMinimum": 2}, 2, "", "more than 2"),
        ({"exclusiveMaximum": 2}, 2, "", "less than 2"),
        ({"multipleOf": 2}, 3, "", "multiple of 2"),
        ({"pattern": "^a"}, "b", "", 'pattern "^a"'),
        ({"uniqueItems": True}, [1, 1], "", "twice"),
        ({"anyOf": [{"type": "string"}]}, 1, "", "none of the alternatives"),
        ({"oneOf": [True, True]}, 1, "", "more than one"),
        ({"properties": {"a/b": False}}, {"a/b": 1}, "/a~1b", "not allowed"),
        ({"not": {}}, 1, "", '"not"'),
        ({"items": {"properties": {"a": {"type": "null"}}}}, [{}, {"a": 1}], "/1/a", "null"),
        ({"properties": {"a": {"oneOf": [{"minLength": 9}]}}}, {"a": "x"}, "/a", "alternatives"),
    ],
)
def test_violation_in_words(schema: Any, value: Any, pointer: str, words: str) -> None:
    violation = SchemaValidator(schema).first_violation(value)

    assert violation is not None
    assert violation.pointer == pointer
    assert words in violation.problem


def test_words_are_bounded() -> None:
    schema: Any = {"properties": {}, "additionalProperties": False}
    value: Any = {"x" * 10_000: 1, **{str(number): 1 for number in range(1000)}}

    violation = SchemaValidator(schema).first_violation(value)

    assert violation is not None
    assert len(violation.problem) < 1000


def test_entity_value_is_refused_at_its_place(edited_text: Callable[..., str]) -> None:
    policy = load_policy(
        edited_text(
            (
                "entity_types.recipe.value_schema",
                {"properties": {"steps": {"items": {"type": "string"}}}},
            )
        )
    ).policy
    validators = ValueValidators(policy)

    validators.require_valid("recipe", {"steps": ["stir"]})
    assert validators.is_valid("recipe", {})
    assert not validators.is_valid("recipe", {"steps": [1]})
    assert not validators.is_valid("no longer configured", {})
    with pytest.raises(InvalidRequestError) as caught:
        validators.require_valid("recipe", {"steps": ["stir", 1]})

    assert caught.value.pointer == "entity_types.recipe.value/steps/1"
    assert caught.value.message == "entity_types.recipe.value/steps/1 must be of type string"


def test_default_policy_accepts_and_refuses_facts() -> None:
    validators = ValueValidators(load_policy(read_resource("patchouli.default.json")).policy)
    knowledge = FACTS["urn:patchouli:schema:knowledge:1"]

    validators.require_valid("knowledge", knowledge)
    validators.require_valid("artifact", FACTS["urn:patchouli:schema:artifact:1"])
    for wrong in ("yesterday", "2031-02-30", "2031-03-02 09:20"):
        value = json.loads(json.dumps(knowledge))
        value["metadata"]["core"]["time"]["observed_at"] = wrong
        with pytest.raises(InvalidRequestError) as caught:
            validators.require_valid("knowledge", value)
        assert caught.value.pointer is not None
        assert caught.value.pointer.startswith("entity_types.knowledge.value/metadata")


def test_regular_expressions_cannot_run_away() -> None:
    """Backtracking over this value would take longer than the age of the universe."""
    validator = SchemaValidator({"pattern": r"^(?=a)(?:a|aa)+(?!x)c$"})

    assert validator.is_valid("aaac")
    assert not validator.is_valid("a" * 1000 + "b")


def test_validators_work_in_many_threads_at_once() -> None:
    validators = ValueValidators(load_policy(read_resource("patchouli.default.json")).policy)
    knowledge = FACTS["urn:patchouli:schema:knowledge:1"]
    barrier = threading.Barrier(4)
    results: list[tuple[bool, bool]] = []

    def run() -> None:
        barrier.wait()
        results.extend(
            (
                validators.is_valid("knowledge", knowledge),
                validators.is_valid("knowledge", {**knowledge, "extra": 1}),
            )
            for _ in range(200)
        )

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert set(results) == {(True, False)}
    assert len(results) == 800
