"""The order of a turn, as the events and the log show it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from patchouli.harness import (
    AgentError,
    AgentEvent,
    AgentStatus,
    Enter,
    JsonObject,
    Kernel,
    PreStep,
    Reject,
    RequestError,
    Retry,
    SessionStart,
    ToolDefinition,
    TurnStopping,
    create_user_message,
    text_block,
)
from patchouli.harness.reference import (
    Answer,
    DrivenAgent,
    ModelRequest,
    ReferenceHost,
    RequestFailed,
    ScriptedModel,
    tool_call,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from patchouli.harness import Message

EVENTS = (
    "agent/created",
    "agent/session-start",
    "agent/status",
    "agent/pre-step",
    "agent/request-error",
    "agent/turn-stopping",
    "agent/error",
    "agent/disposed",
    "tools/post-execute",
    "tools/result",
    "session/created",
    "session/disposed",
)


@pytest.fixture
def host(kernel: Kernel) -> ReferenceHost:
    return ReferenceHost(kernel)


@pytest.fixture
def told(host: ReferenceHost) -> list[str]:
    """All that happens, hooks and log together, in order."""
    told: list[str] = []

    def note(event: str) -> Callable[..., object]:
        def listener(*args: Any) -> object:
            told.append(event)
            return args[-1]() if event in CHAINS else None

        return listener

    for event in EVENTS:
        host.kernel.root.on(event, note(event), prepend=True)
    host.kernel.root.on("session/event", lambda _, event: told.append(event["type"]))
    return told


CHAINS = ("agent/pre-step", "agent/request-error", "tools/post-execute")


def note(text: str) -> Message:
    return create_user_message([text_block(text)], {"kind": "plugin", "plugin": "test"})


def endless(begun: asyncio.Event) -> Callable[[ModelRequest], Awaitable[Answer]]:
    """Return a line of a model that never answers, and tells when it is asked."""

    async def never(_: ModelRequest) -> Answer:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    return never


def texts(request: ModelRequest) -> list[str]:
    """Return the words of a conversation."""
    return [
        block["text"] if block["type"] == "text" else block["type"]
        for message in request.messages
        for block in message["content"]
    ]


def echo(name: str = "echo") -> ToolDefinition:
    async def execute(arguments: JsonObject, _: object) -> Any:
        return arguments

    return ToolDefinition(
        name=name,
        description="says it again",
        parameters={"type": "object"},
        output_schema={},
        execute=execute,
        render=lambda _, value: [text_block(f"echo {value}")],
    )


def log_of(agent: DrivenAgent) -> list[str]:
    return [event["type"] for event in agent.session.events]


async def test_a_turn_with_a_tool_and_an_error_keeps_the_order(
    host: ReferenceHost, told: list[str]
) -> None:
    host.tools.register(echo())
    model = ScriptedModel(
        [
            RequestFailed({"message": "busy", "code": "busy"}),
            Answer(content=[text_block("hm"), tool_call("c1", "echo", '{"a":1}')]),
            "done",
        ]
    )

    async def recover(_: RequestError, __: object) -> Retry:
        return Retry()

    host.kernel.root.on("agent/request-error", recover)
    agent = host.create_agent(model, session_id="s1", cwd="/srv/demo")

    reason = await agent.say("go")
    await host.dispose_agent(agent)

    assert reason == {"kind": "completed"}
    assert told == [
        "session/created",
        "agent/created",
        "agent/session-start",
        "agent/status",
        "turn/start",
        "agent/pre-step",
        "step/start",
        "user/message",
        "agent/request-error",
        "assistant/message",
        "tool/call",
        "tools/post-execute",
        "tools/result",
        "tool/result",
        "step/end",
        "agent/pre-step",
        "step/start",
        "assistant/message",
        "step/end",
        "agent/turn-stopping",
        "turn/end",
        "agent/status",
        "agent/disposed",
        "session/disposed",
    ]
    assert texts(model.requests[-1]) == ["go", "hm", "tool-call", "tool-result"]


@pytest.mark.checklist("HN-27")
async def test_a_turn_without_input_ends_without_a_request(host: ReferenceHost) -> None:
    model = ScriptedModel()
    agent = host.create_agent(model)

    reason = await agent.take_turn()

    assert reason == {"kind": "completed"}
    assert model.requests == []
    assert log_of(agent) == ["turn/start", "turn/end"]


@pytest.mark.checklist("HN-27")
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(content=[text_block("one")]), "completed"),
        (Answer(content=[text_block("one")], is_cut=True), "max-tokens"),
    ],
)
async def test_an_empty_batch_after_the_last_step_ends_the_turn_as_that_step_did(
    host: ReferenceHost, answer: Answer, kind: str
) -> None:
    model = ScriptedModel([answer])
    batches: list[int] = []

    async def swallow(event: PreStep, call_next: Callable[[], Awaitable[Enter]]) -> Enter:
        batches.append(len(event.messages))
        entered = await call_next()
        return entered if event.step == 1 else Enter(messages=[])

    async def inject(event: TurnStopping) -> None:
        event.agent.inject(note("more"))

    host.kernel.root.on("agent/pre-step", swallow)
    host.kernel.root.on("agent/turn-stopping", inject)
    agent = host.create_agent(model)

    reason = await agent.say("go")

    assert reason == {"kind": kind}
    assert batches == [1, 1]
    assert len(model.requests) == 1
    assert log_of(agent).count("step/start") == 1


async def test_a_step_after_tool_calls_is_entered_with_an_empty_batch(host: ReferenceHost) -> None:
    host.tools.register(echo())
    batches: list[int] = []
    host.kernel.root.on(
        "agent/pre-step",
        lambda event, call_next: batches.append(len(event.messages)) or call_next(),
    )
    agent = host.create_agent(ScriptedModel([Answer(content=[tool_call("c1", "echo")]), "done"]))

    await agent.say("go")

    assert batches == [1, 0]
    assert log_of(agent).count("step/start") == 2


async def test_a_step_may_consist_of_what_a_hook_adds(host: ReferenceHost) -> None:
    async def recall(_: PreStep, call_next: Callable[[], Awaitable[Enter]]) -> Enter:
        entered = await call_next()
        return Enter(messages=[*entered.messages, note("recall")])

    host.kernel.root.on("agent/pre-step", recall, prepend=True)
    model = ScriptedModel(["hello"])
    agent = host.create_agent(model)

    await agent.take_turn()

    assert texts(model.requests[0]) == ["recall"]


async def test_a_rejected_step_blocks_the_turn_and_drops_its_batch(host: ReferenceHost) -> None:
    effect = host.kernel.root.on("agent/pre-step", lambda _, __: Reject())
    model = ScriptedModel(["later"])
    agent = host.create_agent(model)

    assert await agent.say("dropped") == {"kind": "blocked"}
    await effect.dispose()
    await agent.say("taken")

    assert texts(model.requests[0]) == ["taken"]


async def test_what_is_queued_while_a_turn_stops_makes_another_step(host: ReferenceHost) -> None:
    asked: list[int] = []

    async def stopping(event: TurnStopping) -> None:
        asked.append(event.turn)
        if len(asked) == 1:
            event.agent.inject(note("wait"))

    host.kernel.root.on("agent/turn-stopping", stopping)
    model = ScriptedModel(["one", "two"])
    agent = host.create_agent(model)

    await agent.say("go")

    assert asked == [1, 1]
    assert texts(model.requests[1]) == ["go", "one", "wait"]


async def test_nobody_is_asked_whether_a_turn_stops_while_input_is_pending(
    host: ReferenceHost,
) -> None:
    asked: list[int] = []

    async def interrupted(_: ModelRequest) -> Answer:
        agent.inject(note("wait"))
        return Answer(content=[text_block("one")])

    model = ScriptedModel([interrupted, "two"])
    host.kernel.root.on("agent/turn-stopping", lambda _: asked.append(len(model.requests)))
    agent = host.create_agent(model)

    await agent.say("go")

    assert asked == [2]
    assert texts(model.requests[1]) == ["go", "one", "wait"]


async def test_contexts_of_a_result_join_the_next_step(host: ReferenceHost) -> None:
    host.tools.register(echo())

    async def add(_: object, __: object, call_next: Callable[[], Awaitable[Any]]) -> Any:
        return {**await call_next(), "additionalContexts": [note("context")]}

    host.kernel.root.on("tools/post-execute", add)
    model = ScriptedModel([Answer(content=[tool_call("c1", "echo"), tool_call("c2", "echo")]), "x"])
    agent = host.create_agent(model)

    await agent.say("go")

    assert texts(model.requests[1])[-4:] == ["tool-result", "tool-result", "context", "context"]


async def test_a_concluding_tool_and_a_cut_answer_finish_the_turn(host: ReferenceHost) -> None:
    host.tools.register(echo(), concludes_turn=True)
    call = tool_call("c1", "echo")
    model = ScriptedModel([Answer(content=[call]), Answer(content=[call], is_cut=True)])
    agent = host.create_agent(model)

    concluded = await agent.say("go")
    cut = await agent.say("go on")

    assert (concluded, cut) == ({"kind": "completed"}, {"kind": "max-tokens"})
    assert len(model.requests) == 2


async def test_a_failure_that_nobody_recovers_from_ends_the_turn_as_an_error(
    host: ReferenceHost,
) -> None:
    failure = {"message": "down", "code": "down", "status": 500}
    seen: list[RequestError] = []
    errors: list[AgentError] = []

    async def observe(event: RequestError, call_next: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(event)
        return await call_next()

    host.kernel.root.on("agent/request-error", observe)
    host.kernel.root.on("agent/error", errors.append)
    agent = host.create_agent(
        ScriptedModel([RequestFailed(failure)]),  # type: ignore[arg-type] - a plain dictionary
        options={"provider": "pond"},
    )

    reason = await agent.say("go")

    assert reason == {"kind": "error", "error": failure}
    assert [(one.provider, one.turn, one.step, one.failure) for one in seen] == [
        ("pond", 1, 1, failure)
    ]
    assert [(one.turn, one.step, one.error) for one in errors] == [(1, 1, failure)]
    assert log_of(agent)[-1] == "turn/end"
    assert agent.status == "idle"


async def test_a_hook_that_raises_ends_the_turn_as_an_error(host: ReferenceHost) -> None:
    errors: list[object] = []

    def fail(_: PreStep, __: object) -> None:
        raise ValueError("torn")

    host.kernel.root.on("agent/pre-step", fail)
    host.kernel.root.on("agent/error", lambda event: errors.append(event.error))
    agent = host.create_agent(ScriptedModel())

    reason = await agent.say("go")

    assert reason == {"kind": "error", "error": {"name": "ValueError", "message": "torn"}}
    assert [type(error) for error in errors] == [ValueError]


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise asyncio.CancelledError


class Ending(BaseException):
    """Something that is no `Exception` and ends nobody else."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("bad \ud800"), {"name": "ValueError", "message": "bad \\ud800"}),
        (UnprintableError(), {"name": "UnprintableError", "message": "UnprintableError"}),
        (asyncio.CancelledError(), {"name": "CancelledError", "message": "CancelledError"}),
        (Ending("over"), {"name": "Ending", "message": "over"}),
        (
            RequestFailed({"message": "\udc00", "code": "c", "status": {1}}),  # type: ignore[typeddict-item] - what a provider says
            {"message": "\\udc00", "code": "c", "status": "{1}"},
        ),
    ],
)
@pytest.mark.parametrize("where", ["model", "hook"])
async def test_a_turn_ends_in_the_log_whatever_breaks_it_off(
    host: ReferenceHost, error: BaseException, told: JsonObject, where: str
) -> None:
    async def fail(*_: object) -> Any:
        raise error

    if where == "hook":
        host.kernel.root.on("agent/turn-stopping", fail)
    agent = host.create_agent(ScriptedModel([fail if where == "model" else "fine"]))

    reason = await agent.say("go")

    assert reason == {"kind": "error", "error": told}
    last = agent.session.events[-1]
    assert (last["type"], last["data"]) == ("turn/end", {"turn": 1, "reason": reason})


