"""What a user may write, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from patchouli.harness import Kernel, ScopeState
from patchouli.memory_service import ConfigurationError, MemoryServiceConfig, memory_service


def test_defaults() -> None:
    config = MemoryServiceConfig.parse(None)

    assert config == MemoryServiceConfig.parse({})
    assert config.retrieve_timeout_ms == 30000
    assert config.cancel_grace_ms == 1000
    assert config.max_pending_changes == 10000
    assert config.routing == {}


def test_null_is_absent_at_every_level() -> None:
    written: dict[str, Any] = {
        "retrieveTimeoutMs": None,
        "cancelGraceMs": None,
        "routing": {
            "gone": None,
            "oak": {"enabled": None, "operations": None, "attributes": None, "scopes": ["atlas"]},
        },
    }

    config = MemoryServiceConfig.parse(written)

    assert config == MemoryServiceConfig.parse({"routing": {"oak": {"scopes": ["atlas"]}}})
    assert MemoryServiceConfig.parse({"routing": None}) == MemoryServiceConfig.parse({})


def test_null_as_the_value_of_an_attribute_is_a_value() -> None:
    config = MemoryServiceConfig.parse({"routing": {"oak": {"attributes": {"mark": None}}}})

    assert config.routing["oak"].attributes == {"mark": None}


def test_a_timeout_falls_back_from_policy_to_service_to_default() -> None:
    assert (
        MemoryServiceConfig.parse({"routing": {"oak": {}}}).routing["oak"].retrieve_timeout_ms
        is None
    )
    assert MemoryServiceConfig.parse({"retrieveTimeoutMs": 5}).retrieve_timeout_ms == 5


def test_durations_saturate() -> None:
    assert (
        MemoryServiceConfig.parse({"retrieveTimeoutMs": 10**400}).retrieve_timeout_ms == 2**63 - 1
    )


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ({"retrieveTimeout": 5}, "/retrieveTimeout"),
        ({"retrieve_timeout_ms": 5}, "/retrieve_timeout_ms"),
        ({"unknown": None}, "/unknown"),
        ({"retrieveTimeoutMs": 0}, "/retrieveTimeoutMs"),
        ({"retrieveTimeoutMs": True}, "/retrieveTimeoutMs"),
        ({"retrieveTimeoutMs": 5.0}, "/retrieveTimeoutMs"),
        ({"retrieveTimeoutMs": "5"}, "/retrieveTimeoutMs"),
        ({"cancelGraceMs": -1}, "/cancelGraceMs"),
        ({"maxPendingChanges": 0}, "/maxPendingChanges"),
        ({"routing": []}, "/routing"),
        ({"routing": {"o/k": {"enable": True}}}, "/routing/o~1k/enable"),
        ({"routing": {"oak": {"enabled": 1}}}, "/routing/oak/enabled"),
        ({"routing": {"oak": {"operations": "update"}}}, "/routing/oak/operations"),
        ({"routing": {"oak": {"operations": ["forget"]}}}, "/routing/oak/operations/0"),
        ({"routing": {"oak": {"operations": [None]}}}, "/routing/oak/operations/0"),
        ({"routing": {"oak": {"scopes": [7]}}}, "/routing/oak/scopes/0"),
        ({"routing": {"oak": {"attributes": []}}}, "/routing/oak/attributes"),
        ({"routing": {"oak": {"attributes": {"a": {1}}}}}, "/routing/oak/attributes"),
        ({"routing": {"oak": {"attributes": {"a": float("nan")}}}}, "/routing/oak/attributes"),
        ([], ""),
        ("routing", ""),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(written: Any, place: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        MemoryServiceConfig.parse(written)

    (problem,) = refused.value.problems
    assert problem.startswith(f"{place}: ")


async def test_the_service_does_not_start_with_a_wrong_configuration(kernel: Kernel) -> None:
    scope = kernel.root.plugin(memory_service(), {"routng": {}})

    with pytest.raises(ConfigurationError):
        await scope

    assert scope.state is ScopeState.FAILED
    assert kernel.root.find("patchouli") is None
