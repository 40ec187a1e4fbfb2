"""What is allowed and warned about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import load_policy

if TYPE_CHECKING:
    from collections.abc import Callable

FALLBACK = "entity_types.recipe.fallback"
RULE = "entity_types.recipe.rules[0].behavior"
RULES = "entity_types.recipe.rules"
REQUIREMENTS = f"{FALLBACK}.consistency.acquire.requirements"


def warned(text: str) -> list[tuple[str, str]]:
    return [(warning.path, warning.message) for warning in load_policy(text).warnings]


def rule(*aliases: str, name: str = "other", behavior: str = "FALLBACK") -> dict[str, Any]:
    return {"name": name, "when": {"all_present": list(aliases)}, "behavior": behavior}


# (what, edits, path of the one warning, words of it)
ROWS: list[tuple[str, list[tuple[str, Any]], str, str]] = [
    (
        "rule-behind-a-subset",
        [(f"{RULES}.+", rule("call", "unit", "session"))],
        f"{RULES}[1]",
        "rules[0]",
    ),
    ("rule-behind-an-equal-one", [(f"{RULES}.+", rule("call", "unit"))], f"{RULES}[1]", "rules[0]"),
    (
        "rule-on-an-impossible-alias",
        [
            ("meta_fields.never", {"pointer": "/never", "schema": False}),
            (f"{RULES}.+", rule("never")),
        ],
        f"{RULES}[1].when.all_present",
        '"never"',
    ),
    (
        "closing-value-that-its-schema-forbids",
        [("meta_fields.marker.schema", {"enum": ["open"]})],
        f"{RULE}.publication.close_when.equals",
        '"done"',
    ),
    (
        "rule-that-does-not-guarantee-a-key",
        [(f"{RULE}.idempotency", {"mode": "keyed", "key_by": ["session"]})],
        f"{RULE}.idempotency.key_by",
        '"session"',
    ),
    (
        "fallback-that-no-request-can-satisfy",
        [
            (f"{RULES}.+", rule("session")),
            (
                f"{FALLBACK}.consistency.commit.ordering",
                {"kind": "serialize", "key_by": ["session"]},
            ),
        ],
        f"{FALLBACK}.consistency.commit.ordering.key_by",
        '"session"',
    ),
    (
        "strategy-that-may-be-any-string",
        [("meta_fields.strategy.schema", {"type": "string"}), (RULES, [])],
        f"{FALLBACK}.conflict.strategy_from",
        "admits",
    ),
    (
        "strategy-with-one-name-too-many",
        [
            ("meta_fields.strategy.schema", {"enum": ["merge", "mvcc", "reject", "newest"]}),
            (RULES, []),
        ],
        f"{FALLBACK}.conflict.strategy_from",
        '"newest"',
    ),
    (
        "base-versions-that-may-be-one-string",
        [
            (
                "meta_fields.bases.schema",
                {"type": ["array", "string"], "uniqueItems": True, "items": {"type": "string"}},
            ),
            (RULES, []),
        ],
        f"{FALLBACK}.conflict.base_versions",
        '"v"',
    ),
    (
        "base-versions-that-may-repeat",
        [("meta_fields.bases.schema", {"type": "array", "items": {"type": "string"}}), (RULES, [])],
        f"{FALLBACK}.conflict.base_versions",
        '["v","v"]',
    ),
    (
        "base-versions-that-may-be-numbers",
        [("meta_fields.bases.schema", {"type": "array", "uniqueItems": True}), (RULES, [])],
        f"{FALLBACK}.conflict.base_versions",
        "[1]",
    ),
    (
        "causal-token-that-may-be-a-number",
        [
            ("meta_fields.token.schema", True),
            (REQUIREMENTS, [{"kind": "causal_after", "token": "token"}]),
        ],
        f"{REQUIREMENTS}[0].token",
        "admits null",
    ),
    (
        "causal-alias-required-and-optional",
        [
            (
                REQUIREMENTS,
                [
                    {"kind": "causal_after", "token": "token", "optional": True},
                    {"kind": "causal_after", "token": "token"},
                ],
            )
        ],
        f"{REQUIREMENTS}[1].optional",
        '"token"',
    ),
    (
        "causal-token-at-the-retrieval-cursor",
        [
            ("meta_fields.token.pointer", "/next_cursor"),
            (REQUIREMENTS, [{"kind": "causal_after", "token": "token"}]),
        ],
        f"{REQUIREMENTS}[0].token",
        "next_cursor",
    ),
    (
        "causal-token-inside-the-retrieval-cursor",
        [
            ("meta_fields.token.pointer", "/next_cursor/token"),
            (REQUIREMENTS, [{"kind": "causal_after", "token": "token"}]),
        ],
        f"{REQUIREMENTS}[0].token",
        "next_cursor",
    ),
    *[
        (
            f"{name}-beyond-64-bits",
            [(f"retention.{name}", 2**63 // 1000 + 1)],
            f"retention.{name}",
            "endless",
        )
        for name in ("changes_seconds", "idempotency_seconds", "history_seconds")
    ],
    (
        "staging-time-beyond-64-bits",
        [(f"{RULE}.publication.staging_ttl_ms", 2**63)],
        f"{RULE}.publication.staging_ttl_ms",
        "endless",
    ),
    (
        "history-shorter-than-changes",
        [("retention.history_seconds", 172799)],
        "retention.history_seconds",
        "172800",
    ),
    (
        "scope-with-fractions",
        [("meta_fields.team.schema", {"type": ["string", "number"]})],
        "meta_fields.team.schema",
        "fraction",
    ),
]


@pytest.mark.parametrize(
    ("edits", "path", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_warning_names_place_and_reason(
    edits: list[tuple[str, Any]],
    path: str,
    words: str,
    small: dict[str, Any],
    edited_text: Callable[..., str],
) -> None:
    fallback = small["entity_types"]["recipe"]["fallback"]
    filled = [
        (at, {**value, "behavior": fallback})
        if isinstance(value, dict) and value.get("behavior") == "FALLBACK"
        else (at, value)
        for at, value in edits
    ]

    warnings = warned(edited_text(*filled))

    assert [warning[0] for warning in warnings] == [path]
    assert words in warnings[0][1]
    assert warnings[0][1].endswith(".")


@pytest.mark.parametrize(
    "edits",
    [
        [],
        [("retention.history_seconds", 0)],
        [("retention.history_seconds", 172800)],
        [("retention.changes_seconds", (2**63 - 1) // 1000)],
        [(f"{RULE}.publication.staging_ttl_ms", 2**63 - 1)],
        # A larger condition in front of a smaller one is the way to write alternatives.
        [(f"{RULES}[0].when.all_present", ["unit", "call", "session"])],
        # A type without rules says plainly what every request must carry.
        [(RULES, []), (f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["call"]})],
        # The fallback may ask for what no rule takes alone.
        [(f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["call"]})],
        [("meta_fields.next_cursor", {"pointer": "/mine", "schema": {"type": "string"}})],
        [("meta_fields.call.schema", False)],
    ],
)
def test_nothing_is_said_without_reason(
    edits: list[tuple[str, Any]], edited_text: Callable[..., str]
) -> None:
    if edits and edits[0] == ("meta_fields.call.schema", False):
        edits = [("entity_types.recipe.rules", []), *edits]

    assert warned(edited_text(*edits)) == []
