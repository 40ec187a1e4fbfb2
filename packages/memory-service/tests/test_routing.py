"""Which plugin gets a call: policy, filters, and their failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Feed, Plain, asked
from patchouli.memory_service import CallMeta, MemoryService, RouteCall, Source

if TYPE_CHECKING:
    from collections.abc import Callable


def raising(call: RouteCall) -> bool:
    raise RuntimeError(f"no opinion on {call.operation}")


async def routed(memory: MemoryService, meta: CallMeta = META) -> list[str]:
    return [one.plugin_id for one in await memory.retrieve(asked(meta=meta))]


@pytest.mark.checklist("MS-6")
async def test_a_filter_sees_operation_and_meta_once_a_call(memory: MemoryService) -> None:
    calls: list[RouteCall] = []

    def retrievals_from_chat(call: RouteCall) -> bool:
        calls.append(call)
        return call.operation == "retrieve" and call.meta.source.type == "chat"

    memory.register(Plain("oak", "acorn"), filter=retrievals_from_chat)

    retrieved = await memory.retrieve(asked("seeds"))
    updated = await memory.update(asked("seeds"))

    assert [one.value for one in retrieved] == ["acorn"]
    assert updated == ()
    assert calls == [
        RouteCall(operation="retrieve", meta=META),
        RouteCall(operation="update", meta=META),
    ]


@pytest.mark.checklist("MS-7")
async def test_a_refused_plugin_leaves_no_trace(memory: MemoryService) -> None:
    plugin = Plain("oak")
    memory.register(plugin, filter=lambda _: False)

    assert await memory.update(asked()) == ()
    assert plugin.asked == []


@pytest.mark.checklist("MS-8")
@pytest.mark.parametrize("operation", ["update", "retrieve"])
async def test_a_filter_that_raises_fails_its_plugin_alone(
    memory: MemoryService, operation: str
) -> None:
    plugin = Plain("oak")
    memory.register(plugin, filter=raising)
    memory.register(Plain("elm", 1))

    failed, fine = await getattr(memory, operation)(asked())

    assert (failed.ok, failed.error) == (False, f"no opinion on {operation}")
    assert (fine.plugin_id, fine.ok, fine.value) == ("elm", True, 1)
    assert plugin.asked == []


@pytest.mark.checklist("MS-9")
async def test_policy_and_both_filters_let_a_call_pass_in_order(
    started: Callable[..., Any],
) -> None:
    order: list[str] = []
    memory = await started(
        {
            "routing": {
                "oak": {
                    "enabled": True,
                    "operations": ["update", "retrieve"],
                    "sourceTypes": ["chat"],
                    "sourceIds": ["desk", "phone"],
                    "scopes": ["atlas"],
                    "attributes": {"lang": "en"},
                }
            }
        }
    )
    plugin = Plain("oak")
    plugin.filter = lambda _: order.append("plugin") or True  # type: ignore[attr-defined] # optional
    memory.register(plugin, filter=lambda _: order.append("registration") or True)

    assert await routed(memory) == ["oak"]
    assert order == ["plugin", "registration"]


@pytest.mark.checklist("MS-10")
@pytest.mark.parametrize(
    "policy",
    [
        {"operations": ["update"]},
        {"sourceTypes": ["mail"]},
        {"sourceIds": ["Desk"]},
        {"scopes": ["atlas "]},
        {"attributes": {"lang": "de"}},
        {"attributes": {"lang": "en", "tone": "dry"}},
    ],
)
async def test_a_policy_that_excludes_runs_no_filter(
    started: Callable[..., Any], policy: dict[str, Any]
) -> None:
    memory = await started({"routing": {"oak": policy}})
    plugin = Plain("oak")
    plugin.filter = raising  # type: ignore[attr-defined] # optional
    memory.register(plugin, filter=raising)

    assert await routed(memory) == []


@pytest.mark.checklist("MS-11")
async def test_a_plugin_that_is_switched_off_cannot_fail(started: Callable[..., Any]) -> None:
    memory = await started({"routing": {"oak": {"enabled": False}}})
    memory.register(Plain("oak"), filter=raising)

    assert await routed(memory) == []


@pytest.mark.checklist("MS-12")
async def test_empty_selectors_match_everything(started: Callable[..., Any]) -> None:
    nothing: dict[str, Any] = {
        "operations": [],
        "sourceTypes": [],
        "sourceIds": [],
        "scopes": [],
        "attributes": {},
    }
    memory = await started({"routing": {"oak": nothing, "unknown": {"enabled": False}}})
    memory.register(Plain("oak"))

    assert await routed(memory) == ["oak"]


@pytest.mark.checklist("MS-13")
@pytest.mark.parametrize(
    ("wanted", "found", "matches"),
    [
        (1, True, False),
        (True, 1, False),
        (1, 1.0, True),
        (None, None, True),
        ({"a": [1, {"b": 2}], "c": 0}, {"c": 0, "a": [1, {"b": 2}]}, True),
        ([1, 2], [2, 1], False),
    ],
)
async def test_attributes_are_compared_as_json(
    started: Callable[..., Any], wanted: Any, found: Any, *, matches: bool
) -> None:
    memory = await started({"routing": {"oak": {"attributes": {"mark": wanted}}}})
    memory.register(Plain("oak"))
    meta = CallMeta(source=META.source, scope="atlas", attributes={"mark": found, "more": 1})

    assert await routed(memory, meta) == (["oak"] if matches else [])


async def test_truthiness_decides(memory: MemoryService) -> None:
    memory.register(Plain("full"), filter=lambda _: [0])  # type: ignore[arg-type,return-value] # on purpose
    memory.register(Plain("empty"), filter=lambda _: "")  # type: ignore[arg-type,return-value] # on purpose

    assert await routed(memory) == ["full"]


async def test_a_filter_that_returns_an_awaitable_fails_its_plugin(memory: MemoryService) -> None:
    async def later() -> bool:
        return True

    made = later()
    memory.register(Plain("oak"), filter=lambda _: made)  # type: ignore[arg-type,return-value] # on purpose

    (outcome,) = await memory.retrieve(asked())

    assert not outcome.ok
    assert "awaitable" in str(outcome.error)
    with pytest.raises(RuntimeError):  # it was closed, or it would run
        made.send(None)


async def test_matching_names_the_plugins_of_a_call_and_asks_none(memory: MemoryService) -> None:
    plain, feed = Plain("oak"), Feed("elm")
    memory.register(plain)
    memory.register(feed)
    memory.register(Plain("ash"), filter=raising)
    memory.register(Feed("fir"), filter=lambda call: call.operation != "subscribe")

    assert memory.matching(RouteCall(operation="update", meta=META)) == ("oak", "elm", "fir")
    assert memory.matching(RouteCall(operation="subscribe", meta=META)) == ("elm",)
    assert (plain.asked, feed.asked) == ([], [])


async def test_a_caller_cannot_address_a_plugin_by_its_request(memory: MemoryService) -> None:
    memory.register(Plain("oak"))
    memory.register(Plain("elm"))
    meta = CallMeta(
        source=Source(type="oak", id="oak"), scope="oak", attributes={"pluginId": "oak"}
    )

    assert await routed(memory, meta) == ["oak", "elm"]
