"""The registry of tools, and what happens around a call of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from patchouli.harness.events import TOOLS_POST_EXECUTE, TOOLS_RESULT
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.messages import ErrorInfo, ToolResult, read_only, text_block
from patchouli.harness.plugin import Context, Effect, Undo
from patchouli.harness.ports import Agent, ToolCall, ToolDefinition, ToolRun, Tools
from patchouli.harness.reference.facts import code_of, fact_of, message_of
from patchouli.harness.signals import CancelSource
from patchouli.harness.tasks import await_foreign, is_foreign

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from patchouli.harness.jsonvalue import JsonObject
    from patchouli.harness.kernel import Kernel
    from patchouli.harness.messages import Block
    from patchouli.harness.signals import CancelSignal

Validator: TypeAlias = "Callable[[JsonObject, JsonObject], None]"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """A run of a tool; see `ToolRun`."""

    token: object
    call_id: str
    root_call_id: str
    name: str
    arguments: object
    agent: Agent | None
    parent: object | None
    signal: CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    tool: ToolDefinition
    concludes_turn: bool


class ToolRegistry(Tools):
    """The service ``tools``."""

    def __init__(self, kernel: Kernel, *, validate: Validator | None = None) -> None:
        """Begin without a tool.

        Args:
            kernel: Where the events of calls are told.
            validate: Called with the schema of a tool's parameters and the arguments; raises for
                arguments that do not fit. Without it bodies get whatever comes.
        """
        self._kernel = kernel
        self._validate = validate
        self._entries: dict[str, _Entry] = {}

    def for_context(self, ctx: Context) -> Tools:
        """Return the registry as a plugin sees it: the tools that it registers go with it."""
        return _OwnedTools(self, ctx)

    def register(self, tool: ToolDefinition, *, concludes_turn: bool = False) -> Effect:
        """Make a tool callable, as one of the host itself.

        Args:
            tool: The tool.
            concludes_turn: Whether a successful call ends the turn in which it is made.
        """
        return self.register_for(self._kernel.root, tool, concludes_turn=concludes_turn)

    def register_for(
        self, ctx: Context, tool: ToolDefinition, *, concludes_turn: bool = False
    ) -> Effect:
        """Make a tool callable until `ctx` stops."""

        def enter() -> Undo:
            if tool.name in self._entries:
                raise ValueError(f"there is a tool {tool.name!r} already")
            self._entries[tool.name] = _Entry(tool=tool, concludes_turn=concludes_turn)
            return lambda: self._entries.pop(tool.name)

        return ctx.effect(enter, f"tool {tool.name}")

    def schemas(self, agent: Agent | None = None) -> Sequence[JsonObject]:
        """Return all tools in the order in which they were registered, for every agent."""
        _ = agent  # every agent may call every tool here
        return [
            {
                "name": entry.tool.name,
                "description": entry.tool.description,
                "parameters": snapshot(entry.tool.parameters),
            }
            for entry in self._entries.values()
        ]

    async def execute(self, call: ToolCall) -> ToolResult:
        """Run a tool, the hooks after it included.

        Whatever the tool or a hook raises is the error of the result; only what ends the caller's
        task as well is raised from here.
        """
        run = _Run(
            token=object(),
            call_id=call.call_id,
            root_call_id=call.parent.root_call_id if call.parent else call.call_id,
            name=call.name,
            arguments=read_only(fact_of(call.arguments)),
            agent=call.agent,
            parent=call.parent.token if call.parent else None,
            signal=call.signal or CancelSource().signal,
        )
        result = await self._result_of_body(run)
        try:
            decision = await await_foreign(
                self._kernel.root.chain(
                    TOOLS_POST_EXECUTE, run, result, default=lambda: read_only({"kind": "accept"})
                )
            )
            result = self._decided(run, result, decision)
        except BaseException as error:
            result = _failed(error)
        self._kernel.root.notify(TOOLS_RESULT, run, result)
        return result

    async def _result_of_body(self, run: ToolRun) -> ToolResult:
        try:
            run.signal.raise_if_cancelled()
            entry = self._entries.get(run.name)
            if entry is None:
                raise LookupError(f"there is no tool {run.name!r}")
            arguments = _plain(run.arguments)
            if self._validate is not None:
                self._validate(entry.tool.parameters, arguments)
            value = snapshot(await await_foreign(entry.tool.execute(arguments, run)))
            made: dict[str, object] = {
                "isError": False,
                "value": value,
                "content": entry.tool.render(_plain(run.arguments), value),
            }
            if entry.concludes_turn:
                made["concludesTurn"] = True
            return _sealed(made)
        except BaseException as error:
            return _failed(error)

    def _decided(self, run: ToolRun, result: ToolResult, decision: Mapping[str, Any]) -> ToolResult:
        made: dict[str, Any] = dict(result)
        if decision["kind"] == "block":
            for key in ("value", "concludesTurn"):
                made.pop(key, None)
            made |= {"isError": True, "content": decision["feedback"]}
            made["error"] = {"message": "a hook blocked the result"}
        elif "value" in decision:
            value = snapshot(decision["value"])
            tool = self._entries[run.name].tool
            made |= {"value": value, "content": tool.render(_plain(run.arguments), value)}
        elif "content" in decision:
            made["content"] = decision["content"]
        if contexts := decision.get("additionalContexts"):
            made["additionalContexts"] = [*made.get("additionalContexts", ()), *contexts]
        return _sealed(made)


class _OwnedTools(Tools):
    def __init__(self, registry: ToolRegistry, ctx: Context) -> None:
        self._registry = registry
        self._ctx = ctx

    def register(self, tool: ToolDefinition) -> Effect:
        return self._registry.register_for(self._ctx, tool)

    def schemas(self, agent: Agent | None = None) -> Sequence[JsonObject]:
        return self._registry.schemas(agent)

    async def execute(self, call: ToolCall) -> ToolResult:
        return await self._registry.execute(call)


def _plain(arguments: object) -> JsonObject:
    copy = snapshot(arguments)
    if not isinstance(copy, dict):
        raise TypeError("the arguments of a tool are a JSON object")
    return copy


def _sealed(made: Mapping[str, object]) -> ToolResult:
    return cast("ToolResult", read_only(snapshot(dict(made))))


def _failed(error: BaseException) -> ToolResult:
    """Return the result of a call that `error` broke off; raise one that ends the caller too."""
    if not is_foreign(error):
        raise error
    message = message_of(error)
    content: list[Block] = [text_block(f"Error: {message}")]
    stated: dict[str, object] = {"message": message}
    if (code := code_of(error)) is not None:
        info: ErrorInfo = {"name": type(error).__name__, "code": code}
        stated["info"] = info
    return _sealed({"isError": True, "error": stated, "content": content})
