"""The stages before the rules: text, schema, integers; and what a loaded policy says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import ConfigurationError, check_policy_document, load_policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FALLBACK = "entity_types.recipe.fallback"
RULE = "entity_types.recipe.rules[0].behavior"
B, C = f"{FALLBACK}.consistency", f"{FALLBACK}.conflict"


def pointer(path: str) -> str:
    return "".join(f"/{step}" for step in path.replace("[", ".").replace("]", "").split("."))


def refusal(source: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load_policy(source)
    return caught.value


# (clause of the shape, edits, dotted path whose pointer is reported, "" for the root)
SHAPE: list[tuple[str, list[tuple[str, Any]], str]] = [
    *[
        (f"root-{name}-missing", [(name, ...)], "")
        for name in (
            "$schema",
            "version",
            "retention",
            "meta_fields",
            "entity_identity",
            "entity_types",
        )
    ],
    *[
        (f"root-{name}-null", [(name, None)], name)
        for name in (
            "$schema",
            "version",
            "retention",
            "meta_fields",
            "entity_identity",
            "entity_types",
        )
    ],
    ("root-unknown", [("extra", 1)], ""),
    ("$schema-empty", [("$schema", "")], "$schema"),
    ("$schema-type", [("$schema", 1)], "$schema"),
    ("version-0", [("version", 0)], "version"),
    ("version-string", [("version", "1")], "version"),
    ("version-true", [("version", True)], "version"),
    ("version-fraction", [("version", 1.5)], "version"),
    *[
        (f"retention-{name}-missing", [(f"retention.{name}", ...)], "retention")
        for name in ("idempotency_seconds", "changes_seconds")
    ],
    *[
        (f"retention-{name}-{value}", [(f"retention.{name}", value)], f"retention.{name}")
        for name in ("idempotency_seconds", "changes_seconds")
        for value in (0, -1, 1.5, "1", None)
    ],
    *[
        (
            f"retention-history-{value}",
            [("retention.history_seconds", value)],
            "retention.history_seconds",
        )
        for value in (-1, 1.5, "1", None, True)
    ],
    ("retention-unknown", [("retention.days", 1)], "retention"),
    ("meta_fields-empty", [("meta_fields", {})], "meta_fields"),
    ("meta_fields-array", [("meta_fields", [])], "meta_fields"),
    (
        "meta_fields-alias-empty",
        [("meta_fields.", {"pointer": "/x", "schema": True})],
        "meta_fields",
    ),
    ("field-null", [("meta_fields.call", None)], "meta_fields.call"),
    ("field-pointer-missing", [("meta_fields.call.pointer", ...)], "meta_fields.call"),
    ("field-schema-missing", [("meta_fields.call.schema", ...)], "meta_fields.call"),
    ("field-unknown", [("meta_fields.call.required", True)], "meta_fields.call"),
    ("field-pointer-no-slash", [("meta_fields.call.pointer", "x")], "meta_fields.call.pointer"),
    ("field-pointer-type", [("meta_fields.call.pointer", 1)], "meta_fields.call.pointer"),
    *[
        (f"field-schema-{value!r}", [("meta_fields.call.schema", value)], "meta_fields.call.schema")
        for value in (None, [], "string", 1)
    ],
    ("identity-missing", [("entity_identity.scope_by", ...)], "entity_identity"),
    ("identity-unknown", [("entity_identity.by", [])], "entity_identity"),
    (
        "identity-twice",
        [("entity_identity.scope_by", ["team", "team"])],
        "entity_identity.scope_by",
    ),
    ("identity-item", [("entity_identity.scope_by", [1])], "entity_identity.scope_by[0]"),
    ("identity-null", [("entity_identity.scope_by", None)], "entity_identity.scope_by"),
    ("types-empty", [("entity_types", {})], "entity_types"),
    *[
        (f"type-{name}-missing", [(f"entity_types.recipe.{name}", ...)], "entity_types.recipe")
        for name in ("value_schema", "rules", "fallback")
    ],
    ("type-unknown", [("entity_types.recipe.extra", 1)], "entity_types.recipe"),
    ("type-rules-null", [("entity_types.recipe.rules", None)], "entity_types.recipe.rules"),
    *[
        (
            f"rule-{name}-missing",
            [(f"entity_types.recipe.rules[0].{name}", ...)],
            "entity_types.recipe.rules[0]",
        )
        for name in ("name", "when", "behavior")
    ],
    (
        "rule-name-empty",
        [("entity_types.recipe.rules[0].name", "")],
        "entity_types.recipe.rules[0].name",
    ),
    (
        "rule-unknown",
        [("entity_types.recipe.rules[0].priority", 1)],
        "entity_types.recipe.rules[0]",
    ),
    (
        "when-missing",
        [("entity_types.recipe.rules[0].when.all_present", ...)],
        "entity_types.recipe.rules[0].when",
    ),
    (
        "when-unknown",
        [("entity_types.recipe.rules[0].when.any_present", ["call"])],
        "entity_types.recipe.rules[0].when",
    ),
    *[
        (
            f"when-{value}",
            [("entity_types.recipe.rules[0].when.all_present", value)],
            "entity_types.recipe.rules[0].when.all_present",
        )
        for value in ([], ["call", "call"])
    ],
    *[
        (f"behavior-{name}-missing", [(f"{FALLBACK}.{name}", ...)], FALLBACK)
        for name in ("consistency", "idempotency", "conflict", "publication")
    ],
    ("behavior-unknown", [(f"{FALLBACK}.cache", True)], FALLBACK),
    *[
        (f"consistency-{name}-missing", [(f"{B}.{name}", ...)], B)
        for name in ("snapshot", "acquire", "sessions", "commit")
    ],
    ("consistency-unknown", [(f"{B}.level", "strong")], B),
    *[
        (f"snapshot-{json.dumps(value)}", [(f"{B}.snapshot", value)], f"{B}.snapshot")
        for value in (
            None,
            {},
            {"mode": "other"},
            {"mode": "request", "key_by": ["call"]},
            {"mode": "shared"},
            {"mode": "shared", "key_by": []},
            {"mode": "shared", "key_by": ["call", "call"]},
            {"mode": "shared", "key_by": [1]},
            {"mode": None},
            "request",
        )
    ],
    *[
        (f"acquire-{name}-missing", [(f"{B}.acquire.{name}", ...)], f"{B}.acquire")
        for name in ("allow_sources", "requirements")
    ],
    ("acquire-unknown", [(f"{B}.acquire.extra", 1)], f"{B}.acquire"),
    *[
        (f"sources-{value}", [(f"{B}.acquire.allow_sources", value)], f"{B}.acquire.allow_sources")
        for value in ([], ["replica", "replica"], None)
    ],
    ("sources-name", [(f"{B}.acquire.allow_sources", ["cache"])], f"{B}.acquire.allow_sources[0]"),
    (
        "requirements-twice",
        [(f"{B}.acquire.requirements", [{"kind": "causal_after", "token": "token"}] * 2)],
        f"{B}.acquire.requirements",
    ),
    *[
        (
            f"requirement-{json.dumps(value)}",
            [(f"{B}.acquire.requirements", [value])],
            f"{B}.acquire.requirements[0]",
        )
        for value in (
            None,
            {},
            {"kind": "other"},
            {"kind": "causal_after"},
            {"kind": "causal_after", "token": 1},
            {"kind": "causal_after", "token": "token", "optional": None},
            {"kind": "causal_after", "token": "token", "optional": "true"},
            {"kind": "causal_after", "token": "token", "key_by": []},
            {"kind": "linearizable"},
            {"kind": "linearizable", "key_by": ["call", "call"]},
            {"kind": "linearizable", "key_by": None},
            {"kind": "linearizable", "key_by": [], "token": "token"},
        )
    ],
    (
        "sessions-twice",
        [(f"{B}.sessions", [{"key_by": ["call"], "guarantees": ["monotonic_reads"]}] * 2)],
        f"{B}.sessions",
    ),
    *[
        (f"session-{path}", [(f"{B}.sessions", [value])], f"{B}.sessions[0]{path}")
        for value, path in (
            ({"key_by": ["call"]}, ""),
            ({"guarantees": ["monotonic_reads"]}, ""),
            ({"key_by": ["call"], "guarantees": ["monotonic_reads"], "ttl": 1}, ""),
            ({"key_by": [], "guarantees": ["monotonic_reads"]}, ".key_by"),
            ({"key_by": ["call"], "guarantees": []}, ".guarantees"),
            ({"key_by": ["call"], "guarantees": ["other"]}, ".guarantees[0]"),
        )
    ],
    ("commit-empty", [(f"{B}.commit", {})], f"{B}.commit"),
    ("commit-unknown", [(f"{B}.commit.sync", True)], f"{B}.commit"),
    *[
        (f"ordering-{json.dumps(value)}", [(f"{B}.commit.ordering", value)], f"{B}.commit.ordering")
        for value in (
            None,
            {},
            {"kind": "other"},
            {"kind": "none", "key_by": []},
            {"kind": "serialize"},
            {"kind": "serialize", "key_by": ["call", "call"]},
        )
    ],
    *[
        (
            f"idempotency-{json.dumps(value)}",
            [(f"{FALLBACK}.idempotency", value)],
            f"{FALLBACK}.idempotency",
        )
        for value in (
            None,
            {},
            {"mode": "other"},
            {"mode": "disabled", "key_by": ["call"]},
            {"mode": "keyed"},
            {"mode": "keyed", "key_by": []},
            {"mode": "keyed", "key_by": ["call", "call"]},
        )
    ],
    *[
        (f"conflict-{name}-missing", [(f"{C}.{name}", ...)], C)
        for name in ("default_strategy", "strategy_from", "base_versions", "merge", "otherwise")
    ],
    ("conflict-unknown", [(f"{C}.retries", 3)], C),
    *[
        (f"conflict-{name}-{value!r}", [(f"{C}.{name}", value)], f"{C}.{name}")
        for name, value in (
            ("default_strategy", "last"),
            ("default_strategy", None),
            ("strategy_from", None),
            ("base_versions", ["bases"]),
            ("merge", {}),
            ("otherwise", "merge"),
            ("otherwise", None),
        )
    ],
    *[
        (f"merge-{name}-missing", [(f"{C}.merge[0].{name}", ...)], f"{C}.merge[0]")
        for name in ("path", "strategy", "group_by")
    ],
    ("merge-unknown", [(f"{C}.merge[0].items", True)], f"{C}.merge[0]"),
    *[
        (f"merge-{name}-{value!r}", [(f"{C}.merge[0].{name}", value)], f"{C}.merge[0].{name}{item}")
        for name, value, item in (
            ("path", "", ""),
            ("path", "x", ""),
            ("path", None, ""),
            ("strategy", "text", ""),
            ("group_by", None, ""),
            ("group_by", ["/a", "/a"], ""),
            ("group_by", ["a"], "[0]"),
        )
    ],
    *[
        (
            f"publication-{json.dumps(value)}",
            [(f"{FALLBACK}.publication", value)],
            f"{FALLBACK}.publication",
        )
        for value in (
            None,
            {},
            {"mode": "other"},
            {"mode": "immediate", "key_by": ["call"]},
            {"mode": "batch"},
        )
    ],
    # What is wrong inside a variant is reported at the place of all variants.
    *[
        (f"batch-{path}-{value!r}", [(f"{RULE}.publication.{path}", value)], f"{RULE}.publication")
        for path, value in (
            ("key_by", ...),
            ("key_by", []),
            ("key_by", ["call", "call"]),
            ("close_when", ...),
            ("close_when", None),
            ("close_when.kind", ...),
            ("close_when.kind", "timer"),
            ("close_when.field", ...),
            ("close_when.equals", ...),
            ("close_when.extra", 1),
            ("staging_ttl_ms", ...),
            ("staging_ttl_ms", 0),
            ("staging_ttl_ms", -5),
            ("staging_ttl_ms", 1.5),
            ("staging_ttl_ms", None),
            ("on_expire", ...),
            ("on_expire", "publish"),
            ("extra", 1),
        )
    ],
]


@pytest.mark.parametrize(
    ("edits", "path"), [row[1:] for row in SHAPE], ids=[row[0] for row in SHAPE]
)
def test_stage_b_refuses_shape_at_a_json_pointer(
    edits: list[tuple[str, Any]], path: str, edited_text: Callable[..., str]
) -> None:
    error = refusal(edited_text(*edits))

    assert error.kind == "Schema"
    assert error.path == (pointer(path) if path else "")
    assert error.problem
    assert error.remedy.endswith((".", "?"))


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([("retension", {}), ("retention", ...)], ['"retension"', 'Did you mean "retention"?']),
        ([(f"{C}.otherwise", ...)], ['"otherwise" is missing', '"mvcc"', '"reject"']),
        ([(f"{C}.otherwise", ...), (f"{C}.merge", ...)], ['"merge", "otherwise" are missing']),
        ([(f"{RULE}.publication.staging_ttl_ms", ...)], ['"staging_ttl_ms" is missing', "milli"]),
        ([(f"{RULE}.publication.key_by", [])], ["at key_by:", "transaction_id"]),
        ([(f"{FALLBACK}.publication", {"mode": "later"})], ['{"mode": "immediate"}']),
        ([(f"{FALLBACK}.idempotency", {"mode": "keyed"})], ['"key_by" is missing']),
        ([("version", "1")], ["a string, not an integer", "Write the version"]),
        ([("entity_types.recipe.rules", None)], ["null, not an array"]),
        ([(f"{B}.acquire.allow_sources", ["cache"])], ["not allowed"]),
    ],
)
def test_schema_errors_say_what_to_write(
    edits: list[tuple[str, Any]], words: list[str], edited_text: Callable[..., str]
) -> None:
    message = refusal(edited_text(*edits)).message

    for word in words:
        assert word in message


TTL = f"{RULE}.publication.staging_ttl_ms"


@pytest.mark.parametrize(
    "path",
    [
        "version",
        "retention.idempotency_seconds",
        "retention.changes_seconds",
        "retention.history_seconds",
        TTL,
    ],
)
@pytest.mark.parametrize("literal", ["1.0", "1e0", "1.0e0"])
def test_stage_c_refuses_integers_that_are_written_with_a_fraction(
    path: str, literal: str, edited_text: Callable[..., str]
) -> None:
    error = refusal(edited_text((path, "HERE")).replace('"HERE"', literal))

    assert (error.kind, error.path, error.rule) == ("Json", path, "integer")


@pytest.mark.parametrize(
    "path",
    [
        "retention.idempotency_seconds",
        "retention.changes_seconds",
        "retention.history_seconds",
        TTL,
    ],
)
def test_stage_c_bounds_integers_to_64_bits(path: str, edited_text: Callable[..., str]) -> None:
    assert check_policy_document(edited_text((path, 2**64 - 1))).errors == ()

    error = refusal(edited_text((path, 2**64)))

    assert (error.kind, error.path) == ("Json", path)
    assert "18446744073709551615" in error.remedy


def test_version_beyond_16_bits_is_refused_as_a_version(edited_text: Callable[..., str]) -> None:
    """The schema refuses it before its width matters."""
    assert refusal(edited_text(("version", 65536))).path == "/version"


def test_stages_end_at_the_first_that_fails(edited_text: Callable[..., str]) -> None:
    edits: list[tuple[str, Any]] = [("entity_identity.scope_by", ["nobody"])]
    assert refusal(edited_text(*edits)).kind == "Invalid"

    edits.append((TTL, "HERE"))
    text = edited_text(*edits).replace('"HERE"', "1.0")
    assert refusal(text).kind == "Json"

    assert refusal(text.replace('"version": 1', '"version": 3')).kind == "Schema"
    assert refusal(text.replace('"version": 1', '"version": 3,')).kind == "Json"


def test_report_lists_every_defect_of_the_stage(edited_text: Callable[..., str]) -> None:
    report = check_policy_document(
        edited_text(("version", 2), ("retention.changes_seconds", 0), ("extra", 1))
    )

    assert {error.path for error in report.errors} == {"", "/version", "/retention/changes_seconds"}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (b"", "ends too early"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{} {}", "text after the document"),
        (b'{"version": NaN}', "NaN"),
        (b"\xff", "UTF-8"),
        (b"[]", "an array, not an object"),
        (b"null", "null, not an object"),
    ],
)
def test_texts_that_are_no_policy_at_all(source: bytes, words: str) -> None:
    error = refusal(source)

    assert words in error.problem
    assert (error.path, error.kind) == ("", "Schema" if words.endswith("object") else "Json")


def test_file_is_read_and_named(tmp_path: Path, edited_text: Callable[..., str]) -> None:
    file = tmp_path / "config.json"

    missing = refusal(file)
    file.write_text(edited_text(("version", 2)), encoding="utf-8")
    wrong = refusal(file)
    file.write_text(edited_text(), encoding="utf-8")

    assert (missing.kind, missing.document) == ("File", str(file))
    assert wrong.message.startswith(f"{file}:1:")
    assert load_policy(file).policy.version == 1


def test_repeated_members_are_warned_about_and_the_last_one_counts(
    edited_text: Callable[..., str],
) -> None:
    text = edited_text().replace(
        '"changes_seconds": 172800', '"changes_seconds": 1, "changes_seconds": 172800'
    )

    loaded = load_policy(text)

    assert loaded.policy.retention.changes_seconds == 172800
    assert [warning.path for warning in loaded.warnings] == ["retention.changes_seconds"]
    assert "more than once" in loaded.warnings[0].message
    assert check_policy_document(text).warnings == loaded.warnings


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "", "x", [], [None], {}, {"a": [1.0]}])
def test_closing_value_may_be_any_json(value: Any, edited_text: Callable[..., str]) -> None:
    path = f"{RULE}.publication.close_when.equals"

    policy = load_policy(edited_text((path, value), ("meta_fields.marker.schema", True))).policy

    publication = policy.entity_types["recipe"].rules[0].behavior.publication
    assert publication.model_dump()["close_when"]["equals"] == value
    assert type(publication.model_dump()["close_when"]["equals"]) is type(value)


@pytest.mark.parametrize(
    ("history", "effective"),
    [(..., 2592000), (0, 0), (1, 172800), (172800, 172800), (5_000_000, 5_000_000)],
)
def test_history_is_never_shorter_than_what_refers_to_it(
    history: Any, effective: int, edited: Callable[..., dict[str, Any]]
) -> None:
    document = edited(("retention.history_seconds", 1), ("retention.history_seconds", history))

    assert load_policy(json.dumps(document)).policy.history_seconds == effective


def test_history_covers_the_longest_staging_time(edited_text: Callable[..., str]) -> None:
    loaded = load_policy(edited_text((TTL, 4_000_000_001), ("retention.history_seconds", 1)))

    assert loaded.policy.history_seconds == 4_000_001


def test_policy_cannot_be_changed(edited_text: Callable[..., str]) -> None:
    policy = load_policy(edited_text()).policy

    with pytest.raises(ValueError, match="frozen"):
        policy.version = 2  # pyright: ignore[reportAttributeAccessIssue] -- what is tested
