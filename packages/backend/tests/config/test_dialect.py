"""JSON Schemas inside policies: which are accepted, and that nothing is ever fetched."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import ConfigurationError, SchemaValidator, load_policy
from patchouli.backend.config.dialect import DRAFT_2020_12, SchemaError, compile_schema
from patchouli.protocol import schemas

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

URNS = sorted(schemas())


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("a schema made a network connection")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_the_four_built_in_schemas_are_known() -> None:
    assert URNS == [
        "urn:patchouli:schema:artifact:1",
        "urn:patchouli:schema:fact-common:1",
        "urn:patchouli:schema:knowledge-relation:1",
        "urn:patchouli:schema:knowledge:1",
    ]


@pytest.mark.parametrize("urn", URNS)
def test_built_in_schemas_resolve_with_and_without_fragment(urn: str) -> None:
    compile_schema({"$ref": urn})
    compile_schema({"$ref": f"{urn}#"})


@pytest.mark.parametrize("name", sorted(schemas()["urn:patchouli:schema:fact-common:1"]["$defs"]))
def test_every_shared_definition_resolves(name: str) -> None:
    compile_schema({"items": {"$ref": f"urn:patchouli:schema:fact-common:1#/$defs/{name}"}})


def test_reference_means_the_definition() -> None:
    validator = SchemaValidator(
        {"$ref": "urn:patchouli:schema:fact-common:1#/$defs/non_empty_string"}
    )

    assert validator.is_valid("x")
    assert not validator.is_valid("")


@pytest.mark.parametrize(
    "uri",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema#",
        "http://json-schema.org/draft-07/schema",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2019-09/meta/applicator",
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2020-12/meta/core#/$defs/anchorString",
    ],
)
def test_meta_schemas_resolve(uri: str) -> None:
    compile_schema({"$ref": uri})


def test_value_may_have_to_be_a_schema() -> None:
    validator = SchemaValidator({"$ref": DRAFT_2020_12})

    assert validator.is_valid({"type": "string"})
    assert not validator.is_valid({"type": "text"})


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"$ref": "urn:patchouli:schema:knowledge:2"}, "/$ref"),
        ({"$ref": "urn:patchouli:schema:fact-common:1#/$defs/none"}, "/$ref"),
        ({"$ref": "https://example.com/schema.json"}, "/$ref"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "/$ref"),
        ({"$ref": "file:///etc/hostname"}, "/$ref"),
        ({"$ref": "other.json"}, "/$ref"),
        ({"$ref": "/etc/hostname"}, "/$ref"),
        ({"$ref": "#/$defs/none"}, "/$ref"),
        ({"$ref": "#anchor"}, "/$ref"),
        ({"$dynamicRef": "#anchor"}, "/$dynamicRef"),
        ({"properties": {"a": {"items": {"$ref": "#/none"}}}}, "/properties/a/items/$ref"),
        ({"anyOf": [True, {"$ref": "#/none"}]}, "/anyOf/1/$ref"),
        ({"if": True, "then": {"$ref": "#/none"}}, "/then/$ref"),
        ({"dependentSchemas": {"a": {"$ref": "urn:x:y"}}}, "/dependentSchemas/a/$ref"),
        ({"contentSchema": {"$ref": "urn:x:y"}}, "/contentSchema/$ref"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/no"}}},
            "/$defs/b/$ref",
        ),
    ],
)
def test_reachable_reference_must_resolve(schema: dict[str, Any], place: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)

    assert "does not resolve" in caught.value.problem
    assert not caught.value.is_malformed
    if len(schema) == 1:
        assert caught.value.place.pointer == place


def test_existing_file_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "string"}', encoding="utf-8")

    with pytest.raises(SchemaError):
        compile_schema({"$ref": file.as_uri()})


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"unused": {"$ref": "#/$defs/none"}}},
        {"const": {"$ref": "urn:x:y"}},
        {"enum": [{"$ref": "urn:x:y"}]},
        {"default": {"$ref": "urn:x:y"}, "examples": [{"$ref": "urn:x:y"}]},
        {"x-note": {"$ref": "urn:x:y"}},
        {"properties": {"$ref": {"type": "string"}}},
        {"$ref": "#"},
        {"$id": "urn:example:tree", "properties": {"child": {"$ref": "#"}}},
        {"$id": "https://example.com/a", "$ref": "b", "$defs": {"b": {"$id": "b"}}},
        {"$defs": {"a": {"$anchor": "here"}}, "$ref": "#here"},
        {"$defs": {"a": {"$dynamicAnchor": "here"}}, "$dynamicRef": "#here"},
        {"properties": {"a": {"type": "string"}, "b": {"$ref": "#/properties/a"}}},
    ],
)
def test_what_is_no_reachable_reference_is_left_alone(schema: dict[str, Any]) -> None:
    compile_schema(schema)


@pytest.mark.parametrize(
    "dialect",
    [
        "http://json-schema.org/draft-04/schema#",
        "http://json-schema.org/draft-06/schema",
        "http://json-schema.org/draft-07/schema#",
        "https://json-schema.org/draft/2019-09/schema",
        "https://json-schema.org/draft/2020-12/schema",
        "https://json-schema.org/draft/2020-12/schema#",
    ],
)
def test_known_drafts_are_read_as_2020_12(dialect: str) -> None:
    schema = {
        "$schema": dialect,
        "prefixItems": [{"type": "string"}],
        "properties": {"n": {"$id": "urn:x:n", "$schema": dialect, "exclusiveMinimum": 3}},
    }

    validator = SchemaValidator(schema)

    assert not validator.is_valid([1])
    assert not validator.is_valid({"n": 3})
    assert validator.is_valid({"n": 4})
    assert schema["$schema"] == dialect


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "urn:example:draft"},
        {"$schema": "https://json-schema.org/draft/next/schema"},
        {"$schema": "http://json-schema.org/schema#"},
        {"$schema": "./local.json"},
        {"items": {"$schema": "urn:example:draft"}},
        {"$defs": {"a": {"$id": "urn:x:a", "$schema": "urn:example:draft"}}, "$ref": "urn:x:a"},
    ],
)
def test_unknown_dialect_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)

    assert "no known draft" in caught.value.problem
    assert not caught.value.is_malformed


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"$schema": "http://json-schema.org/draft-07/schema#", "items": [True]}, "prefixItems"),
        ({"minimum": 1, "exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"type": "text"}, '"type"'),
        ({"required": "a"}, '"required"'),
        ({"$schema": 1}, '"$schema"'),
        ({"allOf": []}, '"allOf"'),
        ({"properties": {"a": {"minLength": "1"}}}, '"minLength"'),
    ],
)
def test_schema_that_violates_its_meta_schema_is_malformed(
    schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        compile_schema(schema)

    assert caught.value.is_malformed
    assert words in caught.value.remedy


@pytest.mark.parametrize("pattern", ["(", "[", "*a", "(?P<", r"\p{Nothing}", r"\1"])
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_pattern_that_does_not_compile_is_named(pattern: str, keyword: str) -> None:
    schema = {keyword: pattern if keyword == "pattern" else {pattern: True}}

    with pytest.raises(SchemaError) as caught:
        compile_schema({"items": schema})

    assert f'"{pattern}"' in caught.value.problem
    assert not caught.value.is_malformed


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\p{Lu}\p{L}+$", "Ärger", "ärger"),
        (r"^(?=.*\d)\w+$", "a1", "ab"),
        (r"^(?<!x)a(?!b)", "ac", "ab"),
        (r"^(a|b)\1$", "aa", "ab"),
        (r"^\d+$", "12", "1x"),
    ],
)
def test_patterns_beyond_those_of_the_language_work(pattern: str, good: str, bad: str) -> None:
    validator = SchemaValidator({"pattern": pattern})

    assert validator.is_valid(good)
    assert not validator.is_valid(bad)


@pytest.mark.parametrize("format_name", ["date-time", "email", "uuid", "regex", "ipv4", "nothing"])
def test_format_is_an_annotation(format_name: str) -> None:
    assert SchemaValidator({"type": "string", "format": format_name}).is_valid("(anything")


def test_schema_true_and_false() -> None:
    assert SchemaValidator(schema=True).is_valid(None)
    assert not SchemaValidator(schema=False).is_valid({})


def test_policy_error_says_where_in_the_schema(edited_text: Callable[..., str]) -> None:
    schema = {"properties": {"tags": {"items": {"$ref": "#/$defs/tag"}}}}

    with pytest.raises(ConfigurationError) as caught:
        load_policy(edited_text(("entity_types.recipe.value_schema", schema)))

    message = caught.value.message
    assert "entity_types.recipe.value_schema" in message
    assert "/properties/tags/items/$ref" in message
    assert "#/$defs/tag" in message
    for urn in URNS:
        assert urn in message
