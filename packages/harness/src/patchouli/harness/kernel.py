"""The kernel: a tree of plugins with the host at its root."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from patchouli.harness.plugin import STOP_LIMIT_MS, Context, Logger, PluginSpec, ScopeState
from patchouli.harness.runs import Core
from patchouli.harness.scopes import Scope
from patchouli.harness.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

TASK_GRACE_MS: Final = 5_000  # from the cancellation of a task until it is abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlugin:
    """A plugin that waits, and for what."""

    name: str
    missing: tuple[str, ...]


class Kernel:
    """A tree of plugins, their services and their events, on one event loop.

    As a context manager it closes itself: every plugin has stopped when the block is left.

    Attributes:
        root: The context of the host itself. It is active from the start, so what it provides is
            seen at once.
    """

    root: Context

    def __init__(
        self,
        *,
        logger: Callable[[str], Logger] = logging.getLogger,  # noqa: TID251 - no dependency, so no structlog
        start_limit_ms: int = STOP_LIMIT_MS,
        task_grace_ms: int = TASK_GRACE_MS,
    ) -> None:
        self._core = Core(
            logger=logger,
            start_limit=start_limit_ms / 1000,
            tasks=Tasks(grace_seconds=task_grace_ms / 1000),
        )
        self._scope = Scope(self._core, None, PluginSpec(name="patchouli", start=_no_start), None)
        self.root = self._scope.begin_as_root()

    async def __aenter__(self) -> Kernel:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop every plugin; each call returns when all have stopped.

        Raises:
            RuntimeError: A task or a handler of a plugin calls this; it could never end.
        """
        await self._scope.close()

    async def settle(self) -> None:
        """Return when no scope is in a transition."""
        while self._core.transitions:
            await asyncio.wait(self._core.transitions)

    def pending(self) -> Sequence[PendingPlugin]:
        """Return the plugins that wait for services, in the order in which they were installed."""
        return [
            PendingPlugin(name=scope.name, missing=scope.missing)
            for scope in self._core.scopes
            if scope.state is ScopeState.WAITING
        ]

    def has_listeners(self, event: str) -> bool:
        """Say whether a dispatch of `event` would reach anyone now."""
        return bool(self._core.dispatcher.listeners(event))


def _no_start(_: Context, __: object) -> None:
    """Stand in the spec of the root, which is active without a start."""
