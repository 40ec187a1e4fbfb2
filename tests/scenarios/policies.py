"""The policies of the scenarios: shipped files as they are, or with one thing made different."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Final

CONFIG: Final = Path(__file__).parents[2] / "config"
TEXT: Final[dict[str, Any]] = {"type": "string", "minLength": 1}
TTL_MS: Final = 10_000


def shipped(name: str) -> dict[str, Any]:
    """Return a file below `config/`."""
    return json.loads((CONFIG / name).read_text(encoding="utf-8"))


def default() -> dict[str, Any]:
    """Return the default policy: immediate, and a unit where there is a `transaction_id`."""
    return shipped("patchouli.default.json")


def causal() -> dict[str, Any]:
    """Return the pattern of causal tokens and sessions."""
    return shipped("patterns/causal_session.json")


def keyed(policy: dict[str, Any]) -> dict[str, Any]:
    """Return a policy in which every mutation has to name its `call`."""
    policy = copy.deepcopy(policy)
    policy["meta_fields"]["call"] = {"pointer": "/call", "schema": TEXT}
    for behavior in behaviors(policy):
        behavior["idempotency"] = {"mode": "keyed", "key_by": ["call"]}
    return policy


def short_lived(policy: dict[str, Any], *types: str) -> dict[str, Any]:
    """Return a policy in which the units of all or some types live for TTL_MS."""
    policy = copy.deepcopy(policy)
    for behavior in behaviors(policy, *types):
        if behavior["publication"]["mode"] == "batch":
            behavior["publication"]["staging_ttl_ms"] = TTL_MS
    return policy


def with_guarantees(policy: dict[str, Any], *guarantees: str) -> dict[str, Any]:
    """Return a policy whose sessions promise just this."""
    policy = copy.deepcopy(policy)
    for behavior in behaviors(policy):
        for session in behavior["consistency"]["sessions"]:
            session["guarantees"] = list(guarantees)
    return policy


def behaviors(policy: dict[str, Any], *types: str) -> list[dict[str, Any]]:
    """Return all behaviors of all or some types, to be changed."""
    chosen = types or tuple(policy["entity_types"])
    return [
        behavior
        for name in chosen
        for behavior in (
            policy["entity_types"][name]["fallback"],
            *(rule["behavior"] for rule in policy["entity_types"][name]["rules"]),
        )
    ]
