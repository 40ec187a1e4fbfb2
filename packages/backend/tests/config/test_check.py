"""Every rule P1 … P50, on the behaviors of rules and of fallbacks alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import ConfigurationError, check_policy, check_policy_document, load_policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend import Policy

FALLBACK = "entity_types.recipe.fallback"
RULE = "entity_types.recipe.rules[0].behavior"
NOWHERE = {"$ref": "urn:example:nowhere"}
LINEARIZABLE = {"kind": "linearizable", "key_by": []}
CAUSAL = {"kind": "causal_after", "token": "token"}
SESSION = {"key_by": ["session"], "guarantees": ["monotonic_reads"]}
FIELD = {"pointer": "/x", "schema": True}

# (rule, edits, path of the finding, whether the JSON Schema refuses the document already)
Row = tuple[int, list[tuple[str, Any]], str, bool]

ROOT_ROWS: list[Row] = [
    (1, [("version", 2)], "version", True),
    (2, [("meta_fields", {})], "meta_fields", True),
    (3, [("entity_types", {})], "entity_types", True),
    (4, [("retention.idempotency_seconds", 0)], "retention.idempotency_seconds", True),
    (4, [("retention.idempotency_seconds", -1)], "retention.idempotency_seconds", True),
    (5, [("retention.changes_seconds", 0)], "retention.changes_seconds", True),
    (6, [("meta_fields.", FIELD)], "meta_fields", True),
    (7, [("meta_fields.call.pointer", "call_id")], "meta_fields.call.pointer", True),
    (7, [("meta_fields.call.pointer", "")], "meta_fields.call.pointer", True),
    (7, [("meta_fields.call.pointer", "/a~2")], "meta_fields.call.pointer", False),
    (7, [("meta_fields.call.pointer", "/a~")], "meta_fields.call.pointer", False),
    (8, [("meta_fields.call.pointer", "/deadline_unix_ms")], "meta_fields.call.pointer", False),
    (9, [("meta_fields.call.schema", {"type": "text"})], "meta_fields.call.schema", False),
    (9, [("meta_fields.call.schema", {"minLength": -1})], "meta_fields.call.schema", False),
    (9, [("meta_fields.call.schema", {"not": {"enum": 1}})], "meta_fields.call.schema", False),
    (10, [("meta_fields.call.schema", NOWHERE)], "meta_fields.call.schema", False),
    (10, [("meta_fields.call.schema", {"pattern": "("})], "meta_fields.call.schema", False),
    (11, [("entity_identity.scope_by", ["team", "nobody"])], "entity_identity.scope_by", False),
    (12, [("entity_identity.scope_by", ["team", "team"])], "entity_identity.scope_by", True),
    (
        13,
        [("entity_types.", {"value_schema": True, "rules": [], "fallback": {}})],
        "entity_types",
        True,
    ),
    (
        14,
        [("entity_types.recipe.value_schema", {"required": "title"})],
        "entity_types.recipe.value_schema",
        False,
    ),
    (
        15,
        [("entity_types.recipe.value_schema", {"$ref": "#/$defs/none"})],
        "entity_types.recipe.value_schema",
        False,
    ),
    (
        15,
        [("entity_types.recipe.value_schema", {"$schema": "urn:example:draft"})],
        "entity_types.recipe.value_schema",
        False,
    ),
    (
        16,
        [
            (
                "entity_types.recipe.rules.+",
                {"name": "grouped", "when": {"all_present": ["call"]}, "behavior": "FALLBACK"},
            )
        ],
        "entity_types.recipe.rules[1].name",
        False,
    ),
    (
        17,
        [("entity_types.recipe.rules[0].when.all_present", [])],
        "entity_types.recipe.rules[0].when.all_present",
        True,
    ),
    (
        18,
        [("entity_types.recipe.rules[0].when.all_present", ["nobody"])],
        "entity_types.recipe.rules[0].when.all_present",
        False,
    ),
    (
        18,
        [("entity_types.recipe.rules[0].when.all_present", ["call", "call"])],
        "entity_types.recipe.rules[0].when.all_present",
        True,
    ),
    (49, [("meta_fields.call.pointer", "/ctx")], "meta_fields.member.pointer", False),
    (49, [("meta_fields.call.pointer", "/ctx/team/id")], "meta_fields.call.pointer", False),
    (50, [("retention.history_seconds", -1)], "retention.history_seconds", True),
]


def key_rows(number: int, path: str, *context: tuple[str, Any]) -> list[Row]:
    """Return the three ways in which the key at `path` can be no control key."""
    return [
        (number, [*context, (path, ["call", "nobody"])], path, False),
        (number, [*context, (path, ["call", "call"])], path, True),
        (number, [*context, (path, ["call", "team"])], path, False),
    ]


# Paths below the root of one behavior; each row is tried on an immediate and on a batch behavior.
IMMEDIATE_ROWS: list[Row] = [
    (
        22,
        [("consistency.snapshot", {"mode": "shared", "key_by": ["call"]})],
        "consistency.snapshot.mode",
        False,
    ),
    (24, [("consistency.acquire.allow_sources", [])], "consistency.acquire.allow_sources", True),
    (
        25,
        [("consistency.acquire.allow_sources", ["authority", "authority"])],
        "consistency.acquire.allow_sources",
        True,
    ),
    (
        26,
        [("consistency.acquire.requirements", [{**CAUSAL, "token": "nobody"}])],
        "consistency.acquire.requirements[0].token",
        False,
    ),
    (
        26,
        [("consistency.acquire.requirements", [LINEARIZABLE, {**CAUSAL, "token": "nobody"}])],
        "consistency.acquire.requirements[1].token",
        False,
    ),
    *key_rows(
        27,
        "consistency.acquire.requirements[0].key_by",
        ("consistency.acquire.requirements", [LINEARIZABLE]),
    ),
    (
        28,
        [
            (
                "consistency.acquire.requirements",
                [LINEARIZABLE, {"kind": "linearizable", "key_by": ["call"]}],
            )
        ],
        "consistency.acquire.requirements",
        False,
    ),
    (
        29,
        [
            ("consistency.acquire.requirements", [LINEARIZABLE]),
            ("consistency.acquire.allow_sources", ["replica"]),
        ],
        "consistency.acquire.allow_sources",
        False,
    ),
    (
        30,
        [("consistency.sessions", [{**SESSION, "key_by": []}])],
        "consistency.sessions[0].key_by",
        True,
    ),
    *key_rows(31, "consistency.sessions[0].key_by", ("consistency.sessions", [SESSION])),
    (
        32,
        [
            (
                "consistency.sessions",
                [
                    {"key_by": ["session", "call"], "guarantees": ["monotonic_reads"]},
                    {"key_by": ["call", "session"], "guarantees": ["read_your_writes"]},
                ],
            )
        ],
        "consistency.sessions[1].key_by",
        False,
    ),
    (
        33,
        [("consistency.sessions", [{**SESSION, "guarantees": []}])],
        "consistency.sessions[0].guarantees",
        True,
    ),
    (
        34,
        [
            (
                "consistency.sessions",
                [{**SESSION, "guarantees": ["monotonic_reads", "monotonic_reads"]}],
            )
        ],
        "consistency.sessions[0].guarantees",
        True,
    ),
    *key_rows(
        36,
        "consistency.commit.ordering.key_by",
        ("consistency.commit.ordering", {"kind": "serialize", "key_by": []}),
    ),
    (37, [("idempotency", {"mode": "keyed", "key_by": []})], "idempotency.key_by", True),
    *key_rows(38, "idempotency.key_by", ("idempotency", {"mode": "keyed", "key_by": ["call"]})),
    (39, [("conflict.strategy_from", "nobody")], "conflict.strategy_from", False),
    (40, [("conflict.base_versions", "nobody")], "conflict.base_versions", False),
    (41, [("conflict.merge[0].path", "steps")], "conflict.merge[0].path", True),
    (41, [("conflict.merge[0].path", "")], "conflict.merge[0].path", True),
    (41, [("conflict.merge[0].path", "/steps~x")], "conflict.merge[0].path", False),
    *[
        (
            42,
            [("conflict.merge.+", {"path": path, "strategy": "automerge", "group_by": []})],
            "conflict.merge[1].path",
            False,
        )
        for path in ("/steps", "/steps/0")
    ],
    (
        42,
        [
            ("conflict.merge[0].path", "/steps/0/text"),
            ("conflict.merge.+", {"path": "/steps", "strategy": "automerge", "group_by": []}),
        ],
        "conflict.merge[1].path",
        False,
    ),
    (43, [("conflict.merge[0].group_by", ["kind"])], "conflict.merge[0].group_by", True),
    (43, [("conflict.merge[0].group_by", ["/kind", "/~"])], "conflict.merge[0].group_by", False),
    (44, [("conflict.merge[0].group_by", ["/kind", "/kind"])], "conflict.merge[0].group_by", True),
]
BATCH_ROWS: list[Row] = [
    (19, [("consistency.snapshot.key_by", [])], "consistency.snapshot.key_by", True),
    *key_rows(20, "consistency.snapshot.key_by"),
    (21, [("consistency.snapshot.key_by", ["unit"])], "consistency.snapshot.key_by", False),
    (23, [("consistency.snapshot", {"mode": "request"})], "consistency.snapshot.mode", False),
    (35, [("consistency.sessions", [SESSION])], "consistency", False),
    (35, [("consistency.acquire.requirements", [CAUSAL])], "consistency", False),
    (45, [("publication.key_by", [])], "publication.key_by", True),
    *key_rows(46, "publication.key_by"),
    (47, [("publication.staging_ttl_ms", 0)], "publication.staging_ttl_ms", True),
    (48, [("publication.close_when.field", "nobody")], "publication.close_when.field", False),
]


def below(root: str, row: Row) -> Row:
    """Return `row` with its paths below `root`."""
    number, edits, path, by_schema = row
    return number, [(f"{root}.{at}", value) for at, value in edits], f"{root}.{path}", by_schema


# A rule comes with the batch behavior of the small policy, a fallback with the immediate one; for
# the other combination the two trade places first.
SWAP: list[tuple[str, Any]] = [(RULE, "FALLBACK"), (FALLBACK, "RULE")]
BEHAVIOR_ROWS: list[tuple[bool, Row]] = [
    *[(False, below(FALLBACK, row)) for row in IMMEDIATE_ROWS],
    *[(False, below(RULE, row)) for row in BATCH_ROWS],
    *[(True, below(RULE, row)) for row in IMMEDIATE_ROWS],
    *[(True, below(FALLBACK, row)) for row in BATCH_ROWS],
]
ROWS: list[tuple[bool, Row]] = [*[(False, row) for row in ROOT_ROWS], *BEHAVIOR_ROWS]
IDS = [f"P{row[0]}-{row[2]}-{index}" for index, (_, row) in enumerate(ROWS)]


@pytest.fixture
def broken(
    small: dict[str, Any], edited: Callable[..., dict[str, Any]]
) -> Callable[..., tuple[tuple[str, Any], ...]]:
    """Returns the edits of a row with the placeholders for whole behaviors filled in."""
    behaviors = {
        "FALLBACK": small["entity_types"]["recipe"]["fallback"],
        "RULE": small["entity_types"]["recipe"]["rules"][0]["behavior"],
    }

    def fill(value: Any) -> Any:
        if isinstance(value, str):
            return behaviors.get(value, value)
        if isinstance(value, dict):
            return {
                name: behaviors["FALLBACK"] if name == "fallback" and not member else fill(member)
                for name, member in value.items()
            }
        return value

    def edits(row: Row, *, swap: bool) -> tuple[tuple[str, Any], ...]:
        return tuple((path, fill(value)) for path, value in [*(SWAP if swap else []), *row[1]])

    return edits


@pytest.mark.parametrize(("swap", "row"), ROWS, ids=IDS)
def test_rule_is_checked_on_a_policy_that_was_built_in_a_program(
    *, swap: bool, row: Row, broken: Callable[..., Any], edited_policy: Callable[..., Policy]
) -> None:
    findings = check_policy(edited_policy(*broken(row, swap=swap)))

    assert (f"P{row[0]}", row[2]) in [(finding.rule, finding.path) for finding in findings]
    assert all(finding.kind == "Invalid" for finding in findings)


@pytest.mark.parametrize(("swap", "row"), ROWS, ids=IDS)
def test_document_is_refused_by_the_first_stage_that_can(
    *, swap: bool, row: Row, broken: Callable[..., Any], edited_text: Callable[..., str]
) -> None:
    number, _, path, by_schema = row
    text = edited_text(*broken(row, swap=swap))

    report = check_policy_document(text)
    with pytest.raises(ConfigurationError) as caught:
        load_policy(text)

    assert str(caught.value) == str(report.errors[0])
    if by_schema:
        assert {error.kind for error in report.errors} == {"Schema"}
    else:
        assert (f"P{number}", path) in [(error.rule, error.path) for error in report.errors]


def test_every_rule_has_a_row() -> None:
    assert {row[0] for _, row in ROWS} == set(range(1, 51))


@pytest.mark.parametrize(("swap", "row"), ROWS, ids=IDS)
def test_message_names_path_rule_problem_and_remedy(
    *, swap: bool, row: Row, broken: Callable[..., Any], edited_policy: Callable[..., Policy]
) -> None:
    finding = next(
        found
        for found in check_policy(edited_policy(*broken(row, swap=swap)))
        if found.rule == f"P{row[0]}"
    )

    assert finding.message == (
        f"{finding.path}: {finding.problem} ({finding.rule}). {finding.remedy}"
    )
    assert len(finding.problem) > 10
    assert finding.remedy.endswith(".")


# What is reported first where several rules are broken.
ORDER_ROWS: list[tuple[str, list[tuple[str, Any]], list[str]]] = [
    ("root before fields", [("version", 2), ("meta_fields.call.pointer", "/~")], ["P1", "P7"]),
    (
        "fields by code point",
        [("meta_fields.unit.pointer", "/~"), ("meta_fields.call.pointer", "/~")],
        ["P7", "P7"],
    ),
    (
        "fields before scope before types",
        [
            ("entity_types.recipe.value_schema", {"type": 1}),
            ("entity_identity.scope_by", ["team", "nobody"]),
            ("meta_fields.call.schema", NOWHERE),
        ],
        ["P10", "P11", "P14"],
    ),
    (
        "rules before the fallback",
        [
            (f"{FALLBACK}.conflict.strategy_from", "nobody"),
            (f"{RULE}.conflict.base_versions", "nobody"),
        ],
        ["P40", "P39"],
    ),
    (
        "an unknown publication key is reported as a difference from the snapshot key",
        [(f"{RULE}.publication.key_by", ["unit", "nobody"])],
        ["P21", "P46"],
    ),
    (
        "unknown before scope alias in a key",
        [(f"{RULE}.consistency.snapshot.key_by", ["team", "nobody"])],
        ["P20", "P21"],
    ),
    (
        "consistency before idempotency before conflict",
        [
            (f"{FALLBACK}.conflict.strategy_from", "nobody"),
            (f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["nobody"]}),
            (f"{FALLBACK}.consistency.commit.ordering", {"kind": "serialize", "key_by": ["team"]}),
        ],
        ["P36", "P38", "P39"],
    ),
    (
        "own additions come last",
        [
            ("meta_fields.call.pointer", "/ctx"),
            (f"{FALLBACK}.conflict.strategy_from", "nobody"),
        ],
        ["P39", "P49", "P49"],
    ),
]


@pytest.mark.parametrize(
    ("edits", "rules"),
    [(edits, rules) for _, edits, rules in ORDER_ROWS],
    ids=[name for name, _, _ in ORDER_ROWS],
)
def test_findings_stand_in_evaluation_order(
    edits: list[tuple[str, Any]], rules: list[str], edited_policy: Callable[..., Policy]
) -> None:
    findings = check_policy(edited_policy(*edits))

    assert [finding.rule for finding in findings] == rules


def test_fields_are_visited_by_code_point(edited_policy: Callable[..., Policy]) -> None:
    bad = {"pointer": "/~", "schema": True}
    policy = edited_policy(
        ("meta_fields.\U00010000", bad), ("meta_fields.\uffff", bad), ("meta_fields.z", bad)
    )

    assert [finding.path for finding in check_policy(policy)] == [
        "meta_fields.z.pointer",
        "meta_fields.\uffff.pointer",
        "meta_fields.\U00010000.pointer",
    ]


@pytest.mark.parametrize("path", ["/steps_two", "/step", "/other/steps"])
def test_paths_that_share_only_letters_do_not_overlap(
    path: str, edited_policy: Callable[..., Policy]
) -> None:
    rule = {"path": path, "strategy": "automerge", "group_by": []}

    assert check_policy(edited_policy((f"{FALLBACK}.conflict.merge.+", rule))) == []


@pytest.mark.parametrize(
    "pointer", ["/", "//", "/a~0b~1c", "/deadline_unix_ms/x", "/DEADLINE_UNIX_MS", "/0", "/-"]
)
def test_unusual_pointers_are_accepted(pointer: str, edited_text: Callable[..., str]) -> None:
    assert load_policy(edited_text(("meta_fields.call.pointer", pointer))).warnings == ()


def test_two_aliases_may_share_a_pointer(edited_text: Callable[..., str]) -> None:
    assert load_policy(edited_text(("meta_fields.call.pointer", "/ctx/team"))).policy


def test_keys_are_compared_as_sets(small: dict[str, Any], edited_text: Callable[..., str]) -> None:
    batch = small["entity_types"]["recipe"]["rules"][0]["behavior"]

    assert batch["consistency"]["snapshot"]["key_by"] == ["unit", "call"]
    assert batch["publication"]["key_by"] == ["call", "unit"]
    assert check_policy_document(edited_text()).errors == ()


def test_error_names_the_line_of_its_place() -> None:
    text = '{\n "version": 2,\n "other": 1\n}'

    report = check_policy_document(text)

    assert [(error.path, error.line, error.column) for error in report.errors] == [
        ("", 3, 11),
        ("", 1, 1),
        ("/version", 2, 13),
    ]
