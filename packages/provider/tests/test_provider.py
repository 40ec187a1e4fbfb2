from __future__ import annotations

import pytest
from patchouli.provider import CompactionPlan, Provider, UnsupportedError

METHODS = {
    "capabilities",
    "checkpoint",
    "commit",
    "health",
    "initialize",
    "kind",
    "publish",
    "read",
    "read_changes",
    "read_references",
    "retrieve",
    "shutdown",
    "wait_for_changes",
}


@pytest.mark.parametrize("missing", sorted(METHODS))
def test_an_adapter_that_lacks_a_method_cannot_be_made(missing: str) -> None:
    members = dict.fromkeys(METHODS - {missing}, lambda: None)
    incomplete = type("Incomplete", (Provider,), members)

    with pytest.raises(TypeError, match=missing):
        incomplete()


def test_an_adapter_with_every_method_can_be_made() -> None:
    complete = type("Complete", (Provider,), dict.fromkeys(METHODS, lambda: None))

    assert isinstance(complete(), Provider)


async def test_an_adapter_need_not_compact() -> None:
    members = dict.fromkeys(METHODS, lambda: None) | {"kind": "complete"}
    complete = type("Complete", (Provider,), members)

    with pytest.raises(UnsupportedError) as refused:
        await complete().compact(CompactionPlan(limit=1))

    assert (refused.value.provider, refused.value.operation) == ("complete", "compact")
