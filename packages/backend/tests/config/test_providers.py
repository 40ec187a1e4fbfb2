"""Every check of the provider file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import (
    ConfigurationError,
    LocalProvider,
    RemoteProvider,
    RoutingRule,
    check_providers_document,
    endpoint_defect,
    load_policy,
    load_providers,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.backend import Policy

FILE: dict[str, Any] = {
    "$schema": "./providers.schema.json",
    "version": 1,
    "providers": {
        "local": {"kind": "local", "database": "data/p.db"},
        "shared": {
            "kind": "remote",
            "endpoint": "https://node.example:8443/base",
            "token_env": "NODE_TOKEN",
        },
    },
    "routing": {
        "default": "local",
        "rules": [{"scope": {"team": "north"}, "provider": "shared"}],
    },
}


@pytest.fixture
def policy(edited_text: Callable[..., str]) -> Policy:
    return load_policy(
        edited_text(
            ("entity_identity.scope_by", ["team", "member"]),
            ("meta_fields.member.schema", {"type": ["string", "integer"]}),
        )
    ).policy


def changed(*edits: tuple[str, Any]) -> str:
    document = json.loads(json.dumps(FILE))
    for path, value in edits:
        *steps, last = path.replace("[", ".").replace("]", "").split(".")
        node = document
        for step in steps:
            node = node[int(step) if step.isdecimal() else step]
        key: Any = int(last) if last.isdecimal() else last
        if value is ...:
            del node[key]
        else:
            node[key] = value
    return json.dumps(document)


def test_valid_file_is_parsed(policy: Policy) -> None:
    loaded = load_providers(json.dumps(FILE), policy)

    assert loaded.warnings == ()
    assert loaded.providers.providers == {
        "local": LocalProvider(database="data/p.db"),
        "shared": RemoteProvider(
            endpoint="https://node.example:8443/base",
            token_env="NODE_TOKEN",  # noqa: S106 -- the name of a variable, not a token
        ),
    }
    assert loaded.providers.routing.default == "local"
    assert loaded.providers.routing.rules == (
        RoutingRule(scope={"team": "north"}, provider="shared"),
    )


def test_database_counts_from_the_directory_of_the_file() -> None:
    relative, absolute = LocalProvider(database="data/p.db"), LocalProvider(database="/srv/p.db")

    assert relative.database_path(Path("/example")) == Path("/example/data/p.db")
    assert absolute.database_path(Path("/example")) == Path("/srv/p.db")


SHARED = "providers.shared"
RULE = "routing.rules[0]"
# (check, edits, path)
ROWS: list[tuple[str, list[tuple[str, Any]], str]] = [
    *[
        (f"missing-{name}", [(name, ...)], name)
        for name in ("$schema", "version", "providers", "routing")
    ],
    ("missing-default", [("routing.default", ...)], "routing.default"),
    ("missing-rules", [("routing.rules", ...)], "routing.rules"),
    ("missing-scope", [(f"{RULE}.scope", ...)], f"{RULE}.scope"),
    ("missing-rule-provider", [(f"{RULE}.provider", ...)], f"{RULE}.provider"),
    ("missing-kind", [(f"{SHARED}.kind", ...)], f"{SHARED}.kind"),
    ("missing-database", [("providers.local.database", ...)], "providers.local.database"),
    ("missing-endpoint", [(f"{SHARED}.endpoint", ...)], f"{SHARED}.endpoint"),
    ("missing-token_env", [(f"{SHARED}.token_env", ...)], f"{SHARED}.token_env"),
    ("unknown-root", [("extra", 1)], "extra"),
    ("unknown-provider-member", [(f"{SHARED}.token", "s3cret")], f"{SHARED}.token"),
    ("unknown-local-member", [("providers.local.endpoint", "x")], "providers.local.endpoint"),
    ("unknown-routing", [("routing.fallback", "local")], "routing.fallback"),
    ("unknown-rule", [(f"{RULE}.priority", 1)], f"{RULE}.priority"),
    ("null", [("routing.rules", None)], "routing.rules"),
    ("version-2", [("version", 2)], "version"),
    ("version-float", [("version", 1.0)], "version"),
    ("no-local", [("providers.local", ...)], "providers.local"),
    ("local-is-remote", [("providers.local", FILE["providers"]["shared"])], "providers.local"),
    ("empty-name", [("providers.", FILE["providers"]["shared"])], "providers"),
    ("kind", [(f"{SHARED}.kind", "cloud")], f"{SHARED}.kind"),
    (
        "second-local",
        [("providers.other", {"kind": "local", "database": "b.db"})],
        "providers.other",
    ),
    ("empty-database", [("providers.local.database", "")], "providers.local.database"),
    ("empty-endpoint", [(f"{SHARED}.endpoint", "")], f"{SHARED}.endpoint"),
    ("empty-token_env", [(f"{SHARED}.token_env", "")], f"{SHARED}.token_env"),
    ("endpoint", [(f"{SHARED}.endpoint", "http://example.com")], f"{SHARED}.endpoint"),
    ("default", [("routing.default", "nobody")], "routing.default"),
    ("empty-scope", [(f"{RULE}.scope", {})], f"{RULE}.scope"),
    ("rule-provider", [(f"{RULE}.provider", "nobody")], f"{RULE}.provider"),
    ("rule-field", [(f"{RULE}.scope", {"call": "c"})], f"{RULE}.scope.call"),
    ("rule-unknown-field", [(f"{RULE}.scope", {"nobody": 1})], f"{RULE}.scope.nobody"),
    ("rule-value", [(f"{RULE}.scope", {"team": ""})], f"{RULE}.scope.team"),
    ("rule-value-kind", [(f"{RULE}.scope", {"team": "n", "member": 1.5})], f"{RULE}.scope.member"),
]


@pytest.mark.parametrize(("edits", "path"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_check(edits: list[tuple[str, Any]], path: str, policy: Policy) -> None:
    text = changed(*edits)

    with pytest.raises(ConfigurationError) as caught:
        load_providers(text, policy)

    assert caught.value.path == path
    assert caught.value.remedy.endswith(".")
    assert str(check_providers_document(text, policy)[0]) == str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": NaN}', "\ufeff{}"])
def test_text_that_is_no_file_at_all(text: str, policy: Policy) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_providers(text, policy)

    assert caught.value.path == ""
    assert len(check_providers_document(text, policy)) == 1


def test_member_written_twice_is_refused(policy: Policy) -> None:
    text = json.dumps(FILE).replace('"default": "local"', '"default": "x", "default": "local"')

    with pytest.raises(ConfigurationError) as caught:
        load_providers(text, policy)

    assert (caught.value.kind, caught.value.path) == ("Json", "routing.default")


def test_values_are_not_shown(policy: Policy) -> None:
    """Somebody may write a token where it does not belong."""
    text = changed((f"{SHARED}.endpoint", "https://mira:s3cret@node.example"))

    assert "s3cret" not in str(check_providers_document(text, policy)[0])


def test_all_findings_of_a_stage_are_listed(policy: Policy) -> None:
    text = changed(("routing.default", "x"), (f"{RULE}.provider", "y"), (f"{RULE}.scope", {"z": 1}))

    assert [(error.rule, error.path) for error in check_providers_document(text, policy)] == [
        ("R7", "routing.default"),
        ("R9", f"{RULE}.provider"),
        ("R10", f"{RULE}.scope.z"),
    ]


@pytest.mark.parametrize(
    ("first", "second", "is_unreachable"),
    [
        ({"team": "n"}, {"team": "n"}, True),
        ({"team": "n"}, {"team": "n", "member": "m"}, True),
        ({"team": "n", "member": "m"}, {"team": "n"}, False),
        ({"team": "n"}, {"team": "s"}, False),
        ({"member": 1}, {"member": "1"}, False),
    ],
)
def test_unreachable_rule_is_warned_about(
    *, first: Any, second: Any, is_unreachable: bool, policy: Policy
) -> None:
    rules = [{"scope": scope, "provider": "shared"} for scope in (first, second)]

    warnings = load_providers(changed(("routing.rules", rules)), policy).warnings

    assert [warning.path for warning in warnings] == (
        ["routing.rules[1]"] if is_unreachable else []
    )


def test_global_scope_admits_no_rule(edited_text: Callable[..., str]) -> None:
    policy = load_policy(edited_text(("entity_identity.scope_by", []))).policy

    errors = check_providers_document(json.dumps(FILE), policy)

    assert [error.path for error in errors] == [f"{RULE}.scope.team"]
    assert "global" in errors[0].remedy


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://node.example",
        "https://node.example:8443/base/",
        "https://192.0.2.7",
        "https://[2001:db8::1]:9000",
        "HTTPS://NODE.EXAMPLE",
        "http://localhost",
        "http://LOCALHOST:8080/base",
        "http://127.0.0.1:8080",
        "http://127.255.3.4",
        "http://[::1]:8080",
    ],
)
def test_endpoint_is_accepted(endpoint: str) -> None:
    assert endpoint_defect(endpoint) is None


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://example.com",
        "http://128.0.0.1",
        "http://127.1",
        "http://0177.0.0.1",
        "http://2130706433",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://[::2]",
        "http://[::ffff:127.0.0.1]",
        "http://localhost.",
        "http://0.0.0.0",
        "ftp://node.example",
        "file:///tmp/x",
        "node.example",
        "//node.example",
        "https://",
        "https:///path",
        "https://:443",
        "https://node.example:0",
        "https://node.example:70000",
        "https://node.example:port",
        "https://[::1",
        "https://mira@node.example",
        "https://mira:secret@node.example",
        "http://localhost@example.com",
        "https://node.example?x=1",
        "https://node.example?",
        "https://node.example/#part",
        "https://node.example#",
        " https://node.example",
        "https://node.example ",
        "https://node\t.example",
        "https://node.example\n",
        "https://node.example\x00",
    ],
)
def test_endpoint_is_refused(endpoint: str) -> None:
    defect = endpoint_defect(endpoint)

    assert defect is not None
    assert defect[1].endswith(".")
