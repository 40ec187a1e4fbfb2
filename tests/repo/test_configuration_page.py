"""`docs/configuration.md` is true: its examples work, and it names every member and every rule."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from patchouli.backend import (
    Selector,
    ValueValidators,
    check_policy_document,
    load_policy,
    load_providers,
    read_resource,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    found = re.findall(rf"^```json {name}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return found[0]


def test_small_policy_is_accepted_without_warning() -> None:
    report = check_policy_document(example("policy"))

    assert report.errors == ()
    assert report.warnings == ()


def test_request_of_the_page_selects_what_the_page_says() -> None:
    policy = load_policy(example("policy")).policy
    request = json.loads(example("request"))

    selection = Selector(policy).select(request["data"]["type"], request["meta"])
    ValueValidators(policy).require_valid(request["data"]["type"], request["data"]["value"])

    assert selection.scope.text == '{"household":"elm street"}'
    assert selection.strategy == "reject"


def test_provider_file_of_the_page_fits_its_policy() -> None:
    policy = load_policy(example("policy")).policy

    loaded = load_providers(example("providers"), policy)

    assert sorted(loaded.providers.providers) == ["local", "office"]
    assert loaded.warnings == ()


def members(node: Any) -> set[str]:
    if isinstance(node, list):
        return {name for item in node for name in members(item)}
    if not isinstance(node, dict):
        return set()
    own = set(node.get("properties", {}))
    return own | {name for member in node.values() for name in members(member)}


@pytest.mark.parametrize("document", ["patchouli.schema.json", "providers.schema.json"])
def test_every_member_is_described(document: Any) -> None:
    names = members(json.loads(read_resource(document)))

    missing = [
        name for name in sorted(names) if not re.search(rf"[`.\"{{ ]{re.escape(name)}\b", PAGE)
    ]

    assert missing == []


def test_every_rule_is_listed() -> None:
    listed = set(re.findall(r"\b([PR]\d+)\b", PAGE))

    assert {f"P{number}" for number in range(1, 51)} <= listed
    assert {f"R{number}" for number in range(1, 12)} <= listed
    for source in (ROOT / "packages/backend/src/patchouli/backend/config").glob("*.py"):
        for number in re.findall(r'rule="([a-z]+)"', source.read_text(encoding="utf-8")):
            assert f"| `{number}` |" in PAGE


def test_message_of_the_page_is_what_is_said() -> None:
    policy = json.loads(example("policy"))
    behavior = policy["entity_types"]["shopping_list"]["fallback"]
    behavior["consistency"]["snapshot"] = {"mode": "shared", "key_by": ["if_stale"]}

    error = check_policy_document(json.dumps(policy)).errors[0]

    shown = " ".join(re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[0].split())
    assert shown.endswith(f"{error.problem} ({error.rule}). {error.remedy}")
