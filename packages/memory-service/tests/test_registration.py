"""Who may register what, and what is left of it when its owner stops."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
from memory_doubles import META, Plain, asked
from patchouli.harness import (
    PATCHOULI_REGISTRATIONS,
    Kernel,
    PluginSpec,
    Registrations,
    ScopeClosed,
)
from patchouli.memory_service import MemoryService, RegistrationError, RouteCall, memory_service

if TYPE_CHECKING:
    from collections.abc import Callable

RETRIEVE = RouteCall(operation="retrieve", meta=META)


@pytest.mark.checklist("MS-1")
async def test_without_configuration_the_service_is_there_and_needs_nothing(
    kernel: Kernel,
) -> None:
    spec = memory_service()
    await kernel.root.plugin(spec)
    memory: MemoryService = kernel.root.find("patchouli")
    plugin = Plain("oak")
    memory.register(plugin)

    await memory.retrieve(asked())

    assert spec.needs == ()
    (_, _, ctx) = plugin.asked[0]
    assert ctx.deadline is not None
    assert memory._core.config.retrieve_timeout_ms == 30000


@pytest.mark.checklist("MS-2")
@pytest.mark.parametrize("blank", ["", " ", "\t\n", "\u3000\ufeff"])
async def test_a_blank_id_is_refused(memory: MemoryService, blank: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        memory.register(Plain(blank))

    assert refused.value.reason == "blank-id"
    assert memory.matching(RETRIEVE) == ()


async def test_an_id_is_used_as_it_is_written(memory: MemoryService) -> None:
    memory.register(Plain(" oak "))
    memory.register(Plain("oak"))

    assert memory.matching(RETRIEVE) == (" oak ", "oak")


@pytest.mark.parametrize("odd", [None, 7, b"oak", "\ud800"])
async def test_an_id_that_is_no_text_is_refused(memory: MemoryService, odd: Any) -> None:
    with pytest.raises(RegistrationError):
        memory.register(Plain(odd))

    assert memory.matching(RETRIEVE) == ()


@pytest.mark.checklist("MS-3")
async def test_a_live_id_is_not_registered_again(memory: MemoryService) -> None:
    first = Plain("oak", "first")
    memory.register(first)

    with pytest.raises(RegistrationError) as refused:
        memory.register(Plain("oak", "second"))

    assert refused.value.reason == "duplicate-id"
    (outcome,) = await memory.retrieve(asked())
    assert outcome.value == "first"


@pytest.mark.checklist("MS-4")
async def test_a_registration_ends_with_the_scope_of_its_caller(
    memory: MemoryService, owner: Callable[[], Any]
) -> None:
    guest = await owner()
    guest.memory.register(Plain("guest"))
    memory.register(Plain("host"))
    before = [one.plugin_id for one in await memory.retrieve(asked())]

    await guest.close()

    assert before == ["guest", "host"]
    assert [one.plugin_id for one in await memory.retrieve(asked())] == ["host"]


@pytest.mark.checklist("MS-5")
async def test_a_stale_handle_leaves_a_later_registration_alone(memory: MemoryService) -> None:
    old = memory.register(Plain("oak"))
    await old.dispose()
    memory.register(Plain("oak", "new"))

    await old.dispose()

    (outcome,) = await memory.retrieve(asked())
    assert outcome.value == "new"
    with pytest.raises(RegistrationError):
        memory.register(Plain("oak", "newer"))


@pytest.mark.checklist("MS-14")
async def test_a_filter_that_is_a_coroutine_function_is_refused(memory: MemoryService) -> None:
    async def wants(call: RouteCall) -> bool:
        return True

    class Callable_:  # noqa: N801
        async def __call__(self, call: RouteCall) -> bool:
            return True

    async def yields(call: RouteCall) -> Any:
        yield True

    plugin = Plain("oak")
    for bad in (wants, functools.partial(wants), Callable_(), yields):
        with pytest.raises(RegistrationError) as refused:
            memory.register(plugin, filter=bad)
        assert refused.value.reason == "async-filter"
    plugin.filter = wants  # type: ignore[attr-defined] # an optional attribute
    with pytest.raises(RegistrationError):
        memory.register(plugin)

    assert memory.matching(RETRIEVE) == ()


@pytest.mark.parametrize("missing", ["update", "retrieve"])
async def test_a_plugin_without_a_method_is_refused(memory: MemoryService, missing: str) -> None:
    plugin = Plain("oak")
    setattr(plugin, missing, None)

    with pytest.raises(RegistrationError) as refused:
        memory.register(plugin)

    assert refused.value.reason == "not-a-plugin"


class Bare:
    """A plugin by its looks, for tests that break one thing of it."""

    id = "bare"

    async def update(self, request: Any, ctx: Any) -> Any:
        return None

    async def retrieve(self, request: Any, ctx: Any) -> Any:
        return None


async def test_a_class_in_place_of_an_object_is_refused(memory: MemoryService) -> None:
    with pytest.raises(RegistrationError, match="class") as refused:
        memory.register(Bare)  # type: ignore[arg-type] # what is refused

    assert refused.value.reason == "not-a-plugin"
    memory.register(Bare())


@pytest.mark.parametrize(
    ("method", "function"),
    [
        ("update", lambda _: None),
        ("retrieve", lambda _, *, ctx: ctx),
        ("subscribe", lambda _, __: None),
    ],
)
async def test_a_method_that_cannot_take_its_arguments_is_refused(
    memory: MemoryService, method: str, function: Any
) -> None:
    plugin = Bare()
    setattr(plugin, method, function)

    with pytest.raises(RegistrationError, match=method) as refused:
        memory.register(plugin)

    assert refused.value.reason == "not-a-plugin"
    assert memory.matching(RETRIEVE) == ()


@pytest.mark.parametrize("function", [lambda *_: None, lambda a, b, c=1: a, max, Plain("x").update])
async def test_a_method_that_may_take_its_arguments_is_taken(
    memory: MemoryService, function: Any
) -> None:
    plugin = Bare()
    setattr(plugin, "update", function)  # noqa: B010 - of another type

    memory.register(plugin)

    assert memory.matching(RETRIEVE) == ("bare",)


async def test_what_is_found_on_a_plugin_is_read_once(memory: MemoryService) -> None:
    class Changing(Bare):
        def __init__(self) -> None:
            self.read: list[str] = []

        def __getattribute__(self, name: str) -> Any:
            if name in ("id", "filter", "subscribe"):
                self.read.append(name)
                return {"id": "first"}.get(name) if self.read.count(name) == 1 else ""
            return super().__getattribute__(name)

    plugin = Changing()

    registration = memory.register(plugin)

    assert registration.plugin_id == "first"
    assert memory.matching(RETRIEVE) == ("first",)
    assert sorted(plugin.read) == ["filter", "id", "subscribe"]


async def test_a_filter_that_cannot_be_called_is_refused(memory: MemoryService) -> None:
    with pytest.raises(RegistrationError):
        memory.register(Plain("oak"), filter="yes")  # type: ignore[arg-type] # what is refused


async def test_filters_are_read_once(memory: MemoryService) -> None:
    plugin = Plain("oak")
    memory.register(plugin)

    plugin.filter = lambda _: False  # type: ignore[attr-defined] # comes too late

    assert memory.matching(RETRIEVE) == ("oak",)


async def test_a_stopped_scope_registers_nothing(
    memory: MemoryService, owner: Callable[[], Any]
) -> None:
    guest = await owner()
    facade = guest.memory
    await guest.close()

    with pytest.raises(ScopeClosed):
        facade.register(Plain("late"))

    assert memory.matching(RETRIEVE) == ()


async def test_a_stopped_service_takes_neither_plugins_nor_calls(kernel: Kernel) -> None:
    scope = await kernel.root.plugin(memory_service())
    memory: MemoryService = kernel.root.find("patchouli")

    await scope.close()

    with pytest.raises(ScopeClosed):
        memory.register(Plain("late"))
    with pytest.raises(ScopeClosed):
        await memory.update(asked())


@pytest.mark.checklist("HN-28")
async def test_each_registration_and_each_removal_is_told(
    memory: MemoryService, kernel: Kernel, owner: Callable[[], Any]
) -> None:
    told: list[Registrations] = []
    kernel.root.on(PATCHOULI_REGISTRATIONS, told.append)
    guest = await owner()
    registration = guest.memory.register(Plain("oak"))

    await registration.dispose()
    await registration.dispose()
    guest.memory.register(Plain("elm"))
    await guest.close()

    assert registration.plugin_id == "oak"
    assert [(one.plugin_id, one.registered) for one in told] == [
        ("oak", True),
        ("oak", False),
        ("elm", True),
        ("elm", False),
    ]
    assert memory.matching(RETRIEVE) == ()


async def test_a_service_that_starts_again_starts_empty(
    kernel: Kernel,
) -> None:
    scope = await kernel.root.plugin(memory_service())
    kernel.root.find("patchouli").register(Plain("oak"))
    await scope.close()

    await kernel.root.plugin(memory_service())

    assert kernel.root.find("patchouli").matching(RETRIEVE) == ()


async def test_a_plugin_of_the_host_registers_again_when_the_service_is_back(
    kernel: Kernel,
) -> None:
    def start(ctx: Any, _: object) -> None:
        ctx.get("patchouli").register(Plain("oak"))

    scope = await kernel.root.plugin(memory_service())
    await kernel.root.plugin(PluginSpec(name="oak", start=start, needs=("patchouli",)))

    await scope.close()
    await kernel.root.plugin(memory_service())
    await kernel.settle()

    assert kernel.root.find("patchouli").matching(RETRIEVE) == ("oak",)


async def test_a_registration_that_a_listener_of_the_host_ends_the_program_at_is_none(
    kernel: Kernel, memory: MemoryService
) -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    effect = kernel.root.on(PATCHOULI_REGISTRATIONS, leave)
    with pytest.raises(SystemExit):
        memory.register(Plain("oak"))
    await effect.dispose()

    assert memory.matching(RETRIEVE) == ()
