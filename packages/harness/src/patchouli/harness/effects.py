"""Effects: what a run has made and how it is unmade, once, within a limit of time."""

from __future__ import annotations

import asyncio
import inspect
from typing import Protocol

from patchouli.harness.plugin import Effect, Undo
from patchouli.harness.tasks import TaskOwner, abandon, for_task, is_foreign


class Maker(TaskOwner, Protocol):
    """The run that an effect belongs to."""

    def record(self, effect: RecordedEffect) -> None:
        """Take up a new effect, to be undone before all earlier ones."""
        ...

    def erase(self, effect: RecordedEffect) -> None:
        """Forget an effect that is undone or has ended."""
        ...


class RecordedEffect(Effect):
    """Something made in a run, with its undo."""

    __slots__ = ("_label", "_limit", "_run", "_task", "_undo", "_waiting_for")

    def __init__(self, run: Maker, label: str, undo: Undo, *, limit: float | None) -> None:
        self._run = run
        self._label = label
        self._undo = undo
        self._limit = limit  # s; None for one whose steps have limits of their own
        self._task: asyncio.Task[None] | None = None
        self._waiting_for: asyncio.Task[object] | None = None
        run.record(self)

    @property
    def is_in_progress(self) -> bool:
        """Whether somebody disposes of it now."""
        return self._task is not None and not self._task.done()

    def forget(self) -> None:
        """Drop it without an undo: what it stood for has ended by itself."""
        self._run.erase(self)

    async def dispose(self) -> None:
        """Undo it; every call waits for the one undo."""
        if self._task is None:
            self._task = self._run.own(self._perform(), f"undo {self._label}")
        if asyncio.current_task() in (self._task, self._waiting_for):
            raise RuntimeError(f"the undo of {self._label!r} waits for itself")
        await asyncio.wait({self._task})

    async def _perform(self) -> None:
        logger = self._run.logger
        try:
            result = self._undo()
            if inspect.isawaitable(result):
                await self._within_limit(self._run.own(for_task(result), f"undo {self._label}"))
        except BaseException as error:
            if not is_foreign(error):
                raise
            logger.error("the undo of %r failed: %s", self._label, error, exc_info=error)
        finally:
            self._run.erase(self)

    async def _within_limit(self, waiting_for: asyncio.Task[object]) -> None:
        self._waiting_for = waiting_for
        done, _ = await asyncio.wait({waiting_for}, timeout=self._limit)
        if done:
            waiting_for.result()
            return
        self._run.logger.error(
            "the undo of %r goes on after its limit of %g s and is abandoned",
            self._label,
            self._limit,
        )
        abandon(waiting_for, self._run.logger, f"the undo of {self._label!r}")