async def test_a_reason_of_any_text_ends_a_cancelled_turn(host: ReferenceHost) -> None:
    async def call_off(_: ModelRequest) -> Answer:
        agent.cancel(ValueError("\ud800"))
        return Answer(content=[])

    agent = host.create_agent(ScriptedModel([call_off]))

    assert await agent.say("go") == {"kind": "aborted", "reason": "\\ud800"}
    assert log_of(agent)[-1] == "turn/end"


async def test_an_answer_that_ignores_the_cancellation_completes_nothing(
    host: ReferenceHost,
) -> None:
    async def stubborn(_: ModelRequest) -> Answer:
        agent.cancel()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Answer(content=[text_block("anyway")])
        raise AssertionError

    agent = host.create_agent(ScriptedModel([stubborn]))

    assert await agent.say("go") == {"kind": "aborted", "reason": "aborted"}


async def test_a_task_that_is_cancelled_with_its_turn_is_cancelled(host: ReferenceHost) -> None:
    begun = asyncio.Event()

    agent = host.create_agent(ScriptedModel([endless(begun)]))
    turn = asyncio.create_task(agent.say("go"))
    await begun.wait()
    agent.cancel()
    turn.cancel()

    with pytest.raises(asyncio.CancelledError):
        await turn
    assert log_of(agent)[-1] == "turn/end"


