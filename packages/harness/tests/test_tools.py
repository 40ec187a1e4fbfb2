"""What becomes of a call of a tool, whatever goes wrong."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import (
    CancelSource,
    Context,
    JsonObject,
    Kernel,
    PluginSpec,
    PortError,
    ToolCall,
    ToolDefinition,
    ToolResult,
    ToolRun,
    create_user_message,
    text_block,
)
from patchouli.harness.reference import ToolRegistry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from patchouli.harness import Block


def tool(body: Callable[[JsonObject, ToolRun], Awaitable[Any]], name: str = "t") -> ToolDefinition:
    return ToolDefinition(
        name=name,
        description="d",
        parameters={"type": "object"},
        output_schema={},
        execute=body,
        render=lambda arguments, value: [text_block(f"{arguments} -> {value}")],
    )


def call(name: str = "t", **more: Any) -> ToolCall:
    return ToolCall(**{"call_id": "c1", "name": name, "arguments": {"a": 1}, **more})


@pytest.fixture
def tools(kernel: Kernel) -> ToolRegistry:
    return ToolRegistry(kernel)


async def test_a_value_is_rendered_and_the_result_is_read_only_and_told(
    kernel: Kernel, tools: ToolRegistry
) -> None:
    told: list[tuple[ToolRun, ToolResult]] = []
    kernel.root.on("tools/result", lambda run, result: told.append((run, result)))

    async def body(arguments: JsonObject, _: ToolRun) -> Any:
        arguments["b"] = (2,)
        return arguments

    tools.register(tool(body))
    result = await tools.execute(call())

    assert result == {
        "isError": False,
        "value": {"a": 1, "b": (2,)},
        "content": ({"type": "text", "text": "{'a': 1} -> {'a': 1, 'b': [2]}"},),
    }
    assert [told_result for _, told_result in told] == [result]
    run = told[0][0]
    assert (run.call_id, run.root_call_id, run.name, run.arguments, run.parent, run.agent) == (
        "c1",
        "c1",
        "t",
        {"a": 1},
        None,
        None,
    )
    with pytest.raises(TypeError):
        result["isError"] = True  # type: ignore[index] - what is refused


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError

    @property
    def code(self) -> str:
        raise asyncio.CancelledError


class Ending(BaseException):
    """Something that is no `Exception` and ends nobody else."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("wrong"), {"message": "wrong"}),
        (ValueError(), {"message": "ValueError"}),
        (ValueError("\ud800 é"), {"message": "\\ud800 é"}),
        (UnprintableError(), {"message": "UnprintableError"}),
        (asyncio.CancelledError(), {"message": "CancelledError"}),
        (Ending("over"), {"message": "over"}),
        (
            PortError("E_X", "gone"),
            {"message": "E_X: gone", "info": {"name": "PortError", "code": "E_X"}},
        ),
        (
            PortError("E_\udc00", "gone"),
            {
                "message": "E_\\udc00: gone",
                "info": {"name": "PortError", "code": "E_\\udc00"},
            },
        ),
    ],
)
@pytest.mark.parametrize("where", ["body", "render", "hook"])
async def test_what_is_raised_in_a_call_is_an_error_result(
    kernel: Kernel, tools: ToolRegistry, error: BaseException, expected: JsonObject, where: str
) -> None:
    def reach(place: str) -> None:
        if place == where:
            raise error

    async def body(_: JsonObject, __: ToolRun) -> Any:
        reach("body")
        return 1

    async def hook(_: object, __: object, call_next: Callable[[], Awaitable[Any]]) -> Any:
        reach("hook")
        return await call_next()

    def render(_: object, __: object) -> list[Block]:
        reach("render")
        return []

    kernel.root.on("tools/post-execute", hook)
    tools.register(replace(tool(body), render=render))
    result = await tools.execute(call())

    assert result == {
        "isError": True,
        "error": expected,
        "content": ({"type": "text", "text": f"Error: {expected['message']}"},),
    }


async def test_a_call_whose_caller_is_cancelled_is_cancelled(tools: ToolRegistry) -> None:
    begun = asyncio.Event()

    async def body(_: JsonObject, __: ToolRun) -> Any:
        begun.set()
        await asyncio.Event().wait()

    tools.register(tool(body))
    calling = asyncio.create_task(tools.execute(call()))
    await begun.wait()
    calling.cancel()

    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_arguments_that_are_no_json_are_refused_as_a_result(
    kernel: Kernel, tools: ToolRegistry
) -> None:
    told: list[object] = []
    kernel.root.on("tools/result", lambda run, _: told.append(run.arguments))

    async def body(_: JsonObject, __: ToolRun) -> Any:
        raise AssertionError("the body ran")

    tools.register(tool(body))
    result = await tools.execute(call(arguments={"a": float("nan")}))

    assert result.get("error") == {"message": "the arguments of a tool are a JSON object"}
    assert told == ["{'a': nan}"]


