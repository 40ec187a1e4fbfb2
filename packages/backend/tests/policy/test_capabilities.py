from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import (
    ConfigurationError,
    load_policy,
    match_capabilities,
    read_resource,
    require_capabilities,
)
from patchouli.provider import Capabilities

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend import Policy

EVERYTHING = Capabilities(**{field.name: True for field in fields(Capabilities)})
FALLBACK = "entity_types.recipe.fallback"
RULE = "entity_types.recipe.rules[0].behavior"
ACQUIRE = f"{FALLBACK}.consistency.acquire"


def without(*names: str) -> Capabilities:
    return replace(EVERYTHING, **dict.fromkeys(names, False))


@pytest.fixture
def policy(edited_text: Callable[..., str]) -> Callable[..., Policy]:
    def make(*edits: tuple[str, Any]) -> Policy:
        return load_policy(edited_text(*edits)).policy

    return make


def found(policy: Policy, capabilities: Capabilities) -> list[tuple[str | None, str | None, str]]:
    return [
        (finding.entity_type, finding.rule, finding.capability)
        for finding in match_capabilities(policy, capabilities)
    ]


def test_everything_satisfies_every_policy(policy: Callable[..., Policy]) -> None:
    assert match_capabilities(policy(), EVERYTHING) == []
    require_capabilities(policy(), EVERYTHING)


def test_replica_is_not_needed_as_long_as_the_authority_may_be_read(
    policy: Callable[..., Policy],
) -> None:
    both = policy((f"{ACQUIRE}.allow_sources", ["replica", "authority"]))

    assert match_capabilities(both, without("replica")) == []


def test_1_what_every_policy_needs_comes_first_and_in_order(
    policy: Callable[..., Policy],
) -> None:
    lacking = without("authority", "retrieval", "change_stream", "work_units")

    findings = match_capabilities(policy(), lacking)

    assert [(f.entity_type, f.capability) for f in findings[:3]] == [
        (None, "change_stream"),
        (None, "retrieval"),
        (None, "authority"),
    ]
    assert ("recipe", "grouped", "work_units") in found(policy(), lacking)


@pytest.mark.parametrize("name", ["change_stream", "retrieval", "authority"])
def test_1_start_is_refused(name: str, policy: Callable[..., Policy]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        require_capabilities(policy(), without(name))

    assert caught.value.kind == "Capability"
    assert name in caught.value.message


SESSION = {"key_by": ["session"], "guarantees": ["read_your_writes", "monotonic_reads"]}
LINEARIZABLE = {"kind": "linearizable", "key_by": []}
CAUSAL = {"kind": "causal_after", "token": "token", "optional": True}
ROWS: list[tuple[str, list[tuple[str, Any]], tuple[str, ...], list[str]]] = [
    ("2.1", [(f"{ACQUIRE}.allow_sources", ["replica"])], (), ["authority"]),
    (
        "2.2",
        [(f"{ACQUIRE}.allow_sources", ["replica"])],
        ("replica",),
        ["authority", "replica"],
    ),
    ("2.3", [(f"{ACQUIRE}.requirements", [CAUSAL])], ("causal_reads",), ["causal_reads"]),
    (
        "2.4",
        [(f"{ACQUIRE}.requirements", [LINEARIZABLE])],
        ("linearizable_reads",),
        ["linearizable_reads"],
    ),
    (
        "2.5",
        [(f"{FALLBACK}.consistency.sessions", [SESSION])],
        ("monotonic_reads", "read_your_writes"),
        ["monotonic_reads", "read_your_writes"],
    ),
    (
        "2.5-one",
        [(f"{FALLBACK}.consistency.sessions", [SESSION])],
        ("read_your_writes",),
        ["read_your_writes"],
    ),
    (
        "2.6",
        [(f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["call"]})],
        ("idempotency",),
        ["idempotency"],
    ),
]


@pytest.mark.parametrize(
    ("edits", "lacking", "capabilities"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_2_behavior_asks_for(
    *,
    edits: list[tuple[str, Any]],
    lacking: tuple[str, ...],
    capabilities: list[str],
    policy: Callable[..., Policy],
) -> None:
    asking = policy(*edits)

    assert found(asking, without(*lacking)) == [("recipe", None, name) for name in capabilities]
    # Row 2.1 is refused whatever is offered: no provider takes mutations anywhere else.
    is_satisfiable = "authority" not in capabilities
    assert is_satisfiable == (match_capabilities(asking, EVERYTHING) == [])
    with pytest.raises(ConfigurationError) as caught:
        require_capabilities(asking, without(*lacking))
    assert (caught.value.kind, caught.value.rule) == ("Capability", f"M-{capabilities[0]}")
    assert caught.value.path.startswith(FALLBACK)
    assert caught.value.remedy.endswith(".")


def test_2_7_batch_publication_asks_for_work_units(policy: Callable[..., Policy]) -> None:
    findings = match_capabilities(policy(), without("work_units"))

    assert [(f.rule, f.capability, f.place.dotted) for f in findings] == [
        ("grouped", "work_units", f"{RULE}.publication.mode")
    ]


def test_findings_stand_in_the_order_of_types_rules_and_questions(
    small: dict[str, Any], policy: Callable[..., Policy]
) -> None:
    recipe = small["entity_types"]["recipe"]
    asking = policy(
        ("entity_types.appetizer", recipe),
        (f"{ACQUIRE}.requirements", [LINEARIZABLE, CAUSAL]),
        (f"{FALLBACK}.consistency.sessions", [SESSION]),
        (f"{FALLBACK}.idempotency", {"mode": "keyed", "key_by": ["call"]}),
    )

    assert found(asking, Capabilities()) == [
        (None, None, "change_stream"),
        (None, None, "retrieval"),
        (None, None, "authority"),
        ("appetizer", "grouped", "authority"),
        ("appetizer", "grouped", "work_units"),
        ("appetizer", None, "authority"),
        ("recipe", "grouped", "authority"),
        ("recipe", "grouped", "work_units"),
        ("recipe", None, "authority"),
        ("recipe", None, "causal_reads"),
        ("recipe", None, "linearizable_reads"),
        ("recipe", None, "monotonic_reads"),
        ("recipe", None, "read_your_writes"),
        ("recipe", None, "idempotency"),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "patchouli.default.json",
        "patchouli.example.json",
        "patterns/causal_session.json",
        "patterns/eventual.json",
        "patterns/shared_transaction.json",
    ],
)
def test_every_shipped_policy_can_be_kept_without_replicas(name: Any) -> None:
    policy = load_policy(read_resource(name)).policy

    require_capabilities(policy, without("replica"))


def test_the_default_policy_is_refused_without_work_units() -> None:
    policy = load_policy(read_resource("patchouli.default.json")).policy

    with pytest.raises(ConfigurationError) as caught:
        require_capabilities(policy, without("work_units"))

    assert caught.value.rule == "M-work_units"
    assert caught.value.path == "entity_types.artifact.rules[0].behavior.publication.mode"
