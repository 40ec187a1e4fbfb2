"""The driver of an agent: takes its turns, in the one order that every host keeps.

    turn/start
      take pending input
      agent/pre-step        Reject -> the turn ends as blocked
                            nothing to say, no step entered or the last one finished -> it ends
      step/start, user/message ...
      the model             fails -> agent/request-error -> ask again, or the turn fails
      assistant/message
      for each tool call    tool/call, the tool with its hooks, tool/result
      step/end
      not finished, or input pending -> next step
      agent/turn-stopping   input pending -> next step
    turn/end                always, also on error and cancellation

A step finishes the turn if it has no tool calls, if a tool concluded it, or if the answer hit its
limit. What a hook or a tool adds waits in the agent's inbox for the next step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from patchouli.harness.errors import Aborted
from patchouli.harness.events import (
    AGENT_ERROR,
    AGENT_PRE_STEP,
    AGENT_REQUEST_ERROR,
    AGENT_STATUS,
    AGENT_TURN_STOPPING,
    AgentError,
    AgentStatus,
    Enter,
    PreStep,
    Reject,
    RequestError,
    Retry,
    TurnStopping,
)
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.messages import (
    Block,
    Message,
    ToolCallBlock,
    ToolResult,
    create_user_message,
    text_block,
)
from patchouli.harness.ports import Agent, ToolCall
from patchouli.harness.reference.facts import message_of
from patchouli.harness.reference.models import Answer, Model, ModelRequest, RequestFailed
from patchouli.harness.signals import CancelSource
from patchouli.harness.tasks import await_foreign, is_foreign

if TYPE_CHECKING:
    from patchouli.harness.jsonvalue import Json
    from patchouli.harness.kernel import Kernel
    from patchouli.harness.messages import Failure, SessionEvent
    from patchouli.harness.reference.sessions import LiveSession
    from patchouli.harness.reference.tools import ToolRegistry
    from patchouli.harness.signals import CancelSignal

R = TypeVar("R")
Reason: TypeAlias = Mapping[str, Any]  # Any: JSON, by its kind

COMPLETED: Reason = {"kind": "completed"}


class DrivenAgent(Agent):
    """An agent whose turns are taken one by one by whoever holds it."""

    def __init__(
        self,
        kernel: Kernel,
        session: LiveSession,
        tools: ToolRegistry,
        model: Model,
        *,
        options: Mapping[str, Json],
    ) -> None:
        self.model = model
        self._kernel = kernel
        self._session = session
        self._tools = tools
        self._options = options
        self._inbox: list[Message] = []
        self._turn = _last_turn(session.events)
        self._source: CancelSource | None = None
        self._taken_in: asyncio.Task[Any] | None = None  # the task of the running turn
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_retired = False

    @property
    def id(self) -> str:
        """The id of its session."""
        return self._session.header["id"]

    @property
    def status(self) -> Literal["idle", "running"]:
        """Whether it is in a turn."""
        return "idle" if self._source is None else "running"

    @property
    def options(self) -> Mapping[str, Json]:
        """What it was made with."""
        return self._options

    @property
    def session(self) -> LiveSession:
        """Its session."""
        return self._session

    def inject(self, message: Message) -> None:
        """Queue `message` for the next step, of the next turn if none is running."""
        self._inbox.append(message)

    def cancel(self, reason: Exception | None = None) -> None:
        """Fire the signal of the running turn, which ends as aborted; pending input is dropped."""
        if self._source is not None:
            self._inbox.clear()
            self._source.cancel(reason)

    async def say(self, text: str) -> Reason:
        """Take a turn with what a person typed; return why it ended.

        Raises:
            NotJson: `text` has a lone surrogate; no turn was taken.
            RuntimeError: A turn is running, or the agent was disposed of.
        """
        self._require_idle()  # else the text would join the turn that is running
        self.inject(create_user_message([text_block(text)], {"kind": "user"}))
        return await self.take_turn()

    async def take_turn(self) -> Reason:
        """Take a turn with the pending input, if any; return why it ended.

        Whatever a model, a tool or a hook raises is a reason, so that only what ends the caller's
        task as well is raised from here; the end of the turn is logged in each case.

        Raises:
            RuntimeError: A turn is running, or the agent was disposed of.
        """
        self._require_idle()
        self._source = CancelSource()
        self._taken_in = asyncio.current_task()
        self._is_idle.clear()
        self._turn += 1
        turn = _Turn(self, self._kernel, self._tools, self._inbox, self._turn, self._source.signal)
        try:
            self._tell_status()
            return await turn.run()
        finally:
            self._source = self._taken_in = None
            self._tell_status()
            self._is_idle.set()

    async def retire(self) -> None:
        """Take no more turns; a running one ends as aborted, and this returns after its end.

        Raises:
            RuntimeError: The running turn itself calls this; it could never end.
        """
        if self._taken_in is not None and self._taken_in is asyncio.current_task():
            raise RuntimeError(f"agent {self.id!r} is disposed of in its own turn")
        self._is_retired = True
        self.cancel(Aborted("the agent is disposed of"))
        await self._is_idle.wait()

    def _require_idle(self) -> None:
        if self._is_retired:
            raise RuntimeError(f"agent {self.id!r} was disposed of")
        if self._source is not None:
            raise RuntimeError(f"agent {self.id!r} is in a turn already")

    def _tell_status(self) -> None:
        self._kernel.root.notify(AGENT_STATUS, AgentStatus(agent=self, status=self.status))


class _Turn:
    def __init__(
        self,
        agent: DrivenAgent,
        kernel: Kernel,
        tools: ToolRegistry,
        inbox: list[Message],
        turn: int,
        signal: CancelSignal,
    ) -> None:
        self._agent = agent
        self._root = kernel.root
        self._tools = tools
        self._inbox = inbox
        self._turn = turn
        self._signal = signal
        self._step = 0

    async def run(self) -> Reason:
        self._log("turn/start", {"turn": self._turn})
        reason: Reason = {"kind": "aborted", "reason": "the task was cut"}
        try:
            reason = await self._steps()
            self._signal.raise_if_cancelled()
        except BaseException as error:
            if not is_foreign(error):
                raise
            reason = self._reason_for(error)
        finally:
            self._log("turn/end", {"turn": self._turn, "reason": reason})
        return reason

    async def _steps(self) -> Reason:
        finished: Reason | None = None  # how the last step finished the turn, if it did
        while True:
            self._signal.raise_if_cancelled()
            decision = await self._pre_step()
            if isinstance(decision, Reject):
                return {"kind": "blocked"}
            if not decision.messages and (self._step == 0 or finished is not None):
                return finished or COMPLETED
            self._step += 1
            finished = await self._take_step(decision.messages)
            if finished is None or self._inbox:
                continue
            stopping = TurnStopping(agent=self._agent, turn=self._turn, signal=self._signal)
            await await_foreign(self._root.serial(AGENT_TURN_STOPPING, stopping))
            if not self._inbox:
                return finished

    async def _pre_step(self) -> Enter | Reject:
        batch = tuple(self._inbox)
        self._inbox.clear()
        event = PreStep(
            agent=self._agent,
            messages=batch,
            turn=self._turn,
            step=self._step + 1,
            signal=self._signal,
        )
        return await await_foreign(
            self._root.chain(AGENT_PRE_STEP, event, default=lambda: Enter(messages=batch))
        )

    async def _take_step(self, batch: Sequence[Message]) -> Reason | None:
        position = {"turn": self._turn, "step": self._step}
        self._log("step/start", position)
        for message in batch:
            self._log("user/message", cast("Mapping[str, object]", message))
        answer = await self._answer()
        self._log_answer(answer, position)
        calls = [block for block in answer.content if block["type"] == "tool-call"]
        results = [await self._call(call, position) for call in calls]
        for result in results:
            self._inbox.extend(result.get("additionalContexts", ()))
        self._log("step/end", position)
        if answer.is_cut:
            return {"kind": "max-tokens"}
        if not calls or any(result.get("concludesTurn") for result in results):
            return COMPLETED
        return None

    async def _answer(self) -> Answer:
        while True:
            request = ModelRequest(
                messages=_conversation(self._agent.session.events),
                tools=self._tools.schemas(self._agent),
                options=self._agent.options,
                turn=self._turn,
                step=self._step,
                signal=self._signal,
            )
            try:
                return await _unless_cancelled(self._agent.model(request), self._signal)
            except RequestFailed as error:
                if not isinstance(await self._recovery(error.failure), Retry):
                    raise
            self._signal.raise_if_cancelled()

    async def _recovery(self, failure: Failure) -> Retry | None:
        event = RequestError(
            agent=self._agent,
            turn=self._turn,
            step=self._step,
            provider=str(self._agent.options.get("provider", "")),
            failure=failure,
            signal=self._signal,
        )
        return await await_foreign(
            self._root.chain(AGENT_REQUEST_ERROR, event, default=lambda: None)
        )

    def _log_answer(self, answer: Answer, position: Mapping[str, int]) -> None:
        options = self._agent.options
        source = {"kind": "model"}
        source |= {key: str(options.get(key, "")) for key in ("provider", "model")}
        message = {
            **create_user_message(answer.content, {"kind": "user"}),
            "role": "assistant",
            "source": source,
        }
        usage = {} if answer.usage is None else {"usage": answer.usage}
        self._log("assistant/message", {**position, "message": message, **usage})

    async def _call(self, call: ToolCallBlock, position: Mapping[str, int]) -> ToolResult:
        self._signal.raise_if_cancelled()
        named = {"callId": call["id"], "name": call["name"], "arguments": call["arguments"]}
        self._log("tool/call", {**position, **named})
        result = await self._tools.execute(
            ToolCall(
                call_id=call["id"],
                name=call["name"],
                arguments=_arguments(call["arguments"]),
                agent=self._agent,
                signal=self._signal,
            )
        )
        block: dict[str, object] = {
            "type": "tool-result",
            "toolCallId": call["id"],
            "content": result["content"],
        }
        if result["isError"]:
            block["isError"] = True
        message = create_user_message(
            [cast("Block", block)], {"kind": "tool", "callId": call["id"]}
        )
        logged: dict[str, object] = {**position, "message": message}
        if (info := result.get("error", {}).get("info")) is not None:
            logged["error"] = info
        if "meta" in result:
            logged["meta"] = result["meta"]
        self._log("tool/result", logged)
        return result

    def _reason_for(self, error: BaseException) -> Reason:
        """Return why a turn ends that `error` broke off; a failure is told, a cancellation not."""
        if self._signal.reason is not None:
            return {"kind": "aborted", "reason": message_of(self._signal.reason)}
        if isinstance(error, RequestFailed):
            told = failure = error.failure
        else:
            told, failure = error, {"name": type(error).__name__, "message": message_of(error)}
        event = AgentError(agent=self._agent, turn=self._turn, step=self._step, error=told)
        self._root.notify(AGENT_ERROR, event)
        return {"kind": "error", "error": failure}

    def _log(self, kind: str, data: Mapping[str, object]) -> None:
        self._agent.session.append(kind, data)


async def _unless_cancelled(asked: Awaitable[R], signal: CancelSignal) -> R:
    """Await `asked`, or cancel it and raise the reason when the signal fires."""
    task = asyncio.ensure_future(asked)

    def cancel() -> None:
        task.cancel()

    forget = signal.add_callback(cancel)
    try:
        return await task
    except asyncio.CancelledError as error:
        if is_foreign(error):
            signal.raise_if_cancelled()
        raise
    finally:
        forget()


def _arguments(text: str) -> Json:
    """Return what a model wrote, or the text itself if it is no JSON; the registry refuses that."""
    try:
        return snapshot(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _conversation(events: Sequence[SessionEvent]) -> Sequence[Message]:
    messages: list[Message] = []
    for event in events:
        data = cast("Mapping[str, Any]", event["data"])  # Any: JSON, by the type of the event
        if event["type"] == "user/message":
            messages.append(cast("Message", data))
        elif event["type"] in ("assistant/message", "tool/result"):
            messages.append(data["message"])
    return messages


def _last_turn(events: Sequence[SessionEvent]) -> int:
    turns = [event["data"]["turn"] for event in events if event["type"] == "turn/start"]
    return cast("int", turns[-1]) if turns else 0
