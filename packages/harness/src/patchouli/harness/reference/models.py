"""Models: what the driver asks in every step, and one that follows a script."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from patchouli.harness.errors import HarnessError
from patchouli.harness.messages import Block, read_only, text_block
from patchouli.harness.reference.facts import fact_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from patchouli.harness.jsonvalue import Json, JsonObject
    from patchouli.harness.messages import Failure, Message
    from patchouli.harness.signals import CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        messages: The conversation so far, the oldest first.
        tools: Name, description and parameters of each tool.
        options: The options of the agent.
        turn: The turn, counted from 1.
        step: The step in it, counted from 1.
        signal: Fires when nobody waits for the answer any more.
    """

    messages: Sequence[Message]
    tools: Sequence[JsonObject]
    options: Mapping[str, Json]
    turn: int
    step: int
    signal: CancelSignal


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model answered.

    Attributes:
        content: Text, reasoning and tool calls.
        is_cut: Whether it hit its limit, which ends the turn.
        usage: What it cost, in the model's own terms.
    """

    content: Sequence[Block]
    is_cut: bool = False
    usage: JsonObject | None = None


class RequestFailed(HarnessError):  # noqa: N818 - says what happened, like its siblings
    """A model did not answer; whether to ask again is for the hooks to say.

    Attributes:
        failure: Why, as read-only JSON: what a provider said that is none stands there as text.
    """

    def __init__(self, failure: Failure) -> None:
        stated = {text_of(key): fact_of(value) for key, value in failure.items()}
        super().__init__(stated["message"])
        self.failure = cast("Failure", read_only(stated))


Model: TypeAlias = Callable[[ModelRequest], Awaitable[Answer]]
Line: TypeAlias = "Answer | Exception | str | Callable[[ModelRequest], Awaitable[Answer]]"


@dataclass(slots=True)
class ScriptedModel:
    """A model that says its lines one after another.

    A line is an answer, the text of one, an exception to raise, or a model to ask instead.

    Attributes:
        lines: What is still to be said.
        requests: What it was asked so far.
    """

    lines: list[Line]
    requests: list[ModelRequest] = field(default_factory=list[ModelRequest])

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.lines = [*lines]
        self.requests = []

    async def __call__(self, request: ModelRequest) -> Answer:
        """Say the next line.

        Raises:
            RequestFailed: There is none (code ``script-ended``), or the script says so.
        """
        self.requests.append(request)
        if not self.lines:
            raise RequestFailed({"message": "the script has no more lines", "code": "script-ended"})
        line = self.lines.pop(0)
        if isinstance(line, Exception):
            raise line
        if isinstance(line, str):
            return Answer(content=[text_block(line)])
        return line if isinstance(line, Answer) else await line(request)


def tool_call(call_id: str, name: str, arguments: str = "{}") -> Block:
    """Return a block that asks for a call; `arguments` is JSON text, right or wrong."""
    return {"type": "tool-call", "id": call_id, "name": name, "arguments": arguments}
