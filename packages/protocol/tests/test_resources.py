from __future__ import annotations

import json

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator
from patchouli.protocol import (
    ARTIFACT_URN,
    FACT_COMMON_URN,
    KNOWLEDGE_RELATION_URN,
    KNOWLEDGE_URN,
    JsonValue,
    openrpc_document,
    schemas,
)


def references(value: JsonValue) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values()))
    if isinstance(value, list):
        return set().union(*map(references, value))
    return set()


def test_the_schemas_are_found_by_their_urns() -> None:
    assert list(schemas()) == [
        FACT_COMMON_URN,
        ARTIFACT_URN,
        KNOWLEDGE_URN,
        KNOWLEDGE_RELATION_URN,
    ]
    assert FACT_COMMON_URN == "urn:patchouli:schema:fact-common:1"
    assert KNOWLEDGE_RELATION_URN == "urn:patchouli:schema:knowledge-relation:1"
    for urn, schema in schemas().items():
        assert schema["$id"] == urn
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        Draft202012Validator.check_schema(schema)
        jsonschema_rs.meta.validate(schema)


@pytest.mark.clause("facts.schemas")
def test_the_common_schema_has_the_definitions_of_the_contract_and_no_rule_of_its_own() -> None:
    common = schemas()[FACT_COMMON_URN]

    assert set(common) == {"$schema", "$id", "title", "$defs"}
    assert set(common["$defs"]) == {
        "non_empty_string",
        "nullable_string",
        "timestamp",
        "nullable_timestamp",
        "knowledge_ref",
        "artifact_ref",
        "scope",
        "origin",
        "time",
        "lifecycle",
        "provenance",
        "metadata_core",
        "extensions",
    }


@pytest.mark.clause("facts.schemas")
def test_references_lead_to_the_common_schema_or_stay_inside() -> None:
    common = schemas()[FACT_COMMON_URN]
    for schema in schemas().values():
        for reference in references(schema):
            document, _, name = reference.partition("#/$defs/")
            assert document in {"", FACT_COMMON_URN}
            assert name in (schema if document == "" else common)["$defs"]


@pytest.mark.clause("facts.schemas")
def test_a_definition_can_be_used_alone() -> None:
    registry = jsonschema_rs.Registry(list(schemas().items()))
    validator = jsonschema_rs.Draft202012Validator(
        {"$ref": f"{FACT_COMMON_URN}#/$defs/timestamp"}, registry=registry
    )

    assert validator.is_valid("2031-03-02T09:20:00Z")
    assert not validator.is_valid("soon")


def test_callers_get_documents_of_their_own() -> None:
    schemas()[ARTIFACT_URN].clear()
    openrpc_document().clear()

    assert schemas()[ARTIFACT_URN]["$id"] == ARTIFACT_URN
    assert json.dumps(openrpc_document()).startswith('{"openrpc":')