async def test_a_cancelled_turn_ends_as_aborted_and_drops_its_input(host: ReferenceHost) -> None:
    begun = asyncio.Event()
    cancelled: list[bool] = []

    async def never(request: ModelRequest) -> Answer:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(request.signal.cancelled)
        raise AssertionError

    model = ScriptedModel([never, "fresh"])
    agent = host.create_agent(model)
    turn = asyncio.create_task(agent.say("go"))
    await begun.wait()
    agent.inject(note("pending"))

    agent.cancel(ValueError("enough"))
    reason = await turn
    await agent.say("again")

    assert reason == {"kind": "aborted", "reason": "enough"}
    assert cancelled == [True]
    assert texts(model.requests[1]) == ["go", "again"]


@pytest.mark.parametrize("place", ["tool", "agent/pre-step", "tools/post-execute"])
async def test_a_limit_written_by_hand_leaves_the_turn_to_be_cancelled_later(
    host: ReferenceHost, place: str
) -> None:
    begun = asyncio.Event()

    async def limited() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def execute(_: JsonObject, __: object) -> str:
        if place == "tool":
            await limited()
        return "done"

    async def hook(*args: Any) -> Any:
        if not begun.is_set():
            await limited()
        return await args[-1]()

    if place != "tool":
        host.kernel.root.on(place, hook)
    host.tools.register(replace(echo("tool"), execute=execute))
    agent = host.create_agent(
        ScriptedModel([Answer(content=[tool_call("c1", "tool")]), endless(begun)])
    )
    turn = asyncio.create_task(agent.say("go"))
    await begun.wait()
    agent.cancel(ValueError("enough"))

    assert await turn == {"kind": "aborted", "reason": "enough"}
    assert turn.cancelling() == 0


