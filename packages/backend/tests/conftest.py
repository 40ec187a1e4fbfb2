"""A small policy that every test may change, and the ways to change it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from patchouli.backend import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

# Machines are shared: how long one example takes says nothing about the code.
settings.register_profile("backend", deadline=None)
settings.load_profile("backend")

IMMEDIATE: dict[str, Any] = {
    "consistency": {
        "snapshot": {"mode": "request"},
        "acquire": {"allow_sources": ["authority"], "requirements": []},
        "sessions": [],
        "commit": {"ordering": {"kind": "none"}},
    },
    "idempotency": {"mode": "disabled"},
    "conflict": {
        "default_strategy": "merge",
        "strategy_from": "strategy",
        "base_versions": "bases",
        "merge": [{"path": "/steps", "strategy": "automerge", "group_by": ["/kind"]}],
        "otherwise": "mvcc",
    },
    "publication": {"mode": "immediate"},
}
BATCH: dict[str, Any] = {
    **IMMEDIATE,
    "consistency": {
        **IMMEDIATE["consistency"],
        "snapshot": {"mode": "shared", "key_by": ["unit", "call"]},
    },
    "publication": {
        "mode": "batch",
        "key_by": ["call", "unit"],
        "close_when": {"kind": "marker", "field": "marker", "equals": "done"},
        "staging_ttl_ms": 60000,
        "on_expire": "discard",
    },
}
TEXT = {"type": "string", "minLength": 1}
SMALL: dict[str, Any] = {
    "$schema": "./patchouli.schema.json",
    "version": 1,
    "retention": {"idempotency_seconds": 7200, "changes_seconds": 172800},
    "meta_fields": {
        "team": {"pointer": "/ctx/team", "schema": TEXT},
        "member": {"pointer": "/ctx/member", "schema": {"type": ["string", "integer"]}},
        "call": {"pointer": "/call_id", "schema": TEXT},
        "session": {"pointer": "/session", "schema": TEXT},
        "token": {"pointer": "/seen_token", "schema": {"type": "string"}},
        "unit": {"pointer": "/unit", "schema": TEXT},
        "marker": {"pointer": "/state", "schema": {"type": "string"}},
        "strategy": {"pointer": "/on_clash", "schema": {"enum": ["merge", "mvcc", "reject"]}},
        "bases": {
            "pointer": "/seen",
            "schema": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "uniqueItems": True,
            },
        },
    },
    "entity_identity": {"scope_by": ["team"]},
    "entity_types": {
        "recipe": {
            "value_schema": {"type": "object", "required": ["title"]},
            "rules": [
                {"name": "grouped", "when": {"all_present": ["unit", "call"]}, "behavior": BATCH}
            ],
            "fallback": IMMEDIATE,
        }
    },
}


def _unshared(value: Any) -> Any:
    """Return a copy in which no part stands twice, as a deep copy would leave it."""
    return json.loads(json.dumps(value))


Edit = tuple[str, Any]


def apply(document: Any, edits: list[Edit]) -> Any:
    """Return a copy of `document` with the value at each dotted path replaced, in order.

    A path is written as errors write it: `entity_types.recipe.rules[0].name`. `...` as the value
    removes the member. `+` as the last step appends to an array.
    """
    result = _unshared(document)
    for path, value in edits:
        steps = [
            int(step) if step.isdecimal() else step
            for step in path.replace("[", ".").replace("]", "").split(".")
        ]
        node = result
        for step in steps[:-1]:
            node = node[step]
        last = steps[-1]
        if value is ...:
            del node[last]
        elif last == "+":
            node.append(_unshared(value))
        else:
            node[last] = _unshared(value)
    return result


@pytest.fixture
def small() -> dict[str, Any]:
    """A valid policy document with one type, one batch rule and an immediate fallback."""
    return _unshared(SMALL)


@pytest.fixture
def edited() -> Callable[..., dict[str, Any]]:
    """Returns the small document with edits: `edited(("version", 2), …)`."""

    def edit(*edits: Edit) -> dict[str, Any]:
        return apply(SMALL, list(edits))

    return edit


@pytest.fixture
def edited_text(edited: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    """Returns the text of the small document with edits."""

    def edit(*edits: Edit) -> str:
        return json.dumps(edited(*edits))

    return edit


@pytest.fixture
def edited_policy(edited: Callable[..., dict[str, Any]]) -> Callable[..., Policy]:
    """Returns the small policy with edits as a model, checked by nothing but its types."""

    def edit(*edits: Edit) -> Policy:
        return Policy.model_validate(edited(*edits))

    return edit
