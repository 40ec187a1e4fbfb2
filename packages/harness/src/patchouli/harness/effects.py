"""Effects: what a run has made and how it is unmade, once, within a limit of time."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING

from patchouli.harness.plugin import Effect, Undo
from patchouli.harness.tasks import abandon, for_task, is_foreign

if TYPE_CHECKING:
    from patchouli.harness.tasks import RunTasks


class Effects:
    """What one run has made and not unmade yet, in the order in which it was made."""

    __slots__ = ("_effects", "tasks")

    def __init__(self, tasks: RunTasks) -> None:
        self.tasks = tasks
        self._effects: dict[RecordedEffect, None] = {}

    def record(self, label: str, undo: Undo, *, limit: float | None) -> RecordedEffect:
        """Take up a new effect, to be undone before all earlier ones.

        Args:
            label: Names it in the log.
            undo: Unmakes it.
            limit: The time for that, in seconds; None if its steps have limits of their own.
        """
        effect = RecordedEffect(self, label, undo, limit=limit)
        self._effects[effect] = None
        return effect

    def erase(self, effect: RecordedEffect) -> None:
        """Forget an effect that is undone or has ended."""
        self._effects.pop(effect, None)

    def in_progress(self) -> list[RecordedEffect]:
        """Return those of which somebody disposes now."""
        return [effect for effect in self._effects if effect.is_in_progress]

    async def undo_all(self) -> None:
        """Undo what there is, from the last to the first, and what is made meanwhile."""
        while self._effects:
            effect, _ = self._effects.popitem()  # the last; looking for it costs more and more
            await effect.dispose()


class RecordedEffect(Effect):
    """Something made in a run, with its undo; made by `Effects.record`."""

    __slots__ = ("_effects", "_label", "_limit", "_task", "_undo", "_waiting_for")

    def __init__(self, effects: Effects, label: str, undo: Undo, *, limit: float | None) -> None:
        self._effects = effects
        self._label = label
        self._undo = undo
        self._limit = limit
        self._task: asyncio.Task[None] | None = None
        self._waiting_for: asyncio.Task[object] | None = None

    @property
    def is_in_progress(self) -> bool:
        """Whether somebody disposes of it now."""
        return self._task is not None and not self._task.done()

    def forget(self) -> None:
        """Drop it without an undo: what it stood for has ended by itself."""
        self._effects.erase(self)

    async def dispose(self) -> None:
        """Undo it; every call waits for the one undo."""
        if self._task is None:
            self._task = self._effects.tasks.own(self._perform(), f"undo {self._label}")
        if asyncio.current_task() in (self._task, self._waiting_for):
            raise RuntimeError(f"the undo of {self._label!r} waits for itself")
        await asyncio.wait({self._task})

    async def _perform(self) -> None:
        logger = self._effects.tasks.logger
        try:
            result = self._undo()
            if inspect.isawaitable(result):
                await self._within_limit(
                    self._effects.tasks.own(for_task(result), f"undo {self._label}")
                )
        except BaseException as error:
            if not is_foreign(error):
                raise
            logger.error("the undo of %r failed: %s", self._label, error, exc_info=error)
        finally:
            self._effects.erase(self)

    async def _within_limit(self, waiting_for: asyncio.Task[object]) -> None:
        self._waiting_for = waiting_for
        done, _ = await asyncio.wait({waiting_for}, timeout=self._limit)
        if done:
            waiting_for.result()
            return
        self._effects.tasks.logger.error(
            "the undo of %r goes on after its limit of %g s and is abandoned",
            self._label,
            self._limit,
        )
        abandon(waiting_for, self._effects.tasks.logger, f"the undo of {self._label!r}")
