"""The agents of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patchouli.harness.events import AGENT_CREATED, AGENT_DISPOSED, AgentEvent
from patchouli.harness.plugin import Context, Effect, Undo
from patchouli.harness.ports import Agent, Agents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchouli.harness.kernel import Kernel


class MemoryAgents(Agents):
    """The service ``agents``."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._agents: dict[str, Agent] = {}

    def for_context(self, ctx: Context) -> Agents:
        """Return the agents as a plugin sees them: those that it registers go with it."""
        return _OwnedAgents(self, ctx)

    def get(self, agent_id: str) -> Agent | None:
        """Return an agent."""
        return self._agents.get(agent_id)

    def list(self) -> Sequence[Agent]:
        """Return all agents in the order in which they were registered."""
        return tuple(self._agents.values())

    def register(self, agent: Agent) -> Effect:
        """Publish an agent of the host itself."""
        return self.register_for(self._kernel.root, agent)

    def register_for(self, ctx: Context, agent: Agent) -> Effect:
        """Publish `agent` until `ctx` stops.

        Raises:
            ValueError: An agent has the id.
            Exception: What a listener raised to veto the agent, which is not published then.
        """

        def enter() -> Undo:
            if agent.id in self._agents:
                raise ValueError(f"there is an agent {agent.id!r} already")
            self._agents[agent.id] = agent
            try:
                self._kernel.root.announce(AGENT_CREATED, AgentEvent(agent=agent))
            except BaseException:
                # Those who were told of it before the veto hear that it is gone.
                leave()
                raise
            return leave

        def leave() -> None:
            del self._agents[agent.id]
            self._kernel.root.notify(AGENT_DISPOSED, AgentEvent(agent=agent))

        return ctx.effect(enter, f"agent {agent.id}")


class _OwnedAgents(Agents):
    def __init__(self, agents: MemoryAgents, ctx: Context) -> None:
        self._agents = agents
        self._ctx = ctx

    def get(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    def list(self) -> Sequence[Agent]:
        return self._agents.list()

    def register(self, agent: Agent) -> Effect:
        return self._agents.register_for(self._ctx, agent)
