"""The whole way: a call of the service, a plugin, the client, the daemon, its store, and back."""

from __future__ import annotations

from typing import Any

import pytest
from patchouli.harness import Kernel
from patchouli.memory_service import CallMeta, MemoryRequest, MemoryService, Outcome, Source
from patchouli.server.testing import memo, params, ref, revised

from tests.memory.crud_memory import CRUD_TEST


@pytest.fixture
async def memory(kernel: Kernel) -> MemoryService:
    await kernel.root.plugin(CRUD_TEST)
    return kernel.root.find("patchouli")


def asked(operation: str | None, data: Any, *, source: str = "crud-test") -> MemoryRequest:
    attributes: dict[str, Any] = {} if operation is None else {"operation": operation}
    meta = CallMeta(source=Source(type=source, id="test"), scope="atlas", attributes=attributes)
    return MemoryRequest(meta=meta, data=data)


async def value_of(outcomes: tuple[Outcome, ...]) -> Any:
    (outcome,) = outcomes
    assert outcome.ok, outcome.error
    assert outcome.plugin_id == "crud-test"
    return outcome.value


@pytest.mark.checklist("MS-80")
async def test_an_entity_lives_and_dies_through_the_service(memory: MemoryService) -> None:
    async def update(operation: str, data: Any) -> Any:
        return await value_of(await memory.update(asked(operation, data)))

    async def retrieve(operation: str, data: Any) -> Any:
        return await value_of(await memory.retrieve(asked(operation, data)))

    query = {"query": '{"text": "柚子"}', "types": ["memo"]}

    created = await update("create", params(memo("yuzu", {"text": "山椒と柚子"})))
    read = await retrieve("read", params(ref("yuzu")))
    found = await retrieve("retrieve", params(query))
    first = created["data"]["entity"]
    changed = await update(
        "update", params(revised("yuzu", {"text": "ゆず"}), base_versions=[first["version"]])
    )
    second = changed["data"]["entity"]
    await update("delete", params(ref("yuzu"), base_versions=[second["version"]]))
    gone = await retrieve("read", params(ref("yuzu")))

    assert first["state"] == "active"
    assert read["data"]["variants"] == [first]
    assert [hit["variants"][0]["ref"]["id"] for hit in found["data"]["hits"]] == ["yuzu"]
    assert second["value"] == {"text": "ゆず"}
    assert gone["data"]["state"] == "deleted"
    assert [variant["state"] for variant in gone["data"]["variants"]] == ["deleted"]


@pytest.mark.parametrize("operation", [None, "read", "forget"])
async def test_an_operation_of_another_kind_is_a_failure(
    memory: MemoryService, operation: str | None
) -> None:
    (outcome,) = await memory.update(asked(operation, params(ref("yuzu"))))

    assert not outcome.ok
    assert repr(operation) in str(outcome.error)


async def test_calls_of_other_sources_are_not_for_it(memory: MemoryService) -> None:
    assert await memory.retrieve(asked("read", params(ref("yuzu")), source="chat")) == ()


async def test_a_refusal_of_the_daemon_is_the_failure_of_the_plugin(memory: MemoryService) -> None:
    (outcome,) = await memory.retrieve(asked("read", params(ref("unheard-of"))))

    assert not outcome.ok
    assert "NOT_FOUND" in str(outcome.error)