async def test_a_value_that_is_no_json_an_unknown_tool_and_a_refused_call_are_errors(
    kernel: Kernel,
) -> None:
    def validate(schema: JsonObject, arguments: JsonObject) -> None:
        if schema == {"type": "object"} and "a" not in arguments:
            raise ValueError("a is missing")

    tools = ToolRegistry(kernel, validate=validate)

    async def body(_: JsonObject, __: ToolRun) -> Any:
        return {1, 2}

    tools.register(tool(body))
    source = CancelSource()
    source.cancel(ValueError("too late"))

    results = [
        await tools.execute(call()),
        await tools.execute(call("other")),
        await tools.execute(call(arguments={})),
        await tools.execute(call(arguments=[1])),
        await tools.execute(call(signal=source.signal)),
    ]

    assert [result.get("error", {}).get("message") for result in results] == [
        "not JSON at the top: a value of type set",
        "there is no tool 'other'",
        "a is missing",
        "the arguments of a tool are a JSON object",
        "too late",
    ]


async def test_hooks_decide_on_value_content_or_block(kernel: Kernel, tools: ToolRegistry) -> None:
    async def body(_: JsonObject, __: ToolRun) -> Any:
        return 1

    context = create_user_message([text_block("x")], {"kind": "user"})
    decisions: list[Any] = [
        {"kind": "accept", "value": 2},
        {"kind": "accept", "content": [text_block("other")]},
        {"kind": "block", "feedback": [text_block("no")], "additionalContexts": [context]},
    ]

    async def decide(*_: Any) -> Any:
        return decisions.pop(0)

    tools.register(tool(body))
    kernel.root.on("tools/post-execute", decide)

    value, content, blocked = [await tools.execute(call()) for _ in range(3)]

    assert (value.get("value"), value["content"][0]) == (2, text_block("{'a': 1} -> 2"))
    assert (content.get("value"), content["content"][0]) == (1, text_block("other"))
    assert (blocked["isError"], "value" in blocked, blocked["content"][0]) == (
        True,
        False,
        text_block("no"),
    )
    assert blocked.get("additionalContexts") == (context,)


async def test_a_hook_that_raises_makes_an_error_result_which_is_told(
    kernel: Kernel, tools: ToolRegistry
) -> None:
    told: list[ToolResult] = []

    async def body(_: JsonObject, __: ToolRun) -> Any:
        return 1

    def fail(*_: Any) -> None:
        raise ValueError("hook")

    tools.register(tool(body))
    kernel.root.on("tools/post-execute", fail)
    kernel.root.on("tools/result", lambda _, result: told.append(result))

    result = await tools.execute(call())

    assert result.get("error") == {"message": "hook"}
    assert told == [result]


async def test_a_nested_call_knows_its_parent_and_its_root(tools: ToolRegistry) -> None:
    runs: list[ToolRun] = []

    async def inner(_: JsonObject, run: ToolRun) -> Any:
        runs.append(run)
        return None

    async def outer(_: JsonObject, run: ToolRun) -> Any:
        runs.append(run)
        await tools.execute(ToolCall(call_id="c2", name="inner", arguments={}, parent=run))
        return None

    tools.register(tool(inner, "inner"))
    tools.register(tool(outer, "outer"))
    await tools.execute(call("outer"))

    outer_run, inner_run = runs
    assert (inner_run.call_id, inner_run.root_call_id) == ("c2", "c1")
    assert (outer_run.parent, inner_run.parent) == (None, outer_run.token)


@pytest.mark.checklist("HN-14")
async def test_a_tool_goes_with_the_plugin_that_registered_it(
    kernel: Kernel, tools: ToolRegistry
) -> None:
    kernel.root.provide("tools", tools)

    async def body(_: JsonObject, __: ToolRun) -> Any:
        return None

    def start(ctx: Context, _: object) -> None:
        ctx.get("tools").register(tool(body, "owned"))
        with pytest.raises(ValueError, match="already"):
            ctx.get("tools").register(tool(body, "owned"))

    tools.register(tool(body, "host's"))
    scope = kernel.root.plugin(PluginSpec(name="smith", start=start, needs=("tools",)))
    await scope
    before = [schema["name"] for schema in tools.schemas()]
    await scope.close()

    assert before == ["host's", "owned"]
    assert [schema["name"] for schema in tools.schemas()] == ["host's"]