async def test_a_listener_that_ends_the_program_leaves_no_turn_behind(host: ReferenceHost) -> None:
    def leave(event: AgentStatus) -> None:
        if event.status == "running":
            raise KeyboardInterrupt

    agent = host.create_agent(ScriptedModel(["never asked"]))
    host.kernel.root.on("agent/status", leave)
    turn = agent.say("go")
    with pytest.raises(KeyboardInterrupt):
        turn.send(None)

    assert agent.status == "idle"


async def test_a_turn_whose_task_is_cancelled_is_logged_to_its_end(host: ReferenceHost) -> None:
    begun = asyncio.Event()

    agent = host.create_agent(ScriptedModel([endless(begun)]))
    turn = asyncio.create_task(agent.say("go"))
    await begun.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn

    last = agent.session.events[-1]
    assert (last["type"], agent.status) == ("turn/end", "idle")
    assert last["data"]["reason"]["kind"] == "aborted"  # type: ignore[index, call-overload] - JSON


async def test_arguments_that_are_no_object_are_refused_as_a_result(host: ReferenceHost) -> None:
    host.tools.register(echo())
    model = ScriptedModel(
        [Answer(content=[tool_call("c1", "echo", "{"), tool_call("c2", "echo", "[1]")]), "x"]
    )
    agent = host.create_agent(model)

    await agent.say("go")

    results = [
        event["data"]["message"]  # JSON
        for event in agent.session.events
        if event["type"] == "tool/result"
    ]
    assert [one["content"][0]["isError"] for one in results] == [True, True]  # type: ignore[index, call-overload] - JSON


