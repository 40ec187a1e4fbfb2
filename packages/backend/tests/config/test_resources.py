"""The shipped documents: valid, free of warnings, and exactly the policies that are documented."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from patchouli.backend import (
    Behavior,
    ResourceName,
    check_policy_document,
    load_policy,
    load_providers,
    read_resource,
)
from patchouli.backend.config.resources import (
    DEFAULT_POLICY,
    POLICY_SCHEMA,
    PROVIDERS_LOCAL,
    PROVIDERS_SCHEMA,
)

PATTERNS: list[ResourceName] = [
    "patterns/eventual.json",
    "patterns/causal_session.json",
    "patterns/shared_transaction.json",
]
POLICIES: list[ResourceName] = [DEFAULT_POLICY, "patchouli.example.json", *PATTERNS]
TEXT = {"type": "string", "minLength": 1}
STRATEGY = {"type": "string", "enum": ["merge", "mvcc", "reject"]}
VERSIONS = {"type": "array", "items": TEXT, "minItems": 1, "uniqueItems": True}
BATCH = {
    "mode": "batch",
    "key_by": ("transaction_id",),
    "close_when": {"kind": "marker", "field": "transaction_state", "equals": "commit"},
    "staging_ttl_ms": 3_600_000,
    "on_expire": "discard",
}
LINEARIZABLE = ({"kind": "linearizable", "key_by": ()},)
SERIALIZE = {"ordering": {"kind": "serialize", "key_by": ()}}
MERGE_CONTENT = ({"path": "/content", "strategy": "automerge", "group_by": ("/kind",)},)


@pytest.mark.parametrize("name", get_args(ResourceName))
def test_every_document_is_one_json_text_that_ends_with_a_line(name: ResourceName) -> None:
    text = read_resource(name)

    json.loads(text)
    assert text.endswith(b"\n")
    assert b"\r" not in text


@pytest.mark.parametrize("name", POLICIES)
def test_policy_is_accepted_without_warning(name: ResourceName) -> None:
    report = check_policy_document(read_resource(name))

    assert report.errors == ()
    assert report.warnings == ()


def test_example_is_the_default() -> None:
    assert read_resource("patchouli.example.json") == read_resource(DEFAULT_POLICY)


@pytest.mark.parametrize("name", [POLICY_SCHEMA, PROVIDERS_SCHEMA])
def test_schemas_satisfy_their_meta_schema(name: ResourceName) -> None:
    schema = json.loads(read_resource(name))

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schema)


def test_schema_describes_every_member() -> None:
    """Editors and error messages show the descriptions."""

    def members(node: Any) -> list[tuple[str, Any]]:
        if isinstance(node, list):
            return [found for item in node for found in members(item)]
        if not isinstance(node, dict):
            return []
        own = list(node.get("properties", {}).items())
        return own + [found for member in node.values() for found in members(member)]

    for name in (POLICY_SCHEMA, PROVIDERS_SCHEMA):
        schema = json.loads(read_resource(name))
        for member, part in members(schema):
            described = part is True or "const" in part or "description" in part
            if not described:
                target = schema["$defs"][part["$ref"].removeprefix("#/$defs/")]
                described = "description" in target
            assert described, (name, member)


def dumped(behavior: Behavior) -> dict[str, Any]:
    return behavior.model_dump()


def test_default_policy_root() -> None:
    policy = load_policy(read_resource(DEFAULT_POLICY)).policy

    assert policy.version == 1
    assert policy.retention.idempotency_seconds == 86_400
    assert policy.retention.changes_seconds == 604_800
    assert policy.history_seconds == 2_592_000
    assert policy.entity_identity.scope_by == ("workspace_id", "user_id")
    assert {
        alias: (field.pointer, field.json_schema) for alias, field in policy.meta_fields.items()
    } == {
        "workspace_id": ("/workspace_id", TEXT),
        "user_id": ("/user_id", TEXT),
        "channel_id": ("/channel_id", TEXT),
        "conflict_strategy": ("/conflict_strategy", STRATEGY),
        "transaction_id": ("/transaction_id", TEXT),
        "transaction_state": ("/transaction_state", {"type": "string"}),
        "base_versions": ("/base_versions", VERSIONS),
    }


@pytest.mark.parametrize(
    ("name", "urn", "strategy", "merge"),
    [
        ("artifact", "urn:patchouli:schema:artifact:1", "mvcc", ()),
        ("knowledge", "urn:patchouli:schema:knowledge:1", "merge", MERGE_CONTENT),
        ("knowledge_relation", "urn:patchouli:schema:knowledge-relation:1", "mvcc", ()),
    ],
)
def test_default_policy_type(name: str, urn: str, strategy: str, merge: Any) -> None:
    policy = load_policy(read_resource(DEFAULT_POLICY)).policy
    conflict = {
        "default_strategy": strategy,
        "strategy_from": "conflict_strategy",
        "base_versions": "base_versions",
        "merge": merge,
        "otherwise": "mvcc",
    }
    shared = {
        "acquire": {"allow_sources": ("authority",), "requirements": LINEARIZABLE},
        "sessions": (),
        "commit": SERIALIZE,
    }

    entity_type = policy.entity_types[name]

    assert set(policy.entity_types) == {"artifact", "knowledge", "knowledge_relation"}
    assert entity_type.value_schema == {"$ref": urn}
    assert [rule.name for rule in entity_type.rules] == ["transaction_batch"]
    assert entity_type.rules[0].when.all_present == ("transaction_id",)
    assert dumped(entity_type.rules[0].behavior) == {
        "consistency": {"snapshot": {"mode": "shared", "key_by": ("transaction_id",)}, **shared},
        "idempotency": {"mode": "disabled"},
        "conflict": conflict,
        "publication": BATCH,
    }
    assert dumped(entity_type.fallback) == {
        "consistency": {"snapshot": {"mode": "request"}, **shared},
        "idempotency": {"mode": "disabled"},
        "conflict": conflict,
        "publication": {"mode": "immediate"},
    }


@pytest.mark.parametrize(
    ("name", "aliases", "consistency", "strategy", "publication"),
    [
        (
            "eventual",
            {},
            {
                "snapshot": {"mode": "request"},
                "acquire": {"allow_sources": ("authority", "replica"), "requirements": ()},
                "sessions": (),
                "commit": {"ordering": {"kind": "none"}},
            },
            "mvcc",
            {"mode": "immediate"},
        ),
        (
            "causal_session",
            {
                "participant_id": ("/plugin_route_id", TEXT),
                "causal_token": ("/causal_token", TEXT),
            },
            {
                "snapshot": {"mode": "request"},
                "acquire": {
                    "allow_sources": ("authority", "replica"),
                    "requirements": (
                        {"kind": "causal_after", "token": "causal_token", "optional": True},
                    ),
                },
                "sessions": (
                    {
                        "key_by": ("participant_id",),
                        "guarantees": ("monotonic_reads", "read_your_writes"),
                    },
                ),
                "commit": SERIALIZE,
            },
            "merge",
            {"mode": "immediate"},
        ),
        (
            "shared_transaction",
            {
                "transaction_id": ("/transaction_id", TEXT),
                "transaction_state": ("/transaction_state", {"type": "string"}),
            },
            {
                "snapshot": {"mode": "shared", "key_by": ("transaction_id",)},
                "acquire": {"allow_sources": ("authority",), "requirements": LINEARIZABLE},
                "sessions": (),
                "commit": SERIALIZE,
            },
            "merge",
            BATCH,
        ),
    ],
)
def test_pattern(
    name: str, aliases: Any, consistency: Any, strategy: str, publication: Any
) -> None:
    policy = load_policy(read_resource(f"patterns/{name}.json")).policy  # pyright: ignore[reportArgumentType] -- one of the names

    assert policy.retention.model_dump(exclude_none=True) == {
        "idempotency_seconds": 86_400,
        "changes_seconds": 604_800,
    }
    assert policy.entity_identity.scope_by == ("workspace_id", "user_id")
    assert {
        alias: (field.pointer, field.json_schema) for alias, field in policy.meta_fields.items()
    } == {
        "workspace_id": ("/workspace_id", TEXT),
        "user_id": ("/user_id", TEXT),
        "channel_id": ("/channel_id", TEXT),
        "conflict_strategy": ("/conflict_strategy", STRATEGY),
        "base_versions": ("/base_versions", VERSIONS),
        **aliases,
    }
    assert list(policy.entity_types) == ["knowledge"]
    assert policy.entity_types["knowledge"].value_schema == {
        "$ref": "urn:patchouli:schema:knowledge:1"
    }
    assert policy.entity_types["knowledge"].rules == ()
    assert dumped(policy.entity_types["knowledge"].fallback) == {
        "consistency": consistency,
        "idempotency": {"mode": "disabled"},
        "conflict": {
            "default_strategy": strategy,
            "strategy_from": "conflict_strategy",
            "base_versions": "base_versions",
            "merge": MERGE_CONTENT,
            "otherwise": "mvcc",
        },
        "publication": publication,
    }


def test_local_providers_fit_the_default_policy() -> None:
    policy = load_policy(read_resource(DEFAULT_POLICY)).policy

    loaded = load_providers(read_resource(PROVIDERS_LOCAL), policy)

    assert loaded.warnings == ()
    assert list(loaded.providers.providers) == ["local"]
    assert loaded.providers.providers["local"].database == "data/patchouli.db"  # pyright: ignore[reportAttributeAccessIssue] -- a local provider
    assert loaded.providers.routing.default == "local"
    assert loaded.providers.routing.rules == ()
