"""The reference host: all ports of a harness in one process, and agents that follow a script."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Literal, cast

from patchouli.harness.events import AGENT_SESSION_START, SessionStart
from patchouli.harness.jsonvalue import snapshot
from patchouli.harness.messages import read_only
from patchouli.harness.reference.agents import MemoryAgents
from patchouli.harness.reference.attachments import MemoryAttachments
from patchouli.harness.reference.domains import SqliteDomains
from patchouli.harness.reference.driver import DrivenAgent
from patchouli.harness.reference.files import LocalFileSystem
from patchouli.harness.reference.sessions import MemorySessions
from patchouli.harness.reference.tools import ToolRegistry, Validator
from patchouli.harness.reference.workspaces import MemoryWorkspaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from patchouli.harness.jsonvalue import Json
    from patchouli.harness.kernel import Kernel
    from patchouli.harness.plugin import Effect
    from patchouli.harness.reference.models import Model


class ReferenceHost:
    """Publishes every port on the root of a kernel, whose end is its end too.

    Attributes:
        kernel: Where plugins are installed.
        sessions: The services ``sessions``, ``sessionPersistence`` and ``sessionQuery``.
        agents: The service ``agents``.
        tools: The service ``tools``.
        attachments: The service ``attachments``.
        workspaces: The service ``workspaceRegistry``.
        files: The service ``fs``.
        domains: The service ``storageDomain``, if there is a file for it.
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        domains_path: Path | None = None,
        validate: Validator | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        new_id: Callable[[], str] = lambda: secrets.token_hex(16),
    ) -> None:
        """Publish the ports.

        Args:
            kernel: Where they are published.
            domains_path: The SQLite file of the storage domains; without one the service is not
                published and whoever needs it stays pending.
            validate: Checks the arguments of a tool against its parameters; raises if they do not
                fit. Without it tools get what comes.
            now_ms: The time, in milliseconds since 1970.
            new_id: Makes ids of sessions and workspaces, no two of them equal.
        """
        self.kernel = kernel
        self.sessions = MemorySessions(kernel, now_ms=now_ms, new_id=new_id)
        self.agents = MemoryAgents(kernel)
        self.tools = ToolRegistry(kernel, validate=validate)
        self.attachments = MemoryAttachments()
        self.workspaces = MemoryWorkspaces(kernel, new_id=new_id)
        self.files = LocalFileSystem()
        self.domains = None if domains_path is None else SqliteDomains(kernel, domains_path)
        self._agents: dict[DrivenAgent, Effect] = {}
        root = kernel.root
        if self.domains is not None:
            domains = self.domains
            root.effect(lambda: domains.aclose, "storage domains")
            root.provide("storageDomain", domains)
        root.provide("sessions", self.sessions)
        root.provide("sessionPersistence", self.sessions)
        root.provide("sessionQuery", self.sessions)
        root.provide("agents", self.agents)
        root.provide("tools", self.tools)
        root.provide("attachments", self.attachments)
        root.provide("workspaceRegistry", self.workspaces)
        root.provide("fs", self.files)

    def create_agent(
        self,
        model: Model,
        *,
        session_id: str | None = None,
        options: Mapping[str, Json] | None = None,
        source: Literal["startup", "resume", "clear", "compact"] = "startup",
        **header: object,
    ) -> DrivenAgent:
        """Return a new agent, created and started as its events say.

        Args:
            model: Answers it.
            session_id: The id of its session and of itself.
            options: Provider, model and whatever else.
            source: Why it starts; ``resume`` takes up the stored session of that id.
            header: Further keys of the header of a new session, ``cwd`` for instance.

        Raises:
            NotJson: `options` or `header` is no lossless JSON.
            SessionError: There is no stored session to resume.
            Exception: What a listener raised to veto the session or the agent; neither exists then.
        """
        kept = cast("Mapping[str, Json]", read_only(snapshot(dict(options or {}))))
        if source == "resume":
            session = self.sessions.resume(session_id or "")
        else:
            session = self.sessions.create(session_id, **header)
        agent = DrivenAgent(self.kernel, session, self.tools, model, options=kept)
        try:
            registered = self.agents.register(agent)
        except BaseException:
            self.sessions.dispose(session)
            raise

        async def leave() -> None:
            await agent.retire()  # its last turn has ended before it is told to be gone
            await registered.dispose()

        self._agents[agent] = self.kernel.root.effect(lambda: leave, f"turns of {agent.id}")
        self.kernel.root.notify(AGENT_SESSION_START, SessionStart(agent=agent, source=source))
        return agent

    async def dispose_agent(self, agent: DrivenAgent) -> None:
        """Let an agent go, store the rest of its log, then let its session go.

        A turn that is running ends as aborted first. Every call returns when all of that is done,
        and one after a failure takes up what is left.

        Raises:
            RuntimeError: The agent's own turn calls this; it could never end.
            Exception: What a listener of ``session/flush`` raised; the session stays live.
        """
        await agent.retire()  # here already, where its own turn is told apart from others
        if (present := self._agents.get(agent)) is not None:
            await present.dispose()
            self._agents.pop(agent, None)
        if self.sessions.get(agent.id) is agent.session:
            await self.sessions.flush(agent.session)
            self.sessions.dispose(agent.session)