async def test_events_carry_their_agent(host: ReferenceHost) -> None:
    seen: list[object] = []
    for event in ("agent/created", "agent/disposed", "agent/session-start", "agent/status"):
        host.kernel.root.on(event, seen.append)
    host.kernel.root.on("agent/created", lambda event: seen.append(host.agents.get(event.agent.id)))

    agent = host.create_agent(ScriptedModel(["x"]), options={"maxTokens": 7})
    await agent.say("go")
    await host.dispose_agent(agent)

    assert seen == [
        AgentEvent(agent=agent),
        agent,
        SessionStart(agent=agent, source="startup"),
        AgentStatus(agent=agent, status="running"),
        AgentStatus(agent=agent, status="idle"),
        AgentEvent(agent=agent),
    ]
    assert dict(agent.options) == {"maxTokens": 7}
    assert host.agents.list() == ()


@pytest.mark.parametrize("by", ["dispose_agent", "kernel"])
async def test_an_agent_that_is_let_go_is_told_to_be_gone_after_its_last_turn(
    host: ReferenceHost, told: list[str], by: str
) -> None:
    begun = asyncio.Event()

    agent = host.create_agent(ScriptedModel([endless(begun)]), session_id="s1")
    turn = asyncio.create_task(agent.say("go"))
    await begun.wait()

    if by == "kernel":
        await host.kernel.aclose()
    else:
        await host.dispose_agent(agent)
        stored = await host.sessions.read_from("s1", 0)
        assert stored.events == agent.session.events

    assert await turn == {"kind": "aborted", "reason": "the agent is disposed of"}
    gone = [] if by == "kernel" else ["session/disposed"]
    assert told[told.index("turn/end") :] == ["turn/end", "agent/status", "agent/disposed", *gone]
    with pytest.raises(RuntimeError, match="was disposed of"):
        await agent.say("once more")


async def test_an_agent_whose_log_could_not_be_stored_is_let_go_again(
    host: ReferenceHost, told: list[str]
) -> None:
    failures = [OSError("disk")]

    def fail(_: object) -> None:
        if failures:
            raise failures.pop()

    host.kernel.root.on("session/flush", fail)
    agent = host.create_agent(ScriptedModel(["one"]), session_id="s1")

    with pytest.raises(OSError, match="disk"):
        await host.dispose_agent(agent)
    left = (host.agents.get("s1"), host.sessions.get("s1"))
    await host.dispose_agent(agent)
    await host.dispose_agent(agent)

    assert left == (None, agent.session)
    assert host.sessions.list() == ()
    assert told[-2:] == ["agent/disposed", "session/disposed"]


async def test_calls_that_let_go_of_an_agent_return_when_it_is_gone(
    host: ReferenceHost, told: list[str]
) -> None:
    gate, storing = asyncio.Event(), asyncio.Event()

    async def store(_: object) -> None:
        storing.set()
        await gate.wait()

    host.kernel.root.on("session/flush", store)
    agent = host.create_agent(ScriptedModel(["one"]), session_id="s1")

    calls = [asyncio.create_task(host.dispose_agent(agent)) for _ in range(2)]
    await storing.wait()
    calls.append(asyncio.create_task(host.dispose_agent(agent)))
    for _ in range(10):
        await asyncio.sleep(0)
    early = any(call.done() for call in calls)
    gate.set()
    await asyncio.gather(*calls)

    assert not early
    assert host.sessions.list() == ()
    assert told[-2:] == ["agent/disposed", "session/disposed"]


