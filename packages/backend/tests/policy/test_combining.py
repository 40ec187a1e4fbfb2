"""What several selections demand together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from patchouli.backend import Selector
from patchouli.backend.policy.combining import combined_consistency
from patchouli.provider import SessionRequirement, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from patchouli.provider import Consistency

META = {"ctx": {"team": "north"}, "session": "s", "call_id": "c", "seen_token": "t"}


@pytest.fixture
def combined(edited_policy: Callable[..., Any], small: Any) -> Callable[..., Consistency]:
    """Returns what types demand together whose `consistency` differs by these members."""

    def combine(*differences: dict[str, Any]) -> Consistency:
        edits: list[tuple[str, Any]] = []
        for number, difference in enumerate(differences):
            fallback = small["entity_types"]["recipe"]["fallback"]
            consistency = {**fallback["consistency"], **difference}
            edits.append(
                (
                    f"entity_types.t{number}",
                    {
                        "value_schema": True,
                        "rules": [],
                        "fallback": {**fallback, "consistency": consistency},
                    },
                )
            )
        selector = Selector(edited_policy(*edits))
        selections = [selector.select(f"t{number}", META) for number in range(len(differences))]
        return combined_consistency(selections, deadline_unix_ms=7)

    return combine


def session(*guarantees: str, key: str = "session") -> dict[str, Any]:
    return {"key_by": [key], "guarantees": list(guarantees)}


def acquire(*sources: str, requirements: Any = ()) -> dict[str, Any]:
    return {"acquire": {"allow_sources": list(sources), "requirements": list(requirements)}}


def test_guarantees_of_one_session_add_up_and_other_sessions_stay_apart(
    combined: Callable[..., Consistency],
) -> None:
    found = combined(
        {"sessions": [session("monotonic_reads")]},
        {"sessions": [session("read_your_writes"), session("read_your_writes", key="call")]},
    )

    first, second = found.sessions
    assert (first.monotonic_reads, first.read_your_writes) == (True, True)
    assert second == SessionRequirement(
        key=second.key, monotonic_reads=False, read_your_writes=True
    )
    assert first.key != second.key
    assert found.deadline_unix_ms == 7


def test_only_sources_that_all_allow_are_left(combined: Callable[..., Consistency]) -> None:
    both = acquire("authority", "replica")

    assert combined(both, both).allowed_sources == {Source.AUTHORITY, Source.REPLICA}
    assert combined(both, acquire("replica")).allowed_sources == {Source.REPLICA}
    assert combined(acquire("authority"), acquire("replica")).allowed_sources == frozenset()


def test_a_bound_or_a_domain_that_several_types_name_counts_once(
    combined: Callable[..., Consistency],
) -> None:
    causal = {"kind": "causal_after", "token": "token", "optional": False}
    domain = {"kind": "linearizable", "key_by": []}
    other = {"kind": "linearizable", "key_by": ["call"]}

    found = combined(
        acquire("authority", requirements=[causal, domain]),
        acquire("authority", requirements=[causal, domain]),
        acquire("authority", requirements=[other]),
    )

    assert found.minimum_tokens == ("t",)
    assert len(found.linearization_keys) == 2