async def test_an_agent_that_is_let_go_twice_leaves_its_successor_alone(
    host: ReferenceHost,
) -> None:
    first = host.create_agent(ScriptedModel(["one"]), session_id="s1")
    await host.dispose_agent(first)
    second = host.create_agent(ScriptedModel(["two"]), session_id="s1", source="resume")

    await host.dispose_agent(first)

    assert (host.agents.get("s1"), host.sessions.get("s1")) == (second, second.session)


async def test_an_agent_is_not_let_go_in_its_own_turn(host: ReferenceHost) -> None:
    host.kernel.root.on("agent/turn-stopping", lambda event: host.dispose_agent(event.agent))
    agent = host.create_agent(ScriptedModel(["one", "two"]))

    reason = await agent.say("go")

    assert reason["kind"] == "error"
    assert "its own turn" in reason["error"]["message"]
    assert host.agents.get(agent.id) is agent


@pytest.mark.checklist("HN-18")
async def test_a_vetoed_agent_does_not_exist_and_those_told_hear_of_its_end(
    host: ReferenceHost,
) -> None:
    told: list[str] = []

    def veto(_: AgentEvent) -> None:
        raise ValueError("no")

    host.kernel.root.on("agent/created", lambda _: told.append("created"))
    host.kernel.root.on("agent/created", veto)
    host.kernel.root.on("agent/disposed", lambda _: told.append("disposed"))
    host.kernel.root.on("session/disposed", lambda _: told.append("session disposed"))

    with pytest.raises(ValueError, match="no"):
        host.create_agent(ScriptedModel(), session_id="s1")

    assert told == ["created", "disposed", "session disposed"]
    assert (host.agents.get("s1"), host.sessions.get("s1")) == (None, None)


async def test_a_resumed_agent_goes_on_with_its_log(host: ReferenceHost) -> None:
    first = host.create_agent(ScriptedModel(["one"]), session_id="s1")
    await first.say("go")
    await host.dispose_agent(first)
    model = ScriptedModel(["two"])

    second = host.create_agent(model, session_id="s1", source="resume")
    await second.say("on")

    assert texts(model.requests[0]) == ["go", "one", "on"]
    turns = [e["data"]["turn"] for e in second.session.events if e["type"] == "turn/start"]
    assert turns == [1, 2]
    assert [event["seq"] for event in second.session.events] == list(range(12))


async def test_an_agent_takes_one_turn_at_a_time(host: ReferenceHost) -> None:
    gate = asyncio.Event()

    async def slow(_: ModelRequest) -> Answer:
        await gate.wait()
        return Answer(content=[])

    agent = host.create_agent(ScriptedModel([slow]))
    turn = asyncio.create_task(agent.say("go"))
    await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="in a turn"):
        await agent.take_turn()
    with pytest.raises(RuntimeError, match="in a turn"):
        await agent.say("me too")
    gate.set()
    await turn

    assert log_of(agent).count("user/message") == 1


def roles(messages: Sequence[Message]) -> list[str]:
    return [message["role"] for message in messages]


async def test_a_conversation_has_its_roles_and_sources(host: ReferenceHost) -> None:
    host.tools.register(echo())
    model = ScriptedModel([Answer(content=[tool_call("c1", "echo")], usage={"in": 3}), "x"])
    agent = host.create_agent(model, options={"provider": "pond", "model": "duck"})

    await agent.say("go")

    asked = model.requests[1].messages
    assert roles(asked) == ["user", "assistant", "user"]
    assert [message["source"] for message in asked] == [
        {"kind": "user"},
        {"kind": "model", "provider": "pond", "model": "duck"},
        {"kind": "tool", "callId": "c1"},
    ]
    assert len({message["id"] for message in asked}) == 3
    assert [dict(tool) for tool in model.requests[0].tools] == [
        {"name": "echo", "description": "says it again", "parameters": {"type": "object"}}
    ]
